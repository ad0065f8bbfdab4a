"""Our MPI programs, compiled once for each MPI of the matrix, below the build directory.

They use nothing but MPI. What has the interface of MPICH but no headers (Intel's run-time package)
takes MPICH's: that interface is the same by agreement.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from .. import paths
from ..errors import IvcError
from . import wheels
from .mpis import Mpi
from .wheels import Environment

_SOURCES = {
    "integrity": ["tests/mpi/integrity.c", "tests/mpi/integrity_p2p.c",
                  "tests/mpi/integrity_more.c"],
    "windows": ["tests/mpi/windows.c"],
    "counted": ["tests/mpi/counted.c"],
    "bench_mpi": ["bench/bench_mpi.c", "bench/sample.c"],
}  # fmt: skip


def _compiler(mpi: Mpi, environment: Environment) -> tuple[list[str], list[str]]:
    """Words before and after the sources."""
    if mpi.requirement is None:
        return ["/usr/bin/mpicc.openmpi"], []
    home = wheels.environment(*mpi.headers) if mpi.headers else environment
    return ["cc", f"-I{home.folder / 'include'}"], [f"-L{home.lib}", "-lmpi"]


def program(mpi: Mpi, environment: Environment, name: str) -> Path:
    """The program for this MPI; compiled when it is older than its sources."""
    target = paths.build() / "matrix" / environment.folder.name / name
    sources = [paths.project() / source for source in _SOURCES[name]]
    inputs = [*sources, *{header for one in sources for header in one.parent.glob("*.h")}]
    newest = max(one.stat().st_mtime for one in inputs)
    if target.is_file() and target.stat().st_mtime > newest:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    before, after = _compiler(mpi, environment)
    words = [*before, "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-w", *map(str, sources)]
    done = subprocess.run(
        [*words, "-o", str(target), *after, "-lm", "-pthread"], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise IvcError(f"cannot compile {name} for {mpi.label}", detail=done.stderr[-2000:])
    return target
