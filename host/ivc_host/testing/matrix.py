"""The part about every MPI: a quick matrix, one version of each, between guests."""

from __future__ import annotations

import os

from ..errors import MissingError
from ..lab import lab
from ..matrix import checks, mpis, places, plan
from ..matrix.results import PASS, Cell, Outcome
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

    def done(cell: Cell, outcome: Outcome) -> None:
        what = f"{cell.mpi} {cell.version}, place {cell.place}: {outcome.program}"
        what += f", {outcome.ranks} ranks"
        why = [f"{outcome.status}: {outcome.text}"]
        why += [f"{test}: {reason}" for test, reason in outcome.failures.items()]
        run.check(what, outcome.status == PASS, "\n".join(why))

    try:
        plan.run(wanted, [], plan.Making(_Tell(run), run.log, run.log, done))
    except MissingError as error:
        raise SkipPart(str(error)) from error
