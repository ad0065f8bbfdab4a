"""A machine's departure: all processes of its guest let go of shared memory, then its device goes.

Until `settle`, everything can be taken back: `restore` plugs the device in again where it was and
withdraws the orders, after which the guest's processes join the region again by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from ..errors import IvcError
from ..hypervisor.contract import Hypervisor, Machine, Order, RegionDevice, State
from ..hypervisor.faults import MigrateError
from .order import RegionOrder

#: A guest that was asked to let go of a device may do so after we have stopped waiting for it.
_SETTLE_SECONDS = 3.0
#: A process that nobody asked to let go finds out at its next heartbeat. Were another region there
#: before that, it would see that one through its old mapping.
_NOTICE_SECONDS = 0.2


class Teller(Protocol):
    """How those who look are told what happens; never fails."""

    def phase(self, name: str, text: str) -> None:
        """A phase begins."""

    def waiting(self, text: str) -> None:
        """Who has not answered yet."""

    def phase_done(self, name: str, seconds: float) -> None:
        """A phase has ended well."""


class Departure:
    """Of a machine with a region's device, or whose guest has grants; of another it is nothing."""

    def __init__(
        self, machine: Machine, here: Hypervisor, device: RegionDevice | None, region: str
    ) -> None:
        self.device = device
        self.durations: dict[str, float] = {}
        self._machine = machine
        self._reach = here.reach
        self._grants = here.capabilities.grants
        self._region = region
        self._orders: list[Order] = []
        self._asked_at: float | None = None
        self._gone_at: float | None = None

    async def suspend(self, guests: Sequence[str], timeout: float, tell: Teller) -> None:
        """Order GUESTS away from the region, and the machine's from its grants."""
        if self.device is None and not self._grants:
            return
        what = "the region" if self.device else "their grants"
        tell.phase("suspend", f"asking {self._machine.name}'s processes to let go of {what}")
        for guest in guests:
            given = await RegionOrder.give(self._reach, self._region, guest, timeout, tell.waiting)
            self._orders.append(given)
        if (own := await self._machine.order_away(timeout, tell.waiting)) is not None:
            self._orders.append(own)
        # Orders of one machine are given one after the other, and its processes wait for the last.
        self.durations["suspend"] = sum(order.seconds for order in self._orders)
        tell.phase_done("suspend", self.durations["suspend"])

    async def detach(self, timeout: float, tell: Teller) -> None:
        if self.device is None:
            return
        tell.phase("detach", f"detaching the region from {self._machine.name}")
        self._asked_at = time.monotonic()
        await self._machine.detach(self.device, timeout)
        self._gone_at = time.monotonic()
        self.durations["detach"] = self._gone_at - self._asked_at
        tell.phase_done("detach", self.durations["detach"])

    async def restore(self) -> None:
        """Undo whatever was done. The orders are withdrawn in any case."""
        try:
            if self.device and self._asked_at is not None and await self._is_gone():
                await self.noticed()
                await self._machine.attach(self.device)
        finally:
            await self.settle()

    async def _is_gone(self) -> bool:
        assert self._asked_at is not None
        end = self._asked_at + _SETTLE_SECONDS
        while await self._machine.region() is not None:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.05)
        return True

    async def noticed(self) -> None:
        """Return when every process of the guest has found out that the device is gone."""
        if self._gone_at is None:
            self._gone_at = time.monotonic()
        left = self._gone_at + _NOTICE_SECONDS - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)

    async def settle(self) -> None:
        """Nothing is to be taken back any more."""
        orders, self._orders = self._orders, []
        for order in orders:
            await order.withdraw()


@asynccontextmanager
async def leaving(departure: Departure, machine: Machine, otherwise: str) -> AsyncIterator[None]:
    """A block after which nothing is to be taken back; whatever ends it before undoes the departure
    and is said after the words OTHERWISE."""
    try:
        if await machine.state() is not State.RUNNING:
            raise MigrateError("only a machine that runs can let go of shared memory")
        yield
    except BaseException as fault:
        why = str(fault) if isinstance(fault, IvcError) else "interrupted"
        troubles = await _restored(departure)
        if isinstance(fault, Exception) and not isinstance(fault, IvcError):
            raise
        where = await describe(machine, departure.device is not None)
        raise MigrateError("; ".join([f"{otherwise}: {why}", where, *troubles])) from None
    await departure.settle()


async def _restored(departure: Departure) -> list[str]:
    try:
        await departure.restore()
    except IvcError as fault:
        return [str(fault)]
    return []


async def describe(machine: Machine, had_region: bool) -> str:
    """Where a machine is after something was undone, as the end of a sentence."""
    try:
        state = (await machine.state()).value
        region = await machine.region()
    except IvcError as fault:
        return f"{machine.host} does not say how it is: {fault}"
    if state != "running":
        return f"it is on {machine.host}, {state}"
    if had_region and region is None:
        return f"it runs on {machine.host}, without its region (ivc attach gives it back)"
    return f"it runs on {machine.host} as before"
