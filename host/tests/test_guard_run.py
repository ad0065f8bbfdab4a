"""The whole of the guard on machines that are files: what is seen, moved, and left after a kill."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import machines
import pytest

from ivc_host import paths
from ivc_host import window as windows
from ivc_host.guard import fleet
from ivc_host.guard.engine import Guard, Snapshot
from ivc_host.guard.fleet import Seen
from ivc_host.guard.journal import Journal, known
from ivc_host.guard.mover import MachineMover
from ivc_host.guard.plan import HostView, Move, Policy, Rules
from ivc_host.health.contract import Level
from ivc_host.health.spares import Machines
from ivc_host.health.spares import Machines
from ivc_host.hypervisor.contract import State
from ivc_host.hypervisor.processes import Folder, Record
from ivc_host.lab.process import Process
from ivc_host.migrate import inventory, lock
from ivc_host.migrate.find import hypervisors_of
from ivc_host.profile import model

HOSTS = ("h1", "h2", "h3")
GUESTS = ("g1", "g2", "g3")
MIB = 1 << 20
UNCORRECTED = "sys/devices/system/edac/mc/mc0/ue_count"


class World:
    """Three hosts that are folders, with a fake /sys each; all machines on the first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = own = ""
        for host in HOSTS:
            (path / host).mkdir()
            (path / host / "host.json").write_text(json.dumps({"cpu_flags": ["avx2"]}))
            text += f'[hosts.{host}]\nhypervisor = "processes"\nfolder = "{path / host}"\n'
            own += f'[hosts.{host}]\nroot = "{path / host}-root"\n'
            self.errors(host, 0)
        (path / "hosts.toml").write_text(text)
        (path / "guard.toml").write_text(
            f'state = "{path}/past.db"\n[guard]\npolicy = "any-with-room"\ninterval = 1\nback_off = 0\n'
            f'journal = "{path}/journal"\nsocket = "{path}/socket"\nlisten = "127.0.0.1:0"\n'
            f"[sources.edac]\n[sources.file]\n{own}"
        )
        for name in GUESTS:
            self.folder("h1").write(name, Record(memory=256 * MIB, cpu_flags=["avx2"]))

    def folder(self, host: str) -> Folder:
        return Folder(self.path / host, host)

    def errors(self, host: str, n: int) -> None:
        file = self.path / f"{host}-root" / UNCORRECTED
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{n}\n")

    def rate(self, host: str, rate: float) -> None:
        """Bytes a second at which machines leave it."""
        (self.path / host / "faults.json").write_text(json.dumps({"rate": rate}))

    def where(self) -> dict[str, str]:
        """Where each machine runs; it runs once, and nothing else is left of it."""
        found: dict[str, str] = {}
        for host in HOSTS:
            for name in self.folder(host).machines():
                record = self.folder(host).record(name)
                assert record is not None and record.state == State.RUNNING.name, (name, host, record)
                assert name not in found, f"{name} is on {found[name]} and on {host}"
                found[name] = host
        assert sorted(found) == sorted(GUESTS)
        return found

    def ivc(self, *words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "IVC_INVENTORY": str(self.path / "hosts.toml")}
        return subprocess.Popen([sys.executable, "-m", "ivc_host", "guard", *words], env=env,
                                text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        process = self.ivc(*words)
        out, error = process.communicate(timeout=60)
        return process.returncode, out + error


@pytest.fixture
def world() -> Iterator[World]:
    one = World(Path(tempfile.mkdtemp(prefix="ivc-test-guard-", dir="/dev/shm")))
    yield one
    shutil.rmtree(one.path)


def test_a_memory_error_empties_its_host(world: World) -> None:
    code, text = world.run("run", "--once")
    assert (code, set(world.where().values())) == (0, {"h1"}), text
    world.errors("h1", 1)
    code, text = world.run("run", "--once")  # one reading is none
    assert set(world.where().values()) == {"h1"}, text
    code, text = world.run("run", "--dry-run")
    assert "h1 fails: edac: memory/mc0/uncorrected: 1 uncorrected errors" in text
    assert set(world.where().values()) == {"h1"}
    code, text = world.run("run", "--once")
    places = world.where()
    assert "h1" not in [places["g1"], places["g2"]] and places["g3"] == "h1", text  # two at once
    code, text = world.run("run", "--once")
    assert code == 0 and "h1" not in world.where().values(), text
    code, text = world.run("history", "--json")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["outcome"] for line in lines if line["kind"] == "end"] == ["moved"] * 3


