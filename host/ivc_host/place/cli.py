"""`ivc place`: says where ranks or machines should be, writes that for a launcher or does it, and proves it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import outputs
from ..errors import UsageError
from ..profile import figures, measured, model
from ..profile.words import bytes_text, count_text, percent
from . import advice, prove, ranks

_OF_HOST = 16


def place(
    profile_file: Annotated[Path, typer.Argument(metavar="PROFILE", help="What ivc profile wrote.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="With --prove: such as mpiexec -n 4 ./program.")
    ] = None,
    hosts_file: Annotated[
        Path | None,
        typer.Option("--hosts", help="A line for each host or guest: NAME SLOTS [HOST OF THE GUEST [ITS SWITCH]]."),
    ] = None,
    by: Annotated[ranks.What, typer.Option("--by", help="What should not go between hosts.")] = "bytes",
    rankfile: Annotated[Path | None, typer.Option("--rankfile", help="Write it for Open MPI: mpirun --rankfile FILE.")] = None,
    order: Annotated[
        Path | None,
        typer.Option("--order", help="Write a host for each rank: mpiexec -f FILE of MPICH, -machinefile of Intel MPI,"
                     " SLURM_HOSTFILE for srun --distribution=arbitrary."),
    ] = None,
    measured_file: Annotated[
        Path | None,
        typer.Option("--measured", help="A .json of ivc bench run with ivc and tcp: what messages between hosts cost is told in"
                     " seconds, and by no rule of thumb."),
    ] = None,
    prove_it: Annotated[
        bool,
        typer.Option("--prove", help="Run COMMAND in turns as it was and as proposed, and compare the times. {order} and {rankfile}"
                     " in it become the files of --order and --rankfile; without them mpiexec of MPICH and Intel MPI is given"
                     " -machinefile, mpirun of Open MPI 4.1 --rankfile, of 5.0 --map-by rankfile:file= and"
                     " --hostfile."),
    ] = False,
    rounds: Annotated[
        int, typer.Option(min=prove.LEAST_ROUNDS, help="Of --prove: runs of either, after one that does not count.")
    ] = prove.LEAST_ROUNDS,
    as_machines: Annotated[
        bool, typer.Option("--machines", help="Say which virtual machine should move where, instead of ranks.")
    ] = False,
    inventory_path: Annotated[Path | None, typer.Option("--inventory", help="Of --machines: the file that lists the hosts.")] = None,
    lab: Annotated[str | None, typer.Option(help="Of --machines: the inventory of that lab.")] = None,
    apply: Annotated[
        bool, typer.Option("--apply/--dry-run", help="Of --machines: move them, one after the other; or only say what to do.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:  # fmt: skip
    """Say on which hosts the ranks of a job should be, or its machines, so that little goes between hosts."""
    outputs.check(rankfile, order)
    of_ranks = {"--hosts": hosts_file, "--order": order, "--rankfile": rankfile, "--prove": prove_it}
    of_machines = {"--inventory": inventory_path, "--lab": lab, "--apply": apply}
    for name in (name for name, given in (of_ranks if as_machines else of_machines).items() if given):
        raise UsageError(f"{name} is not for --machines" if as_machines else f"{name} is for --machines")
    if prove_it and not command:
        raise UsageError("--prove needs a command to run", hint="ivc place ... --prove -- mpiexec -n 4 ./program")
    if command and not prove_it:
        raise UsageError(f"what is {command[0]} for?", hint="a command goes with --prove")
    profile = model.load(profile_file)
    savings = measured.savings(measured_file) if measured_file else None
    if as_machines:
        _machines(profile, inventory_path, lab, by, savings, apply, as_json)
    elif hosts_file is None:
        raise UsageError("which hosts are there?", hint="name a file with --hosts, or an inventory with --machines")
    else:
        _ranks(profile, hosts_file, by, savings, rankfile, order, command or [], rounds, as_json)


def _ranks(
    profile: model.Profile, hosts_file: Path, by: ranks.What, savings: figures.Savings | None, rankfile: Path | None,
    order: Path | None, command: list[str], rounds: int, as_json: bool,
) -> None:  # fmt: skip
    plan = ranks.make(profile, hosts_file, by)
    if rankfile is not None:
        rankfile.write_text(ranks.rankfile(plan.proposed.guests))
    if order is not None:
        order.write_text(ranks.order(plan.proposed.guests))
    advised = {
        "present": advice.advise(profile, plan.present.hosts, savings),
        "proposed": advice.advise(profile, plan.proposed.hosts, savings),
    }
    if not as_json:
        _show(plan, advised)
    with tempfile.TemporaryDirectory(prefix="ivc-place-") as folder:
        proof = _proof(plan, advised, command, Path(folder)) if command else None
        try:
            if proof is not None:
                proof.run(rounds, lambda text: print(text, file=sys.stderr, flush=True))
        finally:  # whatever has ended the runs, those that are over are told
            if as_json:
                print(json.dumps(_as_dict(plan, advised) | {"proof": proof.as_dict() if proof else None}, indent=1))
            elif proof is not None:
                proof.show(Console(highlight=False))


Advised = dict[str, advice.Advice]


def _proof(plan: ranks.Plan, advised: Advised, command: list[str], folder: Path) -> prove.Proof | None:
    if plan.present == plan.proposed:
        print("ivc: as it was is the best that was found: there is nothing to prove", file=sys.stderr)
        return None
    before, after = advised["present"].seconds, advised["proposed"].seconds
    predicted = before - after if before is not None and after is not None else None
    return prove.Proof(prove.commands(command, plan, folder), predicted)


def _as_dict(plan: ranks.Plan, advised: Advised) -> dict[str, object]:
    def of(side: str, layout: ranks.Layout) -> dict[str, object]:
        return {
            "guests": layout.guests,
            "hosts": [plan.machines[host] for host in layout.hosts],
            "between_hosts": plan.between(layout),
            "between_switches": plan.between_switches(layout),
            "path": advised[side].as_dict(),
        }

    return {
        "by": plan.by,
        "sent": int(plan.traffic.sum()),
        "origin": plan.origin,
        "present": of("present", plan.present),
        "proposed": of("proposed", plan.proposed),
    }


def _show(plan: ranks.Plan, advised: Advised) -> None:
    console = Console(highlight=False)
    sides = [
        Side(name, plan.between(layout), plan.between_switches(layout), advised[key])
        for name, key, layout in ((plan.origin, "present", plan.present), ("as proposed", "proposed", plan.proposed))
    ]
    console.print(_table(f"{len(plan.traffic)} ranks", plan.by, int(plan.traffic.sum()), sides))
    for host, machine in enumerate(plan.machines):
        members = [str(rank) for rank, at in enumerate(plan.proposed.hosts) if at == host]
        more = f", and {len(members) - _OF_HOST} more" if len(members) > _OF_HOST else ""
        console.print(f"{escape(machine)}: {'ranks ' + ', '.join(members[:_OF_HOST]) + more if members else 'none'}", soft_wrap=True)
    _show_paths(console, sides)


@dataclass(frozen=True)
class Side:
    """One placement, as it is told."""

    name: str
    #: Bytes, or messages.
    between_hosts: int
    #: None: there is one.
    between_switches: int | None
    path: advice.Advice


def _table(what: str, by: ranks.What, sent: int, sides: Sequence[Side]) -> Table:
    text = bytes_text if by == "bytes" else count_text
    switched = any(side.between_switches is not None for side in sides)
    table = Table(title=f"{what}, {by} between hosts", title_justify="left")
    for name in ("", by, f"of all {by}", *(["between switches"] if switched else [])):
        table.add_column(name, justify="right" if name else "left")
    for side in sides:
        more = [] if side.between_switches is None else [text(side.between_switches)]
        table.add_row(side.name, text(side.between_hosts), percent(side.between_hosts / (sent or 1)), *more)
    return table


def _show_paths(console: Console, sides: Sequence[Side]) -> None:
    for side in sides:
        share = percent(side.path.share)
        console.print(f"{side.name} {share} of the messages are between hosts: {side.path.text}", soft_wrap=True)


def _machines(
    profile: model.Profile, path: Path | None, lab: str | None, by: ranks.What, savings: figures.Savings | None,
    apply: bool, as_json: bool,
) -> None:  # fmt: skip
    from . import machines  # what it loads to ask hypervisors, placing ranks does without

    book = machines.Book.chosen(path, lab)
    plan = machines.make(profile, book, by)
    world = plan.world
    sides = [
        Side(name, plan.between(at), None, advice.advise(profile, plan.of_ranks(profile, at), savings))
        for name, at in (("as it is", world.present), ("as proposed", plan.proposed))
    ]
    if as_json:
        hosts = [{name: world.hosts[host] for name, host in zip(world.machines, at, strict=True)} for at in (world.present, plan.proposed)]
        present, proposed = (
            {"hosts": at, "between_hosts": side.between_hosts, "path": side.path.as_dict()} for at, side in zip(hosts, sides, strict=True)
        )
        moves = [asdict(move) | {"command": move.command(book)} for move in plan.moves]
        told = {"by": by, "sent": int(plan.traffic.sum()), "present": present, "proposed": proposed, "moves": moves}
        print(json.dumps(told | {"stuck": str(plan.stuck) if plan.stuck else None}), flush=True)  # a line: those of the moves follow
    else:
        console = Console(highlight=False)
        console.print(_table(f"{len(world.machines)} machines", by, int(plan.traffic.sum()), sides))
        _show_paths(console, sides)
        for move in plan.moves:
            console.print(escape(move.command(book)), soft_wrap=True)
        if plan.proposed == world.present:
            console.print("nothing to move: as it is is the best that was found")
    if plan.stuck is not None:
        raise plan.stuck
    if apply:
        machines.apply(plan, book, as_json)
