"""libvirt with real daemons, of which one is killed and started anew: under a watch, and in a move.

Two hosts are two libvirtd with folders of their own; the machine is a QEMU without a system, which has
no region and is moved slowly.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ivc_host.guard.watch import watch
from ivc_host.hypervisor import libvirt
from ivc_host.hypervisor.contract import Event, Machine, State
from ivc_host.hypervisor.faults import MachineError
from ivc_host.lab import libvirt as daemons
from ivc_host.lab.hypervisor import HostSpec
from ivc_host.lab.process import Process
from ivc_host.migrate import inventory
from ivc_host.migrate.find import hypervisors_of

QEMU = shutil.which("qemu-system-x86_64")
LACKS = [name for name in ("libvirtd", "qemu-system-x86_64", "unshare", "nsenter") if not shutil.which(name)]
try:
    libvirt.binding()
except Exception as fault:  # noqa: BLE001
    LACKS.append(str(fault))
pytestmark = [
    pytest.mark.skipif(bool(LACKS), reason=f"{', '.join(LACKS)} is not there"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a libvirtd of qemu:///system needs root"),
]

#: Pages of zeros take a few bytes each: so many that a move at 1 MiB/s takes seconds.
DOMAIN = f"""<domain type='qemu'><name>g1</name><uuid>0f8fad5b-d9cb-469f-a165-70867728950e</uuid>
<memory unit='MiB'>2048</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os>
<features><acpi/></features><devices><emulator>{QEMU}</emulator>
<controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"""


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = Path(f"/proc/{os.getpid()}/ns/net")
        self.processes: dict[str, Process] = {}
        text = ""
        for name in ("h1", "h2"):
            host = SimpleNamespace(name=name, state=folder / name, namespace=self.network)
            host.state.mkdir()
            self.processes[name] = daemons._start_daemon(cast(HostSpec, host))
            daemons._connect(cast(HostSpec, host), self.processes[name]).close()
            text += f'[hosts.{name}]\nhypervisor = "libvirt"\nuri = "{daemons.uri_of(host.state)}"\n'
            text += 'migrate_uri = "tcp://127.0.0.1"\n'
        (folder / "hosts.toml").write_text(text)
        self.boot()

    def boot(self) -> None:
        conn = libvirt.binding().open(daemons.uri_of(self.folder / "h1"))
        conn.createXML(DOMAIN, 0).migrateSetMaxSpeed(1, 0)
        conn.close()

    def restart(self, host: str) -> None:
        self.processes[host] = daemons.restart(host, self.folder / host, self.network)

    def migrate(self) -> subprocess.Popen[str]:
        words = ["migrate", "g1", "--to", "h2", "--json", "--inventory", str(self.folder / "hosts.toml")]
        return subprocess.Popen([sys.executable, "-m", "ivc_host", *words], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    async def states(self) -> dict[str, State]:
        book = inventory.load(self.folder / "hosts.toml")
        found = {}
        async with hypervisors_of(list(book.hosts.values())) as those:
            for one in those:
                if (machine := await one.machine("g1")) is not None:
                    found[one.host.name] = await machine.state()
        return found

    def close(self) -> None:
        for host, one in self.processes.items():
            with suppress(OSError, ValueError):
                os.kill(int(daemons.pid_file(self.folder / host, "g1").read_text()), signal.SIGKILL)
            if one.alive():
                os.kill(one.pid, signal.SIGKILL)
        time.sleep(0.5)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def world() -> Iterator[World]:
    one = World(Path(tempfile.mkdtemp(prefix="ivc-test-libvirt-")))
    yield one
    one.close()


@pytest.mark.parametrize("host", ["h1", "h2"])
def test_a_daemon_that_is_restarted_in_a_move(world: World, host: str) -> None:
    """Of the source, or the destination: the machine runs where it was, once, and moves next time."""
    mover = world.migrate()
    assert mover.stdout is not None
    try:
        for line in mover.stdout:
            if json.loads(line).get("phase") == "migrate":
                break
        time.sleep(0.7)
        world.restart(host)
        out, error = mover.communicate(timeout=60)
    finally:
        mover.kill()
        mover.wait()
    assert mover.returncode == 1 and error.count("\n") == 1, out + error
    assert "g1 was not moved: " in error and "it runs on h1 as before" in error, error
    assert asyncio.run(world.states()) == {"h1": State.RUNNING}
    again = world.migrate()
    out, error = again.communicate(timeout=60)
    assert again.returncode == 0, out + error
    assert asyncio.run(world.states()) == {"h2": State.RUNNING}


def test_a_daemon_that_is_restarted_between_looks(world: World) -> None:
    """The same objects find the machine again, and its events."""
    said, seen = list[str](), list[str]()

    def news(host: str, event: Event | None) -> None:
        seen.append(event.kind if event else "lost")

    async def main() -> None:
        book = inventory.load(world.folder / "hosts.toml")
        async with hypervisors_of([book.host("h1")]) as (one,):
            task = asyncio.create_task(watch([one], news, said.append, 0.5))
            machine = await one.machine("g1")
            assert machine is not None
            await asyncio.sleep(0.5)
            await _paused(machine, seen)
            world.restart("h1")
            async with asyncio.timeout(30):
                while "lost" not in seen:
                    await asyncio.sleep(0.1)
                while True:
                    with suppress(MachineError):
                        assert await one.machines() == ["g1"]
                        break
                    await asyncio.sleep(0.1)
            await asyncio.sleep(2)
            seen.clear()
            await _paused(machine, seen)
            task.cancel()

    asyncio.run(main())
    assert len(said) == 2 and "h1 tells of no events (" in said[0], said
    assert said[1] == "h1 tells of events again"


async def _paused(machine: Machine, seen: list[Any]) -> None:
    await machine.pause()
    await machine.resume()
    async with asyncio.timeout(10):
        while "paused" not in seen or "running" not in seen:
            await asyncio.sleep(0.05)
