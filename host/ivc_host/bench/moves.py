"""What moving a guest may cost a job: bounds in time, measured by `bench_moves` (no virtual machine).

Unlike the other targets these have no other transport to be held against, and what they measure, some
tens of milliseconds, depends little on how near the processors are to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..errors import IvcError
from . import programs
from .gate import FAILED, PASSED, UNMEASURED
from .programs import Record
from .words import time_text


@dataclass(frozen=True)
class Limit:
    key: str
    text: str
    #: A test of bench_moves, and the figure of it.
    test: str
    figure: str
    most_us: float
    #: The test whose same figure is taken off: what there is without a move.
    without: str | None = None

    def tests(self) -> list[str]:
        return [self.test] if self.without is None else [self.test, self.without]


_ANSWERS_US = 100e3

LIMITS = (
    *(
        Limit(
            key=f"answers-{mode}",
            text=f"from the order to the answer, {mode}, p99",
            test=f"answers-{mode}",
            figure="p99_us",
            most_us=_ANSWERS_US,
        )
        for mode in ("communicating", "idle", "computing")
    ),
    Limit(
        key="arrival",
        text="from the device to the first message through memory, p99",
        test="arrival",
        figure="p99_us",
        most_us=1e6,
    ),
    Limit(
        key="pause",
        text="longest round trip of a move less that of a time without, p95",
        test="pause",
        without="still",
        figure="p95_us",
        most_us=100e3,
    ),
)


@dataclass(frozen=True)
class LimitVerdict:
    limit: Limit
    outcome: str
    #: The figure; with `without` the difference.
    found_us: float | None = None
    #: The tests' lines, ours first.
    records: tuple[Record, ...] = ()
    reason: str | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(limits: Sequence[Limit], cpus: tuple[int, int], moves: int) -> list[Record]:
    """Move a guest away and back so many times, in each way that the limits ask for."""
    tests = dict.fromkeys(test for limit in limits for test in limit.tests())
    argv = [str(programs.find("bench_moves")), "--test", ",".join(tests), "--moves", str(moves)]
    argv += ["--cpus", f"{cpus[0]},{cpus[1]}"]
    return programs.checked(programs.run(argv, timeout=120 + 10 * moves), "bench_moves")


def judge(limits: Sequence[Limit], cpus: tuple[int, int], moves: int) -> list[LimitVerdict]:
    try:
        records = {record["test"]: record for record in measure(limits, cpus, moves)}
    except IvcError as error:
        return [LimitVerdict(one, UNMEASURED, reason=str(error)) for one in limits]
    verdicts = []
    for limit in limits:
        own = tuple(records[test] for test in limit.tests() if test in records)
        if len(own) < len(limit.tests()):
            reason = f"bench_moves has not measured {limit.test}"
            verdicts.append(LimitVerdict(limit, UNMEASURED, reason=reason))
            continue
        found = own[0][limit.figure] - (own[1][limit.figure] if limit.without else 0.0)
        outcome = PASSED if found <= limit.most_us else FAILED
        verdicts.append(LimitVerdict(limit, outcome, found, own))
    return verdicts


def line(verdict: LimitVerdict) -> str:
    """target: figure (median and worst, how many), bound: outcome."""
    limit = verdict.limit
    if verdict.found_us is None:
        return f"{limit.text}: not measured: {verdict.reason}"
    own = verdict.records[0]
    without = f", without {time_text(verdict.records[1][limit.figure])}" if limit.without else ""
    return (
        f"{limit.text}: {time_text(verdict.found_us)} (median {time_text(own['p50_us'])}, worst "
        f"{time_text(own['max_us'])}, {own['singles']} times{without}), bound <= "
        f"{time_text(limit.most_us)}: {verdict.outcome}"
    )
