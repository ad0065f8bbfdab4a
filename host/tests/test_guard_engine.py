"""The guard's work, step by step, with machines that are moved by nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ivc_host.errors import IvcError
from ivc_host.guard.engine import Ended, Guard, Outcome, Snapshot, Steps
from ivc_host.guard.journal import Journal, JournalError, OpenMove
from ivc_host.guard.nodes import Nodes, text
from ivc_host.guard.plan import HostView, MachineView, Move, Rules
from ivc_host.health.contract import Level

MIB = 1 << 20
FLAGS = frozenset({"avx2"})


class World:
    """Hosts, machines, and whoever moves them: each move waits until it is let go on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.said: list[str] = []
        self.hosts = {name: HostView(name, Level.OK, load=0.0, free_memory=4096 * MIB,
                                     cpu_flags=FLAGS, places=60) for name in ("h1", "h2", "h3")}  # fmt: skip
        self.machines = {name: MachineView(name, "h1", 256 * MIB, FLAGS, "job", 2)
                         for name in ("g1", "g2")}  # fmt: skip
        self.gates = {name: asyncio.Event() for name in self.machines}
        self.past: set[str] = set()
        self.faults: dict[str, IvcError] = {}
        self.settled: dict[str, Ended] = {}
        self.moves: list[Move] = []
        #: What a scheduler was told, and how many moves had begun by then.
        self.told: list[tuple[str, int]] = []
        self.deaf: IvcError | None = None

    def guard(self, rules: Rules = Rules()) -> Guard:
        self.journal = Journal(self.folder, self.now)
        return Guard(self.journal, self, rules, say=self.said.append, clock=lambda: self.now,
                     tell_nodes=self.tell_nodes)  # fmt: skip

    async def tell_nodes(self, nodes: Nodes) -> None:
        if self.deaf is not None:
            raise self.deaf
        self.told.append((text(nodes), len(self.journal.known.open) + len(self.moves)))

    def snapshot(self) -> Snapshot:
        return Snapshot(list(self.hosts.values()), list(self.machines.values()))

    def health(self, name: str, level: Level) -> None:
        self.hosts[name] = replace(self.hosts[name], level=level, why="a memory error")

    async def move(self, move: Move, steps: Steps) -> Ended:
        self.moves.append(move)
        steps.phase("suspend")
        if move.machine in self.past:
            steps.no_return()
        try:
            await self.gates[move.machine].wait()
        except asyncio.CancelledError:
            return Ended(Outcome.UNDONE, "as asked")
        if move.machine in self.faults:
            raise self.faults[move.machine]
        machine = self.machines[move.machine]
        self.machines[move.machine] = replace(machine, host=move.target)
        return Ended(Outcome.MOVED, downtime=0.1)

    async def settle(self, one: OpenMove) -> Ended:
        return self.settled.get(one.move.machine, Ended(Outcome.UNDECIDED, "its host is silent"))


