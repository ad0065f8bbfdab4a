"""The "hosts" of a lab: with most mechanisms all of them are this machine, each with a region of
its own; with Xen each is a machine of its own.

A guest stands on one of them and, where the mechanism can, moves to another one; its address, its
disks and its memory are the same there, the region is not. What a guest is on a given host follows
from the lab's record alone, so a later command can start the process that takes a guest in.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import LabError, UsageError
from . import copies, libvirt, network, process, qemu, ssh, state
from .hypervisor import MAX_HOSTS, GuestSpec, HostSpec, Hypervisor
from .state import GuestRecord, HostRecord, LabRecord

#: Seconds until a QEMU that was started has made its QMP socket, on a busy machine.
_SOCKET_SECONDS = 20.0


def host_name(number: int) -> str:
    return f"h{number}"


def number_of(record: LabRecord, name: str) -> int:
    """The number of a host by its name."""
    names = [host_name(number) for number in range(1, record.hosts + 1)]
    if name not in names:
        raise UsageError(
            f"lab {record.name} has no host {name}", hint=f"its hosts are {', '.join(names)}"
        )
    return names.index(name) + 1


def placed(guests: int, hosts: int, place: Sequence[int] | None) -> list[int]:
    """The host of each guest, from 1: the first guests on the first, unless `place` says it."""
    if hosts > MAX_HOSTS:
        raise UsageError(f"{hosts} hosts", hint=f"ask for 1 to {MAX_HOSTS}")
    if place is None:
        if not 1 <= hosts <= guests:
            raise UsageError(
                f"{guests} guests on {hosts} hosts",
                hint="ask for one guest per host at least, or say where each is",
            )
        return [index * hosts // guests + 1 for index in range(guests)]
    if len(place) != guests or not all(1 <= host <= hosts for host in place):
        raise UsageError(
            f"places {','.join(map(str, place))} for {guests} guests on {hosts} hosts",
            hint=f"name a host from 1 to {hosts} for each guest",
        )
    return list(place)


def spec_of(record: LabRecord, guest: GuestRecord, host: int) -> GuestSpec:
    """The guest as it is on that host."""
    index = record.guests.index(guest) + 1
    own = record.directory / guest.name
    shared = tuple(Path(path) for path in record.shares)
    return GuestSpec(
        name=guest.name,
        index=index,
        host=host,
        uuid=guest.uuid,
        address=guest.address,
        mac=network.mac(guest.address),
        tap="" if record.machines else network.tap_name(guest.name, host),
        memory_mb=record.memory_mb,
        region=Path(record.regions[host - 1]) if record.regions else None,
        region_size=record.region_size,
        console=own / "console.log",
        state=own,
        namespace=record.namespace,
        keys=ssh.keys_in(record.ssh_directory),
        share=() if record.copied else shared,
        copies=copies.of(record.name, shared) if record.copied else (),
    )


def host_specs(record: LabRecord) -> list[HostSpec]:
    """All hosts, with the guests that start on them."""
    return [_host_spec(record, number) for number in range(1, record.hosts + 1)]


def _host_spec(record: LabRecord, number: int) -> HostSpec:
    name, address = host_name(number), network.host_address(number)
    guests = tuple(
        spec_of(record, guest, number) for guest in record.guests if guest.host == number
    )
    own = record.directory / name
    shared = tuple(Path(path) for path in record.shares)
    return HostSpec(
        name=name,
        number=number,
        guests=guests,
        room=len(record.guests) if record.migrates else len(guests),
        memory_mb=record.memory_mb,
        address=address,
        mac=network.mac(address),
        tap=network.tap_name(name),
        console=own / "console.log",
        state=own,
        store=state.store_path(record.name),
        roll=own / "guests",
        namespace=record.namespace,
        keys=ssh.keys_in(record.ssh_directory),
        copies=copies.of(record.name, shared) if record.copied else (),
    )


def machines(record: LabRecord) -> list[HostRecord]:
    """The record of all hosts, where those are machines of their own."""
    return [HostRecord(one.name, one.address, str(one.roll)) for one in host_specs(record)]


def pid_files(record: LabRecord, guest: str) -> list[str]:
    """On each host, where the guest's number is when it is there; only libvirt keeps such."""
    if record.hypervisor != "libvirt":
        return []
    names = (host_name(number) for number in range(1, record.hosts + 1))
    return [str(libvirt.pid_file(record.directory / name, guest)) for name in names]


