"""fabtests: lists are read, outcomes are judged, and no program outlives its test."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from ivc_host import stats
from ivc_host.bench.targets import Target
from ivc_host.errors import MissingError, UsageError
from ivc_host.fabtests import check, reasons, sets, source
from ivc_host.fabtests.runner import FAILED, NOT_RUN, PASSED, Result, Runner
from ivc_host.fabtests.sets import Test as Line  # pytest takes a name with Test for a test

SCRIPT = """
neg_unit_tests=(
\t"fi_rdm g00n13s"
)
functional_tests=(
\t"fi_rdm"
\t"fi_cq_data -e msg"
)
short_tests=(
\t"fi_rdm_pingpong -I 5"
)
unit_tests=(
\t"fi_av_test -g GOOD_ADDR -n 1"
)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "runfabtests.sh"
    path.write_text(SCRIPT)
    return path


def test_sets_are_read_in_order(script: Path) -> None:
    tests = sets.read(script)
    assert [test.line for test in tests] == [
        "fi_av_test -g GOOD_ADDR -n 1",
        "fi_rdm g00n13s",
        "fi_rdm",
        "fi_cq_data -e msg",
        "fi_rdm_pingpong -I 5",
    ]
    assert [test.alone for test in tests] == [True, True, False, False, False]
    assert [test.by_address for test in tests[2:]] == [False, True, False]


def test_sets_that_are_not_there(script: Path, tmp_path: Path) -> None:
    for text in ("other", "unit,other", "", ","):
        with pytest.raises(UsageError, match="no set named .*; choose among quick, unit,"):
            sets.named(text)
    assert sets.named("unit,quick") == ["unit", "negative", "functional", "short"]
    with pytest.raises(MissingError, match="cannot read"):
        sets.read(tmp_path / "nothing")
    (tmp_path / "empty").write_text("")
    with pytest.raises(MissingError, match="lists no tests"):
        sets.read(tmp_path / "empty")


def _program(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def _run(folder: Path, body: str, line: str = "fi_x", which: str = "unit") -> Result:
    _program(folder, line.split()[0], body)
    return Runner(folder, "ivc", {}, timeout=2).run(Line(which, line))


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(0, PASSED), (errno.ENODATA, NOT_RUN), (errno.ENOSYS, NOT_RUN), (1, FAILED), (22, FAILED)],
)
def test_exit_codes_of_one_program(tmp_path: Path, code: int, outcome: str) -> None:
    assert _run(tmp_path, f"exit {code}").outcome == outcome


def test_a_negative_test_must_find_nothing(tmp_path: Path) -> None:
    line = "fi_rdm g00n13s"
    assert _run(tmp_path, "exit 61", line, "negative").outcome == PASSED
    assert _run(tmp_path, "exit 0", line, "negative").outcome == FAILED
    assert _run(tmp_path, "sleep 60", line, "negative").outcome == FAILED


def test_a_hanging_program_is_ended_with_its_children(tmp_path: Path) -> None:
    start = time.monotonic()
    result = _run(tmp_path, f"sleep 60 & echo $! >{tmp_path}/child; wait")
    assert (result.outcome, result.how) == (FAILED, "did not end")
    assert time.monotonic() - start < 10
    child = int((tmp_path / "child").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(50):
            os.kill(child, 0)
            if "\nState:\tZ" in Path(f"/proc/{child}/status").read_text():
                raise ProcessLookupError
            time.sleep(0.02)


def test_both_sides_must_agree(tmp_path: Path) -> None:
    """The client is the one with an address behind its options."""
    body = 'for last; do :; done; [ "$last" = 127.0.0.1 ] && exit {}; exit {}'
    for client, server, outcome in ((0, 0, PASSED), (61, 61, NOT_RUN), (61, 0, FAILED)):
        result = _run(tmp_path, body.format(client, server), which="functional")
        assert result.outcome == outcome, result.said


def _result(
    outcome: str, line: str = "fi_new_thing", said: str = "", which: str = "unit"
) -> Result:
    return Result(Line(which, line), outcome, 0.1, "61 (ENODATA)", said)


def test_not_run_without_a_reason_fails() -> None:
    assert check.judge(_result(NOT_RUN), strict=True).outcome == FAILED
    assert check.judge(_result(NOT_RUN), strict=False).outcome == NOT_RUN
    verdict = check.judge(_result(NOT_RUN, "fi_dgram"), strict=True)
    assert verdict.outcome == NOT_RUN and "FI_EP_DGRAM" in verdict.why


def test_a_stale_reason_fails() -> None:
    verdict = check.judge(_result(PASSED, "fi_dgram", which="functional"), strict=True)
    assert verdict.outcome == FAILED and "the table says it cannot" in verdict.why


def test_cases_left_out_need_reasons_too() -> None:
    said = (
        "Running getinfo_progress2 [auto]...skipped because: fi_getinfo returned 61\n"
        "Running getinfo_caps1 [x]...PASS!\n"
    )
    verdict = check.judge(_result(PASSED, "fi_getinfo_test -s A", said), strict=True)
    assert verdict.outcome == PASSED
    assert [case for case, _ in verdict.left_out] == ["getinfo_progress2"]
    said = "Running getinfo_caps1 [x]...requires unsupported feature: y\n"
    verdict = check.judge(_result(PASSED, "fi_getinfo_test -s A", said), strict=True)
    assert verdict.outcome == FAILED and "getinfo_caps1" in verdict.why


@pytest.mark.parametrize(
    ("line", "explained"),
    [
        ("fi_msg", True),
        ("fi_msg_pingpong -I 5 -v", True),
        ("fi_msg_inject -A inject -v", False),
        ("fi_rma_bw -e msg -o write", True),
        ("fi_rma_bw -e rdm -o write", False),
        ("fi_rdm", False),
        ("fi_rdm_tagged_peek", False),
    ],
)
def test_reasons_hit_what_they_mean(line: str, explained: bool) -> None:
    assert (reasons.explain(line) is not None) == explained


def test_a_folder_without_fabtests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IVC_FABTESTS", str(tmp_path))
    with pytest.raises(UsageError, match="no fabtests in it"):
        source.find()


def test_a_bound_in_microseconds() -> None:
    from ivc_host.bench.compare import Ratio

    def ratio(ours: float, reference: float) -> Ratio:
        one = ours / reference
        return Ratio(one, one, one, one, one, ours, reference, 1, 0, "near", stats.compare([ours], [reference]))

    target = Target("k", "t", "a", "b", "latency", 8, "typical_us", None, extra_us=1.0)
    assert target.bound_text() == "<= +1 us" and not target.reported_only
    assert target.holds(ratio(10.9, 10.0)) and not target.holds(ratio(11.1, 10.0))