def test_it_goes_where_its_traffic_goes(world: World) -> None:
    """Both hosts are alike, and h2 would be the first by name: a profile says whose ranks belong together."""
    for name, host in (("g2", "h2"), ("g3", "h3")):
        world.folder("h1").remove(name)
        world.folder(host).write(name, Record(memory=256 * MIB, cpu_flags=["avx2"]))
    processes = [model.Process(rank=rank, host=name, pid=1, seconds=1.0) for rank, name in enumerate(GUESTS)]
    sent: dict[model.Path_, model.Volume] = {"network": model.Volume(messages=1, bytes=1000)}
    pairs = [model.Pair(sender=2, receiver=0, sent=sent)]
    (world.path / "profiles").mkdir()
    model.save(model.Profile(size=3, processes=processes, pairs=pairs), world.path / "profiles" / "job.json")
    settings = (world.path / "guard.toml").read_text()
    told = settings.replace("[guard]\n", f'[guard]\nprofiles = "{world.path}/profiles"\n')
    for text, target in ((settings, "h2"), (told, "h3")):
        (world.path / "guard.toml").write_text(text)
        said = world.run("evacuate", "--dry-run", "h1")[1]
        assert f"from h1 to {target}" in said, said
    assert world.run("evacuate", "h1")[0] == 0
    assert world.where()["g1"] == "h3"


def test_features_that_no_host_has(world: World) -> None:
    """A hypervisor's own, emulated or by another name: they keep no machine from moving; a host's do."""
    for name, flags in (("g1", ["avx2", "hypervisor"]), ("g2", ["avx2", "amx"])):
        world.folder("h1").write(name, Record(memory=256 * MIB, cpu_flags=flags))
    (world.path / "h1" / "host.json").write_text(json.dumps({"cpu_flags": ["avx2", "amx"]}))
    code, text = world.run("evacuate", "h1")
    assert world.where()["g1"] != "h1" and world.where()["g2"] == "h1", text
    assert code == 3 and "its processors have no amx" in text


def test_a_machine_that_is_moved_is_not_asked(world: World) -> None:
    """Its hypervisor answers the mover and nobody else: the other machines of both hosts are seen."""
    moving = {"g1": fleet.MachineView("g1", "h1", 256 * MIB, frozenset({"avx2"}), "job", 2)}
    for host in ("h1", "h2"):
        world.folder(host).write("g1", Record(State.PAUSED.name, memory=256 * MIB))
    book = inventory.load(world.path / "hosts.toml")

    async def look(moving: dict[str, fleet.MachineView]) -> dict[str, Seen]:
        async with hypervisors_of(list(book.hosts.values())) as those:
            return {one.name: one for one in await fleet.look(those, 10.0, moving)}

    seen = asyncio.run(look({}))
    assert [one.busy for one in seen["h1"].machines] == ["it is paused", None, None]
    assert [one.busy for one in seen["h2"].machines] == ["it is paused"]
    assert seen["h1"].counted == Machines(("g2", "g3"), ("g1",))
    seen = asyncio.run(look(moving))
    assert seen["h1"].machines[0] == moving["g1"] and len(seen["h1"].machines) == 3
    assert seen["h1"].counted == Machines(("g1", "g2", "g3"), ())
    assert seen["h2"].machines == () and seen["h2"].counted == Machines((), ("g1",))
    assert seen["h2"].free_memory == 64 << 30  # what it takes there is counted by the plan


def test_a_host_is_emptied_by_hand(world: World) -> None:
    code, text = world.run("evacuate", "h1", "--dry-run")
    assert code == 0 and "g1: from h1 to" in text and set(world.where().values()) == {"h1"}
    code, text = world.run("evacuate", "h1")
    assert code == 0 and "h1 is empty" in text and "h1" not in world.where().values(), text
    world.errors("h2", 3)
    world.errors("h3", 3)
    for _ in range(3):
        code, text = world.run("run", "--once")
    assert code == 3 and "h1" not in world.where().values()
    assert "2 of 3 hosts look sick (h2, h3)" in text or "ALARM" not in text
    code, text = world.run("cancel", "h1")
    assert code == 0 and "need not be emptied" in text
    assert world.run("cancel", "h1")[0] == 2


