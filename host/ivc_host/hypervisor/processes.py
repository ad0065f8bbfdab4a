"""Machines that are none: files, and processes of this machine if they are to have some. For tests.

A host is a folder, a machine a file `NAME.json` in it (`Record`). Its processes, when it has any, are
members of a region through a symbolic link (IVC_REGION) to the host's file, under its name (IVC_VM); to
have that link lead elsewhere is to pull and plug the device. So all that is done with machines is done
in milliseconds, with ten thousand of them if need be.

`faults.json` in the folder says what is to go wrong there:

    {"fail": {"attach": "no slot is free"},     that call is refused
     "kill": "migrate",                         the machine, and its processes, end in that call
     "rate": 1000000}                           bytes a second that a move leaves the host with

The calls are those of the contract; "*" is each of them, as on a host that is not reached.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..lab.process import Process
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
from .faults import GoneError, MachineError
from .host import Host
from .reach import Reach

_FAULTS, _HOST = "faults.json", "host.json"
_TICK_SECONDS = 0.02
_WATCH_SECONDS = 0.05


@dataclass(frozen=True)
class Settings:
    """What the inventory says of such a host."""

    folder: str = ""

    def __post_init__(self) -> None:
        if not self.folder.startswith("/"):
            raise ValueError("needs folder, the whole path of one")


@dataclass
class Record:
    """A machine, as its file has it."""

    state: str = State.RUNNING.name
    uuid: str = field(default_factory=lambda: str(uuid.uuid4()))
    memory: int = 1 << 30
    vcpus: int = 1
    cpu_flags: list[str] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
    #: The file that it has as a region, and where.
    region: str | None = None
    region_size: int = 0
    address: str | None = None
    #: The symbolic link by which its processes have the region.
    link: str | None = None
    #: Number and start time of each.
    processes: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Hardware:
    """A host, as `host.json` has it; without that file it is as here."""

    memory: int = 64 << 30
    cpus: int = 16
    cpu_flags: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()


class Folder:
    """A host's files."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name

    def _json(self, file: str) -> Any:
        try:
            return json.loads((self.path / file).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as fault:
            raise MachineError(f"host {self.name}: {self.path / file}: {fault}") from None

    def machines(self) -> list[str]:
        try:
            files = os.listdir(self.path)
        except OSError as fault:
            raise MachineError(f"host {self.name}: {self.path}: {fault.strerror}") from None
        ours = (_FAULTS, _HOST)
        return sorted(f.removesuffix(".json") for f in files if f.endswith(".json") and f not in ours)

    def record(self, machine: str) -> Record | None:
        found = self._json(f"{machine}.json")
        try:
            return None if found is None else Record(**found)
        except TypeError as fault:
            raise MachineError(f"host {self.name}: {machine}.json: {fault}") from None

    def write(self, machine: str, record: Record) -> None:
        """In one step: who looks sees it as it was, or as it is."""
        new = self.path / f".{machine}.{os.getpid()}"
        new.write_text(json.dumps(asdict(record)))
        new.replace(self.path / f"{machine}.json")

    def remove(self, machine: str) -> None:
        (self.path / f"{machine}.json").unlink(missing_ok=True)

    def hardware(self) -> Hardware:
        try:
            return Hardware(**(self._json(_HOST) or {}))
        except TypeError as fault:
            raise MachineError(f"host {self.name}: {_HOST}: {fault}") from None

    def memory_free(self) -> int:
        taken = sum(one.memory for name in self.machines() if (one := self.record(name)))
        return self.hardware().memory - taken

    def rate(self) -> float | None:
        found = (self._json(_FAULTS) or {}).get("rate")
        return None if found is None else float(found)

    def at(self, call: str, machine: str = "") -> None:
        """Every call comes by here first, and fails if it is to."""
        faults = self._json(_FAULTS) or {}
        refusals = faults.get("fail", {})
        reason = refusals.get(call, refusals.get("*"))
        if reason is not None:
            raise MachineError(f"{machine or 'a machine'} on {self.name}: {reason}")
        if machine and faults.get("kill") == call:
            self.kill(machine)
            raise GoneError(f"{machine} on {self.name}: it was killed")

    def kill(self, machine: str) -> None:
        record = self.record(machine)
        if record is not None:
            _signal(record, signal.SIGKILL)
        self.remove(machine)


def _signal(record: Record, number: signal.Signals) -> None:
    for pid, start in record.processes:
        with suppress(ProcessLookupError):
            if Process(pid, start).alive():
                os.kill(pid, number)


def _place(link: str, target: str | None) -> None:
    """The device comes, or goes: in one step, as the processes see it."""
    if target is None:
        Path(link).unlink(missing_ok=True)
        return
    beside = f"{link}.{os.getpid()}"
    os.symlink(target, beside)
    os.replace(beside, link)


class ProcessesMachine(Machine):
    def __init__(self, name: str, folder: Folder, record: Record) -> None:
        self.name = self.own_name = name
        self.host = folder.name
        self.key = f"{folder.path}/{name}"
        self.uuid = record.uuid
        self.folder = folder

    def _read(self, call: str) -> Record:
        self.folder.at(call, self.name)
        return self.record()

    def record(self) -> Record:
        found = self.folder.record(self.name)
        if found is None:
            raise GoneError(f"{self.name} on {self.host}: it has ended")
        return found

    def set(self, state: State) -> None:
        record = self.record()
        record.state = state.name
        self.folder.write(self.name, record)

    async def state(self) -> State:
        record = self._read("state")
        if any(not Process(*one).alive() for one in record.processes):
            return State.OTHER
        return State[record.state]

    async def describe(self) -> MachineDescription:
        record = self._read("describe")
        device = _device(record)
        return MachineDescription(
            record.memory,
            record.vcpus,
            frozenset(record.cpu_flags),
            tuple(record.networks),
            (device,) if device else (),
        )

    async def region(self) -> RegionDevice | None:
        return _device(self._read("region"))

    async def blockers(self) -> list[str]:
        self.folder.at("blockers", self.name)
        return []

    async def prepare(self, device: RegionDevice) -> None:
        self.folder.at("prepare", self.name)

    async def attach(self, device: RegionDevice) -> None:
        record = self._read("attach")
        if record.region is not None:
            raise MachineError(f"{self.name} on {self.host}: its slot is taken")
        record.region, record.region_size = device.path, device.size
        record.address = device.address
        if record.link:
            _place(record.link, device.path)
        self.folder.write(self.name, record)

    async def detach(self, device: RegionDevice, timeout: float) -> None:
        record = self._read("detach")
        record.region = None
        if record.link:
            _place(record.link, None)
        self.folder.write(self.name, record)

    def migrate(self, target: Machine) -> Migration:
        assert isinstance(target, ProcessesMachine)
        return ProcessesMigration(self, target)

    async def pause(self) -> None:
        record = self._read("pause")
        _signal(record, signal.SIGSTOP)
        self.set(State.PAUSED)

    async def resume(self) -> None:
        record = self._read("resume")
        self.set(State.RUNNING)
        _signal(record, signal.SIGCONT)

    async def save(self, file: str) -> None:
        record = self._read("save")
        try:
            with open(file, "x") as out:
                json.dump(asdict(record), out)
        except OSError as fault:
            raise MachineError(f"{self.name} on {self.host}: {file}: {fault.strerror}") from None
        _signal(record, signal.SIGSTOP)
        self.folder.remove(self.name)

    async def end(self) -> None:
        """The processes are where the machine has gone."""
        self.folder.at("end", self.name)
        self.folder.remove(self.name)


def _device(record: Record) -> RegionDevice | None:
    if record.region is None:
        return None
    return RegionDevice(record.region, record.region_size, "ivc0", "ivcmem", None, record.address)


class ProcessesMigration(Migration):
    """Bytes that are counted, at the source's rate; then the record is in the other folder."""

    def __init__(self, source: ProcessesMachine, target: ProcessesMachine) -> None:
        self._source, self._target = source, target

    async def progress(self) -> AsyncGenerator[Moving, None]:
        source, target = self._source, self._target
        record = source.record()
        source.folder.at("migrate", source.name)
        if record.region is not None:
            raise MachineError(f"{source.name} on {source.host}: it has a device that cannot move")
        if record.memory > target.folder.memory_free():
            raise MachineError(f"{source.name}: {target.host} has not so much memory")
        begin = time.monotonic()
        rate = source.folder.rate()
        while rate is not None and (sent := (time.monotonic() - begin) * rate) < record.memory:
            yield Moving(
                transferred=int(sent), remaining=record.memory - int(sent), total=record.memory,
                rate=rate,
            )  # fmt: skip
            await asyncio.sleep(_TICK_SECONDS)
            source.folder.at("migrate", source.name)
            target.folder.at("receive", target.name)
            target.record()
        stopped = time.monotonic()
        _signal(record, signal.SIGSTOP)
        record.state = State.PAUSED.name
        target.folder.write(target.name, record)
        source.set(State.MOVED)
        now = time.monotonic()
        yield Moving(
            done=True, transferred=record.memory, total=record.memory, passes=1,
            downtime=now - stopped, total_time=now - begin,
        )  # fmt: skip

    async def cancel(self) -> bool:
        await self._source.resume()
        return True


class Processes(Hypervisor):
    """A folder."""

    Settings: ClassVar[type] = Settings
    capabilities = Capabilities(regions=True, grants=False, held=True)

    def __init__(self, host: Host, reach: Reach) -> None:
        super().__init__(host, reach)
        assert isinstance(host.settings, Settings)
        self.folder = Folder(Path(host.settings.folder), host.name)

    async def machines(self) -> list[str]:
        self.folder.at("machines")
        return self.folder.machines()

    async def machine(self, name: str) -> ProcessesMachine | None:
        self.folder.at("machine", name)
        record = self.folder.record(name)
        return None if record is None else ProcessesMachine(name, self.folder, record)

    async def expect(self, name: str, say: Callable[[str], None]) -> ProcessesMachine:
        self.folder.at("expect", name)
        record = Record(State.WAITING.name, uuid="", memory=0)
        self.folder.write(name, record)
        return ProcessesMachine(name, self.folder, record)

    async def load(self, name: str, file: str) -> ProcessesMachine:
        self.folder.at("load", name)
        try:
            record = Record(**json.loads(Path(file).read_text()))
        except (OSError, ValueError, TypeError) as fault:
            raise MachineError(f"{name} on {self.host.name}: {file}: {fault}") from None
        self.folder.write(name, record)
        machine = ProcessesMachine(name, self.folder, record)
        await machine.resume()
        return machine

    async def describe(self) -> HostDescription:
        self.folder.at("describe")
        has = self.folder.hardware()
        return HostDescription(
            has.memory, self.folder.memory_free(), has.cpus,
            frozenset(has.cpu_flags), tuple(has.networks),
        )  # fmt: skip

    async def events(self) -> AsyncGenerator[Event, None]:
        seen = self._seen()
        before, changed = {name: _kind(record) for name, record in seen.items()}, 0
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            self.folder.at("events")
            # Each change renames a file: the folder's time tells. It may be as coarse as a clock tick.
            last = os.stat(self.folder.path).st_mtime_ns
            if last != changed or time.time_ns() - last < _WATCH_SECONDS * 2e9:
                seen, changed = self._seen(), last
            now = {name: _kind(record) for name, record in seen.items()}
            for name in sorted(before.keys() | now.keys()):
                for kind in _changes(before.get(name), now.get(name)):
                    yield Event(name, kind)
            before = now

    def _seen(self) -> dict[str, Record]:
        return {name: one for name in self.folder.machines() if (one := self.folder.record(name))}


_KINDS = {State.RUNNING.name: "running", State.PAUSED.name: "paused"}


def _kind(record: Record) -> tuple[str | None, bool]:
    """What it does, and whether it has a region."""
    if any(not Process(*one).alive() for one in record.processes):
        return "crashed", record.region is not None
    return _KINDS.get(record.state), record.region is not None


def _changes(
    before: tuple[str | None, bool] | None, now: tuple[str | None, bool] | None
) -> list[str]:
    if before is None or now is None:
        return [] if before is now else ["gone" if now is None else "appeared"]
    kinds = [now[0]] if now[0] is not None and now[0] != before[0] else []
    if now[1] != before[1]:
        kinds.append("region added" if now[1] else "region removed")
    return kinds
