"""`ivc migrate`, `attach`, `detach`, `save`, `load`: what the user's words mean, and what is printed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..errors import IvcError, UsageError
from ..hypervisor import registry
from ..hypervisor.contract import Hypervisor, Machine
from ..hypervisor.faults import MachineError, MigrateError
from ..hypervisor.host import Host
from . import inventory, journey, room, show
from .departure import Departure, describe, leaving
from .find import hypervisors_of, is_path, leavers, machine_of
from .interrupts import Interrupts, run
from .inventory import Inventory
from .journey import Journey, Limits, Report

Vm = Annotated[str, typer.Argument(metavar="VM", help="Its name, or the path of its QMP socket.")]
InventoryOption = Annotated[
    Path | None, typer.Option("--inventory", help="The file that lists the hosts.")
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="HOST", help="The host that has it: of the inventory, or a URI."),
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


class Words:
    """What the user's words mean: a machine, and the hosts that may be concerned."""

    def __init__(self, vm: str, path: Path | None, lab: str | None) -> None:
        self.vm = vm if is_path(vm) else inventory.check_vm(vm)
        self._path, self._lab = path, lab
        self._book: Inventory | None = None

    @property
    def book(self) -> Inventory:
        if self._book is None:
            self._book = inventory.load(inventory.chosen(self._path, self._lab))
        return self._book

    def host(self, word: str, region: str | None = None) -> Host:
        """The host that a word means: one of the inventory, a URI, the path of a socket."""
        return registry.host_of(word, region) or self.book.host(word)

    def machine(
        self, at: str | None, region: str | None, doing: str
    ) -> AbstractAsyncContextManager[tuple[Hypervisor, Machine]]:
        host = self.host(at, region) if at is not None else None
        book = None if host is not None or is_path(self.vm) else self.book
        return machine_of(self.vm, book, host, region, f"{doing} of {self.vm}")


@contextmanager
def telling(as_json: bool, interrupts: Interrupts) -> Iterator[show.Quiet]:
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
            help="A host of the inventory, a libvirt URI, or the QMP socket of a QEMU that waits.",
        ),
    ],
    at: At = None,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    guest: Guest = None,
    region: Annotated[
        str | None,
        typer.Option(help="The region's file over there, when HOST is not of the inventory."),
    ] = None,
    timeout: Timeout = 10.0,
    detach_timeout: DetachTimeout = 20.0,
    stall: Annotated[
        float, typer.Option(min=1, help="Give up after so many seconds without a byte moved.")
    ] = 30.0,
    as_json: Json = False,
) -> None:
    """Move a virtual machine to another host while its MPI jobs run."""
    words = Words(vm, inventory_path, lab)
    if region is not None and registry.host_of(to) is None:
        raise UsageError(
            "--region goes with --to SOCKET or URI", hint="a host's is in the inventory"
        )
    target = words.host(to, region)

    async def work(interrupts: Interrupts) -> None:
        with telling(as_json, interrupts) as tell:
            await move(words, at, target, guest, limits, tell)

    limits = Limits(timeout, detach_timeout, stall)
    run(work)


async def move(
    words: Words, at: str | None, target: Host, guest: str | None, limits: Limits, tell: show.Quiet
) -> None:
    """One migration, and what it took is told."""
    async with (
        words.machine(at, None, "a migration") as (here, machine),
        hypervisors_of([target]) as (there,),
    ):
        if here.host.name == target.name:
            raise UsageError(f"{words.vm} is on {target.name} already")
        device, path, whom, count = await leavers(here, machine, guest)
        report = await Journey(
            source=machine,
            here=here,
            there=there,
            device=device,
            region_path=path,
            guests=whom,
            processes=count,
            limits=limits,
            tell=tell,
        ).run()
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
    at: At = None,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
) -> None:
    """Plug a host's region into a virtual machine; its MPI jobs find it by themselves."""
    words = Words(vm, inventory_path, lab)

    async def work(interrupts: Interrupts) -> None:
        del interrupts
        async with words.machine(at, region, "an attach") as (here, machine):
            path = await _attach(region, here, machine)
            print(f"{vm} on {here.host.name} has the region {path}")

    run(work)


