"""Guests of Xen, moved by `xl`: their processes let go of their grants, then the guest moves.

The order is a text of the guest's own path in XenStore, which its processes watch; each takes its own
record there away when nothing of it is granted any more. The order lives as long as the shell on the
host that renews it, and that as long as its input is open: when this command dies in any way, the
order is withdrawn, and the processes use memory again.

A process that was killed has left its record behind. While an order stands, those that live note in
theirs how far they have heard it beat; one that does not for the lease is dead to the host, as it would
be in a region of any other kind, and its record is removed.

A paravirtual guest cannot move while it runs where Xen has no shadow page tables (Debian's has
none): with `store`, a folder that both hosts have, it is saved there and restored on the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shlex
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ..errors import UsageError
from . import lock
from .inventory import Host, Inventory
from .journey import JourneyTeller, Limits, Report
from .machine import MachineError, MigrateError
from .reach import Done, Reach

#: xl reads and writes all of a guest's memory, perhaps on an emulated processor.
_MOVE_SECONDS = 1800.0
_LOOK_SECONDS = 60.0

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


class XenHost:
    """One host with Xen."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.reach = Reach(host)

    async def xl(self, *words: str, timeout: float = _LOOK_SECONDS) -> Done:
        return await self.reach.run(["xl", *words], timeout)

    async def domain(self, vm: str) -> int | None:
        """The guest's number; None: it is not here. A host that is not reached raises."""
        done = await self.xl("domid", vm)
        if done.code == 0:
            return int(done.out.strip())
        if done.code == 127:
            raise MachineError(f"host {self.host.name}: xl is not there", hint="is it Xen's dom0?")
        if "does not exist" not in done.error and "invalid domain" not in done.error:
            raise MachineError(f"host {self.host.name}: {done.last_line()}")
        return None

    async def is_paravirtual(self, vm: str) -> bool:
        done = await self.xl("list", "-l", vm)
        try:
            found = json.loads(done.out)
        except ValueError:
            raise MachineError(f"host {self.host.name}: xl list: {done.last_line()}") from None
        return any("type.pv" in one["config"]["b_info"] or one["config"]["c_info"].get("type") == "pv"
                   for one in found)  # fmt: skip


@asynccontextmanager
async def ordered(at: XenHost, domain: int, limit: float) -> AsyncIterator[float]:
    """All processes of the guest have let go, and stay away until the end; how long that took."""
    begin = time.monotonic()
    words = ["bash", "-c", _ORDER, "ivc", str(domain), str(random.randrange(1, 1 << 31))]
    order = await asyncio.create_subprocess_exec(
        *at.reach.command(words),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this command to handle
    )
    assert order.stdin is not None and order.stdout is not None
    reader: asyncio.Task[None] | None = None
    try:
        left = await _answers(order, begin, limit)
        if left is None:
            raise MigrateError(f"{_NOT_ALL}: XenStore does not take the order")
        if left:
            raise MigrateError(f"{_NOT_ALL}: {left} did not in {limit:g} s", hint=_PATIENCE)
        reader = asyncio.create_task(_drain(order.stdout))
        yield time.monotonic() - begin
    finally:
        order.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(order.wait(), 10)
        if order.returncode is None:
            order.kill()
            await order.wait()
        if reader:
            reader.cancel()


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


def _must(done: Done, what: str) -> None:
    if done.code != 0:
        lines = [line for line in done.error.splitlines() if "rror" in line or "ailed" in line]
        raise MachineError(f"{what}: {lines[0].strip() if lines else done.last_line()}")


async def _move_live(source: XenHost, target: XenHost, vm: str) -> None:
    # xl leaves the guest running here when that fails.
    done = await source.xl("migrate", vm, target.host.peer or target.host.name, timeout=_MOVE_SECONDS)
    _must(done, f"xl migrate {vm}")


async def _move_by_file(source: XenHost, target: XenHost, vm: str, folder: str) -> None:
    path = f"{folder}/{vm}-{random.randrange(1 << 32):08x}.xen"
    file = shlex.quote(path)
    # One that is killed half way leaves the guest in the hands of xl, which lets it run again.
    _must(await source.xl("save", vm, path, timeout=_MOVE_SECONDS), f"xl save {vm}")
    await source.reach.run(["sync"], _MOVE_SECONDS)
    done = await target.xl("restore", path, timeout=_MOVE_SECONDS)
    if done.code != 0:
        again = await source.xl("restore", path, timeout=_MOVE_SECONDS)
        if again.code != 0:
            raise MigrateError(
                f"xl restore failed on both sides: {done.last_line()}; {again.last_line()}",
                hint=f"{vm} is whole in {path}",
            )
        await source.reach.run(["sh", "-c", f"rm -f {file}"])
        _must(done, f"xl restore {vm} on {target.host.name}; it was restored where it was")
    await source.reach.run(["sh", "-c", f"rm -f {file}"])


