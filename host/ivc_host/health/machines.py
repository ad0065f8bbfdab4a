"""Which machines a host has, by its hypervisor: the only place here that knows of hypervisors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import IvcError
from ..hypervisor import registry
from ..hypervisor.contract import State
from .hostfiles import HostFiles
from .spares import Machines

_SECONDS = 30.0
#: Not at work here: paused, waiting for a migration, or left behind by one.
_STANDBY = (State.PAUSED, State.WAITING, State.MOVED)


async def count(hosts: Sequence[HostFiles]) -> dict[str, Machines]:
    found = await asyncio.gather(*(_count(host) for host in hosts))
    return {host.name: own for host, own in zip(hosts, found, strict=True)}


async def _count(host: HostFiles) -> Machines:
    try:
        async with asyncio.timeout(_SECONDS):
            return await _machines(host)
    except TimeoutError:
        return Machines(fault=f"no answer within {_SECONDS:g} s")
    except IvcError as fault:
        return Machines(fault=str(fault))


async def _machines(host: HostFiles) -> Machines:
    hypervisor = registry.of(host.reach.host, host.reach)
    running: list[str] = []
    standby: list[str] = []
    try:
        for name in await hypervisor.machines():
            machine = await hypervisor.machine(name)
            if machine is None:
                continue
            try:
                (standby if await machine.state() in _STANDBY else running).append(name)
            finally:
                await machine.close()
    finally:
        await hypervisor.close()
    return Machines(tuple(running), tuple(standby))
