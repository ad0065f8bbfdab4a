"""The part about every MPI: a quick matrix, one version of each, between guests."""

from __future__ import annotations

import os

from ..errors import IvcError, MissingError
from ..lab import lab
from ..matrix import checks, mpis, places, plan
from ..matrix.mpis import Mpi
from ..matrix.results import NOT_RUN, PASS, Cell, Outcome, job_text
from .part import Run, SkipPart


class _Tell(lab.SilentProgress):
    def __init__(self, run: Run) -> None:
        self._run = run

    def step(self, text: str) -> None:
        self._run.log(text)


def _missing(mpi: Mpi) -> str:
    """Why this MPI cannot be asked here; empty when it can. Fetches it the first time."""
    if not mpi.built().exists():
        return f"{mpi.built().name} is not built (./run build)"
    try:
        mpi.environment()
    except MissingError as error:
        return str(error)
    except IvcError as error:
        return f"this MPI cannot be had here: {error}"
    return ""


def _at_hand(run: Run) -> list[Mpi]:
    """Those that the quick matrix is about; what is missing is skipped before any guest is up."""
    found = []
    for mpi in mpis.MPIS:
        if not (mpi.quick or mpi.mpich_suite):
            continue
        if why := _missing(mpi):
            run.skipped(mpi.label, why)
        else:
            found.append(mpi)
    return found


def matrix(run: Run) -> None:
    if os.geteuid() != 0:
        raise SkipPart("a lab needs root: run with sudo")
    chosen = _at_hand(run)
    wanted = plan.make(chosen, places.named([]), checks.PROGRAMS, quick=True)

    def done(cell: Cell, outcome: Outcome) -> None:
        job = job_text(outcome.program, outcome.ranks)
        what = f"{cell.mpi} {cell.version}, place {cell.place}: {job}"
        run.log(f"{what}: {outcome.seconds:.1f} s")
        why = [f"{outcome.status}: {outcome.text}"]
        why += [f"{test}: {reason}" for test, reason in outcome.failures.items()]
        if outcome.program == "mpich-suite" and outcome.status == NOT_RUN:
            run.skipped(what, outcome.text)  # its source cannot be had, or not be built
        else:
            run.check(what, outcome.status == PASS, "\n".join(why))

    try:
        plan.run(wanted, [], plan.Making(_Tell(run), run.log, run.log, done))
    except MissingError as error:
        raise SkipPart(str(error)) from error
