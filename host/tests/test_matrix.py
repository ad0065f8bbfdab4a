"""The matrix's own rules: what is run, how notes are read, what counts as passed. No guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from ivc_host.errors import UsageError
from ivc_host.matrix import checks, mpis, places, plan, results, table
from ivc_host.matrix.checks import Notes
from ivc_host.matrix.results import FAIL, NOT_RUN, PASS, Cell, Outcome


def _plan(quick: bool = False) -> plan.Plan:
    return plan.make(mpis.named([]), places.named([]), checks.PROGRAMS, quick=quick)


def test_the_full_matrix_has_every_mpi_in_every_place() -> None:
    cells = {task.key for task in _plan().tasks if task.way == mpis.IVC}
    assert cells == {(m.key, p.key, "ivc") for m in mpis.MPIS for p in places.PLACES}


def test_one_run_without_us_serves_every_way_of_open_mpi() -> None:
    names = [task.name for task in _plan().tasks if task.way == mpis.OWN]
    assert names.count("openmpi-4.1") == 1
    assert len(names) == len(set(names)) == 6


def test_quick_is_one_version_of_each_and_every_place() -> None:
    tasks = _plan(quick=True).tasks
    assert {t.mpi.package for t in tasks} == {m.package for m in mpis.MPIS}
    assert {t.place.key for t in tasks} == {"one", "two", "mix"}
    assert not any(name == "suite" for t in tasks for name, _ in t.jobs)


def test_an_exact_name_does_not_mean_its_longer_relatives() -> None:
    assert [mpi.key for mpi in mpis.named(["mpich"])] == ["mpich"]
    assert len(mpis.named(["openmpi-4.1"])) == 3
    with pytest.raises(UsageError, match="no MPI named"):
        mpis.named(["lam"])


def _stats(pairs: list[tuple[int, int]]) -> str:
    return "\n".join(
        f"ivc: rank {a} on host x, peer {b} on host y: memory: sent 3 packets 99 bytes, received"
        for a, b in pairs
    )


@pytest.mark.parametrize(
    ("pairs", "hosts", "good"),
    [
        ([(0, 1), (1, 0)], (1, 1), True),
        ([(0, 1)], (1, 1), False),  # one direction took another path
        ([], (1, 1), False),  # nobody said anything
        ([], (1, 2), True),
        ([(0, 1), (1, 0)], (1, 2), False),  # no memory reaches another host
    ],
)
def test_paths(pairs: list[tuple[int, int]], hosts: tuple[int, int], good: bool) -> None:
    host_of = dict(zip(("g1", "g2"), hosts, strict=True))
    assert (checks.wrong_paths(_stats(pairs), 2, ["g1", "g2"], host_of) == "") is good


def test_pairs_inside_a_guest_are_not_ours_to_judge() -> None:
    pairs = [(a, b) for a in range(4) for b in range(4) if a % 2 != b % 2]
    assert checks.wrong_paths(_stats(pairs), 4, ["g1", "g2"], {"g1": 1, "g2": 1}) == ""


def test_notes_tell_where_each_rank_was() -> None:
    notes = Notes.parse(
        "rank-0:start a.T.one\nrank-0:start a.T.two\nrank-1:start a.T.one\n"
        "rank-1:fail a.T.one AssertionError: 1 != 2\nnoise\nrank-1:start a.T.two\n"
        "rank-1:start a.T.three\n"
    )
    assert not notes.complete(2)
    assert notes.furthest()[-1] == "a.T.three"
    assert notes.stopped_at() == {"a.T.two", "a.T.three"}
    assert notes.failures == {"a.T.one": "rank 1: AssertionError: 1 != 2"}
    assert Notes.parse("rank-0:start x\nrank-0:end 1\nrank-1:end 1").complete(2)


def _suite(*failures: str, text: str = "") -> Outcome:
    return Outcome("suite", 2, FAIL, text, failures=dict.fromkeys(failures, "why"), tests=9)


def test_what_fails_without_us_is_excused_and_nothing_else() -> None:
    ours = _suite("t.A", *checks.KNOWN)
    checks.judge_suite(ours, None)
    assert ours.status == FAIL
    checks.judge_suite(ours, _suite("t.A"))
    assert ours.status == PASS
    unfinished = _suite(text="not finished")
    checks.judge_suite(unfinished, _suite("t.A"))
    assert unfinished.status == FAIL


def test_latency_of_mpich_4_0_has_a_tab_in_its_line() -> None:
    line = '[0] {"program":"bench_mpi","bytes":8,"p50_us":1.5,"mpi":"MPICH\tVersion"}'
    assert checks.parse_latency(line) == {"8": 1.5}


def test_not_run_is_never_passed(tmp_path: Path) -> None:
    cells = [
        Cell("mpich", "5.0", "one", "ivc", [Outcome("integrity", 2, NOT_RUN, "not built")]),
        Cell("mpich", "5.0", "one", "own", [_suite("t.A")]),
    ]
    assert [outcome.text for _, outcome in results.failed(cells)] == ["not built"]
    results.save(tmp_path / "m.json", cells)
    assert results.load(tmp_path / "m.json") == cells
    page = table.markdown(cells, "./run matrix", "today")
    assert "not built" in page and "t.A" in page


def test_a_file_that_is_no_matrix(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no matrix"):
        results.load(tmp_path / "m.json")
