"""What a move costs a program, step by step: LAMMPS in guests of QEMU, one of which moves at a random step.

LAMMPS prints a line for each step, with the time since the first one by its own clock. That is the
clock of rank 0, whose guest stays where it is; when a line is seen here, the two clocks are compared.
The guest that moves lands on another host of the lab, so its rank goes on over the network. The
migration takes a network of its own, or that of the ranks (wire.py).
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .. import openmpi
from ..errors import IvcError
from ..lab import lab as labs
from ..lab.hosts import host_name
from ..lab.job import Job
from ..moves import Move, move
from . import programs, wire
from .places import PATHS, MpiPath
from .programs import BenchError
from .progress import Steps
from .wire import Net

HOME, AWAY = 1, 2
#: Paths between the ranks: `tcp` is what the same move costs without ivc.
SIDES = {
    "ivc": MpiPath("ivc", "ivc", {"pml": "ob1", "btl": "ivc,self", "btl_ivc_network": "1"}),
    "tcp": PATHS["tcp"],
}
#: The move is asked for in this part of the steps, so that there are enough before and after it.
_MOVES_IN = (0.15, 0.35)
#: A step that takes longer than so many times the median is one that the move touched.
TOUCHED = 1.2
_START_S, _RUN_S, _POLL_S = 180.0, 600.0, 0.02

#: LAMMPS's own example `melt`, larger, and with a line for each step.
_INPUT = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 {cells} 0 {cells} 0 {cells}
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287 loop geom
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo_style custom step cpu etotal
thermo_modify flush yes
thermo 1
run {steps}
"""
_LINE = re.compile(r"^ *(\d+) +(\d[\d.e+-]*) +(-?\d[\d.e+-]*) *$", re.M)


@dataclass
class Plan:
    """What the user asked for."""

    sides: Sequence[str]
    #: That the migration takes.
    nets: Sequence[Net]
    steps: int
    cells: int
    guests: int
    rounds: int
    seed: int

    def runs(self) -> int:
        return self.rounds * len(self.sides) * (1 + len(self.nets))

    def write_input(self, folder: Path) -> Path:
        path = folder / "in.steps"
        path.write_text(_INPUT.format(cells=self.cells, steps=self.steps))
        return path


def parse(output: str) -> tuple[list[float], list[str]]:
    """When each step had ended, from 0 of LAMMPS's own clock, and the energy then."""
    found = _LINE.findall(output)
    if [int(number) for number, _, _ in found] != list(range(len(found))):
        raise BenchError("LAMMPS left a step out", detail=output[-800:])
    return [float(at) for _, at, _ in found], [energy for _, _, energy in found]


@dataclass(frozen=True)
class Trip:
    """A move, on the clock of the program."""

    step: int
    begin: float
    end: float
    #: How long the guest stood still, as the hypervisor says.
    down: float
    bytes: int


@dataclass(frozen=True)
class Result:
    """One execution."""

    side: str
    #: None: nobody moved.
    net: Net | None
    ends: list[float]
    energies: list[str]
    trip: Trip | None = None

    @property
    def total(self) -> float:
        return self.ends[-1] - self.ends[0]

    def times(self) -> list[float]:
        """How long each step took."""
        return [after - before for before, after in zip(self.ends, self.ends[1:])]

    def usual(self) -> float:
        """The median step of those outside of the move."""
        outside = [
            end - begin
            for begin, end in zip(self.ends, self.ends[1:])
            if not self.trip or end < self.trip.begin or begin > self.trip.end
        ]
        return statistics.median(outside or self.times())

    def touched(self) -> int:
        usual = self.usual()
        return sum(one > TOUCHED * usual for one in self.times())


@dataclass(frozen=True)
class Cost:
    """Medians of the runs of one kind; seconds are those that the move added."""

    side: str
    net: Net
    seconds: float
    percent: float
    touched: float
    #: Steps that count as touched in a run in which nobody moved.
    touched_still: float
    longest: float
    usual: float
    down: float
    bytes: float
    took: float


