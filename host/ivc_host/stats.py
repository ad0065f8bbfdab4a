"""The statistics of everything that compares: pure functions on sequences of numbers.

Two sides are measured in rounds: each round has one figure of either, taken shortly after one another, so
what the machine does to a round it does to both. All tests look at the logarithm of a round's ratio.
If the sides are alike it does not matter which is called which, so that logarithm is as often below zero as
above: what both tests assume, and no more. Rounds are taken as independent of each other.

Figures are positive and of one unit (microseconds, MB/s ...); results are ratios, shares and
probabilities, which have none, unless a docstring says otherwise. The first side is always the numerator.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from .errors import IvcError

#: A difference is claimed when one so large would appear by chance once in so many tables. Smaller than the usual
#: 0.05, by which one of twenty comparisons of a thing with itself finds a difference.
ALPHA = 0.01
#: Of intervals: in so many of repeated measurements they hold the right value.
LEVEL = 0.95
#: How often a difference of `resolvable` is found.
POWER = 0.8
#: Below so many rounds no scatter can be told, and nothing is claimed.
LEAST_ROUNDS = 3
#: Of each end of the ordered values a trimmed mean leaves out so much: one of five rounds, three of fifteen.
_TRIM = 0.2
#: The tests of which `compare` takes the best.
_TESTS = 3
#: Less than this, relative to the values, is rounding of floating point.
_ROUNDING = 1e-12
_RESAMPLES = 9999
_SEED = 20070311


class StatsError(IvcError):
    """Figures that cannot be summed up or compared."""


class Outcome(StrEnum):
    """Which side is the better one, as far as the rounds show."""

    FIRST = "first"
    SECOND = "second"
    NONE = "no difference"
    FEW = "too few rounds"


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Summary:
    """One population, in its own unit."""

    n: int
    mean: float
    median: float
    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    p99_9: float
    max: float
    #: Median distance from the median: a measure of scatter that half of the values may spoil. Not scaled
    #: to the standard deviation (for a normal distribution that is 1.48 times as large).
    mad: float


@dataclass(frozen=True)
class Share:
    """How often something was so, of so many times, and the interval of its probability."""

    share: float
    interval: Interval


@dataclass(frozen=True)
class Comparison:
    """Of two sides that were measured in rounds; ratios are first / second."""

    rounds: int
    ratio_of_medians: float
    #: Of the rounds' ratios. A few spoilt rounds move the mean, and not the median.
    geometric_mean: float
    median: float
    #: Of the median; None for fewer than LEAST_ROUNDS rounds, as whatever follows.
    interval: Interval | None
    #: Probabilities of a difference as large or larger if there were none.
    p_t: float | None
    p_trimmed: float | None
    p_wilcoxon: float | None
    #: Of all tests together, and after `family` of all rows together: what `outcome` follows.
    p: float | None
    #: Effect size: in what share of the rounds the first side had the larger figure (ties count for neither).
    larger: Share | None
    #: The least difference that would have been found with probability POWER: 0.05 is 5 %.
    resolvable: float | None
    less_is_better: bool

    @property
    def outcome(self) -> Outcome:
        """A side is the better one when both the tests and the interval say so."""
        if self.p is None or self.interval is None:
            return Outcome.FEW
        if self.p >= ALPHA or self.interval.holds(1.0):
            return Outcome.NONE
        smaller = self.median < 1
        return Outcome.FIRST if smaller == self.less_is_better else Outcome.SECOND

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "outcome": str(self.outcome)}

    def verdict(self, first: str, second: str) -> str:
        """The outcome, with the names of the sides."""
        names = {Outcome.FIRST: f"{first} faster", Outcome.SECOND: f"{second} faster"}
        return names.get(self.outcome, str(self.outcome))


@dataclass(frozen=True)
class Noise:
    """How much the ratio of a thing to itself scatters from round to round."""

    #: Standard deviation of the logarithm of a round's ratio: 0.02 is about 2 %.
    sigma: float
    rounds: int

    def resolvable(self, rounds: int) -> float:
        """The least difference that so many rounds find with probability POWER; see `resolvable`."""
        return resolvable(self.sigma / math.sqrt(rounds), rounds - 1)

    def rounds_for(self, difference: float, most: int = 1000) -> int | None:
        """How many rounds find a difference (0.05: 5 %) with probability POWER; None: more than `most`."""
        counts = range(LEAST_ROUNDS, most + 1)
        return next((n for n in counts if self.resolvable(n) <= difference), None)


def _scipy() -> Any:
    import scipy.stats  # more than a second to import: not for `ivc lab ssh`

    return scipy.stats


def _values(values: Sequence[float]) -> Any:
    found = np.asarray(values, dtype=float)
    if not found.size or not np.isfinite(found).all():
        raise StatsError("no figures, or one that is no number", hint="measure again")
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least so many percent of all do not exceed.

    Always one of the values, in their unit, no matter how they are distributed: nothing is interpolated. What
    `bench/sample.c` prints. (Hyndman and Fan, "Sample quantiles in statistical packages", 1996, definition 1.)
    """
    return _ranked(np.sort(_values(values)), percent)


