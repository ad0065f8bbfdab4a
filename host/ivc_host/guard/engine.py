"""The guard's work: look, plan, move, and say what was done.

One step looks at everything once and begins what can begin; moves go on between steps. All that is
decided is in `plan.py`, all that must outlive the process in `journal.py`; here is the order of
things:

* a move is in the journal before it begins, and its end when it has ended;
* a move that an earlier process has begun is settled before its machine is moved again;
* a move whose host has become well is cancelled, until its point of no return.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from ..errors import IvcError
from ..health.contract import Level
from ..migrate.lock import BusyError
from . import nodes
from . import plan as plans
from .journal import JournalError, Log, OpenMove
from .plan import Alarm, HostView, MachineView, Move, Plan, Rules, Traffic


class Outcome(enum.Enum):
    """How a move has ended. Whatever it is, the machine runs once."""

    MOVED = "moved"
    #: It stays where it was, and the reason is not one of ours.
    FAILED = "failed"
    #: It stays where it was, as the guard wanted or was interrupted.
    UNDONE = "undone"
    #: Nobody can tell where it runs: a person has to look.
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Ended:
    outcome: Outcome
    text: str = ""
    #: Seconds that the machine stood still; None: not known.
    downtime: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """What is known at one moment."""

    hosts: Sequence[HostView]
    machines: Sequence[MachineView]
    traffic: Traffic = field(default_factory=dict)
    #: When the first of it was looked at (time.monotonic): a move that has ended since may be seen in it
    #: as under way, or not at all.
    begun: float = math.inf


class Steps(Protocol):
    """Told by whoever moves a machine."""

    def phase(self, name: str) -> None:
        """A phase begins: on disk when this returns."""

    def device(self, device: dict[str, Any]) -> None:
        """The region's device that the machine has, to be given back by whoever settles the move."""

    def no_return(self) -> None:
        """From here on the move is not cancelled any more."""


class Mover(Protocol):
    """How a machine is moved."""

    def move(self, move: Move, steps: Steps) -> Coroutine[Any, Any, Ended]:
        """The whole of it. Cancelled, it takes back what it did, and returns UNDONE."""

    async def settle(self, one: OpenMove) -> Ended:
        """The end of a move whose guard has died. UNDECIDED, or an IvcError: it is asked for again."""


@dataclass
class _Task:
    move: Move
    #: As it was when it began.
    machine: MachineView
    task: asyncio.Task[Ended]
    begun: float
    phase: str = ""
    returns: bool = True
    cancelled: str = ""


@dataclass(frozen=True)
class UnderWay:
    """A move, for those who ask."""

    move: Move
    phase: str
    #: Seconds since 1970.
    begun: float
    cancelled: str = ""


class _Steps:
    def __init__(self, guard: Guard, name: str) -> None:
        self._guard = guard
        self._name = name

    def phase(self, name: str) -> None:
        self._guard.note_phase(self._name, name)

    def device(self, device: dict[str, Any]) -> None:
        self._guard.note_device(self._name, device)

    def no_return(self) -> None:
        self._guard.note_no_return(self._name)


