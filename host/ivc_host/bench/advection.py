"""The poster's study of data paths: advection by grids of processes, placements and paths.

Each host has a region. Ranks of one host use it, ranks of two hosts the network; beside that, all
by network, and all by the MPI's own shared memory. A placement says on which host each rank is. What
goes between hosts is read from a profile of the program, not from a run of a side.
"""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import UsageError
from ..lab.lab import Lab
from ..matrix import traffic
from ..place import solve
from ..place.ranks import of_ranks
from ..profile.merge import merge, read_folders
from . import floor, places, programs
from .compare import CHECK, Key, Ratio, Sample, Session, Side, Tell, comparisons, dicts
from .places import PATHS, Guests, Host, MpiPath
from .programs import BenchError, Record
from .progress import Steps

#: The reference first.
BRIDGED, IVC, NATIVE = "bridged", "ivc", "native"
SIDES = (BRIDGED, IVC, NATIVE)
LABELS = {
    BRIDGED: "all by network",
    IVC: "memory within a host, network between",
    NATIVE: "one host, the MPI's own shared memory",
}
BLOCK, CYCLIC, PLACED = "block", "cyclic", "ivc place"
PLACEMENTS = (BLOCK, CYCLIC, PLACED)
_PATHS: dict[str, MpiPath] = {
    BRIDGED: PATHS["tcp"],
    IVC: MpiPath("ivc-tcp", "Open MPI ivc and tcp", {"btl": "ivc,tcp,self"}, {"IVC_STATS": "1"}),
    NATIVE: PATHS["vader"],
}
#: What stands for the size of a message where a program is not about one.
SIZE = 0
_TIMEOUT = 900.0
_RANKS_MAX = 256

#: How many parts each direction is divided into.
Grid = tuple[int, int, int]


def grids(ranks: int) -> list[Grid]:
    """The poster's: one direction divided, two as evenly as can be, and all three."""
    lines: list[Grid] = [(ranks, 1, 1), (1, ranks, 1), (1, 1, ranks)]
    small = max(n for n in range(1, math.isqrt(ranks) + 1) if ranks % n == 0)
    large = ranks // small
    planes: list[Grid] = [(large, small, 1), (large, 1, small), (1, large, small)] if small > 1 else []
    divisors = [n for n in range(2, ranks) if ranks % n == 0]
    cubes = [(a, b, c) for a, b, c in itertools.product(divisors, repeat=3) if a >= b >= c and a * b * c == ranks]
    return lines + planes + ([min(cubes, key=max)] if cubes else [])


def text(grid: Sequence[int]) -> str:
    return "x".join(map(str, grid))


def three(words: str) -> tuple[int, int, int]:
    """As `text` writes it."""
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})x([1-9]\d{0,3})", words, re.ASCII)
    if not found:
        raise UsageError(f"{words!r} is no grid", hint="write three numbers, such as 4x2x2")
    return int(found[1]), int(found[2]), int(found[3])


def chosen(words: str) -> list[Grid]:
    """Numbers of ranks, of which all grids are meant, and grids; each once, ranks in their order."""
    found: list[Grid] = []
    for word in words.split(","):
        found += grids(int(word)) if re.fullmatch(r"[1-9]\d{0,2}", word, re.ASCII) else [three(word)]
    if not all(2 <= math.prod(grid) <= _RANKS_MAX for grid in found):
        raise UsageError(f"processes {words!r}", hint=f"2 to {_RANKS_MAX} ranks")
    return sorted(dict.fromkeys(found), key=math.prod)


@dataclass(frozen=True)
class Program:
    """The cells and the steps."""

    cells: tuple[int, int, int]
    steps: int

    def argv(self, grid: Grid) -> list[str]:
        cells, parts = (",".join(map(str, one)) for one in (self.cells, grid))
        argv = [str(programs.find("bench_kernels")), "--test", "advection", "--steps", str(self.steps)]
        return [*argv, "--grid", cells, "--processes", parts]

    def check(self, all_grids: Sequence[Grid]) -> None:
        """Raise when a rank of some grid would have no cell."""
        for grid in all_grids:
            if any(parts > cells for parts, cells in zip(grid, self.cells)):
                raise UsageError(f"{text(self.cells)} cells are too few for {text(grid)} processes", hint="more: --cells")


@dataclass(frozen=True)
class Case:
    """One grid and one placement; placements that are the same are one case."""

    grid: Grid
    names: tuple[str, ...]
    placement: tuple[int, ...]
    #: Of all that the steps send, messages and bytes, the part between hosts.
    between: float
    between_bytes: float

    @property
    def test(self) -> str:
        return f"{text(self.grid)} {'/'.join(self.names)}"


