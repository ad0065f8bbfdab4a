"""Which machine of a job should be on which host, and the moves that bring it there.

Invariant: each move finds room on its target before anything has left its source, so no host is ever asked for more than it has.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import IvcError, UsageError
from ..guard import fleet
from ..guard.fleet import Seen
from ..guard.plan import MachineView
from ..hypervisor.faults import MigrateError
from ..migrate import cli as migrate
from ..migrate import inventory, room
from ..migrate.find import hypervisors_of
from ..migrate.interrupts import Interrupts, run
from ..migrate.inventory import Inventory
from ..migrate.journey import Limits
from ..profile import model
from . import ranks, solve

#: For each host to tell what it has.
_LOOK_SECONDS = 30.0


class StuckError(IvcError):
    """Machines wait for each other's room, and there is none elsewhere."""


@dataclass(frozen=True)
class Book:
    """An inventory, and the words that name it to another command."""

    inventory: Inventory
    path: Path | None
    lab: str | None

    @classmethod
    def chosen(cls, path: Path | None, lab: str | None) -> Book:
        return cls(inventory.load(inventory.chosen(path, lab)), path, lab)

    @property
    def words(self) -> list[str]:
        if self.lab is not None:
            return ["--lab", self.lab]
        return [] if self.path is None else ["--inventory", str(self.path)]


@dataclass(frozen=True)
class World:
    """Machines of a job, and the hosts that there are."""

    machines: list[str]
    hosts: list[str]
    present: solve.Placement
    #: Amounts: memory in bytes, processes in a region.
    limits: solve.Limits


@dataclass(frozen=True)
class Move:
    machine: str
    source: str
    target: str

    def command(self, book: Book) -> str:
        return shlex.join(["ivc", "migrate", self.machine, "--to", self.target, *book.words])

    def back(self) -> Move:
        return Move(self.machine, self.target, self.source)


@dataclass(frozen=True)
class Plan:
    world: World
    traffic: Any
    by: ranks.What
    proposed: solve.Placement
    moves: list[Move]
    #: Why the moves that are needed cannot be done; None: they can.
    stuck: StuckError | None = None

    def between(self, placement: solve.Placement) -> int:
        """What goes between hosts."""
        return solve.between(self.traffic, placement)

    def of_ranks(self, profile: model.Profile, placement: solve.Placement) -> list[int]:
        """The host of each rank; one of which nothing is known is alone."""
        at = dict(zip(self.world.machines, placement, strict=True))
        known = {one.rank: at[one.host] for one in profile.processes}
        return [known.get(rank, -1 - rank) for rank in range(profile.size)]


def make(profile: model.Profile, book: Book, by: ranks.What) -> Plan:
    world = _world(profile, book.inventory, asyncio.run(_look(book.inventory)))
    number = {one.rank: world.machines.index(one.host) for one in profile.processes}
    values = ranks.traffic(profile, by, number, len(world.machines))
    np.fill_diagonal(values, 0)
    found = ranks.solved(values, world.limits, world.present)
    try:
        return Plan(world, values, by, found.placement, moves(world, found.placement))
    except StuckError as fault:
        return Plan(world, values, by, found.placement, [], fault)


async def _look(book: Inventory) -> list[Seen]:
    async with hypervisors_of(list(book.hosts.values())) as those:
        return await fleet.look(those, _LOOK_SECONDS, {})


def _world(profile: model.Profile, book: Inventory, seen: Sequence[Seen]) -> World:
    guests = sorted({one.host for one in profile.processes})
    if not guests:
        raise UsageError("the profile does not say in which guests its ranks were", hint="profile the job again")
    views = [_view(name, book, seen) for name in guests]
    hosts = [one.name for one in seen]
    present = [hosts.index(view.host) for view in views]
    needs = np.array([[view.memory, view.processes] for view in views], dtype=np.int64)
    capacity = np.array([_free(one) for one in seen], dtype=np.int64)
    np.add.at(capacity, present, needs)
    may = np.array([[_may(view, one, book) for one in seen] for view in views])
    return World(guests, hosts, present, solve.Limits(needs, capacity, may, (0,) * len(hosts)))


def _view(name: str, book: Inventory, seen: Sequence[Seen]) -> MachineView:
    found = [view for one in seen for view in one.machines if view.name == name]
    if len(found) > 1:
        raise UsageError(f"{name} is on several hosts: {', '.join(view.host for view in found)}", hint="end all but one of them")
    if not found:
        faults = [f"{one.name}: {one.counted.fault}" for one in seen if one.counted.fault]
        raise UsageError(
            f"the job had ranks in {name}, and no host of {book.path} has that machine",
            hint="; ".join(faults) or "name the inventory of its hosts with --inventory or --lab",
        )
    return found[0]