class Guard:
    """Many hosts, their machines, and one journal. Everything is called in one event loop."""

    def __init__(
        self,
        journal: Log,
        mover: Mover,
        rules: Rules,
        *,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.time,
        tell_nodes: Callable[[nodes.Nodes], Awaitable[None]] | None = None,
    ) -> None:
        self.journal = journal
        self.nodes: nodes.Nodes = {}
        self._tell_nodes = tell_nodes
        self.rules = rules
        self.plan = Plan()
        self.stepped_at = 0.0
        self._mover = mover
        self._say = say
        self._clock = clock
        self._tasks: dict[str, _Task] = {}
        #: Moves that have ended since the last snapshot was begun, and when.
        self._lately: dict[str, tuple[Move, float]] = {}
        #: What ended badly in a way of which only a person can judge.
        self._undecided: dict[str, str] = {}
        self._broken: JournalError | None = None

    # ---- what others ask

    def under_way(self) -> list[UnderWay]:
        return [UnderWay(one.move, one.phase, one.begun, one.cancelled)
                for one in self._tasks.values()]  # fmt: skip

    def moving(self) -> dict[str, MachineView]:
        """The machines of moves that this process has under way, for who looks at the hosts."""
        return {name: one.machine for name, one in self._tasks.items()}

    def evacuate(self, host: str, by: str) -> None:
        if host not in self.journal.known.evacuate:
            self.journal.write("evacuate", self._clock(), host=host, by=by)
            self._say(f"{host} is to be emptied ({by})")

    def stay(self, host: str, why: str) -> list[str]:
        """Machines of that host stay: names of the moves that are cancelled by that."""
        if host in self.journal.known.evacuate:
            self.journal.write("stay", self._clock(), host=host, why=why)
            self._say(f"{host} need not be emptied: {why}")
        return self._cancel(host, why)

    def retry(self, machine: str) -> None:
        self.journal.write("retry", self._clock(), machine=machine)

    # ---- one step

    async def step(self, snapshot: Snapshot) -> Plan:
        """Begin what is to begin; returns the plan that says what that is. JournalError: what was done
        could not be written down, and nothing is begun any more."""
        if self._broken is not None:
            raise self._broken
        now = self._clock()
        self._lately = {name: one for name, one in self._lately.items() if one[1] >= snapshot.begun}
        await self._settle_open()
        self._look_who_is_well(snapshot.hosts)
        self.plan = self.look_ahead(snapshot, now)
        trouble = await self._told_nodes(snapshot)
        self._tell_alarms((*self.plan.alarms, *trouble), now)
        seen = {machine.name: machine for machine in snapshot.machines}
        for move in self.plan.moves:
            self._begin(move, seen[move.machine], now)
        self.stepped_at = now
        return self.plan

    async def _told_nodes(self, snapshot: Snapshot) -> list[Alarm]:
        """Before anything is moved; while too many hosts look sick the scheduler keeps what it has."""
        if any(alarm.kind == "breaker" for alarm in self.plan.alarms):
            return []
        hosts = [_asked(host, self.journal.known.evacuate) for host in snapshot.hosts]
        self.nodes = nodes.of(hosts, _before(snapshot.machines, self._under_way(snapshot.begun)))
        if self._tell_nodes is None:
            return []
        try:
            await self._tell_nodes(self.nodes)
        except IvcError as fault:  # a host that fails is emptied all the same
            return [Alarm("nodes", "", str(fault))]
        return []

    def look_ahead(self, snapshot: Snapshot, now: float) -> Plan:
        """What a step would do, and nothing of it done."""
        known = self.journal.known
        hosts = [_asked(host, known.evacuate) for host in snapshot.hosts]
        under_way = self._under_way(snapshot.begun)
        return plans.make(
            hosts,
            _before(snapshot.machines, under_way),
            self.rules,
            traffic=snapshot.traffic,
            tried=known.tried,
            under_way=list(under_way.values()),
            landed=known.landed,
            now=now,
        )

    def _under_way(self, since: float) -> dict[str, Move]:
        """Moves that had not ended at that time."""
        lately = {name: move for name, (move, ended) in self._lately.items() if ended >= since}
        return lately | {name: one.move for name, one in self.journal.known.open.items()}

    async def _settle_open(self) -> None:
        """Moves that an earlier process has begun."""
        for name, one in list(self.journal.known.open.items()):
            if name in self._tasks:
                continue
            try:
                ended = await self._mover.settle(one)
            except IvcError as fault:
                ended = Ended(Outcome.UNDECIDED, str(fault))
            self._undecided.pop(name, None)
            self._ended(one.move, ended)

    def _look_who_is_well(self, hosts: Sequence[HostView]) -> None:
        known = self.journal.known
        for host in hosts:
            if host.level is not Level.OK or host.name in known.evacuate:
                continue
            self._cancel(host.name, f"{host.name} is well again")
            if any(move.source == host.name for move in known.landed):
                self.journal.write("stay", self._clock(), host=host.name, why="it is well")

    def _cancel(self, source: str | None, why: str) -> list[str]:
        """Moves away from that host, or all: their names."""
        found = [one for one in self._tasks.values()
                 if source in (None, one.move.source) and not one.cancelled]  # fmt: skip
        for one in found:
            if not one.returns:
                self._say(f"{one.move.machine} moves all the same: it is past the point of no return")
                continue
            one.cancelled = why
            self.journal.write("cancel", self._clock(), machine=one.move.machine, why=why)
            one.task.cancel()
        return [one.move.machine for one in found if one.cancelled]

    def _tell_alarms(self, alarms: Sequence[Alarm], now: float) -> None:
        """Each once when it comes, and once when it goes."""
        wanted = {(alarm.kind, alarm.subject): alarm.text for alarm in alarms}
        for name, why in self._undecided.items():
            wanted["undecided", name] = f"nobody can tell where {name} runs: {why}"
        told = self.journal.known.alarms
        for (kind, subject), text in wanted.items():
            if (kind, subject) not in told:
                self._say(f"ALARM {text}")
                self.journal.write("alarm", now, alarm=kind, subject=subject, text=text)
        for kind, subject in [key for key in told if key not in wanted]:
            self._say(f"no longer: {told[kind, subject]}")
            self.journal.write("calm", now, alarm=kind, subject=subject)

    # ---- moves

    def _begin(self, move: Move, machine: MachineView, now: float) -> None:
        self.journal.write("begin", now, move=asdict(move))
        self._say(f"{move.machine} moves from {move.source} to {move.target}: {move.why}")
        moving = self._mover.move(move, _Steps(self, move.machine))
        task = asyncio.create_task(moving, name=f"move {move.machine}")
        self._tasks[move.machine] = _Task(move, machine, task, now)
        # Not at the end of a coroutine, of which nothing is run when it is cancelled before its turn.
        task.add_done_callback(lambda task: self._over(move, task))

    def _over(self, move: Move, task: asyncio.Task[Ended]) -> None:
        del self._tasks[move.machine]
        try:
            self._ended(move, _end_of(task))
        except JournalError as fault:
            self._broken = fault

    def _ended(self, move: Move, ended: Ended) -> None:
        if ended.outcome is Outcome.UNDECIDED:
            self._undecided[move.machine] = ended.text
            return  # it stays open: settled when somebody has looked
        name = move.machine
        self._lately[name] = (move, time.monotonic())
        self.journal.write("end", self._clock(), machine=name, source=move.source,
                           target=move.target, outcome=ended.outcome.value, text=ended.text,
                           downtime=ended.downtime)  # fmt: skip
        words = {
            Outcome.MOVED: f"{name} runs on {move.target}",
            Outcome.FAILED: f"{name} was not moved to {move.target}",
            Outcome.UNDONE: f"{name} stays on {move.source}",
        }[ended.outcome]
        self._say(words + (f": {ended.text}" if ended.text else ""))

    def note_phase(self, name: str, phase: str) -> None:
        self.journal.write("phase", self._clock(), machine=name, phase=phase)
        one = self._tasks.get(name)
        if one is not None:
            one.phase = phase

    def note_device(self, name: str, device: dict[str, Any]) -> None:
        self.journal.write("device", self._clock(), machine=name, device=device)

    def note_no_return(self, name: str) -> None:
        one = self._tasks.get(name)
        if one is not None:
            one.returns = False

    async def drain(self) -> None:
        """Wait for all moves that are under way."""
        while self._tasks:
            await asyncio.wait([one.task for one in self._tasks.values()])

    async def next_end(self, timeout: float) -> None:
        """Wait until a move has ended, at most TIMEOUT seconds."""
        tasks = [one.task for one in self._tasks.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(timeout)

    async def give_up(self, why: str) -> None:
        """Take back all moves that can be; those that cannot are waited for."""
        self._cancel(None, why)
        with contextlib.suppress(asyncio.CancelledError):
            await self.drain()


def _end_of(task: asyncio.Task[Ended]) -> Ended:
    """What a move's task says, which is done."""
    try:
        return task.result()
    except asyncio.CancelledError:
        return Ended(Outcome.UNDONE, "interrupted before it began")
    except BusyError as fault:  # no try of ours, and nothing against that host
        return Ended(Outcome.UNDONE, str(fault))
    except IvcError as fault:
        return Ended(Outcome.FAILED, str(fault))


def _before(machines: Sequence[MachineView], under_way: Mapping[str, Move]) -> list[MachineView]:
    """Machines that are being moved are on the hosts that they leave, whatever is seen of them."""
    return [
        machine if (move := under_way.get(machine.name)) is None else replace(machine, host=move.source)
        for machine in machines
    ]


def _asked(host: HostView, evacuate: Mapping[str, str]) -> HostView:
    return replace(host, evacuate=True) if host.name in evacuate else host
