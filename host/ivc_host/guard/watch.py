"""What hypervisors tell of themselves, so that a step need not wait for its time.

Nothing is decided by an event: it only says that a look is worth while. So one that is lost costs no
more than the interval, and what happened while nobody listened is seen by the look that follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from ..errors import IvcError
from ..hypervisor.contract import Event, Hypervisor

#: Until a stream that has ended is asked for again.
_AGAIN_SECONDS = 5.0
#: A stream that is open for longer stands: to connect takes less, or fails.
_STANDS_SECONDS = 60.0

#: Told of a host and what has happened there; None: whatever happened while nobody listened.
News = Callable[[str, Event | None], None]


async def watch(
    those: Sequence[Hypervisor],
    news: News,
    say: Callable[[str], None],
    again: float = _AGAIN_SECONDS,
    stands: float = _STANDS_SECONDS,
) -> None:
    """All hosts, until it is cancelled."""
    await asyncio.gather(*(_Watch(one, news, say, again, stands).run() for one in those))


class _Watch:
    """One host. A stream that breaks is said once, until another one stands."""

    def __init__(
        self, one: Hypervisor, news: News, say: Callable[[str], None], again: float, stands: float
    ) -> None:
        self._one = one
        self._news, self._say, self._again, self._stands_after = news, say, again, stands
        self._broken = False

    async def run(self) -> None:
        while True:
            stands = asyncio.get_running_loop().call_later(self._stands_after, self._stands)
            try:
                why = await self._stream()
            finally:
                stands.cancel()
            if not self._broken:
                self._say(f"{self._one.host.name} tells of no events ({why}): what happens there is"
                          " seen at the next step")  # fmt: skip
                self._news(self._one.host.name, None)
            self._broken = True
            await asyncio.sleep(self._again)

    async def _stream(self) -> str:
        """Until it ends; why."""
        try:
            async with aclosing(self._one.events()) as events:
                async for event in events:
                    self._stands()
                    self._news(self._one.host.name, event)
        except (IvcError, OSError) as fault:
            return str(fault)
        except Exception as fault:  # of a plug-in that is not ours: the guard goes on
            return f"a defect of its hypervisor's class: {type(fault).__name__}: {fault}"
        return "its hypervisor has ended them"

    def _stands(self) -> None:
        if self._broken:
            self._say(f"{self._one.host.name} tells of events again")
            self._news(self._one.host.name, None)
        self._broken = False
