"""`ivc guard`: run, evacuate, cancel, status, spares, history, retry: what is asked, and what is printed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import getpass
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from ..health import cli as health
from ..health import round, settings
from ..health.cli import Config, InventoryOption, Json, Lab, app
from ..health.judge import HostState
from ..health.spares import Verdict
from ..hypervisor.contract import Hypervisor
from ..migrate import inventory
from ..migrate.find import hypervisors_of
from ..migrate.journey import Limits
from . import fleet, journal, nodes
from .engine import Guard, Outcome, Snapshot
from .fleet import Seen
from .journal import Journal
from .mover import MachineMover
from .plan import HostView, MachineView, Plan, Policy, Rules
from .service import Listening, Service, ServiceError, plan_of
from .traffic import Profiles

StateOption = Annotated[
    Path | None, typer.Option("--state", help="The folder of the journal; see guard.toml.")
]
SocketOption = Annotated[
    Path | None, typer.Option("--socket", help="Where the guard that runs listens; see guard.toml.")
]
HostName = Annotated[str, typer.Argument(metavar="HOST", help="A host of the inventory.")]

#: Exit status of a command that has left something undone: an alarm is on, or a move has failed.
_ALARM = 3
_NO_SPARE = 3


@dataclass
class _All:
    """All that a guard works with."""

    own: health.Guard
    those: list[Hypervisor]
    profiles: Profiles

    @property
    def words(self) -> settings.GuardSettings:
        return self.own.settings.guard

    def guard(self, log: journal.Log) -> Guard:
        mover = MachineMover(self.own.book, _limits(self.words))
        told = nodes.Command(self.words.nodes, self.words.timeout).tell if self.words.nodes else None
        return Guard(log, mover, _rules(self.words), say=_say, tell_nodes=told)

    async def read(self, moving: Mapping[str, MachineView]) -> _Read:
        """Health, load and machines of every host, read at the same time. MOVING are not asked."""
        at = time.time()
        readings, loads, seen = await asyncio.gather(
            round.read(self.own.sources, self.own.hosts, at),
            self.own.load(at),
            fleet.look(self.those, self.words.timeout, moving),
        )
        states = self.own.states(readings)
        verdicts = self.own.spares(states, loads, {one.name: one.counted for one in seen})
        return _Read(seen, states, verdicts)

    async def look(self, moving: Mapping[str, MachineView]) -> Snapshot:
        """What a plan is made of."""
        begun = time.monotonic()
        found = await self.read(moving)
        by_name = {verdict.host: verdict for verdict in found.verdicts}
        return Snapshot(
            [_view(one, found.states[one.name], by_name[one.name]) for one in found.seen],
            fleet.with_jobs([machine for one in found.seen for machine in one.machines]),
            traffic=self.profiles.traffic(),
            begun=begun,
        )


@dataclass(frozen=True)
class _Read:
    """Every host at one moment."""

    seen: list[Seen]
    states: dict[str, HostState]
    verdicts: list[Verdict]


def _view(one: Seen, state: HostState, verdict: Verdict) -> HostView:
    loads = [value for value in (verdict.load.cpu, verdict.load.memory, verdict.load.io)
             if value is not None]  # fmt: skip
    return HostView(
        one.name,
        state.level,
        "; ".join(health.reasons(state)),
        unseen=one.counted.fault,
        not_spare=verdict.reasons,
        load=max(loads) if len(loads) == 3 else None,
        free_memory=one.free_memory,
        cpu_flags=one.cpu_flags,
        places=one.places,
        region_bytes=one.region_bytes,
    )


@asynccontextmanager
async def _all(path: Path | None, lab: str | None, config: Path | None) -> AsyncIterator[_All]:
    async with (
        health.opened_guard(path, lab, config) as own,
        hypervisors_of(list(own.book.hosts.values())) as those,
    ):
        yield _All(own, those, Profiles(own.settings.guard.profiles, _say))


def _rules(words: settings.GuardSettings) -> Rules:
    return Rules(
        policy=Policy(words.policy),
        per_host=words.per_host,
        total=words.total,
        breaker=words.breaker,
        tries=words.tries,
        back_off=words.back_off,
        reserve=words.reserve << 20,
    )


def _folder(state: Path | None, words: settings.GuardSettings) -> Path:
    return state or Path(words.journal or journal.FOLDER)


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


def _listening(words: settings.GuardSettings) -> Listening:
    host, _, port = words.listen.rpartition(":")
    return Listening(Path(words.socket), host.strip("[]"), int(port or 0))


# ---- the guard itself


@app.command("run")
def run_guard(
    once: Annotated[bool, typer.Option("--once", help="One step; its moves are waited for.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what a step would do, and do nothing.")
    ] = False,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    state: StateOption = None,
    as_json: Json = False,
) -> None:
    """Watch the hosts, and move machines away from one that fails.

    Exit status: 0, or with --once and --dry-run 3 when an alarm is on.
    """

    async def work() -> int:
        async with _all(inventory_path, lab, config) as everything:
            words = everything.words
            if dry_run:
                return await _look_ahead(everything, journal.known(_folder(state, words)), as_json)
            with Journal(_folder(state, words), time.time()) as log:
                guard = everything.guard(log)
                if once:
                    plan = await guard.step(await everything.look({}))
                    await guard.drain()
                    return _ALARM if log.known.alarms or plan.alarms else 0
                _say(f"guards {len(everything.those)} hosts of {everything.own.book.path}")
                service = Service(guard, everything.look, words.interval, _listening(words),
                                  _say, everything.those)  # fmt: skip
                await service.run()
        return 0

    raise typer.Exit(_run(work))


async def _look_ahead(everything: _All, known: journal.Known, as_json: bool) -> int:
    """Print what a step would do, with what the journal says."""
    guard = everything.guard(journal.Unwritten(known))
    plan = guard.look_ahead(await everything.look({}), time.time())
    _print_plan(plan, as_json)
    return _ALARM if plan.alarms else 0


def _limits(words: settings.GuardSettings) -> Limits:
    return Limits(words.suspend, words.detach, words.stall)


def _run(work: Callable[[], Awaitable[int]]) -> int:
    """Until it is done, or a signal ends it, which takes back what can be taken back."""

    async def main() -> int:
        task = asyncio.current_task()
        assert task is not None
        numbers: list[int] = []

        def arrived(number: int) -> None:
            numbers.append(number)
            if len(numbers) == 1:
                task.cancel()
            else:
                print("ivc: moves are being taken back; this ends in a moment", file=sys.stderr)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, arrived, number)
        try:
            return await work()
        except asyncio.CancelledError:
            return 0 if numbers == [signal.SIGTERM] else 128 + (numbers or [signal.SIGINT])[0]

    return asyncio.run(main())


@app.command()
def evacuate(
    host: HostName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be moved where, and do nothing.")
    ] = False,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    state: StateOption = None,
    socket: SocketOption = None,
    as_json: Json = False,
) -> None:
    """Have all machines leave HOST, and none come, until 'ivc guard cancel HOST'.

    The guard that runs does it; where none runs, this command, and it ends when the host is empty.
    Exit status: 0, or 3 when a machine stays.
    """

    async def work() -> int:
        async with _all(inventory_path, lab, config) as everything:
            everything.own.book.host(host)
            words = everything.words
            if dry_run:
                known = journal.known(_folder(state, words))
                known.evacuate[host] = _by()
                return await _look_ahead(everything, known, as_json)
            answer = await _ask("POST", f"/evacuate/{host}", socket, words, none_is_fine=True)
            if answer is not None:
                names = ", ".join(answer["machines"]) or answer["unseen"] or "no machine is there now"
                print(f"the guard empties {host}: {names}; see 'ivc guard status'")
                return 0
            with Journal(_folder(state, words), time.time()) as log:
                guard = everything.guard(log)
                guard.evacuate(host, _by())
                return await _until_empty(guard, everything, host)

    raise typer.Exit(_run(work))


async def _until_empty(guard: Guard, everything: _All, host: str) -> int:
    try:
        while True:
            snapshot = await everything.look(guard.moving())
            left = [machine.name for machine in snapshot.machines if machine.host == host]
            unseen = next((one.unseen for one in snapshot.hosts if one.name == host), "")
            if not left and not unseen and not guard.under_way():
                _say(f"{host} is empty; 'ivc guard cancel {host}' lets machines come again")
                return 0
            plan = await guard.step(snapshot)
            if not plan.moves and not guard.under_way() and not plan.waiting:
                _say(f"on {host} stay {', '.join(left)}" if left else
                     f"whether {host} is empty is not known: {unseen}")  # fmt: skip
                return _ALARM
            await guard.next_end(everything.words.interval)
    finally:
        await guard.give_up("interrupted")


def _by() -> str:
    return os.environ.get("SUDO_USER") or getpass.getuser()


# ---- what is asked of one that runs


async def _ask(
    method: str, path: str, socket: Path | None, words: settings.GuardSettings,
    none_is_fine: bool = False,
) -> Any:  # fmt: skip
    at = socket or Path(words.socket)
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(at))) as session,
            session.request(method, f"http://guard{path}", params={"by": _by()}) as answer,
        ):
            if answer.status == 404:
                raise UsageError(await answer.text())
            if answer.status != 200:
                raise ServiceError(f"the guard at {at}: {await answer.text()}")
            return await answer.json()
    except (aiohttp.ClientConnectorError, FileNotFoundError) as fault:
        if none_is_fine and fault.errno in (errno.ENOENT, errno.ECONNREFUSED):
            return None
        raise ServiceError(
            f"no guard answers at {at}: {fault.strerror}",
            hint="start it: ivc guard run, or ivc-guard.service",
        ) from None
    except aiohttp.ClientError as fault:
        raise ServiceError(f"the guard at {at} has ended in the middle of an answer: {fault}") from None


def _settings(path: Path | None, lab: str | None, config: Path | None) -> settings.GuardSettings:
    """Of guard.toml, where there is one; the inventory need not be readable for that."""
    file = config or inventory.chosen(path, lab).parent / settings.NAME
    return settings.load(file, None).guard


@app.command()
def cancel(
    host: HostName,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    state: StateOption = None,
    socket: SocketOption = None,
) -> None:
    """HOST need not be emptied any more; moves away from it that can be taken back are."""

    async def work() -> int:
        words = _settings(inventory_path, lab, config)
        answer = await _ask("POST", f"/stay/{host}", socket, words, none_is_fine=True)
        if answer is None:
            with Journal(_folder(state, words), time.time()) as log:
                if host not in log.known.evacuate:
                    raise UsageError(f"nobody has asked for {host} to be emptied")
                log.write("stay", time.time(), host=host, why=_by())
        names = ", ".join(answer["cancelled"] if answer else [])
        print(f"{host} need not be emptied any more" + (f"; taken back: {names}" if names else ""))
        return 0

    raise typer.Exit(_run(work))


@app.command()
def retry(
    machine: Annotated[str, typer.Argument(metavar="VM", help="A machine that was not moved.")],
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    state: StateOption = None,
    socket: SocketOption = None,
) -> None:
    """Forget the failed moves of VM: it may be tried again, also where it failed."""

    async def work() -> int:
        words = _settings(inventory_path, lab, config)
        if await _ask("POST", f"/retry/{machine}", socket, words, none_is_fine=True) is None:
            with Journal(_folder(state, words), time.time()) as log:
                if machine not in log.known.tried:
                    raise UsageError(f"no move of {machine} has failed")
                log.write("retry", time.time(), machine=machine)
        print(f"{machine} may be tried again")
        return 0

    raise typer.Exit(_run(work))


@app.command()
def status(
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    socket: SocketOption = None,
    as_json: Json = False,
) -> None:
    """What the guard that runs sees, moves, and waits for.

    Exit status: 0, or 3 when an alarm is on.
    """

    async def work() -> int:
        words = _settings(inventory_path, lab, config)
        told = await _ask("GET", "/status", socket, words)
        if as_json:
            print(json.dumps(told, indent=2))
        else:
            _print_status(told)
        return _ALARM if told["alarms"] else 0

    raise typer.Exit(_run(work))


def _print_status(told: dict[str, Any]) -> None:
    table = Table("host", "health", "machines", "spare", "why", box=None)
    for host in told["hosts"]:
        asked = f"to be emptied ({host['evacuate']})" if host["evacuate"] is not None else ""
        why = "\n".join(text for text in (asked, host["why"], *host["not_spare"]) if text)
        spare = "[green]yes[/]" if host["spare"] else "no"
        table.add_row(host["name"], health.coloured(host["level"]),
                      str(told["machines"].get(host["name"], 0)), spare, escape(why))  # fmt: skip
    Console().print(table)
    for one in told["under_way"]:
        ending = f", being taken back: {one['cancelled']}" if one["cancelled"] else ""
        print(f"moves: {one['machine']} from {one['source']} to {one['target']}: {one['phase']}{ending}")
    for name, reason in told["waiting"].items():
        print(f"waits: {name}: {reason}")
    for alarm in told["alarms"]:
        print(f"ALARM: {alarm['text']}")
    if not told["well"]:
        print(f"the guard has not looked for a while: {told['fault']}")


def _print_plan(plan: Plan, as_json: bool) -> None:
    if as_json:
        print(json.dumps(plan_of(plan), indent=2))
        return
    for move in plan.moves:
        print(f"{move.machine}: from {move.source} to {move.target}, {move.memory >> 20} MiB: {move.why}")
    for name, reason in plan.waiting.items():
        print(f"{name}: {reason}")
    for alarm in plan.alarms:
        print(f"ALARM: {alarm.text}")
    for group, passed in plan.considered.items():
        for one in passed:
            print(f"  {', '.join(group)} not to {one.host}: {one.reason}")
    if not (plan.moves or plan.waiting or plan.alarms):
        print("nothing is to be moved")


@app.command("spares")
def spare_hosts(
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say of each host whether it is spare, or why it is not.

    Exit status: 0 when there is one, 3 when there is none.
    """

    async def work() -> list[Verdict]:
        async with _all(inventory_path, lab, config) as everything:
            return (await everything.read({})).verdicts

    verdicts = asyncio.run(work())
    if as_json:
        print(json.dumps([_spare_json(verdict) for verdict in verdicts], indent=2))
    else:
        _print_spares(verdicts)
    raise typer.Exit(0 if any(verdict.is_spare for verdict in verdicts) else _NO_SPARE)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _print_spares(verdicts: list[Verdict]) -> None:
    table = Table("host", "spare", "processor", "memory", "disk", "covered", "why not", box=None)
    for one in verdicts:
        load = one.load
        answer = "[green]yes[/]" if one.is_spare else "no"
        table.add_row(one.host, answer, _percent(load.cpu), _percent(load.memory),
                      _percent(load.io), f"{100 * load.coverage:.0f} %",
                      escape("\n".join(one.reasons)))  # fmt: skip
    Console().print(table)


