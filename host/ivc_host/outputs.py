"""Files that the user has named for what comes out, looked at before the work for it begins."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import UsageError


def check(*files: Path | None) -> None:
    """Raise unless each FILE can be written. None of them is changed, or left where none was."""
    for file in files:
        if file is not None:
            _check(file)


def _check(file: Path) -> None:
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder} to write {file} to")
    if file.is_dir():
        raise UsageError(f"cannot write {file}: it is a folder")
    if file.exists() and not file.is_file():
        return  # a pipe's reader would take our leaving for the end
    is_new = not file.exists()
    real = file.resolve()
    try:
        # Tried, not asked: root has every permission in /proc, and makes nothing there.
        os.close(os.open(real, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        if is_new:
            real.unlink()
    except OSError as fault:
        raise UsageError(f"cannot write {file}: {fault.strerror}") from None
