"""`ivc guard`: what the user's words mean, and what is printed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import UsageError
from ..migrate import inventory
from . import alerts, registry, round, settings, spares
from . import judge as judging
from . import webhook as webhooks
from .contract import Context, Level, Reading, Source
from .hostfiles import HostFiles, opened
from .judge import HostState, Rule
from .load import Load, LoadContext, LoadSource
from .past import PastFile, file_for
from .settings import Settings
from .sources.webhook import WebhookSource
from .spares import SpareRule, Verdict

app = typer.Typer(
    no_args_is_help=True,
    help="Health and load of the hosts: which of them fail, which of them are spare.",
)

InventoryOption = Annotated[
    Path | None, typer.Option("--inventory", help="The file that lists the hosts.")
]
Lab = Annotated[str | None, typer.Option(help="The inventory of that lab.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The settings; without it, guard.toml beside the inventory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Name = Annotated[str | None, typer.Argument(metavar="[HOST]", help="Only this host, in detail.")]

#: Exit status by the worst level.
_EXITS = {Level.OK: 0, Level.FAILING: 3, Level.WARNING: 4, Level.UNKNOWN: 5}
_TURN_SECONDS = 0.5
_COLOURS = {
    Level.OK: "green", Level.FAILING: "bold red", Level.WARNING: "yellow", Level.UNKNOWN: "dim",
}  # fmt: skip


@dataclass
class Guard:
    """All that a command works with."""

    book: inventory.Inventory
    settings: Settings
    hosts: list[HostFiles]
    sources: list[Source[Any]]
    load_source: LoadSource[Any]
    past: PastFile

    @property
    def rules(self) -> dict[str, Rule]:
        # A step may come soon after another one, when something has happened.
        own = self.settings
        return round.rules(self.sources, own.hysteresis, own.guard.interval / 4)

    def states(self, readings: Sequence[Reading]) -> dict[str, HostState]:
        """The states of these hosts after a round."""
        after = self.past.take(readings, self.rules)
        return judging.judge([host.name for host in self.hosts], after, self.rules)

    def spares(
        self,
        states: Mapping[str, HostState],
        loads: Mapping[str, Load],
        counted: Mapping[str, spares.Machines],
    ) -> list[Verdict]:
        own = self.settings
        return spares.choose(
            [host.name for host in self.hosts],
            states,
            loads,
            counted,
            SpareRule(own.load.limit, own.load.coverage, own.load.window),
            reserved=[name for name, host in own.hosts.items() if host.reserved],
            twins=round.twins(self.hosts),
        )

    async def load(self, at: float) -> dict[str, Load]:
        self.load_source.context.at = at
        loads = await self.load_source.load(self.hosts, self.settings.load.window)
        return {load.host: load for load in loads}


@asynccontextmanager
async def opened_guard(
    path: Path | None, lab: str | None, config: Path | None, only: str | None = None
) -> AsyncIterator[Guard]:
    chosen = inventory.chosen(path, lab)
    book = inventory.load(chosen)
    names = [only] if only else list(book.hosts)
    hosts = [book.host(name) for name in names]
    if config is not None and not config.exists():
        raise UsageError(f"settings {config}: no such file", hint="see ivc-guard(1)")
    file = config or chosen.parent / settings.NAME
    own = settings.load(file, list(book.hosts))
    past = PastFile(Path(own.state) if own.state else file_for(chosen))
    try:
        async with opened(hosts, own.hosts) as found:
            yield Guard(
                book=book,
                settings=own,
                hosts=found,
                sources=registry.sources(own, Context(past), str(file)),
                load_source=registry.load_source(own, LoadContext(past), str(file)),
                past=past,
            )
    finally:
        past.close()


@app.command()
def health(
    host: Name = None,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Ask every source once, and say how each host is.

    Exit status: 0 all are ok, 3 one is failing, 4 one has a warning, 5 nothing is known of one.
    """

    async def work() -> dict[str, HostState]:
        async with opened_guard(inventory_path, lab, config, host) as guard:
            readings = await round.read(guard.sources, guard.hosts, time.time())
            return guard.states(readings)

    states = asyncio.run(work())
    if as_json:
        print(json.dumps([_health_json(state) for state in states.values()], indent=2))
    elif host:
        _print_host(states[host])
    else:
        _print_hosts(list(states.values()))
    raise typer.Exit(_EXITS[_worst(states)])


def _worst(states: dict[str, HostState]) -> Level:
    """The worst level; a host of which nothing is known is no reason to call all of them good."""
    levels = {state.level for state in states.values()}
    order = (Level.FAILING, Level.WARNING, Level.UNKNOWN, Level.OK)
    return next(level for level in order if level in levels)


