"""Domains of libvirt: QEMU's, Xen's, whatever its drivers have; `test:///default` for tests.

A region is a `<shmem>` of the model ivshmem-plain, whose file libvirt puts into /dev/shm. libvirt does
not move a domain that has one; here it is detached before and attached after. libvirt owns who has a
domain that moves: it runs on one side at any time, and over there once `migrate3` has returned.

libvirt's calls wait, so each runs in a thread; its events come from a thread of their own. What it says
is passed on as it says it.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

from ..errors import MissingError
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
from .faults import GoneError, MachineError
from .host import Host
from .reach import Reach
from .xenstore import GrantsOrder

_MODEL = "ivshmem-plain"
_FOLDER = "/dev/shm/"
_POLL_SECONDS = 0.25
#: A connection whose other side has not answered for so long is closed.
_ALIVE_SECONDS, _ALIVE_TRIES = 5, 4
_ABORT_SECONDS = 30.0
#: A service that is restarted answers again after a second or two; one that takes longer is gone.
_RESTART_SECONDS = 15.0


@dataclass(frozen=True)
class Settings:
    """What the inventory says of a host with libvirt."""

    uri: str = "qemu:///system"
    #: Where it receives a migration, such as tcp://10.0.0.2; else libvirt asks it for its name.
    migrate_uri: str | None = None
    #: Whether a machine runs while it moves; without, it stands still from the beginning.
    live: bool = True

    def __post_init__(self) -> None:
        if "://" not in self.uri:
            raise ValueError(f"uri {self.uri} is none of libvirt's, such as qemu+ssh://beta/system")

    @property
    def ssh(self) -> tuple[str, ...]:
        """How its region is reached, and its processes asked: as libvirt itself is."""
        parts = urlsplit(self.uri)
        if not parts.hostname:
            return ()
        port = ("-p", str(parts.port)) if parts.port and "+ssh" in parts.scheme else ()
        user = f"{parts.username}@" if parts.username else ""
        return (*port, user + parts.hostname)


@cache
def binding() -> Any:
    """libvirt's own module, with its events coming and its errors not printed."""
    try:
        libvirt: Any = importlib.import_module("libvirt")
    except ImportError as fault:
        raise MissingError(
            f"libvirt's Python module is not there ({fault})",
            hint="./run setup installs it; elsewhere: apt install libvirt-dev python3-dev gcc"
            " pkg-config, then pip install libvirt-python",
        ) from None
    libvirt.registerErrorHandler(lambda context, error: None, None)
    libvirt.virEventRegisterDefaultImpl()
    threading.Thread(target=_run_events, args=(libvirt,), daemon=True).start()
    return libvirt


def _run_events(libvirt: Any) -> None:
    while True:
        with suppress(libvirt.libvirtError):
            libvirt.virEventRunDefaultImpl()


