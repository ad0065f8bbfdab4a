"""The parts `migrate-qemu` and `migrate-xen`: MPI jobs in guests that `ivc migrate` moves meanwhile.

Real machines, a real device that is pulled and plugged in, and the command that an administrator
uses. Guests (three, of Xen two) are on two hosts of a lab; which one moves, and when, is drawn. The
job checks every byte that it gets. What each move took is written to
build/test-logs/migrate-HYPERVISOR.json. In the end a guest of Xen is saved and restored in place.

IVC_TEST_MIGRATIONS says how many moves each job goes through, IVC_TEST_MIGRATE_MPIS which MPIs
(their names begin so, with commas), IVC_TEST_MIGRATE_SIZE the largest message in bytes. Guests of Xen
are PVH, which move live, or with IVC_TEST_MIGRATE_GUESTS=xen paravirtual, saved and restored.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .. import moves, paths, stats
from ..bench import trace
from ..errors import IvcError, MissingError, UsageError
from ..lab import lab as labs
from ..lab import ssh
from ..lab.job import Job
from ..matrix import mpis, programs
from ..matrix.guests import Guests
from . import mpi
from .part import Run, SkipPart

#: Ranks that look on take an emulated processor from dom0, which saves the guest that moves.
_GUESTS = {"qemu": 3, "xen": 2, "xen-pvh": 2}
_HOSTS = ("h1", "h2")
_MOVES = 2
_SIZE = 1 << 20
_MPIS = "openmpi-4.1-plugin,mpich"
#: Seconds that a job may take to begin, to end, and to use memory again after a move.
_START, _END, _RETURN = 180, 300, 120
#: Seconds for processes to let go of memory. Each host of a lab with Xen is emulated with all its guests.
_ANSWER = {"qemu": 10.0, "xen": 90.0, "xen-pvh": 90.0}
#: Seconds at most between two moves.
_PAUSE = 3.0
STOP, TRACE = "/run/ivc-test-stop", "/run/ivc-test-trace"

_MARK = "ivc-test-mark"
_MARKED = re.compile(rf"^\[ *([\d.]+)\] {_MARK}$", re.M)
#: The kernel has found a place for the device's registers: what it does last but one.
_ASSIGNED = re.compile(r"^\[ *([\d.]+)\] pci \S+: BAR 0.*: assigned$", re.M)


@dataclass(frozen=True)
class Plan:
    moves: int
    size: int
    keys: list[str]
    seed: int
    hypervisor: str = "qemu"


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    if text and not (text.isdecimal() and int(text) > 0):
        raise UsageError(f"{name}={text}: not a number", hint="give it a number above 0")
    return int(text) if text else default


def plan() -> Plan:
    """As the environment says."""
    keys = (os.environ.get("IVC_TEST_MIGRATE_MPIS") or _MPIS).split(",")
    return Plan(
        _number("IVC_TEST_MIGRATIONS", _MOVES),
        _number("IVC_TEST_MIGRATE_SIZE", _SIZE),
        keys,
        _number("IVC_TEST_SEED", random.randrange(1, 1 << 30)),
    )


@dataclass
class Step:
    """One move, as it was for the job. Seconds, unless something else is said."""

    move: moves.Move
    #: Other guests where it went.
    beside: list[str]
    clock: trace.Clock
    #: What happened in the guest since the hypervisor had plugged the device in: the kernel had
    #: given it its place, our process had joined, it had a ring to somebody there.
    plugged: float | None = None
    joined: float | None = None
    first: float | None = None

    def as_dict(self) -> dict[str, Any]:
        report = self.move.report
        return {
            "guest": self.move.guest,
            "to": self.move.to,
            "beside": self.beside,
            "begin": self.move.begin,
            "end": self.move.end,
            **{f"{name}_s": seconds for name, seconds in report.get("phases", {}).items()},
            "downtime_s": (report.get("downtime") or 0) + report.get("resume", 0),
            "transferred_bytes": report.get("transferred"),
            "attach_to_plugged_s": self.plugged,
            "attach_to_joined_s": self.joined,
            "attach_to_first_message_s": self.first,
            "plugged_to_first_message_s": self.first and self.plugged and self.first - self.plugged,
            "clock_error_s": self.clock.error,
        }


@dataclass
class Story:
    """What a job went through."""

    label: str
    words: list[str]
    code: int | None = None
    said: str = ""
    steps: list[Step] = field(default_factory=list)
    #: Guests that were saved and restored where they were.
    rests: list[Step] = field(default_factory=list)
    traces: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def bytes(self) -> tuple[int, int]:
        """Sent through memory and through the network, by all ranks."""
        found = mpi.SENT.findall(self.said)
        return sum(int(one) for one, _ in found), sum(int(one) for _, one in found)

    def as_dict(self) -> dict[str, Any]:
        by_memory, by_network = self.bytes()
        return {
            "mpi": self.label,
            "exit": self.code,
            "moves": [step.as_dict() for step in self.steps],
            "rests": [step.as_dict() for step in self.rests],
            "memory_bytes": by_memory,
            "network_bytes": by_network,
            "error": self.error,
        }


class _Tell(labs.SilentProgress):
    def __init__(self, run: Run) -> None:
        self._run = run

    def step(self, text: str) -> None:
        self._run.log(text)


def job_command(
    one: mpis.Mpi, guests: Sequence[str], wanted: Plan
) -> tuple[list[str], dict[str, str]]:
    """How the job is started in the first guest; memory and our network, and nothing else."""
    on_xen = wanted.hypervisor != "qemu"
    settings = {"IVC_STATS": "1", "IVC_TRACE": TRACE, "FI_TCP_IFACE": "eth0"}
    if on_xen:
        settings["IVC_NETWORK_TIMEOUT"] = "0"  # a guest that is saved says nothing for minutes
    words, env = one.command(mpis.IVC, one.environment(), guests, len(guests), False)
    env = {**env, **settings}
    if one.abi == "openmpi":
        words += [word for key in settings for word in ("-x", key)]
        if on_xen:
            words += ["--mca", "oob_tcp_keepalive_time", "0"]  # its daemons give up sooner
        if one.key == "openmpi-4.1-plugin":
            words += ["--mca", "btl_ivc_network", "1"]
            words[words.index("ivc,tcp,self")] = "ivc,self"
    program = programs.program(one, one.environment(), "integrity")
    words += [str(program), "--stop", STOP, "--progress", "1", "--compute", "0.3"]
    if on_xen:
        words += ["--idle"]  # emulated processors, of which a save takes its part
    return [*words, "--seed", str(wanted.seed), "--max-size", str(wanted.size)], env


def after(times: Iterable[float], step: Step) -> float | None:
    """Seconds from the device's arrival, as the hypervisor says, to the first of these times."""
    # Where there is no device, memory was left before, and is found when the guest runs again.
    marks = (step.move.at(name) for name in ("attach-done", "migrate", "save"))
    attached = next((mark for mark in marks if mark is not None), None)
    if attached is None:
        return None
    since = (time - step.clock.offset - attached for time in times)
    return next((max(one, 0.0) for one in since if one >= -step.clock.error), None)