@dataclass
class Costs:
    """What was measured."""

    plan: Plan
    guest: str
    results: list[Result] = field(default_factory=list)

    def of(self, side: str, net: Net | None) -> list[Result]:
        return [one for one in self.results if (one.side, one.net) == (side, net)]

    def check(self) -> None:
        """All runs are of the same physics, to the digits that are printed."""
        for one in self.results[1:]:
            if one.energies != self.results[0].energies:
                raise BenchError(
                    f"LAMMPS over {one.side} printed other energies than in the first run",
                    hint="this is a defect: please report it with the file of results",
                )

    def cost(self, side: str, net: Net) -> Cost:
        still, moved = self.of(side, None), self.of(side, net)
        trips = [one.trip for one in moved if one.trip]
        before = statistics.median(one.total for one in still)
        seconds = statistics.median(one.total for one in moved) - before
        return Cost(
            side,
            net,
            seconds,
            100 * seconds / before,
            statistics.median(one.touched() for one in moved),
            statistics.median(one.touched() for one in still),
            statistics.median(max(one.times()) for one in moved),
            statistics.median(one.usual() for one in moved),
            statistics.median(one.down for one in trips),
            statistics.median(one.bytes for one in trips),
            statistics.median(one.end - one.begin for one in trips),
        )

    def costs(self) -> list[Cost]:
        return [self.cost(side, net) for side in self.plan.sides for net in self.plan.nets]

    def as_dict(self) -> dict[str, object]:
        return {
            "plan": asdict(self.plan),
            "guest": self.guest,
            "costs": [asdict(one) for one in self.costs()],
            "results": [asdict(one) for one in self.results],
        }


def _wait_for_step(job: Job, step: int, offset: float) -> float:
    """Returns once LAMMPS has printed that step; `offset`: of this host's clock to LAMMPS's, at most."""
    seen = 0
    end = time.monotonic() + _RUN_S
    while seen <= step and job.running():
        if time.monotonic() > end:
            raise BenchError(f"LAMMPS has not come to step {step} after {_RUN_S:.0f} s")
        now = time.time()
        found = _LINE.findall(job.output())
        if len(found) > seen:
            seen = len(found)
            offset = min(offset, now - float(found[-1][1]))
        time.sleep(_POLL_S)
    return offset


class Ground:
    """The lab, and how LAMMPS is run in it."""

    def __init__(self, lab: labs.Lab, plan: Plan, source: Path, steps: Steps) -> None:
        self._lab, self._plan, self._source, self._steps = lab, plan, source, steps
        self._dice = random.Random(plan.seed)
        done = lab.run(lab.guests[0], openmpi.ASK_FOLDER, timeout=120)
        programs.check(done, "ompi_info in a guest")
        self._components = openmpi.component_path(done.stdout)

    def _job(self, side: str) -> Job:
        path = SIDES[side]
        mca = {"mca_base_component_path": self._components, **path.mca}
        argv = ["env", "-C", str(self._source.parent), "OMP_NUM_THREADS=1"]
        argv += ["lmp", "-in", self._source.name, "-log", "none", "-nocite"]
        return self._lab.mpi_job(argv, self._lab.guests, mca, {"FI_TCP_IFACE": "eth0", **path.env})

    def still(self, side: str) -> Result:
        with self._job(side) as job:
            done = job.finish(_START_S + _RUN_S)
        programs.check(done, f"LAMMPS over {side}")
        return Result(side, None, *parse(done.stdout))

    def moved(self, side: str, net: Net) -> Result:
        low, high = (round(part * self._plan.steps) for part in _MOVES_IN)
        guest, step = self._dice.choice(self._lab.guests[1:]), self._dice.randint(low, high)
        way = wire.laid(self._lab.record.namespace, net, self._lab.guests, AWAY)
        with way, self._job(side) as job:
            job.wait_for("\nStep ", _START_S)
            offset = _wait_for_step(job, step, float("inf"))
            job.check_running()
            trip = move(self._lab, guest, host_name(AWAY))
            offset = _wait_for_step(job, self._plan.steps, offset)
            done = job.finish(_RUN_S)
        programs.check(done, f"LAMMPS over {side} while {guest} moved")
        result = Result(side, net, *parse(done.stdout), _trip(trip, step, offset))
        move(self._lab, guest, host_name(HOME))
        return result

    def measure(self) -> Costs:
        costs = Costs(self._plan, self._lab.guest_description())
        for number in range(1, self._plan.rounds + 1):
            for side in self._plan.sides:
                self._steps.count(f"round {number}, {side}: nobody moves")
                costs.results.append(self.still(side))
                for net in self._plan.nets:
                    self._steps.count(f"round {number}, {side}: a guest moves, network {net}")
                    costs.results.append(self.moved(side, net))
        costs.check()
        return costs


def _trip(trip: Move, step: int, offset: float) -> Trip:
    told = trip.report
    try:
        down, size = float(told["downtime"] or 0), int(told["transferred"])
    except (KeyError, TypeError, ValueError) as error:
        raise IvcError(f"ivc migrate did not say what the move took: {told}") from error
    return Trip(step, trip.begin - offset, trip.end - offset, down, size)

