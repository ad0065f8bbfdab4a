"""Ranks, or machines, to hosts, so that little goes between hosts: Scotch's mapping and others, each made better by swaps.

Whatever it starts from, the best is kept, so the answer is never worse than the present placement.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A placement: the number of the host of each rank.
Placement = list[int]

#: So many random beginnings, fewer of jobs with more ranks, of which so many are put in all, and none of jobs with more
#: than the last. The seed is fixed, so the answer is, too.
_RANDOM, _RANDOM_WORK, _RANDOM_RANKS, _SEED = 100, 3200, 128, 1
#: Scotch's weights are 32-bit numbers, and it sums them.
_SCOTCH_SUM = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What goes where. Arrays of integers; each amount is counted by itself, and Scotch balances the first."""

    #: For each rank what it takes of each amount.
    needs: Any
    #: For each host what it has of each.
    capacity: Any
    #: For each rank and host whether it may be there.
    may: Any
    #: The switch of each host.
    switches: tuple[int, ...]

    @property
    def distance(self) -> Any:
        """Between hosts, through the tree: 1 by one switch, 2 from switch to switch."""
        hosts, switches = np.arange(len(self.switches)), np.asarray(self.switches)
        return (hosts[:, None] != hosts).astype(np.int64) + (switches[:, None] != switches)

    def room(self, placement: Any) -> Any:
        """What is left on each host."""
        used = np.zeros_like(self.capacity)
        np.add.at(used, np.asarray(placement), self.needs)
        return self.capacity - used

    def fits(self, placement: Any) -> bool:
        return bool((self.room(placement) >= 0).all() and self.may[np.arange(len(placement)), placement].all())


def of_slots(ranks: int, slots: Sequence[int], switches: Sequence[int] | None = None) -> Limits:
    """Ranks that are alike: each takes a slot, of any host."""
    needs, capacity = np.ones((ranks, 1), dtype=np.int64), np.asarray(slots, dtype=np.int64)[:, None]
    return Limits(needs, capacity, np.ones((ranks, len(slots)), dtype=bool), tuple(switches or [0] * len(slots)))


@dataclass(frozen=True)
class Solution:
    placement: Placement
    #: What goes between hosts.
    cut: int


def solve(traffic: Any, limits: Limits, present: Placement) -> Solution:
    """TRAFFIC: what rank i sends to j, integers. PRESENT must fit the limits."""
    weights = np.asarray(traffic, dtype=np.int64)
    weights = weights + weights.T
    np.fill_diagonal(weights, 0)
    found = [_better(weights, limits, start) for start in _beginnings(weights, limits, present)]
    costs = [cost(weights, one, limits.distance) for one in found]
    least = min(costs)
    equals = [_nearest(one, limits, present) for one, it in zip(found, costs, strict=True) if it == least]
    best = min(equals, key=lambda one: _moved(one, present))
    return Solution(best, cut(weights, best))


def between(traffic: Any, placement: Placement) -> int:
    """What goes between hosts (or whatever PLACEMENT has numbers of); TRAFFIC: what one sends to another."""
    places = np.asarray(placement)
    return int(traffic[places[:, None] != places[None, :]].sum())


def cut(weights: Any, placement: Placement) -> int:
    """The same where WEIGHTS has both directions of each pair."""
    return between(weights, placement) // 2


def cost(weights: Any, placement: Placement, distance: Any) -> int:
    """What is made small: each pair by its distance."""
    places = np.asarray(placement)
    return int((weights * distance[places[:, None], places[None, :]]).sum()) // 2


def _moved(placement: Placement, present: Placement) -> int:
    return sum(one != other for one, other in zip(placement, present, strict=True))


def block(limits: Limits) -> Placement | None:
    """Ranks in their order fill one host after the other; None: they do not fit so."""
    return _fitted([0] * len(limits.needs), limits)


