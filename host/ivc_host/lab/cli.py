"""`ivc lab`: the commands; everything they do is in lab.py."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from ..errors import UsageError
from . import hosts as lab_hosts
from . import lab as labs
from . import state

app = typer.Typer(no_args_is_help=True, help="Virtual machines on this host, to try ivc with.")

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _complete_name(incomplete: str) -> list[str]:
    return [name for name in state.names() if name.startswith(incomplete)]


Name = Annotated[str, typer.Option(help="Which lab.", autocompletion=_complete_name)]
#: Who has an address and a console.
_MEMBER = "g1, g2, ...; with xen also a host: h1, h2, ..."
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_size(text: str) -> int:
    """Bytes from words such as 64M, 1G, 512MiB or a plain number."""
    found = re.fullmatch(r"(\d{1,19})\s*([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise UsageError(f"{text!r} is not a size", hint="write it like 64M or 1G")
    n_bytes = int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2].upper()]
    if n_bytes >= 1 << 63:
        raise UsageError(f"{text}: nothing can be that large")
    return n_bytes


def _numbers(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"{text!r} is no list of hosts", hint="write it like 1,1,2")
    return [int(word) for word in text.split(",")]


class _LiveProgress:
    """A line per guest that changes on a terminal; plain lines elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._text = "starting"
        self._guests: dict[str, str] = {}
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)

    def __enter__(self) -> _LiveProgress:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        if self._console.is_terminal:
            self._live.stop()

    def step(self, text: str) -> None:
        self._text = text
        self._show(text)

    def guest(self, name: str, text: str) -> None:
        self._guests[name] = text
        self._show(f"{name}: {text}")

    def _show(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, highlight=False)
            return
        table = Table.grid(padding=(0, 1))
        table.add_row(Spinner("dots"), self._text)
        for name, text in self._guests.items():
            table.add_row("", f"{name}: {text}")
        self._live.update(table)


def _mpi_with_ivc(option: str, guests: Sequence[str]) -> str:
    """A command that runs Open MPI through ivc, for a shell."""
    settings = "$(ivc env openmpi --plugin --stats)"
    return f'ivc lab ssh{option} {guests[0]} "{settings}; mpirun -np {len(guests)} $PWD/PROGRAM"'


