"""Guests as a ground: a lab, and one job at a time in it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from .. import paths
from ..bench import processors
from ..errors import LabError
from ..lab import lab
from . import wheels
from .ground import TURN_FILE, TURN_MS, Job

_REGION = 256 << 20
#: Four ranks of Python that spawn four more each, twice: 768 were too little.
_MEMORY_MB = 2048
#: Every program that a job consists of, by the kernel's name for it (15 characters).
_PROGRAMS = (
    "integrity", "bench_mpi", "python", "python3", "mpiexec", "mpiexec.hydra", "hydra_pmi_proxy",
    "hydra_bstrap_pr", "mpirun", "orted", "prterun", "prted",
)  # fmt: skip


class Guests:
    """Jobs of a lab, started in its first guest."""

    notes = "/run/ivc-suite"
    here = False

    def __init__(self, up: lab.Lab) -> None:
        self.lab = up
        self.name = up.name
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
def up(key: str, guests: int, hosts: int, progress: lab.UpProgress) -> Iterator[Guests]:
    """A lab of guests, brought up; gone at the end, whatever the end is."""
    share = [paths.project(), wheels.base()]
    with lab.up(
        f"matrix-{key}-{os.getpid()}",
        guests,
        hosts=hosts,
        region_size=_REGION,
        memory_mb=_MEMORY_MB,
        share=share,
        progress=progress,
    ) as made:
        cpus = processors.choose()
        for index, guest in enumerate(made.record.guests):
            for process in guest.processes:
                processors.pin_tree(process.pid, cpus[index % 2])
        ground = Guests(made)
        # Whatever is started shares the guest's one processor: round robin, each gets its turn. Also
        # what is started by this very connection, which is used again.
        # The fair scheduler of such a guest picks a rank that gives way again, for 10 ms at a time.
        # Turns of 10 ms: in those of 100 an MPI that looks without pause for what a thread of its own
        # is to do (MPICH 4.3 with files) takes minutes, over tcp as well. The kernel's own thread for
        # what comes from the network goes before them all: else a rank that waits for it keeps it
        # from coming until its turn is over (8 B then take 21 ms now and then instead of 0.08).
        ground.everywhere(
            f"echo {TURN_MS} >{TURN_FILE}; "
            "chrt --rr --pid 2 $(pgrep -x ksoftirqd/0); "
            "for p in $(pgrep -x sshd); do chrt --rr --pid 1 $p; done"
        )
        yield ground