def test_a_service_that_is_asked(world: World) -> None:
    guard = world.ivc("run")
    try:
        end = time.monotonic() + 30
        while not (world.path / "socket").exists() or world.run("status")[0] != 0:
            assert time.monotonic() < end and guard.poll() is None
        code, text = world.run("evacuate", "h1")
        assert code == 0 and "the guard empties h1: g1, g2, g3" in text, text
        told = _status(world)
        while told["machines"].get("h1", 0) or told["under_way"]:
            assert time.monotonic() < end
            told = _status(world)
        assert told["well"] and told["outcomes"] == {"moved": 3} and not told["alarms"]
        assert world.run("evacuate", "nowhere")[0] == 2
        code, text = world.run("run", "--once")
        assert code == 1 and "another guard (process" in text
        assert world.run("cancel", "h1")[0] == 0
    finally:
        guard.send_signal(signal.SIGTERM)
        out, error = guard.communicate(timeout=30)
    assert guard.returncode == 0 and not (world.path / "socket").exists(), out + error
    world.where()


def _status(world: World) -> dict[str, Any]:
    code, text = world.run("status", "--json")
    assert code == 0, text
    told: dict[str, Any] = json.loads(text)
    return told


def test_who_makes_a_host_used(world: World) -> None:
    """A machine that is neither running nor paused is somebody's, and not moved."""
    for name, state in (("p", State.PAUSED), ("m", State.MOVED), ("o", State.OTHER)):
        world.folder("h2").write(name, Record(memory=MIB, state=state.name))
    (seen,) = asyncio.run(_seen(world, "h2"))
    assert seen.counted == Machines(running=("o",), standby=("m", "p"))
    busy = {one.name: one.busy for one in seen.machines}
    assert busy == {"p": "it is paused", "o": "it is neither running nor paused"}
    code, text = world.run("evacuate", "h2")
    assert code == 3 and "on h2 stay o, p" in text and "ALARM: p stays: it is paused" not in text, text
    assert "ALARM p stays: it is paused" in text
    assert world.run("cancel", "h2")[0] == 0
    code, text = world.run("spares", "--json")
    reasons = {one["host"]: one["reasons"] for one in json.loads(text)}
    assert "runs o" in reasons["h2"] and "runs g1, g2, g3" in reasons["h1"], text


def test_a_machine_whose_monitor_is_taken(tmp_path: Path) -> None:
    """As by `ivc migrate` elsewhere: the machine is not its host, and the others are seen."""
    (tmp_path / "qemu").mkdir()
    qemus, taken = machines.World(tmp_path / "qemu"), None
    try:
        qemus.inventory(a={"region": None}, b={"region": None})
        qemus.boot("a", vm="g1", region=False)
        qemus.boot("a", vm="g2", region=False)
        taken = machines.Monitor(qemus.qmp("a", "g1"))
        (seen,) = asyncio.run(_seen_of(qemus.folder / "hosts.toml", "a"))
        assert seen.counted.running == ("g1", "g2") and not seen.counted.fault
        busy = {one.name: one.busy for one in seen.machines}
        assert "g1.qmp does not answer" in (busy["g1"] or "") and busy["g2"] is None
        assert seen.free_memory is None
    finally:
        if taken is not None:
            taken.close()
        qemus.close()


def test_a_host_that_is_not_reached_is_not_empty(world: World) -> None:
    file = world.path / "hosts.toml"
    file.write_text(file.read_text().replace("[hosts.h2]\n", '[hosts.h2]\nssh = ["-p", "1", "x@127.0.0.1"]\n'))
    (world.path / "h2").rename(world.path / "away")
    code, text = world.run("evacuate", "h2")
    assert code == 3 and "whether h2 is empty is not known: " in text, text
    assert "ALARM h2 is to be emptied, and what runs there is not known: " in text
    code, text = world.run("evacuate", "h2", "--dry-run")
    assert code == 3 and "what runs there is not known" in text
    (world.path / "away").rename(world.path / "h2")


async def _seen(world: World, *hosts: str) -> list[Seen]:
    return await _seen_of(world.path / "hosts.toml", *hosts)


async def _seen_of(path: Path, *hosts: str) -> list[Seen]:
    book = inventory.load(path)
    async with hypervisors_of([book.host(host) for host in hosts]) as those:
        return await fleet.look(those, 20.0, {})


