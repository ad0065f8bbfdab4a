"""Statistics: published examples, symmetric cases, and what is found in noise like that of benchmarks."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest

from ivc_host import stats
from ivc_host.stats import Interval, Outcome

#: Additional hours of sleep by two drugs: Student, "The probable error of a mean", 1908; R has them as `sleep`.
_SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)
#: Depression before and after therapy: Hollander and Wolfe, "Nonparametric statistical methods", 1973.
_DEPRESSION = (
    [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30],
    [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29],
)
#: Self-awareness: Wilcox, "Introduction to robust estimation and hypothesis testing", section 4.3.
_AWARENESS = [77, 87, 88, 114, 151, 210, 219, 246, 253, 262, 296, 299, 306, 376, 428, 515, 666, 1310, 2611]
#: Spatial test, group A: Efron and Tibshirani, "An introduction to the bootstrap", 1993, tables 14.1 and 14.2.
_SPATIAL = [48, 36, 20, 29, 42, 42, 20, 42, 22, 41, 45, 14, 6, 0, 33, 28, 34, 4, 32, 24, 47, 41, 24, 26, 30, 41]


def test_t() -> None:
    assert stats.t_test(*_SLEEP) == pytest.approx(0.002833, abs=1e-6)
    assert stats.t_test([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == 1.0
    assert stats.t_test([1.3, 1.3, 1.3], [1.2, 1.2, 1.2]) == 0.0  # 0.1 three times, but for rounding


@pytest.mark.parametrize(("n", "t"), [(15, 2.145), (7, 2.447), (7, 3.707)])
def test_t_of_the_tables(n: int, t: float) -> None:
    """Two-tailed 0.05 and 0.01 of n - 1 degrees of freedom, as printed in textbooks."""
    scatter = np.linspace(-1, 1, n)
    shifted = scatter + t * scatter.std(ddof=1) / math.sqrt(n)
    assert stats.t_test(list(shifted), [0.0] * n) == pytest.approx(0.01 if t > 3 else 0.05, abs=1e-4)


def test_trimmed_t() -> None:
    """The book's trimmed mean is 282.7, its 0.95 interval (160.4, 405.0): so at both ends P is 0.05."""
    for end in (160.39, 404.99):
        assert stats.trimmed_t_test(_AWARENESS, [end] * len(_AWARENESS)) == pytest.approx(0.05, abs=1e-4)
    assert stats.trimmed_t_test([1.0] * 5, [1.0] * 5) == 1.0
    assert stats.trimmed_t_test([1.3] * 6 + [9.0], [1.2] * 7) == 0.0


def test_wilcoxon() -> None:
    assert stats.wilcoxon(*_DEPRESSION) == pytest.approx(2 * 0.01953, abs=1e-4)
    assert stats.wilcoxon([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert stats.wilcoxon([2.0] * 7, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]) == pytest.approx(2 / 2**7)


def test_bootstrap() -> None:
    """The variance (with n) is 171.5, its 0.90 interval (115.8, 259.6) with 2,000 resamples."""
    found = stats.interval(_SPATIAL, np.var, 0.90)
    assert float(np.var(_SPATIAL)) == pytest.approx(171.5, abs=0.05)
    assert (found.low, found.high) == pytest.approx((115.8, 259.6), rel=0.015)
    assert found == stats.interval(_SPATIAL, np.var, 0.90)
    assert stats.interval([2.0, 2.0, 2.0]) == Interval(2.0, 2.0)


def test_holm() -> None:
    """Wikipedia, "Holm-Bonferroni method": of 0.01, 0.04, 0.03, 0.005 the first and the last stay below 0.05."""
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.9, 0.8]) == [1.0, 1.0] and stats.holm([]) == []


def test_share() -> None:
    """scipy's own example of Clopper and Pearson: 7 of 50."""
    found = stats.share(7, 50)
    assert (found.share, found.interval.low, found.interval.high) == pytest.approx((0.14, 0.05819, 0.26740), abs=1e-5)


def test_nearest_rank() -> None:
    """Wikipedia, "Percentile": of 15, 20, 35, 40, 50 the 5th, 30th, 40th, 50th and 100th."""
    assert [stats.percentile([40, 15, 50, 20, 35], p) for p in (5, 30, 40, 50, 100)] == [15, 20, 20, 35, 50]
    found = stats.summary([float(value) for value in range(1, 1001)])
    assert (found.p50, found.p90, found.p95, found.p99, found.p99_9) == (500, 900, 950, 990, 999)
    assert (found.n, found.mean, found.median, found.min, found.max, found.mad) == (1000, 500.5, 500.5, 1, 1000, 250)


def test_mad() -> None:
    """Wikipedia, "Median absolute deviation": of 1, 1, 2, 2, 4, 6, 9 it is 1."""
    assert stats.summary([1, 1, 2, 2, 4, 6, 9]).mad == 1


def test_least_effect() -> None:
    """Bloom, 1995: for a power of 0.8 at 0.05, two-tailed, 2.8 standard errors."""
    assert math.log1p(stats.resolvable(0.01, 10_000, alpha=0.05)) == pytest.approx(0.028, abs=1e-4)


