"""The part about every MPI: a quick matrix, one version of each, between guests."""

from __future__ import annotations

import os

from ..errors import MissingError
from ..lab import lab
from ..matrix import checks, mpis, places, plan
from ..matrix.results import PASS, Cell
from .part import Run, SkipPart


class _Tell(lab.SilentProgress):
    def __init__(self, run: Run) -> None:
        self._run = run

    def step(self, text: str) -> None:
        self._run.log(text)


def matrix(run: Run) -> None:
    if os.geteuid() != 0:
        raise SkipPart("a lab needs root: run with sudo")
    wanted = plan.make(mpis.named([]), places.named([]), checks.PROGRAMS, quick=True)

    def done(cell: Cell) -> None:
        for outcome in cell.outcomes:
            what = f"{cell.mpi} {cell.version}, place {cell.place}: {outcome.program}, " + (
                f"{outcome.ranks} ranks"
            )
            run.check(what, outcome.status == PASS, f"{outcome.status}: {outcome.text}")

    try:
        plan.run(wanted, [], plan.Making(_Tell(run), run.log, run.log, done))
    except MissingError as error:
        raise SkipPart(str(error)) from error
