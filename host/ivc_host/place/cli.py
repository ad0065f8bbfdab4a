"""`ivc place`: says where ranks should be, and writes that for a launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import outputs
from ..profile import model
from ..profile.words import bytes_text, count_text, percent
from . import ranks

_OF_HOST = 16


def place(
    profile_file: Annotated[Path, typer.Argument(metavar="PROFILE", help="What ivc profile wrote.")],
    hosts_file: Annotated[Path, typer.Option("--hosts", help="A line for each host or guest: NAME SLOTS [HOST OF THE GUEST [ITS SWITCH]].")],
    by: Annotated[ranks.What, typer.Option("--by", help="What should not go between hosts.")] = "bytes",
    rankfile: Annotated[Path | None, typer.Option("--rankfile", help="Write it for Open MPI: mpirun --rankfile FILE.")] = None,
    order: Annotated[
        Path | None,
        typer.Option("--order", help="Write a host for each rank: mpiexec -f FILE of MPICH, -machinefile of Intel MPI,"
                     " SLURM_HOSTFILE for srun --distribution=arbitrary."),
    ] = None,
) -> None:  # fmt: skip
    """Say on which hosts the ranks of a job should be, so that little goes between hosts."""
    outputs.check(rankfile, order)
    plan = ranks.make(model.load(profile_file), hosts_file, by)
    _show(plan)
    if rankfile is not None:
        rankfile.write_text(ranks.rankfile(plan.proposed.guests))
    if order is not None:
        order.write_text(ranks.order(plan.proposed.guests))


def _show(plan: ranks.Plan) -> None:
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
