"""MPICH's own tests: how its lists are read, and what counts as passed. No MPI is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ivc_host.matrix import checks, mpich_suite, mpis
from ivc_host.matrix.ground import Job
from ivc_host.matrix.mpich_suite import Test
from ivc_host.matrix.results import EACH, FAIL, PASS, Outcome
from ivc_host.matrix.wheels import Environment

Test.__test__ = False  # type: ignore[attr-defined]  # a line of a list, no test of ours

_LIST = """\
# a comment 2
pingping 2
allred 7 arg=-count=10 arg=-x env=MPIR_CVAR_A=b  # more
slow 4 timeLimit=300 xfail=ticket1
big 1 mem=6.5
fatal 1 resultTest=TestErrFatal
own 2 strict=false
folder
"""


def _tests() -> dict[str, Test]:
    return {test.program: test for test in mpich_suite.parse("coll", _LIST)}


def test_a_list_is_read() -> None:
    found = _tests()
    assert list(found) == ["pingping", "allred", "slow", "big", "fatal", "own"]
    assert found["allred"].name == "coll/allred 7 -count=10 -x MPIR_CVAR_A=b"
    assert (found["slow"].limit, found["slow"].xfail) == (300, "ticket1")
    assert found["fatal"].result == "TestErrFatal" and not found["own"].standard


def test_folders_are_those_of_the_lists(tmp_path: Path) -> None:
    for name, text in (("", "coll\n#io\nerrors\nprogram 2\n"), ("errors", "comm\n"), ("coll", _LIST)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "testlist").write_text(text)
    (tmp_path / "errors" / "comm").mkdir()
    assert mpich_suite.folders(tmp_path) == ["coll", "errors", "errors/comm"]
    assert len(mpich_suite.tests(tmp_path, "coll")) == 6
    assert mpich_suite.chosen(tmp_path, ("coll",)) == ["coll"]


@pytest.mark.parametrize(
    ("result", "code", "said", "fault"),
    [
        ("", 0, " No Errors\n", ""),
        ("", 0, " No errors\nTest Passed\n", ""),
        ("", 0, "", "did not say No Errors"),
        ("", 0, " No Errors\nivc: a warning\n", "a warning"),
        ("", 1, " No Errors\n", "exit 1"),
        ("", 1, " Found 1 errors\n", "Found 1 errors"),
        ("", None, " No Errors\n", "took longer"),
        ("TestErrFatal", 1, "anything\n", ""),
        ("TestErrFatal", 0, " No Errors\n", "status 0"),
        ("TestStatusNoErrors", 1, " No Errors\n", ""),
        ("TestStatusNoErrors", 1, "aborted\n", "did not say"),
    ],
)
def test_what_passes(result: str, code: int | None, said: str, fault: str) -> None:
    found = mpich_suite.fault(Test("a", "b", 1, result=result), Job(code, said, 0.1))
    assert fault in found and bool(found) == bool(fault)


def test_what_is_not_run_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "coll").mkdir()
    found = _tests()
    for name in ("big", "own", "allred"):
        (tmp_path / "coll" / name).touch()
    mpich, openmpi = (mpis.named([key])[0] for key in ("mpich-4.0", "openmpi-5.0"))
    assert "6.5 GB" in mpich_suite.why_not_run(found["big"], tmp_path, mpich)
    assert mpich_suite.why_not_run(found["own"], tmp_path, mpich) == ""
    assert "extension" in mpich_suite.why_not_run(found["own"], tmp_path, openmpi)
    assert "build" in mpich_suite.why_not_run(found["pingping"], tmp_path, openmpi)
    assert mpich_suite.why_not_run(found["allred"], tmp_path, openmpi) == ""


class _Ground:
    name, here, notes = "here", True, "/tmp"
    guests, host_of = ["host-0", "host-1"], {"host-0": 0, "host-1": 0}

    def __init__(self, said: str) -> None:
        self.said = said
        self.asked: list[tuple[list[str], dict[str, str]]] = []

    def run(self, argv: list[str], env: dict[str, str], timeout: float) -> Job:
        self.asked.append((argv, env))
        return Job(0, self.said, 0.1)


def _outcome(tmp_path: Path, program: str, said: str, quick: bool = False) -> tuple[Outcome, _Ground]:
    (tmp_path / "coll").mkdir(exist_ok=True)
    (tmp_path / "coll" / program).touch()
    ground, outcome = _Ground(said), Outcome("mpich-suite", EACH, PASS)
    mpi = mpis.named(["mpich-4.0"])[0]
    environment = Environment(Path("/mpi"), "4.0.3")
    subject = checks.Subject(mpi, environment, mpis.IVC, ground, checks.Limits(), quick)  # type: ignore[arg-type]
    checks._mpich_test(subject, tmp_path, _tests()[program], outcome)
    checks.judge_suite(outcome, mpi.key, None)
    return outcome, ground


def test_a_test_runs_in_its_folder_with_its_words(tmp_path: Path) -> None:
    outcome, ground = _outcome(tmp_path, "allred", " No Errors\n")
    ((argv, env),) = ground.asked
    assert argv[:3] == ["env", "-C", str(tmp_path / "coll")]
    assert argv[-5:] == ["-n", "7", "./allred", "-count=10", "-x"]
    assert (env["MPIR_CVAR_A"], env["IVC_STATS"]) == ("b", "0")
    assert (outcome.status, outcome.tests, outcome.excused) == (PASS, 1, {})


def test_what_fails_fails_the_cell_unless_the_suite_expects_it(tmp_path: Path) -> None:
    failed, _ = _outcome(tmp_path, "pingping", "Found 3 errors\n")
    assert (failed.status, list(failed.failures)) == (FAIL, ["coll/pingping 2"])
    expected, _ = _outcome(tmp_path, "slow", "Found 3 errors\n")
    assert expected.status == PASS and "ticket1" in expected.excused["coll/slow 4"]
    quick, ground = _outcome(tmp_path, "allred", "", quick=True)
    assert not ground.asked and "quick" in quick.excused["coll/allred 7 -count=10 -x MPIR_CVAR_A=b"]
