"""A migration: check, make a place, suspend, detach, move, resume over there, attach, tidy up.

Until the machine is told to run on the destination, every step can be undone, and is, whatever ends
the sequence: a fault, a time-out, Ctrl-C, the destination's death. From then on it is over there;
what goes wrong after that is told, and does not bring it back.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import IvcError
from ..hypervisor.contract import (
    Hypervisor,
    Machine,
    Migration,
    Moving,
    RegionDevice,
    State,
)
from ..hypervisor.faults import GoneError, MachineError, MigrateError
from . import room
from .departure import Departure, Teller, describe, leaving


class JourneyTeller(Teller, Protocol):
    def moving(self, moving: Moving) -> None:
        """How far the migration is; several times a second."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def no_return(self) -> None:
        """From here on, asking to end does nothing: there is nothing to go back to."""


@dataclass(frozen=True)
class Limits:
    """Seconds."""

    suspend: float = 10.0
    detach: float = 20.0
    #: Without a single byte moved.
    stall: float = 30.0


@dataclass
class Report:
    """What a migration took, in seconds; None where a phase was not needed."""

    vm: str
    source: str
    target: str
    region: str | None = None
    phases: dict[str, float] = field(default_factory=dict)
    #: How long the machine stood still: as the hypervisor says, and until it was told to run again.
    downtime: float | None = None
    resume: float = 0.0
    #: Bytes; None where the hypervisor does not count them.
    transferred: int | None = None
    total: float = 0.0
    notes: list[str] = field(default_factory=list)


