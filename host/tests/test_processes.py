"""The whole of a migration on machines that are files, and on real members of real regions."""

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
from pathlib import Path
from typing import Any

import pytest

from ivc_host import paths
from ivc_host import window as windows
from ivc_host.hypervisor import processes, registry
from ivc_host.hypervisor.contract import Event
from ivc_host.hypervisor.host import Host
from ivc_host.hypervisor.processes import Folder, Record
from ivc_host.lab.process import Process
from ivc_host.migrate import show
from ivc_host.migrate.find import hypervisors_of
from ivc_host.migrate.journey import Journey, Limits

SIZE = 4 << 20
MEMBER = paths.build() / "examples" / "server"


class World:
    """Hosts that are folders; a machine g1 on the first, with a process if it is to have one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.processes: list[subprocess.Popen[str]] = []
        text = ""
        for host in ("a", "b"):
            (folder / host).mkdir()
            with open(self.region(host), "wb") as file:
                file.truncate(SIZE)
            keys = {"hypervisor": "processes", "folder": str(folder / host),
                    "region": str(self.region(host))}  # fmt: skip
            text += f"[hosts.{host}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items())
        (folder / "hosts.toml").write_text(text)

    def region(self, host: str) -> Path:
        return self.path / f"region-{host}"

    def folder(self, host: str) -> Folder:
        return Folder(self.path / host, host)

    def machine(self, name: str = "g1", host: str = "a") -> None:
        record = Record(region=str(self.region(host)), region_size=SIZE, address="0x10")
        record.link = str(self.path / f"{name}.link")
        os.symlink(self.region(host), record.link)
        self.folder(host).write(name, record)

    def member(self, name: str = "g1", host: str = "a", group: int = 1) -> int:
        """A process of that machine, when it is in the region."""
        if not MEMBER.exists():
            pytest.skip(f"{MEMBER} is not built")
        record = self.folder(host).record(name)
        assert record is not None and record.link is not None
        env = {**os.environ, "IVC_REGION": record.link, "IVC_VM": name}
        one = subprocess.Popen([MEMBER, str(group)], env=env, stdout=subprocess.DEVNULL)
        self.processes.append(one)  # type: ignore[arg-type]
        mine = Process.of(one.pid)
        record.processes.append((mine.pid, mine.start_time))
        self.folder(host).write(name, record)
        self.wait_for(lambda: one.pid in self.members(host))
        return one.pid

    def members(self, host: str) -> list[int]:
        return [m.pid for m in windows.look(str(self.region(host))).members if m.phase == "active"]

    def faults(self, host: str, **words: Any) -> None:
        (self.path / host / "faults.json").write_text(json.dumps(words))

    def start(self, *words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "IVC_INVENTORY": str(self.path / "hosts.toml")}
        return subprocess.Popen([sys.executable, "-m", "ivc_host", *words], env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, error = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, out, error)

    def state(self, host: str, name: str = "g1") -> str | None:
        record = self.folder(host).record(name)
        return None if record is None else record.state

    def is_as_before(self) -> None:
        record = self.folder("a").record("g1")
        assert record is not None and record.state == "RUNNING"
        assert record.region == str(self.region("a")) and record.address == "0x10"
        assert self.state("b") is None

    @staticmethod
    def wait_for(done: Any, timeout: float = 10) -> None:
        end = time.monotonic() + timeout
        while not done():
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def world() -> Iterator[World]:
    one = World(Path(tempfile.mkdtemp(prefix="ivc-test-hosts-", dir="/dev/shm")))
    yield one
    for process in one.processes:
        process.kill()
        process.wait()
    shutil.rmtree(one.path)


def test_a_member_moves_and_comes_back(world: World) -> None:
    world.machine()
    pid = world.member()
    for here, there in (("a", "b"), ("b", "a")):
        done = world.run("migrate", "g1", "--to", there, "--json")
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert [e["phase"] for e in told if e["event"] == "phase-done"] == [
            "check", "prepare", "suspend", "detach", "migrate", "switch", "attach",
        ]  # fmt: skip
        assert (world.state(here), world.state(there)) == (None, "RUNNING")
        world.wait_for(lambda there=there: pid in world.members(there))
        assert world.members(here) == []
    assert world.folder("a").record("g1").address == "0x10"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("host", "call"),
    [("a", "blockers"), ("b", "machine"), ("b", "expect"), ("b", "prepare"), ("a", "detach"),
     ("a", "migrate"), ("b", "resume")],
)  # fmt: skip
def test_a_fault_is_taken_back(world: World, host: str, call: str) -> None:
    world.machine()
    pid = world.member()
    world.faults(host, fail={call: "the reason"})
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 1 and "the reason" in done.stderr and "Traceback" not in done.stderr
    # Which host cannot be asked for the machine is said instead, and nothing was touched.
    assert call == "machine" or "it runs on a as before" in done.stderr
    world.is_as_before()
    world.wait_for(lambda: pid in world.members("a"))


def test_after_no_return_a_fault_is_a_note(world: World) -> None:
    world.machine()
    world.faults("b", fail={"attach": "no slot is free"})
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 0 and "no slot is free" in done.stderr
    assert (world.state("a"), world.state("b")) == (None, "RUNNING")


def test_slow_and_interrupted(world: World) -> None:
    world.machine()
    pid = world.member()
    world.faults("a", rate=1 << 20)
    process = world.start("migrate", "g1", "--to", "b", "--json")
    assert process.stdout is not None
    while json.loads(process.stdout.readline()).get("event") != "progress":
        pass
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted; it runs on a as before" in error
    world.is_as_before()
    world.wait_for(lambda: pid in world.members("a"))


def test_destination_dies_in_the_middle(world: World) -> None:
    world.machine()
    world.faults("a", rate=1 << 20)
    world.faults("b", kill="receive")
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 1 and "it was killed; it runs on a as before" in done.stderr
    world.is_as_before()


def test_source_dies_in_the_middle(world: World) -> None:
    world.machine()
    world.member()
    world.faults("a", rate=1 << 20, kill="migrate")
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 1 and "g1 was not moved" in done.stderr
    assert "Traceback" not in done.stderr
    assert (world.state("a"), world.state("b")) == (None, None)
    world.processes[0].wait(timeout=5)


def test_no_memory_over_there(world: World) -> None:
    world.machine()
    (world.path / "b" / "host.json").write_text(json.dumps({"memory": 1 << 20}))
    done = world.run("migrate", "g1", "--to", "b")
    assert done.returncode == 1 and "b has not so much memory; it runs on a as before" in done.stderr
    world.is_as_before()


def test_save_and_load(world: World) -> None:
    world.machine()
    pid = world.member()
    file = str(world.path / "g1.saved")
    done = world.run("save", "g1", file)
    assert done.returncode == 0, done.stderr
    assert world.state("a") is None and world.members("a") == []
    done = world.run("load", "g1", file, "--at", "b")
    assert done.returncode == 0, done.stderr
    world.wait_for(lambda: pid in world.members("b"))


def test_events(world: World) -> None:
    world.machine()
    seen: list[Event] = []

    async def watch() -> None:
        host = Host("a", "processes", processes.Settings(str(world.path / "a")))
        async with hypervisors_of([host]) as (one,):
            task = asyncio.create_task(_collect(one, seen))
            await asyncio.sleep(0.2)
            machine = await one.machine("g1")
            assert machine is not None
            for step in ("pause", "resume"):
                await getattr(machine, step)()
                await asyncio.sleep(0.3)
            device = await machine.region()
            assert device is not None
            await machine.detach(device, 1)
            await asyncio.sleep(0.3)
            await machine.end()
            await asyncio.sleep(0.3)
            task.cancel()

    asyncio.run(watch())
    kinds = ["paused", "running", "region removed", "gone"]
    assert seen == [Event("g1", kind) for kind in kinds]


async def _collect(one: Any, seen: list[Event]) -> None:
    async for event in one.events():
        seen.append(event)


def test_ten_thousand_machines(tmp_path: Path) -> None:
    """A thousand hosts: all are listed and described, and a hundred machines move at once."""
    n_hosts, per_host, moves = 1000, 10, 100
    hosts = []
    for number in range(n_hosts):
        folder = tmp_path / f"h{number}"
        folder.mkdir()
        hosts.append(Host(f"h{number}", "processes", processes.Settings(str(folder))))
        for machine in range(per_host):
            Folder(folder, "").write(f"m{number}-{machine}", Record())

    async def main() -> tuple[int, float]:
        async with hypervisors_of(hosts) as all_:
            count = sum([len(await one.machines()) for one in all_])
            free = sum([(await one.describe()).memory_free for one in all_])
            assert free == n_hosts * (64 - per_host) << 30
            begin = time.monotonic()
            await asyncio.gather(*(_move(all_[n], all_[n + 1], f"m{n}-0") for n in range(moves)))
            took = time.monotonic() - begin
            assert len(await all_[moves].machines()) == per_host + 1
            return count, took

    count, took = asyncio.run(main())
    assert count == n_hosts * per_host
    assert took < 30


async def _move(here: Any, there: Any, name: str) -> None:
    machine = await here.machine(name)
    journey = Journey(machine, here, there, None, "", [], 0, Limits(), show.Quiet(lambda: None))
    await journey.run()


def test_registry_is_a_group_of_entry_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package of somebody else's adds one, by its metadata alone."""
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[ivc.hypervisors]\nfolders = other_hypervisor:Folders\nbroken = no_such_module:X\n"
        "wrong = json:loads\n"
    )
    (tmp_path / "other_hypervisor.py").write_text(
        "from ivc_host.hypervisor.processes import Processes\nclass Folders(Processes): pass\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    (tmp_path / "a").mkdir()
    for kind, code, said in (
        ("folders", 2, "there is no machine g1"),
        ("broken", 1, "no_such_module:X is not there"),
        ("wrong", 1, "json:loads is no class of"),
        ("none", 1, "hypervisor none is not known; known: broken, folders, "),
    ):
        (tmp_path / "hosts.toml").write_text(
            f'[hosts.a]\nhypervisor = "{kind}"\nfolder = "{tmp_path / "a"}"\n'
        )
        words = ["migrate", "g1", "--to", "a", "--inventory", str(tmp_path / "hosts.toml")]
        done = subprocess.run([sys.executable, "-m", "ivc_host", *words], env=env, text=True,
                              capture_output=True)  # fmt: skip
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert said in done.stderr
    assert "folders" not in registry.names()
