"""`ivc env`: what an MPI has to be told to use ivc, as lines for a shell.

Prints assignments and nothing else, so that `eval "$(ivc env mpich)"` sets them. What the user has
set already is kept where both fit: a provider path gets ours in front, a list ours behind.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from . import openmpi as openmpi_paths
from . import paths
from .errors import MissingError, UsageError

app = typer.Typer(
    no_args_is_help=True, help='What an MPI has to be told: eval "$(ivc env mpich)" sets it.'
)

#: What the library takes for a region's name (src/region/discover.c).
_NAME = re.compile(
    r"/.*|pci:[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|xen|none"
    r"|uuid:[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)


def _named(region: str | None) -> str | None:
    if region is not None and not _NAME.fullmatch(region):
        raise UsageError(
            f"region {region!r}: not a path from the root, pci:ADDRESS, uuid:UUID, xen or none",
            hint="'ivc region list' and ivc_info show regions",
        )
    return region


Region = Annotated[
    str | None,
    typer.Option(
        callback=_named, help="Set IVC_REGION as well; else the only region here is taken."
    ),
]
Stats = Annotated[
    bool, typer.Option("--stats", help="Set IVC_STATS: ranks print at their end what went how.")
]

Heap = Annotated[
    bool,
    typer.Option(
        "--heap",
        help="Preload libivc-heap.so: large blocks of malloc() lie in the region, and messages"
        " out of them are copied once instead of twice.",
    ),
]

#: What a user may have set, and every rank should see.
_OURS = ("IVC_REGION", "IVC_NETWORK", "IVC_STATS", "IVC_HEAP_LEAST", "IVC_REQUIRE", "IVC_ON_PEER_LOSS")

#: Where Intel's libfabric has its providers: in oneAPI, in older releases, in PyPI's wheel.
_INTEL_FOLDERS = ("opt/mpi/libfabric/lib/prov", "libfabric/lib/prov", "lib")


def _installed(variable: str) -> Path | None:
    """A folder that `meson install` has noted in ivc.pc."""
    ask = ["pkg-config", f"--variable={variable}", "ivc"]
    if not shutil.which(ask[0]):
        return None
    done = subprocess.run(ask, capture_output=True, text=True)
    return Path(done.stdout.strip()) if done.returncode == 0 and done.stdout.strip() else None


def _folder(name: str, variable: str, built: Path) -> Path:
    """The folder that holds the file NAME: the build's, else the installed one."""
    for folder in (built, _installed(variable)):
        if folder and (folder / name).is_file():
            return folder
    raise MissingError(
        f"{name}: not built in {built}, and not installed as pkg-config knows",
        hint="./run build, or install it and set PKG_CONFIG_PATH",
    )


def _provider_folder() -> Path:
    return _folder("libivc-fi.so", "provider_dir", paths.provider())


def _joined(*folders: Path, old: str) -> str:
    """A search path with these folders first, then what was in it before; each once."""
    before = os.environ.get(old, "").split(":")
    return ":".join(dict.fromkeys(entry for entry in [*map(str, folders), *before] if entry))


def _intel_folders(root: Path | None) -> tuple[Path, Path]:
    """Intel MPI's root, and the folder of its libfabric's providers."""
    started = shutil.which("mpiexec.hydra")
    known = os.environ.get("I_MPI_ROOT") or (started and Path(started).resolve().parents[1])
    where = root or (Path(known) if known else None)
    for folder in _INTEL_FOLDERS if where else ():
        if where and any((where / folder).glob("lib*-fi.so")):
            return where, where / folder
    raise MissingError(
        f"no Intel MPI in {where}" if where else "no Intel MPI is known here",
        hint="--root FOLDER names the one that has bin/mpiexec.hydra and lib/libmpi.so",
    )


def library(built: Path) -> Path:
    """A library for LD_PRELOAD: the build's, else the installed one."""
    return _folder(built.name, "preload_dir", built.parent) / built.name


def preload(ours: Path, *, last: bool = False) -> str:
    """LD_PRELOAD with our library first, which nothing can be before that hands out memory; or last, where it only
    looks on."""
    if re.search(r"[\s:]", str(ours)):
        raise MissingError(
            f"LD_PRELOAD cannot name {ours}: blanks and colons separate names in it",
            hint="install it, or build it, in a folder without them",
        )
    before = [name for name in re.split(r"[\s:]+", os.environ.get("LD_PRELOAD", "")) if name]
    return ":".join(dict.fromkeys([*before, str(ours)] if last else [str(ours), *before]))