@app.command()
def up(
    guests: Annotated[int, typer.Option(help="How many guests.")] = 2,
    hypervisor: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(labs.HYPERVISORS)}.", autocompletion=lambda: list(labs.HYPERVISORS)
        ),
    ] = "uml",
    name: Name = state.DEFAULT_NAME,
    region_size: Annotated[
        str, typer.Option(help="Size of the shared region, a power of two; xen has none.")
    ] = "64M",
    no_region: Annotated[bool, typer.Option("--no-region", help="No shared region.")] = False,
    memory: Annotated[str | None, typer.Option(help="Memory of a guest, such as 512M.")] = None,
    hosts: Annotated[
        int, typer.Option(help="Deal the guests to that many hosts, with a region each.")
    ] = 1,
    place: Annotated[
        str | None, typer.Option(help="The host of each guest, such as 1,1,2, instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring a lab up: guests with a network among them and, but for xen, a shared region."""
    with _LiveProgress() as progress:
        lab = labs.up(
            name,
            guests,
            hypervisor,
            region_size=None if no_region else parse_size(region_size),
            memory_mb=parse_size(memory) >> 20 if memory else None,
            hosts=hosts,
            place=_numbers(place) if place else None,
            progress=progress,
        )
    if as_json:
        print(json.dumps(_describe(lab.record), indent=2))
        return
    print(f"lab {name} is up: {', '.join(lab.guests)} ({lab.guest_description()})")
    option = "" if name == state.DEFAULT_NAME else f" --name {name}"
    print(f"  log in:    ivc lab ssh{option} {lab.guests[0]}")
    print(f"  run MPI:   {_mpi_with_ivc(option, lab.guests)}")
    print(f"  take down: ivc lab down{option}")


@app.command(context_settings=_PASS_ON)
def ssh(
    context: typer.Context,
    guest: Annotated[str, typer.Argument(help=_MEMBER)],
    name: Name = state.DEFAULT_NAME,
) -> None:
    """Log in to a guest, or run a command there: ivc lab ssh g1 [COMMAND...]."""
    lab = labs.attach(name)
    words = context.args
    terminal = ("-t",) if words and sys.stdin.isatty() and sys.stdout.isatty() else ()
    argv = lab.ssh_argv(guest, " ".join(words) if words else None, terminal)
    os.execvp(argv[0], argv)


@app.command(context_settings=_PASS_ON)
def mpirun(context: typer.Context, name: Name = state.DEFAULT_NAME) -> None:
    """Run mpirun in the first guest over all guests, without ivc; every word is passed on to it.

    It is Open MPI as the system has it, over the guests' network. With ivc:

    ivc lab ssh g1 "$(ivc env openmpi --plugin --stats); mpirun -np 2 $PWD/PROGRAM"

    The current directory is the working directory where the guests have it too.
    """
    if context.args == ["--help"]:
        print(context.get_help())
        return
    if not context.args:
        raise UsageError("mpirun needs a program", hint="try: ivc lab mpirun -np 2 hostname")
    lab = labs.attach(name)
    done = lab.run(
        lab.guests[0],
        ["mpirun", *context.args],
        {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        cwd=Path.cwd(),
        capture=False,
    )
    raise typer.Exit(done.returncode)


@app.command(context_settings=_PASS_ON)
def cp(context: typer.Context, name: Name = state.DEFAULT_NAME) -> None:
    """Copy files from or to guests, as scp does: ivc lab cp g1:/tmp/out.txt ."""
    if len(context.args) < 2:
        raise UsageError("cp needs a source and a target", hint="try: ivc lab cp g1:/tmp/out.txt .")
    argv = labs.attach(name).copy_argv(context.args)
    os.execvp(argv[0], argv)


@app.command()
def console(
    guest: Annotated[str, typer.Argument(help=_MEMBER)], name: Name = state.DEFAULT_NAME
) -> None:
    """Print what a guest's console has shown."""
    sys.stdout.write(labs.attach(name).console(guest).read_text(errors="replace"))


@app.command()
def down(
    name: Name = state.DEFAULT_NAME,
    everything: Annotated[bool, typer.Option("--all", help="Every lab of this machine.")] = False,
) -> None:
    """Take a lab down; nothing of it is left."""
    if everything:
        gone = labs.down_all()
        print(f"taken down: {', '.join(gone)}" if gone else "there is no lab")
        return
    labs.down(name)
    print(f"lab {name} is down")


@app.command()
def incoming(
    guest: Annotated[str, typer.Argument(help="g1, g2, ...")],
    host: Annotated[str, typer.Argument(help="h1, h2, ...")],
    name: Name = state.DEFAULT_NAME,
) -> None:
    """Start the QEMU that takes a guest in on another host; `ivc migrate` does the rest."""
    record = labs.attach(name).record
    mechanism = labs.hypervisor_named(record.hypervisor)
    print(lab_hosts.receive(name, guest, host, mechanism))


@app.command("list")
def list_labs(as_json: Json = False) -> None:
    """List the labs of this machine and their guests."""
    records = labs.listing()
    if as_json:
        print(json.dumps([_describe(record) for record in records], indent=2))
        return
    if not records:
        print("there is no lab; bring one up with: ivc lab up")
        return
    table = Table("lab", "state", "hypervisor", "region", "guests", box=None)
    for record in records:
        guests = ", ".join(
            guest.name if guest.alive() else f"{guest.name} (dead)" for guest in record.guests
        )
        size = f" {record.region_size >> 20}M"
        region = ", ".join(path + size for path in record.regions) or "none"
        table.add_row(record.name, record.status(), record.hypervisor, region, guests)
    Console().print(table)


def _describe(record: state.LabRecord) -> dict[str, object]:
    def member(one: state.HostRecord | state.GuestRecord) -> dict[str, object]:
        return {
            "name": one.name,
            "address": one.address,
            "alive": one.alive(),
            "pids": [process.pid for process in one.processes],
            "console": str(record.directory / one.name / "console.log"),
        }

    return {
        "name": record.name,
        "state": record.status(),
        "hypervisor": record.hypervisor,
        "region": record.region,
        "regions": record.regions,
        "region_size": record.region_size,
        "memory_mb": record.memory_mb,
        "migrates": record.migrates,
        "inventory": str(record.inventory) if record.inventory.exists() else None,
        "directory": str(record.directory),
        "guests": [
            {**member(guest), "host": guest.host, "uuid": guest.uuid} for guest in record.guests
        ],
        "hosts": [member(machine) for machine in record.machines],
    }