def _events(text: str, key: str, value: str) -> Iterator[float]:
    for line in text.splitlines():
        event = json.loads(line)
        if event.get(key) == value:
            yield float(event["time"])


def first_message(text: str, step: Step) -> float | None:
    """Seconds from the device's arrival to the moved rank's first ring with a peer there."""
    return after(_events(text, "to", "ACTIVE"), step)


class Stage:
    """The guests, and where they are."""

    def __init__(self, lab: labs.Lab, dice: random.Random, run: Run) -> None:
        self.lab = lab
        self.dice = dice
        self.run = run

    def where(self) -> dict[str, str]:
        return {guest.name: _HOSTS[guest.host - 1] for guest in self.lab.refresh().guests}

    def draw(self, company: bool) -> tuple[str, str, list[str]]:
        """Who moves, to where, and beside whom; with COMPANY: not to where nobody is."""
        now = self.where()
        choices = []
        for guest, host in now.items():
            to = next(other for other in _HOSTS if other != host)
            beside = [other for other, its in now.items() if its == to]
            if beside or not company:
                choices.append((guest, to, beside))
        return self.dice.choice(choices or [self.draw(False)])

    def move(self, company: bool) -> Step:
        guest, to, beside = self.draw(company)
        done = moves.move(self.lab, guest, to, _ANSWER[self.lab.record.hypervisor])
        return Step(done, beside, trace.guest_clock(self.lab, guest))

    def rest(self, last: Step) -> Step:
        """The guest that moved last is saved and restored where it went; its hypervisor does that."""
        guest, host = last.move.guest, last.move.to
        done = moves.rest(self.lab, guest, host, _ANSWER[self.lab.record.hypervisor])
        return Step(done, last.beside, trace.guest_clock(self.lab, guest))

    def trace_of(self, guest: str) -> str:
        line = ["sh", "-c", f"cat {TRACE} 2>/dev/null; true"]
        return self.lab.run(guest, line, timeout=60).stdout

    def note_plugged(self, step: Step) -> None:
        """When the guest's kernel had plugged the device in: before the next move, which sets its
        log's clock apart from the others. A line of ours tells what that clock shows now."""
        line = f"echo {_MARK} >/dev/kmsg; echo $EPOCHREALTIME; dmesg"
        said = self.lab.run(step.move.guest, ["bash", "-c", line], timeout=60).stdout
        assigned, mark = _ASSIGNED.findall(said), _MARKED.findall(said)
        if assigned and mark:
            since = float(mark[-1]) - float(assigned[-1])
            step.plugged = after([float(said.split()[0]) - since], step)

    def clean(self) -> None:
        line = ["rm", "-f", STOP, TRACE]
        for guest in self.lab.guests:
            self.lab.run(guest, line, timeout=60)


