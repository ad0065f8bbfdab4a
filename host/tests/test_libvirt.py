"""libvirt behind the contract: its own test driver, and what is made of its words."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from ivc_host.hypervisor import libvirt, registry
from ivc_host.hypervisor.contract import Event, Hypervisor, RegionDevice, State
from ivc_host.hypervisor.faults import GoneError, MachineError
from ivc_host.hypervisor.host import Host
from ivc_host.hypervisor.reach import Reach
from ivc_host.migrate import inventory
from ivc_host.migrate.find import hypervisors_of

URI = "test:///default"

try:
    libvirt.binding()
    LACKS = ""
except Exception as fault:  # noqa: BLE001
    LACKS = str(fault)
needs_libvirt = pytest.mark.skipif(bool(LACKS), reason=LACKS)


def with_host(work: Callable[[Hypervisor], Coroutine[Any, Any, None]], uri: str = URI) -> None:
    async def main() -> None:
        host = registry.host_of(uri)
        assert host is not None
        async with hypervisors_of([host]) as (one,):
            await work(one)

    asyncio.run(main())


@needs_libvirt
def test_machines_of_the_test_driver() -> None:
    async def work(one: Hypervisor) -> None:
        assert "test" in await one.machines()
        assert await one.machine("no-such") is None
        machine = await one.machine("test")
        assert machine is not None
        assert machine.uuid and machine.uuid in machine.key
        assert await machine.state() is State.RUNNING
        has = await machine.describe()
        assert (has.memory, has.vcpus, has.networks, has.regions) == (2 << 30, 2, ("default",), ())
        assert await machine.region() is None and await machine.blockers() == []
        host = await one.describe()
        assert host.memory > 0 and host.cpus > 0 and "default" in host.networks
        with pytest.raises(MachineError, match="holds a machine named test already, running"):
            await one.check_place("test")

    with_host(work)


@needs_libvirt
def test_pause_save_load_and_events(tmp_path: Path) -> None:
    seen: list[Event] = []

    async def collect(one: Hypervisor) -> None:
        async for event in one.events():
            seen.append(event)

    async def work(one: Hypervisor) -> None:
        watch = asyncio.create_task(collect(one))
        await asyncio.sleep(0.2)
        machine = await one.machine("test")
        assert machine is not None
        await machine.pause()
        assert await machine.state() is State.PAUSED
        await machine.resume()
        file = str(tmp_path / "saved")
        await machine.save(file)
        with pytest.raises(GoneError):
            await machine.state()
        assert await one.machine("test") is None  # defined, and off
        back = await one.load("test", file)
        assert await back.state() is State.RUNNING
        await asyncio.sleep(0.3)
        watch.cancel()

    with_host(work)
    assert [event.kind for event in seen if event.machine == "test"] == [
        "paused", "running", "gone", "appeared",
    ]  # fmt: skip


@needs_libvirt
def test_its_refusals_are_passed_on() -> None:
    async def work(one: Hypervisor) -> None:
        machine = await one.machine("test")
        assert machine is not None
        place = await one.expect("test", lambda text: None)
        assert await place.state() is State.WAITING
        migration = machine.migrate(place)
        with pytest.raises(MachineError, match="test on test:///default: .* not supported"):
            async for _ in migration.progress():
                pass
        assert await migration.cancel() is True
        assert await machine.state() is State.RUNNING

    with_host(work)


@needs_libvirt
def test_no_libvirt_answers(tmp_path: Path) -> None:
    async def work(one: Hypervisor) -> None:
        with pytest.raises(MachineError, match="Failed to connect socket .*No such file"):
            await one.machines()

    with_host(work, f"qemu+unix:///system?socket={tmp_path}/no")


def test_without_the_binding(tmp_path: Path) -> None:
    """Who has no libvirt reads what to install; other hypervisors work without."""
    (tmp_path / "libvirt.py").write_text("raise ImportError('not here')\n")
    (tmp_path / "hosts.toml").write_text('[hosts.a]\nhypervisor = "libvirt"\n')
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = ["migrate", "g1", "--to", "a", "--inventory", str(tmp_path / "hosts.toml")]
    done = subprocess.run(
        [sys.executable, "-m", "ivc_host", *words], env=env, text=True, capture_output=True
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "libvirt's Python module is not there (not here); ./run setup" in done.stderr


@needs_libvirt
def test_uris_are_hosts() -> None:
    """By the command itself: no inventory is needed."""
    words = ["migrate", "test", "--at", URI, "--to", "test:///other"]
    done = subprocess.run(
        [sys.executable, "-m", "ivc_host", *words], text=True, capture_output=True
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "test was not moved: " in done.stderr and "test:///default" in done.stderr


@pytest.mark.parametrize(
    ("uri", "ssh"),
    [
        ("qemu:///system", ()),
        ("qemu+ssh://root@beta:2222/system", ("-p", "2222", "root@beta")),
        ("xen+ssh://beta/system", ("beta",)),
        ("qemu+tcp://beta:16509/system", ("beta",)),
    ],
)
def test_how_a_host_is_reached(tmp_path: Path, uri: str, ssh: tuple[str, ...]) -> None:
    host = registry.host_of(uri, "/dev/shm/ivc")
    assert host is not None and (host.hypervisor, host.region) == ("libvirt", "/dev/shm/ivc")
    assert host.ssh == ssh
    path = tmp_path / "hosts.toml"
    path.write_text(f'[hosts.a]\nhypervisor = "libvirt"\nuri = {json.dumps(uri)}\nlive = false\n')
    read = inventory.load(path).host("a")
    assert isinstance(read.settings, libvirt.Settings)
    assert (read.ssh, read.settings.live) == (ssh, False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [('uri = "beta"', "is none of libvirt's"), ("live = 3", "live must be true or false")],
)
def test_bad_inventory(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(f'[hosts.a]\nhypervisor = "libvirt"\n{line}\n')
    with pytest.raises(inventory.InventoryError, match=expected):
        inventory.load(path)


def test_guests_of_its_xen_driver_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have grants, and no device: by the same order as with xl."""
    given: list[tuple[Any, ...]] = []

    class Orders:
        @classmethod
        async def give(cls, *words: Any) -> None:
            given.append(words[1:])

    class Domain:
        def UUIDString(self) -> str:
            return "AA"

        def ID(self) -> int:
            return 7

        def connect(self) -> Any:
            return connection

    connection = SimpleNamespace(isAlive=lambda: True)

    monkeypatch.setattr(libvirt, "GrantsOrder", Orders)
    for uri, grants in (("xen+ssh://beta/system", True), ("qemu+ssh://beta/system", False)):
        host = registry.host_of(uri)
        assert host is not None
        one = libvirt.Libvirt(host, Reach(host))
        assert (one.capabilities.grants, one.capabilities.regions) == (grants, not grants)
        one.at._lib = type("Lib", (), {"libvirtError": OSError})
        one.at._conn = connection
        machine = libvirt.LibvirtMachine("g1", one, Domain())
        asyncio.run(machine.order_away(3.0, lambda text: None))
    assert given == [(7, 3.0)]


