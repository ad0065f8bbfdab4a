"""`ivc place`: says where ranks or machines should be, writes that for a launcher or does it, and proves it."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .. import outputs
from ..errors import UsageError
from ..profile import figures, measured, model
from . import prove, ranks, show


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
        return
    if hosts_file is None:
        raise UsageError("which hosts are there?", hint="name a file with --hosts, or an inventory with --machines")
    plan = ranks.make(profile, hosts_file, by)
    if rankfile is not None:
        rankfile.write_text(ranks.rankfile(plan.proposed.guests))
    if order is not None:
        order.write_text(ranks.order(plan.proposed.guests))
    _ranks(plan, show.of_ranks(profile, plan, savings), command or [], rounds, as_json)


def _ranks(plan: ranks.Plan, sides: show.Sides, command: list[str], rounds: int, as_json: bool) -> None:
    if not as_json:
        show.ranks(plan, sides)
    with tempfile.TemporaryDirectory(prefix="ivc-place-") as folder:
        proof = _proof(plan, sides, command, Path(folder)) if command else None
        try:
            if proof is not None:
                proof.run(rounds, lambda text: print(text, file=sys.stderr, flush=True))
        finally:  # whatever has ended the runs, those that are over are told
            if as_json:
                print(json.dumps(show.ranks_as_dict(plan, sides) | {"proof": proof.as_dict() if proof else None}, indent=1))
            elif proof is not None:
                proof.show(Console(highlight=False))


def _proof(plan: ranks.Plan, sides: show.Sides, command: list[str], folder: Path) -> prove.Proof | None:
    if plan.present == plan.proposed:
        print("ivc: as it was is the best that was found: there is nothing to prove", file=sys.stderr)
        return None
    before, after = (side.path.seconds for side in sides)
    predicted = before - after if before is not None and after is not None else None
    return prove.Proof(prove.commands(command, plan, folder), predicted)


def _machines(
    profile: model.Profile, path: Path | None, lab: str | None, by: ranks.What, savings: figures.Savings | None,
    apply: bool, as_json: bool,
) -> None:  # fmt: skip
    from . import machines  # what it loads to ask hypervisors, placing ranks does without

    book = machines.Book.chosen(path, lab)
    plan = machines.make(profile, book, by)
    sides = show.of_machines(profile, plan, savings)
    if as_json:
        print(json.dumps(show.machines_as_dict(plan, book, sides)), flush=True)  # a line: those of the moves follow
    else:
        show.machines(plan, book, sides)
    if plan.stuck is not None:
        raise plan.stuck
    if apply:
        machines.apply(plan, book, as_json)
