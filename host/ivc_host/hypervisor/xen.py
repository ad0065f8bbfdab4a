"""Guests of Xen, moved by `xl` in dom0.

They share no region but grants, so there is no device to pull: their processes are asked to let go by
xenstore.py. xl gives a guest back that it could not move, and lets one run that it has moved.

A paravirtual guest cannot move while it runs where Xen has no shadow page tables (Debian's has
none): with `store`, a folder that both hosts have, it is saved there and restored on the other side.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from . import linux
from .contract import (
    Capabilities,
    Event,
    HostDescription,
    Hypervisor,
    Machine,
    MachineDescription,
    Migration,
    Moving,
    Order,
    RegionDevice,
    State,
)
from .faults import GoneError, MachineError, MigrateError
from .host import Host
from .reach import Done, Reach
from .xenstore import GrantsOrder

#: xl reads and writes all of a guest's memory, perhaps on an emulated processor.
_MOVE_SECONDS = 1800.0
_LOOK_SECONDS = 60.0
_DOM0 = "Domain-0"


@dataclass(frozen=True)
class Settings:
    """What the inventory says of a host with Xen, whose `ssh` leads to dom0."""

    #: The name by which other hosts' `xl` reaches it, when it is another.
    peer: str | None = None
    #: A folder that all of them have, for guests that cannot move while they run.
    store: str | None = None


def _settings(host: Host) -> Settings:
    assert isinstance(host.settings, Settings)
    return host.settings


class Xl:
    """The command of one host's dom0."""

    def __init__(self, host: Host, reach: Reach) -> None:
        self.host = host
        self.reach = reach

    async def do(self, *words: str, timeout: float = _LOOK_SECONDS) -> Done:
        return await self.reach.run(["xl", *words], timeout)

    async def must(self, *words: str, timeout: float = _LOOK_SECONDS) -> Done:
        done = await self.do(*words, timeout=timeout)
        if done.code != 0:
            raise MachineError(f"{' '.join(['xl', *words[:2]])} on {self.host.name}: {_why(done)}")
        return done

    async def domain(self, vm: str) -> int | None:
        """The guest's number; None: it is not here. A host that is not reached raises."""
        done = await self.do("domid", vm)
        if done.code == 0:
            return int(done.out.strip())
        if done.code == 127:
            raise MachineError(f"host {self.host.name}: xl is not there", hint="is it Xen's dom0?")
        if "does not exist" not in done.error and "invalid domain" not in done.error:
            raise MachineError(f"host {self.host.name}: {done.last_line()}")
        return None

    async def table(self) -> dict[str, str]:
        """The letters of the state of each guest."""
        done = await self.must("list")
        rows = [line.split() for line in done.out.splitlines()[1:]]
        return {row[0]: row[-2] for row in rows if len(row) >= 6 and row[0] != _DOM0}

    async def config(self, vm: str) -> dict[str, Any]:
        done = await self.do("list", "-l", vm)
        try:
            found = json.loads(done.out)
            return dict(found[0]["config"])
        except (ValueError, LookupError, TypeError):
            raise MachineError(f"host {self.host.name}: xl list: {done.last_line()}") from None


def _why(done: Done) -> str:
    lines = [line for line in done.error.splitlines() if "rror" in line or "ailed" in line]
    return lines[0].strip() if lines else done.last_line()


def _state(letters: str) -> State:
    if any(letter in letters for letter in "scd"):  # shut down or suspended, crashed, dying
        return State.OTHER
    return State.PAUSED if "p" in letters else State.RUNNING


class XenMachine(Machine):
    """A guest, or the place for one: Xen needs none to be made."""

    def __init__(self, name: str, xl: Xl, uuid: str | None, expected: bool = False) -> None:
        self.name = self.own_name = name
        self.host = xl.host.name
        self.key = " ".join([*xl.host.ssh, f"xl:{name}"])
        self.uuid = uuid
        self.xl = xl
        self._expected = expected

    async def state(self) -> State:
        letters = (await self.xl.table()).get(self.name)
        if letters is not None:
            return _state(letters)
        if self._expected:
            return State.WAITING
        raise GoneError(f"{self.name} on {self.host}: Xen has it no more")

    async def describe(self) -> MachineDescription:
        config = await self.xl.config(self.name)
        hardware = config.get("b_info", {})
        networks = [str(nic["bridge"]) for nic in config.get("nics", []) if nic.get("bridge")]
        # All that the host's processors have, unless its cpuid= says less.
        flags = (await linux.describe(self.xl.reach)).cpu_flags
        return MachineDescription(
            memory=int(hardware.get("target_memkb", hardware.get("max_memkb", 0))) << 10,
            vcpus=len(hardware.get("avail_vcpus", [0])),
            cpu_flags=flags,
            networks=tuple(networks),
            regions=(),
        )

    async def region(self) -> RegionDevice | None:
        return None

    async def is_paravirtual(self) -> bool:
        config = await self.xl.config(self.name)
        return "type.pv" in config["b_info"] or config["c_info"].get("type") == "pv"

    async def order_away(self, timeout: float, waiting: Callable[[str], None]) -> Order | None:
        domain = await self.xl.domain(self.name)
        if domain is None:
            raise GoneError(f"{self.name} on {self.host}: Xen has it no more")
        return await GrantsOrder.give(self.xl.reach, domain, timeout)

    def migrate(self, target: Machine) -> Migration:
        assert isinstance(target, XenMachine)
        return XenMigration(self, target)

    async def pause(self) -> None:
        await self.xl.must("pause", self.name)

    async def resume(self) -> None:
        await self.xl.must("unpause", self.name)

    async def save(self, file: str) -> None:
        try:
            # One that is killed half way leaves the guest in the hands of xl, which lets it run again.
            await self.xl.must("save", self.name, file, timeout=_MOVE_SECONDS)
        except BaseException:
            await self.xl.reach.run(["rm", "-f", file])
            raise

    async def end(self) -> None:
        """Nothing is left: xl takes care of both sides."""


