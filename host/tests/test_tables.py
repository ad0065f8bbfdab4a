"""Every table's ratios are what the figures beside them give, whatever the rounds' own ratios are."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table

from ivc_host import stats
from ivc_host.bench import apps, demo_report, many, report
from ivc_host.bench.compare import Ratio, Sample, comparisons, ratio
from ivc_host.bench.floor import Floor
from ivc_host.bench.gate import PASSED, Verdict
from ivc_host.bench.targets import TARGETS
from ivc_host.bench.words import paired_text, printed, quotient_text

_NEAR = Floor(0.053, 38.0)
#: Of three rounds; the median of the rounds' ratios is 4 / 5, that of the medians 4 / 2.
_OURS, _THEIRS = (4.0, 9.0, 1.0), (5.0, 2.0, 2.0)


def _record(test: str, value: float) -> dict[str, Any]:
    times = {"typical_us": value, "p99_us": 2 * value, "seconds": value, "share": 0.5}
    return {"test": test, "bytes": 8, **times, "MB_s": value, "messages_s": value * 1e6}


def _samples(tests: list[str], *sides: str, size: int = 8) -> list[Sample]:
    found = []
    for side in sides:
        values = _OURS if side == sides[0] else _THEIRS
        for number, value in enumerate(values):
            records = [_record(test, value) | {"bytes": size} for test in tests]
            found.append(Sample(side, number, _NEAR, _NEAR, records, "near"))
    return found


def _cells(table: Table) -> list[list[str]]:
    columns = [list(map(str, column.cells)) for column in table.columns]
    return [list(row) for row in zip(*columns)]


def _first(cell: str) -> str:
    """The cell's figure, without what stands in brackets."""
    return re.sub(r"\s*\\?[(\[].*", "", cell.splitlines()[0])


def _number(cell: str) -> str:
    return cell.removeprefix("~").split()[0]


def test_the_two_ratios_of_these_samples_differ() -> None:
    found = ratio(_samples(["latency"], "ivc", "tcp"), "ivc", "tcp", "latency", 8, "typical_us")
    assert found is not None
    assert (found.median, found.ours / found.reference) == (0.8, 2.0)


@pytest.mark.parametrize("test", sorted(report.TITLES))
def test_bench(test: str) -> None:
    samples = _samples([test], "ivc", "tcp")
    compared = comparisons(samples, [test], ["tcp", "ivc"], "tcp")
    table = report.table(test, samples, ["tcp", "ivc"], "tcp", compared)
    ((_, theirs, ours, shown),) = _cells(table)
    assert _number(shown) == quotient_text(_first(ours), _first(theirs)) == "2.00"
    assert shown.splitlines()[1:] == ["(0.80: 0.50 .. 4.50)", "no difference"]


@pytest.mark.parametrize(("test", "times", "paired"), [("latency", "0.50", "1.25"), ("bandwidth", "2.00", "0.80")])
def test_demo(test: str, times: str, paired: str) -> None:
    samples = _samples([test], "ivc", "network")
    samples += [one for one in _samples([test], "ivc", "native") if one.side == "native"]
    ((_, network, ours, speed_up, native, of_native),) = _cells(
        demo_report._sweep(SimpleNamespace(sweep=samples), test, "")  # type: ignore[arg-type]
    )
    one, other = (ours, network) if test == "bandwidth" else (network, ours)
    assert speed_up == f"{times} x ({paired} x)" == of_native
    assert _number(speed_up) == quotient_text(one, other) and network == native


def test_demo_without_a_comparable_round() -> None:
    samples = _samples(["latency"], "ivc", "network") + _samples(["latency"], "x", "native")
    for sample in samples:
        sample.state = "far" if sample.side == "ivc" else "near"
    ((_, _, _, speed_up, _, _),) = _cells(
        demo_report._sweep(SimpleNamespace(sweep=samples), "latency", "")  # type: ignore[arg-type]
    )
    assert speed_up == "~0.50 x"


def test_lammps_in_the_demo() -> None:
    seconds = {"network": 0.0104, "ivc": 0.0096, "native": 0.0051}

    def median_lammps(way: str) -> SimpleNamespace:
        return SimpleNamespace(loop_s=seconds[way], comm_s=0.1, comm_percent=9.0, atoms=1, steps=1)

    plan = SimpleNamespace(source=SimpleNamespace(name="in.melt"), ranks=2)
    demo = SimpleNamespace(plan=plan, median_lammps=median_lammps)
    rows = _cells(demo_report._lammps(demo))  # type: ignore[arg-type]
    loops, times = rows[0][1:], rows[-1][1:]
    assert times == [quotient_text(loops[0], loop) for loop in loops]
    assert times == ["1.00", "1.00", "2.00"]  # of 0.010 s, 0.010 s, 0.005 s


def test_applications() -> None:
    app = apps.App("x", ("x",), lambda np: [], lambda output: [])
    session: Any = SimpleNamespace(samples=_samples(["x"], apps.GUESTS_IVC, apps.NATIVE, size=apps.SIZE))
    table = report.apps_table(apps.Results([app], [apps.NATIVE, apps.GUESTS_IVC], session))
    ((_, native, ours),) = _cells(table)
    assert _number(ours.splitlines()[1]) == quotient_text(_first(ours), _first(native)) == "2.00"
    assert "(0.80: 0.50 .. 4.50) no difference" in ours


@pytest.mark.parametrize("metric", ["typical_us", "MB_s", "seconds"])
def test_gate_and_xen(metric: str) -> None:
    target = next(one for one in TARGETS if one.metric == metric)
    found = Ratio(0.8, 0.5, 4.5, 0.6, 2.0, 4.0, 2.0, 3, 0, "near", stats.compare(_OURS, _THEIRS))
    line = report.verdict_line(Verdict(target, PASSED, found))
    shown = re.search(r": (\S+ \S+), reference (\S+ \S+), ratio (\S+), by rounds 0.80 \(0.50", line)
    assert shown and shown[3] == quotient_text(shown[1], shown[2]) == "2.00"


def test_many_ranks() -> None:
    bound = next(one for one in many.BOUNDS if one.most_times is not None)
    line = many.line(many.BoundVerdict(bound, PASSED, few=0.00014, many=0.00024))
    shown = re.search(r"ranks: (\S+ ns), 2 ranks: (\S+ ns), (\S+) times", line)
    assert shown and shown[3] == quotient_text(shown[1], shown[2]) == "2.00"  # 1.71 is not seen


def test_the_texts_are_read_back() -> None:
    assert [printed(text) for text in ("54 ns", "2.5 ms", "20.3 GB/s", "0.04 M/s")] == pytest.approx(
        [54e-9, 2.5e-3, 20.3e9, 0.04e6]
    )
    assert quotient_text("1 us", "0 ns") == "-" and paired_text("-", 3.0) == "3.00"
    assert paired_text("1.00", 1.04) == "" and paired_text("1.00", 0.9) == "0.90"
