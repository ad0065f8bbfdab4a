"""QEMU, told what to do through QMP.

A machine is on a host when a QEMU answers on its QMP socket there; no list has to be kept. The one
that waits is started by a command of the inventory, with `-incoming defer` and without the region.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from ..errors import IvcError
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
    RegionDevice,
    State,
)
from .faults import GoneError, MachineError, SilentError
from .host import Host, filled
from .qmp import Monitor
from .reach import Reach

_DRIVER = "ivshmem-plain"
_CONTAINERS = ("/machine/peripheral", "/machine/peripheral-anon")
#: From the return of the start command to a QMP socket that answers.
_START_SECONDS = 30.0
_COMMAND_SECONDS = 120.0
_POLL_SECONDS = 0.25
#: What the destination takes to load the last of it, after the source has sent it.
_LOAD_SECONDS = 30.0
_CANCEL_SECONDS = 30.0
_AGAIN_SECONDS = 2.0
_END_SECONDS = 5.0
#: To a question that QEMU needs no time for.
_ANSWER_SECONDS = 10.0
#: Between two looks at who has a socket.
_WATCH_SECONDS = 1.0
_NO_UUID = "00000000-0000-0000-0000-000000000000"

_STATES = {
    "running": State.RUNNING,
    "paused": State.PAUSED,
    "prelaunch": State.PAUSED,
    "inmigrate": State.WAITING,
    "postmigrate": State.MOVED,
    "finish-migrate": State.MOVED,
}


def _moving(answer: dict[str, Any]) -> Moving:
    """What query-migrate said, in the words of the contract."""
    memory = answer.get("ram", {})

    def seconds(key: str) -> float | None:
        return answer[key] / 1000 if key in answer else None

    return Moving(
        done=answer.get("status") == "completed",
        transferred=memory.get("transferred", 0),
        remaining=memory.get("remaining", 0),
        total=memory.get("total", 0),
        rate=memory.get("mbps", 0.0) * 1e6 / 8,
        expected_downtime=seconds("expected-downtime"),
        downtime=seconds("downtime"),
        total_time=seconds("total-time"),
        passes=memory.get("dirty-sync-count", 0),
    )


@dataclass(frozen=True)
class Settings:
    """What the inventory says of a host with QEMU."""

    #: Path of a machine's QMP socket, with `{vm}` for its name.
    qmp: str = ""
    #: Where a migration is received, as QEMU writes it; port 0 is any that is free.
    listen: str = "tcp:127.0.0.1:0"
    #: The command that makes a place for an arriving machine; empty: somebody has made one.
    start: tuple[str, ...] = ()
    #: The region's device, where a machine has had none before.
    device: str = "ivc0"
    memory: str = "ivcmem"
    bus: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if "{vm}" not in self.qmp:
            raise ValueError(
                "needs qmp, the path of a machine's QMP socket with {vm} for its name,"
                ' such as qmp = "/run/vm/{vm}.qmp"'
            )
        if not self.qmp.startswith("/"):
            raise ValueError("qmp must be a whole path, from /")
        if not re.match(r"unix:|tcp:(?!0\.0\.0\.0:|\[?::\]?:|:)[^/]+:\d+$", self.listen):
            raise ValueError(
                f"cannot listen on {self.listen}: write tcp:ADDRESS:PORT with the address that the"
                " other hosts use, or unix:PATH"
            )


class _OneSocket(Settings):
    """Of one machine alone: its socket is known, and nothing else."""

    def __post_init__(self) -> None:
        pass


def _settings(host: Host) -> Settings:
    assert isinstance(host.settings, Settings)
    return host.settings


class QemuMachine(Machine):
    """One QEMU process, by its monitor."""

    def __init__(self, name: str, host: Host, monitor: Monitor, own_name: str, uuid: str) -> None:
        self.name = name
        self.host = host.name
        settings = _settings(host)
        path = filled(settings.qmp, {"{vm}": name})
        self.key = " ".join([*host.ssh, path]) if host.ssh else os.path.realpath(path)
        self.own_name = own_name  # -name
        self.uuid = None if uuid == _NO_UUID else uuid.lower()
        self._listen = filled(settings.listen, {"{vm}": name})
        self._monitor = monitor
        self._prepared: str | None = None

    @classmethod
    async def connect(cls, name: str, host: Host, path: str) -> QemuMachine | None:
        monitor = await Monitor.open(path, f"{name} on {host.name}")
        if monitor is None:
            return None
        try:
            own = (await monitor.do("query-name")).get("name", "")
            uuid = (await monitor.do("query-uuid"))["UUID"]
            return cls(name, host, monitor, own, uuid)
        except BaseException:
            await monitor.close()
            raise

    async def state(self) -> State:
        return await self._state()

    async def _state(self, timeout: float = _ANSWER_SECONDS) -> State:
        status = (await self._monitor.do("query-status", timeout=timeout))["status"]
        return _STATES.get(status, State.OTHER)

    async def describe(self) -> MachineDescription:
        memory = await self._monitor.do("query-memory-size-summary")
        processors = await self._monitor.do("query-cpus-fast")
        return MachineDescription(
            memory=memory["base-memory"] + memory.get("plugged-memory", 0),
            vcpus=len(processors),
            cpu_flags=await self._flags(processors[0]["qom-path"]),
            networks=await self._networks(),
            regions=tuple(await self._regions()),
        )

    async def _flags(self, path: str) -> frozenset[str]:
        """QEMU has no word for all features of a processor: each is a property of its own."""
        listed = await self._monitor.do("qom-list", {"path": path})
        names = [one["name"] for one in listed if one["type"] == "bool" and _is_flag(one["name"])]
        values = await asyncio.gather(*(self._get(path, name) for name in names))
        on = (name for name, value in zip(names, values, strict=True) if value)
        return frozenset(re.sub(r"[-.]", "_", name) for name in on)

    async def _networks(self) -> tuple[str, ...]:
        """QMP itself does not tell what a network device is plugged into; the human monitor does."""
        command = {"command-line": "info network"}
        text = await self._monitor.do("human-monitor-command", command)
        return tuple(re.findall(r"ifname=([^,\s]+)", text))

    async def region(self) -> RegionDevice | None:
        found = await self._regions()
        return found[0] if found else None

    async def _regions(self) -> list[RegionDevice]:
        return [
            await self._device(container, item["name"])
            for container in _CONTAINERS
            for item in await self._monitor.do("qom-list", {"path": container})
            if item["type"] == f"child<{_DRIVER}>"
        ]

    async def _device(self, container: str, name: str) -> RegionDevice:
        path = f"{container}/{name}"
        memory = str(await self._get(path, "memdev"))
        slot = int(await self._get(path, "addr"))
        # QEMU takes the path for a name as well; one without a name has nothing else.
        return RegionDevice(
            path=str(await self._get(memory, "mem-path")),
            size=int(await self._get(memory, "size")),
            device=name if container == _CONTAINERS[0] else path,
            memory=memory.rsplit("/", 1)[-1],
            bus=str(await self._get(path, "parent_bus")).rsplit("/", 1)[-1],
            address=f"{slot >> 3:#x}.{slot & 7}",
        )

    async def _get(self, path: str, name: str) -> Any:
        return await self._monitor.do("qom-get", {"path": path, "property": name})

    async def blockers(self) -> list[str]:
        reasons = (await self._monitor.do("query-migrate")).get("blocked-reasons", [])
        return [reason for reason in reasons if "ivshmem" not in reason]

    async def prepare(self, device: RegionDevice) -> None:
        if self._prepared is not None:
            return
        # A name that was never used: QEMU aborts, with the machine, when memory of the same name is
        # plugged into the same place before the old one has quite gone.
        memory = f"{device.memory.split('-', 1)[0]}-{secrets.token_hex(4)}"
        await self._monitor.do(
            "object-add",
            {
                "qom-type": "memory-backend-file",
                "id": memory,
                "mem-path": device.path,
                "size": device.size,
                "share": True,
            },
        )
        self._prepared = memory

    async def attach(self, device: RegionDevice) -> None:
        await self.prepare(device)
        memory, self._prepared = self._prepared, None
        assert memory is not None
        place = {"bus": device.bus, "addr": device.address}
        words = {"driver": _DRIVER, "id": device.device, "memdev": memory}
        try:
            await self._monitor.do(
                "device_add", {**words, **{key: word for key, word in place.items() if word}}
            )
        except GoneError:
            raise
        except MachineError:
            await self._forget(memory)
            raise

    async def _forget(self, memory: str) -> None:
        """The region's memory goes; the last word of a removed device may take a moment."""
        for attempt in range(40):
            try:
                await self._monitor.do("object-del", {"id": memory})
                return
            except GoneError:
                raise
            except MachineError:
                if attempt == 39:
                    raise
                await asyncio.sleep(0.05)

    async def detach(self, device: RegionDevice, timeout: float) -> None:
        async with self._monitor.events("DEVICE_DELETED", "DEVICE_UNPLUG_GUEST_ERROR") as events:
            await self._monitor.do("device_del", {"id": device.device})
            end = time.monotonic() + timeout
            while (left := end - time.monotonic()) > 0:
                event = await self._monitor.event(events, min(left, _POLL_SECONDS))
                if event is None or not _is_about(event["data"], device.device):
                    continue
                if event["event"] != "DEVICE_DELETED":
                    raise MachineError(f"{self._what}: the guest refuses to let go of the device")
                await self._forget(device.memory)
                return
        raise MachineError(
            f"{self._what}: the guest has not let go of the device in {timeout:g} s",
            hint="is its system up, and does it know hot-plugging? QEMU cannot take the request"
            " back: the guest may still let go later, and the job then goes on over the network",
        )

    @property
    def _what(self) -> str:
        return self._monitor.what

    async def listen(self) -> str:
        """Wait for a migration; returns the URI for the one who sends."""
        await self._tell_events()
        # Now, this keeps the machine from running by itself when all of it has come.
        await self._monitor.do("stop")
        await self._monitor.do("migrate-incoming", {"uri": self._listen})
        if not self._listen.startswith("tcp:"):
            return self._listen
        answer = await self._monitor.do("query-migrate")
        return f"{self._listen.rsplit(':', 1)[0]}:{answer['socket-address'][0]['port']}"

    async def _tell_events(self) -> None:
        await self._monitor.do(
            "migrate-set-capabilities", {"capabilities": [{"capability": "events", "state": True}]}
        )

    def migrate(self, target: Machine) -> Migration:
        assert isinstance(target, QemuMachine)
        return QemuMigration(self, target)

    async def send(self, uri: str) -> AsyncGenerator[Moving, None]:
        """Send all of it to URI; the last yielded is `done`, and it then stands still here."""
        await self._tell_events()
        async with self._monitor.events("MIGRATION") as events:
            await self._monitor.do("migrate", {"uri": uri})
            while True:
                await self._monitor.event(events, _POLL_SECONDS)
                answer = await self._monitor.do("query-migrate")
                status = answer.get("status", "none")
                if status in ("failed", "cancelled"):
                    reason = answer.get("error-desc", "QEMU gives no reason")
                    raise MachineError(f"{self._what}: migration {status}: {reason}")
                if status == "completed":
                    yield _moving(answer)
                    return
                yield _moving(answer)

    async def save(self, file: str) -> None:
        try:
            async for _ in self.send(f"exec:cat >{shlex.quote(file)}"):
                pass
        except BaseException:
            await self.cancel()
            raise
        await self.end()

    async def fill(self, file: str) -> None:
        """The waiting machine becomes the one that was saved, and runs."""
        await self._monitor.do("stop")
        await self._monitor.do("migrate-incoming", {"uri": f"exec:cat <{shlex.quote(file)}"})
        await self.loaded()
        await self.resume()

    async def loaded(self) -> None:
        """Return when all that the other side has sent is in place."""
        end = time.monotonic() + _LOAD_SECONDS
        while await self._state(_LOAD_SECONDS) is State.WAITING:
            if time.monotonic() > end:
                raise MachineError(f"{self._what}: has not taken over in {_LOAD_SECONDS:.0f} s")
            await asyncio.sleep(0.002)

    async def cancel(self) -> None:
        """End a migration under way, so that the machine runs here again."""
        await self._monitor.do("migrate_cancel")
        end = time.monotonic() + _CANCEL_SECONDS
        status = "none"
        while time.monotonic() < end:
            status = (await self._monitor.do("query-migrate")).get("status", "none")
            if status in ("none", "cancelled", "failed", "completed"):
                break
            await asyncio.sleep(0.02)
        # QEMU lets it run again by itself, a moment later, unless all of it had been sent.
        again = time.monotonic() + (0 if status == "completed" else _AGAIN_SECONDS)
        while await self.state() is not State.RUNNING:
            if time.monotonic() > again:
                await self.resume()
                return
            await asyncio.sleep(0.01)

    async def pause(self) -> None:
        await self._monitor.do("stop", timeout=_ANSWER_SECONDS)

    async def resume(self) -> None:
        await self._monitor.do("cont", timeout=_ANSWER_SECONDS)

    async def end(self) -> None:
        try:
            await self._monitor.do("quit", timeout=_END_SECONDS)
        except SilentError:
            pass
        except GoneError:
            return
        if not await self._monitor.ended(_END_SECONDS):
            raise MachineError(f"{self._what}: its QEMU does not end; end it by hand")

    async def close(self) -> None:
        await self._monitor.close()


