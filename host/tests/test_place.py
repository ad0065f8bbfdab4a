"""`ivc place`: never worse than the present placement, the best for few ranks, files that launchers take."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ivc_host.place import hosts, solve
from ivc_host.profile import model


def ivc(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ivc_host", "place", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )


def exact(traffic: Any, slots: list[int]) -> int:
    """The least that can go between hosts: all placements are tried."""
    weights = (traffic + traffic.T).tolist()
    ranks = len(weights)
    best = [1 << 62]

    def put(rank: int, members: list[list[int]], cost: int) -> None:
        if cost >= best[0]:
            return
        if rank == ranks:
            best[0] = cost
            return
        seen = set()
        for host, those in enumerate(members):
            kind = (slots[host], bool(those))  # empty hosts of one size are alike
            if len(those) == slots[host] or (not those and kind in seen):
                continue
            seen.add(kind)
            more = sum(weights[rank][other] for k, others in enumerate(members) if k != host for other in others)
            those.append(rank)
            put(rank + 1, members, cost + more)
            those.pop()

    put(0, [[] for _ in slots], 0)
    return best[0]


def in_blocks(limits: solve.Limits) -> solve.Placement:
    found = solve.block(limits)
    assert found is not None
    return found


def random_traffic(ranks: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    return random.integers(1, 1000, (ranks, ranks)) * (random.random((ranks, ranks)) < 0.4)


def grid(rows: int, columns: int) -> Any:
    """Each rank sends to its neighbours below and to the right, periodically, 16 ranks shuffled as a program might."""
    ranks = rows * columns
    number = np.random.default_rng(3).permutation(ranks)
    traffic = np.zeros((ranks, ranks), dtype=np.int64)
    for row, column in itertools.product(range(rows), range(columns)):
        for there in ((row + 1) % rows * columns + column, row * columns + (column + 1) % columns):
            traffic[number[row * columns + column], number[there]] += 1000
    return traffic


@pytest.mark.parametrize("slots", [[4, 4, 4], [6, 6], [2, 4, 6], [5, 8], [12]])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_for_few_ranks(slots: list[int], seed: int) -> None:
    traffic = random_traffic(min(12, sum(slots)), seed)
    limits = solve.of_slots(len(traffic), slots)
    found = solve.solve(traffic, limits, in_blocks(limits))
    assert found.cut == exact(traffic, slots)
    assert all(found.placement.count(host) <= count for host, count in enumerate(slots))


@pytest.mark.parametrize(("traffic", "slots"), [(grid(4, 4), [4] * 4), (grid(8, 8), [16] * 4), (random_traffic(60, 1), [20, 20, 25])])
def test_never_worse_than_what_is_there(traffic: Any, slots: list[int]) -> None:
    ranks, weights = len(traffic), traffic + traffic.T
    limits = solve.of_slots(ranks, slots)
    cyclic = [rank % len(slots) for rank in range(ranks)]
    for present in (in_blocks(limits), cyclic):
        found = solve.solve(traffic, limits, present)
        assert found.cut == solve.cut(weights, found.placement) <= solve.cut(weights, present)
        assert all(found.placement.count(host) <= count for host, count in enumerate(slots))


def least(weights: Any, limits: solve.Limits) -> int:
    """The least cost under limits of any kind: all placements are tried."""
    those = itertools.product(range(len(limits.switches)), repeat=len(weights))
    return min(solve.cost(weights, list(one), limits.distance) for one in those if limits.fits(one))


@pytest.mark.parametrize("seed", range(6))
def test_machines_that_differ(seed: int) -> None:
    """Of several sizes, in two amounts, some of which may not be everywhere; hosts on two switches."""
    random = np.random.default_rng(seed)
    traffic, needs = random_traffic(7, seed), random.integers(1, 4, (7, 2))
    capacity = np.full((4, 2), -(-needs.sum(axis=0) // 4) + 3)
    may = random.random((7, 4)) < 0.8
    limits = solve.Limits(needs, capacity, may, (0, 0, 1, 1))
    present = solve._fitted([0] * 7, limits)
    assert present is not None
    found = solve.solve(traffic, limits, present)
    weights = traffic + traffic.T
    np.fill_diagonal(weights, 0)
    assert limits.fits(found.placement)
    assert least(weights, limits) == solve.cost(weights, found.placement, limits.distance)


def test_nothing_is_known_of_their_size() -> None:
    """They stay where they may be, and no host has room for one that needs some."""
    traffic = np.ones((3, 3), dtype=np.int64)
    nothing, may = np.zeros((3, 2), dtype=np.int64), np.array([[True, False], [False, True], [False, True]])
    limits = solve.Limits(nothing, nothing[:2], may, (0, 0))
    assert solve.solve(traffic, limits, [0, 1, 1]).placement == [0, 1, 1]


def test_few_move_among_equals() -> None:
    """The groups are right, and their hosts are the other way round: nobody moves."""
    traffic = np.zeros((4, 4), dtype=np.int64)
    traffic[0, 1] = traffic[2, 3] = 1
    assert solve.solve(traffic, solve.of_slots(4, [2, 2]), [1, 1, 0, 0]).placement == [1, 1, 0, 0]
    assert solve._nearest([0, 0, 1, 1], solve.of_slots(4, [2, 2]), [1, 1, 0, 0]) == [1, 1, 0, 0]
    assert solve._nearest([0, 0, 1, 1], solve.of_slots(4, [3, 1, 2]), [1, 0, 2, 2]) == [0, 0, 2, 2]


def test_what_is_best_stays() -> None:
    traffic = np.zeros((4, 4), dtype=np.int64)
    traffic[0, 2] = traffic[1, 3] = 1
    assert solve.solve(traffic, solve.of_slots(4, [2, 2]), [1, 0, 1, 0]).placement == [1, 0, 1, 0]


def test_scotch_takes_bytes_of_any_size() -> None:
    traffic = grid(4, 4) * (1 << 40)
    limits = solve.of_slots(16, [4] * 4)
    found = solve._fitted(solve._scotch(traffic + traffic.T, limits), limits)
    assert found is not None
    assert sorted(found) == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert solve.cut(traffic + traffic.T, found) < solve.cut(traffic + traffic.T, [rank % 4 for rank in range(16)])


def profile(file: Path, guests: list[str]) -> None:
    """0 talks to 2, 1 to 3."""
    pairs = [model.Pair(sender=i, receiver=(i + 2) % 4, sent={"network": model.Volume(messages=2, bytes=1000)}) for i in range(4)]
    processes = [model.Process(rank=rank, host=guest, pid=1) for rank, guest in enumerate(guests)]
    model.save(model.Profile(size=4, processes=processes, pairs=pairs), file)


def test_files_for_launchers(tmp_path: Path) -> None:
    profile(tmp_path / "p.json", ["g1", "g2", "g3", "g4"])
    (tmp_path / "hosts").write_text("# guest, slots, host\ng1 1 alpha\ng2 slots=1 alpha\ng3:1 beta\ng4 1 beta\n")
    done = ivc(str(tmp_path / "p.json"), "--hosts", str(tmp_path / "hosts"), "--rankfile", str(tmp_path / "r"), "--order", str(tmp_path / "o"))
    assert done.returncode == 0, done.stderr
    order = (tmp_path / "o").read_text().split()
    host = {"g1": "a", "g2": "a", "g3": "b", "g4": "b"}
    assert sorted(order) == ["g1", "g2", "g3", "g4"] and host[order[0]] == host[order[2]] != host[order[1]] == host[order[3]]
    assert (tmp_path / "r").read_text().splitlines() == [f"rank {rank}={name} slot=0" for rank, name in enumerate(order)]
    assert re.search(r"as it was .* 4 kB .* 100.0 %", done.stdout) and re.search(r"as proposed .* 0 B .* 0.0 %", done.stdout)


def test_switches(tmp_path: Path) -> None:
    """One rank for each host: nothing can stay within one, and what goes from switch to switch is made small."""
    profile(tmp_path / "p.json", ["g1", "g2", "g3", "g4"])
    (tmp_path / "hosts").write_text("g1 1 a s1\ng2 1 b s1\ng3 1 c s2\ng4 1 d s2\n")
    done = ivc(str(tmp_path / "p.json"), "--hosts", str(tmp_path / "hosts"), "--order", str(tmp_path / "o"))
    assert done.returncode == 0, done.stderr
    switch = {"g1": 1, "g2": 1, "g3": 2, "g4": 2}
    order = [switch[name] for name in (tmp_path / "o").read_text().split()]
    assert order[0] == order[2] != order[1] == order[3]
    assert re.search(r"as it was .* 4 kB .* 4 kB", done.stdout) and re.search(r"as proposed .* 4 kB .* 0 B", done.stdout)


@pytest.mark.parametrize(
    ("text", "words"),
    [("g1 2 a s1\ng2 2 a s2\n", "another switch"), ("", "names no host"), ("g1 1\ng2 2\n", "3 slots"), ("g1 1\ng1 4\n", "second time"), ("g1 0\n", "line 1"), ("g1 many\n", "line 1")],
)
def test_hosts_that_do_not_fit(tmp_path: Path, text: str, words: str) -> None:
    profile(tmp_path / "p.json", ["g1"] * 4)
    (tmp_path / "hosts").write_text(text)
    done = ivc(str(tmp_path / "p.json"), "--hosts", str(tmp_path / "hosts"))
    assert done.returncode == 2 and re.fullmatch(r"ivc: [^\n]+\n", done.stderr) and words in done.stderr
    with pytest.raises(Exception, match="cannot read"):
        hosts.read(tmp_path / "none")