def _free(one: Seen) -> list[int]:
    """What no machine has; of what is not known there is nothing."""
    places = one.places or 0
    if one.region_bytes is not None:
        places = min(places, one.region_bytes // room.BYTES_PER_MEMBER)
    return [max(0, one.free_memory or 0), max(0, places)]


def _may(view: MachineView, one: Seen, book: Inventory) -> bool:
    """Whether a machine may be on a host, room aside."""
    if view.host == one.name:
        return True
    alike = book.host(view.host).hypervisor == book.host(one.name).hypervisor
    return alike and view.busy is None and not one.counted.fault and view.cpu_flags <= (one.cpu_flags or frozenset())


def moves(world: World, target: solve.Placement) -> list[Move]:
    """In an order that finds room for each. Machines that wait for each other's room go by way of a host that has some."""
    at, free, found = list(world.present), world.limits.room(world.present), []
    detoured: set[int] = set()

    def fits(machine: int, host: int) -> bool:
        return bool(world.limits.may[machine, host] and (world.limits.needs[machine] <= free[host]).all())

    def go(machine: int, host: int) -> None:
        found.append(Move(world.machines[machine], world.hosts[at[machine]], world.hosts[host]))
        free[at[machine]] += world.limits.needs[machine]
        free[host] -= world.limits.needs[machine]
        at[machine] = host

    while waiting := [one for one in range(len(at)) if at[one] != target[one]]:
        ready = [one for one in waiting if fits(one, target[one])]
        if ready:
            go(ready[0], target[ready[0]])
            continue
        ways = [(one, host) for one in waiting if one not in detoured for host in range(len(world.hosts)) if fits(one, host)]
        if not ways:
            raise _stuck(world, waiting)
        one, host = min(ways, key=lambda way: (not _helps(world, way, at, target, free), world.limits.needs[way[0], 0], way))
        detoured.add(one)
        go(one, host)
    return found


def _helps(world: World, way: tuple[int, int], at: Sequence[int], target: Sequence[int], free: Any) -> bool:
    """Whether another can go to its place when this one has made room."""
    one, _ = way
    left = free[at[one]] + world.limits.needs[one]
    return any(target[k] == at[one] != at[k] and (world.limits.needs[k] <= left).all() for k in range(len(at)))


def _stuck(world: World, waiting: Sequence[int]) -> StuckError:
    names = ", ".join(f"{world.machines[one]} ({int(world.limits.needs[one, 0]) >> 20} MiB)" for one in waiting)
    return StuckError(
        f"{names} wait for each other's room, and no host has any for one of them meanwhile",
        hint="make room on one of the hosts, or add one to the inventory",
    )


def apply(plan: Plan, book: Book, as_json: bool) -> None:
    """One move after the other, each as `ivc migrate` does it; the first that fails is the last."""

    async def work(interrupts: Interrupts) -> None:
        done: list[Move] = []
        for move in plan.moves:
            try:
                await _do(move, book, as_json, interrupts)
            except (IvcError, asyncio.CancelledError) as fault:
                raise _stopped(plan, book, done, fault) from None
            done.append(move)

    run(work)


async def _do(move: Move, book: Book, as_json: bool, interrupts: Interrupts) -> None:
    if interrupts.asked:  # when it was too late for the move before
        raise _interrupted()
    interrupts.watch()
    words = migrate.Words(move.machine, book.path, book.lab)
    with migrate.telling(as_json, interrupts) as tell:
        await migrate.move(words, None, book.inventory.host(move.target), None, Limits(), tell)


def _interrupted() -> MigrateError:
    error = MigrateError("interrupted")
    error.exit_code = 128 + signal.SIGINT
    return error


def _stopped(plan: Plan, book: Book, done: Sequence[Move], fault: BaseException) -> MigrateError:
    lines = [f"done: {move.machine} from {move.source} to {move.target}" for move in done]
    lines += [f"to undo: {move.back().command(book)}" for move in reversed(done)]
    error = MigrateError(
        f"stopped at move {len(done) + 1} of {len(plan.moves)}: {str(fault) or 'interrupted'}", detail="\n".join(lines) or None
    )
    error.exit_code = fault.exit_code if isinstance(fault, IvcError) else 1
    return error
