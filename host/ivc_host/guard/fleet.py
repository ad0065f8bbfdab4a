"""What is on the hosts of an inventory: machines, what they need, whose jobs they hold.

Hosts are asked at the same time, each within a limit. One that does not answer is known by its name
alone: nothing moves to it, and its machines are not known to be anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..errors import IvcError
from ..health.spares import Machines
from ..hypervisor.contract import Hypervisor, Machine, State
from ..hypervisor.faults import MachineError
from ..migrate import guests, lock, order, room
from ..migrate.order import Group
from .plan import MachineView

#: Not at work here: paused, waiting for a migration, or left behind by one.
_STANDBY = (State.PAUSED, State.WAITING, State.MOVED)


@dataclass(frozen=True)
class Seen:
    """One host, as its hypervisor and its region tell."""

    name: str
    #: Which machines it has, or why nothing is known of it.
    counted: Machines = Machines()
    #: Bytes that no machine has been promised and that are free; None: not known.
    free_memory: int | None = None
    cpu_flags: frozenset[str] | None = None
    places: int | None = None
    region_bytes: int | None = None
    #: All but what a migration has made or left: those that do not run are busy, and stay.
    machines: tuple[MachineView, ...] = ()


@dataclass
class _Found:
    """A machine while its host is looked at."""

    name: str
    #: None: it does not answer, and `busy` says why. Who moves a machine may have it for himself.
    state: State | None
    memory: int
    cpu_flags: frozenset[str]
    groups: list[Group] = field(default_factory=list)
    busy: str | None = None


async def look(those: Sequence[Hypervisor], timeout: float) -> list[Seen]:
    """Every host; TIMEOUT in seconds for each."""
    return list(await asyncio.gather(*(_look_at(one, timeout) for one in those)))


async def _look_at(one: Hypervisor, timeout: float) -> Seen:
    try:
        async with asyncio.timeout(timeout):
            return await _seen(one)
    except TimeoutError:
        fault = f"it has not answered for {timeout:.0f} s"
    except IvcError as error:
        fault = str(error)
    return Seen(one.host.name, Machines(fault=fault))


async def _seen(one: Hypervisor) -> Seen:
    description = await one.describe()
    present = await _groups(one)
    names = await one.machines()
    found = [machine for name in names if (machine := await _found(one, name, present))]
    promised = sum(machine.memory for machine in found if machine.state is not State.WAITING)
    # A place that waits has taken some of it already: that is a move's, which the plan counts.
    waiting = sum(machine.memory for machine in found if machine.state is State.WAITING)
    places, size = await _room(one)
    return Seen(
        one.host.name,
        _counted(found),
        # One that does not answer was promised nobody knows how much.
        free_memory=None if any(machine.state is None for machine in found)
        else min(description.memory - promised, description.memory_free + waiting),
        cpu_flags=description.cpu_flags,
        places=places,
        region_bytes=size,
        machines=tuple(_view(one.host.name, machine) for machine in found
                       if machine.state not in (State.WAITING, State.MOVED)),
    )  # fmt: skip


def _counted(found: Sequence[_Found]) -> Machines:
    return Machines(
        tuple(machine.name for machine in found if machine.state not in _STANDBY),
        tuple(machine.name for machine in found if machine.state in _STANDBY),
    )


async def _groups(one: Hypervisor) -> list[Group]:
    return await order.groups(one.reach, one.host.region) if one.host.region else []


async def _room(one: Hypervisor) -> tuple[int | None, int | None]:
    if not one.host.region:
        return None, None
    try:
        found = await room.check(one.reach, one.host.region, 0)
    except IvcError:
        return None, None  # it takes nobody who needs one; `ivc region show` says why
    return found.free_places, found.free_bytes


async def _found(one: Hypervisor, name: str, present: Sequence[Group]) -> _Found | None:
    try:
        machine = await one.machine(name)
    except MachineError as fault:
        return _Found(name, None, 0, frozenset(), busy=str(fault))
    if machine is None:
        return None  # it has ended since
    try:
        state = await machine.state()
        description = await machine.describe()
        found = _Found(name, state, description.memory, description.cpu_flags)
        found.busy = await _busy(machine, state)
        found.groups = guests.of_machine(present, _names(machine), machine.uuid)
    finally:
        await machine.close()
    return found


def _names(machine: Machine) -> list[str]:
    return [name for name in dict.fromkeys((machine.name, machine.own_name)) if name]


async def _busy(machine: Machine, state: State) -> str | None:
    """Why it could not be moved now. What the guard itself moves is no surprise to the plan."""
    if (holder := lock.holder(machine.key)) is not None:
        return holder
    if state is not State.RUNNING:
        return f"it is {state.value}"
    reasons = await machine.blockers()
    return "; ".join(reasons) or None


def _view(host: str, machine: _Found) -> MachineView:
    jobs = frozenset[str]().union(*(group.jobs for group in machine.groups))
    return MachineView(
        machine.name,
        host,
        machine.memory,
        machine.cpu_flags,
        # Joined by `with_jobs` with those of other machines.
        job=" ".join(sorted(jobs)) or None,
        processes=sum(group.count for group in machine.groups),
        busy=machine.busy,
    )


def with_jobs(machines: Sequence[MachineView]) -> list[MachineView]:
    """Machines that have a job in common, also through others, are of one group."""
    leader: dict[str, str] = {}

    def find(job: str) -> str:
        while leader.setdefault(job, job) != job:
            leader[job] = leader[leader[job]]
            job = leader[job]
        return job

    for machine in machines:
        jobs = (machine.job or "").split()
        for job in jobs[1:]:
            a, b = sorted((find(jobs[0]), find(job)))
            leader[b] = a
    return [
        replace(machine, job=find(machine.job.split()[0])) if machine.job else machine
        for machine in machines
    ]
