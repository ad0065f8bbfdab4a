"""Benchmarks: what is compared with what, how outputs are read, and what the commands answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ivc_host import outputs, paths, stats
from ivc_host.bench import (
    apps,
    cli,
    fabric,
    floor,
    gate,
    hydra,
    lammps,
    limits,
    many,
    memory,
    moves,
    places,
    plot,
    processors,
    programs,
    report,
    results,
    waiting,
    wake,
    xen,
)
from ivc_host.bench.compare import Ratio, Sample, Session, comparisons, dicts, ratio, series
from ivc_host.bench.floor import Floor
from ivc_host.bench.progress import Steps
from ivc_host.bench.summary import rows
from ivc_host.bench.targets import TARGETS, Target
from ivc_host.bench.words import rate_text, ratio_text, size_text, time_text
from ivc_host.errors import MissingError, UsageError
from ivc_host.lab.lab import Lab
from ivc_host.lab.process import Process
from ivc_host.lab.state import GuestRecord, LabRecord

NEAR = Floor(0.053, 38.0)
FAR = Floor(0.21, 300.0)


def record(test: str = "latency", size: int = 8, **figures: float) -> programs.Record:
    return {"test": test, "bytes": size, "typical_us": 1.0, "p99_us": 2.0, **figures}


def session_with(floors: list[Floor]) -> Session:
    """A session whose looks at the floor give these, and the last one ever after."""
    left = iter(floors)
    last = [floors[-1]]

    def look() -> Floor:
        last[0] = next(left, last[0])
        return last[0]

    return Session(look)


def answer(argv: list[object]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=120)


def ivc(*words: str) -> subprocess.CompletedProcess[str]:
    return answer([sys.executable, "-m", "ivc_host", *words])


def side(values: Iterator[float]):
    return lambda: [record(typical_us=next(values))]


def test_sides_take_turns_and_each_round_is_a_pair() -> None:
    session = session_with([NEAR])
    order: list[str] = []
    samples = session.alternate(
        {"a": side(iter([1.0, 2.0, 3.0])), "b": side(iter([2.0, 2.0, 2.0]))},
        3,
        lambda name, number: order.append(name),
    )
    assert order == ["a", "b"] * 3
    found = ratio(samples, "a", "b", "latency", 8, "typical_us")
    assert found is not None
    assert (found.median, found.low, found.high) == (1.0, 0.5, 1.5)
    assert (found.rounds, found.dropped, found.state) == (3, 0, "near")


def test_a_spoilt_round_is_dropped_and_made_up_for() -> None:
    # Looks: one before the first sample, one after each; the fourth one falls into round 2.
    session = session_with([NEAR, NEAR, NEAR, FAR, NEAR])
    samples = session.alternate(
        {"a": side(iter([1.0, 9.0, 1.0])), "b": side(iter([1.0, 1.0, 1.0]))}, 2
    )
    found = ratio(samples, "a", "b", "latency", 8, "typical_us")
    assert found is not None
    assert (found.median, found.rounds, found.dropped) == (1.0, 2, 1)
    assert len(samples) == 6


def test_far_rounds_count_only_when_there_are_no_near_ones() -> None:
    near = Sample("x", 9, NEAR, NEAR, [])
    samples = [
        Sample("a", 0, FAR, FAR, [record(typical_us=6.0)], "far"),
        Sample("b", 0, FAR, FAR, [record(typical_us=3.0)], "far"),
        near,
    ]
    found = ratio(samples, "a", "b", "latency", 8, "typical_us")
    assert found is not None and (found.median, found.state) == (2.0, "far")


def test_samples_of_different_states_are_never_compared() -> None:
    samples = [
        Sample("a", 0, NEAR, NEAR, [record()], "near"),
        Sample("b", 0, FAR, FAR, [record()], "far"),
    ]
    assert ratio(samples, "a", "b", "latency", 8, "typical_us") is None


def test_rounds_of_two_comparisons_never_mix() -> None:
    session = session_with([NEAR])
    first = session.alternate({"a": side(iter([1.0])), "b": side(iter([1.0]))}, 1)
    second = session.alternate({"a": side(iter([4.0])), "b": side(iter([1.0]))}, 1)
    assert {s.round for s in first}.isdisjoint({s.round for s in second})


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (NEAR, NEAR, "near"),
        (Floor(0.066, 80.0), NEAR, "near"),
        (FAR, FAR, "far"),
        (NEAR, FAR, "mixed"),
        (Floor(0.053, 400.0), Floor(0.053, 400.0), "far"),
        (Floor(0.02, 38.0), Floor(0.02, 38.0), "shared"),
    ],
)
def test_states(before: Floor, after: Floor, state: str) -> None:
    assert floor.state(before, after, NEAR) == state


def test_one_freak_is_not_the_best_floor() -> None:
    assert floor.best([Floor(0.02, 38.0)] + [NEAR] * 8 + [FAR] * 8) == NEAR


def a_ratio(median: float) -> Ratio:
    return Ratio(median, median, median, median, median, 1.0, 1.0, 3, 0, "near", stats.compare([median], [1.0]))


def at(latency_us: float, side: str, number: int, value: float) -> Sample:
    """A sample that is far, at some distance."""
    there = Floor(latency_us, 38.0)
    return Sample(side, number, there, there, [record(typical_us=value)], "far")


def test_far_is_no_one_distance() -> None:
    samples = [at(0.06, "a", 0, 6.0), at(0.25, "b", 0, 30.0)]  # the processors moved in between
    assert ratio(samples, "a", "b", "latency", 8, "typical_us") is None
    for number, latency in enumerate((0.25, 0.06, 0.24, 0.26), 1):
        samples += [at(latency, "a", number, 2.0 if latency > 0.1 else 8.0), at(latency, "b", number, 4.0)]
    found = ratio(samples, "a", "b", "latency", 8, "typical_us")
    assert found is not None
    assert (found.median, found.low, found.high, found.rounds, found.dropped) == (0.5, 0.5, 0.5, 3, 2)



@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.key)
def test_targets_hold_on_the_right_side_of_their_bound(target) -> None:
    if target.extra_us is not None:
        return  # test_fabtests.py has these
    if target.bound is None:
        assert target.holds(a_ratio(100.0)) and target.holds(a_ratio(0.01))
        return
    better = target.bound * (0.9 if target.less_is_better else 1.1)
    worse = target.bound * (1.1 if target.less_is_better else 0.9)
    assert target.holds(a_ratio(better)) and not target.holds(a_ratio(worse))


def test_every_target_names_sides_that_exist() -> None:
    anywhere = ("libivc", "ivc-polling", *places.PATHS)
    known = {"floor", *anywhere, *(f"guests-{key}" for key in anywhere), *hydra.PATHS, *fabric.PATHS}
    assert {t.ours for t in TARGETS} | {t.reference for t in TARGETS} <= known
    assert len({t.key for t in TARGETS}) == len(TARGETS)


def test_targets_are_named_by_what_they_begin_with() -> None:
    assert cli._targets("floor-64,answers") == [
        "floor-64", "answers-communicating", "answers-idle", "answers-computing",
    ]  # fmt: skip
    assert len(cli._targets("mpich-shm")) > 20 and "mpich-ofi-latency" not in cli._targets("mpich-shm")
    assert cli._targets("apps-lammps,wait-own") == [
        "wait-own", "apps-lammps-melt", "apps-lammps-peptide", "apps-lammps-rigid",
    ]  # fmt: skip
    assert cli._targets("wait") == ["wait-own", "wait-ring", "wait-allreduce", "wait-cpu"]
    with pytest.raises(UsageError, match="no target named 'floor-6'"):
        cli._targets("floor-6")


def chosen(names: str) -> list[Target]:
    keys = cli._targets(names)
    return [target for target in TARGETS if target.key in keys]


def test_targets_are_measured_together_when_sides_and_program_are_the_same() -> None:
    found = gate.groups(chosen("apps-hpcc,apps-kernel-halo,wait-ring,wait-allreduce,guests-vader-max,guests-vader-p99"))
    assert [sorted(one.key for one in group) for group in found] == [
        ["guests-vader-max", "guests-vader-p99"],
        ["apps-hpcc-fft", "apps-hpcc-hpl", "apps-hpcc-ptrans", "apps-hpcc-randomaccess"],
        ["apps-kernel-halo"],
        ["wait-allreduce", "wait-ring"],
    ]


def test_streams_alone_have_processes_of_their_own() -> None:
    found = gate.groups(chosen("vader-alone,vader-32k,vader-64k"))
    assert [sorted(one.key for one in group) for group in found] == [
        ["vader-32k-stream", "vader-32k-time", "vader-64k-stream", "vader-64k-time"],
        ["vader-alone-32k"], ["vader-alone-64k"], ["vader-alone-256k"], ["vader-alone-1m"],
    ]  # fmt: skip


def test_where_a_p99_is_bounded_the_longest_is_shown() -> None:
    by_key = {target.key: target for target in TARGETS}
    bounded = [target for target in TARGETS if target.metric == "p99_us"]
    assert {one.key for one in bounded} == {
        "vader-p99", "mpich-shm-p99", "intel-shm-p99", "guests-vader-p99",
    }  # fmt: skip
    for target in bounded:
        longest = by_key[target.key.replace("p99", "max")]
        assert longest.metric == "max_us" and longest.reported_only
        assert (longest.ours, longest.reference, longest.test) == (target.ours, target.reference, target.test)


def test_intel_mpi_is_compared_where_both_copy_twice() -> None:
    keys = {target.key for target in TARGETS}
    assert {f"intel-shm-{size}-{what}" for size in ("4k", "64k") for what in ("time", "stream")} <= keys
    assert not {"intel-shm-128k-time", "intel-shm-4m-stream", "intel-shm-alltoall"} & keys


class FakeLab(Lab):
    """Guests that only have names; tells when it is taken down."""

    def __init__(self, number: int, told: list[str]) -> None:
        guests = [GuestRecord(f"g{index + 1}", "") for index in range(number)]
        super().__init__(LabRecord("fake", "uml", [], 0, 0, Process.of(os.getpid()), guests=guests))
        self._told = told

    def down(self) -> None:
        self._told.append(f"down {len(self.guests)}")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[gate.Gate]:
    """A gate that sees a near floor and starts nothing."""
    monkeypatch.setattr(floor, "measure", lambda cpus: NEAR)
    with ExitStack() as stack:
        yield gate.Gate((0, 1), 0.01, stack, Steps())


def fake_guests(monkeypatch: pytest.MonkeyPatch, refuse: Sequence[int] = ()) -> list[str]:
    told: list[str] = []

    def up(name: str, number: int, *_: object, **__: object) -> FakeLab:
        told.append(f"up {number}")
        if number in refuse:
            raise MissingError(f"no room for {number}")
        return FakeLab(number, told)

    monkeypatch.setattr("ivc_host.lab.lab.up", up)
    return told


def test_one_lab_is_up_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told = fake_guests(monkeypatch)
    with ExitStack() as stack:
        judge = gate.Gate((0, 1), 0.01, stack, Steps())
        assert told == []
        assert judge.guests(2) is judge.guests(2)
        assert judge.guests(4).lab.guests == ["g1", "g2", "g3", "g4"]
        assert told == ["up 2", "down 2", "up 4"]
    assert told[-1] == "down 4"


def test_guests_that_did_not_come_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, judge: gate.Gate
) -> None:
    told = fake_guests(monkeypatch, refuse=[4])
    for _ in range(2):
        found = judge.judge(chosen("wait-ring,wait-allreduce"), 1)
        assert [one.outcome for one in found] == [gate.UNMEASURED] * 2
        assert "no room for 4" in report.verdict_line(found[0])
    assert judge.guests(2).lab.guests == ["g1", "g2"]
    assert told == ["up 4", "up 2"]


def test_every_target_in_guests_asks_for_a_guest_for_each_rank(
    monkeypatch: pytest.MonkeyPatch, judge: gate.Gate
) -> None:
    fake_guests(monkeypatch)
    monkeypatch.setattr(apps, "require", lambda apps: None)
    monkeypatch.setattr(programs, "find", Path)
    asked: list[tuple[int, str, str]] = []

    def libivc(place: places.Guests, words: Sequence[str]) -> list[programs.Record]:
        asked.append((len(place.lab.guests), "libivc", words[1]))
        return []

    def mpi(
        place: places.Guests, path: places.MpiPath, words: Sequence[str], np: int
    ) -> list[programs.Record]:
        assert np == len(place.lab.guests)
        asked.append((np, path.key, words[1]))
        return []

    def program(
        app: apps.App, place: places.Guests, path: places.MpiPath, np: int
    ) -> list[programs.Record]:
        assert np == len(place.lab.guests)
        asked.append((np, path.key, app.key))
        return []

    monkeypatch.setattr(places, "bench_libivc", libivc)
    monkeypatch.setattr(places, "bench_mpi", mpi)
    monkeypatch.setattr(apps, "run", program)
    for group in gate.groups(chosen("guests-floor,guests-vader-4k,apps-hpcc-hpl,wait-ring,wait-allreduce")):
        for name in (group[0].ours, group[0].reference):
            if name.startswith("guests-"):
                judge.side(name, group)()
    assert asked == [
        (2, "libivc", "latency,bandwidth"),
        (2, "ivc", "latency,bandwidth"),
        (2, "ivc", "hpcc"),
        (4, "ivc", "ring,allreduce"),
        (4, "ivc-polling", "ring,allreduce"),
    ]


def judged(
    monkeypatch: pytest.MonkeyPatch, judge: gate.Gate, names: str, **records: list[list[programs.Record]]
) -> dict[str, gate.Verdict]:
    """Verdicts on targets of one group, whose sides measure these, run by run."""
    targets = chosen(names)
    runs = {targets[0].ours: iter(records["ours"]), targets[0].reference: iter(records["reference"])}
    monkeypatch.setattr(judge, "side", lambda name, targets: lambda: next(runs[name]))
    return {one.target.key: one for one in judge.judge(targets, len(records["ours"]))}


def test_waiting_is_held_against_pure_polling(monkeypatch: pytest.MonkeyPatch, judge: gate.Gate) -> None:
    found = judged(
        monkeypatch, judge, "wait-ring,wait-allreduce",
        ours=[[record("ring", typical_us=390.0), record("allreduce", typical_us=900.0)]],
        reference=[[record("ring", typical_us=2000.0), record("allreduce", typical_us=4000.0)]],
    )  # fmt: skip
    assert (found["wait-ring"].outcome, found["wait-allreduce"].outcome) == (gate.PASSED, gate.FAILED)
    assert report.verdict_line(found["wait-ring"]).endswith("bound <= 0.20: pass")


def test_the_longest_of_both_sides_is_shown_and_not_judged(
    monkeypatch: pytest.MonkeyPatch, judge: gate.Gate
) -> None:
    found = judged(
        monkeypatch, judge, "guests-vader-p99,guests-vader-max",
        ours=[[record(p99_us=0.5, max_us=90.0)]], reference=[[record(p99_us=0.4, max_us=30.0)]],
    )  # fmt: skip
    assert found["guests-vader-p99"].outcome == gate.FAILED
    assert found["guests-vader-max"].outcome == gate.REPORTED
    line = report.verdict_line(found["guests-vader-max"])
    assert "90 us, reference 30 us" in line and line.endswith("bound none: reported")


def hpcc_run(hpl_s: float, fft_s: float) -> list[programs.Record]:
    seconds = {part: 1.0 for part in apps.APPS["hpcc"].parts} | {"hpcc-hpl": hpl_s, "hpcc-fft": fft_s}
    return [{"test": part, "bytes": apps.SIZE, "seconds": one} for part, one in seconds.items()]


def test_each_part_of_a_program_is_judged(monkeypatch: pytest.MonkeyPatch, judge: gate.Gate) -> None:
    found = judged(
        monkeypatch, judge, "apps-hpcc",
        ours=[hpcc_run(1.014, 0.00102)], reference=[hpcc_run(1.0, 0.001)],
    )  # fmt: skip
    assert found["apps-hpcc-hpl"].outcome == gate.PASSED
    assert found["apps-hpcc-fft"].outcome == gate.FAILED
    line = report.verdict_line(found["apps-hpcc-fft"])
    assert "1.02 ms, reference 1 ms, ratio 1.02" in line and line.endswith("bound <= 1.015: FAIL")


def test_a_program_with_two_results_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch, judge: gate.Gate
) -> None:
    def run(check: object) -> list[list[programs.Record]]:
        return [[{"test": "lammps-melt", "bytes": apps.SIZE, "seconds": 1.0, "check": check}]]

    one = lammps.parse(LAMMPS_OUTPUT)
    other = lammps.parse(LAMMPS_OUTPUT.replace("5.6615925", "5.7"))
    names = "apps-lammps-melt"
    same = judged(monkeypatch, judge, names, ours=run(one), reference=run(one))[names]
    assert same.outcome == gate.PASSED
    differing = judged(monkeypatch, judge, names, ours=run(other), reference=run(one))[names]
    assert differing.outcome == gate.UNMEASURED and "different results" in str(differing.reason)
    written = json.dumps([sample.as_dict() for sample in judge.session.samples])
    assert "lammps-melt" in written and "check" not in written


def test_exit_code_never_takes_unmeasured_for_passed() -> None:
    passed = gate.Verdict(TARGETS[0], gate.PASSED, a_ratio(1.0))
    failed = gate.Verdict(TARGETS[0], gate.FAILED, a_ratio(9.0))
    missing = gate.Verdict(TARGETS[0], gate.UNMEASURED, reason="no guests")
    outcomes = [one.outcome for one in (passed, missing, failed)]
    assert gate.exit_code(outcomes[:1]) == 0
    assert gate.exit_code(outcomes[:2]) == 2
    assert gate.exit_code(outcomes) == 1
    assert "no guests" in report.verdict_line(missing)
    assert report.verdict_line(failed).endswith("FAIL")


def moved(test: str, p95_us: float, p99_us: float) -> dict[str, object]:
    return {"test": test, "p50_us": 1.0, "p95_us": p95_us, "p99_us": p99_us, "max_us": p99_us,
            "singles": 100}  # fmt: skip


def test_limits_of_moves_are_held() -> None:
    lines = [moved("answers-idle", 5e3, 101e3), moved("answers-computing", 5e3, 99e3)]
    lines += [moved("pause", 150e3, 300e3), moved("still", 60e3, 70e3)]
    found = {one.limit.key: one for one in limits.judge(moves.LIMITS, lambda: lines)}
    assert found["answers-idle"].outcome == gate.FAILED
    assert found["answers-computing"].outcome == gate.PASSED
    assert found["pause"].outcome == gate.PASSED and found["pause"].found_us == 90e3
    assert found["arrival"].outcome == gate.UNMEASURED
    assert limits.line(found["answers-idle"]).endswith("FAIL")
    assert "without 60 ms" in limits.line(found["pause"])


def test_a_waiting_rank_may_use_a_hundredth_of_a_processor() -> None:
    def held(p50_us: float) -> limits.LimitVerdict:
        waited = {"test": "wait", "p50_us": p50_us, "max_us": 2e5, "singles": 3}
        return limits.judge(waiting.LIMITS, lambda: [waited])[0]

    assert held(99e3).outcome == gate.PASSED and held(101e3).outcome == gate.FAILED
    assert limits.line(held(99e3)).endswith("99 ms (median 99 ms, worst 200 ms, 3 times), bound <= 100 ms: pass")

    def missing() -> list[programs.Record]:
        raise MissingError("mpirun is missing")

    (unmeasured,) = limits.judge(waiting.LIMITS, missing)
    assert unmeasured.outcome == gate.UNMEASURED and "mpirun is missing" in limits.line(unmeasured)


def crowd(ranks: int, **figures: float) -> dict[str, object]:
    return {"ranks": ranks, **{one.figure: 1.0 for one in many.BOUNDS}, **figures}


def test_bounds_of_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    few = crowd(2, progress_silent_us=0.0060, message_us=0.040)
    full = crowd(1024, progress_silent_us=0.0073, message_us=0.047, joined_bytes_per_rank=262144,
                 talking_bytes_per_rank=1048577)  # fmt: skip
    monkeypatch.setattr(many, "measure", lambda ranks, *_: few if ranks == 2 else full)
    monkeypatch.setattr(many, "check_room", lambda ranks: None)
    found = {one.bound.key: one for one in many.judge(many.BOUNDS, 3, lambda text: None)}
    assert found["many-silent"].outcome == gate.PASSED
    assert found["many-talking"].outcome == gate.FAILED
    assert found["many-idle"].outcome == gate.FAILED
    assert found["many-message"].outcome == gate.PASSED
    assert many.line(found["many-idle"]).endswith("1.22 times, bound <= 1.20: FAIL")

    def full_disk(ranks: int) -> None:
        raise MissingError("no room")

    monkeypatch.setattr(many, "check_room", full_disk)
    unmeasured = many.judge(many.BOUNDS, 3, lambda text: None)
    assert {one.outcome for one in unmeasured} == {gate.UNMEASURED}
    assert "no room" in many.line(unmeasured[0])


XL_LIST = """\
Name                                        ID   Mem VCPUs\tState\tTime(s)
Domain-0                                     0   544     2     r-----     132.2
g1                                           1   256     1     -b----      42.4
g2                                           2   256     1     -b----      22.0
"""


def test_processor_time_of_domains_is_read() -> None:
    assert xen.domain_seconds(XL_LIST) == {"Domain-0": 132.2, "g1": 42.4, "g2": 22.0}
    with pytest.raises(programs.BenchError, match="cannot be read"):
        xen.domain_seconds(XL_LIST.replace("42.4", "-"))
    with pytest.raises(programs.BenchError, match="does not name dom0"):
        xen.domain_seconds("")


def test_processor_time_is_what_a_long_run_took_more_than_a_short_and_an_idle_one() -> None:
    long = xen.Use({"g1": 9.0, "Domain-0": 5.0, "g2": 0.1}, 14.0)
    more = long.beyond(xen.Use({"g1": 1.0, "Domain-0": 4.0, "g2": 0.1}, 4.0))
    idle = xen.Use({"g1": 0.5, "Domain-0": 1.0, "g2": 0.5}, 5.0)
    assert more.less_idle(idle) == pytest.approx({"g1": 7.0, "Domain-0": 0.0, "g2": 0.0})
    assert more.less_idle(xen.Use({}, 0.0)) == more.seconds


def test_a_fast_stream_is_looked_at_for_more_rounds() -> None:
    assert [xen.rounds_for(rate) for rate in (0.01, 67.2, 1000.0, 50000.0)] == [2, 5, 50, 50]


def xen_sample(side: str, number: int, latency_us: float, stream: float) -> Sample:
    used = {"g1": 1.0 + number, "g2": 2.0, "Domain-0": 0.25}
    return Sample(side, number, NEAR, NEAR, [
        record(typical_us=latency_us), record("bandwidth", 1 << 20, MB_s=stream),
        {"test": "processor", "bytes": 1 << 20, "seconds_per_GB": used},
    ], "near")  # fmt: skip


def test_xen_is_judged_round_by_round_and_shown() -> None:
    session = session_with([NEAR])
    for number, (ours, theirs) in enumerate(((0.5, 20.0), (1.0, 10.0), (0.5, 10.0))):
        session.samples.append(xen_sample(xen.LIBIVC, number, ours, 900.0))
        session.samples.append(xen_sample(xen.VCHAN, number, theirs, 1000.0))
    results = xen.Results(session, ("g1", "g2", "Domain-0"))
    found = {one.target.key: one for one in results.verdicts()}
    assert found["xen-latency"].outcome == gate.PASSED
    latency = found["xen-latency"].ratio
    assert latency is not None
    assert (latency.median, latency.low, latency.high) == (0.05, 0.025, 0.1)
    assert found["xen-stream"].outcome == gate.FAILED
    assert found["xen-look-stream"].outcome == gate.UNMEASURED
    assert results.processor(xen.LIBIVC) == {"g1": 2.0, "g2": 2.0, "Domain-0": 0.25}
    tables = report.xen_tables(results)
    assert [len(table.rows) for table in tables] == [len(xen.SIZES), len(xen.SIZES), 2]
    assert list(tables[0].columns[1].cells) == ["500 ns", "-", "-", "-", "-"]
    assert list(tables[2].columns[4].cells) == ["4.25", "4.25"]
    assert json.dumps(results.as_dict())


def test_a_plot_of_xen_is_drawn(tmp_path: Path) -> None:
    session = session_with([NEAR])
    session.samples.append(xen_sample(xen.LIBIVC, 0, 0.5, 900.0))
    file = tmp_path / "xen.png"
    xen.draw(file, xen.Results(session, ("g1", "g2", "Domain-0")), "title")
    assert file.read_bytes().startswith(b"\x89PNG")


LAMMPS_OUTPUT = """\
Step Temp E_pair Press
       0            3   -6.7733681   -3.7033504
      50    1.6754119   -4.7947589    5.6615925