def test_a_machine_that_somebody_else_moves(world: World) -> None:
    """By another inventory: it is told, not tried, and moved when that has ended."""
    other = world.path / "other"
    other.mkdir()
    shutil.copy(world.path / "hosts.toml", other / "hosts.toml")
    world.rate("h1", MIB)
    words = [sys.executable, "-m", "ivc_host", "migrate", "g1", "--to", "h2", "--inventory"]
    mover = subprocess.Popen([*words, str(other / "hosts.toml")], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 20
        while "g1" not in world.folder("h2").machines():
            assert time.monotonic() < end and mover.poll() is None
            time.sleep(0.01)
        code, text = world.run("evacuate", "h1", "--dry-run")
        assert code == 3, text
        assert f"ALARM: g1 stays: a migration of g1 (process {mover.pid}) is under way" in text
        with pytest.raises(lock.BusyError, match="a migration of g1"):
            asyncio.run(_move(world, Move("g1", "h1", "h3", None, 0, "")))
    finally:
        mover.send_signal(signal.SIGINT)
        code = mover.wait(30)
    assert code == 130
    world.rate("h1", 1e12)
    code, text = world.run("evacuate", "h1")
    assert code == 0 and "h1" not in world.where().values(), text


async def _move(world: World, move: Move) -> None:
    class Nobody:
        def phase(self, name: str) -> None: ...
        def device(self, device: dict[str, Any]) -> None: ...
        def no_return(self) -> None: ...

    await MachineMover(inventory.load(world.path / "hosts.toml")).move(move, Nobody())


# ---- with processes that share memory

SIZE = 4 * MIB
LIBRARY = paths.build() / "adapters" / "c" / "libivc.so"
#: A member of the job, by the number of its rank, that waits.
MEMBER = """
import ctypes, signal, sys
context = ctypes.c_void_p()
register = ctypes.CDLL(sys.argv[1]).ivc_register
register.argtypes = [ctypes.c_uint64, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)]
if register(int(sys.argv[2]), int(sys.argv[3]), ctypes.byref(context)) != 0:
    sys.exit(1)
signal.pause()
"""


def _with_regions(world: World) -> None:
    """A region for each host, and the machines' processes in that of the first."""
    file = world.path / "hosts.toml"
    text = file.read_text()
    for host in HOSTS:
        with open(_region(world, host), "wb") as region:
            region.truncate(SIZE)
        text = text.replace(f"[hosts.{host}]\n", f'[hosts.{host}]\nregion = "{_region(world, host)}"\n')
    file.write_text(text)


def _region(world: World, host: str) -> Path:
    return world.path / f"region-{host}"


def _member(world: World, name: str, job: int, rank: int) -> subprocess.Popen[bytes]:
    """A process of that machine, in the region of the first host."""
    link = world.path / f"{name}.link"
    if not link.exists():
        link.symlink_to(_region(world, "h1"))
    env = {**os.environ, "IVC_REGION": str(link), "IVC_VM": name}
    one = subprocess.Popen([sys.executable, "-c", MEMBER, str(LIBRARY), str(job), str(rank)], env=env)
    record = world.folder("h1").record(name)
    assert record is not None
    record.link, record.region, record.region_size = str(link), str(_region(world, "h1")), SIZE
    mine = Process.of(one.pid)
    record.processes.append((mine.pid, mine.start_time))
    world.folder("h1").write(name, record)
    end = time.monotonic() + 10
    while one.pid not in _members(world, "h1"):
        assert time.monotonic() < end and one.poll() is None
        time.sleep(0.01)
    return one


def _members(world: World, host: str) -> list[int]:
    found = windows.look(str(_region(world, host))).members
    return [member.pid for member in found if member.phase == "active"]


@pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")
async def _needs_its_bytes(world: World, host: str) -> None:
    """A machine with a process needs what that one takes of a region."""
    ((one,),) = [seen.machines for seen in await _seen(world, host)]
    assert (one.processes, one.region_bytes) == (1, 256 << 10)


def test_a_job_goes_together(world: World) -> None:
    """g1 and g3 hold one job, g2 another, and host h2 has no room for two."""
    _with_regions(world)
    roomy = {"cpu_flags": ["avx2"], "memory": (1 << 30) + 300 * MIB}
    (world.path / "h2" / "host.json").write_text(json.dumps(roomy))
    processes = [_member(world, "g1", 1, 0), _member(world, "g3", 1, 1), _member(world, "g2", 2, 0)]
    try:
        code, text = world.run("evacuate", "h1")
        assert code == 0, text
        places = world.where()
        assert places == {"g1": "h3", "g3": "h3", "g2": "h2"}, text
        asyncio.run(_needs_its_bytes(world, "h2"))
        end = time.monotonic() + 10
        for process, host in zip(processes, ("h3", "h3", "h2"), strict=True):
            while process.pid not in _members(world, host):
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.01)
        assert _members(world, "h1") == []
    finally:
        for process in processes:
            process.kill()
            process.wait()


