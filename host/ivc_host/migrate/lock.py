"""One migration, attach or detach at a time for each machine, on this machine.

What other machines' administrators do at the same moment meets at the machine's QMP socket and at
the order in the region, which are there once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..hypervisor.faults import MigrateError


class BusyError(MigrateError):
    """Somebody else has the machine."""


def _folder() -> Path:
    if os.geteuid() == 0:
        return Path("/run/ivc-migrate")
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"ivc-migrate-{os.geteuid()}"


def _path(key: str) -> Path:
    return _folder() / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".lock")


def _words(said: str) -> str:
    return f"{said.strip() or 'another command'} is under way"


def holder(key: str) -> str | None:
    """What holds the lock KEY now, in words; None: nothing does."""
    said = ""
    try:
        with open(_path(key)) as file:
            # Empty: nobody has it. Then it is not tried, which could keep one who comes from it.
            if said := file.read():
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _words(said)
    except OSError:  # nobody has ever held it
        return None
    return None


@contextmanager
def held(key: str, vm: str, doing: str) -> Iterator[None]:
    """Hold the lock KEY of the machine VM; BusyError when another command has it."""
    path = _path(key)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Never removed: one who waits for a removed file would hold what nobody else sees.
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BusyError(
                f"{vm}: {_words(file.read())}", hint="wait for its end, or interrupt it"
            ) from None
        file.truncate(0)
        file.write(f"{doing} (process {os.getpid()})")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
