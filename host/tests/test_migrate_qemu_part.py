"""The part `migrate-qemu`: that it can fail, and what it makes of times."""

from __future__ import annotations

import io
import json
import random
import subprocess
from typing import Any

import pytest

from ivc_host import moves
from ivc_host.bench.trace import Clock
from ivc_host.errors import UsageError
from ivc_host.testing import migrate_qemu as part
from ivc_host.testing.part import Run

_STATS = (
    "ivc: rank 0 on host g1, peer 1 on host g2: memory: sent 3 packets 70 bytes, received 3 packets"
    " 70 bytes, full 0; network: sent 5 bytes, received 5 bytes\n"
)
_GOOD = f"integrity: ok: 3 ranks\n{_STATS}"
#: The guest's calendar is 100 s ahead.
_CLOCK = Clock(100.0, 0.01)


def _step(first: float | None = 0.5) -> part.Step:
    report = {"phases": {"suspend": 0.01, "migrate": 1.0}, "downtime": 0.1, "resume": 0.02}
    move = moves.Move("g1", "h2", 0.0, 10.0, [moves.Mark(10.0, "attach-done")], report)
    return part.Step(move, ["g3"], _CLOCK, first=first)


def _line(time: float, **words: Any) -> str:
    return json.dumps({"time": time, **words}) + "\n"


def _failures(said: str = _GOOD, code: int = 0, **more: Any) -> list[str]:
    story = part.Story("MPI", [], code, said, **{"steps": [_step(), _step()], **more})
    run = Run(io.StringIO())
    part.judge(run, story, 2)
    return run.tally.failures


def test_good_job_passes() -> None:
    assert _failures() == []


@pytest.mark.parametrize(
    ("story", "word"),
    [
        ({"code": 1}, "every byte"),
        ({"code": None}, "every byte"),
        ({"said": _GOOD.replace("ok", "no")}, "every byte"),
        ({"steps": [_step()]}, "1 of 2 moves"),
        ({"error": "g1 was not moved"}, "2 of 2 moves"),
        ({"said": _GOOD.replace("sent 5", "sent 0")}, "by memory"),
        ({"said": _GOOD.replace("packets 70", "packets 0")}, "by memory"),
        ({"steps": [_step(), _step(None)]}, "after the last move"),
        ({"rests": [_step(), _step(None)]}, "in place"),
    ],
)
def test_bad_job_fails(story: dict[str, Any], word: str) -> None:
    found = _failures(**story)
    assert len(found) == 1
    assert word in found[0]


def test_first_message_is_the_one_after_the_device_came() -> None:
    before = _line(109.0, to="ACTIVE")
    other = _line(110.2, to="CONNECTED") + _line(110.1, event="arrived")
    assert part.first_message(before + other, _step()) is None
    found = part.first_message(before + other + _line(110.4, to="ACTIVE"), _step())
    assert found == pytest.approx(0.4)


def test_times_of_a_story() -> None:
    said = part.times(part.Story("MPI", [], steps=[_step(0.2), _step(0.4)]))
    assert "downtime 120/120" in said
    assert "suspend 10/10" in said
    assert "attach_to_first_message 200/400" in said


def test_the_environment_says_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IVC_TEST_MIGRATIONS", "20")
    monkeypatch.setenv("IVC_TEST_MIGRATE_MPIS", "mpich-4.0")
    assert (part.plan().moves, part.plan().keys) == (20, ["mpich-4.0"])
    monkeypatch.setenv("IVC_TEST_MIGRATIONS", "many")
    with pytest.raises(UsageError, match="IVC_TEST_MIGRATIONS=many"):
        part.plan()


class _DeadGuest:
    """A lab of which the first guest has died; and a job in it, of which nothing is left."""

    def __init__(self) -> None:
        self.guests = ["g1", "g2"]

    def run(self, guest: str, *_: object, timeout: float) -> subprocess.CompletedProcess[str]:
        if guest == "g1":
            raise subprocess.TimeoutExpired("ssh", timeout)
        return subprocess.CompletedProcess([], 0, "trace of g2", "")

    def refresh(self) -> _DeadGuest:
        return self

    def member(self, _: str) -> _DeadGuest:
        return self

    def alive(self) -> bool:
        return False

    def output(self) -> str:
        return "iteration 3"


def test_a_guest_that_died_is_told_of() -> None:
    story = part.Story("MPI", [], error="g2 was not moved to h1")
    lab: Any = _DeadGuest()
    part._finish(part.Stage(lab, random.Random(1), Run(io.StringIO())), lab, story)
    assert story.error.startswith("g2 was not moved to h1")
    assert "g1 has died" in story.error
    assert story.said == "iteration 3"
    assert story.traces == {"g1": "", "g2": "trace of g2"}