def _time(story: Story) -> None:
    for step in story.steps + story.rests:
        text = story.traces[step.move.guest]
        step.joined = after(_events(text, "event", "arrived"), step)
        # Where nobody is there is nobody to send to.
        step.first = first_message(text, step) if step.beside else None


def _await_memory(stage: Stage, job: Job, step: Step) -> None:
    """Nobody moves any more: the rank that came last is to use memory."""
    end = time.monotonic() + _RETURN
    while time.monotonic() < end and job.running():
        if first_message(stage.trace_of(step.move.guest), step) is not None:
            return
        time.sleep(0.5)


def _travel(stage: Stage, job: Job, story: Story, count: int) -> None:
    job.wait_for("integrity: iteration", _START)
    # Once more when the last one went to where nobody is: it shows no return to memory.
    while len(story.steps) < count or not story.steps[-1].beside:
        time.sleep(stage.dice.random() ** 2 * _PAUSE)
        job.check_running()
        if story.steps:
            stage.note_plugged(story.steps[-1])
        step = stage.move(company=len(story.steps) >= count - 1)
        story.steps.append(step)
        stage.run.log(f"{len(story.steps)}: {json.dumps(step.as_dict())}")
    _await_memory(stage, job, story.steps[-1])
    stage.note_plugged(story.steps[-1])
    if stage.lab.record.hypervisor != "qemu":
        story.rests.append(stage.rest(story.steps[-1]))
        stage.run.log(f"in place: {json.dumps(story.rests[-1].as_dict())}")
        _await_memory(stage, job, story.rests[-1])


def _finish(stage: Stage, job: Job, story: Story) -> None:
    """However the job fares: what it said, and the traces."""
    guests = stage.lab.guests
    try:
        stage.lab.run(guests[0], ["touch", STOP], timeout=60)
        done = job.finish(_END)
        story.code, story.said = done.returncode, done.stdout + done.stderr
    except (IvcError, subprocess.TimeoutExpired) as error:
        story.error += f" {error}"
        story.said = job.output() + (getattr(error, "detail", None) or "")
    for guest in guests:
        try:
            story.traces[guest] = stage.trace_of(guest)
        except (IvcError, subprocess.TimeoutExpired) as error:
            alive = stage.lab.refresh().member(guest).alive()
            story.error += f" {guest}: {error}" if alive else f" {guest} has died"
            story.traces[guest] = ""


def _job(stage: Stage, one: mpis.Mpi, wanted: Plan) -> Story:
    guests = stage.lab.guests
    words, env = job_command(one, guests, wanted)
    story = Story(one.label, words)
    stage.clean()
    command = stage.lab.ssh_argv(guests[0], ssh.remote_line(words, labs.mpi_env(env)))
    with Job(command, f"integrity under {one.label}") as job:
        try:
            _travel(stage, job, story, wanted.moves)
        except (IvcError, subprocess.TimeoutExpired) as error:
            story.error = f"{error} {getattr(error, 'detail', None) or ''}".strip()
        _finish(stage, job, story)
    _time(story)
    return story


