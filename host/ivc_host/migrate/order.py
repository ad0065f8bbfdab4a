"""The order in a region, by `ivc_suspend`: the processes of a guest let go, and stay away.

The order lives as long as that program does, and the program as long as its input is open: when
this command dies in any way, the order is withdrawn, and the guest may use the region again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from ..errors import MissingError
from ..hypervisor.faults import MachineError, MigrateError
from ..hypervisor.reach import Reach

_TOOL = "ivc_suspend"
_LIST_SECONDS = 30.0
_WITHDRAW_SECONDS = 5.0
#: What the tool needs beside the time that it was given: to look at the region, to say why.
_MARGIN_SECONDS = 15.0


@dataclass(frozen=True)
class Group:
    """Processes in a region that say they are of one guest."""

    #: 16 hexadecimal digits.
    identity: str
    hosts: tuple[str, ...]
    count: int
    #: Numbers of the guests that they are of as far as can be told: copies of one have its identity.
    guests: frozenset[int] = frozenset()
    #: Jobs that they are of, 16 hexadecimal digits each.
    jobs: frozenset[str] = frozenset()

    def __str__(self) -> str:
        names = "/".join(self.hosts) or "an unnamed guest"
        processes = "1 process" if self.count == 1 else f"{self.count} processes"
        return f"{names} ({processes}, {self.identity})"


async def groups(reach: Reach, region: str) -> list[Group]:
    """Who is in a region, by guests."""
    done = await reach.run([*reach.own(_TOOL), "--json", "--list", region], _LIST_SECONDS)
    if done.code == 127:
        raise _no_tool(reach)
    events = [_event(line) for line in done.out.splitlines()]
    if done.code != 0:
        raise MachineError(
            f"region {region} on {reach.host.name}: {_fault(events) or _plain(done.last_line())}"
        )
    return [_group(guest) for event in events for guest in event.get("guests", [])]


def _group(guest: dict[str, Any]) -> Group:
    members = guest["members"]
    hosts = dict.fromkeys(str(member["host"]) for member in members)
    numbers = frozenset(int(member.get("guest", 0)) for member in members)
    jobs = frozenset(str(member["job"]) for member in members if "job" in member)
    return Group(str(guest["vm"]), tuple(hosts), len(members), numbers, jobs)


def _no_tool(reach: Reach) -> MissingError:
    return MissingError(
        f"{_TOOL} is not there on {reach.host.name}",
        hint="install it there" if reach.host.ssh else "run: ./run build",
    )


def _event(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(line: str) -> str:
    return line.removeprefix(f"{_TOOL}: ")


def _name(one: dict[str, Any]) -> str:
    """A process that an event is about, for people."""
    if one.get("rank") is None:
        return f"process {one.get('pid')} on {one.get('host')}"
    return f"rank {one['rank']} on {one.get('host')} (pid {one.get('pid')})"


def _fault(events: list[dict[str, Any]]) -> str | None:
    """Why the tool has given up, in words; None when its events do not tell."""
    for event in events:
        about = event.get("for", [])
        if event.get("event") == "timeout":
            words = [f"{_name(one)} did not answer: {one.get('reason')}" for one in about]
            return "; ".join(words) or "not everybody answered in time"
        if event.get("event") == "refused":
            return "; ".join(f"{_name(one)}: {one.get('reason')}" for one in about)
        if event.get("event") == "error":
            return str(event.get("error"))
    return None


class RegionOrder:
    """An order that was given in a region. `withdraw` it, or end this command."""

    def __init__(self, reach: Reach, region: str, said: IO[bytes]) -> None:
        self._reach = reach
        self._region = region
        self._said = said
        self._process: asyncio.subprocess.Process | None = None
        #: From the order to the last answer.
        self.seconds = 0.0

    @classmethod
    async def give(
        cls,
        reach: Reach,
        region: str,
        guest: str,
        timeout: float,
        waiting: Callable[[str], None],
    ) -> RegionOrder:
        """Returns when everybody has let go; else nothing is ordered any more when this raises."""
        order = cls(reach, region, tempfile.TemporaryFile())
        try:
            await order._start(guest, timeout)
            await asyncio.wait_for(order._answered(waiting), timeout + _MARGIN_SECONDS)
        except TimeoutError:
            await order.withdraw()
            raise MigrateError(f"region {region}: {_TOOL} has hung; end it") from None
        except BaseException:
            await order.withdraw()
            raise
        return order

    async def _start(self, guest: str, timeout: float) -> None:
        words = [*self._reach.own(_TOOL), "--json", "--timeout", f"{timeout:g}"]
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._reach.command([*words, self._region, guest]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is for this command to handle
            )
        except OSError:
            raise _no_tool(self._reach) from None

    async def _answered(self, waiting: Callable[[str], None]) -> None:
        assert self._process is not None and self._process.stdout is not None
        begin = time.monotonic()
        events = []
        async for line in self._process.stdout:
            event = _event(line.decode(errors="replace"))
            events.append(event)
            if event.get("event") == "waiting":
                waiting(", ".join(map(_name, event.get("for", []))))
            if event.get("event") == "answered":
                self.seconds = float(event.get("seconds", time.monotonic() - begin))
                return
        code = await self._process.wait()
        if code == 127:
            raise _no_tool(self._reach)
        raise MigrateError(f"region {self._region}: {_fault(events) or self._why(code)}")

    def _why(self, code: int) -> str:
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return "; ".join(map(_plain, lines)) or f"{_TOOL} ended with {code}"

    def holds(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def withdraw(self) -> None:
        """The guest may use the region again; safe at any moment, and twice."""
        process, self._process = self._process, None
        if process is not None:
            if process.stdin:
                process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), _WITHDRAW_SECONDS)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        self._said.close()