class Connection:
    """To one host's libvirt; opened when it is first needed."""

    def __init__(self, host: str, uri: str) -> None:
        self.host = host
        self.uri = uri
        self._lib: Any = None
        self._conn: Any = None
        self._opening = asyncio.Lock()

    async def open(self) -> Any:
        """The connection; a new one when its libvirt has ended, which is restarted at any time."""
        async with self._opening:
            if self._conn is not None and not self._conn.isAlive():
                await self.close()
            if self._conn is None:
                self._lib = binding()
                self._conn = await self.do("connection", self._lib.open, self.uri)
                with suppress(self._lib.libvirtError):  # one in this process needs none
                    self._conn.setKeepAlive(_ALIVE_SECONDS, _ALIVE_TRIES)
            return self._conn

    def is_of(self, domain: Any) -> bool:
        """Whether a domain can still be asked: it is of the connection that is open now."""
        return self._conn is not None and domain.connect() is self._conn

    async def do(self, what: str, call: Callable[..., Any], *words: Any) -> Any:
        """One call, in a thread; its fault in libvirt's words."""
        lib = self._lib
        try:
            return await asyncio.to_thread(call, *words)
        except lib.libvirtError as fault:
            text = f"{what} on {self.host}: {fault.get_error_message() or fault}"
            gone = (lib.VIR_ERR_NO_DOMAIN, lib.VIR_ERR_NO_CONNECT, lib.VIR_ERR_RPC)
            kind = GoneError if fault.get_error_code() in gone else MachineError
            raise kind(text) from None

    async def ask(self, what: str, name: str, *words: Any) -> Any:
        """A call of the connection itself."""
        return await self.do(what, getattr(await self.open(), name), *words)

    async def find(self, name: str) -> Any:
        """The domain of that name, when it is active: one that is defined and off is nowhere."""
        conn = await self.open()
        try:
            domain = await self.do(name, conn.lookupByName, name)
            return domain if await self.do(name, domain.isActive) else None
        except GoneError:
            if not await self.do("connection", conn.isAlive):
                raise
            return None

    @asynccontextmanager
    async def events(self, domain: Any, *kinds: str) -> AsyncIterator[asyncio.Queue[Any]]:
        """What happens from now on, each a tuple of the kind and libvirt's words for it; None: the
        connection has ended. DOMAIN None is all."""
        conn, lib = await self.open(), self._lib
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def put(item: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def callback(kind: str) -> Callable[..., None]:
            return lambda conn, domain, *words: put((kind, domain.name(), words[:-1]))

        numbers = []
        try:
            for kind in kinds:
                number = getattr(lib, f"VIR_DOMAIN_EVENT_ID_{kind}")
                register = conn.domainEventRegisterAny
                with suppress(MachineError):  # a driver without that event
                    numbers.append(
                        await self.do("events", register, domain, number, callback(kind), None)
                    )
            with suppress(lib.libvirtError):
                conn.registerCloseCallback(lambda conn, reason, data: put(None), None)
            yield queue
        finally:
            if self._conn is conn:  # closed meanwhile, it is no object any more that could be asked
                for number in numbers:
                    with suppress(lib.libvirtError):
                        conn.domainEventDeregisterAny(number)
                with suppress(lib.libvirtError):
                    conn.unregisterCloseCallback()

    async def close(self) -> None:
        if self._conn is not None:
            conn, self._conn = self._conn, None
            with suppress(MachineError):
                await self.do("connection", conn.close)


def _tree(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def _text(element: ElementTree.Element, path: str, default: str = "") -> str:
    return (element.findtext(path) or default).strip()


_UNITS = {"b": 1, "bytes": 1, "KB": 1000, "k": 1 << 10, "KiB": 1 << 10, "MB": 10**6, "M": 1 << 20,
          "MiB": 1 << 20, "GB": 10**9, "G": 1 << 30, "GiB": 1 << 30}  # fmt: skip


def _bytes(element: ElementTree.Element | None, unit: str) -> int:
    if element is None or not element.text:
        return 0
    return int(element.text) * _UNITS.get(element.get("unit", unit), 1)


def regions_in(domain: ElementTree.Element) -> list[RegionDevice]:
    return [_region(one) for one in domain.iterfind("devices/shmem") if _is_region(one)]


def _is_region(shmem: ElementTree.Element) -> bool:
    model = shmem.find("model")
    return model is not None and model.get("type") == _MODEL


def _region(shmem: ElementTree.Element) -> RegionDevice:
    alias, place = shmem.find("alias"), shmem.find("address[@type='pci']")
    bus = address = None
    if place is not None:
        bus = f"{place.get('domain', '0x0000')}:{place.get('bus', '0x00')}"
        address = f"{place.get('slot')}.{place.get('function', '0x0')}"
    return RegionDevice(
        path=_FOLDER + (shmem.get("name") or ""),
        size=_bytes(shmem.find("size"), "MiB"),
        device="" if alias is None else alias.get("name", ""),
        bus=bus,
        address=address,
    )


def shmem_xml(device: RegionDevice) -> str:
    """The element by which a region is plugged in."""
    name = device.path.removeprefix(_FOLDER)
    if not device.path.startswith(_FOLDER) or "/" in name:
        raise MachineError(
            f"libvirt takes no {device.path} for a region",
            hint=f"its <shmem> is a file in {_FOLDER}: make the host's region there",
        )
    shmem = ElementTree.Element("shmem", name=name)
    ElementTree.SubElement(shmem, "model", type=_MODEL)
    ElementTree.SubElement(shmem, "size", unit="b").text = str(device.size)
    if device.bus and device.address:
        (domain, bus), (slot, function) = device.bus.split(":"), device.address.split(".")
        place = {"domain": domain, "bus": bus, "slot": slot, "function": function}
        ElementTree.SubElement(shmem, "address", {"type": "pci", **place})
    return ElementTree.tostring(shmem, encoding="unicode")


def with_region(domain: str, host: Host) -> str:
    """The definition of a domain that goes to HOST: it starts with that host's region next time."""
    tree = _tree(domain)
    for devices, shmem in [(d, s) for d in tree.iterfind("devices") for s in d.findall("shmem")]:
        if not _is_region(shmem):
            continue
        if host.region and host.region.startswith(_FOLDER):
            shmem.set("name", host.region.removeprefix(_FOLDER))
        else:
            devices.remove(shmem)
    return ElementTree.tostring(tree, encoding="unicode")


def _networks(domain: ElementTree.Element) -> tuple[str, ...]:
    found = []
    for source in domain.iterfind("devices/interface/source"):
        found += [source.get(key) for key in ("bridge", "network", "dev") if source.get(key)]
    return tuple(name for name in found if name)


def _flags(cpu: str) -> frozenset[str]:
    features = _tree(cpu).iterfind("feature")
    return frozenset(one.get("name", "") for one in features
                     if one.get("policy") not in ("disable", "forbid"))  # fmt: skip


class LibvirtMachine(Machine):
    """An active domain, or the place for one: libvirt makes it when it comes."""

    def __init__(self, name: str, here: Libvirt, domain: Any) -> None:
        self.name = self.own_name = name
        self.host = here.host.name
        self.here, self.at, self.settings = here, here.at, here.settings
        self.domain = domain
        self.uuid = domain.UUIDString().lower() if domain else None
        self.key = f"{self.at.uri} {self.uuid or name}"

    async def _do(self, name: str, *words: Any) -> Any:
        await self._found_again()
        if self.domain is None:
            raise GoneError(f"{self.name} is not on {self.host}")
        return await self.at.do(self.name, getattr(self.domain, name), *words)

    async def _found_again(self) -> None:
        """By the libvirt that runs now: a domain of one that has ended cannot be asked."""
        await self.at.open()
        if self.domain is not None and not self.at.is_of(self.domain):
            self.domain = await self.at.find(self.name)

    async def state(self) -> State:
        if self.domain is None:
            return State.WAITING
        lib = binding()
        number, _ = await self._do("state")
        if number in (lib.VIR_DOMAIN_RUNNING, lib.VIR_DOMAIN_BLOCKED):
            return State.RUNNING
        if number == lib.VIR_DOMAIN_PAUSED:
            return State.WAITING if await self._comes() else State.PAUSED
        if number == lib.VIR_DOMAIN_SHUTOFF:
            raise GoneError(f"{self.name} on {self.host}: it has ended")
        return State.OTHER

    async def _comes(self) -> bool:
        """Whether somebody is moving it here."""
        try:
            job = await self._do("jobStats")
        except MachineError:
            return False
        return bool(job.get("operation") == binding().VIR_DOMAIN_JOB_OPERATION_MIGRATION_IN)

    async def _xml(self) -> ElementTree.Element:
        return _tree(await self._do("XMLDesc"))

    async def describe(self) -> MachineDescription:
        tree = await self._xml()
        vcpu = tree.find("vcpu")
        count = "1" if vcpu is None else vcpu.get("current") or vcpu.text or "1"
        return MachineDescription(
            memory=_bytes(tree.find("currentMemory"), "KiB"),
            vcpus=int(count),
            cpu_flags=await self._cpu_flags(tree),
            networks=_networks(tree),
            regions=tuple(regions_in(tree)),
        )

    async def _cpu_flags(self, tree: ElementTree.Element) -> frozenset[str]:
        cpu = tree.find("cpu")
        if cpu is None:
            return frozenset()
        kind = tree.find("os/type")
        words = [_text(tree, "devices/emulator") or None]
        words += [kind.get("arch"), kind.get("machine")] if kind is not None else [None, None]
        xml = ElementTree.tostring(cpu, encoding="unicode")
        expand = binding().VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
        try:
            return _flags(await self.at.ask("processors", "baselineHypervisorCPU", *words,
                                            tree.get("type"), [xml], expand))  # fmt: skip
        except MachineError:
            return _flags(xml)

    async def region(self) -> RegionDevice | None:
        found = regions_in(await self._xml())
        return found[0] if found else None

    async def blockers(self) -> list[str]:
        """libvirt has no question for this; of what it refuses, more regions than one are ours to say."""
        others = regions_in(await self._xml())[1:]
        return [f"it has a second <shmem>, {one.path.removeprefix(_FOLDER)}" for one in others]

    async def prepare(self, device: RegionDevice) -> None:
        shmem_xml(device)  # what libvirt would not take is known before anything is touched

    async def attach(self, device: RegionDevice) -> None:
        live = binding().VIR_DOMAIN_AFFECT_LIVE
        await self._now()
        await self._do("attachDeviceFlags", shmem_xml(device), live)

    async def _now(self) -> None:
        """The domain that has come meanwhile."""
        if self.domain is None:
            self.domain = await self.at.find(self.name)

    async def detach(self, device: RegionDevice, timeout: float) -> None:
        kinds = ("DEVICE_REMOVED", "DEVICE_REMOVAL_FAILED")
        end = time.monotonic() + timeout
        async with self.at.events(self.domain, *kinds) as queue:
            await self._do("detachDeviceAlias", device.device, binding().VIR_DOMAIN_AFFECT_LIVE)
            while (left := end - time.monotonic()) > 0:
                try:
                    event = await asyncio.wait_for(queue.get(), left)
                except TimeoutError:
                    break
                if event is None:
                    raise GoneError(f"{self.name} on {self.host}: libvirt has ended")
                kind, _, (alias,) = event
                if alias != device.device:
                    continue
                if kind == "DEVICE_REMOVED":
                    return
                raise MachineError(f"{self.name} on {self.host}: the guest refuses to let go of the device")
        raise MachineError(
            f"{self.name} on {self.host}: the guest has not let go of the device in {timeout:g} s",
            hint="is its system up, and does it know hot-plugging? The request cannot be taken"
            " back: the guest may still let go later, and the job then goes on over the network",
        )

    async def order_away(self, timeout: float, waiting: Callable[[str], None]) -> Order | None:
        if not self.here.capabilities.grants:
            return None
        return await GrantsOrder.give(self.here.reach, await self._do("ID"), timeout)

    def migrate(self, target: Machine) -> Migration:
        assert isinstance(target, LibvirtMachine)
        return LibvirtMigration(self, target)

    async def pause(self) -> None:
        await self._do("suspend")

    async def resume(self) -> None:
        await self._do("resume")

    async def save(self, file: str) -> None:
        await self._do("save", file)

    async def end(self) -> None:
        """Nothing is left: libvirt takes care of both sides."""


class LibvirtMigration(Migration):
    def __init__(self, source: LibvirtMachine, target: LibvirtMachine) -> None:
        self._source, self._target = source, target
        self._task: asyncio.Task[Any] | None = None

    async def _words(self) -> tuple[dict[str, str], int]:
        """Parameters and flags of migrate3: what is defined here is defined there, with its region."""
        lib, source = binding(), self._source
        flags = lib.VIR_MIGRATE_LIVE if self._target.settings.live else 0
        words = {}
        if self._target.settings.migrate_uri:
            words[lib.VIR_MIGRATE_PARAM_URI] = self._target.settings.migrate_uri
        if await source._do("isPersistent"):
            flags |= lib.VIR_MIGRATE_PERSIST_DEST | lib.VIR_MIGRATE_UNDEFINE_SOURCE
            kind = lib.VIR_DOMAIN_XML_INACTIVE | lib.VIR_DOMAIN_XML_SECURE
            text = await source._do("XMLDesc", kind)
            words[lib.VIR_MIGRATE_PARAM_PERSIST_XML] = with_region(text, self._target.here.host)
        return words, flags

    async def progress(self) -> AsyncGenerator[Moving, None]:
        source = self._source
        words, flags = await self._words()
        there = await self._target.at.open()
        # Not cancelled with the one who waits for it: what becomes of it is libvirt's to say.
        self._task = asyncio.create_task(source._do("migrate3", there, words, flags))
        async with source.at.events(source.domain, "MIGRATION_ITERATION") as queue:
            while not self._task.done():
                getter = asyncio.ensure_future(queue.get())
                await asyncio.wait(
                    {self._task, getter}, timeout=_POLL_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )  # fmt: skip
                getter.cancel()
                if not self._task.done():
                    yield await self._now()
        self._target.domain = self._task.result()
        yield await self._last()

    async def _now(self) -> Moving:
        try:
            return _moving(await self._source._do("jobStats"))
        except MachineError:
            return Moving()  # between two phases of libvirt's there is no job

    async def _last(self) -> Moving:
        try:
            completed = binding().VIR_DOMAIN_JOB_STATS_COMPLETED
            return _moving(await self._target._do("jobStats", completed), done=True)
        except MachineError:
            return Moving(done=True)

    async def cancel(self) -> bool:
        task, source = self._task, self._source
        if task is None:
            return True
        if not task.done():
            with suppress(MachineError):  # it has just ended, or not yet begun
                await source._do("abortJob")
            await asyncio.wait({task}, timeout=_ABORT_SECONDS)
            if not task.done():
                raise MachineError(f"{source.name}: libvirt has not ended its migration")
        if task.exception() is None:
            self._target.domain = task.result()
            return False
        if await self._state_after() is State.PAUSED:
            await source.resume()
        return True

    async def _state_after(self) -> State:
        """The source's, also when what ended the migration is that its libvirt is restarted."""
        end = time.monotonic() + _RESTART_SECONDS
        while True:
            try:
                return await self._source.state()
            except MachineError:
                if time.monotonic() > end:
                    raise
                await asyncio.sleep(_POLL_SECONDS)


def _moving(job: dict[str, Any], done: bool = False) -> Moving:
    """libvirt's statistics of a job, in the words of the contract."""

    def seconds(key: str) -> float | None:
        return job[key] / 1000 if key in job else None

    return Moving(
        done=done,
        transferred=job.get("memory_processed", job.get("data_processed")),
        remaining=job.get("memory_remaining", job.get("data_remaining", 0)),
        total=job.get("memory_total", job.get("data_total", 0)),
        rate=job.get("memory_bps", 0),
        expected_downtime=None if done else seconds("downtime"),
        downtime=seconds("downtime") if done else None,
        total_time=seconds("time_elapsed"),
        passes=job.get("memory_iteration", 0),
    )


class Libvirt(Hypervisor):
    """One host's libvirt."""

    Settings: ClassVar[type] = Settings
    capabilities = Capabilities(regions=True, grants=False, held=False)

    def __init__(self, host: Host, reach: Reach) -> None:
        super().__init__(host, reach)
        assert isinstance(host.settings, Settings)
        self.settings = host.settings
        self.at = Connection(host.name, host.settings.uri)
        if self.settings.uri.startswith("xen"):
            self.capabilities = replace(self.capabilities, regions=False, grants=True)

    @classmethod
    def host_of(cls, word: str) -> Host | None:
        """Each of libvirt's URIs is a host."""
        if "://" not in word:
            return None
        found = Settings(uri=word)
        return Host(word, "libvirt", found, ssh=found.ssh)

    async def machines(self) -> list[str]:
        active = (await self.at.open()) and binding().VIR_CONNECT_LIST_DOMAINS_ACTIVE
        found = await self.at.ask("domains", "listAllDomains", active)
        return sorted(domain.name() for domain in found)

    async def machine(self, name: str) -> LibvirtMachine | None:
        domain = await self.at.find(name)
        return LibvirtMachine(name, self, domain) if domain else None

    async def expect(self, name: str, say: Callable[[str], None]) -> LibvirtMachine:
        await self.at.open()
        return LibvirtMachine(name, self, None)

    async def load(self, name: str, file: str) -> LibvirtMachine:
        await self.at.ask(f"{name} from {file}", "restore", file)
        machine = await self.machine(name)
        if machine is None:
            raise MachineError(f"{file} on {self.host.name} was restored, and is no {name}")
        return machine

    async def describe(self) -> HostDescription:
        _, memory, cpus, *_ = await self.at.ask("host", "getInfo")
        return HostDescription(
            memory=memory << 20,
            memory_free=await self._free(),
            cpus=cpus,
            cpu_flags=await self._cpu_flags(),
            networks=await self._networks(),
        )

    async def _free(self) -> int:
        """What is free, and what is only cached."""
        try:
            said = await self.at.ask("host", "getMemoryStats", -1)
        except MachineError:
            return int(await self.at.ask("host", "getFreeMemory"))
        return sum(int(said.get(key, 0)) for key in ("free", "buffers", "cached")) << 10

    async def _cpu_flags(self) -> frozenset[str]:
        cpu = _tree(await self.at.ask("host", "getCapabilities")).find("host/cpu")
        if cpu is None:
            return frozenset()
        xml = ElementTree.tostring(cpu, encoding="unicode")
        expand = binding().VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
        try:
            return _flags(await self.at.ask("processors", "baselineCPU", [xml], expand))
        except MachineError:
            return _flags(xml)

    async def _networks(self) -> tuple[str, ...]:
        found = []
        for call in ("listNetworks", "listInterfaces"):
            with suppress(MachineError):  # a host without that part of libvirt
                found += await self.at.ask("networks", call)
        return tuple(found)

    async def events(self) -> AsyncGenerator[Event, None]:
        kinds = ("LIFECYCLE", "DEVICE_ADDED", "DEVICE_REMOVED")
        async with self.at.events(None, *kinds) as queue:
            while True:
                event = await queue.get()
                if event is None:
                    raise GoneError(f"host {self.host.name}: libvirt has ended")
                kind, name, words = event
                if (what := _kind(kind, *words)) is not None:
                    yield Event(name, what)

    async def close(self) -> None:
        await self.at.close()


def _kind(kind: str, what: Any, detail: int = 0) -> str | None:
    if kind != "LIFECYCLE":
        # An alias that the user chose begins with ua-.
        ours = str(what).startswith(("shmem", "ua-"))
        return ("region added" if kind == "DEVICE_ADDED" else "region removed") if ours else None
    lib = binding()
    if what == lib.VIR_DOMAIN_EVENT_STOPPED and detail == lib.VIR_DOMAIN_EVENT_STOPPED_CRASHED:
        return "crashed"
    return {
        lib.VIR_DOMAIN_EVENT_STARTED: "appeared",
        lib.VIR_DOMAIN_EVENT_SUSPENDED: "paused",
        lib.VIR_DOMAIN_EVENT_RESUMED: "running",
        lib.VIR_DOMAIN_EVENT_STOPPED: "gone",
        lib.VIR_DOMAIN_EVENT_CRASHED: "crashed",
    }.get(what)
