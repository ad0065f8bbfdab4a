"""`ivc place --prove`: both placements in turns, by the launcher's own file; and which path is advised."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from ivc_host import stats
from ivc_host.bench.floor import Floor
from ivc_host.errors import UsageError
from ivc_host.place import advice, prove
from ivc_host.profile import launch, model

#: A launcher of MPICH's kind: slow unless ranks 0 and 2 are on one host. It notes the order of hosts that it is given.
_LAUNCHER = """#!/bin/sh
[ "$1" = --version ] && {{ echo "HYDRA build details:"; exit; }}
[ "$1" = -machinefile ] || {{ echo "no placement: $*"; exit 9; }}
order=$(tr '\\n' ' ' < "$2")
echo "$order" >> {folder}/log
shift 2
case $order in "g1 g2 "* | "g1 g4 "* | "g3 "*) time=0.3 ;; *) time=0.02 ;; esac
{last}
"""
_GUESTS = ("g1", "g3", "g2", "g4")


def world(folder: Path, last: str = "sleep $time", guests: Sequence[str] = ("g1", "g2", "g3", "g4")) -> list[str]:
    """A profile in which 0 talks to 2 and 1 to 3, two hosts of two guests, and a launcher. The words of the command."""
    pairs = [model.Pair(sender=i, receiver=(i + 2) % 4, sent={"network": model.Volume(messages=2, bytes=1000)}) for i in range(4)]
    processes = [model.Process(rank=rank, host=guest, pid=1, seconds=2.0) for rank, guest in enumerate(guests)]
    model.save(model.Profile(size=4, processes=processes, pairs=pairs), folder / "p.json")
    (folder / "hosts").write_text("g1 1 alpha\ng2 1 alpha\ng3 1 beta\ng4 1 beta\n")
    launcher = folder / "mpiexec"
    launcher.write_text(_LAUNCHER.format(folder=folder, last=last))
    launcher.chmod(0o755)
    return [sys.executable, "-m", "ivc_host", "place", str(folder / "p.json"), "--hosts", str(folder / "hosts")]


def run(words: Sequence[str], *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words, *more], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, env={**os.environ, "COLUMNS": "200"}
    )


def test_in_turns(tmp_path: Path) -> None:
    done = run(world(tmp_path), "--json", "--prove", "--", str(tmp_path / "mpiexec"), "-n", "4", "./program")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    before, after = (" ".join(told[side]["guests"]) for side in ("present", "proposed"))
    assert before == "g1 g2 g3 g4" and told["present"]["between_hosts"] == 4000 and told["proposed"]["between_hosts"] == 0
    turns = [before, after] + [before, after, after, before] * 2 + [before, after]  # a warm-up, then A B, B A ...
    assert [line.strip() for line in (tmp_path / "log").read_text().splitlines()] == turns
    proof = told["proof"]
    assert len(proof["seconds"]["before"]) == len(proof["seconds"]["after"]) == proof["comparison"]["rounds"] == 5
    assert proof["comparison"]["outcome"] == "second" and proof["comparison"]["interval"]["low"] > 1
    assert proof["seconds_saved"] == pytest.approx(0.28, abs=0.2) and proof["predicted_seconds_saved"] is None


def test_a_run_that_fails_ends_it(tmp_path: Path) -> None:
    last = f'[ $(wc -l < {tmp_path}/log) = 5 ] && {{ echo "no such rank"; exit 3; }}; sleep 0.01'
    done = run(world(tmp_path, last), "--prove", "--", str(tmp_path / "mpiexec"), "-n", "4")
    assert done.returncode == 1 and len((tmp_path / "log").read_text().splitlines()) == 5
    assert re.search(r"^ivc: the run after ended with exit status 3: .*\n  \| no such rank\n", done.stderr, re.M), done.stderr
    assert "time of the command, 1 round\n" in re.sub(" +\n", "\n", done.stdout) and "too few rounds" in done.stdout  # what is over is told


def test_ctrl_c_ends_the_run_under_way(tmp_path: Path) -> None:
    last = f"[ $(wc -l < {tmp_path}/log) = 6 ] && exec sleep 613; sleep 0.01"
    words = [*world(tmp_path, last), "--prove", "--", str(tmp_path / "mpiexec"), "-n", "4"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        end = time.monotonic() + 30
        while not (tmp_path / "log").exists() or len((tmp_path / "log").read_text().splitlines()) < 6:
            assert time.monotonic() < end and child.poll() is None
            time.sleep(0.02)
        own = _sleeper(child.pid)
        child.send_signal(signal.SIGINT)
        out, error = child.communicate(timeout=30)
    assert child.returncode == 130 and error.endswith("ivc: interrupted\n")
    assert "time of the command, 1 round" in out and not Path(f"/proc/{own}").exists()


def _sleeper(parent: int) -> int:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if b"613" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("the launcher does not sleep")


def test_the_best_is_not_run(tmp_path: Path) -> None:
    done = run(world(tmp_path, guests=_GUESTS), "--prove", "--", str(tmp_path / "mpiexec"), "-n", "4")
    assert done.returncode == 0 and "nothing to prove" in done.stderr and not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--prove"], "--prove needs a command"),
        (["--", "mpiexec"], "a command goes with --prove"),
        (["--prove", "--", "sh", "-c", "true"], "sh is no launcher that is known"),
        (["--prove", "--", "nowhere/mpiexec"], "nowhere/mpiexec: no such program"),
        (["--prove", "--rounds", "5", "--", "/bin/false", "{order}"], "the run before ended with exit status 1"),
    ],
)
def test_what_cannot_be_proved(tmp_path: Path, more: list[str], words: str) -> None:
    done = run(world(tmp_path), *more)
    last = done.stderr.splitlines()[-1]
    assert done.returncode in (1, 2) and last.startswith("ivc: ") and words in last and "Traceback" not in done.stderr


def test_rounds_are_at_least_five(tmp_path: Path) -> None:
    assert run(world(tmp_path), "--prove", "--rounds", "4", "--", "true").returncode == 2


def test_without_scotch(tmp_path: Path) -> None:
    (tmp_path / "scotchpy.py").write_text("raise ModuleNotFoundError(\"No module named 'scotchpy'\")\n")
    words = world(tmp_path)
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{tmp_path}:."}, timeout=60)
    assert done.returncode == 1 and re.fullmatch(r"ivc: no Scotch: .*; pip install scotchpy64\n", done.stderr)


@pytest.mark.parametrize(
    ("mpi", "command", "words"),
    [
        (launch.Mpi("hydra"), ["mpiexec", "-n", "4"], ["mpiexec", "-machinefile", "O", "-n", "4"]),
        (launch.Mpi("openmpi", "4.1.4"), ["mpirun", "p"], ["mpirun", "--rankfile", "R", "p"]),
        (launch.Mpi("openmpi", "5.0.7"), ["mpirun", "p"], ["mpirun", "--map-by", "rankfile:file=R", "--hostfile", "O", "p"]),
        (launch.Mpi("hydra"), ["mpiexec", "-f", "{order}", "p"], ["mpiexec", "-f", "O", "p"]),
        (launch.Mpi(""), ["ssh", "g1", "mpirun --rankfile {rankfile} p"], ["ssh", "g1", "mpirun --rankfile R p"]),
    ],
)
def test_how_a_launcher_is_told(mpi: launch.Mpi, command: list[str], words: list[str]) -> None:
    assert prove._told(command, mpi, "O", "R") == words


def test_a_launcher_that_is_not_known() -> None:
    with pytest.raises(UsageError, match="write {order}"):
        prove._told(["srun", "p"], launch.Mpi(""), "O", "R")


def test_no_difference_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    times = [1.0, 1.1, 0.9, 1.05, 0.95]
    proof = prove.Proof({}, 0.25, {"before": times, "after": list(reversed(times))})
    assert proof.comparison is not None and proof.comparison.outcome is stats.Outcome.NONE
    proof.show(Console(width=200))
    told = capsys.readouterr().out
    assert "predicted: 250 ms less; measured: 0 us less, 0 of what was predicted" in told and "no difference: before / after" in told and "p = " in told


def test_the_rule_and_what_replaces_it(tmp_path: Path) -> None:
    world(tmp_path)
    profile = model.load(tmp_path / "p.json")
    none, half, all_of_it = [0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]
    shares = [advice.advise(profile, one, None) for one in (none, half, all_of_it)]
    assert [one.share for one in shares] == [0.0, 0.5, 1.0]
    assert "a bridge does" in shares[0].text and all("40 % faster" in one.text for one in shares[1:])
    assert all(one.basis == "rule" for one in shares)
    # Each message is of 500 bytes: class 9. Two ranks send four messages of 4 between hosts in `half`.
    found = advice.advise(profile, half, {9: 0.5, 20: 9.0})
    assert (found.basis, found.seconds, found.of_time) == ("measured", 4 * 0.5 / 4, 0.25)
    assert "500 ms, 25.0 % of its time" in found.text and "rule" not in found.text


def test_between_the_limits_the_rule_says_nothing() -> None:
    pairs = [model.Pair(sender=0, receiver=one, sent={"network": model.Volume(messages=n, bytes=n)}) for one, n in ((1, 7), (2, 3))]
    profile = model.Profile(size=3, processes=[], pairs=pairs)
    assert "says nothing" in advice.advise(profile, [0, 0, 1], None).text


def test_measured_figures_predict_seconds(tmp_path: Path) -> None:
    floor = Floor(*[1.0] * len(fields(Floor))).as_dict()
    sides = {"ivc": 1.0, "tcp": 200001.0}
    samples = [
        {"side": side, "round": 0, "state": "near", "floor_before": floor, "floor_after": floor,
         "records": [{"test": "latency", "bytes": 512, "typical_us": time}]}
        for side, time in sides.items()
    ]  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps({"schema": "ivc-bench-1", "samples": samples}))
    words = [*world(tmp_path), "--measured", str(tmp_path / "bench.json")]
    told = json.loads(run(words, "--json", "--prove", "--", str(tmp_path / "mpiexec")).stdout)
    assert told["present"]["path"]["basis"] == "measured" and told["proof"]["predicted_seconds_saved"] == pytest.approx(0.4)
    shown = run(words)
    assert "cost a rank 400 ms, 20.0 % of its time, that memory does not" in shown.stdout, shown.stdout + shown.stderr
