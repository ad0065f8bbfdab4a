"""Which machine the user means, where it is, and whose processes are its guest's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from ..errors import IvcError, UsageError
from ..hypervisor import registry
from ..hypervisor.contract import Hypervisor, Machine, RegionDevice, State
from ..hypervisor.faults import MigrateError
from ..hypervisor.host import Host
from ..hypervisor.reach import Reach
from . import guests, lock, order
from .inventory import Inventory


@asynccontextmanager
async def hypervisors_of(hosts: Sequence[Host]) -> AsyncIterator[list[Hypervisor]]:
    reaches = [Reach(host) for host in hosts]
    found = [registry.of(host, reach) for host, reach in zip(hosts, reaches, strict=True)]
    try:
        yield found
    finally:
        for one in found:
            await one.close()
        for reach in reaches:
            await reach.close()


def is_path(word: str) -> bool:
    return "/" in word


async def _locate(name: str, those: list[Hypervisor], where: str) -> tuple[Hypervisor, Machine]:
    """The host that has the machine. A place that only waits for it does not have it."""
    found: list[tuple[Hypervisor, Machine]] = []
    faults: list[IvcError] = []
    for one in those:
        try:
            machine = await one.machine(name)
        except IvcError as fault:
            faults.append(fault)
            continue
        if machine is not None:
            found.append((one, machine))
    states = [await machine.state() for _, machine in found]
    real = [one for one, state in zip(found, states, strict=True) if state is not State.WAITING]
    for _, machine in found:
        if len(real) != 1 or machine is not real[0][1]:
            await machine.close()
    if len(real) == 1:
        return real[0]
    if len(real) > 1:
        names = ", ".join(one.host.name for one, _ in real)
        raise MigrateError(f"{name} is on several hosts: {names}", hint="end all but one of them")
    if faults:
        raise faults[0]
    raise await _unknown(name, those, where)


async def _unknown(name: str, those: list[Hypervisor], where: str) -> IvcError:
    if is_path(name):
        return UsageError(f"no QEMU answers on {name}", hint="is it the -qmp socket of one?")
    known = []
    for one in those:
        try:
            known += [f"{other} on {one.host.name}" for other in await one.machines()]
        except IvcError:
            continue
    return UsageError(
        f"there is no machine {name} on the hosts of {where}",
        hint=f"there are {', '.join(known)}" if known else "no machine answers on any of them",
    )


def hosts_of(
    vm: str, book: Inventory | None, at: Host | None, region: str | None
) -> tuple[list[Host], str]:
    """Where a machine is looked for, and what to call that."""
    if at is not None:
        return [at], at.name
    if is_path(vm):
        host = registry.host_of(vm, region)
        if host is None:
            raise UsageError(f"{vm}: no path of a socket", hint="give a machine's name, or its path")
        return [host], vm
    assert book is not None
    return list(book.hosts.values()), book.path


@asynccontextmanager
async def machine_of(
    vm: str, book: Inventory | None, at: Host | None, region: str | None, doing: str
) -> AsyncIterator[tuple[Hypervisor, Machine]]:
    """The machine that the user means, and its host; nobody else changes it meanwhile."""
    hosts, where = hosts_of(vm, book, at, region)
    # A list of hosts is one by whatever path it was found.
    key = hosts[0].name if is_path(vm) else f"{where if at else os.path.realpath(where)} {vm}"
    with lock.held(key, vm, doing):
        async with hypervisors_of(hosts) as those:
            one, machine = await _locate(vm, those, where)
            try:
                with lock.held(machine.key, vm, doing) if machine.key != key else nullcontext():
                    yield one, machine
            finally:
                await machine.close()


def _names(machine: Machine) -> list[str]:
    """What a guest may call itself: the machine's name here, and the hypervisor's for it."""
    own = os.path.basename(machine.name) if is_path(machine.name) else machine.name
    return list(dict.fromkeys(name for name in (own, machine.own_name) if name))


async def whom_to_order(
    machine: Machine, at: Hypervisor, region: str, said: str | None
) -> tuple[list[str], int]:
    """Whom to order away from the region, and how many processes they are at least."""
    if said == guests.NOBODY:
        return [], 0
    present = await order.groups(at.reach, region)
    others = [] if is_path(machine.name) else await at.machines()
    others = [name for name in others if name != machine.name]
    return guests.choose(present, _names(machine), machine.uuid, others, said)


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


async def leavers(
    here: Hypervisor, machine: Machine, guest: str | None
) -> tuple[RegionDevice | None, str, list[str], int]:
    """A machine's region: device, file, whom to order away from it, and how many those are."""
    device = await machine.region()
    if device is None:
        return None, "", [], 0
    path = region_path(machine, here.host, device)
    return device, path, *await whom_to_order(machine, here, path, guest)
