"""Where ranks are, on guests and hosts of the file of hosts, and what a launcher takes for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import MissingError, UsageError
from ..profile import model
from . import hosts, solve

What = Literal["bytes", "messages"]


@dataclass(frozen=True)
class Layout:
    """A placement: of each rank the number of its host, and the guest that a launcher starts it on."""

    hosts: solve.Placement
    guests: list[str]


@dataclass(frozen=True)
class Plan:
    """The present layout and the proposed one."""

    places: list[hosts.Place]
    traffic: Any
    by: What
    #: Where the present one is from, in words.
    origin: str
    present: Layout
    proposed: Layout

    @property
    def machines(self) -> list[str]:
        return _machines(self.places)

    def between(self, placement: solve.Placement) -> int:
        """What goes between hosts."""
        return solve.between(self.traffic, placement)

    def between_switches(self, placement: solve.Placement) -> int | None:
        """The same of switches; None: there is one."""
        of = _switches(self.places)
        return solve.between(self.traffic, [of[host] for host in placement]) if len(set(of)) > 1 else None


def make(profile: model.Profile, hosts_file: Path, by: What) -> Plan:
    places = hosts.read(hosts_file)
    room = sum(one.slots for one in places)
    if room < profile.size:
        raise UsageError(f"{hosts_file} has {room} slots, and the job has {profile.size} ranks", hint="name more hosts")
    slots = [sum(one.slots for one in places if one.host == machine) for machine in _machines(places)]
    limits = solve.of_slots(profile.size, slots, _switches(places))
    values = of_ranks(profile, by)
    origin, present = _present(profile, places, limits)
    found = solved(values, limits, present.hosts)
    return Plan(places, values, by, origin, present, Layout(found.placement, _guests(found.placement, places, present.guests)))


def solved(values: Any, limits: solve.Limits, present: solve.Placement) -> solve.Solution:
    try:
        return solve.solve(values, limits, present)
    except ModuleNotFoundError as fault:
        raise MissingError(f"no Scotch: {fault}", hint="pip install scotchpy64") from None


def traffic(profile: model.Profile, by: What, number: dict[int, int], count: int) -> Any:
    """What one sends to another, ranks of one number together; a rank without a number is left out."""
    matrix = np.zeros((count, count), dtype=np.int64)
    for pair in profile.between_ranks():
        if pair.sender in number and pair.receiver in number:
            matrix[number[pair.sender], number[pair.receiver]] += pair.bytes if by == "bytes" else pair.messages
    return matrix


def of_ranks(profile: model.Profile, by: What) -> Any:
    """What each rank sends to each other."""
    return traffic(profile, by, {rank: rank for rank in range(profile.size)}, profile.size)


def _machines(places: Sequence[hosts.Place]) -> list[str]:
    return list(dict.fromkeys(one.host for one in places))


def _switches(places: Sequence[hosts.Place]) -> list[int]:
    """Of each host, in the order of `_machines`."""
    of = {one.host: one.switch for one in places}
    names = list(dict.fromkeys(of.values()))
    return [names.index(switch) for switch in of.values()]


def _present(profile: model.Profile, places: Sequence[hosts.Place], limits: solve.Limits) -> tuple[str, Layout]:
    """Where the ranks were; where the file does not have those hosts, or no room for it there, block by block."""
    machines = _machines(places)
    of = {one.name: machines.index(one.host) for one in places}
    guest = {one.rank: one.host for one in profile.processes if one.host in of}
    known = [of[guest[rank]] for rank in sorted(guest)]
    if len(known) == profile.size and limits.fits(known):
        return "as it was", Layout(known, [guest[rank] for rank in range(profile.size)])
    blocks = solve.block(limits)
    assert blocks is not None  # there are as many slots as ranks
    return "in blocks", Layout(blocks, _guests(blocks, places, []))


def _guests(placement: solve.Placement, places: Sequence[hosts.Place], present: Sequence[str]) -> list[str]:
    """The guest of each rank: its present one where that is on its host; the others of a host are filled in their order."""
    machines, room = _machines(places), {one.name: one.slots for one in places}
    found: list[str | None] = [None] * len(placement)
    for again in (False, True):
        for rank, host in enumerate(placement):
            those = [one.name for one in places if one.host == machines[host] and room[one.name]]
            keep = present[rank] if rank < len(present) else None
            if found[rank] is None and (keep in those or again):
                found[rank] = name = keep if keep in those and keep is not None else those[0]
                room[name] -= 1
    return [name for name in found if name is not None]


def order(names: Sequence[str]) -> str:
    return "".join(f"{name}\n" for name in names)


def rankfile(names: Sequence[str]) -> str:
    """Slots count the processors of a host."""
    next_slot: Counter[str] = Counter()
    lines = []
    for rank, name in enumerate(names):
        lines.append(f"rank {rank}={name} slot={next_slot[name]}\n")
        next_slot[name] += 1
    return "".join(lines)
