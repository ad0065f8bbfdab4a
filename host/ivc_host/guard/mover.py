"""How the guard moves a machine, and how it finds out what became of a move whose guard died.

A move is `ivc migrate`'s. When the guard is killed in the middle, the order in the region ends with
it, and the hypervisors go on with what they were told. So whoever looks afterwards sees one of a few
pairs of states, and makes of each that the machine runs once: over there when it is whole over
there, else here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass

from ..errors import IvcError
from ..hypervisor.contract import Hypervisor, Machine, Moving, RegionDevice, State
from ..hypervisor.faults import MigrateError
from ..migrate import lock, room
from ..migrate.find import hypervisors_of, leavers
from ..migrate.inventory import Inventory
from ..migrate.journey import Journey, Limits, UndecidedError
from .engine import Ended, Outcome, Steps
from .journal import OpenMove
from .plan import Move


class _Teller:
    """Phases go into the journal; the rest is for people who watch one move."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def phase(self, name: str, text: str) -> None:
        self._steps.phase(name)

    def waiting(self, text: str) -> None: ...

    def phase_done(self, name: str, seconds: float) -> None: ...

    def moving(self, moving: Moving) -> None: ...

    def note(self, text: str) -> None: ...

    def no_return(self) -> None:
        self._steps.no_return()


class MachineMover:
    """Moves machines between the hosts of an inventory."""

    def __init__(self, book: Inventory, limits: Limits = Limits()) -> None:
        self._book = book
        self._limits = limits

    @asynccontextmanager
    async def _both(self, move: Move) -> AsyncIterator[tuple[Hypervisor, Hypervisor]]:
        hosts = [self._book.host(move.source), self._book.host(move.target)]
        key = f"{os.path.realpath(self._book.path)} {move.machine}"  # as of `ivc migrate` by this inventory
        with _held(key, move.machine):
            async with hypervisors_of(hosts) as (here, there):
                yield here, there

    async def move(self, move: Move, steps: Steps) -> Ended:
        async with self._both(move) as (here, there):
            machine = await here.machine(move.machine)
            if machine is None:
                return Ended(Outcome.FAILED, f"it is not on {move.source} any more")
            try:
                with _held(machine.key, machine.name):
                    journey = await self._journey(machine, here, there, steps)
                    report = await journey.run()
            except lock.BusyError:
                raise
            except UndecidedError as fault:
                return Ended(Outcome.UNDECIDED, str(fault))
            except MigrateError as fault:
                task = asyncio.current_task()
                asked = task is not None and task.cancelling() > 0
                return Ended(Outcome.UNDONE if asked else Outcome.FAILED, str(fault))
            finally:
                await machine.close()
        return Ended(Outcome.MOVED, "; ".join(report.notes), report.downtime)

    async def _journey(
        self, machine: Machine, here: Hypervisor, there: Hypervisor, steps: Steps
    ) -> Journey:
        device, path, whom, count = await leavers(here, machine, None)
        if device is not None:
            steps.device(asdict(device))
        return Journey(
            source=machine,
            here=here,
            there=there,
            device=device,
            region_path=path,
            guests=whom,
            processes=count,
            limits=self._limits,
            tell=_Teller(steps),
        )

    async def settle(self, one: OpenMove) -> Ended:
        device = RegionDevice(**one.device) if one.device else None
        made = one.phase not in ("", "check")
        async with self._both(one.move) as (here, there):
            return await _Pair(one.move.machine, here, there, device, made).settle()


