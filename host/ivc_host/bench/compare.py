"""Fair comparisons: sides take turns (A, B, A, B), each sample lies between two looks at the floor,
and only samples of one state of the machine are set against each other.

Invariant: a ratio is always formed from two samples of the same round, never from averages of
different times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .. import stats
from . import floor
from .floor import Floor
from .programs import Record
from .words import ratio_text

#: The member of a record that is no figure: what tells whether two runs came to one result.
CHECK = "check"
#: Figures of which more is better; of all others, which are times, less is.
MORE_IS_BETTER = ("MB_s", "messages_s")
#: What tests are compared by, if not by `typical_us`. Messages rather than bytes per second, because messages of
#: 0 bytes have those, too.
_METRICS = dict.fromkeys(("bandwidth", "bidir", "rate", "incast"), "messages_s")
#: What a comparison is about: test, side, size.
Key = tuple[str, str, int]
#: Runs one side once and returns what it measured.
Side = Callable[[], list[Record]]
#: What a caller hears before each sample: side, round.
Tell = Callable[[str, int], None]


@dataclass
class Sample:
    """One run of one side."""

    side: str
    round: int
    before: Floor
    after: Floor
    records: list[Record]
    #: One of floor.STATES; set by `classify`, when the whole run's best floor is known.
    state: str = ""

    def value(self, test: str, size: int, metric: str) -> float | None:
        """A figure of this sample, None when it was not measured."""
        for record in self.records:
            if record["test"] == test and record["bytes"] == size:
                return record.get(metric)
        return None

    def as_dict(self) -> dict[str, object]:
        return {
            "side": self.side,
            "round": self.round,
            "state": self.state,
            "floor_before": self.before.as_dict(),
            "floor_after": self.after.as_dict(),
            "records": [{k: v for k, v in one.items() if k != CHECK} for one in self.records],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Sample:
        """Of a file. Raises KeyError or TypeError when it is none of ours."""
        before, after = Floor(**data["floor_before"]), Floor(**data["floor_after"])
        return cls(data["side"], data["round"], before, after, data["records"], data["state"])


@dataclass(frozen=True)
class Ratio:
    """Ours over the reference, from all usable rounds."""

    median: float
    low: float
    high: float
    #: Quartiles, which one outlier does not move.
    lower_quartile: float
    upper_quartile: float
    ours: float
    reference: float
    rounds: int
    dropped: int
    state: str
    #: Whether there is a difference at all.
    comparison: stats.Comparison

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "comparison": self.comparison.as_dict()}

    def spread(self) -> str:
        return f"{ratio_text(self.low)} .. {ratio_text(self.high)}"


@dataclass
class Session:
    """All samples of one run of the tool, which share one notion of the best floor.

    `look` measures the floor; a test can put its own in.
    """

    look: Callable[[], Floor]
    samples: list[Sample] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    #: Whether the last look was just now, so that it serves as the next sample's first.
    _fresh: bool = False
    #: Rounds are numbered through the whole session, whatever they compare.
    _rounds: int = 0

    def take(self, side: str, run: Side, number: int) -> Sample:
        """Run a side between two looks at the floor; the last look serves as the next first."""
        before = self.floors[-1] if self._fresh else self._look()
        sample = Sample(side, number, before, before, run())
        sample.after = self._look()
        self.samples.append(sample)
        return sample

    def _look(self) -> Floor:
        self.floors.append(self.look())
        self._fresh = True
        return self.floors[-1]

    def classify(self) -> None:
        """Give every sample its state, judged by the best floor seen so far."""
        reference = floor.best(self.floors)
        for sample in self.samples:
            sample.state = floor.state(sample.before, sample.after, reference)

    def alternate(
        self,
        sides: Mapping[str, Side],
        rounds: int,
        tell: Tell = lambda side, number: None,
        most: int | None = None,
    ) -> list[Sample]:
        """Let the sides take turns until `rounds` rounds were near throughout.

        Rounds that the machine spoils are made up for, up to `most` rounds (default: twice as
        many as asked for).
        """
        own: list[Sample] = []
        self._fresh = False  # whoever called us may have done something else meanwhile
        for done in range(1, (most or 2 * rounds) + 1):
            for name, side in sides.items():
                tell(name, done)
                own.append(self.take(name, side, self._rounds))
            self._rounds += 1
            self.classify()
            if done >= rounds and len(_rounds_of("near", own, list(sides))) >= rounds:
                break
        return own


def _latencies(samples: Sequence[Sample]) -> list[float]:
    return [one.latency_us for sample in samples for one in (sample.before, sample.after)]


def _rounds_of(
    state: str, samples: Sequence[Sample], sides: Sequence[str]
) -> dict[int, list[Sample]]:
    """The rounds in which every one of these sides was sampled in that state.

    Far apart is no one distance: the hand-overs beside the samples of a round must be alike, too.
    """
    rounds: dict[int, list[Sample]] = {}
    for sample in samples:
        if sample.side in sides:
            rounds.setdefault(sample.round, []).append(sample)
    return {
        number: found
        for number, found in rounds.items()
        if len(found) == len(sides)
        and {sample.state for sample in found} == {state}
        and max(_latencies(found)) <= floor.LATENCY_STEP * min(_latencies(found))
    }


def _one_distance(rounds: Mapping[int, Sequence[Sample]]) -> list[int]:
    """Of rounds that were taken at several distances those of the commonest one, the nearer of two."""
    lowest = {number: min(_latencies(samples)) for number, samples in rounds.items()}
    found: list[int] = []
    for least in sorted(lowest.values()):
        alike = [n for n, one in lowest.items() if least <= one <= floor.LATENCY_STEP * least]
        if len(alike) > len(found):
            found = alike
    return found


def ratio(
    samples: Sequence[Sample],
    ours: str,
    reference: str,
    test: str,
    size: int,
    metric: str,
    reference_test: str | None = None,
    reference_size: int | None = None,
) -> Ratio | None:
    """Compare two sides in one test; None when no round has both in one state.

    Near rounds count; if there are none (the cores were apart all the time), those of another
    state do, of one distance, and the result says so.
    """
    for state in floor.STATES[:-1]:
        numbers = _one_distance(_rounds_of(state, samples, [ours, reference]))
        pairs = []
        for number in numbers:
            a = _value(samples, ours, number, test, size, metric)
            own_size = reference_size or size
            b = _value(samples, reference, number, reference_test or test, own_size, metric)
            if a and b:
                pairs.append((a, b))
        if pairs:
            tried = {s.round for s in samples if s.side == ours and s.value(test, size, metric)}
            return _ratio(pairs, len(tried) - len(pairs), state, metric)
    return None


def _ratio(pairs: Sequence[tuple[float, float]], dropped: int, state: str, metric: str) -> Ratio:
    ours, reference = zip(*pairs)
    ratios = [a / b for a, b in pairs]
    spread = stats.summary(ratios)
    return Ratio(
        median=spread.median,
        low=spread.min,
        high=spread.max,
        lower_quartile=stats.percentile(ratios, 25),
        upper_quartile=stats.percentile(ratios, 75),
        ours=stats.summary(ours).median,
        reference=stats.summary(reference).median,
        rounds=len(pairs),
        dropped=dropped,
        state=state,
        comparison=stats.compare(ours, reference, metric not in MORE_IS_BETTER),
    )


def _value(
    samples: Sequence[Sample], side: str, number: int, test: str, size: int, metric: str
) -> float | None:
    for sample in samples:
        if sample.side == side and sample.round == number:
            return sample.value(test, size, metric)
    return None


def _metric(test: str, record: Record) -> str:
    return "seconds" if "seconds" in record else _METRICS.get(test, "typical_us")


def _measured(samples: Sequence[Sample], tests: Sequence[str]) -> dict[tuple[str, int], str]:
    """Each test and size that there is, and what it is compared by; by size."""
    found = {(one["test"], one["bytes"]): one for sample in samples for one in sample.records}
    return {key: _metric(key[0], found[key]) for key in sorted(found, key=lambda k: k[1]) if key[0] in tests}


def comparisons(
    samples: Sequence[Sample], tests: Sequence[str], sides: Sequence[str], reference: str
) -> dict[Key, Ratio]:
    """Each side against the reference, in each test and size: one family, as the rows of a table are."""
    found: dict[Key, Ratio] = {}
    for (test, size), metric in _measured(samples, tests).items():
        for side in sides:
            one = ratio(samples, side, reference, test, size, metric) if side != reference else None
            if one is not None:
                found[test, side, size] = one
    corrected = stats.family([one.comparison for one in found.values()])
    return {key: replace(one, comparison=own) for (key, one), own in zip(found.items(), corrected)}


def dicts(found: Mapping[Key, Ratio], reference: str) -> list[dict[str, object]]:
    """For a file."""
    return [
        {"test": test, "side": side, "bytes": size, "reference": reference, **one.as_dict()}
        for (test, side, size), one in found.items()
    ]


def series(samples: Sequence[Sample], tests: Sequence[str], sides: Sequence[str]) -> dict[Key, list[float]]:
    """The figures of each side by itself, in the order of the rounds; of one state, as `comparisons` takes them."""
    found: dict[Key, list[float]] = {}
    for (test, size), metric in _measured(samples, tests).items():
        for side in sides:
            for state in floor.STATES:
                own = [one for one in samples if one.side == side and one.state == state]
                values = [value for one in own if (value := one.value(test, size, metric))]
                if values:
                    found[test, side, size] = values
                    break
    return found
