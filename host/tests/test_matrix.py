"""The matrix's own rules: what is run, how notes are read, what counts as passed. No guests."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ivc_host.errors import IvcError, UsageError
from ivc_host.matrix import checks, here, known, mpis, places, plan, results, table, traffic
from ivc_host.matrix.checks import Notes
from ivc_host.matrix.results import FAIL, NOT_RUN, PASS, Cell, Outcome
from ivc_host.matrix.wheels import Environment
from ivc_host.testing import matrix as part
from ivc_host.testing.part import Run


def _plan(quick: bool = False) -> plan.Plan:
    return plan.make(mpis.named([]), places.named([]), checks.PROGRAMS, quick=quick)


def test_the_full_matrix_has_every_mpi_in_every_place() -> None:
    cells = {task.key for task in _plan().tasks if task.way == mpis.IVC}
    guests = [place.key for place in places.PLACES if not place.here]
    assert guests == ["one", "two", "mix"]
    here = {(m.key, "here", "ivc") for m in mpis.MPIS if m.mpich_suite}
    assert {mpi for mpi, *_ in here} == {"mpich-4.0", "openmpi-4.1-plugin", "openmpi-5.0"}
    assert cells == here | {(m.key, place, "ivc") for m in mpis.MPIS for place in guests}


def test_there_is_one_run_without_us_for_each() -> None:
    own = [task for task in _plan().tasks if task.way == mpis.OWN]
    assert len({task.name for task in own}) == 8
    assert {task.place.key for task in own} == {"here"}
    jobs = [(t.program, t.ranks) for t in own if t.name == "openmpi-4.1"]
    assert jobs == [("suite", 2), ("suite", 4), ("mpich-suite", results.EACH)]
    through_us = plan.make(mpis.named([]), places.named(["here"]), checks.PROGRAMS, own=False)
    assert {task.way for task in through_us.tasks} == {mpis.IVC}


def test_quick_is_one_version_of_each_and_every_place() -> None:
    tasks = _plan(quick=True).tasks
    ours = [t for t in tasks if t.program == "mpich-suite"]
    assert [t.mpi.key for t in ours] == ["mpich-4.0"]
    assert {(t.place.key, t.way) for t in ours} == {("here", mpis.IVC)}
    tasks = [t for t in tasks if t not in ours]
    assert {t.mpi.package for t in tasks} == {m.package for m in mpis.MPIS}
    assert len({t.mpi.requirement for t in tasks}) == 4
    assert {t.place.key for t in tasks} == {"one", "two", "mix"}
    assert {t.program for t in tasks} == {"integrity"}
    quick = {m.key for m in mpis.MPIS if m.quick}
    for place in ("one", "two", "mix"):
        assert {t.mpi.key for t in tasks if t.place.key == place} == quick


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ranks", "3"], "3 ranks; choose 2 or 4"),
        (["--place", "mix", "--ranks", "2"], "no cell fits"),
        (["--only", "impi", "--place", "here", "--program", "latency", "--no-own"], "no cell fits"),
        (["--only", "impi", "--place", "here", "--quick", "--list"], "no cell fits"),
    ],
)
def test_nothing_to_run_is_no_success(words: list[str], said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ivc_host", "matrix", *words], capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("mpi", mpis.MPIS, ids=lambda mpi: mpi.key)
def test_without_us_no_ssh_and_nothing_of_ours(mpi: mpis.Mpi) -> None:
    installed = Environment(Path("/mpi"), "1.0")
    words, env = mpi.command(mpis.OWN, installed, ["host-0", "host-1"], 4, True)
    assert any(word.endswith("matrix/as-host.sh") for word in words)
    assert not any("ivc" in value for key, value in env.items() if key.startswith("FI_"))
    assert not any("vader" in word or "ivc," in word for word in words)


@pytest.mark.parametrize("mpi", mpis.MPIS, ids=lambda mpi: mpi.key)
def test_what_is_ours_is_the_same_here_but_for_ssh(mpi: mpis.Mpi) -> None:
    installed = Environment(Path("/mpi"), "1.0")
    hosts = ["host-0", "host-1"]
    guests, _ = mpi.command(mpis.IVC, installed, hosts, 4, False)
    words, env = mpi.command(mpis.IVC, installed, hosts, 4, True)
    assert any(word.endswith("matrix/as-host.sh") for word in words)
    assert not any(word.endswith("matrix/as-host.sh") for word in guests)
    assert "ivc" in " ".join([*words, *env.values()])


def test_a_quick_matrix_skips_an_mpi_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(mpi: mpis.Mpi) -> Environment:
        raise IvcError(f"no {mpi.label}")

    monkeypatch.setattr(mpis.Mpi, "built", lambda mpi: Path("/"))
    monkeypatch.setattr(mpis.Mpi, "environment", fail)
    run = Run(io.StringIO())
    assert part._at_hand(run) == []
    assert len(run.tally.skips) == len([m for m in mpis.MPIS if m.quick or m.mpich_suite])
    assert "no Intel MPI" in "".join(run.tally.skips)


@pytest.fixture
def here_ground() -> Iterator[here.Here]:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode:
        pytest.skip("namespaces need root")
    with here.up(2) as ground:
        yield ground


def test_a_job_here_leaves_nothing_behind(here_ground: here.Here) -> None:
    said = f"{here_ground.notes}-pids"
    line = f"echo $(hostname) >{said}; setsid sleep 1000 & touch /dev/shm/ivc-left; sleep 1000"
    job = here_ground.run(["sh", "-c", line], {}, 2)
    assert job.code is None and job.seconds < 30
    assert Path(said).exists() and not Path("/dev/shm/ivc-left").exists()
    folder = str(Path(said).parent)
    links = (Path(f"/proc/{pid}/cwd") for pid in os.listdir("/proc") if pid.isdecimal())
    assert not [link for link in links if _points_to(link, folder)]


def _points_to(link: Path, folder: str) -> bool:
    try:
        return os.readlink(link) == folder
    except OSError:
        return False  # it ended meanwhile


def test_a_job_here_is_on_hosts_by_name(here_ground: here.Here) -> None:
    words = [mpis.AS_HOST, "-x", "host-1", "hostname;", "hostname", "-i;", "echo", "$WHAT"]
    job = here_ground.run(words, {"WHAT": "ever"}, 60)
    assert (job.code, job.said.split()) == (0, ["host-1", "127.0.1.2", "ever"])
    assert here_ground.run(["sh", "-c", "exit 7"], {}, 60).code == 7
    assert here_ground.everywhere("echo me") == ["me\n"]
    size = ["sh", "-c", 'stat -c %s "$IVC_REGION"']
    assert here_ground.run(size, {}, 60).said == f"{256 << 20}\n"


def test_an_exact_name_does_not_mean_its_longer_relatives() -> None:
    assert [mpi.key for mpi in mpis.named(["mpich"])] == ["mpich"]
    assert len(mpis.named(["openmpi-4.1"])) == 3
    with pytest.raises(UsageError, match="no MPI named"):
        mpis.named(["lam"])


def _plugin(a: int, b: int) -> str:
    return f"ivc: rank {a} on host x, peer {b} on host y: memory: sent 3 packets 99 bytes, received"


def _provider(a: int, b: int, memory: int = 99, network: int = 0) -> str:
    return (
        f"ivc: rank {a} on host x, endpoint {a + 160:016x}, peer endpoint {b + 160:016x}: memory: "
        f"sent 3 packets {memory} bytes, received 3 packets 99 bytes, full 0; "
        f"network: sent {network} bytes, received 0 bytes"
    )


def _wrong(lines: list[str], hosts: tuple[int, int], ranks: int = 2) -> str:
    host_of = dict(zip(("g1", "g2"), hosts, strict=True))
    where = [f"g{1 + rank % 2}" for rank in range(ranks)]
    return traffic.wrong_paths(traffic.parse("\n".join(lines)), where, host_of)


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
def test_paths_of_the_plugin(
    pairs: list[tuple[int, int]], hosts: tuple[int, int], good: bool
) -> None:
    assert (_wrong([_plugin(a, b) for a, b in pairs], hosts) == "") is good


def test_paths_of_the_provider() -> None:
    memory = [_provider(0, 1), _provider(1, 0), _provider(0, 0)]
    assert _wrong(memory, (1, 1)) == ""
    assert "nothing" in _wrong(memory[:1], (1, 1))
    assert "network" in _wrong([*memory, _provider(0, 1, 0, 7)], (1, 1))
    network = [_provider(0, 1, 0, 7), _provider(1, 0, 0, 7)]
    assert _wrong(network, (1, 2)) == ""
    assert "another host" in _wrong(memory, (1, 2))
    assert "our network" in _wrong([_provider(0, 1, 0, 0), network[1]], (1, 2))


def test_two_endpoints_of_a_rank_count_together() -> None:
    silent, busy = _provider(0, 1, 0), _provider(0, 1)
    assert _wrong([silent, busy, _provider(1, 0)], (1, 1)) == ""


def test_pairs_inside_a_guest_are_not_ours_to_judge() -> None:
    lines = [_plugin(a, b) for a in range(4) for b in range(4) if a % 2 != b % 2]
    assert _wrong(lines, (1, 1), ranks=4) == ""


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


FORTRAN = "test_mpiabi.TestMPIABI.testGetFortranInfo"


def test_what_fails_without_us_is_excused_and_nothing_else() -> None:
    ours = _suite("t.A", FORTRAN)
    checks.judge_suite(ours, "mpich", None)
    assert ours.status == FAIL
    checks.judge_suite(ours, "mpich", _suite("t.A"))
    assert ours.status == PASS
    unfinished = _suite(text="not finished")
    checks.judge_suite(unfinished, "mpich", _suite("t.A"))
    assert unfinished.status == FAIL


def test_a_result_without_us_that_comes_later_counts() -> None:
    ours = Cell("openmpi-4.1-plugin", "4.1.4", "two", "ivc", [_suite("t.A")])
    plan.judge([ours])
    assert ours.outcomes[0].status == FAIL
    plan.judge([ours, Cell("openmpi-4.1", "4.1.4", "here", "own", [_suite("t.A")])])
    assert ours.outcomes[0].status == PASS


def test_what_is_known_of_one_mpi_excuses_no_other() -> None:
    size = "test_win.TestWinCreateDynamicWorld.testMemory"
    assert known.unexplained("impi", dict.fromkeys([size, FORTRAN, "t.A"], "")) == {"t.A"}
    assert known.unexplained("mpich", {size: ""}) == {size}
    spawn = "test_spawn.TestSpawnSingleSelf.testCommSpawn"
    memory = "the job ended in it: exit 15: unable to allocate shared memory"
    assert known.unexplained("mpich-4.0", {spawn: memory}) == set()
    assert known.unexplained("mpich-4.0", {spawn: "False is not true"}) == {spawn}


def test_a_test_is_left_out_for_those_whom_it_is_about() -> None:
    race = "test_comm_topo.*World*.testDistgraphcomm"
    assert race in known.left_out("mpich-4.0") and race in known.left_out("impi")
    assert race not in known.left_out("openmpi-5.0")
    assert "test_io.*World*" in known.left_out("openmpi-5.0")
    page = table.markdown([], [], "./run matrix", "today")
    assert all(one.why in page and one.pattern in page for one in known.LEFT_OUT + known.FAILING)


def test_latency_of_mpich_4_0_has_a_tab_in_its_line() -> None:
    line = '[0] {"program":"bench_mpi","bytes":8,"p50_us":1.5,"mpi":"MPICH\tVersion"}'
    assert checks.parse_latency(line) == {"8": 1.5}


def test_not_run_is_never_passed(tmp_path: Path) -> None:
    cells = [
        Cell("mpich", "5.0", "one", "ivc", [Outcome("integrity", 2, NOT_RUN, "not built")]),
        Cell("mpich", "5.0", "here", "own", [_suite("t.A")]),
    ]
    assert [outcome.text for _, outcome in results.failed(cells)] == ["not built"]
    cells[1].outcomes[0].day, cells[1].outcomes[0].tree = "2026-02-01", "abc"
    results.save(tmp_path / "m.json", cells)
    assert results.load(tmp_path / "m.json") == cells
    page = table.markdown(cells, _plan().tasks, "./run matrix", "today")
    assert "Made 2026-02-01 (ivc abc) on today" in page.replace("\n", " ")
    assert "not built" in page and "t.A" in page
    assert "- MPICH, newest, one: integrity on 4 ranks, latency on 2 ranks, suite on 2" in page


def test_a_file_that_is_no_matrix(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{}")
    with pytest.raises(UsageError, match="holds no matrix"):
        results.load(tmp_path / "m.json")