@dataclass
class _Pair:
    """One machine on the two hosts of its move."""

    name: str
    here: Hypervisor
    there: Hypervisor
    #: The region's device that it had before the move.
    device: RegionDevice | None
    #: Whatever is over there is the place that was made for it.
    made: bool = True

    async def settle(self) -> Ended:
        with ExitStack() as locks:
            for key in await self._keys():
                locks.enter_context(_held(key, self.name))
            return await self._look(True)

    async def _keys(self) -> set[str]:
        found = set()
        for host in (self.here, self.there):
            if (machine := await host.machine(self.name)) is not None:
                found.add(machine.key)
                await machine.close()
        return found

    async def _look(self, again: bool) -> Ended:
        source, target = await self.here.machine(self.name), await self.there.machine(self.name)
        try:
            before = await _state(source)
            after = await _state(target)
            return await self._settle(source, before, target, after, again)
        finally:
            for machine in (source, target):
                if machine is not None:
                    await machine.close()

    async def _settle(
        self, source: Machine | None, before: State | None,
        target: Machine | None, after: State | None, again: bool,
    ) -> Ended:  # fmt: skip
        if after is State.RUNNING and before is not State.RUNNING:
            assert target is not None
            return await self._is_there(source, before, target)
        if after is State.RUNNING:
            return Ended(Outcome.UNDECIDED, f"{self.name} runs on both hosts")
        if source is not None and before is State.RUNNING:
            return await self._is_here(source, target, after, again)
        if target is not None and after in (State.PAUSED, State.WAITING):
            return await self._stands_still(source, target)
        if source is not None:
            return await self._back(source, target, after)
        return Ended(Outcome.UNDECIDED, f"{self.name} is on neither host")

    async def _is_there(self, source: Machine | None, before: State | None, target: Machine) -> Ended:
        notes = await self._with_region(target, self.there)
        if source is not None and before is State.MOVED:
            await source.end()
        elif source is not None:
            notes.append(f"what is left on {self.here.host.name} is {before and before.value}")
        return Ended(Outcome.MOVED, "; ".join(["its guard had died", *notes]))

    async def _is_here(
        self, source: Machine, target: Machine | None, after: State | None, again: bool
    ) -> Ended:
        """A migration may be under way. Who waits over there waits in vain."""
        if target is not None:
            if not await source.migrate(target).cancel():
                if not again:
                    return Ended(Outcome.UNDECIDED, f"{self.name} cannot be kept from moving")
                return await self._look(False)
            if self._is_place(after):
                await target.end()
        notes = await self._with_region(source, self.here)
        return Ended(Outcome.UNDONE, "; ".join(["its guard had died", *notes]))

    async def _stands_still(self, source: Machine | None, target: Machine) -> Ended:
        """It was about to run over there, or its memory did not arrive whole."""
        with suppress(IvcError):
            await target.resume()
        if await _state(target) is State.RUNNING:
            return await self._is_there(source, await _state(source), target)
        if source is None:
            return Ended(Outcome.UNDECIDED, f"{self.name} is on {self.there.host.name}, not whole")
        return await self._back(source, target, State.WAITING)

    async def _back(self, source: Machine, target: Machine | None, after: State | None) -> Ended:
        """It stands still here, and nothing of it can run over there."""
        if target is not None and self._is_place(after):
            await target.end()
        await source.resume()
        return await self._is_here(source, None, None, False)

    def _is_place(self, after: State | None) -> bool:
        """What is over there, and does not run, is of our move and nothing else."""
        return after is State.WAITING or self.made

    async def _with_region(self, machine: Machine, at: Hypervisor) -> list[str]:
        """The region of the host that it is on, if it has none and should have one."""
        path = at.host.region or (self.device.path if self.device and at is self.here else None)
        if path is None or not at.capabilities.regions or await machine.region() is not None:
            return []
        try:
            found = await room.check(at.reach, path, 0)
            await machine.attach(self._device(at, path, found.size))
        except IvcError as fault:
            return [f"it has no region: {fault}"]
        return []

    def _device(self, at: Hypervisor, path: str, size: int) -> RegionDevice:
        if self.device is None:
            return at.fresh_device(path, size)
        return self.device if at is self.here else at.moved_device(path, size, self.device)


def _held(key: str, name: str) -> AbstractContextManager[None]:
    return lock.held(key, name, f"a move of {name} by ivc guard")


async def _state(machine: Machine | None) -> State | None:
    return None if machine is None else await machine.state()
