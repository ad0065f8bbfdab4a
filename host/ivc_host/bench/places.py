"""Where an MPI program runs (this host, or the guests of a lab) and through which path.

The two are independent: the same program, the same path, another place. A path is a set of Open
MPI's own parameters and nothing else, so every figure can be had by hand. (What `ivc env` tells the
C library is told on every path.)
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from .. import openmpi, paths
from ..errors import MissingError, UsageError
from ..lab.lab import Lab
from . import processors, programs
from .programs import Record

#: The region of a benchmark on the host; sparse, so only what is used takes memory.
REGION_SIZE = 256 << 20


@dataclass(frozen=True)
class MpiPath:
    """A way that messages take, in Open MPI's parameters."""

    key: str
    label: str
    mca: Mapping[str, str]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs_region(self) -> bool:
        return "ivc" in self.mca["btl"].split(",")


#: The paths that a user can name. Each excludes every other: no measurement falls back silently.
PATHS = {
    path.key: path
    for path in (
        MpiPath("vader", "Open MPI vader (CMA where it works)", {"btl": "vader,self"}),
        MpiPath(
            "vader-nocma",
            "Open MPI vader, CMA off",
            {"btl": "vader,self", "btl_vader_single_copy_mechanism": "none"},
        ),
        MpiPath("tcp", "Open MPI tcp", {"btl": "tcp,self"}),
        MpiPath("ivc", "Open MPI ivc", {"btl": "ivc,self"}),
        MpiPath(
            "ivc-heap",
            "Open MPI ivc, malloc() in the region",
            {"btl": "ivc,self"},
            {"LD_PRELOAD": str(paths.heap())},
        ),
    )
}


def path_named(key: str) -> MpiPath:
    if key not in PATHS:
        raise UsageError(f"no path named {key!r}", hint=f"choose among {', '.join(PATHS)}")
    return PATHS[key]


def polling() -> MpiPath:
    """The plug-in, and ranks that only look while they wait. Nobody wants that but who compares with it."""
    env = {"IVC_SPIN": "forever", "LD_PRELOAD": str(programs.find("pure_polling.so"))}
    return replace(PATHS["ivc"], key="ivc-polling", label="Open MPI ivc, pure polling", env=env)