def times(story: Story) -> str:
    """One line about each kind of time: the median and the worst."""
    kinds: dict[str, list[float]] = {}
    for step in story.steps:
        for name, value in step.as_dict().items():
            if name.endswith("_s") and name != "clock_error_s" and value is not None:
                kinds.setdefault(name.removesuffix("_s"), []).append(float(value))
    return ", ".join(
        f"{name} {stats.percentile(values, 50) * 1e3:.0f}/{max(values) * 1e3:.0f}"
        for name, values in kinds.items()
    )


def judge(run: Run, story: Story, wanted: int) -> None:
    """Every byte right, every move made, both paths used, and memory again at the end."""
    count = len(story.traces)
    what = f"{story.label}, {count} ranks in {count} guests"
    said = f"{story.said}\n{story.error}"
    good = story.code == 0 and "integrity: ok" in story.said
    run.check(f"{what}: every byte right, status 0", good, f"{said}\n(exit {story.code})")
    moved = len(story.steps)
    run.check(f"{what}: {moved} of {wanted} moves", moved >= wanted and not story.error, said)
    by_memory, by_network = story.bytes()
    run.check(f"{what}: {by_memory} bytes by memory, {by_network} by network",
              by_memory > 0 and by_network > 0, said)  # fmt: skip
    traces = "\n".join(f"{guest}: {text}" for guest, text in story.traces.items())
    back = bool(story.steps) and story.steps[-1].first is not None
    run.check(f"{what}: after the last move through memory", back, traces)
    for step in story.rests:
        run.check(f"{what}: through memory after {step.move.guest} was saved and restored in place",
                  step.first is not None, traces)  # fmt: skip


@contextmanager
def _lab(run: Run, chosen: Sequence[mpis.Mpi], hypervisor: str) -> Iterator[labs.Lab]:
    """The guests, with the installed MPIs in them."""
    share = [one.environment().folder for one in chosen if one.requirement]
    name = f"test-moves-{os.getpid() % 10000}"
    with labs.up(name, _GUESTS[hypervisor], hypervisor, hosts=2, share=share, progress=_Tell(run)) as up:
        yield up


def _one(run: Run, lab: labs.Lab, one: mpis.Mpi, wanted: Plan) -> Story:
    story = _job(Stage(lab, random.Random(wanted.seed), run), one, wanted)
    run.log(f"$ {shlex.join(story.words)}\n{story.said}\n(exit {story.code}) {story.error}")
    for guest, text in story.traces.items():
        run.log(f"{guest}:\n{text}")
    run.log(f"{story.label}: median/worst in ms: {times(story)}")
    judge(run, story, wanted.moves)
    # Whatever a failed job has left is not to spoil the next one's run.
    Guests(lab).sweep()
    return story


def migrate_qemu(run: Run) -> None:
    _migrate(run, "qemu")


def migrate_xen(run: Run) -> None:
    _migrate(run, os.environ.get("IVC_TEST_MIGRATE_GUESTS") or "xen-pvh")


def _migrate(run: Run, hypervisor: str) -> None:
    mpi.require()
    if os.geteuid() != 0:
        raise SkipPart("a lab needs root: run with sudo")
    wanted = replace(plan(), hypervisor=hypervisor)
    chosen = mpis.named(wanted.keys)
    for one in chosen:
        programs.program(one, one.environment(), "integrity")  # before the guests get their copies
    run.log(f"seed {wanted.seed}, {wanted.moves} moves, messages of up to {wanted.size} B")
    stories = []
    try:
        with _lab(run, chosen, hypervisor) as lab:
            stories = [_one(run, lab, one, wanted) for one in chosen]
    except MissingError as error:
        raise SkipPart(str(error)) from error
    record = {"plan": asdict(wanted), "jobs": [story.as_dict() for story in stories]}
    file = paths.build() / "test-logs" / f"migrate-{hypervisor}.json"
    file.write_text(json.dumps(record, indent=1) + "\n")
