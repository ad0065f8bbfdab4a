"""MPICH and Intel MPI, the binaries that people install, as sides of a comparison: two pinned ranks
of this host.

As with Open MPI's paths, a path is a set of the library's own settings and nothing else, and each
excludes every other. The libraries come from PyPI into the cache; the benchmark is compiled once
against MPICH's header, and runs with both (they share one binary interface).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import paths
from ..errors import MissingError
from ..matrix import mpis
from . import programs
from .programs import Record

#: The matrix's own, so that there is one of each.
_MPIS = {mpi.package: mpi for mpi in mpis.MPIS if mpi.key in ("mpich", "impi")}

#: One provider for all messages, also between ranks of one host.
_MPICH_OFI = {"MPIR_CVAR_NOLOCAL": "1", "MPIR_CVAR_CH4_NETMOD": "ofi"}
_INTEL_SHM = {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0", "I_MPI_HYDRA_BOOTSTRAP": "fork"}
_INTEL_OFI = {"I_MPI_FABRICS": "ofi", "I_MPI_PIN": "0", "I_MPI_HYDRA_BOOTSTRAP": "fork"}


@dataclass(frozen=True)
class HydraPath:
    key: str
    label: str
    package: str
    env: Mapping[str, str] = field(default_factory=dict)
    ours: bool = False
    #: What messages and windows lie in is the MPI's to give, and it has it from the region.
    lent: bool = False


#: "nocma": copied in and out, as between virtual machines; strace shows that then no message is
#: carried by process_vm_readv.
PATHS = {
    path.key: path
    for path in (
        HydraPath("mpich-ivc", "MPICH ivc", "mpich", {**_MPICH_OFI, "FI_PROVIDER": "ivc"}, True),
        HydraPath(
            "mpich-ivc-lent",
            "MPICH ivc, memory of the region",
            "mpich",
            {**_MPICH_OFI, "FI_PROVIDER": "ivc"},
            ours=True,
            lent=True,
        ),
        HydraPath("mpich-ofi-shm", "MPICH ofi, shm", "mpich", {**_MPICH_OFI, "FI_PROVIDER": "shm"}),
        HydraPath(
            "mpich-ofi-shm-nocma",
            "MPICH ofi, shm without CMA",
            "mpich",
            {**_MPICH_OFI, "FI_PROVIDER": "shm", "FI_SHM_DISABLE_CMA": "1"},
        ),
        HydraPath("mpich-shm", "MPICH's own shared memory", "mpich"),
        HydraPath(
            "mpich-shm-nocma",
            "MPICH's own shared memory, CMA and XPMEM off",
            "mpich",
            {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "MPIR_CVAR_CH4_XPMEM_ENABLE": "0"},
        ),
        HydraPath(
            "intel-ivc", "Intel MPI ivc", "impi-rt", {**_INTEL_OFI, "FI_PROVIDER": "ivc"}, True
        ),
        HydraPath("intel-shm", "Intel MPI's own shared memory", "impi-rt", _INTEL_SHM),
        HydraPath(
            "intel-ofi-shm", "Intel MPI ofi, shm", "impi-rt", {**_INTEL_OFI, "FI_PROVIDER": "shm"}
        ),
    )
}


def library(package: str) -> Path:
    """The folder of the library; installed there when it is not."""
    return _MPIS[package].environment().folder


def _program() -> Path:
    """bench_mpi for this binary interface; compiled anew when its source has changed."""
    program = paths.build() / "bench" / "bench_mpi_mpich"
    sources = [paths.project() / "bench" / name for name in ("bench_mpi.c", "sample.c", "sample.h")]
    if program.exists() and all(
        program.stat().st_mtime > source.stat().st_mtime for source in sources
    ):
        return program
    mpich = library("mpich")
    if shutil.which("gcc") is None:
        raise MissingError("there is no gcc", hint="run: ./run setup")
    words = ["gcc", "-O3", "-std=gnu11", "-D_GNU_SOURCE", f"-I{mpich / 'include'}"]
    words += [*(str(source) for source in sources[:2]), "-o", str(program)]
    done = programs.run([*words, f"-L{mpich / 'lib'}", "-lmpi"], timeout=120)
    programs.check(done, "compiling bench_mpi with MPICH's header")
    return program


def provider_folder() -> Path:
    """Where the build leaves the provider."""
    paths.require_built(paths.provider() / "libivc-fi.so")
    return paths.provider()


def environment(path: HydraPath, region: Path) -> dict[str, str]:
    root = library(path.package)
    env = {"LD_LIBRARY_PATH": str(root / "lib"), **path.env}
    folders = [str(provider_folder())] if path.ours else []
    if path.package == "impi-rt":
        env["I_MPI_ROOT"] = str(root)
        folders.append(str(root / "lib"))  # Intel's providers are files of their own
    if folders:
        env["FI_PROVIDER_PATH"] = ":".join(folders)
    if path.ours:
        env["IVC_REGION"] = str(region)
    return env


def _mpiexec(
    path: HydraPath, cpus: tuple[int, int], argv: Sequence[str], ranks: int
) -> list[str]:
    words = [str(library(path.package) / "bin" / "mpiexec")]
    if ranks > len(cpus):  # they move to where there is room
        return [*words, "-n", str(ranks), "taskset", "-c", f"{cpus[0]},{cpus[1]}", *argv]
    for rank, cpu in enumerate(cpus):
        words += [":"] if rank else []
        words += ["-n", "1", "taskset", "-c", str(cpu), *argv]
    return words


def bench(
    path: HydraPath,
    cpus: tuple[int, int],
    region: Path,
    words: Sequence[str],
    ranks: int = 2,
    timeout: float = 300,
) -> list[Record]:
    """The records of bench_mpi, a pinned rank on each processor or more of them, through a path."""
    argv = [str(_program()), *words]
    if path.lent:
        paths.require_built(paths.mpi_alloc())
        argv = ["env", f"LD_PRELOAD={paths.mpi_alloc()}", *argv, "--memory", "mpi"]
    argv = _mpiexec(path, cpus, argv, ranks)
    done: subprocess.CompletedProcess[str] = programs.run(argv, environment(path, region), timeout)
    return programs.checked(done, f"bench_mpi through {path.label}")
