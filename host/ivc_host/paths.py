"""Where things are in the source tree that this package is installed from.

An ivc that is installed apart from the tree (packaging/README.md) finds its libraries by pkg-config
(env.py); what needs a build then needs IVC_BUILD.
"""

from __future__ import annotations

import os
from pathlib import Path

from .errors import MissingError


def project() -> Path:
    """The source tree: `run`, `meson.build` and `host/` lie in it."""
    return Path(__file__).resolve().parents[2]


def build() -> Path:
    """The Meson build directory; IVC_BUILD names another one."""
    own = os.environ.get("IVC_BUILD")
    return Path(own).resolve() if own else project() / "build"


def provider() -> Path:
    """The folder in which the build leaves libivc-fi.so."""
    return build() / "adapters" / "libfabric"


def mpi_alloc() -> Path:
    """The library that gives MPI programs memory of the region."""
    return build() / "adapters" / "mpi" / "libivc-mpi-alloc.so"


def heap() -> Path:
    """The library that puts large blocks of malloc() into the region."""
    return build() / "adapters" / "mpi" / "libivc-heap.so"


def mpi_profile() -> Path:
    """The library that counts what a program asks of its MPI."""
    return build() / "adapters" / "mpi" / "libivc-profile.so"


def plugin() -> Path:
    """The folder in which the build leaves mca_btl_ivc.so."""
    return build() / "adapters" / "openmpi"


def uml_registers() -> Path:
    """The library that user-mode Linux is started with."""
    return build() / "tools" / "uml_registers.so"


def require_built(file: Path) -> None:
    """Raise when the build has not made FILE."""
    if not file.is_file():
        raise MissingError(f"{file} is not built", hint=_how_to_build())


def _how_to_build() -> str:
    if (project() / "run").is_file():
        return "run: ./run build"
    return "this ivc is installed apart from the source tree: IVC_BUILD=FOLDER names its build, or use ./run there"
