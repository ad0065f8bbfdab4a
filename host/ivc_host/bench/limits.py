"""Bounds in time that have no other transport to be held against: those of `moves` and of `waiting`.

What is measured depends little on how near the processors are to each other, so there are no turns and
no looks at the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ..errors import IvcError
from .gate import FAILED, PASSED, UNMEASURED
from .programs import Record
from .words import time_text


@dataclass(frozen=True)
class Limit:
    key: str
    text: str
    #: A test of a benchmark, and the figure of it.
    test: str
    figure: str
    most_us: float
    #: The test whose same figure is taken off: what there is without what is measured.
    without: str | None = None

    def tests(self) -> list[str]:
        return [self.test] if self.without is None else [self.test, self.without]


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


def judge(limits: Sequence[Limit], measure: Callable[[], list[Record]]) -> list[LimitVerdict]:
    """Hold what is measured, a record for each test, against the limits."""
    try:
        records = {record["test"]: record for record in measure()}
    except IvcError as error:
        return [LimitVerdict(one, UNMEASURED, reason=str(error)) for one in limits]
    verdicts = []
    for limit in limits:
        own = tuple(records[test] for test in limit.tests() if test in records)
        if len(own) < len(limit.tests()):
            verdicts.append(LimitVerdict(limit, UNMEASURED, reason=f"there is no result of the test {limit.test}"))
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
