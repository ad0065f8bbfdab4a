"""`ivc migrate`, `ivc attach`, `ivc detach`, `ivc save`: what the user's words mean, and what is printed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..errors import IvcError, UsageError
from . import inventory, room, show, xen
from .departure import Departure, describe
from .find import Place, is_path, machine_of, places_of, region_path, whom_to_order
from .interrupts import Interrupts, run
from .inventory import Host, Inventory
from .journey import Journey, Limits, Report
from .machine import Machine, MachineError, MigrateError, RegionDevice, State

Vm = Annotated[str, typer.Argument(metavar="VM", help="Its name, or the path of its QMP socket.")]
InventoryOption = Annotated[
    Path | None, typer.Option("--inventory", help="The file that lists the hosts.")
]
Lab = Annotated[str | None, typer.Option(help="The inventory of that lab.")]
Guest = Annotated[
    str | None,
    typer.Option(help="Whose processes leave the region: an identity, a host name, or none."),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds for the processes to let go of the region.")
]
DetachTimeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds for the guest to let go of the device.")
]
Json = Annotated[bool, typer.Option("--json", help="Print events as JSON, one a line.")]


def _book(vm: str, path: Path | None, lab: str | None, needed: bool = False) -> Inventory | None:
    if not is_path(vm):
        inventory.check_vm(vm)
    elif not needed:
        return None
    return inventory.load(inventory.chosen(path, lab))


@contextmanager
def _telling(as_json: bool, interrupts: Interrupts) -> Iterator[show.Quiet]:
    """What is told until the work is done, and if it fails."""
    tell = show.teller(as_json, interrupts.close)
    try:
        yield tell
    except IvcError as fault:
        if isinstance(tell, show.Events):
            tell.emit("failed", error=str(fault))
        raise
    finally:
        tell.close()


def migrate(
    vm: Vm,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="HOST",
            help="A host of the inventory, or the QMP socket of a QEMU that waits there.",
        ),
    ],
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    guest: Guest = None,
    region: Annotated[
        str | None, typer.Option(help="The region's file over there, when HOST is a socket.")
    ] = None,
    timeout: Timeout = 10.0,
    detach_timeout: DetachTimeout = 20.0,
    stall: Annotated[
        float, typer.Option(min=1, help="Give up after so many seconds without a byte moved.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    """Move a virtual machine to another host while its MPI jobs run."""
    if region is not None and not is_path(to):
        raise UsageError("--region goes with --to SOCKET", hint="a host's is in the inventory")
    book = _book(vm, inventory_path, lab, needed=not is_path(to))
    target = inventory.anonymous(to, region, None) if is_path(to) or book is None else book.host(to)

    async def work(interrupts: Interrupts) -> None:
        with _telling(as_json, interrupts) as tell:
            await _migrate(vm, book, target, guest, limits, tell)

    limits = Limits(timeout, detach_timeout, stall)
    run(work)


async def _migrate(
    vm: str,
    book: Inventory | None,
    target: Host,
    guest: str | None,
    limits: Limits,
    tell: show.Quiet,
) -> None:
    if target.hypervisor == "xen":
        assert book is not None
        _tell_report(await xen.migrate(vm, book, target, limits, tell), tell)
        return
    doing = f"a migration of {vm}"
    async with (
        machine_of(vm, book, None, doing) as (place, machine),
        places_of([target]) as (there,),
    ):
        if place.host.name == target.name:
            raise UsageError(f"{vm} is on {target.name} already")
        device = await machine.region()
        path = region_path(machine, place.host, device) if device else ""
        whom, count = await whom_to_order(machine, place, path, guest) if device else ([], 0)
        journey = Journey(
            source=machine,
            source_reach=place.reach,
            target_host=target,
            target_reach=there.reach,
            mechanism=there.mechanism,
            device=device,
            region_path=path,
            guests=whom,
            processes=count,
            limits=limits,
            tell=tell,
        )
        report = await journey.run()
    _tell_report(report, tell)


def _tell_report(report: Report, tell: show.Quiet) -> None:
    tell.close()
    if isinstance(tell, show.Events):
        tell.emit("done", **dataclasses.asdict(report))
    else:
        show.print_report(report)


def attach(
    vm: Vm,
    region: Annotated[
        str | None, typer.Option(help="The region's file, when it is not the host's.")
    ] = None,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
) -> None:
    """Plug a host's region into a virtual machine; its MPI jobs find it by themselves."""
    book = _book(vm, inventory_path, lab)

    async def work(interrupts: Interrupts) -> None:
        del interrupts
        async with machine_of(vm, book, region, f"an attach of {vm}") as (place, machine):
            path = await _attach(vm, region, place, machine)
            print(f"{vm} on {place.host.name} has the region {path}")

    run(work)


