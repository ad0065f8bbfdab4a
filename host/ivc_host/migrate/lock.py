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


def _folder() -> Path:
    if os.geteuid() == 0:
        return Path("/run/ivc-migrate")
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"ivc-migrate-{os.geteuid()}"


@contextmanager
def held(key: str, vm: str, doing: str) -> Iterator[None]:
    """Hold the lock KEY of the machine VM; MigrateError when another command has it."""
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".lock")
    # Never removed: one who waits for a removed file would hold what nobody else sees.
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            other = file.read().strip() or "another command"
            raise MigrateError(
                f"{vm}: {other} is under way", hint="wait for its end, or interrupt it"
            ) from None
        file.truncate(0)
        file.write(f"{doing} (process {os.getpid()})")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
