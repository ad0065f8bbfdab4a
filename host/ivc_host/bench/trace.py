"""Latency over time: what bench_trace prints, put on this host's clock.

The program runs in a guest, whose calendar is off by up to a second (it is read once, at boot, in
whole seconds); so the difference is measured, by the fastest of a few questions.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from dataclasses import dataclass

from ..errors import LabError
from ..lab.lab import Lab
from . import programs
from .programs import BenchError

_QUESTIONS = 20
#: A guest that has just been moved, on a busy machine, may take longer than ssh waits.
_TRIES = 4


@dataclass(frozen=True)
class Point:
    """One iteration."""

    #: Of this host's calendar, when the message was back.
    time: float
    #: One way.
    us: float
    bytes: int


@dataclass(frozen=True)
class Clock:
    """What a guest's calendar shows when this host's shows 0."""

    offset: float
    #: How wrong that may be.
    error: float


def guest_clock(lab: Lab, guest: str) -> Clock:
    """Ask a guest for the time."""
    for left in reversed(range(_TRIES)):
        try:
            return _ask(lab, guest)
        except LabError:
            if left == 0:
                raise
    raise AssertionError


def _ask(lab: Lab, guest: str) -> Clock:
    """A shell answers, because to start a program takes too long."""
    line = "bash -c 'while read -r word; do echo $EPOCHREALTIME; done'"
    best = Clock(0.0, float("inf"))
    with subprocess.Popen(
        lab.ssh_argv(guest, line), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdin is not None and shell.stdout is not None
        for _ in range(_QUESTIONS):
            before = time.time()
            try:
                shell.stdin.write("?\n")
                shell.stdin.flush()
            except BrokenPipeError:  # ssh has ended
                shown = ""
            else:
                shown = shell.stdout.readline()
            after = time.time()
            if not shown:
                raise LabError(f"guest {guest} of lab {lab.name} does not tell the time")
            if after - before < 2 * best.error:
                best = Clock(float(shown) - (before + after) / 2, (after - before) / 2)
    return best


def parse(output: str, clock: Clock) -> list[Point]:
    """The iterations; raises BenchError when the program did not come to its end."""
    said = [one for one in programs.records(output) if one.get("program") == "bench_trace"]
    if len(said) != 2 or "start" not in said[0] or "iterations" not in said[1]:
        raise BenchError("bench_trace did not come to its end", detail=output[-800:])
    start = float(said[0]["start"]) - clock.offset
    points = []
    for line in output.splitlines():
        words = line.split()
        if len(words) == 4 and line[0].isdigit():
            points.append(Point(start + float(words[0]), float(words[1]), int(words[2])))
    return points


def median(points: list[Point], begin: float, end: float, size: int) -> float | None:
    """The median latency of one size between two times; None when nothing was measured there."""
    found = [one.us for one in points if begin <= one.time <= end and one.bytes == size]
    return statistics.median(found) if found else None


def longest_gap(points: list[Point], begin: float, end: float) -> float:
    """The longest time in which no iteration ended."""
    times = [begin, *(one.time for one in points if begin <= one.time <= end), end]
    return max(after - before for before, after in zip(times, times[1:]))
