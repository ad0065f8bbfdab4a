"""Directories of this machine as disks, for guests that can migrate.

A directory that is shared live (9p) ties a guest to the process that serves it. So a lab whose guests
can move makes a disk of each directory when it comes up; all guests read the same files, wherever
they are, and nobody writes them. They show what was there when the lab came up.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import LabError, MissingError
from . import image, state
from .hypervisor import Copy, Progress


def of(name: str, directories: Sequence[Path]) -> tuple[Copy, ...]:
    """The disks of a lab that shares these directories."""
    folder = state.copies_path(name)
    outer = [one for one in directories if not any(other in one.parents for other in directories)]
    return tuple(Copy(folder / f"share{n}.ext4", one) for n, one in enumerate(outer))


def make(name: str, directories: Sequence[Path], progress: Progress) -> None:
    """Make them all. Whatever is in that place is of a lab of this name before a reboot."""
    folder = state.copies_path(name)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise LabError(
            f"{folder} is in the way", hint="it is not a lab's: look at it, then remove it"
        ) from None
    if shutil.which("mke2fs") is None:
        raise MissingError("mke2fs is not installed", hint="./run setup installs e2fsprogs")
    for copy in of(name, directories):
        progress.step(f"copying {copy.path} for the guests")
        image.write_disk(copy.path, copy.image, "ivc-share")