def _ranked(ordered: Any, percent: float) -> float:
    """Rounded, because 99.9 % of 1000 are 999, and one more by floating point (so it is in numpy.percentile)."""
    rank = math.ceil(round(ordered.size * percent / 100, 6))
    return float(ordered[max(rank, 1) - 1])


def summary(values: Sequence[float]) -> Summary:
    """Describe one population: for the percentiles give it all iterations of all trials, not their percentiles."""
    found = np.sort(_values(values))
    p50, p90, p95, p99, p99_9 = (_ranked(found, percent) for percent in (50, 90, 95, 99, 99.9))
    middle = float(np.median(found))
    mad = float(np.median(np.abs(found - middle)))
    return Summary(
        found.size, float(found.mean()), middle, float(found[0]), p50, p90, p95, p99, p99_9, float(found[-1]), mad
    )  # fmt: skip


def t_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Paired two-tailed t-test: the probability P of such differences if the means are equal.

    Assumes that the differences are independent and roughly normal; for those that are symmetric with long tails it is
    too careful. All differences alike: 1 if they are zero, else 0. (Student, "The probable error of a mean",
    1908; scipy.stats.ttest_rel.)
    """
    difference = _values(first) - _values(second)
    if difference.size < 2:
        raise StatsError("a t-test of fewer than two pairs", hint="measure more rounds")
    if _constant(difference):
        return 0.0 if difference[0] else 1.0
    return float(_scipy().ttest_rel(first, second).pvalue)


def trimmed_t_test(first: Sequence[float], second: Sequence[float]) -> float:
    """The paired t-test of trimmed means: the probability P of such differences if they are symmetric around zero.

    A fifth of the differences is left out at each end, so a tenth of the rounds may be spoilt, by whatever. (Tukey and McLaughlin,
    "Less vulnerable confidence and significance procedures for location based on a single sample", 1963;
    scipy.stats.mstats.trimmed_stde.)
    """
    difference = _values(first) - _values(second)
    if difference.size < LEAST_ROUNDS:
        raise StatsError("a trimmed t-test of too few pairs", hint="measure more rounds")
    middle, error, freedom = _trimmed(difference)
    if error <= _ROUNDING * float(np.abs(difference).max()):
        return 0.0 if middle else 1.0
    return float(2 * _scipy().t.sf(abs(middle / error), freedom))


def _trimmed(values: Any) -> tuple[float, float, int]:
    """Trimmed mean, its standard error, and degrees of freedom."""
    stats = _scipy()
    error = float(stats.mstats.trimmed_stde(values, limits=(_TRIM, _TRIM)))
    return float(stats.trim_mean(values, _TRIM)), error, values.size - 2 * int(_TRIM * values.size) - 1


def wilcoxon(first: Sequence[float], second: Sequence[float]) -> float:
    """Wilcoxon's signed rank test, two-tailed: the probability P of such ranks if the differences are symmetric
    around zero.

    Exact for few pairs without ties. One wild pair counts as one rank, however wild. No P below 2 / 2^n is possible: at
    least 9 pairs for 0.005. (Wilcoxon, "Individual comparisons by ranking methods", 1945; scipy.stats.wilcoxon.)
    """
    difference = _values(first) - _values(second)
    if not difference.any():
        return 1.0
    return float(_scipy().wilcoxon(difference).pvalue)


def interval(
    values: Sequence[float],
    statistic: Callable[..., Any] = np.mean,
    level: float = LEVEL,
) -> Interval:
    """Bootstrap interval of a statistic, bias-corrected and accelerated (BCa), in the statistic's unit.

    Assumes independent values and nothing of their distribution, but that they show it: of five values or so the
    interval is too narrow. The seed is fixed, so the same values give the same interval. (Efron, "Better bootstrap confidence
    intervals", 1987; scipy.stats.bootstrap.)
    """
    found = _values(values)
    if _constant(found):
        same = float(statistic(found))
        return Interval(same, same)
    low, high = _bootstrap(found, statistic, level, "BCa")
    if math.isnan(low) or math.isnan(high):  # leaving any one value out changes nothing: no acceleration
        low, high = _bootstrap(found, statistic, level, "percentile")
    return Interval(low, high)


def _bootstrap(values: Any, statistic: Callable[..., Any], level: float, method: str) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a degenerate distribution, which the result shows
        result = _scipy().bootstrap(
            (values,), statistic, confidence_level=level, n_resamples=_RESAMPLES, method=method,
            rng=np.random.default_rng(_SEED),
        )  # fmt: skip
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def share(times: int, of: int, level: float = LEVEL) -> Share:
    """A share and the interval of its probability. (Clopper and Pearson, "The use of confidence or fiducial limits",
    1934, which is exact and errs to the wide side; scipy.stats.binomtest.)"""
    found = _scipy().binomtest(times, of).proportion_ci(level, "exact")
    return Share(times / of, Interval(float(found.low), float(found.high)))


def holm(chances: Sequence[float]) -> list[float]:
    """Correct the probabilities P of a family of tests, such as the rows of a table, so that the chance to find
    any difference where there is none stays what one test has.

    Holds for tests that depend on each other, too. (Holm, "A simple sequentially rejective multiple test procedure",
    1979. scipy has the corrections for the rate of false discoveries, which promise less, and not this one.)
    """
    adjusted = [0.0] * len(chances)
    least = 0.0
    for rank, index in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        least = max(least, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = least
    return adjusted


def resolvable(error: float, freedom: int, alpha: float = ALPHA / _TESTS) -> float:
    """The least difference that a two-tailed t-test finds with probability POWER: 0.05 is a side that takes 5 % longer.

    ERROR is the standard error of the mean of the rounds' logarithms, FREEDOM its degrees of freedom. (The minimum detectable
    effect of Bloom, "Minimum detectable effects", 1995: two quantiles of t, times the standard error.)
    """
    t = _scipy().t
    return math.expm1(float(t.ppf(1 - alpha / 2, freedom) + t.ppf(POWER, freedom)) * error)


def compare(first: Sequence[float], second: Sequence[float], less_is_better: bool = True) -> Comparison:
    """Compare two sides; the figures at one index are of one round.

    The t-test is the sharpest for few rounds that are all good, the other two where the machine has spoilt some. So the
    best of the three counts, with three times its P: more than that the choice cannot cost (Bonferroni).
    """
    a, b = _values(first), _values(second)
    if a.size != b.size:
        raise StatsError(f"{a.size} figures against {b.size}", hint="give both of each round")
    if (a <= 0).any() or (b <= 0).any():
        raise StatsError("a figure that is not above zero has no ratio", hint="measure for longer")
    logs = np.log(a / b)
    found = Comparison(
        rounds=a.size,
        ratio_of_medians=float(np.median(a) / np.median(b)),
        geometric_mean=math.exp(float(logs.mean())),
        median=math.exp(float(np.median(logs))),
        interval=None, p_t=None, p_trimmed=None, p_wilcoxon=None, p=None, larger=None, resolvable=None,
        less_is_better=less_is_better,
    )  # fmt: skip
    return _tested(found, logs) if a.size >= LEAST_ROUNDS else found


def _tested(found: Comparison, logs: Any) -> Comparison:
    none = np.zeros_like(logs)
    of_median = interval(logs, np.median)
    chances = [test(logs, none) for test in (t_test, trimmed_t_test, wilcoxon)]
    differing = int(np.count_nonzero(logs))
    _, error, freedom = _trimmed(logs)
    least = (
        resolvable(float(logs.std(ddof=1)) / math.sqrt(logs.size), logs.size - 1),
        resolvable(error, freedom),
    )
    return replace(
        found,
        interval=Interval(math.exp(of_median.low), math.exp(of_median.high)),
        p_t=chances[0],
        p_trimmed=chances[1],
        p_wilcoxon=chances[2],
        p=min(1.0, _TESTS * min(chances)),
        larger=share(int((logs > 0).sum()), differing) if differing else None,
        resolvable=min(least),
    )


def family(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same with P corrected for all that were tested together (`holm`)."""
    adjusted = iter(holm([one.p for one in comparisons if one.p is not None]))
    return [one if one.p is None else replace(one, p=next(adjusted)) for one in comparisons]


def against_itself(values: Sequence[float]) -> Comparison:
    """The null check: the odd rounds of one side against the even ones. Its outcome should be NONE; another one says that
    the machine, or the order of the rounds, makes differences that no side has."""
    even = len(values) // 2 * 2
    return compare(values[0:even:2], values[1:even:2])


def calibrate(sides: Sequence[Sequence[float]]) -> Noise:
    """The noise of a round, from sides that were measured several times each: what one figure differs from the next of the
    same side.

    Neighbours, because the slow changes of a machine, which pairs cancel, would count as noise else. The scatter is estimated
    from the median of the absolute differences (1.4826 of them are a standard deviation of normal ones), so that a spoilt
    round does not decide. (Rousseeuw and Croux, "Alternatives to the median absolute deviation", 1993.)
    """
    steps = [abs(step) for values in sides for step in np.diff(np.log(_values(values)))]
    if not steps:
        raise StatsError("one figure of a side tells no noise", hint="measure more rounds")
    return Noise(1.4826 * float(np.median(steps)), len(steps))


def _constant(values: Any) -> bool:
    """Whether all are one value, as far as floating point tells: their scatter is then rounding, and no noise."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())