async def _attach(region: str | None, here: Hypervisor, machine: Machine) -> str:
    name, host = machine.name, here.host
    if not here.capabilities.regions:
        raise MigrateError(f"{name} on {host.name}: guests there share memory without a device")
    path = region or host.region
    if path is None:
        raise UsageError(f"which region is {name} to have?", hint="name its file with --region")
    present = await machine.region()
    if present is not None:
        raise MigrateError(f"{name} on {host.name} has a region already, {present.path}")
    found = await room.check(here.reach, path, 0)
    path = os.path.abspath(path) if here.reach.is_here else path
    try:
        await machine.attach(here.fresh_device(path, found.size))
    except MachineError as fault:
        where = await describe(machine, False)
        raise MigrateError(f"{name} was not given the region {path}: {fault}; {where}") from None
    return path


def detach(
    vm: Vm,
    guest: Guest = None,
    region: Annotated[
        str | None, typer.Option(help="The region's file, where QEMU does not tell its whole path.")
    ] = None,
    timeout: Timeout = 10.0,
    detach_timeout: DetachTimeout = 20.0,
    at: At = None,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    as_json: Json = False,
) -> None:
    """Take the region away from a virtual machine; its MPI jobs go on over the network."""
    words = Words(vm, inventory_path, lab)
    limits = Limits(timeout, detach_timeout)

    async def work(interrupts: Interrupts) -> None:
        async with words.machine(at, region, "a detach") as (here, machine):
            with telling(as_json, interrupts) as tell:
                departure = await _depart(here, machine, guest, limits, tell)
            if isinstance(tell, show.Events):
                tell.emit("done", vm=vm, host=here.host.name, phases=departure.durations)
                return
            show.print_phases(departure.durations)
            print(f"{vm} on {here.host.name} has no region any more")

    run(work)


async def _depart(
    here: Hypervisor, machine: Machine, guest: str | None, limits: Limits, tell: show.Quiet
) -> Departure:
    device, path, whom, _ = await leavers(here, machine, guest)
    if device is None:
        raise MigrateError(f"{machine.name} on {here.host.name} has no region")
    departure = Departure(machine, here, device, path)
    async with leaving(departure, machine, f"the region was not taken from {machine.name}"):
        await departure.suspend(whom, limits.suspend, tell)
        await departure.detach(limits.detach, tell)
    return departure


def _whole(file: str) -> str:
    if not file.startswith("/"):
        raise UsageError(f"{file}: where on the host?", hint="give the whole path of a file")
    return file


def save(
    vm: Vm,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A new file of its host.")],
    guest: Guest = None,
    timeout: Timeout = 10.0,
    detach_timeout: DetachTimeout = 20.0,
    at: At = None,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    as_json: Json = False,
) -> None:
    """Save a virtual machine to a file while its MPI jobs wait; load brings it back."""
    words = Words(vm, inventory_path, lab)
    limits = Limits(timeout, detach_timeout)
    _whole(file)

    async def work(interrupts: Interrupts) -> None:
        async with words.machine(at, None, "a save") as (here, machine):
            with telling(as_json, interrupts) as tell:
                saved = await _save(here, machine, file, guest, limits, tell)
        if isinstance(tell, show.Events):
            tell.emit("done", **dataclasses.asdict(saved))
            return
        show.print_phases(saved.phases)
        print(f"{vm} is in {file} on {saved.host}; ivc load brings it back")

    run(work)


async def _save(
    here: Hypervisor, machine: Machine, file: str, guest: str | None, limits: Limits,
    tell: show.Quiet,
) -> journey.Saved:
    if (await here.reach.run(["test", "-e", file])).code == 0:
        raise UsageError(f"{file} is there already on {here.host.name}", hint="name a new file")
    device, path, whom, _ = await leavers(here, machine, guest)
    departure = Departure(machine, here, device, path)
    return await journey.save(machine, file, departure, whom, limits, tell)


def load(
    vm: Annotated[str, typer.Argument(metavar="VM", help="Its name.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="What save has made.")],
    at: Annotated[
        str, typer.Option("--at", metavar="HOST", help="Where: of the inventory, or a URI.")
    ],
    inventory_path: InventoryOption = None,
    lab: Lab = None,
) -> None:
    """Bring a saved virtual machine back, and give it the host's region."""
    words = Words(vm, inventory_path, lab)
    host = words.host(at)
    _whole(file)

    async def work(interrupts: Interrupts) -> None:
        del interrupts
        async with hypervisors_of([host]) as (there,):
            await there.check_place(vm)
            machine = await there.load(vm, file)
            try:
                given = host.region is not None and there.capabilities.regions
                path = await _attach(None, there, machine) if given else "no region"
            finally:
                await machine.close()
        print(f"{vm} runs on {host.name}, {path}")

    run(work)
