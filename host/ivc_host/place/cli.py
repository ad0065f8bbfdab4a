"""`ivc place`: says where ranks or machines should be, writes that for a launcher or does it, and proves it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import outputs
from ..errors import UsageError
from ..profile import measured, model
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:  # fmt: skip
    """Say on which hosts the ranks of a job should be, so that little goes between hosts."""
    outputs.check(rankfile, order)
    if prove_it and not command:
        raise UsageError("--prove needs a command to run", hint="ivc place ... --prove -- mpiexec -n 4 ./program")
    if command and not prove_it:
        raise UsageError(f"what is {command[0]} for?", hint="a command goes with --prove")
    if hosts_file is None:
        raise UsageError("which hosts are there?", hint="name a file with --hosts")
    profile = model.load(profile_file)
    savings = measured.savings(measured_file) if measured_file else None
    plan = ranks.make(profile, hosts_file, by)
    if rankfile is not None:
        rankfile.write_text(ranks.rankfile(plan.proposed.guests))
    if order is not None:
        order.write_text(ranks.order(plan.proposed.guests))
    advised = {side: advice.advise(profile, one.hosts, savings) for side, one in (("present", plan.present), ("proposed", plan.proposed))}
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
    whole, sides = int(plan.traffic.sum()) or 1, ((plan.origin, plan.present), ("as proposed", plan.proposed))
    text = bytes_text if plan.by == "bytes" else count_text
    switched = plan.between_switches(plan.present) is not None
    table = Table(title=f"{len(plan.traffic)} ranks, {plan.by} between hosts", title_justify="left")
    for name in ("", plan.by, f"of all {plan.by}", *(["between switches"] if switched else [])):
        table.add_column(name, justify="right" if name else "left")
    for name, layout in sides:
        cut, switches = plan.between(layout), plan.between_switches(layout)
        table.add_row(name, text(cut), percent(cut / whole), *([] if switches is None else [text(switches)]))
    console.print(table)
    for host, machine in enumerate(plan.machines):
        members = [str(rank) for rank, at in enumerate(plan.proposed.hosts) if at == host]
        more = f", and {len(members) - _OF_HOST} more" if len(members) > _OF_HOST else ""
        console.print(f"{escape(machine)}: {'ranks ' + ', '.join(members[:_OF_HOST]) + more if members else 'none'}", soft_wrap=True)
    for (name, _), one in zip(sides, advised.values(), strict=True):
        console.print(f"{name} {percent(one.share)} of the messages are between hosts: {one.text}", soft_wrap=True)
