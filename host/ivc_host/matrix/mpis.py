"""The MPIs of the matrix: what each is, and the command line that starts it over guests.

Two ways for each: `ivc` is what a user types to use ours, `own` is the same MPI without us: over
libfabric's `tcp` where ours is a libfabric provider, over its own TCP where ours is a plug-in. In the
place `here` the "guests" are names of this machine (as-host.sh), and no rank uses the MPI's own shared
memory, whichever the way. A command line is all that a cell consists of, so every cell can be had by
hand. Ranks are dealt to the guests in turn: rank r is in guest r modulo guests.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import openmpi, paths
from ..errors import UsageError
from . import wheels
from .wheels import Environment

IVC, OWN = "ivc", "own"

#: In place of ssh, where guests are names of this machine.
AS_HOST = str(Path(__file__).with_name("as-host.sh"))

#: The words before the program, and the environment.
Command = tuple[list[str], dict[str, str]]
#: Way, environment, guests, ranks; whether guests are names of this machine.
MakeCommand = Callable[[str, Environment, Sequence[str], int, bool], Command]


def _fabric(way: str, own: str = "tcp") -> dict[str, str]:
    if way == OWN:
        return {"FI_PROVIDER": own, "FI_TCP_IFACE": "lo", "FI_SOCKETS_IFACE": "lo"}
    return {"FI_PROVIDER_PATH": str(paths.provider()), "FI_PROVIDER": "ivc", "IVC_STATS": "1"}


def _library(environment: Environment) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(environment.lib)}


def _hydra_words(guests: Sequence[str], ranks: int) -> list[str]:
    return ["-hosts", ",".join(guests), "-ppn", "1", "-n", str(ranks)]


def _mpich(way: str, env: Environment, guests: Sequence[str], ranks: int, here: bool) -> Command:
    start = [str(env.folder / "bin" / "mpiexec"), "-launcher", "ssh"]
    # From 4.3 on the wheels have ucx as well, and would choose it.
    settings = {"MPIR_CVAR_CH4_NETMOD": "ofi", **_library(env), **_fabric(way)}
    if here:
        start += ["-launcher-exec", AS_HOST]
        settings["MPIR_CVAR_NOLOCAL"] = "1"
    return [*start, *_hydra_words(guests, ranks)], settings


def _intel(way: str, env: Environment, guests: Sequence[str], ranks: int, here: bool) -> Command:
    start = [str(env.folder / "bin" / "mpiexec.hydra"), "-bootstrap", "ssh"]
    settings = {"I_MPI_ROOT": str(env.folder), **_library(env), **_fabric(way)}
    # Its own shared memory asks for a processor topology, which these guests' kernel does not tell.
    settings["I_MPI_FABRICS"] = "ofi"
    # Its libfabric has its providers as files, and loses them when only ours are named.
    ours = f"{paths.provider()}:" if way == IVC else ""
    start += ["-bootstrap-exec", AS_HOST] if here else []
    settings["FI_PROVIDER_PATH"] = f"{ours}{env.lib}"
    return [*start, *_hydra_words(guests, ranks)], settings


def _mca(parameters: dict[str, str]) -> list[str]:
    return [word for key, value in parameters.items() for word in ("--mca", key, value)]


def _export(settings: dict[str, str]) -> list[str]:
    return [word for key in settings for word in ("-x", key)]


_SLOTS = 16
#: Ranks that share a processor must give way; Open MPI does not see by itself that they do.
_YIELD = {"mpi_yield_when_idle": "1"}


def _openmpi_words(
    program: str, guests: Sequence[str], ranks: int, parameters: dict[str, str]
) -> list[str]:
    # Ranks are dealt by node all the same; mpi4py's suite starts more of them.
    hosts = ",".join(f"{guest}:{_SLOTS}" for guest in guests)
    start = [program, "--host", hosts, "--map-by", "node", "--bind-to", "none", "-np", str(ranks)]
    if ranks > len(guests):
        parameters = {**parameters, **_YIELD}
    return [*start, *_mca(parameters)]


def _components() -> str:
    ask = ["/usr/bin/ompi_info", *openmpi.ASK_FOLDER[1:]]
    done = subprocess.run(ask, capture_output=True, text=True)
    return openmpi.component_path(done.stdout)


#: Debian's default leaves no one-sided communication between guests.
_DEBIAN = {"osc": "^ucx"}
_TCP = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": "lo"}
#: The same for what starts it: Open MPI 4.1's name of the parameter, and 5.0's.
_LAUNCH = {"plm_rsh_agent": AS_HOST, "oob_tcp_if_include": "lo", **_YIELD}
_LAUNCH_5 = {"plm_ssh_agent": AS_HOST, **_YIELD}
_PLUGIN = {"pml": "ob1", "btl": "ivc,tcp,self"}
_BTL_OFI = {"pml": "ob1", "btl": "ofi,self", "btl_ofi_mode": "2"}
#: What libfabric puts together for messages to anybody over TCP.
_RXM = "tcp;ofi_rxm"


def _mtl(provider_name: str) -> dict[str, str]:
    return {"pml": "cm", "mtl": "ofi", "mtl_ofi_provider_include": provider_name}


def _debian(ours: dict[str, str], own: dict[str, str], fabric: str = _RXM) -> MakeCommand:
    def command(
        way: str, env: Environment, guests: Sequence[str], ranks: int, here: bool
    ) -> Command:
        del env
        if ours is _PLUGIN and way == IVC:
            settings = {"OMPI_MCA_mca_base_component_path": _components(), "IVC_STATS": "1"}
        else:
            settings = _fabric(way, fabric)
        parameters = {**_DEBIAN, **(own if way == OWN else ours), **(_LAUNCH if here else {})}
        words = _openmpi_words("/usr/bin/mpirun", guests, ranks, parameters)
        return [*words, *_export(settings)], settings

    return command


def _openmpi5(way: str, env: Environment, guests: Sequence[str], ranks: int, here: bool) -> Command:
    settings = {**_library(env), **_fabric(way, _RXM)}
    program = str(env.folder / "bin" / "mpirun")
    parameters = _mtl(_RXM if way == OWN else "ivc") | (_LAUNCH_5 if here else {})
    words = _openmpi_words(program, guests, ranks, parameters)
    return [*words, *_export(settings)], settings


@dataclass(frozen=True)
class Mpi:
    key: str
    label: str
    #: The package and what pip is asked for; None: the system's own Open MPI.
    package: str
    requirement: str | None
    #: Whose binary interface it has: programs and bindings are built for that.
    abi: str
    command: MakeCommand
    #: Those of one name have the same command without us: one run of it serves all.
    baseline: str
    #: Of the one version of its kind that --quick takes.
    quick: bool = False
    #: The MPI whose headers fit, for one that has none: package and requirement.
    headers: tuple[str, str] | None = field(default=None)
    #: Asked MPICH's own tests: MPICH of the version that they belong to, and other MPIs.
    mpich_suite: bool = False

    def environment(self) -> Environment:
        return wheels.environment(self.package, self.requirement)

    def compiler(self, environment: Environment) -> Path:
        """The wrapper that compiles for it; Intel's run-time package has none."""
        if self.requirement is None:
            return Path("/usr/bin/mpicc.openmpi")
        return environment.folder / "bin" / "mpicc"

    def built(self) -> Path:
        """The file of ours that this MPI loads."""
        if self.key == "openmpi-4.1-plugin":
            return paths.plugin() / "mca_btl_ivc.so"
        return paths.provider() / "libivc-fi.so"


