"""The order to a guest of Xen: its processes let go of their grants.

It is a text of the guest's own path in XenStore, which its processes watch; each takes its own record
there away when nothing of it is granted any more. The order lives as long as the shell on the host
that renews it, and that as long as its input is open: when this command dies in any way, the order is
withdrawn, and the processes use memory again.

A process that was killed has left its record behind. While an order stands, those that live note in
theirs how far they have heard it beat; one that does not for the lease is dead to the host, as it would
be in a region of any other kind, and its record is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import time

from .faults import MigrateError
from .reach import Reach

#: Seconds for which a process that lives does not fail to note a beat; and for a dead one's record to go.
_LEASE = 10.0
_REMOVAL = 5.0

_NOT_ALL = "not all processes let go of their grants"
_PATIENCE = (
    "try a longer --timeout: one whose peer has just died goes on when the network has told it so "
    "(IVC_NETWORK_TIMEOUT, 30 s)"
)

#: Says which processes are still there and how far they have heard the order beat, "ID:BEAT ...", several
#: times a second, until its input ends. A line of its input names one that is dead.
_ORDER = """
own=/local/domain/$1/data; i=0
trap 'xenstore-rm $own/ivc-order 2>/dev/null' EXIT
while :; do
    i=$((i + 1))
    xenstore-write $own/ivc-order "$2 $i" || exit 1
    xenstore-ls $own/ivc 2>/dev/null | awk '{ printf "%s:%s ", $1, $6 } END { print "" }'
    read -t 0.1 dead
    code=$?
    if [ $code -eq 0 ]; then
        xenstore-rm $own/ivc/$dead $own/ivc-pairs/$dead 2>/dev/null
    elif [ $code -le 128 ]; then
        exit 0
    fi
done
"""


class GrantsOrder:
    """All processes of the guest have let go, and stay away until `withdraw`."""

    def __init__(self, shell: asyncio.subprocess.Process) -> None:
        self._shell = shell
        self._reader: asyncio.Task[None] | None = None
        self.seconds = 0.0

    @classmethod
    async def give(cls, reach: Reach, domain: int, limit: float) -> GrantsOrder:
        """Nothing is ordered any more when this raises."""
        begin = time.monotonic()
        words = ["bash", "-c", _ORDER, "ivc", str(domain), str(random.randrange(1, 1 << 31))]
        shell = await asyncio.create_subprocess_exec(
            *reach.command(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this command to handle
        )
        order = cls(shell)
        try:
            left = await _answers(shell, begin, limit)
            if left is None:
                raise MigrateError(f"{_NOT_ALL}: XenStore does not take the order")
            if left:
                raise MigrateError(f"{_NOT_ALL}: {left} did not in {limit:g} s", hint=_PATIENCE)
        except BaseException:
            await order.withdraw()
            raise
        assert shell.stdout is not None
        order._reader = asyncio.create_task(_drain(shell.stdout))
        order.seconds = time.monotonic() - begin
        return order

    async def withdraw(self) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._shell.wait(), 10)
        if self._shell.returncode is None:
            self._shell.kill()
            await self._shell.wait()
        if self._reader:
            self._reader.cancel()


class Roll:
    """The processes of a guest that is asked to leave, by what is said of them again and again."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, float]] = {}
        self._alive: set[str] = set()
        self._were: int | None = None
        #: None: nothing was said yet.
        self.left: int | None = None

    def note(self, line: str, now: float) -> None:
        """A line of "ID:BEAT ..."; without a beat where a record went away while it was listed."""
        said = dict(word.split(":", 1) for word in line.split() if ":" in word[1:])
        self._were, self.left = self.left, len(said)
        for name, beat in said.items():
            known = self._heard.get(name)
            if known and known[0] == beat:
                continue
            if known:
                self._alive.add(name)
            self._heard[name] = (beat, now)
        self._heard = {name: self._heard[name] for name in said}

    def dead(self, now: float) -> list[str]:
        """Those that have not heard a beat for the lease; each is named once in so long."""
        found = [name for name, (_, since) in self._heard.items() if now - since >= _LEASE]
        for name in found:
            self._heard[name] = (self._heard[name][0], now)
        return found

    def is_mute(self) -> bool:
        """Some are left, and nothing was heard of any of them."""
        return bool(self._heard) and not self._alive & self._heard.keys()

    def is_empty(self) -> bool:
        """Twice: one that was about to join when the order came is there for a moment."""
        return self.left == 0 and self._were == 0


async def _answers(
    order: asyncio.subprocess.Process, begin: float, limit: float
) -> int | None:
    """How many processes are left; None: the order was not given.

    Those that were killed do not count, however short the limit is: they are waited for until that is known.
    """
    assert order.stdin is not None and order.stdout is not None
    roll = Roll()
    while not roll.is_empty():
        seconds = max(limit, _LEASE + _REMOVAL) if roll.is_mute() else limit
        wait = begin + seconds - time.monotonic()
        if wait <= 0:
            break
        try:
            line = await asyncio.wait_for(order.stdout.readline(), wait)
        except TimeoutError:
            break
        if not line:
            return None
        roll.note(line.decode(), time.monotonic())
        for name in roll.dead(time.monotonic()):
            order.stdin.write(f"{name}\n".encode())
    return roll.left


async def _drain(out: asyncio.StreamReader) -> None:
    while await out.readline():
        pass
