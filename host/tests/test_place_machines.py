"""`ivc place --machines`: where machines should be, and moves in an order that no host is too small for."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from ivc_host.hypervisor.contract import State
from ivc_host.hypervisor.faults import MigrateError
from ivc_host.hypervisor.processes import Folder, Record
from ivc_host.migrate import inventory
from ivc_host.migrate.interrupts import Interrupts
from ivc_host.place import machines, solve
from ivc_host.profile import model

MIB = 1 << 20


class World:
    """Hosts that are folders; g1 talks to g3, and g2 to g4."""

    def __init__(self, path: Path, hosts: Mapping[str, int], at: Mapping[str, str]) -> None:
        self.path = path
        text = ""
        for host, memory in hosts.items():
            (path / host).mkdir()
            (path / host / "host.json").write_text(json.dumps({"memory": memory * MIB}))
            text += f'[hosts.{host}]\nhypervisor = "processes"\nfolder = "{path / host}"\n'
        (path / "hosts.toml").write_text(text)
        for name, host in at.items():
            self.folder(host).write(name, Record(memory=256 * MIB))
        guests = ["g1", "g2", "g3", "g4"]
        pairs = [model.Pair(sender=i, receiver=(i + 2) % 4, sent={"network": model.Volume(messages=2, bytes=1000)}) for i in range(4)]
        processes = [model.Process(rank=rank, host=name, pid=1) for rank, name in enumerate(guests)]
        model.save(model.Profile(size=4, processes=processes, pairs=pairs), path / "p.json")

    def folder(self, host: str) -> Folder:
        return Folder(self.path / host, host)

    def faults(self, host: str, **what: object) -> None:
        (self.path / host / "faults.json").write_text(json.dumps(what))

    def where(self) -> dict[str, str]:
        """Where each machine runs; it runs once, and nothing else is left of it."""
        found: dict[str, str] = {}
        for host in sorted(one.name for one in self.path.iterdir() if one.is_dir()):
            for name in self.folder(host).machines():
                record = self.folder(host).record(name)
                assert record is not None and record.state == State.RUNNING.name and name not in found
                found[name] = host
        return found

    def words(self, *words: str) -> list[str]:
        start = [sys.executable, "-m", "ivc_host", "place", str(self.path / "p.json"), "--machines"]
        return [*start, "--inventory", str(self.path / "hosts.toml"), *words]

    def ivc(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.words(*words), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ivc-test-place-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


#: Two hosts are full, and nothing that talks is together.
FULL = {"a": 512, "b": 512}
APART = {"g1": "a", "g2": "a", "g3": "b", "g4": "b"}


def is_good(where: Mapping[str, str]) -> bool:
    return where["g1"] == where["g3"] != where["g2"] == where["g4"]


def test_a_swap_goes_by_way_of_a_host_with_room(folder: Path) -> None:
    world = World(folder, {**FULL, "c": 256}, APART)
    done = world.ivc()
    lines = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("ivc migrate")]
    assert done.returncode == 0 and len(lines) == 3, done.stdout + done.stderr
    assert re.search(r"as it is .* 4 kB .* 100.0 %", done.stdout) and re.search(r"as proposed .* 0 B .* 0.0 %", done.stdout)
    assert world.where() == APART  # only said
    for line in lines:  # as they are told, they can be done
        moved = subprocess.run([sys.executable, "-m", "ivc_host", *line[1:]], capture_output=True, text=True, timeout=60)
        assert moved.returncode == 0, moved.stderr
    assert is_good(world.where()) and "c" not in world.where().values()
    again = world.ivc()
    assert again.returncode == 0 and "nothing to move" in again.stdout and "ivc migrate" not in again.stdout


def test_they_are_done(folder: Path) -> None:
    world = World(folder, {**FULL, "c": 256}, APART)
    done = world.ivc("--apply", "--json")
    assert done.returncode == 0, done.stderr
    told, *events = (json.loads(line) for line in done.stdout.splitlines())
    assert told["present"]["between_hosts"] == 4000 and told["proposed"]["between_hosts"] == 0 and told["stuck"] is None
    assert [event["vm"] for event in events if event["event"] == "done"] == [move["machine"] for move in told["moves"]]
    assert world.where() == told["proposed"]["hosts"]


def test_two_full_hosts(folder: Path) -> None:
    world = World(folder, FULL, APART)
    done = world.ivc("--apply")
    assert done.returncode == 1 and re.fullmatch(r"ivc: g. \(256 MiB\), g. .* wait for each other's room, .*\n", done.stderr)
    assert world.where() == APART


def test_no_room_nowhere(folder: Path) -> None:
    """Each host has one of them, and room for no other: it stays as it is."""
    world = World(folder, {"a": 300, "b": 300, "c": 300, "d": 300}, dict(zip(("g1", "g2", "g3", "g4"), "abcd", strict=True)))
    done = world.ivc("--apply")
    assert done.returncode == 0 and "nothing to move" in done.stdout and "as proposed, 100.0 %" in done.stdout


def test_the_first_that_fails_is_the_last(folder: Path) -> None:
    world = World(folder, {**FULL, "c": 256}, APART)
    moves = json.loads(world.ivc("--json").stdout)["moves"]
    world.faults("c", fail={"migrate": "no"})  # from where the second or third leaves
    assert moves[0]["target"] == "c" and moves[2]["source"] == "c"
    done = world.ivc("--apply")
    assert done.returncode == 1
    assert re.search(r"^ivc: stopped at move 3 of 3: .* was not moved: .*: no; .*$", done.stderr, re.M), done.stderr
    told = [line[4:] for line in done.stderr.splitlines() if line.startswith("  | ")]
    assert told[:2] == [f"done: {move['machine']} from {move['source']} to {move['target']}" for move in moves[:2]]
    (folder / "c" / "faults.json").unlink()
    for line in told[2:]:
        words = shlex.split(line.removeprefix("to undo: "))
        assert subprocess.run([sys.executable, "-m", "ivc_host", *words[1:]], capture_output=True, timeout=60).returncode == 0
    assert len(told) == 4 and world.where() == APART


def test_ctrl_c_undoes_the_move_under_way(folder: Path) -> None:
    """The move under way is undone, and no other begins."""
    world = World(folder, {"a": 1024, "b": 1024}, APART)
    world.faults("a", rate=64 * MIB)  # four seconds
    world.faults("b", rate=64 * MIB)
    with subprocess.Popen(world.words("--apply"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if " sent, " in line:
                break
        child.send_signal(signal.SIGINT)
        out, error = child.communicate(timeout=30)
    assert child.returncode == 130 and "stopped at move 1 of 2" in error, error
    assert world.where() == APART


def test_ctrl_c_that_came_too_late_for_a_move(folder: Path) -> None:
    """That one is over there by then; the next does not begin."""
    world = World(folder, {"a": 1024, "b": 1024}, APART)
    book = machines.Book.chosen(folder / "hosts.toml", None)
    interrupts = Interrupts()
    interrupts._arrived(signal.SIGINT)  # nothing watches: it is too late
    with pytest.raises(MigrateError, match="interrupted") as fault:
        asyncio.run(machines._do(machines.Move("g1", "a", "b"), book, False, interrupts))
    assert fault.value.exit_code == 130
    assert world.where() == APART


def test_who_may_not_move(folder: Path) -> None:
    """A machine that stands still, and a host that does not answer, are left as they are."""
    world = World(folder, {"a": 2048, "b": 2048}, APART)
    record = world.folder("a").record("g1")
    assert record is not None
    record.state = State.PAUSED.name
    world.folder("a").write("g1", record)
    moves = json.loads(world.ivc("--json").stdout)["moves"]
    assert moves and all(move["machine"] != "g1" for move in moves)
    world.faults("b", fail={"*": "no answer"})
    done = world.ivc()
    assert done.returncode == 2 and "no host" in done.stderr and "no answer" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--hosts", "x"], "--hosts is not for --machines"),
        (["--prove", "--", "true"], "--prove is not for --machines"),
        (["--lab", "x"], "two inventories"),
    ],
)
def test_words_that_do_not_go_together(folder: Path, more: Sequence[str], words: str) -> None:
    done = World(folder, FULL, APART).ivc(*more)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_profiles_with_little_in_them(folder: Path) -> None:
    world = World(folder, FULL, APART)
    model.save(model.Profile(size=2, processes=[], pairs=[]), folder / "p.json")
    done = world.ivc()
    assert done.returncode == 2 and re.fullmatch(r"ivc: the profile does not say in which guests [^\n]*\n", done.stderr)
    one = [model.Process(rank=0, host="g1", pid=1)]  # of two ranks: one was killed, and sent something
    pair = model.Pair(sender=1, receiver=0, sent={"network": model.Volume(messages=1, bytes=9)})
    model.save(model.Profile(size=2, processes=one, pairs=[pair]), folder / "p.json")
    done = world.ivc()
    assert done.returncode == 0 and "nothing to move" in done.stdout, done.stderr
    model.save(model.Profile(size=1, processes=[model.Process(rank=0, host="g9", pid=1)], pairs=[]), folder / "p.json")
    done = world.ivc()
    assert done.returncode == 2 and "the job had ranks in g9, and no host of" in done.stderr and done.stderr.count("\n") == 1


def test_apply_is_for_machines(folder: Path) -> None:
    World(folder, FULL, APART)
    words = [sys.executable, "-m", "ivc_host", "place", str(folder / "p.json"), "--hosts", "x", "--apply"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "--apply is for --machines" in done.stderr


@pytest.mark.parametrize("seed", range(20))
def test_no_move_asks_a_host_for_more_than_it_has(seed: int) -> None:
    """Random worlds with one host to spare: every order is replayed."""
    random = np.random.default_rng(seed)
    needs = random.integers(1, 5, (8, 2))
    at, target = ([int(host) for host in random.integers(0, 3, 8)] for _ in range(2))
    limits = solve.Limits(needs, np.zeros((4, 2), dtype=np.int64), np.ones((8, 4), dtype=bool), (0,) * 4)
    used = np.maximum(-limits.room(at), -limits.room(target))
    used[3] = needs.max(axis=0) * 2
    limits = solve.Limits(needs, used, limits.may, limits.switches)
    names, hosts = [f"g{one}" for one in range(8)], ["a", "b", "c", "d"]
    world = machines.World(names, hosts, at, limits)
    now = list(at)
    for move in machines.moves(world, target):
        machine, host = names.index(move.machine), hosts.index(move.target)
        assert hosts[now[machine]] == move.source
        assert (needs[machine] <= limits.room(now)[host]).all()
        now[machine] = host
    assert now == target


def test_how_the_inventory_is_named_again(folder: Path) -> None:
    World(folder, FULL, APART)
    book = inventory.load(folder / "hosts.toml")
    move = machines.Move("g1", "a", "b")
    assert move.command(machines.Book(book, None, "two")) == "ivc migrate g1 --to b --lab two"
    assert move.command(machines.Book(book, None, None)) == "ivc migrate g1 --to b"
    assert move.back() == machines.Move("g1", "b", "a")
