"""The command that is profiled: which MPI starts it, how its ranks are told, and where it runs.

Ranks are told by the launcher's own means, so that they alone load the MPI layer, on every host. What is no launcher that
is known passes its environment on, or does not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from .. import openmpi, program
from ..errors import MissingError
from ..lab.lab import Lab

_LAUNCHERS = re.compile(r"(mpiexec|mpirun|orterun|prterun)(\..+)?")
_ASK_SECONDS = 30.0
#: Seconds for a command to end that was asked to.
_GRACE = 10.0
#: What of this shell's environment matters to a job in guests, where nothing of it is known.
_CARRIED = re.compile(r"(IVC|FI|I_MPI|OMPI|MPIR|PMIX|PRTE|HYDRA|UCX)_\w+|GLIBC_TUNABLES|LD_LIBRARY_PATH|PATH")


@dataclass(frozen=True)
class Mpi:
    """What starts the ranks."""

    #: "hydra" (MPICH, Intel MPI), "openmpi", or "" where it is neither.
    launcher: str
    version: str = ""


class Place(Protocol):
    """Where the command runs."""

    def ask(self, words: Sequence[str]) -> str | None:
        """What a command says; None: it is not there, or does not answer."""

    def run(self, words: Sequence[str], settings: Mapping[str, str]) -> int:
        """Run it to its end; the exit status as a shell has it."""


class Here:
    """This machine."""

    def ask(self, words: Sequence[str]) -> str | None:
        try:
            done = program.run(words, timeout=_ASK_SECONDS, errors_apart=True)
        except OSError:
            return None
        return None if done.code is None else done.said + done.errors

    def run(self, words: Sequence[str], settings: Mapping[str, str]) -> int:
        try:
            child = subprocess.Popen(words, env={**os.environ, **settings})
        except OSError as fault:
            raise MissingError(f"{words[0]} cannot be started: {fault.strerror}") from None
        try:
            return _status(_waited(child))
        except SystemExit as leave:  # a batch system's time is over, for instance: what was counted is wanted
            return _code(leave)
        finally:
            program.end(child, session=False, grace=_GRACE)


def _waited(child: subprocess.Popen[bytes]) -> int:
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue  # the terminal has sent it to the command as well, and what it had counted is wanted


def _code(leave: SystemExit) -> int:
    """By signals.end_cleanly(): 128 and the number of the signal."""
    return leave.code if isinstance(leave.code, int) else 1


def _status(code: int) -> int:
    return 128 - code if code < 0 else code


class InLab:
    """The first guest of a lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._guest = lab.guests[0]

    def ask(self, words: Sequence[str]) -> str | None:
        try:
            done = self._lab.run(self._guest, words, self._environment(), _ASK_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        return None if done.returncode == 127 else done.stdout + done.stderr

    def run(self, words: Sequence[str], settings: Mapping[str, str]) -> int:
        own = {**self._environment(), **settings}
        try:
            return self._lab.run(self._guest, words, own, cwd=Path.cwd(), capture=False).returncode
        except KeyboardInterrupt:
            return 130
        except SystemExit as leave:
            return _code(leave)

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if _CARRIED.fullmatch(name)}


def recognise(command: Sequence[str], place: Place) -> Mpi:
    """The MPI whose launcher the command begins with."""
    if not _LAUNCHERS.fullmatch(os.path.basename(command[0])):
        return Mpi("")
    said = place.ask([command[0], "--version"]) or ""
    if found := re.search(r"\(Open MPI\) v?(\S+)", said):
        return Mpi("openmpi", found[1])
    if "PRRTE" in said:
        return Mpi("openmpi", "5")
    if "HYDRA" in said or "Intel(R) MPI" in said:
        return Mpi("hydra")
    return Mpi("")


def told(command: Sequence[str], mpi: Mpi, settings: Mapping[str, str], place: Place) -> tuple[list[str], dict[str, str]]:
    """The command, and what its environment needs beside, so that all ranks see these settings."""
    if mpi.launcher == "hydra":
        words = [word for name, value in settings.items() for word in ("-genv", name, value)]
        return [command[0], *words, *command[1:]], {}
    if mpi.launcher == "openmpi":
        entries = [f"{name}={value}" for name, value in settings.items()]
        is_4_1 = mpi.version.startswith("4.")
        of_user = openmpi.list_of_user(place.ask(_beside(command[0], openmpi.ASK_LIST)) or "") if is_4_1 else ""
        return list(command), openmpi.carried(entries, is_4_1=is_4_1, of_user=of_user)
    return list(command), dict(settings)


def _beside(launcher: str, words: Sequence[str]) -> list[str]:
    """A command of the same MPI."""
    return [os.path.join(os.path.dirname(launcher), words[0]), *words[1:]]


def found(command: Sequence[str]) -> None:
    """Raise unless the first word is a program here."""
    if shutil.which(command[0]) is None:
        raise MissingError(f"{command[0]}: no such program", hint="is its folder in PATH?")
