"""What is on the hosts of an inventory: machines, what they need, whose jobs they hold.

Hosts are asked at the same time, each within a limit. One that does not answer is known by its name
alone: nothing moves to it, and its machines are not known to be anywhere.

A machine that the guard itself is moving is not asked: a QEMU answers one program at a time, and that is
the mover. What was known of it when it began holds until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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

    view: MachineView
    #: None: it does not answer, and its view says why. Who moves a machine may have it for himself.
    state: State | None


#: Machines that the guard is moving, by name, on the hosts that they leave.
Moving = Mapping[str, MachineView]


async def look(those: Sequence[Hypervisor], timeout: float, moving: Moving) -> list[Seen]:
    """Every host; TIMEOUT in seconds for each."""
    return list(await asyncio.gather(*(_look_at(one, timeout, moving) for one in those)))


async def _look_at(one: Hypervisor, timeout: float, moving: Moving) -> Seen:
    try:
        async with asyncio.timeout(timeout):
            return await _seen(one, moving)
    except TimeoutError:
        fault = f"it has not answered for {timeout:.0f} s"
    except IvcError as error:
        fault = str(error)
    return Seen(one.host.name, Machines(fault=fault))


async def _seen(one: Hypervisor, moving: Moving) -> Seen:
    description = await one.describe()
    present = await _groups(one)
    found = []
    for name in await one.machines():
        if name in moving:
            found.append(_leaves(one, moving[name]))
        elif machine := await _found(one, name, present, description.cpu_flags):
            found.append(machine)
    promised = sum(machine.view.memory for machine in found if machine.state is not State.WAITING)
    # A place that waits has taken some of it already: that is a move's, which the plan counts.
    waiting = sum(machine.view.memory for machine in found if machine.state is State.WAITING)
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
        machines=tuple(machine.view for machine in found
                       if machine.state not in (State.WAITING, State.MOVED)),
    )  # fmt: skip


def _counted(found: Sequence[_Found]) -> Machines:
    return Machines(
        tuple(machine.view.name for machine in found if machine.state not in _STANDBY),
        tuple(machine.view.name for machine in found if machine.state in _STANDBY),
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


def _leaves(one: Hypervisor, view: MachineView) -> _Found:
    """A machine that is being moved, or the place that waits for it."""
    return _Found(view, State.RUNNING if view.host == one.host.name else State.WAITING)


async def _found(
    one: Hypervisor, name: str, present: Sequence[Group], host_flags: frozenset[str]
) -> _Found | None:
    try:
        machine = await one.machine(name)
    except MachineError as fault:
        return _Found(MachineView(name, one.host.name, 0, busy=str(fault)), None)
    if machine is None:
        return None  # it has ended since
    try:
        state = await machine.state()
        description = await machine.describe()
        groups = guests.of_machine(present, _names(machine), machine.uuid)
        jobs = frozenset[str]().union(*(group.jobs for group in groups))
        processes = sum(group.count for group in groups)
        view = MachineView(
            name,
            one.host.name,
            description.memory,
            # What the host under it does not have is the hypervisor's own: emulated, or another name.
            description.cpu_flags & host_flags,
            # Joined by `with_jobs` with those of other machines.
            job=" ".join(sorted(jobs)) or None,
            processes=processes,
            region_bytes=processes * room.BYTES_PER_MEMBER,
            busy=await _busy(machine, state),
        )
    finally:
        await machine.close()
    return _Found(view, state)


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
