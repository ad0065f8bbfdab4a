"""Ctrl-C and its like, while something is done that must not be left half done."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

from ..hypervisor.faults import MigrateError


class Interrupts:
    """Ctrl-C and its like end the work once, and not at all after the point of no return."""

    def __init__(self) -> None:
        self.number: int | None = None
        #: A signal has come, if only when it was too late.
        self.asked = False
        self._task: asyncio.Task[None] | None = None

    def watch(self) -> None:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._arrived, number)

    def _arrived(self, number: int) -> None:
        self.asked = True
        if self._task is None:
            print("ivc: too late to go back; this ends in a moment", file=sys.stderr)
        elif self.number is not None:
            print("ivc: going back already; this ends in a moment", file=sys.stderr)
        else:
            self.number = number
            self._task.cancel()

    def close(self) -> None:
        self._task = None


def run(work: Callable[[Interrupts], Awaitable[None]]) -> None:
    interrupts = Interrupts()

    async def main() -> None:
        interrupts.watch()
        await work(interrupts)

    try:
        asyncio.run(main())
    except asyncio.CancelledError:
        raise SystemExit(128 + (interrupts.number or signal.SIGINT)) from None
    except MigrateError as fault:
        if interrupts.number is not None:
            fault.exit_code = 128 + interrupts.number
        raise
