"""`ivc demo`: an MPI program and Debian's LAMMPS across two guests, first over their network, then
over shared memory, with the same between two processes of this host beside it.

Everything that the demo makes is gone when it ends, however it ends; only the figures stay.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import demo_migrate, outputs
from .bench import demo_report, floor, lammps, machine, places, processors
from .bench.compare import Sample, Session, Side
from .bench.memory import MemoryUse, memory_use
from .bench.places import PATHS, Guests, Host, MpiPath, Place
from .bench.progress import Steps
from .errors import IvcError, UsageError
from .lab import lab as labs

app = typer.Typer(help="Two guests, one MPI job: over the network and over shared memory.")
app.command()(demo_migrate.migrate)

#: The three ways, in the order in which they take turns. `ivc` is what a user would type, with
#: `ivc env --heap`: memory where there is some, the network otherwise; that memory was used is
#: checked afterwards.
NETWORK, IVC, NATIVE = "network", "ivc", "native"
_MPI_PATHS = {
    NETWORK: PATHS["tcp"],
    IVC: MpiPath(
        "ivc", "ivc", {"btl": "ivc,tcp,self"}, {**PATHS["ivc-heap"].env, "IVC_STATS": "1"}
    ),
    NATIVE: PATHS["vader"],
}
_REGION = 128 << 20
#: Those whose guests are given a region.
_HYPERVISORS = ("uml", "qemu")
#: LAMMPS takes a second or two: enough rounds for a median.
_LAMMPS_ROUNDS = 3
#: A window of 16 instead of 64: the slow network would else take most of the demo's time.
_SWEEP = ["--sizes", "8,64,512,4K,32K,256K,1M,4M", "--window", "16"]


class DemoError(IvcError):
    """What the demo set out to show did not happen."""


@dataclass
class Plan:
    """What the user asked for."""

    ranks: int
    hypervisor: str
    rounds: int
    seconds: float
    source: Path


@dataclass
class Demo:
    """What was measured."""

    plan: Plan
    guest: str
    session: Session
    sweep: list[Sample]
    lammps_runs: dict[str, list[lammps.Result]]
    memory: MemoryUse

    def median_lammps(self, way: str) -> lammps.Result:
        """The median run by time (the faster one of the middle two)."""
        ordered = sorted(self.lammps_runs[way], key=lambda result: result.loop_s)
        return ordered[(len(ordered) - 1) // 2]

    def difference(self) -> float:
        """How far the physics of any two runs are apart."""
        every = [result for results in self.lammps_runs.values() for result in results]
        return max(lammps.difference(every[0], other) for other in every)

    def as_dict(self) -> dict[str, object]:
        return {
            "schema": "ivc-demo-1",
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine.describe(),
            "guest": self.guest,
            "hypervisor": self.plan.hypervisor,
            "ranks": self.plan.ranks,
            "floor": floor.best(self.session.floors).as_dict(),
            "memory": self.memory.as_dict(),
            "lammps": {
                "input": str(self.plan.source),
                "difference": self.difference(),
                "runs": {way: [r.as_dict() for r in rs] for way, rs in self.lammps_runs.items()},
            },
            "samples": [sample.as_dict() for sample in self.sweep],
        }


def _sides(guests: Place, host: Place) -> dict[str, Place]:
    return {NETWORK: guests, IVC: guests, NATIVE: host}


def _measure(plan: Plan, stack: ExitStack, steps: Steps) -> Demo:
    cpus = processors.choose()
    host = Host(cpus, stack.enter_context(places.host_region()))
    lab = stack.enter_context(
        labs.up(
            f"demo-{os.getpid()}",
            2,
            plan.hypervisor,
            region_size=_REGION,
            share=[plan.source.parent],
            progress=steps,
        )
    )
    guests = Guests(lab, cpus)
    where = _sides(guests, host)
    session = Session(lambda: floor.measure(cpus))
    memory = MemoryUse()

    def sweep(way: str, test: str, np: int) -> Side:
        def run() -> list[dict]:
            words = ["--test", test, *_SWEEP, "--seconds", str(plan.seconds)]
            return places.bench_mpi(where[way], _MPI_PATHS[way], words, np)

        return run

    taken = session.alternate(
        {way: sweep(way, "latency,bandwidth", 2) for way in where},
        plan.rounds,
        lambda side, number: steps.count(f"latency and bandwidth, round {number}: {side}"),
        most=plan.rounds,
    )
    if plan.ranks > 2:
        taken += session.alternate(
            {way: sweep(way, "alltoall", plan.ranks) for way in where},
            plan.rounds,
            lambda side, number: steps.count(f"all-to-all, round {number}: {side}"),
            most=plan.rounds,
        )
    found: dict[str, list[lammps.Result]] = {way: [] for way in where}
    for number in range(1, max(plan.rounds, _LAMMPS_ROUNDS) + 1):
        for way, place in where.items():
            steps.count(f"LAMMPS {plan.source.name}, round {number}: {way}")
            result, done = lammps.run(place, _MPI_PATHS[way], plan.source, plan.ranks)
            found[way].append(result)
            if way == IVC:
                memory.add(memory_use(done.stderr))
    return Demo(plan, lab.guest_description(), session, taken, found, memory)


def _judge(demo: Demo) -> None:
    """Raise when the demo has not shown what it claims to."""
    if not demo.memory.bytes:
        raise DemoError(
            "the ranks did not talk through shared memory (IVC_STATS counted no bytes)",
            hint="see `ivc lab up` and `ivc_info` in a guest",
        )
    if demo.difference() > 1e-5:
        raise DemoError(
            "LAMMPS came to different results over the network and over ivc "
            f"(largest relative difference {demo.difference():.1e})",
            hint="this is a defect: please report it with the file of --json",
        )


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    ranks: Annotated[int, typer.Option(help="2: one rank in each guest; 4: two in each.")] = 2,
    hypervisor: Annotated[str, typer.Option(help="Kind of guests: uml or qemu.")] = "uml",
    output: Annotated[Path, typer.Option(help="The plot.")] = Path("ivc-demo.png"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write every figure to this file.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often the ways take turns.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.001, help="Time per size in a round.")] = 0.05,
    lammps_input: Annotated[
        Path, typer.Option(help="The input LAMMPS runs on.")
    ] = lammps.DEFAULT_INPUT,
) -> None:
    """Show what ivc does: two guests, one MPI job, over the network and over shared memory."""
    if context.invoked_subcommand is not None:
        return
    if ranks not in (2, 4):
        raise UsageError(f"{ranks} ranks", hint="the demo has two variants: --ranks 2, --ranks 4")
    if hypervisor not in _HYPERVISORS:
        raise UsageError(f"guests of {hypervisor}", hint=f"choose {' or '.join(_HYPERVISORS)}")
    outputs.check(output, json_file)
    lammps.require(lammps_input)
    places.require_plugin()
    plan = Plan(ranks, hypervisor, rounds, seconds, lammps_input.absolute())
    begin = time.monotonic()
    phases = 1 if ranks == 2 else 2
    runs = phases * rounds + max(rounds, _LAMMPS_ROUNDS)
    with ExitStack() as stack:  # whatever happens: lab down, region gone
        steps = stack.enter_context(Steps(runs * len(_MPI_PATHS)))
        shown = _measure(plan, stack, steps)
    demo_report.show(shown, Console(), time.monotonic() - begin)
    if json_file is not None:
        json_file.write_text(json.dumps(shown.as_dict(), indent=1) + "\n")
    demo_report.draw(shown, output)
    print(f"written: {output}" + (f", {json_file}" if json_file else ""))
    _judge(shown)