def _since(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "-"


def coloured(level: Level) -> str:
    return f"[{_COLOURS[level]}]{level}[/]"


def reasons(state: HostState) -> list[str]:
    """What a line about a host says: what is bad, then what is not known, then what does not agree."""
    if state.level is Level.UNKNOWN:
        return _once([item.state.unknown_text for item in state.unknown])
    bad = [f"{item.key.source}: {item.why}" for item in state.items
           if item.state.level in (Level.FAILING, Level.WARNING)]  # fmt: skip
    silent = _once(
        [f"{item.key.source} unknown since {_since(item.state.unknown_since or 0)}:"
         f" {item.state.unknown_text}" for item in state.silent]
    )  # fmt: skip
    return [*bad, *silent, *(f"contradiction: {text}" for text in state.contradictions)]


def _once(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _print_hosts(states: list[HostState]) -> None:
    table = Table("host", "health", "since", "why", box=None)
    for state in states:
        why = "\n".join(reasons(state))
        table.add_row(state.host, coloured(state.level), _since(state.since), escape(why))
    Console().print(table)
    without = [state.host for state in states if state.unknown and state.level is not Level.UNKNOWN]
    if without:
        shown = ", ".join(without[:5]) + (" and others" if len(without) > 5 else "")
        print(f"some sources have nothing to say of {shown}; 'ivc guard health HOST' says why")


def _print_host(state: HostState) -> None:
    table = Table("source", "item", "health", "since", "what it says", box=None)
    for item in state.items:
        own, text = item.state, item.why.partition(": ")[2]
        if own.unknown_since is not None and own.level is not Level.UNKNOWN:
            text += f" (unknown since {_since(own.unknown_since)}: {own.unknown_text})"
        table.add_row(item.key.source, escape(item.key.item), coloured(own.level),
                      _since(own.since), escape(text))  # fmt: skip
    Console().print(table)
    for contradiction in state.contradictions:
        print(f"contradiction: {contradiction}")
    print(f"{state.host}: {state.level}" + (f" since {_since(state.since)}" if state.since else ""))


def _health_json(state: HostState) -> dict[str, Any]:
    return {
        "host": state.host,
        "level": state.level,
        "since": state.since or None,
        "contradictions": state.contradictions,
        "items": [
            {"source": item.key.source, "item": item.key.item, **dataclasses.asdict(item.state)}
            for item in state.items
        ],
    }


@app.command()
def record(
    every: Annotated[
        float | None, typer.Option(min=1, help="Go on, with a round every so many seconds.")
    ] = None,
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
) -> None:
    """Take a round of readings and of load, and keep them: what health and spares are judged by.

    Spares need samples over the whole window: run it every minute from a timer, or with --every.
    """

    async def work() -> None:
        async with opened_guard(inventory_path, lab, config) as guard:
            while True:
                at = time.time()
                readings, loads = await asyncio.gather(
                    round.read(guard.sources, guard.hosts, at), guard.load(at)
                )
                _tell(guard.states(readings), loads)
                if every is None:
                    return
                await asyncio.sleep(max(0.0, at + every - time.time()))

    asyncio.run(work())


def _tell(states: dict[str, HostState], loads: dict[str, Load]) -> None:
    """A line for each host that is not well."""
    stamp = time.strftime("%H:%M:%S")
    for host, state in states.items():
        if state.level is not Level.OK:
            print(f"{stamp} {host}: {state.level}: {'; '.join(reasons(state))}", flush=True)
    for load in loads.values():
        if load.cpu is None:
            print(f"{stamp} {load.host}: load: {load.text}", flush=True)


@app.command()
def clear(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host that was mended.")],
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
) -> None:
    """Forget what is held against a host: it is judged anew by the next readings."""

    async def work() -> None:
        async with opened_guard(inventory_path, lab, config, host) as guard:
            guard.past.clear(host)

    asyncio.run(work())
    print(f"{host} is judged anew by its next readings")


@app.command()
def webhook(
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS:PORT", help="Where Alertmanager sends its alerts.")
    ] = "127.0.0.1:9095",
    inventory_path: InventoryOption = None,
    lab: Lab = None,
    config: Config = None,
) -> None:
    """Take alerts that Alertmanager sends, for the source 'webhook', until it is interrupted."""
    where = webhooks.address(listen)

    async def work() -> None:
        async with opened_guard(inventory_path, lab, config) as guard:
            source = next((one for one in guard.sources if isinstance(one, WebhookSource)), None)
            if source is None:
                raise UsageError(
                    "the source webhook is not asked, so what is sent would count for nothing",
                    hint="put the line [sources.webhook] into guard.toml",
                )
            token_file = source.options.token_file
            token = settings.secret(token_file, "sources.webhook") if token_file else ""
            with webhooks.server(where, token, lambda sent: _taken(guard, source, sent)) as server:
                host, port = server.server_address[:2]
                print(f"listening on {host!s}:{port}", flush=True)
                server.timeout = _TURN_SECONDS
                while True:
                    server.handle_request()
                    await asyncio.sleep(0)  # Ctrl-C is heard here

    asyncio.run(work())


def _taken(guard: Guard, source: WebhookSource, sent: Sequence[Any]) -> str:
    """Fold in what was sent; in words, what was new to us."""
    source.context.at = time.time()
    guard.states(source.taken(guard.hosts, sent))
    new = alerts.readings(source, source.options, guard.hosts, sent).values()
    return "; ".join(f"{one.host}: {one.item}: {one.level}: {one.text}" for one in new)
