"""Where a cell runs: guests dealt to one or two "hosts", and one job at a time in them.

Invariant: when `run` has returned, whatever the job did, no process of it is left in any guest, so
that a cell cannot spoil the next one.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .. import paths
from ..bench import processors
from ..errors import LabError, UsageError
from ..lab import lab
from . import wheels

_REGION = 256 << 20
_MEMORY_MB = 768
#: Every program that a job consists of, by the kernel's name for it (15 characters).
_PROGRAMS = (
    "integrity", "bench_mpi", "python", "python3", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy",
    "hydra_bstrap_pr", "mpirun", "orted", "prterun", "prted",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    key: str
    label: str
    guests: int
    hosts: int
    ranks: tuple[int, ...]


PLACES = (
    Place("one", "two guests, one host", 2, 1, (2, 4)),
    Place("two", "two guests, two hosts", 2, 2, (2, 4)),
    Place("mix", "four guests, two hosts", 4, 2, (4,)),
)


def named(keys: Sequence[str]) -> list[Place]:
    known = {place.key: place for place in PLACES}
    for key in keys:
        if key not in known:
            raise UsageError(f"no place named {key!r}", hint=f"choose among {', '.join(known)}")
    return [place for place in PLACES if not keys or place.key in keys]


@dataclass(frozen=True)
class Job:
    """How a job ended; `code` is None when it was ended because it took too long."""

    code: int | None
    said: str
    seconds: float

    @property
    def reason(self) -> str:
        """The first line that tells what went wrong, or how it ended."""
        how = "took too long" if self.code is None else f"exit {self.code}"
        # MPICH's errors come with a stack, whose last line is the cause.
        if stack := re.findall(r"^\w+\(\d+\)\.*: (\S.*)$", self.said, re.MULTILINE):
            return f"{how}: {stack[-1][:160]}"
        marks = ("integrity:", "ivc", "rror", "annot", "failed", "signal")
        for line in self.said.splitlines():
            if any(mark in line for mark in marks) and not line.startswith(("{", "ivc: rank")):
                return f"{how}: {' '.join(line.split())[:160]}"
        return how


class Ground:
    """A place that is up."""

    def __init__(self, place: Place, up: lab.Lab) -> None:
        self.place = place
        self.lab = up
        self.guests = up.guests
        self.host_of = {guest.name: guest.host for guest in up.record.guests}

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout: float) -> Job:
        """Run a job, started in the first guest. Raises LabError when a guest has died."""
        begin = time.monotonic()
        try:
            done = self.lab.run(self.guests[0], argv, env, timeout)
            code, said = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            parts = [part for part in (late.stdout, late.stderr) if part]
            said = "".join(p.decode(errors="replace") if isinstance(p, bytes) else p for p in parts)
            code = None
        seconds = time.monotonic() - begin
        if code != 0:
            self.sweep()
        return Job(code, said, seconds)

    def everywhere(self, line: str, timeout: float = 60) -> list[str]:
        """What a shell line prints in each guest."""
        try:
            return [
                self.lab.run(guest, ["sh", "-c", line], None, timeout).stdout
                for guest in self.guests
            ]
        except subprocess.TimeoutExpired as late:
            raise LabError(f"a guest of lab {self.lab.name} does not answer any more") from late

    def sweep(self) -> None:
        """End whatever a job has left in the guests."""
        self.everywhere(f"for p in {' '.join(_PROGRAMS)}; do pkill -KILL -x $p; done; true")


@contextmanager
def ground(place: Place, progress: lab.UpProgress) -> Iterator[Ground]:
    """The place, brought up; gone at the end, whatever the end is."""
    share = [paths.project(), wheels.base()]
    with lab.up(
        f"matrix-{place.key}-{os.getpid()}",
        place.guests,
        hosts=place.hosts,
        region_size=_REGION,
        memory_mb=_MEMORY_MB,
        share=share,
        progress=progress,
    ) as up:
        cpus = processors.choose()
        for index, guest in enumerate(up.record.guests):
            for process in guest.processes:
                processors.pin_tree(process.pid, cpus[index % 2])
        yield Ground(place, up)