def _round(dice: np.random.Generator, difference: float, rounds: int = 15) -> tuple[list[float], list[float]]:
    """Two sides as a quiet machine measured them (bench run, 0.05 s a sample, a virtual machine of two processors): 1.2 % of
    scatter each, one figure of twenty too long by 7 to 60 %; and what changes from round to round for both."""
    machine = np.exp(dice.normal(0, 0.1, rounds))
    sides = []
    for level in (1.0, 1 + difference):
        spoilt = np.where(dice.random(rounds) < 0.05, dice.uniform(1.07, 1.6, rounds), 1.0)
        sides.append((level * machine * spoilt * np.exp(dice.normal(0, 0.012, rounds))).tolist())
    return sides[0], sides[1]


def _outcomes(difference: float, seeds: int) -> list[Outcome]:
    return [stats.compare(*_round(np.random.default_rng(seed), difference)).outcome for seed in range(seeds)]


def test_a_planted_difference_is_found() -> None:
    found = _outcomes(0.05, 20)
    assert found.count(Outcome.FIRST) >= 18 and Outcome.SECOND not in found
    assert _outcomes(-0.05, 20).count(Outcome.SECOND) >= 18


def test_no_difference_is_said_where_there_is_none() -> None:
    found = _outcomes(0.0, 200)
    assert found[:20] == [Outcome.NONE] * 20
    assert found.count(Outcome.NONE) >= 196  # 1 in 100 is promised: 7 or more of 200 would come once in 200 tests


def test_the_interval_holds_the_planted_ratio() -> None:
    held = 0
    for seed in range(100):
        found = stats.compare(*_round(np.random.default_rng(seed), 0.05)).interval
        held += found is not None and found.holds(1 / 1.05)
    assert held >= 87  # of 0.95: 15 values are few for a bootstrap


def test_sides_that_are_swapped_give_the_opposite() -> None:
    first, second = _round(np.random.default_rng(1), 0.05)
    one, other = stats.compare(first, second), stats.compare(second, first)
    assert (one.outcome, other.outcome) == (Outcome.FIRST, Outcome.SECOND)
    assert (one.p_t, one.p_trimmed, one.p_wilcoxon) == pytest.approx((other.p_t, other.p_trimmed, other.p_wilcoxon))
    assert one.median == pytest.approx(1 / other.median)
    assert one.larger is not None and other.larger is not None
    assert one.larger.share == pytest.approx(1 - other.larger.share)
    assert stats.compare(first, second, less_is_better=False).outcome is Outcome.SECOND
    assert one.verdict("ivc", "tcp") == "ivc faster" and other.verdict("tcp", "ivc") == "ivc faster"


def test_of_many_rows_none_is_better_by_chance() -> None:
    rows = [stats.compare(*_round(np.random.default_rng(1000 + seed), 0.0)) for seed in range(60)]
    assert min(one.p for one in rows if one.p is not None) < 0.1
    assert {one.outcome for one in stats.family(rows)} == {Outcome.NONE}


def test_few_rounds_say_so() -> None:
    found = stats.compare([1.0, 1.0], [9.0, 9.0])
    assert (found.outcome, found.interval, found.p, found.ratio_of_medians) == (Outcome.FEW, None, None, pytest.approx(1 / 9))
    assert stats.family([found]) == [found] and json.dumps(found.as_dict())


def test_rounds_that_are_alike() -> None:
    same = stats.compare([2.0] * 5, [2.0] * 5)
    assert (same.outcome, same.larger, same.resolvable) == (Outcome.NONE, None, 0.0)
    assert stats.compare([2.0] * 5, [3.0] * 5).outcome is Outcome.FIRST
    for count in range(3, 9):  # what is left after trimming is one value
        assert stats.compare([1.05] * (count - 1) + [1.0], [1.0] * count).interval is not None


def test_a_thing_is_like_itself() -> None:
    dice = np.random.default_rng(3)
    assert stats.against_itself(list(np.exp(dice.normal(0, 0.02, 31)))).outcome is Outcome.NONE
    assert stats.against_itself([1.0, 1.2] * 8).outcome is Outcome.FIRST  # every other round is slower: not noise


def test_noise_and_the_rounds_it_takes() -> None:
    dice = np.random.default_rng(4)
    drift = np.linspace(1, 2, 400)
    noise = stats.calibrate([list(drift * np.exp(dice.normal(0, 0.02 / math.sqrt(2), 400))), [1.0]])
    assert noise.sigma == pytest.approx(0.02, rel=0.15) and noise.rounds == 399
    needed = noise.rounds_for(0.05)
    assert needed is not None and noise.resolvable(needed) <= 0.05 < noise.resolvable(needed - 1)
    assert stats.Noise(5.0, 1).rounds_for(0.001, most=50) is None


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 0.0], [1.0, 1.0]), ([1.0, math.nan], [1.0, 1.0])]
)
def test_what_cannot_be_compared(first: list[float], second: list[float]) -> None:
    with pytest.raises(stats.StatsError):
        stats.compare(first, second)


def test_scipy_is_loaded_by_those_who_need_it() -> None:
    """It takes more than a second, and `ivc lab ssh` is typed often."""
    line = "import sys; import ivc_host.lab.cli, ivc_host.bench.cli, ivc_host.testing.migrate; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], timeout=60, check=False).returncode == 0
