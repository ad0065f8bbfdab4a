"""`ivc demo migrate`: two guests, one of them moves to another host and back under a running job.

First a test of latency or bandwidth that writes a line per iteration, drawn over time; then LAMMPS, with
what the two moves cost it. The job is never told: it runs over memory while its ranks are on one host, and
over the network while they are on two; it begins on one, or on two. What is claimed is checked: figures that
do not show it, and messages that do not come as they were sent, end the demo with an error.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import openmpi, outputs
from .bench import lammps, machine, places, programs, trace
from .bench.progress import Steps
from .errors import IvcError, UsageError
from .lab import lab as labs
from .lab.job import Job
from .moves import Move, move

#: Rank 0 and mpirun stay, rank 1 moves: the clock and the output are those of a guest at rest.
STAYS, MOVES = "g1", "g2"
#: The number of the host on which rank 1 begins; rank 0 is on the first.
STARTS = {"together": 1, "apart": 2}
#: Messages of an iteration of the bandwidth test; 0: one there and back.
WINDOWS = {"latency": 0, "bandwidth": 64}
AXES = ("time", "iteration")
#: The paths differ by a third at least, and the third phase is as the first within a fifth.
_DIFFER, _SAME = 4 / 3, 1.2
_REGION = 64 << 20
_SECONDS_TO_START = 120.0
_MOVE_SECONDS = 180.0
_STOP = "/run/ivc-demo-stop"
_MCA = {"pml": "ob1", "btl": "ivc,self", "btl_ivc_network": "1"}
_NETWORK = re.compile(r"^ivc: rank .*network: sent (\d+)", re.M)
_MEMORY = re.compile(r"^ivc: rank .*: memory: sent (\d+)", re.M)


class DemoError(IvcError):
    """What the demo set out to show did not happen."""


@dataclass
class Plan:
    """What the user asked for."""

    size: int
    quiet: float
    interval: float
    rounds: int
    source: Path
    start: str = "together"
    test: str = "latency"
    axis: str = "time"

    @property
    def window(self) -> int:
        return WINDOWS[self.test]

    def hosts(self) -> tuple[str, str]:
        """Where rank 1 moves to, and where it returns to."""
        home = STARTS[self.start]
        return f"h{3 - home}", f"h{home}"

    def figure(self, us: float) -> float:
        """What the test is about: microseconds one way, or MB/s."""
        return self.window * self.size / us if self.window else us

    def phases(self) -> tuple[str, str, str]:
        one, other = ("memory", "network") if self.start == "together" else ("network", "memory")
        return f"{one} before", other, f"{one} after"


@dataclass
class Loaded:
    """LAMMPS with two moves under way, and without."""

    undisturbed: list[lammps.Result] = field(default_factory=list)
    disturbed: list[lammps.Result] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """Seconds: the median disturbed run over the median undisturbed one."""
        return statistics.median(r.loop_s for r in self.disturbed) - statistics.median(
            r.loop_s for r in self.undisturbed
        )

    def difference(self) -> float:
        every = [*self.undisturbed, *self.disturbed]
        return max(lammps.difference(every[0], other) for other in every)

    def as_dict(self) -> dict[str, object]:
        return {
            "undisturbed": [one.as_dict() for one in self.undisturbed],
            "disturbed": [one.as_dict() for one in self.disturbed],
            "moves": [asdict(one) for one in self.moves],
            "cost_s": self.cost,
            "difference": self.difference(),
        }


@dataclass
class Shown:
    """What was measured."""

    plan: Plan
    guest: str
    clock: trace.Clock
    points: list[trace.Point]
    moves: list[Move]
    packets: dict[str, int]
    loaded: Loaded | None = None

    def phases(self) -> dict[str, tuple[float, float]]:
        """The three times in which nothing moves, by their names."""
        out, back = self.moves
        first, second, third = self.plan.phases()
        return {
            first: (self.points[0].time, out.begin),
            second: (out.end, back.begin),
            third: (back.end, self.points[-1].time),
        }

    def medians(self) -> dict[str, float | None]:
        """Of the times, in microseconds."""
        return {
            name: trace.median(self.points, begin, end, self.plan.size)
            for name, (begin, end) in self.phases().items()
        }

    def as_dict(self) -> dict[str, object]:
        return {
            "schema": "ivc-demo-migrate-1",
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine.describe(),
            "guest": self.guest,
            "size": self.plan.size,
            "start": self.plan.start,
            "test": self.plan.test,
            "window": self.plan.window,
            "interval": self.plan.interval,
            "clock": asdict(self.clock),
            "median_us": self.medians(),
            "packets": self.packets,
            "moves": [asdict(one) for one in self.moves],
            "points": [[one.time, one.us] for one in self.points],
            "lammps": self.loaded.as_dict() if self.loaded else None,
        }


class _Stage:
    """The two guests and how jobs are started in them."""

    def __init__(self, lab: labs.Lab, steps: Steps) -> None:
        self.lab = lab
        self.steps = steps
        done = lab.run(STAYS, openmpi.ASK_FOLDER, timeout=120)
        programs.check(done, "ompi_info in a guest")
        self._mca = {**_MCA, "mca_base_component_path": openmpi.component_path(done.stdout)}

    def job(self, argv: list[str]) -> Job:
        env = {"IVC_STATS": "1", "FI_TCP_IFACE": "eth0"}
        return self.lab.mpi_job(argv, (STAYS, MOVES), self._mca, env)

    def move(self, job: Job, to: str) -> Move:
        job.check_running()
        self.steps.count(f"moving {MOVES} to {to}")
        return move(self.lab, MOVES, to)

    def there_and_back(self, job: Job, plan: Plan, quiet: float) -> list[Move]:
        moves = []
        for to in plan.hosts():
            _rest(job, quiet)
            moves.append(self.move(job, to))
        return moves


def _rest(job: Job, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        job.check_running()
        time.sleep(0.1)


def _packets(said: str) -> dict[str, int]:
    """How many packets, or bytes where only they are told, all ranks have sent on either path."""
    kinds = {"memory": _MEMORY, "network": _NETWORK}
    return {kind: sum(map(int, pattern.findall(said))) for kind, pattern in kinds.items()}


def _trace(stage: _Stage, plan: Plan) -> Shown:
    """The test under two moves."""
    clock = trace.guest_clock(stage.lab, STAYS)
    stage.steps.count(f"{plan.test} of {plan.size} B, a line for each iteration")
    words = ["--sizes", str(plan.size), "--interval", str(plan.interval), "--stop", _STOP]
    words += ["--window", str(plan.window)] if plan.window else []
    words += ["--seconds", str(2 * _MOVE_SECONDS + 4 * plan.quiet)]
    with stage.job([str(programs.find("bench_trace")), *words]) as job:
        job.wait_for('"start"', _SECONDS_TO_START)
        moves = stage.there_and_back(job, plan, plan.quiet)
        _rest(job, plan.quiet)
        stage.lab.run(STAYS, ["touch", _STOP], timeout=60)
        done = job.finish(60)
    programs.check(done, f"the {plan.test} test")
    points = trace.parse(done.stdout, clock)
    guest = stage.lab.guest_description()
    return Shown(plan, guest, clock, points, moves, _packets(done.stderr + done.stdout))


def _lammps_job(stage: _Stage, plan: Plan) -> Job:
    argv = ["env", "-C", str(plan.source.parent), "OMP_NUM_THREADS=1"]
    return stage.job([*argv, "lmp", "-in", plan.source.name, "-log", "none", "-nocite"])


def _loaded(stage: _Stage, plan: Plan) -> Loaded:
    """LAMMPS in turns: left alone, and with a guest that moves away and back."""
    result = Loaded()
    for number in range(1, plan.rounds + 1):
        stage.steps.count(f"LAMMPS {plan.source.name}, round {number}: nobody moves")
        with _lammps_job(stage, plan) as job:
            done = job.finish(600)
        programs.check(done, "LAMMPS over ivc")
        result.undisturbed.append(lammps.parse(done.stdout))
        stage.steps.count(f"LAMMPS {plan.source.name}, round {number}: {MOVES} moves")
        with _lammps_job(stage, plan) as job:
            job.wait_for("\nStep", _SECONDS_TO_START)
            result.moves += stage.there_and_back(job, plan, 1.0)
            job.check_running()
            done = job.finish(600)
        programs.check(done, "LAMMPS while a guest moved")
        result.disturbed.append(lammps.parse(done.stdout))
    return result


def _judge(shown: Shown) -> None:
    """Raise when the demo has not shown what it claims to."""
    found = shown.medians()
    if None in found.values():
        raise DemoError("one of the three phases has no iteration", hint="try a longer --quiet")
    (_, first), (_, second), (third_name, third) = ((name, us or 0.0) for name, us in found.items())
    if not shown.packets["memory"] or not shown.packets["network"]:
        raise DemoError(
            f"the job did not use both paths: {shown.packets} (IVC_STATS)",
            hint="see `ivc_info` in the guests",
        )
    memory, network = (first, second) if shown.plan.start == "together" else (second, first)
    if network < _DIFFER * memory:
        raise DemoError(
            f"over the network {network:.0f} us, over memory {memory:.0f} us: no difference"
        )
    if not 1 / _SAME <= third / first <= _SAME:
        raise DemoError(
            f"{third_name}: {third:.0f} us, and {first:.0f} us before: not as it was",
            hint="on a machine that does other things as well try a longer --quiet",
        )
    if shown.loaded is not None and shown.loaded.difference() > 1e-5:
        raise DemoError(
            "LAMMPS came to another result while a guest moved "
            f"(largest relative difference {shown.loaded.difference():.1e})",
            hint="this is a defect: please report it with the file of --json",
        )


def _measure(plan: Plan, stack: ExitStack, steps: Steps, with_lammps: bool) -> Shown:
    lab = stack.enter_context(
        labs.up(
            f"demo-{os.getpid()}",
            2,
            "qemu",
            region_size=_REGION,
            hosts=2,
            place=(1, STARTS[plan.start]),
            share=[plan.source.parent],
            progress=steps,
        )
    )
    stage = _Stage(lab, steps)
    shown = _trace(stage, plan)
    if with_lammps:
        shown.loaded = _loaded(stage, plan)
    return shown


def migrate(
    output: Annotated[Path, typer.Option(help="The plot.")] = Path("ivc-demo-migrate.png"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every figure to this file.")
    ] = None,
    size: Annotated[int, typer.Option(min=8, max=1 << 20, help="Bytes of a message.")] = 8,
    quiet: Annotated[
        float, typer.Option(min=1, help="Seconds before, between and after the moves.")
    ] = 6.0,
    interval: Annotated[
        float, typer.Option(min=0, max=1, help="Seconds between two iterations.")
    ] = 0.0005,
    start: Annotated[
        str, typer.Option(help=f"Whether the guests begin on one host: {' or '.join(STARTS)}.")
    ] = "together",
    test: Annotated[str, typer.Option(help=f"What is drawn: {' or '.join(WINDOWS)}.")] = "latency",
    axis: Annotated[str, typer.Option(help=f"Against what: {' or '.join(AXES)}.")] = "time",
    rounds: Annotated[int, typer.Option(min=1, help="How often LAMMPS runs each way.")] = 2,
    with_lammps: Annotated[bool, typer.Option("--lammps/--no-lammps", help="LAMMPS too.")] = True,
    lammps_input: Annotated[
        Path, typer.Option(help="The input LAMMPS runs on.")
    ] = lammps.DEFAULT_INPUT,
) -> None:
    """A guest moves to another host and back while its job runs: memory, network, memory; or the other way."""
    from .bench import trace_report  # half a second to import

    for word, known, option in ((start, STARTS, "start"), (test, WINDOWS, "test"), (axis, AXES, "axis")):
        if word not in known:
            raise UsageError(f"no --{option} named {word!r}", hint=f"choose {' or '.join(known)}")
    outputs.check(output, json_file)
    lammps.require(lammps_input)
    places.require_plugin()
    programs.find("bench_trace")
    plan = Plan(size, quiet, interval, rounds, lammps_input.absolute(), start, test, axis)
    begin = time.monotonic()
    with ExitStack() as stack:  # whatever happens: the lab goes down
        steps = stack.enter_context(Steps(3 + (4 * rounds if with_lammps else 0)))
        shown = _measure(plan, stack, steps, with_lammps)
    trace_report.show(shown, Console(), time.monotonic() - begin)
    if json_file is not None:
        json_file.write_text(json.dumps(shown.as_dict(), indent=1) + "\n")
    trace_report.draw(shown, output)
    print(f"written: {output}" + (f", {json_file}" if json_file else ""))
    _judge(shown)
