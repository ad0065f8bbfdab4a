"""Open MPI's search path for plug-ins."""

from __future__ import annotations

import re
from pathlib import Path

from . import paths
from .errors import MissingError

#: The command whose answer `component_path` reads; it may run in a guest.
ASK_FOLDER = ["ompi_info", "--path", "pkglibdir", "--parsable"]


def component_path(parsable: str, ours: Path | None = None) -> str:
    """Our folder (the build's, unless OURS is another), then Open MPI's own: it has none else."""
    found = re.search(r"^path:pkglibdir:(.+)$", parsable, re.M)
    if not found:
        raise MissingError("ompi_info names no plug-in folder", hint="is this Open MPI 4.1?")
    return f"{ours or paths.plugin()}:{found[1]}"
