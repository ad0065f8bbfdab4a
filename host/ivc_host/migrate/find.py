"""Which machine the user means, where it is, and whose processes are its guest's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

from ..errors import IvcError, UsageError
from . import guests, inventory, lock, order
from .inventory import Host, Inventory
from .machine import Machine, Mechanism, MigrateError, RegionDevice, State
from .qemu import Qemu
from .reach import Reach


@dataclass
class Place:
    """A machine's host, and the way to it."""

    host: Host
    reach: Reach
    mechanism: Mechanism

    @classmethod
    def of(cls, host: Host) -> Place:
        reach = Reach(host)
        return cls(host, reach, Qemu(host, reach))


@asynccontextmanager
async def places_of(hosts: list[Host]) -> AsyncIterator[list[Place]]:
    found = [Place.of(host) for host in hosts]
    try:
        yield found
    finally:
        for place in found:
            await place.reach.close()


def is_path(word: str) -> bool:
    return "/" in word


async def _locate(name: str, places: list[Place], where: str) -> tuple[Place, Machine]:
    """The host that has the machine. A place that only waits for it does not have it."""
    found: list[tuple[Place, Machine]] = []
    faults: list[IvcError] = []
    for place in places:
        try:
            machine = await place.mechanism.find(name)
        except IvcError as fault:
            faults.append(fault)
            continue
        if machine is not None:
            found.append((place, machine))
    states = [await machine.state() for _, machine in found]
    real = [one for one, state in zip(found, states, strict=True) if state is not State.WAITING]
    for _, machine in found:
        if len(real) != 1 or machine is not real[0][1]:
            await machine.close()
    if len(real) == 1:
        return real[0]
    if len(real) > 1:
        names = ", ".join(place.host.name for place, _ in real)
        raise MigrateError(f"{name} is on several hosts: {names}", hint="end all but one of them")
    if faults:
        raise faults[0]
    raise await _unknown(name, places, where)


async def _unknown(name: str, places: list[Place], where: str) -> IvcError:
    if is_path(name):
        return UsageError(f"no QEMU answers on {name}", hint="is it the -qmp socket of one?")
    known = []
    for place in places:
        try:
            known += [f"{other} on {place.host.name}" for other in await place.mechanism.names()]
        except IvcError:
            continue
    return UsageError(
        f"there is no machine {name} on the hosts of {where}",
        hint=f"there are {', '.join(known)}" if known else "no machine answers on any of them",
    )


@asynccontextmanager
async def machine_of(
    vm: str, book: Inventory | None, region: str | None, doing: str
) -> AsyncIterator[tuple[Place, Machine]]:
    """The machine that the user means, and its host; nobody else changes it meanwhile."""
    if book is None or is_path(vm):
        hosts, where = [inventory.anonymous(vm, region, None)], vm
        key = hosts[0].qmp
    else:
        hosts, where = list(book.hosts.values()), book.path
        key = f"{os.path.realpath(book.path)} {vm}"
    with lock.held(key, vm, doing), ExitStack() as stack:
        async with places_of(hosts) as places:
            place, machine = await _locate(vm, places, where)
            try:
                if machine.key != key:
                    stack.enter_context(lock.held(machine.key, vm, doing))
                yield place, machine
            finally:
                await machine.close()


async def _names(machine: Machine) -> list[str]:
    """What a guest may call itself: the machine's name here, and the hypervisor's for it."""
    own = getattr(machine, "own_name", "")
    names = [os.path.basename(machine.name) if is_path(machine.name) else machine.name, own]
    return list(dict.fromkeys(name for name in names if name))


async def whom_to_order(
    machine: Machine, place: Place, region: str, said: str | None
) -> tuple[list[str], int]:
    """Whom to order away from the region, and how many processes they are at least."""
    if said == guests.NOBODY:
        return [], 0
    present = await order.groups(place.reach, region)
    others = [] if is_path(machine.name) else await place.mechanism.names()
    others = [name for name in others if name != machine.name]
    return guests.choose(present, await _names(machine), machine.uuid, others, said)


def region_path(machine: Machine, host: Host, device: RegionDevice) -> str:
    """The file of the region that a machine has: the hypervisor's word, when it is a whole path."""
    if device.path.startswith("/"):
        return device.path
    if host.region is None:
        raise MigrateError(
            f"{machine.name} has the region {device.path}, from a folder that is not known here",
            hint="name its file with --region",
        )
    return host.region