@dataclass(frozen=True)
class Sent:
    """What each rank sends to each other: matrices of integers."""

    messages: Any
    bytes: Any

    def __sub__(self, other: Sent) -> Sent:
        return Sent(self.messages - other.messages, self.bytes - other.bytes)


def _between(matrix: Any, placement: solve.Placement) -> float:
    return solve.between(matrix, placement) / (int(matrix.sum()) or 1)


def cases(grid: Grid, sent: Sent, hosts: int) -> list[Case]:
    """The placements of a grid; `ivc place` looks at bytes, as it does by itself."""
    ranks = math.prod(grid)
    limits = solve.of_slots(ranks, [-(-ranks // hosts)] * hosts)
    block = solve.block(limits)
    assert block is not None  # there is a slot for each
    found = {
        BLOCK: block,
        CYCLIC: [rank % hosts for rank in range(ranks)],
        PLACED: solve.solve(sent.bytes, limits, block).placement,
    }
    names: dict[tuple[int, ...], list[str]] = {}
    for name, placement in found.items():
        names.setdefault(tuple(placement), []).append(name)
    return [
        Case(grid, tuple(own), one, _between(sent.messages, list(one)), _between(sent.bytes, list(one)))
        for one, own in names.items()
    ]


class Ground(Protocol):
    """Hosts that ranks can be put on."""

    label: str
    hosts: int

    def run(self, side: str, argv: Sequence[str], placement: Sequence[int]) -> str:
        """What the program has printed, with what each rank says of its paths; raises when it failed."""


def _run_native(host: Host, argv: Sequence[str], ranks: int) -> str:
    done = host.mpi(_PATHS[NATIVE], argv, ranks, _TIMEOUT)
    programs.check(done, f"advection: {LABELS[NATIVE]}")
    return done.stdout


#: Chooses a region by the rank; all regions are its arguments, before the program.
_BY_RANK = 'eval "IVC_REGION=\\${$((OMPI_COMM_WORLD_RANK + 1))}"; export IVC_REGION; shift %d; exec "$@"'


class Here:
    """Processes of this machine; a region stands for a host."""

    label = "processes of this machine, a region for each host"

    def __init__(self, host: Host, regions: Sequence[Path]) -> None:
        self._host = host
        self._regions = regions
        self.hosts = len(regions)

    def run(self, side: str, argv: Sequence[str], placement: Sequence[int]) -> str:
        if side == NATIVE:
            return _run_native(self._host, argv, len(placement))
        own = [str(self._regions[host]) for host in placement]
        words = ["sh", "-c", _BY_RANK % len(own), "sh", *own, *argv]
        done = self._host.mpi(_PATHS[side], words, len(placement), _TIMEOUT)
        programs.check(done, f"advection: {LABELS[side]}")
        return done.stdout + done.stderr


class InLab:
    """Guests of a lab, and the hosts that they are on."""

    def __init__(self, lab: Lab, host: Host, cpus: tuple[int, int]) -> None:
        self._host = host
        self._guests = Guests(lab, cpus)
        self.label = self._guests.label
        numbers = sorted({guest.host for guest in lab.record.guests})
        self._of = [[guest.name for guest in lab.record.guests if guest.host == number] for number in numbers]
        self.hosts = len(numbers)
        if self.hosts < 2:
            raise UsageError(f"the guests of lab {lab.name} are on one host", hint="bring it up with --hosts 2")

    def run(self, side: str, argv: Sequence[str], placement: Sequence[int]) -> str:
        if side == NATIVE:
            return _run_native(self._host, argv, len(placement))
        # As neighbours in rank order fill a host, so they do its guests.
        ranks = [[rank for rank, at in enumerate(placement) if at == host] for host in range(self.hosts)]
        guest = {
            rank: self._of[host][index * len(self._of[host]) // len(own)]
            for host, own in enumerate(ranks)
            for index, rank in enumerate(own)
        }
        where = [guest[rank] for rank in range(len(placement))]
        done = self._guests.mpi(_PATHS[side], argv, len(placement), _TIMEOUT, where)
        programs.check(done, f"advection: {LABELS[side]}")
        return done.stdout + done.stderr


def ground(lab: Lab | None, hosts: int, cpus: tuple[int, int], stack: ExitStack) -> tuple[Ground, Host]:
    """Where the sweep runs, and this machine, which is profiled and has the native side."""
    places.require_plugin()
    regions = [stack.enter_context(places.host_region()) for _ in range(hosts)]
    host = Host(cpus, regions[0])
    return (InLab(lab, host, cpus) if lab else Here(host, regions)), host


def _profile(host: Host, program: Program, grid: Grid) -> Sent:
    with tempfile.TemporaryDirectory(prefix="ivc-bench-") as folder:
        path = replace(PATHS["ivc"], env={"IVC_STATS": f"json:{folder}"})
        done = host.mpi(path, program.argv(grid), math.prod(grid), _TIMEOUT)
        programs.check(done, "advection, profiled")
        profile = merge(read_folders([Path(folder)]))
    return Sent(of_ranks(profile, "messages"), of_ranks(profile, "bytes"))


def profiled(host: Host, program: Program, grid: Grid) -> Sent:
    """What the steps send: a profile of all less one of the first, which has what begins and ends a job as well.

    It is the same wherever the program runs, so: processes of this machine.
    """
    return _profile(host, program, grid) - _profile(host, replace(program, steps=1), grid)


def check_paths(case: Case, said: str) -> None:
    """Raise unless ranks of one host, and no others, have used memory."""
    found = traffic.parse(said)
    at = case.placement
    used = {pair for pair, sent in found.sent.items() if sent.memory}
    astray = [pair for pair in used if at[pair[0]] != at[pair[1]]]
    if astray:
        raise BenchError(f"advection, {case.test}: ranks {astray[0]} are on two hosts, and used memory")
    if not used and case.between < 1:
        raise BenchError(f"advection, {case.test}: no ranks of one host used memory")


def run(where: Ground, program: Program, case: Case, side: str) -> list[Record]:
    said = where.run(side, program.argv(case.grid), case.placement)
    found = [one for one in programs.records(said) if one.get("test") == "advection"]
    if len(found) != 1:
        raise BenchError(f"advection printed {len(found)} results instead of one", detail=said[-800:])
    if side == IVC:
        check_paths(case, said)
    one, steps = found[0], found[0]["batch"] / 1e6
    return [
        {
            "test": case.test,
            "bytes": SIZE,
            "seconds": one["mean_us"] * steps,
            "communication_s": one["communication_us"] * steps,
            "communication_max_s": one["communication_max_us"] * steps,
            CHECK: one["checksum"],
        }
    ]


@dataclass
class Results:
    program: Program
    hosts: int
    cases: list[Case]
    session: Session

    def median(self, case: Case, side: str, figure: str = "seconds") -> float:
        return float(np.median(self.values(case, side, figure)))

    def values(self, case: Case, side: str, figure: str = "seconds") -> list[float]:
        found = (one.value(case.test, SIZE, figure) for one in self.session.samples if one.side == side)
        return [value for value in found if value is not None]

    def case(self, grid: Grid, name: str) -> Case:
        return next(one for one in self.cases if one.grid == grid and name in one.names)

    def grids(self) -> list[Grid]:
        return list(dict.fromkeys(one.grid for one in self.cases))

    def comparisons(self) -> dict[Key, Ratio]:
        return comparisons(self.session.samples, [one.test for one in self.cases], SIDES, BRIDGED)

    def as_dict(self) -> dict[str, object]:
        return {
            "cells": self.program.cells,
            "steps": self.program.steps,
            "hosts": self.hosts,
            "sides": LABELS,
            "cases": [self._as_dict(one) for one in self.cases],
            "comparisons": dicts(self.comparisons(), BRIDGED),
            "samples": [one.as_dict() for one in self.session.samples],
        }

    def _as_dict(self, case: Case) -> dict[str, object]:
        return {
            "test": case.test,
            "processes": case.grid,
            "placements": case.names,
            "host_of_rank": case.placement,
            "messages_between_hosts": case.between,
            "bytes_between_hosts": case.between_bytes,
        }


def check(samples: Sequence[Sample]) -> None:
    """Raise unless all runs, whatever their grid, placement and path, came to one result."""
    if len({record[CHECK] for sample in samples for record in sample.records}) > 1:
        raise BenchError("advection: two runs came to different results", hint="this is a defect: please report it")


def measure(
    where: Ground, host: Host, program: Program, all_grids: Sequence[Grid], rounds: int, cpus: tuple[int, int], steps: Steps
) -> Results:
    session = Session(lambda: floor.measure(cpus))
    results = Results(program, where.hosts, [], session)

    def side(case: Case, name: str) -> Side:
        return lambda: run(where, program, case, name)

    def tell(case: Case) -> Tell:
        return lambda name, number: steps.step(f"{case.test}, round {number}: {name}")

    for grid in all_grids:
        steps.count(f"{text(grid)}: profile")
        for case in cases(grid, profiled(host, program, grid), where.hosts):
            results.cases.append(case)
            session.alternate({name: side(case, name) for name in SIDES}, rounds, tell(case), most=rounds)
            check(session.samples)
    return results