@dataclass
class Journey:
    """One migration. `region_path` is the file of the source's region, when it has a device."""

    source: Machine
    here: Hypervisor
    there: Hypervisor
    device: RegionDevice | None
    region_path: str
    #: Whom to order away from the region, and how many processes they are at least.
    guests: Sequence[str]
    processes: int
    limits: Limits
    tell: JourneyTeller

    def __post_init__(self) -> None:
        self._host = self.there.host
        self.report = Report(self.source.name, self.source.host, self._host.name)
        self._target: Machine | None = None
        self._departure: Departure | None = None
        self._migration: Migration | None = None
        self._new: RegionDevice | None = None
        #: It runs over there: there is no way back.
        self._over = False

    @property
    def _vm(self) -> str:
        return self.source.name

    async def check(self) -> None:
        """Everything that can be known before anything is touched."""
        self.tell.phase("check", f"looking whether {self._vm} can move to {self._host.name}")
        begin = time.monotonic()
        await self._check()
        self._phase("check", begin)

    async def _check(self) -> None:
        state = await self.source.state()
        if state is not State.RUNNING:
            raise MigrateError(
                f"{self._vm} on {self.source.host} is {state.value}: only one that runs is moved",
                hint="its guest has to let go of the region by itself",
            )
        reasons = await self.source.blockers()
        if reasons:
            raise MigrateError(
                f"{self._vm} on {self.source.host} cannot be migrated: {'; '.join(reasons)}",
                hint="it runs on; take that device or mount away first",
            )
        if type(self.here) is not type(self.there):
            raise MigrateError(
                f"{self._host.name} is a host with {self._host.hypervisor},"
                f" {self.source.host} one with {self.here.host.hypervisor}",
                hint="a machine moves between hosts with the same hypervisor",
            )
        await self.there.check_place(self._vm)
        if self._host.region and self.there.capabilities.regions:
            found = await room.check(self.there.reach, self._host.region, self.processes)
            self._new = self._device(self._host.region, found.size)

    def _device(self, path: str, size: int) -> RegionDevice:
        """The region over there, in the place that it has here: the guest's hardware is one."""
        if self.device is None:
            return self.there.fresh_device(path, size)
        return self.there.moved_device(path, size, self.device)

    async def run(self) -> Report:
        """The whole of it. MigrateError says where the machine is, and that it runs."""
        begin = time.monotonic()
        try:
            await self.check()
            await self._go()
        except UndecidedError:
            await self._let_be()
            raise
        except BaseException as fault:
            why = "interrupted" if not isinstance(fault, IvcError) else str(fault)
            where = await self._undo()
            if isinstance(fault, Exception) and not isinstance(fault, IvcError):
                raise  # a defect of ours
            if not self._over:
                error = MigrateError(f"{self._vm} was not moved: {why}; {where}")
                error.exit_code = 1 if isinstance(fault, IvcError) else 130
                raise error from None
            self._note(f"too late to go back ({why})")
        await self._finish()
        self.report.total = time.monotonic() - begin
        return self.report

    async def _go(self) -> None:
        """Up to the point of no return."""
        self.tell.phase("prepare", f"making a place for {self._vm} on {self._host.name}")
        begin = time.monotonic()
        self._target = await self.there.expect(self._vm, self.tell.note)
        if self._new is not None:
            await self._target.prepare(self._new)
        self._phase("prepare", begin)
        departure = Departure(self.source, self.here, self.device, self.region_path)
        self._departure = departure
        try:
            await departure.suspend(self.guests, self.limits.suspend, self.tell)
            await departure.detach(self.limits.detach, self.tell)
        finally:
            self.report.phases.update(departure.durations)
        await self._move(self._target)
        if self.there.capabilities.held:
            await self._switch()

    def _phase(self, name: str, begin: float) -> None:
        self.report.phases[name] = time.monotonic() - begin
        self.tell.phase_done(name, self.report.phases[name])

    async def _move(self, target: Machine) -> None:
        self.tell.phase("migrate", f"moving {self._vm} to {self._host.name}")
        begin = changed = time.monotonic()
        before = -1
        self._migration = self.source.migrate(target)
        async with aclosing(self._migration.progress()) as steps:
            async for moving in steps:
                if moving.done and not self.there.capabilities.held:
                    self._no_return()
                self.tell.moving(moving)
                self.report.downtime, self.report.transferred = moving.downtime, moving.transferred
                now = time.monotonic()
                if moving.transferred is None or moving.transferred != before:
                    before, changed = moving.transferred or 0, now
                if now - changed > self.limits.stall:
                    raise MachineError(
                        f"not a byte has reached {self._host.name} for"
                        f" {self.limits.stall:.0f} s, after {before >> 20} MiB"
                    )
        self._phase("migrate", begin)

    def _no_return(self) -> None:
        """It runs over there, or is about to. No await comes before this since that is known."""
        self._over = True
        self.tell.no_return()

    async def _switch(self) -> None:
        """The point of no return. Not to be interrupted: who has it afterwards must be certain."""
        assert self._target is not None
        self.tell.phase("switch", f"letting {self._vm} run on {self._host.name}")
        begin = time.monotonic()
        self.tell.no_return()
        try:
            await self._target.resume()
        except GoneError:
            await self._after_silence()
        self._phase("switch", begin)
        self.report.resume = self.report.phases["switch"]

    async def _after_silence(self) -> None:
        """The destination did not answer whether the machine runs: it must not run twice."""
        host = self._host.name
        try:
            again = await self.there.machine(self._vm)
        except IvcError as fault:
            raise UndecidedError(
                f"{self._vm} was moved to {host}, which then fell silent ({fault});"
                f" it stands still on {self.source.host}, whole",
                hint=f"if it does not run on {host}, let it run on {self.source.host} with"
                " the hypervisor's own command (QMP: cont)",
            ) from None
        if again is None:
            raise MachineError(f"{host} has lost it just before it was to run there")
        try:
            if await again.state() is not State.RUNNING:
                raise MachineError(f"{host} does not let it run")
        finally:
            await again.close()

    async def _let_be(self) -> None:
        troubles: list[str] = []
        if self._departure is not None:
            await _try(self._departure.settle, troubles)
        if self._target is not None:
            await _try(self._target.close, troubles)

    async def _undo(self) -> str:
        """Everything back as it was; returns where the machine is, for the end of a sentence."""
        troubles: list[str] = []
        if self._migration is not None and not self._over:
            await _try(self._cancel, troubles)
        if self._over:
            return f"it is on {self._host.name}"
        if self._departure is not None:
            await _try(self._departure.restore, troubles)
        # Last: it was never told to run and hurts nobody, but may be slow to end.
        if self._target is not None:
            await _try(self._target.end, troubles)
            await _try(self._target.close, troubles)
        where = await describe(self.source, self.device is not None)
        return "; ".join([where, *troubles])

    async def _cancel(self) -> None:
        assert self._migration is not None
        if not await self._migration.cancel():
            self._no_return()

    async def _finish(self) -> None:
        """It runs over there. From here on a fault is a note."""
        assert self._target is not None
        begin = time.monotonic()
        if self._new is not None:
            new = self._new
            self.tell.phase("attach", f"attaching {new.path}")
            if self._departure is not None:
                await self._departure.noticed()
            if await self._noted(self._target.attach(new), "it has no region there"):
                self.report.region = new.path
                self._phase("attach", begin)
        if self._departure is not None:
            await self._noted(self._departure.settle(), "the order was not withdrawn")
        await self._noted(self.source.end(), f"what is left on {self.source.host} must be ended")
        await self._target.close()

    async def _noted(self, doing: Awaitable[None], otherwise: str) -> bool:
        try:
            await doing
        except GoneError as fault:
            self._note(f"{fault}")
        except IvcError as fault:
            self._note(f"{otherwise}: {fault}")
        else:
            return True
        return False

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        self.tell.note(f"{self._vm} runs on {self._host.name}, but {text}")


class UndecidedError(MigrateError):
    """Nobody here can know on which side the machine runs, so nobody here may start it."""


async def _try(undo: Callable[[], Awaitable[None]], troubles: list[str]) -> None:
    try:
        await undo()
    except GoneError:
        pass  # it has ended, which is what was wanted, or `describe` says more
    except (TimeoutError, IvcError) as fault:
        troubles.append(str(fault))


@dataclass
class Saved:
    """A machine that was saved to a file of its host. Phases in seconds."""

    vm: str
    host: str
    file: str
    phases: dict[str, float] = field(default_factory=dict)


async def save(
    machine: Machine, file: str, departure: Departure, guests: Sequence[str], limits: Limits,
    tell: JourneyTeller,
) -> Saved:
    """Save a machine, and end it. MigrateError says that it was not, and how it is then."""
    saved = Saved(machine.name, machine.host, file, departure.durations)
    async with leaving(departure, machine, f"{machine.name} was not saved"):
        await departure.suspend(guests, limits.suspend, tell)
        await departure.detach(limits.detach, tell)
        tell.phase("save", f"saving {machine.name} to {file}")
        begin = time.monotonic()
        await machine.save(file)
        saved.phases["save"] = time.monotonic() - begin
        tell.no_return()
        tell.phase_done("save", saved.phases["save"])
    return saved