_SYSTEM = "debian-openmpi"

MPIS = (
    Mpi("mpich-4.0", "MPICH 4.0", "mpich", "mpich==4.0.3", "mpich", _mpich, "mpich-4.0",
        mpich_suite=True),
    Mpi("mpich-4.3", "MPICH 4.3", "mpich", "mpich==4.3.2", "mpich", _mpich, "mpich-4.3"),
    Mpi("mpich", "MPICH, newest", "mpich", "mpich", "mpich", _mpich, "mpich", quick=True),
    # 2021.19 wants a libfabric that the package index does not have.
    Mpi("impi", "Intel MPI", "impi-rt", "impi-rt==2021.18.*", "mpich", _intel, "impi",
        quick=True, headers=("mpich", "mpich==4.0.3")),
    Mpi("openmpi-4.1-plugin", "Open MPI 4.1, plug-in", _SYSTEM, None, "openmpi",
        _debian(_PLUGIN, _TCP), "openmpi-4.1", quick=True, mpich_suite=True),
    Mpi("openmpi-4.1-mtl", "Open MPI 4.1, mtl/ofi", _SYSTEM, None, "openmpi",
        _debian(_mtl("ivc"), _mtl(_RXM)), "openmpi-4.1-mtl", quick=True),
    # Of this libfabric's own, sockets has what btl/ofi asks for.
    Mpi("openmpi-4.1-btl", "Open MPI 4.1, btl/ofi", _SYSTEM, None, "openmpi",
        _debian(_BTL_OFI | {"btl_ofi_provider_include": "ivc"},
                _BTL_OFI | {"btl_ofi_provider_include": "sockets"}, "sockets"),
        "openmpi-4.1-btl", quick=True),
    Mpi("openmpi-5.0", "Open MPI 5.0, mtl/ofi", "openmpi", "openmpi==5.0.*", "openmpi",
        _openmpi5, "openmpi-5.0", quick=True, mpich_suite=True),
)  # fmt: skip


def named(keys: Sequence[str]) -> list[Mpi]:
    """Those whose name is, or begins with, one of the keys; all when there is no key."""
    for key in keys:
        if not any(mpi.key.startswith(key) for mpi in MPIS):
            known = ", ".join(mpi.key for mpi in MPIS)
            raise UsageError(f"no MPI named {key!r}", hint=f"choose among {known}")
    exact = {mpi.key for mpi in MPIS} & set(keys)
    return [
        mpi
        for mpi in MPIS
        if not keys
        or mpi.key in exact
        or any(mpi.key.startswith(key) for key in keys if key not in exact)
    ]