class XenMigration(Migration):
    def __init__(self, source: XenMachine, target: XenMachine) -> None:
        self._vm = source.name
        self._source, self._from, self._to = source, source.xl, target.xl
        #: Where it is when it is on neither host.
        self._file: str | None = None

    async def progress(self) -> AsyncGenerator[Moving, None]:
        store = _settings(self._from.host).store
        if store and await self._source.is_paravirtual():
            self._file = f"{store}/{self._vm}-{random.randrange(1 << 32):08x}.xen"
            yield Moving(phase="saving")
            await self._source.save(self._file)
            await self._from.reach.run(["sync"], _MOVE_SECONDS)
            yield Moving(phase="restoring")
            await self._to.must("restore", self._file, timeout=_MOVE_SECONDS)
        else:
            peer = _settings(self._to.host).peer or self._to.host.name
            yield Moving()
            await self._from.must("migrate", self._vm, peer, timeout=_MOVE_SECONDS)
        yield Moving(done=True)
        await self._forget()

    async def cancel(self) -> bool:
        """xl was ended with the call that had started it, and lets the guest run where it is."""
        if await self._from.domain(self._vm) is None:
            if await self._to.domain(self._vm) is not None:
                return False
            await self._restore()
        await self._forget()
        return True

    async def _restore(self) -> None:
        """It is on neither side: saved, and not restored."""
        if self._file is None:
            raise MigrateError(
                f"{self._vm} is neither on {self._from.host.name} nor on {self._to.host.name}",
                hint="see xl list and /var/log/xen there",
            )
        again = await self._from.do("restore", self._file, timeout=_MOVE_SECONDS)
        if again.code != 0:
            file, self._file = self._file, None
            raise MigrateError(
                f"xl restore on {self._from.host.name} failed as well: {_why(again)}",
                hint=f"{self._vm} is whole in {file}",
            )

    async def _forget(self) -> None:
        if self._file is not None:
            await self._from.reach.run(["rm", "-f", self._file])


class Xen(Hypervisor):
    """One host with Xen."""

    Settings: ClassVar[type] = Settings
    capabilities = Capabilities(regions=False, grants=True, held=False)

    def __init__(self, host: Host, reach: Reach) -> None:
        super().__init__(host, reach)
        self._xl = Xl(host, reach)

    async def machines(self) -> list[str]:
        return sorted(await self._xl.table())

    async def machine(self, name: str) -> XenMachine | None:
        if await self._xl.domain(name) is None:
            return None
        config = await self._xl.config(name)
        uuid = config.get("c_info", {}).get("uuid")
        return XenMachine(name, self._xl, str(uuid).lower() if uuid else None)

    async def expect(self, name: str, say: Callable[[str], None]) -> XenMachine:
        return XenMachine(name, self._xl, None, expected=True)

    async def load(self, name: str, file: str) -> XenMachine:
        await self._xl.must("restore", file, timeout=_MOVE_SECONDS)
        machine = await self.machine(name)
        if machine is None:
            raise MachineError(f"{file} on {self.host.name} was restored, and is no {name}")
        return machine

    async def describe(self) -> HostDescription:
        """Xen's memory and processors; dom0's own are a part of them."""
        linux_has = await linux.describe(self.reach)
        done = await self._xl.must("info")
        pairs = (line.partition(":") for line in done.out.splitlines())
        said = {key.strip(): value.strip() for key, _, value in pairs}
        return HostDescription(
            memory=int(said.get("total_memory", 0)) << 20,
            memory_free=int(said.get("free_memory", 0)) << 20,
            cpus=int(said.get("nr_cpus", 0)),
            cpu_flags=linux_has.cpu_flags,
            networks=linux_has.networks,
        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """XenStore tells when a guest comes or goes; what changed is then looked up."""
        watch = self.reach.lines(["xenstore-watch", "@introduceDomain", "@releaseDomain"])
        before: dict[str, str] | None = None
        async with contextlib.aclosing(watch):
            async for _ in watch:
                now = await self._xl.table()
                for event in _changes(before, now):
                    yield event
                before = now


def _changes(before: dict[str, str] | None, now: dict[str, str]) -> list[Event]:
    if before is None:
        return []
    events = [Event(name, "appeared") for name in now.keys() - before.keys()]
    events += [Event(name, "gone") for name in before.keys() - now.keys()]
    events += [
        Event(name, "crashed")
        for name, letters in now.items()
        if "c" in letters and "c" not in before.get(name, "c")
    ]
    return sorted(events, key=lambda event: event.machine)
