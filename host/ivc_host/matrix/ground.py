"""What a place is once it is up; guests.py and here.py fulfil it.

Invariant: when `run` has returned, whatever the job did, no process of it is left, so that a cell
cannot spoil the next one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: Ranks that share a processor are scheduled round robin, in turns of so many ms (guests.py).
TURN_MS = 10
TURN_FILE = "/proc/sys/kernel/sched_rr_timeslice_ms"


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


class Ground(Protocol):
    """A place that is up."""

    name: str
    #: Whether its guests are names of this machine.
    here: bool
    #: The hosts as an MPI is told them; rank r is on host r modulo their number.
    guests: list[str]
    #: Which of them have a region in common.
    host_of: dict[str, int]
    #: A folder that a job may write to, on each of them.
    notes: str

    def run(self, argv: Sequence[str], env: Mapping[str, str], timeout: float) -> Job:
        """Run a job to its end. Raises LabError when the ground has broken."""

    def everywhere(self, line: str, timeout: float = 60) -> list[str]:
        """What a shell line prints, on each file system that `notes` is on."""
