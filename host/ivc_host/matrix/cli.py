"""`ivc matrix`: every MPI in every place, or some of it; closes with a table."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .. import outputs, paths
from ..bench import machine
from ..bench.progress import Steps
from ..errors import UsageError
from . import checks, mpis, places, plan, results, table
from .results import Cell, Outcome

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Every MPI between guests on one host and on two: integrity, latency, mpi4py's and MPICH's tests.",
)


def _list(wanted: plan.Plan) -> None:
    for task in wanted.tasks:
        job = task.program + (f" on {task.ranks}" if task.ranks != results.EACH else "")
        print(f"{task.place.key:4} {task.way:4} {task.name:19} {job}")


def _plan(
    only: list[str], place: list[str], program: list[str], ranks: list[int], quick: bool, own: bool
) -> plan.Plan:
    for name in program:
        if name not in checks.PROGRAMS:
            known = ", ".join(checks.PROGRAMS)
            raise UsageError(f"no program named {name!r}", hint=f"choose among {known}")
    known_ranks = sorted({n for one in places.PLACES for n in one.ranks})
    for n in ranks:
        if n not in known_ranks:
            raise UsageError(f"{n} ranks", hint=f"choose {' or '.join(map(str, known_ranks))}")
    names = program or list(checks.PROGRAMS)
    chosen, where = mpis.named(only), places.named(place)
    made = plan.make(chosen, where, names, quick=quick, own=own, ranks=ranks)
    if not made.tasks:
        raise UsageError("no cell fits all that was chosen", hint="--list without it shows what there is")
    return made


def make(wanted: plan.Plan, cells: list[Cell], keep: Callable[[], None]) -> list[Cell]:
    """Make the cells, with progress on the error output; the log is in build/test-logs. Each result
    that has come is kept at once."""
    logs = paths.build() / "test-logs"
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        log = stack.enter_context((logs / "matrix-jobs.log").open("w", errors="replace"))
        steps = stack.enter_context(Steps(len(wanted.tasks)))

        def note(text: str) -> None:
            log.write(text + "\n")
            log.flush()

        def done(cell: Cell, outcome: Outcome) -> None:
            del cell, outcome
            keep()

        return plan.run(wanted, cells, plan.Making(steps, steps.count, note, done, _tree()))


@app.callback(invoke_without_command=True)
def matrix(
    only: Annotated[list[str] | None, typer.Option(help="This MPI; may be given again.")] = None,
    place: Annotated[
        list[str] | None, typer.Option(help="This place: here, one, two or mix.")
    ] = None,
    program: Annotated[
        list[str] | None, typer.Option(help="This program: integrity, latency, suite or mpich-suite.")
    ] = None,
    ranks: Annotated[list[int] | None, typer.Option(help="On so many ranks: 2 or 4.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="What CI runs: a few minutes.")] = False,
    own: Annotated[bool, typer.Option(help="Also each MPI without us, in the place here.")] = True,
    show: Annotated[bool, typer.Option("--list", help="List the cells, run nothing.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every result to this file.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep the results that the file of --json has.")
    ] = False,
    write: Annotated[Path | None, typer.Option(help="Write the table to this page.")] = None,
) -> None:
    """Run the matrix. Exit code 1 when a cell through ivc did not pass."""
    wanted = _plan(only or [], place or [], program or [], ranks or [], quick, own)
    if show:
        _list(wanted)
        return
    if resume and json_file is None:
        raise UsageError("--resume needs a file", hint="add: --json FILE")
    outputs.check(json_file, write)
    console = Console()
    if not console.is_terminal:
        console.width = 140  # a file has no edge to wrap at
    begin = time.monotonic()
    cells = results.load(json_file) if resume and json_file else []
    whole = _plan([], [], [], [], quick=False, own=True).tasks
    files = [f"--json {json_file} --resume"] if json_file else []
    command = " ".join(["./run matrix", *files, f"--write {write}"])
    where = machine.line()

    def keep() -> None:
        if json_file is not None:
            results.save(json_file, cells)
        if write is not None:
            write.write_text(table.markdown(cells, whole, command, where))

    plan.judge(cells)
    make(wanted, cells, keep)
    keep()
    table.show(cells, console)
    bad = results.failed(cells)
    passed = sum(len(cell.outcomes) for cell in cells if cell.way == mpis.IVC) - len(bad)
    print(f"{passed} passed, {len(bad)} failed or not run; {time.monotonic() - begin:.0f} s")
    if write is not None:
        print(f"written: {write}")
    raise typer.Exit(1 if bad else 0)


def _tree() -> str:
    """The version of ours; empty without git, or in an unpacked archive."""
    ask = ["git", "-C", str(paths.project()), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""
