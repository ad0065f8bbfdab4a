"""Which jobs a matrix has, and doing them one after the other.

Jobs are independent: whatever happens in one is that job's result, and a place that it has broken
is made anew for the next. What has a result already is not done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import IvcError, LabError, MissingError
from ..lab import lab
from . import checks, mpis, places
from .checks import Limits, Subject
from .ground import Ground
from .mpis import Mpi
from .places import Place
from .results import EACH, FAIL, NOT_RUN, Cell, Outcome, job_text


@dataclass(frozen=True)
class Task:
    """One job to be done: a program on so many ranks."""

    mpi: Mpi
    place: Place
    way: str
    program: str
    ranks: int

    @property
    def name(self) -> str:
        """The name that its cell is kept under: without us, MPIs of one baseline share it."""
        return self.mpi.key if self.way == mpis.IVC else self.mpi.baseline

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.place.key, self.way

    def __str__(self) -> str:
        return f"{self.place.key}: {self.mpi.label}, {self.way}: {job_text(self.program, self.ranks)}"


@dataclass
class Plan:
    tasks: list[Task]
    quick: bool = False
    limits: Limits = field(default_factory=Limits)


def _jobs(mpi: Mpi, place: Place, way: str) -> list[tuple[str, int]]:
    integrity = [("integrity", n) for n in place.ranks]
    suite = [("suite", n) for n in place.ranks]
    if not place.here:
        return [*integrity, ("latency", place.ranks[0]), *suite]
    mpich = [("mpich-suite", EACH)] if mpi.mpich_suite else []
    if way == mpis.OWN:  # asked for one thing: which tests fail without us
        return suite + mpich
    return integrity + mpich if mpich else []


def _quick_jobs(mpi: Mpi, place: Place, way: str) -> list[tuple[str, int]]:
    """One version of each MPI: every byte, by memory, by network and by both; some of MPICH's tests."""
    if way == mpis.OWN:
        return []
    if place.here:
        # MPICH starts a job in a tenth of a second, Open MPI takes 1.5 s for each of the tests.
        return [("mpich-suite", EACH)] if mpi.mpich_suite and mpi.abi == "mpich" else []
    return [("integrity", place.ranks[0])] if mpi.quick else []


def make(
    chosen: Iterable[Mpi],
    where: Iterable[Place],
    names: Collection[str],
    *,
    quick: bool = False,
    own: bool = True,
    ranks: Collection[int] = (),
) -> Plan:
    """The plan, in the order of work: one place after the other, without us first."""
    chosen = list(chosen)
    tasks: list[Task] = []
    for place in where:
        without = {mpi.baseline: mpi for mpi in chosen}.values() if place.here and own else ()
        for way, mpi in [*((mpis.OWN, mpi) for mpi in without), *((mpis.IVC, mpi) for mpi in chosen)]:
            tasks += [
                Task(mpi, place, way, name, n)
                for name, n in (_quick_jobs if quick else _jobs)(mpi, place, way)
                if name in names and (not ranks or n in ranks)
            ]
    return Plan(tasks, quick)


@dataclass
class Making:
    """What is told and noted while a matrix is made."""

    progress: lab.UpProgress
    count: Callable[[str], None]
    log: Callable[[str], None]
    done: Callable[[Cell, Outcome], None]
    #: The version of our tree.
    tree: str = ""


def judge(cells: Collection[Cell]) -> None:
    """Each suite through us against the same without us, as far as that is there."""
    own = {cell.mpi: cell for cell in cells if cell.way == mpis.OWN}
    baselines = {mpi.key: own[mpi.baseline] for mpi in mpis.MPIS if mpi.baseline in own}
    for cell in cells:
        baseline = baselines.get(cell.mpi) if cell.way == mpis.IVC else None
        for outcome in cell.outcomes:
            if outcome.program in checks.SUITES and outcome.status != NOT_RUN:
                without = baseline.find(outcome.program, outcome.ranks) if baseline else None
                checks.judge_suite(outcome, cell.mpi, without)


def _keep(cells: list[Cell], task: Task, version: str, outcome: Outcome, making: Making) -> None:
    cell = next((cell for cell in cells if cell.key == task.key), None)
    if cell is None:
        cell = Cell(task.name, version, task.place.key, task.way)
        cells.append(cell)
    cell.version = version or cell.version
    outcome.day, outcome.tree = time.strftime("%Y-%m-%d", time.gmtime()), making.tree
    cell.outcomes.append(outcome)
    judge(cells)
    making.done(cell, outcome)


def _job(plan: Plan, task: Task, ground: Ground, making: Making) -> tuple[str, Outcome]:
    """The MPI's version, and what became of the job. Raises LabError when the guests broke."""
    version = ""
    try:
        environment = task.mpi.environment()
        version = environment.version
        if task.way == mpis.IVC and not (file := Path(task.mpi.built())).exists():
            why = f"{file.name} is not built"
            return version, Outcome(task.program, task.ranks, NOT_RUN, why)
        subject = Subject(
            task.mpi, environment, task.way, ground, plan.limits, plan.quick, making.log
        )
        return version, checks.PROGRAMS[task.program](subject, task.ranks)
    except LabError:
        raise
    except IvcError as error:
        making.log(f"{task}: {error}\n{error.detail or ''}")
        return version, Outcome(task.program, task.ranks, NOT_RUN, str(error))


def _place(plan: Plan, waiting: list[Task], cells: list[Cell], making: Making) -> None:
    """The jobs of one place; a lab that breaks is replaced, and its job has failed."""
    while waiting:
        with places.ground(waiting[0].place, making.progress) as ground:
            while waiting:
                task = waiting.pop(0)
                making.count(str(task))
                try:
                    version, outcome = _job(plan, task, ground, making)
                except LabError as error:
                    making.log(f"{task}: {error}\n{error.detail or ''}")
                    outcome = Outcome(task.program, task.ranks, FAIL, f"the guests broke: {error}")
                    _keep(cells, task, "", outcome, making)
                    break
                _keep(cells, task, version, outcome, making)


def run(plan: Plan, cells: list[Cell], making: Making) -> list[Cell]:
    """Do the jobs that `cells` has no result of yet; returns all cells."""
    have = {(cell.key, o.program, o.ranks) for cell in cells for o in cell.outcomes}
    tasks = [task for task in plan.tasks if (task.key, task.program, task.ranks) not in have]
    for place in {task.place: None for task in tasks}:
        waiting = [task for task in tasks if task.place == place]
        try:
            _place(plan, waiting, cells, making)
        except MissingError:
            raise
        except LabError as error:  # the place did not come up
            making.log(f"{error}\n{error.detail or ''}")
            for task in waiting:
                outcome = Outcome(task.program, task.ranks, NOT_RUN, f"{place.label}: {error}")
                _keep(cells, task, "", outcome, making)
    return cells