Loop time of 0.5 on 2 procs for 50 steps with 4000 atoms
Section |  min time  |  avg time  |  max time  |%varavg| %total
Pair    | 0.24247    | 0.25598    | 0.26949    |   2.7 | 72.35
Comm    | 0.030983   | 0.1        | 0.06731    |   8.2 | 13.89
Step Temp
 50 1.5
Loop time of 0.25 on 2 procs for 10 steps with 4000 atoms
Comm    | 0.030983   | 0.05       | 0.06731    |   8.2 | 13.89
"""


def test_lammps_output_is_summed_over_its_runs() -> None:
    found = lammps.parse(LAMMPS_OUTPUT)
    assert (found.loop_s, found.steps, found.atoms) == (0.75, 60, 4000)
    assert found.comm_s == pytest.approx(0.15)
    assert found.comm_percent == pytest.approx(20.0)
    assert len(found.thermo) == 3


def test_different_physics_is_seen() -> None:
    one = lammps.parse(LAMMPS_OUTPUT)
    other = lammps.parse(LAMMPS_OUTPUT.replace("5.6615925", "5.6615926"))
    shorter = lammps.parse(LAMMPS_OUTPUT.replace(" 50 1.5\n", ""))
    assert lammps.difference(one, one) == 0
    assert 0 < lammps.difference(one, other) < 1e-7
    assert lammps.difference(one, shorter) == float("inf")


def test_lammps_without_a_timing_is_a_fault() -> None:
    with pytest.raises(programs.BenchError, match="no timing"):
        lammps.parse("ERROR: unknown command")


def test_lammps_states_of_several_lines_are_read() -> None:
    found = lammps.parse(
        "---------------- Step        0 ----- CPU =      0.0000 (sec) ----------------\n"
        "TotEng   =     -5237.4580 KinEng   =      1134.9186 Temp     =       282.1005 \n"
        "PotEng   =     -6372.3766\n"
        "---------------- Step       50 ----- CPU =      1.9827 (sec) ----------------\n"
        "TotEng   =     -5247.5537 KinEng   =      1132.4000 Temp     =       281.4745 \n"
        "Loop time of 0.5 on 2 procs for 50 steps with 2004 atoms\n"
        "Total = 7\n"
    )
    assert found.thermo == (
        ("0", "-5237.4580", "1134.9186", "282.1005", "-6372.3766"),
        ("50", "-5247.5537", "1132.4000", "281.4745"),
    )


HPCC_SUMMARY = """\
Success=1
HPL_time=1.5
PTRANS_time=0.01
PTRANS_residual=0
MPIRandomAccess_time=3.5
MPIRandomAccess_ErrorsFraction=0
MPIFFT_N=262144
MPIFFT_Gflops=0.5
MPIFFT_maxErr=1.2e-15
"""


def test_hpcc_is_read_and_what_is_wrong_is_seen() -> None:
    read = apps.APPS["hpcc"].read
    seconds = {one["test"]: one["seconds"] for one in read(HPCC_SUMMARY)}
    assert set(seconds) == set(apps.APPS["hpcc"].parts)
    assert seconds["hpcc-fft"] == pytest.approx(5 * 262144 * 18 / 0.5e9)
    for right, wrong in (("Success=1", "Success=0"), ("residual=0", "residual=20"),
                         ("Fraction=0", "Fraction=0.5"), ("1.2e-15", "1.2")):  # fmt: skip
        with pytest.raises(programs.BenchError, match="a result is wrong"):
            read(HPCC_SUMMARY.replace(right, wrong))
    with pytest.raises(programs.BenchError, match="cannot be read"):
        read("Success=1")


def test_programs_that_come_to_different_results_are_seen() -> None:
    def check(*checks: object) -> None:
        session = Session(lambda: Floor(0.1, 100.0))
        for number, check in enumerate(checks):
            record = {"test": "kernel-halo", "bytes": 0, "seconds": 1.0, "share": 0.5, "check": check}
            session.take(apps.NATIVE, lambda record=record: [record], number)
        apps.check(apps.APPS["kernel-halo"], session.samples)

    check(1.5, 1.5)
    with pytest.raises(programs.BenchError, match="different results"):
        check(1.5, 1.6)
    other = lammps.parse(LAMMPS_OUTPUT.replace("5.6615925", "5.7"))
    with pytest.raises(programs.BenchError, match="different results"):
        check(lammps.parse(LAMMPS_OUTPUT), other)


def test_memory_use_is_summed_over_ranks() -> None:
    line = "ivc: rank {} on host g1, peer 1 on host g2: memory: sent 10 packets 400 bytes, received"
    found = memory.memory_use("noise\n" + line.format(0) + "\n" + line.format(1) + "\n")
    assert (found.packets, found.bytes, found.read_bytes) == (20, 800, 0)
    in_place = line.format(0) + " 4 packets 40 bytes, full 0, read in place 7 bytes; network: sent 0 bytes"
    found = memory.memory_use(in_place + "\n" + line.format(1) + "\n" + in_place)
    assert (found.packets, found.bytes, found.read_bytes) == (30, 1200, 14)
    assert memory.memory_use("nothing").bytes == 0


def test_records_are_found_among_other_lines() -> None:
    assert programs.records('warning\n{"test":"x"}\n{broken\n') == [{"test": "x"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size_text(0), "0 B"),
        (size_text(4096), "4 KiB"),
        (size_text(1 << 20), "1 MiB"),
        (time_text(0.0535), "54 ns"),
        (time_text(12.34), "12.3 us"),
        (time_text(2500), "2.5 ms"),
        (rate_text(20300), "20.3 GB/s"),
        (ratio_text(0.0123), "0.012"),
        (ratio_text(0.95), "0.95"),
        (ratio_text(1642), "1642"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert text == expected


def test_rows_merge_samples_of_one_state() -> None:
    samples = [
        Sample("a", 0, NEAR, NEAR, [record(typical_us=1.0, min_us=0.5, max_us=3.0)], "near"),
        Sample("a", 1, NEAR, NEAR, [record(typical_us=3.0, min_us=0.9, max_us=9.0)], "near"),
        Sample("a", 2, FAR, FAR, [record(typical_us=50.0, min_us=9.0, max_us=99.0)], "far"),
    ]
    (row,) = rows(samples)
    assert row.figures["typical_us"] == 2.0
    assert (row.figures["min_us"], row.figures["max_us"]) == (0.5, 9.0)
    assert (row.samples, row.dropped, row.state) == (2, 1, "near")


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    samples = [
        Sample("a", 0, NEAR, NEAR, [record(size=size) for size in (0, 8, 1024)], "near"),
        Sample("a", 0, NEAR, NEAR, [record("bandwidth", 8, MB_s=5.0)], "near"),
    ]
    file = tmp_path / "plot.png"
    plot.draw(file, rows(samples), ["latency", "bandwidth", "rate"], {"a": "A"}, "title")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_bad_processors_are_named() -> None:
    with pytest.raises(UsageError, match="not two processors"):
        processors.choose("0;1")
    with pytest.raises(UsageError, match="cannot be used"):
        processors.choose("0,0")
    with pytest.raises(UsageError, match="cannot be used"):
        processors.choose("0,99999")


def test_a_tree_of_processes_is_pinned() -> None:
    cpu = max(os.sched_getaffinity(0))
    child = subprocess.Popen(["sh", "-c", "sleep 30 & echo $!; wait"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        processors.pin_tree(child.pid, cpu)
        assert os.sched_getaffinity(child.pid) == os.sched_getaffinity(grandchild) == {cpu}
    finally:
        os.kill(grandchild, signal.SIGKILL)
        child.wait(10)


def test_an_unknown_path_is_named() -> None:
    with pytest.raises(UsageError, match="no path named 'warp'"):
        places.path_named("warp")


def test_the_region_goes_whatever_happens() -> None:
    with pytest.raises(RuntimeError), places.host_region(1 << 20) as region:
        assert region.stat().st_size == 1 << 20
        raise RuntimeError
    assert not region.exists()


def test_a_process_may_have_two_regions() -> None:
    with places.host_region(1 << 20) as one, places.host_region(2 << 20) as other:
        assert (one.stat().st_size, other.stat().st_size) == (1 << 20, 2 << 20)
    assert not one.exists() and not other.exists()


def test_a_program_that_hangs_is_ended() -> None:
    begin = time.monotonic()
    with pytest.raises(programs.BenchError, match="has not ended"):
        programs.run(["sh", "-c", "sleep 60 & wait"], timeout=0.3)
    assert time.monotonic() - begin < 8


def test_a_missing_program_is_named() -> None:
    with pytest.raises(MissingError, match="not built"):
        programs.find("bench_of_gold")


def test_pure_polling_is_never_measured_without_what_makes_it_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(paths, "build", lambda: tmp_path)
    with pytest.raises(MissingError, match="pure_polling.so is not built"):
        places.polling()
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "pure_polling.so").touch()
    path = places.polling()
    assert path.env == {"IVC_SPIN": "forever", "LD_PRELOAD": f"{tmp_path}/bench/pure_polling.so"}
    assert path.needs_region and path.key not in places.PATHS


class TwoSides(FakeLab):
    """Guests in which a program prints a result, or fails at the server's side."""

    def __init__(self, server_code: int = 0) -> None:
        super().__init__(2, [])
        self._server_code = server_code
        self.asked: dict[str, list[str]] = {}

    def run(self, guest: str, argv: Sequence[str], *_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        self.asked[guest] = list(argv)
        code, said = (self._server_code, "") if guest == "g1" else (0, '{"test":"latency"}')
        return subprocess.CompletedProcess(list(argv), code, said, "gone")


def test_libivc_runs_a_side_in_each_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", Path)
    lab, magics = TwoSides(), set()
    guests = places.Guests(lab, (0, 1))
    for _ in range(2):
        assert places.bench_libivc(guests, ["--sizes", "8"]) == [{"test": "latency"}]
        assert lab.asked["g1"][:3] == ["bench_libivc", "--role", "server"]
        assert lab.asked["g2"][:3] == ["bench_libivc", "--role", "client"]
        assert lab.asked["g1"][3:] == lab.asked["g2"][3:]
        magics.add(lab.asked["g1"][-1])
    assert len(magics) == 2
    with pytest.raises(programs.BenchError, match="the server in g1"):
        places.bench_libivc(places.Guests(TwoSides(server_code=1), (0, 1)), [])


# From here on with the programs themselves.


def built(name: str) -> Path:
    program = paths.build() / "bench" / name
    if not program.is_file():
        pytest.skip(f"{program} is not built")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    return program


def needs_mpirun() -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")


def test_the_floor_is_measured() -> None:
    built("bench_floor")
    found = floor.measure(processors.choose(), 0.01)
    assert 0.001 < found.latency_us < 1000
    assert 1 < found.copy_us < 1e6


def test_the_best_pipelined_copy_is_measured() -> None:
    program = built("bench_floor")
    words = [program, "--test", "pipeline", "--cpus", ",".join(map(str, processors.choose())), "--seconds", "0.01"]
    found = programs.checked(programs.run([*map(str, words), "--sizes", "4K,64K"], timeout=60), "bench_floor")
    assert [(r["test"], r["bytes"]) for r in found] == [("pipeline", 4096), ("pipeline", 65536)]
    for one in found:
        assert one["MB_s"] > 0 and one["ring"] % one["chunk"] == 0 and one["chunk"] <= one["bytes"]
    for sizes in ("2K", "8M", "48K", "4K,", "x"):
        bad = answer([*words, "--sizes", sizes])
        assert bad.returncode == 2 and f"--sizes {sizes}: not powers of two" in bad.stderr


def test_moves_are_measured() -> None:
    built("bench_moves")
    lines = moves.measure(moves.LIMITS, processors.choose(None), 2)
    assert {line["test"] for line in lines} == {t for one in moves.LIMITS for t in one.tests()}
    assert all(line["singles"] >= 2 and line["p99_us"] > 0 for line in lines)
    words = [str(programs.find("bench_moves")), "--test", "before,after", "--moves", "2", "--interval", "100"]
    found = {one["test"]: one for one in programs.checked(programs.run(words, timeout=60), "bench_moves")}
    assert all(found[test]["singles"] == 2 and found[test]["min_us"] > 0 for test in ("before", "after"))
    assert not list(Path("/dev/shm").glob("ivc-bench-*"))


def test_many_writes_table_file_and_plot(tmp_path: Path) -> None:
    built("bench_many")
    done = ivc("bench", "many", "--ranks", "5", "--rounds", "1", "--talkers", "3",
               "--output", str(tmp_path / "out"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    assert [row["ranks"] for row in data["results"]] == [2, 4, 5]
    assert all(row["talking_bytes_per_rank"] > row["joined_bytes_per_rank"] > 0
               for row in data["results"])  # fmt: skip
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path("/dev/shm").glob("ivc-bench-*"))


def test_wake_writes_table_file_and_plot(tmp_path: Path) -> None:
    built("bench_wake")
    done = ivc("bench", "wake", "--rounds", "1", "--seconds", "0.01", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    assert {row["setting"] for row in data["results"]} == set(wake.SETTINGS)
    assert len(data["results"]) == len(wake.SETTINGS) * len(wake.kinds())
    assert all(row["p50_us"] > 0 and row["receiver_cpu_us"] > 0 for row in data["results"])
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path("/dev/shm").glob("ivc-bench-*"))


def test_apps_writes_table_file_and_plot(tmp_path: Path) -> None:
    built("bench_kernels")
    done = ivc("bench", "apps", "--only", "kernel-halo,kernel-sparse", "--sides", "native,native-ivc",
               "--rounds", "1", "--output", str(tmp_path / "out"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    assert len(data["samples"]) == 4
    records = [record for sample in data["samples"] for record in sample["records"]]
    assert {record["test"] for record in records} == {"kernel-halo", "kernel-sparse"}
    assert all(record["seconds"] > 0 and 0 < record["share"] < 1 for record in records)
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path("/dev/shm").glob("ivc-bench-*"))


def test_vchan_explains_itself_and_refuses_nonsense() -> None:
    program = built("bench_vchan")
    helped = answer([program, "--help"])
    assert helped.returncode == 0 and helped.stdout.startswith("Usage: bench_vchan")
    for words in ([], ["--role", "host"], ["--wait", "sleep"], ["--ring", "2M"], ["--domain", "x"]):
        bad = answer([program, *words])
        assert bad.returncode == 2 and bad.stderr.startswith("Usage:")


@pytest.mark.parametrize("name", ["bench_floor", "bench_libivc", "bench_wake"])
def test_programs_explain_themselves_and_refuse_nonsense(name: str) -> None:
    program = built(name)
    helped = answer([program, "--help"])
    assert helped.returncode == 0 and helped.stdout.startswith(f"Usage: {name}")
    bad = answer([program, "--seconds", "-1"])
    assert bad.returncode == 2 and bad.stderr.startswith("Usage:")
    cpus = answer([program, "--cpus", "0,9999"])
    assert cpus.returncode == 1 and "processor 9999" in cpus.stderr


def test_mpi_figures_are_complete() -> None:
    built("bench_mpi")
    needs_mpirun()
    with places.host_region() as region:
        host = places.Host(processors.choose(), region)
        words = ["--sizes", "0,8,4K", "--seconds", "0.01"]
        found = places.bench_mpi(host, places.PATHS["vader"], words)
    tests = cli.TESTS
    assert [(r["test"], r["bytes"]) for r in found] == [(t, s) for t in tests for s in (0, 8, 4096)]
    for one in found:
        ordered = [one[f"{name}_us"] for name in ("min", "p50", "p90", "p95", "p99", "max")]
        assert ordered == sorted(ordered) and ordered[0] > 0 and one["mean_us"] > 0


def test_mpi_through_ivc_stays_in_its_region() -> None:
    built("bench_mpi")
    needs_mpirun()
    if not (paths.plugin() / "mca_btl_ivc.so").is_file():
        pytest.skip("the plug-in is not built")
    with places.host_region() as region:
        host = places.Host(processors.choose(), region)
        words = ["--test", "latency,bandwidth", "--sizes", "8,1M", "--seconds", "0.01"]
        assert len(places.bench_mpi(host, places.PATHS["ivc"], words)) == 4


@pytest.mark.parametrize("polling", [False, True])
def test_waiting_is_measured(polling: bool) -> None:
    built("bench_mpi")
    needs_mpirun()
    if not (paths.plugin() / "mca_btl_ivc.so").is_file():
        pytest.skip("the plug-in is not built")
    path = places.polling() if polling else places.PATHS["ivc"]
    with places.host_region() as region:
        host = places.Host(processors.choose(), region)
        words = ["--test", "wait", "--sizes", "8", "--wait", "0.05", "--seconds", "0.15"]
        (one,) = places.bench_mpi(host, path, words)
        if not polling:
            (whole,) = waiting.measure(host, 2, 0.05)
            assert (whole["test"], whole["singles"]) == ("wait", 2)
    assert (one["test"], one["singles"], one["wait_s"]) == ("wait", 3, 0.05)
    assert 0 < one["p50_us"] <= one["max_us"] < 10e6
    assert one["cpu_percent"] == pytest.approx(one["p50_us"] / 0.05e6 * 100, rel=1e-3)


def test_libivc_figures_are_complete() -> None:
    built("bench_libivc")
    with places.host_region() as region:
        host = places.Host(processors.choose(), region)
        found = places.bench_libivc(host, ["--sizes", "8,64K", "--seconds", "0.01"])
    assert [(r["test"], r["bytes"]) for r in found] == [
        ("latency", 8),
        ("bandwidth", 8),
        ("latency", 65536),
        ("bandwidth", 65536),
    ]


def test_run_writes_table_file_and_plot(tmp_path: Path) -> None:
    built("bench_mpi")
    needs_mpirun()
    words = ["bench", "run", "--paths", "vader,vader-nocma", "--tests", "latency", "--rounds", "1"]
    words += ["--sizes", "8", "--seconds", "0.01", "--output", str(tmp_path / "out")]
    done = ivc(*words)
    assert done.returncode == 0, done.stderr
    assert "8 B" in done.stdout
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["schema"] == "ivc-bench-1" and data["machine"]["cpu"]
    assert {row["side"] for row in data["results"]} == {"vader", "vader-nocma"}
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "rounds", "asked"),
    [
        ({}, 5, ["0-4M", "0.05"]),
        ({"quick": True}, 2, ["0,8,64,1K,8K,64K,1M,4M", "0.02"]),
        ({"quick": True, "rounds": 1, "seconds": 0.5, "sizes": "0-4M"}, 1, ["0-4M", "0.5"]),
    ],
)
def test_quick_changes_only_what_was_not_said(
    monkeypatch: pytest.MonkeyPatch, words: dict[str, Any], rounds: int, asked: list[str]
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(cli.processors, "choose", lambda cpus: (0, 1))
    monkeypatch.setattr(cli.places, "host_region", lambda: ExitStack())
    monkeypatch.setattr(cli, "_side", lambda place, key, words, np: seen.append(words))
    monkeypatch.setattr(Session, "alternate", lambda self, sides, rounds, tell: seen.append(rounds))
    monkeypatch.setattr(cli, "_write", lambda *_: None)
    said = {name: words.get(name) for name in ("sizes", "rounds", "seconds", "lab", "cpus")}
    cli.run(paths="tcp", tests="latency", np=2, output=Path("/tmp/x"), quick="quick" in words, **said)
    assert seen == [["--test", "latency", "--sizes", asked[0], "--seconds", asked[1]], rounds]


def measured(sides: dict[str, list[float]], sizes: Sequence[int] = (8,)) -> list[Sample]:
    """Samples of near rounds; each size takes as many times as long as the first one."""
    return [
        Sample(side, number, NEAR, NEAR, [record(size=size, typical_us=value * (1 + at)) for at, size in enumerate(sizes)], "near")
        for side, values in sides.items()
        for number, value in enumerate(values)
    ]  # fmt: skip


def rounds_of(level: float, scatter: float = 0.01) -> list[float]:
    """Fifteen rounds around a level, high and low ones mixed."""
    order = (7, 2, 12, 9, 4, 14, 0, 6, 11, 1, 8, 13, 5, 3, 10)
    return [level * (1 + scatter * (one - 7) / 7) for one in order]


def test_sides_of_one_table_are_one_family() -> None:
    samples = measured({"a": [1.0] * 15, "b": rounds_of(1.006), "c": rounds_of(1.5)}, (8, 64, 512))
    alone = ratio(samples, "b", "a", "latency", 8, "typical_us")
    found = comparisons(samples, ["latency"], ["a", "b", "c"], "a")
    assert alone is not None and list(found) == [("latency", side, size) for size in (8, 64, 512) for side in "bc"]
    # Alone it would be said to be slower; beside five others not.
    together = found["latency", "b", 8].comparison
    assert alone.comparison.verdict("b", "a") == "a faster" and together.verdict("b", "a") == "no difference"
    assert found["latency", "c", 8].comparison.verdict("c", "a") == "a faster"
    assert json.loads(json.dumps(dicts(found, "a")))[0]["comparison"]["outcome"] == "no difference"


def test_more_messages_are_the_better_side() -> None:
    samples = [
        Sample(side, number, NEAR, NEAR, [record("rate", typical_us=1.0, messages_s=value)], "near")
        for side, level in (("a", 1.0), ("b", 2.0))
        for number, value in enumerate(rounds_of(level))
    ]
    assert comparisons(samples, ["rate"], ["a", "b"], "a")["rate", "b", 8].comparison.verdict("b", "a") == "b faster"


def test_a_bound_within_the_interval_is_within_the_noise(monkeypatch: pytest.MonkeyPatch, judge: gate.Gate) -> None:
    def line(level: float) -> str:
        ours = [[record(typical_us=value)] for value in rounds_of(level, 0.05)]
        found = judged(monkeypatch, judge, "wait-own", ours=ours, reference=[[record()]] * 15)
        return report.verdict_line(found["wait-own"])

    assert line(1.04).endswith("bound <= 1.05 (within the noise): pass")
    assert line(1.06).endswith("bound <= 1.05 (within the noise): FAIL")
    assert line(0.9).endswith("bound <= 1.05: pass") and ", 95% 0.88 .. 0.93, bound" in line(0.9)


def test_a_file_is_compared_again(tmp_path: Path) -> None:
    samples = measured({"vader": rounds_of(1.0), "ivc": [0.9 * value for value in rounds_of(1.0)]})
    file = tmp_path / "out.json"
    file.write_text(json.dumps({"schema": "ivc-bench-1", "samples": [one.as_dict() for one in samples]}))
    done = subprocess.run(
        [sys.executable, "-m", "ivc_host", "bench", "compare", str(file)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "latency: ivc / vader" in done.stdout and "0.90 .. 0.90" in done.stdout and "ivc faster" in done.stdout
    assert "no difference in 2 of 2 rows" in " ".join(done.stdout.split())
    for data, said in (({"schema": "ivc-wake-1"}, "no samples that can be compared"), ([1], "no samples that can"),
                       ({"schema": "ivc-bench-1", "samples": [{}]}, "not as ivc bench writes it: KeyError")):  # fmt: skip
        file.write_text(json.dumps(data))
        bad = ivc("bench", "compare", str(file))
        assert bad.returncode == 2 and said in bad.stderr and len(bad.stderr.splitlines()) == 1


def test_parts_of_applications_are_one_table(tmp_path: Path) -> None:
    samples = [
        Sample(side, number, NEAR, NEAR, [{"test": part, "bytes": apps.SIZE, "seconds": value} for part in ("x", "y")], "near")
        for side, level in (("native", 1.0), ("guests-ivc", 1.1))
        for number, value in enumerate(rounds_of(level))
    ]  # fmt: skip
    file = tmp_path / "apps.json"
    file.write_text(json.dumps({"schema": "ivc-apps-1", "samples": [one.as_dict() for one in samples]}))
    found = results.read(file)
    assert (found.sides, found.tables) == (["native", "guests-ivc"], [["x", "y"]])
    compared = comparisons(found.samples, found.tables[0], found.sides, "native")
    table = report.comparison_table(found.tables[0], "guests-ivc", "native", compared)
    assert [list(table.columns[at].cells) for at in (0, 1, 7)] == [["x", "y"], ["1.10"] * 2, ["native faster"] * 2]


def test_a_side_is_looked_at_in_one_state() -> None:
    samples = measured({"a": [1.0, 2.0, 3.0]})
    samples[1].state = "far"
    assert series(samples, ["latency"], ["a"]) == {("latency", "a", 8): [1.0, 3.0]}


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    built("bench_mpi")
    needs_mpirun()
    words = ["bench", "run", "--paths", "vader", "--output", str(tmp_path / "out")]
    child = subprocess.Popen(
        [sys.executable, "-m", "ivc_host", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    region = Path(f"/dev/shm/ivc-bench-{child.pid}-0")
    end = time.monotonic() + 20
    while not region.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert region.exists()
    time.sleep(1)
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in said
    assert not region.exists()
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--paths", "warp"], "no path named 'warp'"),
        (["run", "--tests", "luck"], "no test named 'luck'"),
        (["run", "--output", "/nonexistent/x"], "no folder /nonexistent"),
        (["run", "--output", "/proc/x"], "cannot write /proc/x.json"),
        (["run", "--output", "/"], "--output /"),
        (["apps", "--output", "/proc/x"], "cannot write /proc/x.json"),
        (["run", "--lab", "nosuchlab"], "no lab named nosuchlab"),
        (["compare", "/nonexistent/x.json"], "cannot read /nonexistent/x.json"),
        (["compare", __file__], "is no JSON"),
        (["run", "--sizes", "foo"], "sizes 'foo'; write them like 8,64K or 0-4M"),
        (["run", "--sizes", "8,"], "sizes '8,'"),
        (["run", "--sizes", "4M-8"], "sizes '4M-8'"),
        (["gate", "--only", "moon"], "no target named 'moon'"),
        (["many", "--output", "/nonexistent/x"], "no folder /nonexistent"),
        (["wake", "--output", "/nonexistent/x"], "no folder /nonexistent"),
        (["xen", "--output", "/nonexistent/x"], "no folder /nonexistent"),
        (["xen", "--hypervisor", "uml"], "guests of uml"),
        (["xen", "--lab", "nosuchlab"], "no lab named nosuchlab"),
        (["apps", "--only", "tetris"], "no program named 'tetris'"),
        (["apps", "--guests", "3"], "3 guests"),
        (["apps", "--sides", "guests-ivc"], "native first"),
    ],
)
def test_nonsense_gets_one_line(words: list[str], said: str) -> None:
    done = ivc("bench", *words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert len(done.stderr) < 500


def test_demo_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    for words, said in (
        (["--ranks", "3"], "3 ranks"),
        (["--hypervisor", "xen"], "choose uml or qemu"),
        (["--output", "/nonexistent/x.png"], "no folder"),
        (["--output", "/proc/x.png"], "cannot write /proc/x.png"),
        (["--output", str(tmp_path / "x.png"), "--json", str(tmp_path)], "it is a folder"),
        (["migrate", "--output", "/proc/x.png"], "cannot write /proc/x.png"),
        (["--lammps-input", str(tmp_path / "in.none")], "in.none"),
    ):
        done = ivc("demo", *words)
        assert done.returncode in (1, 2)
        assert said in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_tried_and_not_touched(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("kept")
    (tmp_path / "link").symlink_to(new)
    outputs.check(None, old, new, tmp_path / "link", Path("/dev/null"))
    assert old.read_text() == "kept" and not new.exists() and (tmp_path / "link").is_symlink()
