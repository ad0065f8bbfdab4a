"""Which machines move where: a function of what is known, without effects.

The unit is the job. All machines of one job on a sick host go to the same place if there is one that
takes them, so that they have memory in common there as well; else they are divided where least
traffic is cut. A plan is what is printed by a dry run, and what is done.

Nothing is planned for hosts of which nothing is known: unknown is not failing. And nothing at all
while more than a share of the hosts look sick: then the source of that is more likely to be wrong
than the hosts are, and there is nowhere to go.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..health.contract import Level


class Policy(enum.Enum):
    """Which hosts may take a machine."""

    #: Those without a running machine and below the limits of load (the paper's rule).
    SPARE_ONLY = "spare-only"
    #: Every healthy host with room.
    ANY_WITH_ROOM = "any-with-room"


@dataclass(frozen=True)
class Rules:
    """Limits of what is planned."""

    policy: Policy = Policy.SPARE_ONLY
    #: Moves under way at once, out of or into one host, and in all.
    per_host: int = 2
    total: int = 8
    #: More than this share of all hosts sick, and more than one: nothing moves.
    breaker: float = 1 / 3
    #: A machine that was tried so often and failed stays, with an alarm.
    tries: int = 3
    #: Seconds after the first failed try; each further one doubles it.
    back_off: float = 60.0
    #: Bytes of a host's memory that no machine gets.
    reserve: int = 0


@dataclass(frozen=True)
class HostView:
    """What is known of a host at one moment. None: it is not known."""

    name: str
    level: Level
    #: Why it has that level, for people.
    why: str = ""
    #: Somebody has asked for it to be emptied.
    evacuate: bool = False
    #: Why it is not known which machines it has; empty: it is.
    unseen: str = ""
    #: Why it is no spare; empty when it is one.
    not_spare: tuple[str, ...] = ()
    #: The highest of its mean loads, in percent.
    load: float | None = None
    #: Bytes that no machine on it has been promised; moves under way are counted by the plan.
    free_memory: int | None = None
    cpu_flags: frozenset[str] | None = None
    #: Its region: places and bytes that are left. None: it has no region.
    places: int | None = None
    region_bytes: int | None = None


@dataclass(frozen=True)
class MachineView:
    """A machine that runs on a host."""

    name: str
    host: str
    memory: int
    cpu_flags: frozenset[str] = frozenset()
    #: The job whose members it holds; None: none that has shared memory.
    job: str | None = None
    #: Its processes in the region, and what they hold of it.
    processes: int = 0
    region_bytes: int = 0
    #: Why it cannot be moved now, such as that somebody else is moving it.
    busy: str | None = None


@dataclass(frozen=True)
class Tried:
    """Moves of a machine that failed, one after the other."""

    times: int
    #: When the last one ended, in seconds of the same clock as `now`.
    last: float
    #: Where it could not be moved to.
    targets: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Move:
    machine: str
    source: str
    target: str
    job: str | None
    #: Bytes of memory that it needs over there.
    memory: int
    #: Why it leaves.
    why: str


@dataclass(frozen=True)
class Alarm:
    """Something that a person has to look at."""

    #: One word, for filters: breaker, no-target, tries, divided, busy, unseen, nodes.
    kind: str
    #: The host or machine that it is about; empty: all.
    subject: str
    text: str


@dataclass(frozen=True)
class Considered:
    """Why a host does not take the machines of one job."""

    host: str
    reason: str


@dataclass(frozen=True)
class Plan:
    moves: tuple[Move, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    #: Moves that wait for others to end, or for a time: machine -> the reason.
    waiting: Mapping[str, str] = field(default_factory=dict)
    #: For each group that was looked at, by its machines: why hosts were passed over.
    considered: Mapping[tuple[str, ...], tuple[Considered, ...]] = field(default_factory=dict)


#: Bytes between two machines in a second, by profiles of jobs (traffic.py).
Traffic = Mapping[frozenset[str], float]


@dataclass
class _Room:
    """What is left of a host while a plan grows."""

    view: HostView
    memory: int | None
    places: int | None
    region_bytes: int | None
    under_way: int = 0

    @classmethod
    def of(cls, view: HostView, rules: Rules) -> _Room:
        memory = None if view.free_memory is None else view.free_memory - rules.reserve
        return cls(view, memory, view.places, view.region_bytes)

    def lacks(self, group: Sequence[MachineView]) -> str | None:
        """What is missing for these machines; None: they fit."""
        need = sum(machine.memory for machine in group)
        if self.memory is None:
            return "its memory is not known"
        if need > self.memory:
            return f"{need >> 20} MiB of memory are needed, {max(self.memory, 0) >> 20} are free"
        flags = frozenset[str]().union(*(machine.cpu_flags for machine in group))
        missing = flags - (self.view.cpu_flags or frozenset())
        if missing:
            return f"its processors have no {', '.join(sorted(missing)[:4])}"
        return self._lacks_region(group)

    def _lacks_region(self, group: Sequence[MachineView]) -> str | None:
        if all(machine.job is None for machine in group):
            return None
        processes = sum(machine.processes for machine in group)
        size = sum(machine.region_bytes for machine in group)
        if self.places is None:
            return "it has no region"
        if processes > self.places:
            return f"its region has {self.places} places left, {processes} are needed"
        if self.region_bytes is not None and size > self.region_bytes:
            return f"its region has {self.region_bytes >> 20} MiB left, {size >> 20} are needed"
        return None

    def take(self, group: Sequence[MachineView]) -> None:
        assert self.memory is not None
        self.memory -= sum(machine.memory for machine in group)
        if self.places is not None:
            self.places -= sum(machine.processes for machine in group)
        if self.region_bytes is not None:
            self.region_bytes -= sum(machine.region_bytes for machine in group)


def _partners(traffic: Traffic) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for pair, amount in traffic.items():
        one, other = sorted(pair)
        found[one][other] = found[other][one] = amount
    return found


class _Planner:
    def __init__(
        self,
        hosts: Sequence[HostView],
        machines: Sequence[MachineView],
        rules: Rules,
        traffic: Traffic,
        tried: Mapping[str, Tried],
        under_way: Sequence[Move],
        landed: Sequence[Move],
        now: float,
    ) -> None:
        self.rules = rules
        self.partners = _partners(traffic)
        self.tried = tried
        self.now = now
        self.rooms = {view.name: _Room.of(view, rules) for view in hosts}
        self.by_host: dict[str, list[MachineView]] = defaultdict(list)
        for machine in machines:
            self.by_host[machine.host].append(machine)
        self.moving = {move.machine: move for move in under_way}
        self.n_under_way = len(under_way)
        self.moves: list[Move] = []
        self.alarms: list[Alarm] = []
        self.waiting: dict[str, str] = {}
        self.considered: dict[tuple[str, ...], tuple[Considered, ...]] = {}
        self.passed: list[Considered] = []
        self.fit: list[_Room] = []
        for room in self.rooms.values():
            reason = self._unfit(room.view)
            if reason is None:
                self.fit.append(room)
            else:
                self.passed.append(Considered(room.view.name, reason))
        #: Moves of each job: where some of its machines have gone, the others go as well.
        self.went: dict[str, list[Move]] = defaultdict(list)
        for move in (*under_way, *landed):
            if move.job is not None:
                self.went[move.job].append(move)
        self.known = {machine.name: machine for machine in machines}
        for move in under_way:
            self._count(move)
            # It is not there yet, and has its place.
            target = self.rooms.get(move.target)
            if target is not None and target.memory is not None:
                unseen = MachineView(move.machine, move.source, move.memory, job=move.job)
                target.take([self.known.get(move.machine, unseen)])

    def _count(self, move: Move) -> None:
        for name in (move.source, move.target):
            if name in self.rooms:
                self.rooms[name].under_way += 1

    def plan(self) -> Plan:
        sick = [room.view for room in self.rooms.values() if _is_to_leave(room.view)]
        if not self._is_tripped(sick):
            for view in sick:
                self._empty(view)
        return Plan(tuple(self.moves), tuple(self.alarms), self.waiting, self.considered)

    def _is_tripped(self, sick: Sequence[HostView]) -> bool:
        """Hosts that somebody empties by hand are not sick."""
        failing = [view.name for view in sick if view.level is Level.FAILING]
        if len(failing) < 2 or len(failing) <= self.rules.breaker * len(self.rooms):
            return False
        names = ", ".join(failing[:5]) + (", ..." if len(failing) > 5 else "")
        self.alarms.append(
            Alarm(
                "breaker",
                "",
                f"{len(failing)} of {len(self.rooms)} hosts look sick ({names}), more than"
                f" {100 * self.rules.breaker:.0f} %: nothing moves until fewer do; is a source of"
                " health wrong?",
            )
        )
        return True

    def _empty(self, view: HostView) -> None:
        why = f"{view.name} is to be emptied" if view.evacuate else f"{view.name} fails: {view.why}"
        if view.unseen:
            text = f"{why}, and what runs there is not known: {view.unseen}"
            self.alarms.append(Alarm("unseen", view.name, text))
        for group in self._groups(view.name):
            self._place(group, view.name, why)

    def _groups(self, host: str) -> list[list[MachineView]]:
        """The machines that are to leave it, by job; the smallest first, as most can be saved so."""
        groups: dict[str, list[MachineView]] = defaultdict(list)
        for machine in self.by_host[host]:
            if self._may_leave(machine):
                # A machine's name cannot hold a blank, so these are keys of their own.
                groups[machine.job or f"{machine.name} alone"].append(machine)
        found = [sorted(group, key=lambda machine: machine.name) for group in groups.values()]
        return sorted(found, key=lambda group: (sum(m.memory for m in group), group[0].name))

    def _may_leave(self, machine: MachineView) -> bool:
        if machine.name in self.moving:
            return False
        if machine.busy is not None:
            self.alarms.append(Alarm("busy", machine.name, f"{machine.name} stays: {machine.busy}"))
            return False
        tried = self.tried.get(machine.name)
        if tried is None:
            return True
        if tried.times >= self.rules.tries:
            text = f"{machine.name} was not moved in {tried.times} tries: it stays until a person"
            self.alarms.append(Alarm("tries", machine.name, f"{text} has it moved"))
            return False
        left = tried.last + self.rules.back_off * 2 ** (tried.times - 1) - self.now
        if left > 0:
            self.waiting[machine.name] = f"failed {tried.times} times, again in {left:.0f} s"
        return left <= 0

    def _place(self, group: list[MachineView], source: str, why: str) -> None:
        if self.n_under_way >= self.rules.total:
            for machine in group:
                self.waiting[machine.name] = self._after_others()
            return
        target = self._target(group, source)
        if target is not None:
            self._send(group, source, target, why)
            return
        if len(group) == 1:
            self._no_target(group, source)
            return
        self._divide(group, source, why)

    def _send(self, group: list[MachineView], source: str, target: _Room, why: str) -> None:
        target.take(group)
        for machine in group:
            move = Move(machine.name, source, target.view.name, machine.job, machine.memory, why)
            if machine.job is not None:
                self.went[machine.job].append(move)
            reason = self._must_wait(source, target)
            if reason is not None:
                self.waiting[machine.name] = f"to {target.view.name}, {reason}"
                continue
            self.n_under_way += 1
            self._count(move)
            self.moves.append(move)

    def _must_wait(self, source: str, target: _Room) -> str | None:
        if self.n_under_way >= self.rules.total:
            return self._after_others()
        for room in (self.rooms[source], target):
            if room.under_way >= self.rules.per_host:
                return f"after others: {self.rules.per_host} moves at once on {room.view.name}"
        return None

    def _after_others(self) -> str:
        return f"after others: {self.rules.total} moves at once"

    def _no_target(self, group: list[MachineView], source: str) -> None:
        names = ", ".join(machine.name for machine in group)
        reasons = self.considered[tuple(machine.name for machine in group)]
        rule = "spare" if self.rules.policy is Policy.SPARE_ONLY else "healthy host with room"
        text = f"no {rule} takes {names}, which stays on {source}"
        if reasons:
            told = "; ".join(f"{one.host}: {one.reason}" for one in reasons[:3])
            more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
            text += f" ({told}{more})"
        self.alarms.append(Alarm("no-target", names, text))

    def _divide(self, group: list[MachineView], source: str, why: str) -> None:
        """The largest part that fits somewhere, cut where least traffic is; then the rest."""
        for n in range(len(group) - 1, 1, -1):
            part = self._closest(group, n)
            target = self._target(part, source)
            if target is None:
                continue
            names = ", ".join(machine.name for machine in part)
            self.alarms.append(
                Alarm("divided", group[0].job or "", f"no host takes all machines of a job on {source}:"
                      f" {names} go to {target.view.name} without the others")
            )  # fmt: skip
            self._send(part, source, target, why)
            rest = [machine for machine in group if machine not in part]
            self._place(rest, source, why)
            return
        for machine in group:
            self._place([machine], source, why)

    def _closest(self, group: Sequence[MachineView], n: int) -> list[MachineView]:
        """N of them, grown from the one with most traffic by the one that has most with those chosen."""
        part: list[MachineView] = []
        rest = list(group)
        while len(part) < n:
            others = part or rest
            best = max(
                rest,
                key=lambda one: (self._bytes(one.name, (m.name for m in others)), -one.memory),
            )
            rest.remove(best)
            part.append(best)
        return sorted(part, key=lambda machine: machine.name)

    def _bytes(self, name: str, others: Iterable[str]) -> float:
        partners = self.partners.get(name, {})
        return sum(partners.get(other, 0.0) for other in others)

    def _target(self, group: Sequence[MachineView], source: str) -> _Room | None:
        """Where they go: where others of their job went, else where most of their traffic is, else
        the least loaded, else by name."""
        passed = [one for one in self.passed if one.host != source]
        job = group[0].job
        went = self.went[job] if job is not None else []
        refuges = {move.target for move in went}
        local = self._local(group)
        best: _Room | None = None
        best_rank: tuple[bool, float, float, str] | None = None
        for room in self._candidates({move.target for move in went if move.source == source}):
            name = room.view.name
            reason = self._lacks(room, group)
            if reason is not None:
                passed.append(Considered(name, reason))
                continue
            load = room.view.load if room.view.load is not None else 100.0
            rank = (name not in refuges, -local.get(name, 0.0), load, name)
            if best_rank is None or rank < best_rank:
                best, best_rank = room, rank
        self.considered[tuple(machine.name for machine in group)] = tuple(passed)
        return best

    def _candidates(self, promised: Iterable[str]) -> list[_Room]:
        """A host that has just received others of these from the host that they leave is no spare any
        more, for that reason."""
        rooms = list(self.fit)
        for name in sorted(promised):
            room = self.rooms.get(name)
            if room is not None and room not in rooms and _unwell(room.view) is None:
                rooms.append(room)
        return rooms

    def _local(self, group: Sequence[MachineView]) -> dict[str, float]:
        """Bytes between the group and other machines, by the hosts that these are on."""
        local: dict[str, float] = defaultdict(float)
        names = {machine.name for machine in group}
        for name in names:
            for other, amount in self.partners.get(name, {}).items():
                if other not in names and other in self.known:
                    local[self.known[other].host] += amount
        return local

    def _unfit(self, view: HostView) -> str | None:
        """Why it takes nobody."""
        if self.rules.policy is Policy.SPARE_ONLY and view.not_spare:
            return _unwell(view) or "no spare: " + ", ".join(view.not_spare)
        return _unwell(view)

    def _lacks(self, room: _Room, group: Sequence[MachineView]) -> str | None:
        """Why it does not take these."""
        for machine in group:
            tried = self.tried.get(machine.name)
            if tried is not None and room.view.name in tried.targets:
                return f"a move of {machine.name} to it has failed"
        return room.lacks(group)


def _unwell(view: HostView) -> str | None:
    if view.evacuate:
        return "it is to be emptied"
    if view.level is not Level.OK:
        return f"its health is {view.level.value}" + (f": {view.why}" if view.why else "")
    return None


def _is_to_leave(view: HostView) -> bool:
    return view.evacuate or view.level is Level.FAILING


def make(
    hosts: Sequence[HostView],
    machines: Sequence[MachineView],
    rules: Rules = Rules(),
    *,
    traffic: Traffic | None = None,
    tried: Mapping[str, Tried] | None = None,
    under_way: Sequence[Move] = (),
    landed: Sequence[Move] = (),
    now: float = 0.0,
) -> Plan:
    """The moves that begin now, and what else is to be said.

    `under_way` are moves that have begun and not ended; their machines are in MACHINES, on the host
    that they leave. `landed` are those that have ended well since the host that they left became
    sick. What does not fit into the limits now is in `waiting`, and comes with a later plan.
    """
    planner = _Planner(
        hosts, machines, rules, traffic or {}, tried or {}, under_way, landed, now
    )
    return planner.plan()