def _beginnings(weights: Any, limits: Limits, present: Placement) -> Iterator[Placement]:
    ranks = len(present)
    yield list(present)
    random = np.random.default_rng(_SEED)
    slots = (limits.capacity[:, 0] + 1) / (limits.capacity[:, 0] + 1).sum()  # by chance anywhere, where there is room most of all
    wishes = [[0] * ranks, _scotch(weights, limits)]
    if ranks <= _RANDOM_RANKS:
        wishes += [list(random.choice(len(slots), size=ranks, p=slots)) for _ in range(min(_RANDOM, _RANDOM_WORK // ranks))]
    for wish in wishes:
        if (fitted := _fitted(wish, limits)) is not None:
            yield fitted


def _scotch(weights: Any, limits: Limits) -> Placement:
    """Down the tree: onto switches as heavy as their hosts, then onto the hosts of each."""
    heavy, needs = limits.capacity[:, 0], limits.needs[:, 0]
    switches = np.asarray(limits.switches)
    names = np.unique(switches)
    at_switch = np.asarray(_mapped(weights, needs, [int(heavy[switches == name].sum()) for name in names]))
    found = np.zeros(len(needs), dtype=int)
    for number, name in enumerate(names):
        own, hosts = np.flatnonzero(at_switch == number), np.flatnonzero(switches == name)
        found[own] = hosts[_mapped(weights[np.ix_(own, own)], needs[own], heavy[hosts])] if own.size else 0
    return [int(host) for host in found]


def _mapped(weights: Any, needs: Any, heavy: Sequence[int]) -> list[int]:
    """Scotch's static mapping onto a complete graph of places of different weight."""
    import scotchpy  # a large library, which nothing else needs

    neighbours = [np.flatnonzero(row) for row in weights]
    if len(heavy) == 1 or not any(len(one) for one in neighbours):
        return [0] * len(weights)
    number = np.int32 if scotchpy.num_sizeof() == 4 else np.int64
    graph = scotchpy.Graph()
    of_edges, of_loads = _scale(weights), _scale(np.concatenate([needs, heavy]))
    graph.build(
        verttab=np.cumsum([0, *map(len, neighbours)]).astype(number),
        velotab=np.maximum(1, np.asarray(needs) // of_loads).astype(number),
        edgetab=np.concatenate(neighbours).astype(number),
        edlotab=np.concatenate([-(-row[near] // of_edges) for row, near in zip(weights, neighbours)]).astype(number),
    )
    hosts = scotchpy.Arch()
    hosts.cmpltw(np.maximum(1, np.asarray(heavy) // of_loads).astype(number))
    mapped = np.zeros(len(weights), dtype=number)
    graph.map(hosts, scotchpy.Strat(), mapped)
    return [int(host) for host in mapped]


def _scale(amounts: Any) -> int:
    return max(1, -(-int(amounts.sum()) // _SCOTCH_SUM))


def _fitted(wish: Sequence[int], limits: Limits) -> Placement | None:
    """Near what is wished: the largest first, and what finds no room where it would be goes to where there is some. None: it
    finds none."""
    order = sorted(range(len(wish)), key=lambda rank: tuple(-limits.needs[rank]))
    fitted, room = [-1] * len(wish), limits.capacity.copy()

    def put(rank: int, hosts: Sequence[int]) -> None:
        for host in hosts:
            if limits.may[rank, host] and (limits.needs[rank] <= room[host]).all():
                fitted[rank] = int(host)
                room[host] -= limits.needs[rank]
                return

    for rank in order:
        put(rank, [wish[rank]])
    for rank in order:
        if fitted[rank] < 0:
            put(rank, range(len(room)))
    return None if -1 in fitted else fitted


def _better(weights: Any, limits: Limits, start: Placement) -> Placement:
    """Moves to where there is room, and swaps of two ranks, the best first, until none helps."""
    ranks, needs, distance = np.arange(len(start)), limits.needs, limits.distance
    places = np.asarray(start)
    alike = bool((needs == needs[0]).all())
    while True:
        member = np.zeros((len(start), len(distance)), dtype=np.int64)
        member[ranks, places] = 1
        costs = weights @ member @ distance  # of a rank on each host, all others where they are
        gains = costs[ranks, places][:, None] - costs
        room = limits.room(places)
        moves = np.where(limits.may & (needs[:, None, :] <= room).all(axis=2), gains, -1)
        ahead = gains[:, places]  # what rank i would gain at the host of j
        swaps = ahead + ahead.T - 2 * weights * distance[places[:, None], places]
        fits = limits.may[:, places]
        if not alike:
            fits = fits & (needs[:, None, :] - needs <= room[places]).all(axis=2)
        swaps = np.where(fits & fits.T, swaps, -1)
        if max(moves.max(), swaps.max()) <= 0:
            return [int(host) for host in places]
        if moves.max() >= swaps.max():
            rank, host = np.unravel_index(moves.argmax(), moves.shape)
            places[rank] = host
        else:
            one, other = np.unravel_index(swaps.argmax(), swaps.shape)
            places[one], places[other] = places[other], places[one]


def _nearest(placement: Placement, limits: Limits, present: Placement) -> Placement:
    """The same groups, on hosts of one switch exchanged where fewer ranks move then."""
    found, hosts = np.asarray(placement), range(len(limits.switches))
    same = np.zeros((len(hosts), len(hosts)), dtype=np.int64)  # of those on one host, how many were on another
    np.add.at(same, (found, np.asarray(present)), 1)
    for one, other in itertools.combinations(hosts, 2):
        stay = same[one, other] + same[other, one] - same[one, one] - same[other, other]
        if stay > 0 and limits.switches[one] == limits.switches[other]:
            turned = np.where(found == one, other, np.where(found == other, one, found))
            if limits.fits(turned):
                found = turned
                same[[one, other]] = same[[other, one]]
    return [int(host) for host in found]
