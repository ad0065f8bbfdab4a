"""Where a cell runs: guests dealt to one or two "hosts"; or processes of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..errors import UsageError
from ..lab import lab
from . import guests, here
from .ground import Ground


@dataclass(frozen=True)
class Place:
    key: str
    label: str
    #: What the MPI takes for its hosts.
    guests: int
    #: Of these, those of one host have memory in common.
    hosts: int
    ranks: tuple[int, ...]
    #: Processes of this machine, as if in guests of one host; here the MPIs run without us, too: which
    #: tests of a suite fail then does not depend on guests.
    here: bool = False


PLACES = (
    Place("here", "processes of this machine", 2, 1, (2, 4), here=True),
    Place("one", "two guests, one host", 2, 1, (2, 4)),
    Place("two", "two guests, two hosts", 2, 2, (2, 4)),
    Place("mix", "four guests, two hosts", 4, 2, (4,)),
)


def named(keys: Sequence[str]) -> list[Place]:
    known = {place.key: place for place in PLACES}
    for key in keys:
        if key not in known:
            raise UsageError(f"no place named {key!r}", hint=f"choose among {', '.join(known)}")
    return [place for place in PLACES if not keys or place.key in keys]


def ground(place: Place, progress: lab.UpProgress) -> AbstractContextManager[Ground]:
    """The place, brought up; gone at the end, whatever the end is."""
    if place.here:
        return here.up(place.guests)
    return guests.up(place.key, place.guests, place.hosts, progress)
