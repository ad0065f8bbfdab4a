"""`ivc place`: says where ranks should be, and writes that for a launcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import outputs
from ..errors import MissingError, UsageError
from ..profile import model
from ..profile.words import bytes_text, count_text, percent
from . import hosts, solve

_OF_HOST = 16

What = Literal["bytes", "messages"]


def place(
    profile_file: Annotated[Path, typer.Argument(metavar="PROFILE", help="What ivc profile wrote.")],
    hosts_file: Annotated[Path, typer.Option("--hosts", help="A line for each host or guest: NAME SLOTS [HOST OF THE GUEST].")],
    by: Annotated[What, typer.Option("--by", help="What should not go between hosts.")] = "bytes",
    rankfile: Annotated[Path | None, typer.Option("--rankfile", help="Write it for Open MPI: mpirun --rankfile FILE.")] = None,
    order: Annotated[
        Path | None,
        typer.Option("--order", help="Write a host for each rank: mpiexec -f FILE of MPICH, -machinefile of Intel MPI,"
                     " SLURM_HOSTFILE for srun --distribution=arbitrary."),
    ] = None,
) -> None:  # fmt: skip
    """Say on which hosts the ranks of a job should be, so that little goes between hosts."""
    outputs.check(rankfile, order)
    profile = model.load(profile_file)
    places = hosts.read(hosts_file)
    room = sum(one.slots for one in places)
    if room < profile.size:
        raise UsageError(f"{hosts_file} has {room} slots, and the job has {profile.size} ranks", hint="name more hosts")
    machines = list(dict.fromkeys(one.host for one in places))
    slots = [sum(one.slots for one in places if one.host == machine) for machine in machines]
    traffic = _traffic(profile, by)
    present, origin = _present(profile, places, machines, slots)
    try:
        found = solve.solve(traffic, slots, present)
    except ModuleNotFoundError as fault:
        raise MissingError(f"no Scotch: {fault}", hint="pip install scotchpy64") from None
    names = _names(found.placement, places, machines)
    _show(profile, traffic, by, machines, (origin, present), found)
    if rankfile is not None:
        rankfile.write_text(_rankfile(names))
    if order is not None:
        order.write_text("".join(f"{name}\n" for name in names))


def _traffic(profile: model.Profile, by: What) -> Any:
    matrix = np.zeros((profile.size, profile.size), dtype=np.int64)
    for pair in profile.between_ranks():
        matrix[pair.sender, pair.receiver] = pair.bytes if by == "bytes" else pair.messages
    return matrix


def _present(
    profile: model.Profile, places: Sequence[hosts.Place], machines: Sequence[str], slots: Sequence[int]
) -> tuple[solve.Placement, str]:
    """Where the ranks were; where the file does not have those hosts, or no room for it there, block by block."""
    of = {one.name: machines.index(one.host) for one in places}
    known = {one.rank: of[one.host] for one in profile.processes if one.host in of}
    used = Counter(known.values())
    if len(known) == profile.size and all(used[host] <= slots[host] for host in used):
        return [known[rank] for rank in range(profile.size)], "as it was"
    return solve.block(profile.size, slots), "in blocks"


def _names(placement: solve.Placement, places: Sequence[hosts.Place], machines: Sequence[str]) -> list[str]:
    """The guest of each rank: those of one host are filled in their order."""
    free = {machine: [one.name for one in places if one.host == machine for _ in range(one.slots)] for machine in machines}
    return [free[machines[host]].pop(0) for host in placement]


def _rankfile(names: Sequence[str]) -> str:
    """Slots count the processors of a host."""
    next_slot: Counter[str] = Counter()
    lines = []
    for rank, name in enumerate(names):
        lines.append(f"rank {rank}={name} slot={next_slot[name]}\n")
        next_slot[name] += 1
    return "".join(lines)


def _show(
    profile: model.Profile, traffic: Any, by: What, machines: Sequence[str], before: tuple[str, solve.Placement], found: solve.Solution
) -> None:
    console = Console(highlight=False)
    whole = int(traffic.sum())
    text = bytes_text if by == "bytes" else count_text
    table = Table(title=f"{profile.size} ranks, {by} between hosts", title_justify="left")
    for name in ("", by, f"of all {by}"):
        table.add_column(name, justify="right" if name else "left")
    for name, cut in ((before[0], solve.cut(traffic + traffic.T, before[1])), ("as proposed", found.cut)):
        table.add_row(name, text(cut), percent(cut / (whole or 1)))
    console.print(table)
    for host, machine in enumerate(machines):
        ranks = [str(rank) for rank, at in enumerate(found.placement) if at == host]
        more = f", and {len(ranks) - _OF_HOST} more" if len(ranks) > _OF_HOST else ""
        console.print(f"{escape(machine)}: {'ranks ' + ', '.join(ranks[:_OF_HOST]) + more if ranks else 'none'}", soft_wrap=True)
