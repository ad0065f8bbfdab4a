"""What machines send to each other, as profiles of their jobs tell (`ivc profile`).

A machine goes by the name of its guest, as everywhere. Which job will run is not known: all profiles of
the folder count, each with what its job sent in a second.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import IvcError
from ..profile import figures, model
from .plan import Traffic


class Profiles:
    """A folder of profiles, of which a file is read when it is new or has changed."""

    def __init__(self, folder: str, say: Callable[[str], None]) -> None:
        self._folder = Path(folder) if folder else None
        self._say = say
        self._read: dict[Path, tuple[tuple[int, int], Traffic]] = {}
        self._fault = ""

    def traffic(self) -> Traffic:
        """Bytes in a second between any two machines, all profiles together."""
        files = self._files()
        self._read = {file: self._one(file, stamp) for file, stamp in files.items()}
        found: dict[frozenset[str], float] = {}
        for _, traffic in self._read.values():
            for pair, rate in traffic.items():
                found[pair] = found.get(pair, 0.0) + rate
        return found

    def _files(self) -> dict[Path, tuple[int, int]]:
        if self._folder is None:
            return {}
        found, fault = {}, ""
        try:
            for file in sorted(self._folder.iterdir()):
                if file.suffix == ".json":
                    stat = file.stat()
                    found[file] = (stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            fault = f"no profiles in {self._folder}: {error.strerror}"
        if fault and fault != self._fault:
            self._say(fault)
        self._fault = fault
        return found

    def _one(self, file: Path, stamp: tuple[int, int]) -> tuple[tuple[int, int], Traffic]:
        known = self._read.get(file)
        if known is not None and known[0] == stamp:
            return known
        try:
            return stamp, between_machines(model.load(file))
        except IvcError as fault:
            self._say(f"left out: {fault}")
            return stamp, {}


def between_machines(profile: model.Profile) -> Traffic:
    """Bytes in a second between any two guests of a job."""
    guest, seconds = figures.guests(profile), figures.seconds(profile)
    found: dict[frozenset[str], float] = {}
    for pair in profile.pairs:
        ends = frozenset(guest[rank] for rank in (pair.sender, pair.receiver) if rank in guest)
        if len(ends) == 2 and seconds > 0:
            found[ends] = found.get(ends, 0.0) + pair.bytes / seconds
    return found