def taps(record: LabRecord) -> list[str]:
    """Every tap that a machine of the lab can need."""
    if record.machines:
        return [network.tap_name(machine.name) for machine in record.machines]
    return [
        network.tap_name(guest.name, host)
        for guest in record.guests
        for host in (range(1, record.hosts + 1) if record.migrates else [guest.host])
    ]


def receive(name: str, guest_name: str, host_name: str, mechanism: Hypervisor) -> Path:
    """Start what takes a guest in on a host; returns its QMP socket once that is there."""
    with state.changing(name) as record:
        guest = record.guest(guest_name)
        host = number_of(record, host_name)
        _check_free(record, guest, host)
        socket = record.directory / guest.name / qemu.qmp_name(host)
        socket.unlink(missing_ok=True)
        started = mechanism.receive(spec_of(record, guest, host))
        guest.receiver, guest.receiver_host = started, host
    _wait_for(socket, guest, record)
    return socket


def _check_free(record: LabRecord, guest: GuestRecord, host: int) -> None:
    if not record.migrates:
        raise LabError(
            f"guests of lab {record.name} cannot migrate",
            hint="bring a lab up with --hypervisor qemu --hosts 2",
        )
    if not guest.alive():
        raise LabError(f"guest {guest.name} of lab {record.name} has died")
    if guest.host == host:
        raise LabError(f"{guest.name} is on {host_name(host)} of lab {record.name} already")
    if any(one.alive() for one in guest.receiver):
        where = host_name(guest.receiver_host)
        raise LabError(
            f"a QEMU for {guest.name} is waiting on {where} of lab {record.name} already",
            hint=f"end it, if no migration is under way: kill {guest.receiver[0].pid}",
        )


def _wait_for(socket: Path, guest: GuestRecord, record: LabRecord) -> None:
    end = time.monotonic() + _SOCKET_SECONDS
    while not socket.exists():
        if not all(one.alive() for one in guest.receiver) or time.monotonic() > end:
            raise LabError(
                f"QEMU for {guest.name} on {host_name(guest.receiver_host)} does not start",
                hint=f"see {record.directory / guest.name / 'console.log'}",
                detail=process.tail(record.directory / guest.name / "console.log", 5),
            )
        time.sleep(0.02)


def write_inventory(record: LabRecord) -> None:
    """What the commands that attach, detach and migrate have to know about this lab."""
    lines = [f"# Lab {record.name}: made by `ivc lab up`, gone with `ivc lab down`.\n"]
    for one in record.machines:
        words = ssh.outside_words(record.ssh_directory, record.namespace, one.name, one.address)
        lines += [
            f"\n[hosts.{one.name}]\n",
            'hypervisor = "xen"\n',
            f"ssh = {json.dumps(words)}\n",
            'store = "/store"\n',
        ]
    for number, region in enumerate(record.regions, start=1):
        name = host_name(number)
        start = [sys.executable, "-m", "ivc_host", "lab", "incoming", "--name", record.name]
        qmp = record.directory / "{vm}" / qemu.qmp_name(number)
        lines += [f"\n[hosts.{name}]\n", f"region = {json.dumps(region)}\n"]
        if record.hypervisor == "libvirt":
            lines += _libvirt_lines(record, name)
            continue
        lines += [
            f"qmp = {json.dumps(str(qmp))}\n",
            'listen = "tcp:127.0.0.1:0"\n',
            f"start = {json.dumps([*start, '{vm}', name])}\n",
        ]
    record.inventory.write_text("".join(lines))


def _libvirt_lines(record: LabRecord, host: str) -> list[str]:
    return [
        'hypervisor = "libvirt"\n',
        f"uri = {json.dumps(libvirt.uri_of(record.directory / host))}\n",
        # The lab's namespace has a loopback of its own, which all of its hosts have in common.
        'migrate_uri = "tcp://127.0.0.1"\n',
        f"live = {json.dumps(libvirt.Libvirt().live)}\n",
    ]