# ---- a guard that is killed

RULES = Rules(Policy.ANY_WITH_ROOM, per_host=3, back_off=0.0)


async def _look(world: World, book: inventory.Inventory) -> Snapshot:
    async with hypervisors_of(list(book.hosts.values())) as those:
        seen = await fleet.look(those, 10.0, {})
    hosts = [_view(one) for one in seen]
    return Snapshot(hosts, fleet.with_jobs([m for one in seen for m in one.machines]))


def _view(one: Seen) -> HostView:
    assert not one.counted.fault, one.counted.fault
    return HostView(one.name, Level.OK, load=0.0, free_memory=one.free_memory, cpu_flags=one.cpu_flags)


async def _empty(world: World, host: str) -> None:
    """A guard until that host is empty."""
    book = inventory.load(world.path / "hosts.toml")
    with Journal(world.path / "journal", time.time()) as log:
        guard = Guard(log, MachineMover(book), RULES)
        guard.evacuate(host, "test")
        for _ in range(20):
            snapshot = await _look(world, book)
            if not log.known.open and not any(m.host == host for m in snapshot.machines):
                return
            await guard.step(snapshot)
            await guard.drain()
    raise AssertionError(f"{host} is not empty")


def _forked(work: Callable[[], Awaitable[None]]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            asyncio.run(work())  # type: ignore[arg-type]
            code = 0
        finally:
            os._exit(code)
    return pid


def _ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_killed_at_any_moment(world: World) -> None:
    """Whenever it is killed, the next one finishes what was begun, and each machine runs once."""
    dice = random.Random(os.environ.get("IVC_TEST_SEED", "guard"))
    runs = int(os.environ.get("IVC_TEST_KILLS", "40"))
    kills = begun = 0
    for run in range(runs):
        host = next(iter(set(world.where().values())))
        _stay_everywhere(world)
        for other in HOSTS:
            world.rate(other, dice.choice([1e12, 8e9]))  # 0, or some 30 ms
        pid = _forked(lambda host=host: _empty(world, host))
        _wait_for_lines(world, pid, dice.randrange(1 + 6 * len(GUESTS)))
        time.sleep(dice.uniform(0, 0.005))
        os.kill(pid, signal.SIGKILL)
        if _ended(pid) == -signal.SIGKILL:
            kills += 1
            begun += bool(known(world.path / "journal").open)
        assert _ended(_forked(lambda host=host: _empty(world, host))) == 0, f"run {run}"
        assert host not in world.where().values(), f"run {run}"
        assert not known(world.path / "journal").open
    print(f"{runs} runs: {kills} guards killed, {begun} of them in the middle of a move")
    assert kills > runs / 2 and begun > runs / 4, (kills, begun)


def _wait_for_lines(world: World, pid: int, n: int) -> None:
    """Until its guard has written so many, of one for each step of each move, or has ended."""
    file = world.path / "journal" / "journal.jsonl"
    before = file.stat().st_size if file.exists() else 0
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        text = file.read_bytes()[before:] if file.exists() else b""
        if text.count(b"\n") >= n:
            return
        time.sleep(0.0005)


def _stay_everywhere(world: World) -> None:
    with Journal(world.path / "journal", time.time()) as log:
        for host in list(log.known.evacuate):
            log.write("stay", time.time(), host=host, why="test")


def test_many_hosts_are_looked_at_and_judged(world: World) -> None:
    """A thousand hosts with ten machines each: the failing ones, and no others, are left."""
    hosts = [HostView(f"h{n}", Level.FAILING if n < 3 else Level.OK, "x", load=n / 1000,
                      free_memory=64 << 30, cpu_flags=frozenset({"avx2"}), places=60)
             for n in range(1000)]  # fmt: skip
    views = [fleet.MachineView(f"m{n}", f"h{n // 10}", MIB, frozenset({"avx2"}), f"job{n // 8}", 2)
                for n in range(10000)]  # fmt: skip
    with Journal(world.path / "journal", 0.0) as log:
        rules = replace(RULES, total=100, per_host=100)
        guard = Guard(log, MachineMover(inventory.load(world.path / "hosts.toml")), rules)
        plan = guard.look_ahead(Snapshot(hosts, views), 0.0)
    assert sorted(move.machine for move in plan.moves) == sorted(f"m{n}" for n in range(30))
    assert {move.target for move in plan.moves} & {"h0", "h1", "h2"} == set()


