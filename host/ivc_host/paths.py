"""Where things are in the source tree that this package is installed from."""

from __future__ import annotations

import os
from pathlib import Path


def project() -> Path:
    """The source tree: `run`, `meson.build` and `host/` lie in it."""
    return Path(__file__).resolve().parents[2]


def build() -> Path:
    """The Meson build directory; IVC_BUILD names another one."""
    own = os.environ.get("IVC_BUILD")
    return Path(own).resolve() if own else project() / "build"