DOMAIN = """<domain type='qemu'><devices>
<shmem name='other'><model type='ivshmem-doorbell'/></shmem>
<shmem name='ivc'><model type='ivshmem-plain'/><size unit='M'>64</size><alias name='shmem0'/>
<address type='pci' domain='0x0000' bus='0x00' slot='0x10' function='0x0'/></shmem>
<interface type='bridge'><source bridge='br0'/></interface></devices></domain>"""


def test_a_region_is_read_and_written() -> None:
    tree = ElementTree.fromstring(DOMAIN)
    (device,) = libvirt.regions_in(tree)
    assert device == RegionDevice("/dev/shm/ivc", 64 << 20, "shmem0", "", "0x0000:0x00", "0x10.0x0")
    again = ElementTree.fromstring("<domain><devices>" + libvirt.shmem_xml(device) + "</devices></domain>")
    (read,) = libvirt.regions_in(again)
    assert (read.path, read.size, read.bus, read.address) == (
        device.path, device.size, device.bus, device.address,
    )  # fmt: skip


def test_the_definition_that_goes_along() -> None:
    """It is to start with the region of the host where it is then; what is not ours stays."""
    host = Host("b", "libvirt", libvirt.Settings(), region="/dev/shm/other-one")
    names = [one.get("name") for one in _shmems(libvirt.with_region(DOMAIN, host))]
    assert names == ["other", "other-one"]
    without = Host("b", "libvirt", libvirt.Settings())
    assert [one.get("name") for one in _shmems(libvirt.with_region(DOMAIN, without))] == ["other"]


def _shmems(text: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall("devices/shmem")


@pytest.mark.parametrize("path", ["/dev/hugepages/ivc", "/dev/shm/a/b"])
def test_a_region_elsewhere(path: str) -> None:
    with pytest.raises(MachineError, match="make the host's region there"):
        libvirt.shmem_xml(RegionDevice(path, 1 << 20))


def test_progress() -> None:
    job = {"memory_processed": 5, "memory_remaining": 7, "memory_total": 12, "memory_bps": 3,
           "downtime": 40, "time_elapsed": 900, "memory_iteration": 2}  # fmt: skip
    under_way, over = libvirt._moving(job), libvirt._moving(job, done=True)
    assert (under_way.transferred, under_way.remaining, under_way.rate) == (5, 7, 3)
    assert (under_way.expected_downtime, under_way.downtime) == (0.04, None)
    assert (over.done, over.downtime, over.total_time, over.passes) == (True, 0.04, 0.9, 2)
    assert libvirt._moving({}).transferred is None
