"""Which cells a matrix has, and making them one after the other.

Cells are independent: whatever happens in one is that cell's result, and a place that it has
broken is made anew for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import IvcError, LabError, MissingError
from ..lab import lab
from . import checks, mpis, places
from .checks import Limits, Subject
from .mpis import Mpi
from .places import Ground, Place
from .results import FAIL, NOT_RUN, Cell, Outcome


@dataclass(frozen=True)
class Task:
    """One cell to be made: which programs, each on how many ranks."""

    mpi: Mpi
    place: Place
    way: str
    jobs: tuple[tuple[str, int], ...]
    #: The name that the cell is kept under: without us, MPIs of one baseline share a cell.
    name: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.place.key, self.way


@dataclass
class Plan:
    tasks: list[Task]
    quick: bool = False
    limits: Limits = field(default_factory=Limits)


def _jobs(place: Place, names: Iterable[str], quick: bool) -> tuple[tuple[str, int], ...]:
    ranks = place.ranks[:1] if quick else place.ranks
    jobs = [("integrity", n) for n in ranks] + [("latency", ranks[0])]
    jobs += [] if quick else [("suite", n) for n in ranks]
    return tuple(job for job in jobs if job[0] in set(names))


def _quick(mpi: Mpi, place: Place) -> bool:
    """One version of each MPI in the first place, the newest MPICH in the others."""
    return mpi.quick and (place.key == "one" or mpi.key == "mpich")


def make(
    chosen: Iterable[Mpi],
    where: Iterable[Place],
    names: Iterable[str],
    *,
    quick: bool = False,
    own: bool = True,
) -> Plan:
    """The plan, in the order of work: one place after the other, without us first."""
    chosen, names = list(chosen), list(names)
    tasks: list[Task] = []
    for place in where:
        if place.key == "one" and own and not quick:
            by_name = {mpi.baseline: mpi for mpi in chosen}
            jobs = _jobs(place, names, quick)
            tasks += [Task(mpi, place, mpis.OWN, jobs, name) for name, mpi in by_name.items()]
        for mpi in chosen:
            if not quick or _quick(mpi, place):
                tasks.append(Task(mpi, place, mpis.IVC, _jobs(place, names, quick), mpi.key))
    return Plan(tasks, quick)


@dataclass
class Making:
    """What is told and noted while a matrix is made."""

    progress: lab.UpProgress
    count: Callable[[str], None]
    log: Callable[[str], None]
    done: Callable[[Cell], None]


def _not_run(task: Task, version: str, why: str) -> Cell:
    outcomes = [Outcome(name, ranks, NOT_RUN, why) for name, ranks in task.jobs]
    return Cell(task.name, version, task.place.key, task.way, outcomes)


def _own(cells: Iterable[Cell], task: Task, ranks: int) -> Outcome | None:
    for cell in cells:
        if cell.way == mpis.OWN and cell.mpi == task.mpi.baseline:
            return cell.find("suite", ranks)
    return None


def _cell(plan: Plan, task: Task, ground: Ground, cells: list[Cell], making: Making) -> Cell:
    """Raises LabError when the guests are beyond use; what was done so far is lost then."""
    environment = task.mpi.environment()
    if task.way == mpis.IVC and not (file := Path(task.mpi.built())).exists():
        return _not_run(task, environment.version, f"{file.name} is not built")
    subject = Subject(
        task.mpi, environment, task.way, ground, plan.limits, plan.quick, making.log
    )
    cell = Cell(task.name, environment.version, task.place.key, task.way)
    for name, ranks in task.jobs:
        making.count(f"{task.place.key}: {task.mpi.label}, {task.way}: {name}, {ranks} ranks")
        outcome = checks.PROGRAMS[name](subject, ranks)
        if task.way == mpis.IVC:
            checks.judge_suite(outcome, _own(cells, task, ranks))
        cell.outcomes.append(outcome)
    return cell


def _safely(plan: Plan, task: Task, ground: Ground, cells: list[Cell], making: Making) -> Cell:
    try:
        return _cell(plan, task, ground, cells, making)
    except LabError:
        raise
    except IvcError as error:
        making.log(f"{task.mpi.label}: {error}\n{error.detail or ''}")
        return _not_run(task, "", str(error))


def _place(plan: Plan, tasks: list[Task], cells: list[Cell], making: Making) -> None:
    """The cells of one place; a lab that breaks is replaced, and its cell has failed."""
    waiting = list(tasks)
    while waiting:
        with places.ground(waiting[0].place, making.progress) as ground:
            while waiting:
                task = waiting.pop(0)
                broken = False
                try:
                    cell = _safely(plan, task, ground, cells, making)
                except LabError as error:
                    broken = True
                    making.log(f"{error}\n{error.detail or ''}")
                    cell = _not_run(task, "", f"the guests broke: {error}")
                    for outcome in cell.outcomes:
                        outcome.status = FAIL
                cells.append(cell)
                making.done(cell)
                if broken:
                    break


def run(plan: Plan, cells: list[Cell], making: Making) -> list[Cell]:
    """Make the cells that `cells` does not have yet; returns all of them."""
    have = {cell.key for cell in cells}
    tasks = [task for task in plan.tasks if task.key not in have]
    for place in {task.place: None for task in tasks}:
        mine = [task for task in tasks if task.place == place]
        try:
            _place(plan, mine, cells, making)
        except MissingError:
            raise
        except LabError as error:  # the place did not come up
            making.log(f"{error}\n{error.detail or ''}")
            made = {cell.key for cell in cells}
            for task in mine:
                if task.key not in made:
                    cells.append(_not_run(task, "", f"{place.label}: {error}"))
                    making.done(cells[-1])
    return cells
