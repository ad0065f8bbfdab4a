"""The programs of a cell: how each is run, and what counts as passed.

integrity  every byte, and that memory carried what it should: pairs of guests on one host through
           memory, pairs on two hosts not (the adapters' own counters, IVC_STATS)
latency    the sweep of bench_mpi, for the record
suite      mpi4py's own tests; passed when nothing failed but what fails without us as well
mpich-suite  MPICH's own tests, likewise, each on as many ranks as it says
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from . import known, mpich_suite, mpis, programs, traffic, wheels
from .ground import Ground, Job
from .mpis import Mpi
from .results import FAIL, PASS, Outcome
from .wheels import Environment

_SUITE = Path(__file__).with_name("suite.py")
#: After so many tests that end the job, the rest is not worth the time.
_MOST_STARTS = 20
#: Of MPICH's tests, those that CI runs, half a minute for each MPI: collective operations, and what
#: makes and keeps communicators; on no more ranks than take turns well on two processors.
QUICK_FOLDERS = ("attr", "coll", "comm", "group", "topo")
QUICK_RANKS = 4


@dataclass(frozen=True)
class Limits:
    """Seconds, by kind of program."""

    integrity: float = 300
    latency: float = 180
    suite: float = 1500
    mpich_suite: float = 7200
    #: One test on two ranks; more ranks have more to do, on no more processors.
    test: float = 60


@dataclass
class Subject:
    """One MPI on a ground, one way."""

    mpi: Mpi
    environment: Environment
    way: str
    ground: Ground
    limits: Limits
    quick: bool = False
    log: Callable[[str], None] = field(default=lambda text: None)

    def start(
        self,
        ranks: int,
        argv: Sequence[str],
        timeout: float,
        more: Mapping[str, str] = MappingProxyType({}),
        before: Sequence[str] = (),
    ) -> Job:
        """Run a program; MORE is for its environment, BEFORE are words that its launcher is run by."""
        ground = self.ground
        words, env = self.mpi.command(
            self.way, self.environment, ground.guests, ranks, ground.here
        )
        env = {**env, "MPI4PY_MPIABI": self.mpi.abi, **more}
        words = [*before, *words, *argv]
        job = ground.run(words, env, timeout)
        settings = " ".join(f"{key}={value}" for key, value in env.items())
        self.log(
            f"{ground.name}$ {settings} {' '.join(words)}\n{job.said}\n"
            f"(exit {job.code}, {job.seconds:.1f} s)"
        )
        return job

    def program(self, name: str) -> str:
        return str(programs.program(self.mpi, self.environment, name))


def integrity(subject: Subject, ranks: int) -> Outcome:
    size = "200000" if subject.quick else "1000000"
    argv = [subject.program("integrity"), "--iterations", "1", "--max-size", size]
    job = subject.start(ranks, argv, subject.limits.integrity)
    outcome = Outcome("integrity", ranks, PASS, seconds=job.seconds)
    if job.code != 0:
        outcome.status, outcome.text = FAIL, job.reason
    elif subject.way == mpis.IVC:
        ground = subject.ground
        where = [ground.guests[rank % len(ground.guests)] for rank in range(ranks)]
        outcome.text = traffic.wrong_paths(traffic.parse(job.said), where, ground.host_of)
        outcome.status = FAIL if outcome.text else PASS
    return outcome


def parse_latency(said: str) -> dict[str, float]:
    """Microseconds by size. MPICH 4.0 has a tab in its name, so JSON is read leniently."""
    found = {}
    for line in said.splitlines():
        at = line.find('{"program"')
        if at >= 0:
            try:
                record = json.loads(line[at:], strict=False)
            except ValueError:
                continue
            found[str(record["bytes"])] = float(record["p50_us"])
    return found


def latency(subject: Subject, ranks: int) -> Outcome:
    sizes, seconds = ("8,64K,1M", "0.1") if subject.quick else ("8,64,1K,8K,64K,1M,4M", "0.3")
    argv = [subject.program("bench_mpi"), "--test", "latency"]
    argv += ["--sizes", sizes, "--seconds", seconds]
    job = subject.start(ranks, argv, subject.limits.latency)
    outcome = Outcome("latency", ranks, PASS, seconds=job.seconds)
    outcome.latency_us = parse_latency(job.said)
    if job.code != 0 or len(outcome.latency_us) < len(sizes.split(",")):
        outcome.status, outcome.text = FAIL, job.reason
    return outcome


@dataclass
class Notes:
    """What the ranks of one start of the suite have noted."""

    started: dict[int, list[str]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Notes:
        notes = cls()
        for line in text.splitlines():
            found = re.match(r"rank-(\d+):(\w+) (\S+) ?(.*)", line)
            if not found:
                continue
            rank, what, name, reason = int(found[1]), found[2], found[3], found[4]
            started = notes.started.setdefault(rank, [])
            if what == "start":
                started.append(name)
            elif what == "fail":
                notes.failures.setdefault(name, f"rank {rank}: {reason}")
            elif what == "end":
                notes.ended.add(rank)
        return notes

    def complete(self, ranks: int) -> bool:
        return len(self.ended) == ranks

    def furthest(self) -> list[str]:
        """The tests of the rank that came furthest."""
        return max(self.started.values(), key=len, default=[])

    def stopped_at(self) -> set[str]:
        """The tests in which ranks were when the job ended."""
        return {names[-1] for rank, names in self.started.items()
                if names and rank not in self.ended}  # fmt: skip


def _suite_once(subject: Subject, ranks: int, after: str, timeout: float) -> tuple[Job, Notes]:
    notes = subject.ground.notes
    subject.ground.everywhere(f"rm -rf {notes}")
    argv = [str(subject.environment.python), str(_SUITE), str(wheels.suite()), notes]
    argv += ["--limit", str(subject.limits.test * max(1, ranks / 2))]
    argv += [word for one in known.left_out(subject.mpi.key) for word in ("--exclude", one)]
    argv += ["--after", after] if after else []
    job = subject.start(ranks, argv, timeout)
    text = subject.ground.everywhere(f"cd {notes} && grep -H '' rank-*; true")
    return job, Notes.parse("".join(text))


def suite(subject: Subject, ranks: int) -> Outcome:
    """mpi4py's tests; started again behind a test that has ended the job."""
    outcome = Outcome("suite", ranks, PASS)
    begin = time.monotonic()
    after = ""
    for _ in range(_MOST_STARTS):
        left = subject.limits.suite - (time.monotonic() - begin)
        if left < 10:
            outcome.text = f"not finished after {subject.limits.suite:.0f} s"
            break
        job, notes = _suite_once(subject, ranks, after, left)
        outcome.tests += len(notes.furthest())
        outcome.failures.update(notes.failures)
        if notes.complete(ranks):
            if job.code is None:
                outcome.failures["MPI_Finalize"] = "the job did not end"
            break
        if not notes.furthest():
            outcome.text = f"did not start: {job.reason}"
            break
        after = notes.furthest()[-1]
        if job.code is None and left < subject.limits.suite / 2:
            outcome.text = f"not finished after {subject.limits.suite:.0f} s"
            break
        for name in notes.stopped_at():
            outcome.failures[name] = f"the job ended in it: {job.reason}"
    else:
        outcome.text = f"given up after {_MOST_STARTS} tests that ended the job"
    outcome.seconds = time.monotonic() - begin
    judge_suite(outcome, subject.mpi.key, None)
    return outcome