def _spare_json(verdict: Verdict) -> dict[str, Any]:
    return {**dataclasses.asdict(verdict), "spare": verdict.is_spare}


@app.command()
def history(
    n: Annotated[int, typer.Option("-n", min=1, help="So many of the last lines.")] = 50,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    state: StateOption = None,
    as_json: Json = False,
) -> None:
    """What the guard has done: the lines of its journal."""
    words = _settings(inventory_path, lab, config)
    lines = list(journal.read(_folder(state, words)))[-n:]
    with contextlib.suppress(BrokenPipeError):
        for line in lines:
            print(json.dumps(line) if as_json else _words(line))


def _words(line: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.get("at", 0)))
    return f"{at} {_WORDS.get(line['kind'], _any)(line)}"


def _any(line: dict[str, Any]) -> str:
    rest = {key: value for key, value in line.items() if key not in ("at", "kind")}
    return f"{line['kind']}: {json.dumps(rest)}"


def _begun(line: dict[str, Any]) -> str:
    move = line["move"]
    return f"{move['machine']} moves from {move['source']} to {move['target']}: {move['why']}"


def _ended(line: dict[str, Any]) -> str:
    where = line["target"] if line["outcome"] == Outcome.MOVED.value else line["source"]
    still = line.get("downtime")
    took = f", stood still for {still * 1000:.0f} ms" if still is not None else ""
    text = f": {line['text']}" if line.get("text") else ""
    return f"{line['machine']} {line['outcome']}, is on {where}{took}{text}"


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "begin": _begun,
    "phase": lambda line: f"{line['machine']}: {line['phase']}",
    "end": _ended,
    "cancel": lambda line: f"{line['machine']} is to stay: {line['why']}",
    "evacuate": lambda line: f"{line['host']} is to be emptied ({line['by']})",
    "stay": lambda line: f"{line['host']} need not be emptied: {line['why']}",
    "retry": lambda line: f"{line['machine']} may be tried again",
    "alarm": lambda line: f"ALARM {line['text']}",
    "calm": lambda line: f"no longer: {line['alarm']} {line['subject']}".rstrip(),
}
