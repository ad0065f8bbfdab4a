"""The guard's journal: what is known after any end, and who may write."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ivc_host.guard import journal
from ivc_host.guard.journal import Journal, JournalError, Known
from ivc_host.guard.plan import Move, Tried

MOVE = Move("g1", "sick", "a", "job", 256 << 20, "because")


def begin(log: Journal, at: float = 1.0) -> None:
    log.write("begin", at, move=asdict(MOVE))
    log.write("device", at, machine="g1", device={"path": "/dev/shm/r", "size": 4})


def again(folder: Path) -> Known:
    with Journal(folder, 9.0) as log:
        return log.known


def test_a_move_that_is_not_over(tmp_path: Path) -> None:
    with Journal(tmp_path, 0.0) as log:
        begin(log)
        log.write("phase", 2.0, machine="g1", phase="migrate")
    one = again(tmp_path).open["g1"]
    assert (one.move, one.begun, one.phase) == (MOVE, 1.0, "migrate")
    assert one.device == {"path": "/dev/shm/r", "size": 4}


def test_moved(tmp_path: Path) -> None:
    with Journal(tmp_path, 0.0) as log:
        begin(log)
        log.write("end", 3.0, machine="g1", outcome="moved")
    known = again(tmp_path)
    assert known.open == {} and known.landed == [MOVE] and known.outcomes == {"moved": 1}


def test_failed_tries_add_up_until_one_succeeds(tmp_path: Path) -> None:
    with Journal(tmp_path, 0.0) as log:
        for at in (1.0, 5.0):
            begin(log, at)
            log.write("end", at + 1, machine="g1", outcome="failed")
        assert log.known.tried == {"g1": Tried(2, 6.0, frozenset({"a"}))}
        begin(log)
        log.write("end", 9.0, machine="g1", outcome="moved")
    assert again(tmp_path).tried == {}


def test_a_person_lets_it_be_tried_again(tmp_path: Path) -> None:
    with Journal(tmp_path, 0.0) as log:
        begin(log)
        log.write("end", 2.0, machine="g1", outcome="failed")
        log.write("retry", 3.0, machine="g1")
    assert again(tmp_path).tried == {}


def test_a_host_that_is_well_again(tmp_path: Path) -> None:
    with Journal(tmp_path, 0.0) as log:
        log.write("evacuate", 1.0, host="sick", by="root")
        begin(log)
        log.write("end", 2.0, machine="g1", outcome="moved")
        log.write("stay", 3.0, host="sick")
    known = again(tmp_path)
    assert known.evacuate == {} and known.landed == []


def test_alarms_end(tmp_path: Path) -> None:
    with Journal(tmp_path, 0.0) as log:
        log.write("alarm", 1.0, alarm="no-target", subject="g1", text="no spare")
        log.write("alarm", 1.0, alarm="breaker", subject="", text="all sick")
        log.write("calm", 2.0, alarm="breaker", subject="")
    assert again(tmp_path).alarms == {("no-target", "g1"): "no spare"}


@pytest.mark.parametrize("rest", [b'{"at":3.0,"kind":"end","mach', b"\x00\xff\n", b"[]\n", b"\n",
                                  b'{"at":1,"kind":"carried_on"}\n'])  # fmt: skip
def test_a_line_that_was_cut_off(tmp_path: Path, rest: bytes) -> None:
    with Journal(tmp_path, 0.0) as log:
        begin(log)
    with open(tmp_path / "journal.jsonl", "ab") as file:
        file.write(rest)
    with Journal(tmp_path, 4.0) as log:
        assert set(log.known.open) == {"g1"}
        log.write("end", 5.0, machine="g1", outcome="undone")
    assert again(tmp_path).open == {}


def test_a_second_guard_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path, 0.0):
        with pytest.raises(JournalError, match=r"another guard \(process \d+\) has"):
            Journal(tmp_path, 0.0)
    Journal(tmp_path, 0.0).close()


def test_the_lock_ends_with_its_guard(tmp_path: Path) -> None:
    words = f"""
import os, signal, sys
from pathlib import Path
from ivc_host.guard.journal import Journal
log = Journal(Path({str(tmp_path)!r}), 0.0)
log.write("evacuate", 1.0, host="h1", by="test")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", words]).returncode == -signal.SIGKILL
    assert again(tmp_path).evacuate == {"h1": "test"}


def test_a_full_disk(tmp_path: Path) -> None:
    """The line that did not fit is gone whole, and what had been said stays."""
    with Journal(tmp_path, 0.0) as log:
        begin(log)
        size = (tmp_path / "journal.jsonl").stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
        try:
            with pytest.raises(JournalError, match="journal"):
                log.write("end", 2.0, machine="g1", outcome="moved")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert set(log.known.open) == {"g1"}
        log.write("phase", 3.0, machine="g1", phase="switch")
    assert again(tmp_path).open["g1"].phase == "switch"


def test_rotation_forgets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path, 0.0) as log:
        begin(log)
        log.write("end", 2.0, machine="g1", outcome="failed")
        log.write("evacuate", 3.0, host="sick", by="root")
        log.write("alarm", 3.0, alarm="tries", subject="g1", text="three times")
        begin(log, 4.0)
        log.write("phase", 5.0, machine="g1", phase="suspend")
        before = log.known
    monkeypatch.setattr(journal, "_ROTATE_BYTES", 1)
    with Journal(tmp_path, 6.0) as log:
        assert log.known == before
    monkeypatch.undo()
    assert again(tmp_path) == before
    assert (tmp_path / "journal.old.jsonl").exists()
    lines = list(journal.read(tmp_path))
    assert lines[0]["kind"] == "begin" and json.dumps(lines[-1])
