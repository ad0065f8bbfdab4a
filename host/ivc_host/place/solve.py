"""Ranks to hosts, so that little goes between hosts: Scotch's mapping and others, each made better by swaps.

Whatever it starts from, the best is kept, so the answer is never worse than the present placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A placement: the number of the host of each rank.
Placement = list[int]

#: So many random beginnings for jobs of up to so many ranks; the seed is fixed, so the answer is, too.
_RANDOM, _RANDOM_RANKS, _SEED = 24, 128, 1
#: Scotch's weights are 32-bit numbers, and it sums them.
_SCOTCH_SUM = 1 << 30


@dataclass(frozen=True)
class Solution:
    placement: Placement
    #: What goes between hosts.
    cut: int


def solve(traffic: Any, slots: Sequence[int], present: Placement) -> Solution:
    """TRAFFIC: what rank i sends to j, integers. PRESENT must fit the slots."""
    weights = np.asarray(traffic, dtype=np.int64)
    weights = weights + weights.T
    np.fill_diagonal(weights, 0)
    found = [_better(weights, slots, start) for start in _beginnings(weights, slots, present)]
    best = min(found, key=lambda placement: cut(weights, placement))  # the first of equals: nearest to the present one
    return Solution(best, cut(weights, best))


def cut(weights: Any, placement: Placement) -> int:
    """What goes between hosts; WEIGHTS has both directions of each pair."""
    places = np.asarray(placement)
    return int(weights[places[:, None] != places[None, :]].sum()) // 2


def block(ranks: int, slots: Sequence[int]) -> Placement:
    """Ranks in their order fill one host after the other."""
    return [host for host, count in enumerate(slots) for _ in range(count)][:ranks]


def _beginnings(weights: Any, slots: Sequence[int], present: Placement) -> Iterator[Placement]:
    ranks = len(present)
    yield list(present)
    yield block(ranks, slots)
    yield _fitted(_scotch(weights, slots), slots)
    random = np.random.default_rng(_SEED)
    for _ in range(_RANDOM if ranks <= _RANDOM_RANKS else 0):
        places = np.repeat(np.arange(len(slots)), np.minimum(slots, ranks))
        yield [int(host) for host in random.permutation(places)[:ranks]]


def _scotch(weights: Any, slots: Sequence[int]) -> Placement:
    """Static mapping onto a complete graph of hosts as heavy as they have slots."""
    import scotchpy  # a large library, which nothing else needs

    ranks = len(weights)
    scale = max(1, -(-int(weights.sum()) // _SCOTCH_SUM))
    neighbours = [np.flatnonzero(row) for row in weights]
    if not any(len(one) for one in neighbours):
        return [0] * ranks
    number = np.int32 if scotchpy.num_sizeof() == 4 else np.int64
    graph = scotchpy.Graph()
    graph.build(
        verttab=np.cumsum([0, *map(len, neighbours)]).astype(number),
        edgetab=np.concatenate(neighbours).astype(number),
        edlotab=np.concatenate([-(-row[near] // scale) for row, near in zip(weights, neighbours)]).astype(number),
    )
    hosts = scotchpy.Arch()
    hosts.cmpltw(np.asarray(slots, dtype=number))
    mapped = np.zeros(ranks, dtype=number)
    graph.map(hosts, scotchpy.Strat(), mapped)
    return [int(host) for host in mapped]


def _fitted(placement: Placement, slots: Sequence[int]) -> Placement:
    """Scotch balances, and need not fit exactly: what is too much goes to where there is room."""
    room = list(slots)
    waiting = []
    for rank, host in enumerate(placement):
        if room[host]:
            room[host] -= 1
        else:
            waiting.append(rank)
    free = iter([host for host, count in enumerate(room) for _ in range(count)])
    fitted = list(placement)
    for rank in waiting:
        fitted[rank] = next(free)
    return fitted


def _better(weights: Any, slots: Sequence[int], start: Placement) -> Placement:
    """Moves into free slots, and swaps of two ranks, the best first, until none helps."""
    ranks = np.arange(len(start))
    places = np.asarray(start)
    while True:
        member = np.zeros((len(start), len(slots)), dtype=np.int64)
        member[ranks, places] = 1
        near = weights @ member  # what a rank has in common with each host
        stays = near[ranks, places]
        moves = near - stays[:, None]
        moves[:, member.sum(axis=0) >= np.asarray(slots)] = -1
        ahead = near[:, places] - stays[:, None]  # what rank i would gain at the host of j
        swaps = ahead + ahead.T - 2 * weights
        if max(moves.max(), swaps.max()) <= 0:
            return [int(host) for host in places]
        if moves.max() >= swaps.max():
            rank, host = np.unravel_index(moves.argmax(), moves.shape)
            places[rank] = host
        else:
            one, other = np.unravel_index(swaps.argmax(), swaps.shape)
            places[one], places[other] = places[other], places[one]