def in_world(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            await test(World(tmp_path))

        asyncio.run(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def settle_down(guard: Guard) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert guard.journal.known is not None


@in_world
async def test_a_sick_host_is_left(world: World) -> None:
    guard = world.guard()
    assert (await guard.step(world.snapshot())).moves == ()
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    await settle_down(guard)
    assert sorted(one.move.machine for one in guard.under_way()) == ["g1", "g2"]
    assert {one.phase for one in guard.under_way()} == {"suspend"}
    for gate in world.gates.values():
        gate.set()
    await guard.drain()
    assert {m.host for m in world.machines.values()} == {"h2"}
    assert (await guard.step(world.snapshot())).moves == ()
    assert world.journal.known.outcomes == {"moved": 2} and not world.journal.known.open


@in_world
async def test_what_was_seen_before_a_move_ended(world: World) -> None:
    """Its machine is seen where it was; nothing is begun by that."""
    guard = world.guard()
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    await settle_down(guard)
    old = replace(world.snapshot(), begun=time.monotonic())
    assert guard.moving() == world.machines
    for gate in world.gates.values():
        gate.set()
    await guard.drain()
    assert (await guard.step(old)).moves == () and guard.moving() == {}
    stays = replace(world.snapshot(), begun=time.monotonic())  # somebody has moved them back
    stays = replace(stays, machines=[replace(one, host="h1") for one in stays.machines])
    assert len((await guard.step(stays)).moves) == 2
    await guard.give_up("the test ends")


@in_world
async def test_cancelled_before_its_first_line(world: World) -> None:
    """Nothing of it has run: it has ended all the same."""
    guard = world.guard()
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    assert guard.stay("h1", "it need not be emptied") == ["g1", "g2"]
    await settle_down(guard)
    assert world.moves == [] and not guard.under_way() and not world.journal.known.open
    assert world.journal.known.outcomes == {"undone": 2}


@in_world
async def test_nodes_are_drained_before_they_move(world: World) -> None:
    guard = world.guard()
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    drained = "".join(f"drain {name} h1 fails: a memory error\n" for name in ("g1", "g2", "h1"))
    assert world.told == [(drained + "resume h2\nresume h3\n", 0)]
    for gate in world.gates.values():
        gate.set()
    await guard.drain()
    world.health("h3", Level.UNKNOWN)
    await guard.step(world.snapshot())
    lines = "resume g1\nresume g2\ndrain h1 h1 fails: a memory error\nresume h2\n"
    assert world.told[1][0] == lines  # of h3 nothing is said
    world.health("h2", Level.FAILING)
    await guard.step(world.snapshot())
    assert len(world.told) == 2 and "breaker" in {kind for kind, _ in world.journal.known.alarms}


@in_world
async def test_a_scheduler_that_does_not_listen_stops_no_move(world: World) -> None:
    guard = world.guard()
    world.health("h1", Level.FAILING)
    world.deaf = IvcError("the scheduler was not told")
    await guard.step(world.snapshot())
    await settle_down(guard)
    assert len(world.moves) == 2 and "ALARM the scheduler was not told" in world.said
    world.deaf = None
    await guard.step(world.snapshot())
    assert "no longer: the scheduler was not told" in world.said


@in_world
async def test_looking_ahead_does_nothing(world: World) -> None:
    guard = world.guard()
    world.health("h1", Level.FAILING)
    plan = guard.look_ahead(world.snapshot(), world.now)
    assert len(plan.moves) == 2 and world.moves == [] and guard.under_way() == []


@in_world
async def test_well_again_in_time(world: World) -> None:
    guard = world.guard()
    world.past = {"g2"}
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    await settle_down(guard)
    world.health("h1", Level.OK)
    await guard.step(world.snapshot())
    await settle_down(guard)
    assert [one.move.machine for one in guard.under_way()] == ["g2"]
    assert "g1 stays on h1: as asked" in world.said
    assert "g2 moves all the same: it is past the point of no return" in world.said
    world.gates["g2"].set()
    await guard.drain()
    assert world.machines["g1"].host == "h1" and world.machines["g2"].host == "h2"
    assert world.journal.known.tried == {}


@in_world
async def test_unknown_does_not_cancel(world: World) -> None:
    guard = world.guard()
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    await settle_down(guard)
    world.health("h1", Level.UNKNOWN)
    await guard.step(world.snapshot())
    await settle_down(guard)
    assert len(guard.under_way()) == 2
    await guard.give_up("the test ends")
    assert guard.under_way() == []


@in_world
async def test_a_failed_move_goes_elsewhere_later(world: World) -> None:
    guard = world.guard(Rules(back_off=60.0))
    del world.machines["g2"]
    world.health("h1", Level.FAILING)
    world.faults["g1"] = IvcError("h2 has no QEMU")
    world.gates["g1"].set()
    await guard.step(world.snapshot())
    await guard.drain()
    assert "g1 was not moved to h2: h2 has no QEMU" in world.said
    assert (await guard.step(world.snapshot())).moves == ()
    world.now += 61
    del world.faults["g1"]
    await guard.step(world.snapshot())
    await guard.drain()
    assert world.machines["g1"].host == "h3"


@in_world
async def test_a_host_is_emptied_by_hand(world: World) -> None:
    guard = world.guard()
    for gate in world.gates.values():
        gate.set()
    guard.evacuate("h1", "root")
    guard.evacuate("h1", "root")
    await guard.step(world.snapshot())
    await guard.drain()
    assert {m.host for m in world.machines.values()} == {"h2"}
    assert (await guard.step(world.snapshot())).moves == ()
    assert world.journal.known.evacuate == {"h1": "root"}   # and it is no target meanwhile
    assert guard.stay("h1", "maintenance is over") == []
    assert world.journal.known.evacuate == {} and world.journal.known.landed == []


@in_world
async def test_an_evacuation_is_cancelled_by_hand(world: World) -> None:
    guard = world.guard()
    guard.evacuate("h1", "root")
    await guard.step(world.snapshot())
    await settle_down(guard)
    assert sorted(guard.stay("h1", "changed our mind")) == ["g1", "g2"]
    await guard.drain()
    assert {m.host for m in world.machines.values()} == {"h1"}
    assert (await guard.step(world.snapshot())).moves == ()


@in_world
async def test_alarms_are_told_once(world: World) -> None:
    guard = world.guard()
    for name in ("h2", "h3"):
        world.hosts[name] = replace(world.hosts[name], not_spare=("it runs g9",))
    world.health("h1", Level.FAILING)
    for _ in range(3):
        await guard.step(world.snapshot())
    alarms = [text for text in world.said if text.startswith("ALARM")]
    assert len(alarms) == 2 and world.moves == []
    world.health("h1", Level.OK)
    await guard.step(world.snapshot())
    assert world.journal.known.alarms == {}
    assert len([text for text in world.said if text.startswith("no longer")]) == 2


def _unwritten(kind: str, at: float, **more: Any) -> None:
    raise JournalError("nobody is there to write")


async def _killed(world: World) -> None:
    """A guard that has begun to move both, and is no more."""
    guard = world.guard()
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    await settle_down(guard)
    world.journal.close()
    world.journal.write = _unwritten  # type: ignore[method-assign]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)


@in_world
async def test_after_a_kill_nothing_moves_twice(world: World) -> None:
    await _killed(world)
    guard = world.guard()
    n = len(world.moves)
    await guard.step(world.snapshot())      # nobody knows yet how they are
    await settle_down(guard)
    assert len(world.moves) == n and set(world.journal.known.open) == {"g1", "g2"}
    world.settled = {"g1": Ended(Outcome.MOVED), "g2": Ended(Outcome.UNDONE)}
    world.machines["g1"] = replace(world.machines["g1"], host="h2")
    await guard.step(world.snapshot())
    await settle_down(guard)
    assert [move.machine for move in world.moves[n:]] == ["g2"]
    assert world.moves[-1].target == "h2"       # where the other one of its job went
    await guard.give_up("the test ends")


@in_world
async def test_nobody_can_tell(world: World) -> None:
    await _killed(world)
    world.settled = {name: Ended(Outcome.UNDECIDED, "h2 is silent") for name in ("g1", "g2")}
    guard = world.guard()
    await guard.step(world.snapshot())
    assert ("undecided", "g1") in world.journal.known.alarms
    assert set(world.journal.known.open) == {"g1", "g2"}
    world.settled = {name: Ended(Outcome.MOVED) for name in ("g1", "g2")}
    for name, machine in world.machines.items():
        world.machines[name] = replace(machine, host="h2")
    await guard.step(world.snapshot())
    assert world.journal.known.alarms == {} and not world.journal.known.open


@in_world
async def test_without_a_journal_nothing_begins(world: World) -> None:
    guard = world.guard()
    world.health("h1", Level.FAILING)
    await guard.step(world.snapshot())
    await settle_down(guard)
    world.journal._file.close()     # as a full disk would have it
    world.journal._file = open("/dev/full", "ab", buffering=0)
    for gate in world.gates.values():
        gate.set()
    await guard.drain()
    with pytest.raises(IvcError, match="journal"):
        await guard.step(world.snapshot())