class Place(Protocol):
    """Runs MPI programs with one rank per processor, or per guest, of the place."""

    label: str

    def mpi(
        self, path: MpiPath, argv: Sequence[str], np: int = 2, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """Run an MPI program; returns when it has ended, whatever its exit code."""


def require_plugin() -> None:
    """Raise when the plug-in is not built, or what may be preloaded beside it."""
    paths.require_built(paths.plugin() / "mca_btl_ivc.so")
    paths.require_built(paths.heap())


class Host:
    """Two pinned processes of this machine, with a region of their own in /dev/shm."""

    label = "host"

    def __init__(self, cpus: tuple[int, int], region: Path) -> None:
        self.cpus = cpus
        self.region = region
        if shutil.which("mpirun") is None or shutil.which("ompi_info") is None:
            raise MissingError("mpirun is missing", hint="install it with: ./run setup")
        self._components = openmpi.component_path(programs.run(openmpi.ASK_FOLDER, timeout=60).stdout)

    def env(self, path: MpiPath) -> dict[str, str]:
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        own = {**openmpi.copying(), **path.env, **root}
        if path.needs_region:
            require_plugin()
            own["OMPI_MCA_mca_base_component_path"] = self._components
            own["IVC_REGION"] = str(self.region)
        return own

    def mpi(
        self, path: MpiPath, argv: Sequence[str], np: int = 2, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        words = ["mpirun", "-np", str(np)]
        if np == 2:
            words += ["--cpu-list", ",".join(map(str, self.cpus))]
            words += ["--bind-to", "cpu-list:ordered"]
        else:  # more ranks than processors: Open MPI then yields while it waits
            words += ["--oversubscribe", "--bind-to", "none"]
        for key, value in {**path.mca, "pml": "ob1", "btl_tcp_if_include": "lo"}.items():
            words += ["--mca", key, value]
        words += ["--mca", "oob_tcp_if_include", "lo"]
        return programs.run([*words, *argv], self.env(path), timeout)

    def libivc(
        self, words: Sequence[str], timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        argv = [str(programs.find("bench_libivc")), "--cpus", f"{self.cpus[0]},{self.cpus[1]}"]
        return programs.run([*argv, "--region", str(self.region), *words], timeout=timeout)


class Guests:
    """The guests of a lab, each pinned to one processor of the host in turn."""

    def __init__(self, lab: Lab, cpus: tuple[int, int]) -> None:
        self.lab = lab
        self.label = f"guests ({lab.record.hypervisor})"
        self.pin(cpus)
        self._components: str | None = None
        self._jobs = itertools.count(os.getpid() << 16)

    def pin(self, cpus: tuple[int, int]) -> None:
        for index, guest in enumerate(self.lab.record.guests):
            for process in guest.processes:
                processors.pin_tree(process.pid, cpus[index % 2])

    def components(self) -> str:
        """The guests' plug-in search path, as the first guest's own Open MPI tells it."""
        if self._components is None:
            done = self.lab.run(self.lab.guests[0], openmpi.ASK_FOLDER, timeout=120)
            programs.check(done, "ompi_info in a guest")
            self._components = openmpi.component_path(done.stdout)
        return self._components

    def env(self, path: MpiPath) -> dict[str, str]:
        own = {**openmpi.copying(), **path.env}
        if path.needs_region:
            require_plugin()
            own["OMPI_MCA_mca_base_component_path"] = self.components()
        return own

    def mpi(
        self,
        path: MpiPath,
        argv: Sequence[str],
        np: int = 2,
        timeout: float = 300.0,
        where: Sequence[str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """WHERE: the guest of each rank; without it they are dealt in turn."""
        mca = {**path.mca, "pml": "ob1"}
        if where is not None:
            mca["rmaps"] = "seq"  # ranks in the order of the hosts that are named
        if np > len(self.lab.guests):
            # Ranks that share a processor must give way while they wait. Open MPI does not see by
            # itself that they do (measured: 10 ms instead of 0.15 ms over tcp).
            mca["mpi_yield_when_idle"] = "1"
            if "ivc" in mca["btl"].split(","):
                # The guest's fair scheduler counts time in ticks of 10 ms and picks the rank that
                # has just given way again and again; round robin passes the processor on. (All-to-
                # all of 8 B: 55 us instead of 10 ms. Over tcp it starves the network: 28 ms.)
                argv = ["chrt", "--rr", "1", *argv]
        try:
            return self.lab.mpirun(argv, np, mca, self.env(path), where, timeout)
        except subprocess.TimeoutExpired:
            raise programs.BenchError(
                f"{Path(argv[0]).name} through {path.label} has not ended after {timeout:.0f} s "
                f"in lab {self.lab.name}"
            ) from None

    def libivc(
        self, words: Sequence[str], timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        # A job of its own for each run, so that none meets what another has left.
        words = [*words, "--magic", str(next(self._jobs))]
        return two_guests(self.lab, "bench_libivc", words, words, timeout)


def two_guests(
    lab: Lab, program: str, serving: Sequence[str], asking: Sequence[str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """One side of a program in each of the first two guests; returns the client's outcome."""
    server, client = lab.guests[:2]
    argv = str(programs.find(program))

    def run(guest: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        try:
            return lab.run(guest, [argv, *words], timeout=timeout)
        except subprocess.TimeoutExpired:
            raise programs.BenchError(f"{program} in {guest} has not ended after {timeout:.0f} s") from None

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(run, server, ["--role", "server", *serving])
        done = run(client, ["--role", "client", *asking])
        found = other.result()
    programs.check(found, f"{program}, the server in {server}")
    return done


_regions = itertools.count()


@contextmanager
def host_region(size: int = REGION_SIZE) -> Iterator[Path]:
    """A new region file of this process alone; gone at the end, whatever the end is."""
    region = Path(f"/dev/shm/ivc-bench-{os.getpid()}-{next(_regions)}")
    try:
        try:
            with open(region, "xb") as file:
                file.truncate(size)
        except OSError as error:
            raise programs.BenchError(
                f"cannot make the region {region}: {error.strerror}",
                hint="is there room and permission in /dev/shm?",
            ) from error
        yield region
    finally:
        region.unlink(missing_ok=True)


def bench_mpi(
    place: Place, path: MpiPath, words: Sequence[str], np: int = 2, timeout: float = 300.0
) -> list[Record]:
    """The records of bench_mpi, run in a place through a path."""
    done = place.mpi(path, [str(programs.find("bench_mpi")), *words], np, timeout)
    return programs.checked(done, f"bench_mpi on {place.label} through {path.label}")


def bench_libivc(
    place: Host | Guests, words: Sequence[str], timeout: float = 300.0
) -> list[Record]:
    """The records of bench_libivc: two processes, or two guests, through the library itself."""
    return programs.checked(place.libivc(words, timeout), f"bench_libivc on {place.label}")