class QemuMigration(Migration):
    """The machine stands still on both sides afterwards, whole in the target."""

    def __init__(self, source: QemuMachine, target: QemuMachine) -> None:
        self._source, self._target = source, target

    async def progress(self) -> AsyncGenerator[Moving, None]:
        async with aclosing(self._source.send(await self._target.listen())) as steps:
            async for moving in steps:
                if moving.done:
                    await self._target.loaded()
                yield moving

    async def cancel(self) -> bool:
        await self._source.cancel()
        return True


#: Truth values of a processor that are no features of it, by their beginnings.
_NO_FLAGS = re.compile(
    r"kvm|hv-|xen-|x-|tcg-|vmware-|host-|legacy-|l3-|full-cpuid|fill-mtrr|cpuid-0xb|lmce$|pmu$|check$"
    r"|enforce$|migratable$|realized$|hotplug|start-powered-off$|memory$|sgx-lc$"
)


def _is_flag(name: str) -> bool:
    return _NO_FLAGS.match(name) is None


def _is_about(data: dict[str, Any], device: str) -> bool:
    return device in (data.get("device"), data.get("path"))


class Qemu(Hypervisor):
    """The QEMUs of one host."""

    Settings: ClassVar[type] = Settings
    capabilities = Capabilities(regions=True, grants=False, held=True)

    def __init__(self, host: Host, reach: Reach) -> None:
        super().__init__(host, reach)
        self._settings = _settings(host)

    @classmethod
    def host_of(cls, word: str) -> Host | None:
        """A host of which only one machine's QMP socket is known."""
        if "/" not in word or "://" in word:
            return None
        path = os.path.realpath(word)
        return Host(path, "qemu", _OneSocket(qmp=path))

    def fresh_device(self, path: str, size: int) -> RegionDevice:
        ours = self._settings
        return RegionDevice(path, size, ours.device, ours.memory, ours.bus, ours.address)

    def moved_device(self, path: str, size: int, before: RegionDevice) -> RegionDevice:
        if not before.device.startswith("/"):
            return super().moved_device(path, size, before)
        # One without a name: it gets ours.
        ours = self._settings
        return RegionDevice(path, size, ours.device, ours.memory, before.bus, before.address)

    def _path(self, name: str) -> str:
        return filled(self._settings.qmp, {"{vm}": name})

    async def machines(self) -> list[str]:
        return self._names(await self.reach.sockets(self._pattern()))

    def _pattern(self) -> str:
        before, _, after = self._settings.qmp.partition("{vm}")
        return f"{before}*{after}"

    def _names(self, paths: Sequence[str]) -> list[str]:
        before, _, after = self._settings.qmp.partition("{vm}")
        pattern = re.compile(f"{re.escape(before)}([^/]+){re.escape(after)}")
        return sorted(match[1] for path in paths if (match := pattern.fullmatch(path)))

    async def machine(self, name: str) -> QemuMachine | None:
        path = await self.reach.socket(self._path(name))
        return await QemuMachine.connect(name, self.host, path) if path else None

    async def describe(self) -> HostDescription:
        return await linux.describe(self.reach)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Only who comes and goes: a monitor serves one program, and watching would take it."""
        before: set[str] | None = None
        async for paths in self.reach.watch_sockets(self._pattern(), _WATCH_SECONDS):
            now = set(self._names(paths))
            for name in sorted(now - (now if before is None else before)):
                yield Event(name, "appeared")
            for name in sorted((before or set()) - now):
                yield Event(name, "gone")
            before = now

    async def check_place(self, name: str) -> None:
        # Without a start command the one that waits is to be there.
        if self._settings.start:
            await super().check_place(name)

    async def load(self, name: str, file: str) -> QemuMachine:
        machine = await self.expect(name, lambda text: None)
        try:
            await machine.fill(file)
        except BaseException:
            await machine.end()
            await machine.close()
            raise
        return machine

    async def expect(self, name: str, say: Callable[[str], None]) -> QemuMachine:
        if not self._settings.start:
            return await self._waiting(name)
        say(f"starting a QEMU for {name} on {self.host.name}")
        try:
            await self._start(name)
            return await self._waiting(name)
        except BaseException:
            await self._end_started(name)
            raise

    async def _waiting(self, name: str) -> QemuMachine:
        machine = await self._wait(name)
        try:
            await self._must_wait(machine)
        except BaseException:
            await machine.close()
            raise
        return machine

    async def _end_started(self, name: str) -> None:
        """What our own start command has left; nobody had this name here before."""
        try:
            machine = await self.machine(name)
            if machine is not None:
                await machine.end()
                await machine.close()
        except IvcError:
            pass  # what led here says more

    async def _start(self, name: str) -> None:
        words = {"{vm}": name, "{qmp}": self._path(name), "{host}": self.host.name}
        command = [filled(word, words) for word in self._settings.start]
        done = await self.reach.run(command, _COMMAND_SECONDS)
        if done.code != 0:
            raise MachineError(
                f"{name} on {self.host.name}: the start command"
                f" {PurePosixPath(command[0]).name} failed: {done.last_line()}"
            )

    async def _wait(self, name: str) -> QemuMachine:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            machine = await self.machine(name)
            if machine is not None:
                return machine
            if not self._settings.start:
                break
            await asyncio.sleep(0.1)
        raise MachineError(
            f"{name} on {self.host.name}: no QEMU answers on {self._path(name)}",
            hint="start it with -incoming defer"
            if not self._settings.start
            else "does the start command give it that -qmp socket?",
        )

    async def _must_wait(self, machine: QemuMachine) -> None:
        state = await machine.state()
        if state is State.WAITING:
            return
        raise MachineError(
            f"{machine.name} on {self.host.name}: its QEMU does not wait for a migration,"
            f" it is {state.value}",
            hint="start it with -incoming defer",
        )
