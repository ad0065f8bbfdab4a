"""Folders of this name on other hosts: made before the job, fetched and removed after it."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..errors import UsageError
from ..lab.lab import Lab
from .raw import ProfileError

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=5")
_SECONDS = 120.0
#: The names that ivc gives; whatever else another host sends is not written here.
_NAME = re.compile(r"[A-Za-z0-9_.-]+\.jsonl")


class Source(Protocol):
    """A host, or a guest, that ranks run on."""

    @property
    def name(self) -> str: ...

    def command(self, line: str) -> list[str]:
        """The command of this machine that runs a shell line there."""


class Ssh:
    def __init__(self, host: str) -> None:
        if host.startswith("-") or not host:
            raise UsageError(f"--gather {host!r}: no host", hint="such as node2, or user@node2")
        self.name = host

    def command(self, line: str) -> list[str]:
        return [*_SSH, self.name, "--", line]


class Guest:
    def __init__(self, lab: Lab, name: str) -> None:
        self._lab = lab
        self.name = name

    def command(self, line: str) -> list[str]:
        return self._lab.ssh_argv(self.name, line)


def prepare(sources: Sequence[Source], folder: Path) -> None:
    """Make the folder on each; one that is not reached is told now, not after the job."""
    for source in sources:
        _run(source, f"mkdir -p -m 700 {shlex.quote(str(folder))}")


def fetch(sources: Sequence[Source], folder: Path, into: Path) -> list[str]:
    """Bring the files of each here, into a folder of its own; what could not be fetched is told in words."""
    faults = []
    for number, source in enumerate(sources):
        own = into / f"from-{number}"
        own.mkdir()
        quoted = shlex.quote(str(folder))
        try:
            _unpack(_run(source, f"tar -C {quoted} -cf - ."), own)
            remove([source], folder)
        except (ProfileError, tarfile.TarError) as fault:
            faults.append(f"files of {source.name} are missing: {fault}")
    return faults


def remove(sources: Sequence[Source], folder: Path) -> None:
    """The folder is ours alone; the one that it lies in may be that of this machine, with what was fetched."""
    for source in sources:
        _run(source, f"rm -rf {shlex.quote(str(folder))}; rmdir {shlex.quote(str(folder.parent))} 2>/dev/null; true")


def _unpack(archive: bytes, into: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            content = tar.extractfile(member) if member.isfile() and _NAME.fullmatch(name) else None
            if content is not None:
                (into / name).write_bytes(content.read())


def _run(source: Source, line: str) -> bytes:
    try:
        done = subprocess.run(source.command(line), stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS)
    except FileNotFoundError as fault:
        raise ProfileError(f"{source.name} is not reached: {fault.filename} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ProfileError(f"{source.name} has not answered in {_SECONDS:.0f} s") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"it ended with {done.returncode}"
        raise ProfileError(f"{source.name} is not reached, or refuses: {why}", hint=f"try: {shlex.join(source.command('true'))}")
    return done.stdout