def _hosts(book: Inventory) -> list[XenHost]:
    return [XenHost(host) for host in book.hosts.values() if host.hypervisor == "xen"]


async def _find(hosts: list[XenHost], vm: str, where: str) -> tuple[XenHost, int]:
    found = [(one, number) for one in hosts if (number := await one.domain(vm)) is not None]
    if not found:
        raise UsageError(f"there is no guest {vm} on the hosts of {where}", hint="see xl list there")
    if len(found) > 1:
        names = ", ".join(one.host.name for one, _ in found)
        raise MigrateError(f"{vm} is on several hosts: {names}", hint="end all but one of them")
    return found[0]


@asynccontextmanager
async def _letting_go(
    vm: str, source: XenHost, domain: int, limits: Limits, tell: JourneyTeller
) -> AsyncIterator[dict[str, float]]:
    """A guest whose processes have let go of their grants; the phases so far."""
    tell.phase("suspend", f"asking {vm}'s processes to let go of their grants")
    async with ordered(source, domain, limits.suspend) as seconds:
        tell.phase_done("suspend", seconds)
        yield {"suspend": seconds}


async def migrate(
    vm: str, book: Inventory, target: Host, limits: Limits, tell: JourneyTeller
) -> Report:
    """Move a guest. MigrateError says that it was not, and it then runs where it was."""
    begin = time.monotonic()
    hosts = _hosts(book)
    to = next(one for one in hosts if one.host.name == target.name)
    with lock.held(f"{book.path} {vm}", vm, f"a migration of {vm}"):
        source, domain = await _find(hosts, vm, book.path)
        if source is to:
            raise UsageError(f"{vm} is on {target.name} already")
        folder = source.host.store if await source.is_paravirtual(vm) else None
        report = Report(vm, source.host.name, target.name)
        async with _letting_go(vm, source, domain, limits, tell) as report.phases:
            tell.phase("migrate", f"moving {vm} to {target.name}")
            with _timed("migrate", report.phases, tell):
                if folder:
                    await _move_by_file(source, to, vm, folder)
                else:
                    await _move_live(source, to, vm)
            tell.no_return()
    report.total = time.monotonic() - begin
    return report


@dataclass
class Saved:
    """A guest that was saved to a file of its host. Phases in seconds."""

    vm: str
    host: str
    file: str
    phases: dict[str, float] = field(default_factory=dict)


async def save(
    vm: str, book: Inventory, file: str, limits: Limits, tell: JourneyTeller
) -> Saved:
    """Save a guest. MigrateError says that it was not, and it then runs on."""
    hosts = _hosts(book)
    if not hosts:
        raise UsageError(
            f"{book.path} has no host with Xen",
            hint=f"a machine of QEMU: ivc detach {vm}, save it with its own tools, ivc attach {vm}",
        )
    with lock.held(f"{book.path} {vm}", vm, f"a save of {vm}"):
        source, domain = await _find(hosts, vm, book.path)
        saved = Saved(vm, source.host.name, file)
        if (await source.reach.run(["test", "-e", file])).code == 0:
            raise UsageError(f"{file} is there already on {saved.host}", hint="name a new file")
        async with _letting_go(vm, source, domain, limits, tell) as saved.phases:
            tell.phase("save", f"saving {vm} to {file}")
            with _timed("save", saved.phases, tell):
                done = await source.xl("save", vm, file, timeout=_MOVE_SECONDS)
                if done.code != 0:  # xl lets the guest run again
                    await source.reach.run(["rm", "-f", file])
                _must(done, f"xl save {vm}")
            tell.no_return()
    return saved


@contextlib.contextmanager
def _timed(phase: str, phases: dict[str, float], tell: JourneyTeller) -> Iterator[None]:
    begin = time.monotonic()
    yield
    phases[phase] = time.monotonic() - begin
    tell.phase_done(phase, phases[phase])