async def _attach(vm: str, region: str | None, place: Place, machine: Machine) -> str:
    host = place.host
    path = region or host.region
    if path is None:
        raise UsageError(f"which region is {vm} to have?", hint="name its file with --region")
    present = await machine.region()
    if present is not None:
        raise MigrateError(f"{vm} on {host.name} has a region already, {present.path}")
    found = await room.check(place.reach, path, 0)
    path = os.path.abspath(path) if place.reach.is_here else path
    device = RegionDevice(path, found.size, host.device, host.memory, host.bus, host.address)
    try:
        await machine.attach(device)
    except MachineError as fault:
        where = await describe(machine, False)
        raise MigrateError(f"{vm} was not given the region {path}: {fault}; {where}") from None
    return path


def detach(
    vm: Vm,
    guest: Guest = None,
    region: Annotated[
        str | None, typer.Option(help="The region's file, where QEMU does not tell its whole path.")
    ] = None,
    timeout: Timeout = 10.0,
    detach_timeout: DetachTimeout = 20.0,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    as_json: Json = False,
) -> None:
    """Take the region away from a virtual machine; its MPI jobs go on over the network."""
    book = _book(vm, inventory_path, lab)

    async def work(interrupts: Interrupts) -> None:
        async with machine_of(vm, book, region, f"a detach of {vm}") as (place, machine):
            with _telling(as_json, interrupts) as tell:
                departure = await _depart(vm, place, machine, guest, timeout, detach_timeout, tell)
            if isinstance(tell, show.Events):
                tell.emit("done", vm=vm, host=place.host.name, phases=departure.durations)
                return
            show.print_phases(departure.durations)
            print(f"{vm} on {place.host.name} has no region any more")

    run(work)


async def _depart(
    vm: str,
    place: Place,
    machine: Machine,
    guest: str | None,
    timeout: float,
    detach_timeout: float,
    tell: show.Quiet,
) -> Departure:
    device = await machine.region()
    if device is None:
        raise MigrateError(f"{vm} on {place.host.name} has no region")
    path = region_path(machine, place.host, device)
    whom, _ = await whom_to_order(machine, place, path, guest)
    departure = Departure(machine, place.reach, device, path)
    try:
        if await machine.state() is not State.RUNNING:
            raise MigrateError("only a machine that runs can let go of it")
        await departure.suspend(whom, timeout, tell)
        await departure.detach(detach_timeout, tell)
    except BaseException as fault:
        why = str(fault) if isinstance(fault, IvcError) else "interrupted"
        troubles = await _restored(departure)
        if isinstance(fault, Exception) and not isinstance(fault, IvcError):
            raise
        where = await describe(machine, True)
        raise MigrateError(
            "; ".join([f"the region was not taken from {vm}: {why}", where, *troubles])
        ) from None
    await departure.settle()
    return departure


async def _restored(departure: Departure) -> list[str]:
    try:
        await departure.restore()
    except IvcError as fault:
        return [str(fault)]
    return []


def save(
    vm: Annotated[str, typer.Argument(metavar="VM", help="The name of a guest of Xen.")],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A new file of its host, for xl restore.")
    ],
    timeout: Timeout = 10.0,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    as_json: Json = False,
) -> None:
    """Save a guest of Xen to a file while its MPI jobs wait; xl restore brings it back."""
    inventory.check_vm(vm)
    if not file.startswith("/"):
        raise UsageError(f"{file}: where on the host?", hint="give the whole path of a file")
    book = inventory.load(inventory.chosen(inventory_path, lab))

    async def work(interrupts: Interrupts) -> None:
        with _telling(as_json, interrupts) as tell:
            saved = await xen.save(vm, book, file, Limits(timeout), tell)
        if isinstance(tell, show.Events):
            tell.emit("done", **dataclasses.asdict(saved))
            return
        show.print_phases(saved.phases)
        print(f"{vm} is in {file} on {saved.host}; xl restore {file} brings it back")

    run(work)