def mpich(subject: Subject, ranks: int) -> Outcome:
    """MPICH's tests, each a job of its own."""
    outcome = Outcome("mpich-suite", ranks, PASS)
    begin = time.monotonic()
    built = mpich_suite.find(subject.mpi, subject.environment)
    for folder in mpich_suite.chosen(built, QUICK_FOLDERS if subject.quick else ()):
        mpich_suite.build(built, folder)
        for test in mpich_suite.tests(built, folder):
            if time.monotonic() - begin > subject.limits.mpich_suite:
                outcome.text = f"not finished after {subject.limits.mpich_suite:.0f} s"
                break
            _mpich_test(subject, built, test, outcome)
    outcome.seconds = time.monotonic() - begin
    judge_suite(outcome, subject.mpi.key, None)
    return outcome


def _mpich_test(
    subject: Subject, built: Path, test: mpich_suite.Test, outcome: Outcome
) -> None:
    why = mpich_suite.why_not_run(test, built, subject.mpi)
    if subject.quick and test.ranks > QUICK_RANKS:
        why = f"more than {QUICK_RANKS} ranks, in a quick matrix"
    if why:
        outcome.excused[test.name] = why
        return
    where = built / test.folder  # tests spawn others by names such as ./spawn1
    # A test fails for any word that it does not expect, so our statistics are not asked for.
    settings = {"IVC_STATS": "0", **dict(test.env)}
    argv = [f"./{test.program}", *test.args]
    job = subject.start(test.ranks, argv, test.limit, settings, ["env", "-C", str(where)])
    outcome.tests += 1
    why = mpich_suite.fault(test, job)
    if why and test.xfail:
        outcome.excused[test.name] = f"expected to fail ({test.xfail}): {why}"
    elif why:
        outcome.failures[test.name] = why


def judge_suite(outcome: Outcome, mpi: str, own: Outcome | None) -> None:
    """What fails without us as well (`own`) is no fault of ours."""
    bad = known.unexplained(mpi, outcome.failures) - set(own.failures if own else ())
    outcome.status = FAIL if outcome.text or bad else PASS


#: Programs that consist of tests, some of which fail without us.
SUITES = ("suite", "mpich-suite")
PROGRAMS: dict[str, Callable[[Subject, int], Outcome]] = {
    "integrity": integrity,
    "latency": latency,
    "suite": suite,
    "mpich-suite": mpich,
}