def _with_ours(
    settings: dict[str, str], region: str | None, stats: bool, heap: bool
) -> dict[str, str]:
    ours = {"IVC_REGION": region, "IVC_STATS": "1" if stats else None}
    ours["LD_PRELOAD"] = preload(library(paths.heap())) if heap else None
    return {**settings, **{name: value for name, value in ours.items() if value is not None}}


def _print(settings: dict[str, str]) -> None:
    for name, value in settings.items():
        print(f"export {name}={shlex.quote(value)}")


@app.command()
def mpich(region: Region = None, stats: Stats = False, heap: Heap = False) -> None:
    """For MPICH, and what is made of it."""
    settings = {
        "FI_PROVIDER_PATH": _joined(_provider_folder(), old="FI_PROVIDER_PATH"),
        "FI_PROVIDER": "ivc",
        # A wheel from 4.3 on has ucx as well, and would choose it.
        "MPIR_CVAR_CH4_NETMOD": "ofi",
    }
    _print(_with_ours(settings, region, stats, heap))


@app.command()
def intel(
    region: Region = None,
    stats: Stats = False,
    heap: Heap = False,
    root: Annotated[
        Path | None, typer.Option(help="Its folder, when neither I_MPI_ROOT nor PATH tells it.")
    ] = None,
) -> None:
    """For Intel MPI."""
    where, own = _intel_folders(root)
    settings = {
        "I_MPI_ROOT": str(where),
        "LD_LIBRARY_PATH": _joined(where / "lib", old="LD_LIBRARY_PATH"),
        # Its libfabric has its providers as files, and loses tcp when only ours is named.
        "FI_PROVIDER_PATH": _joined(_provider_folder(), own, old="FI_PROVIDER_PATH"),
        "FI_PROVIDER": "ivc",
    }
    _print(_with_ours(settings, region, stats, heap))


def _ompi_info(*words: str) -> str:
    if not shutil.which("ompi_info"):
        raise MissingError("no Open MPI in PATH", hint="ompi_info is to tell its plug-in folder")
    return subprocess.run(["ompi_info", *words], capture_output=True, text=True).stdout


def _plugin() -> dict[str, str]:
    ours = _folder("mca_btl_ivc.so", "component_dir", paths.plugin())
    found = re.search(r"Open MPI v(\S+)", _ompi_info("--version"))
    version = found[1] if found else "something else"
    if not version.startswith("4.1."):
        raise MissingError(
            f"the plug-in is for Open MPI 4.1, and {shutil.which('ompi_info')} is of {version}",
            hint="without --plugin it goes through libfabric",
        )
    answer = _ompi_info(*openmpi_paths.ASK_FOLDER[1:])
    return {
        "OMPI_MCA_mca_base_component_path": openmpi_paths.component_path(answer, ours),
        **openmpi_paths.copying(),
    }


def _mtl() -> dict[str, str]:
    return {
        "FI_PROVIDER_PATH": _joined(_provider_folder(), old="FI_PROVIDER_PATH"),
        "FI_PROVIDER": "ivc",
        "OMPI_MCA_pml": "cm",
        "OMPI_MCA_mtl": "ofi",
        "OMPI_MCA_mtl_ofi_provider_include": "ivc",
    }


@app.command()
def openmpi(
    region: Region = None,
    stats: Stats = False,
    heap: Heap = False,
    plugin: Annotated[
        bool, typer.Option("--plugin", help="Through the plug-in, which is for 4.1 only.")
    ] = False,
) -> None:
    """For Open MPI: through libfabric (4.1 and 5.0), or with --plugin."""
    settings = _with_ours(_plugin() if plugin else _mtl(), region, stats, heap)
    # mpirun takes OMPI_ variables to other nodes by itself; of the others it must be told, and it
    # stops at one that is not set.
    names = [name for name in settings if not name.startswith("OMPI_")]
    names += [name for name in _OURS if name in os.environ and name not in names]
    if names:
        of_user = openmpi_paths.list_of_user(_ompi_info(*openmpi_paths.ASK_LIST[1:])) if plugin else ""
        settings |= openmpi_paths.carried(names, is_4_1=plugin, of_user=of_user)
    _print(settings)
