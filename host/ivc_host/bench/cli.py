"""`ivc bench`: run the benchmarks, or judge the targets."""

from __future__ import annotations

import json
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .. import outputs
from ..errors import UsageError
from ..lab import lab as labs
from ..lab.cli import parse_size
from . import (
    advection,
    apps,
    floor,
    gate,
    lammps,
    limits,
    machine,
    many,
    move_cost,
    moves,
    places,
    processors,
    report,
    results,
    summary,
    waiting,
    wake,
    wire,
    words,
    xen,
)
from .compare import Key, Ratio, Session, Side, comparisons, dicts, series
from .places import PATHS, Guests, Host, Place
from .progress import Steps
from .targets import TARGETS

app = typer.Typer(no_args_is_help=True, help="Measure ivc and compare it with other paths.")

TESTS = ("latency", "bandwidth", "bidir", "rate", "incast", "alltoall", "ring", "allreduce")
#: Only when they are named: they need a path with one-sided operations.
ONE_SIDED = ("put", "get")
_LIBIVC = "libivc"
#: What a round of the gate stands for where a guest moves to and fro.
_MOVES_PER_ROUND = 15
_KEYS = tuple(one.key for one in (*TARGETS, *moves.LIMITS, *waiting.LIMITS, *many.BOUNDS))
#: What they begin with.
_GROUPS = tuple(dict.fromkeys(key.split("-")[0] for key in _KEYS))
_MANY_ROUNDS = 3
_WAKE_ROUNDS = 3
_XEN_ROUNDS = 3
_RATES_MAX = 3
_QUICK_SIZES = "0,8,64,1K,8K,64K,1M,4M"

Cpus = Annotated[
    str | None, typer.Option(metavar="A,B", help="Processors to use (default: two cores).")
]


def _choice(text: str, known: Sequence[str], what: str, hint: str | None = None) -> list[str]:
    words = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    hint = hint or f"choose among {', '.join(known)}"
    for word in words:
        if word not in known:
            raise UsageError(f"no {what} named {word!r}", hint=hint)
    if not words:
        raise UsageError(f"no {what} given", hint=hint)
    return words


def _sizes(text: str) -> str:
    """As the programs read them: sizes, and ranges of doubled sizes."""
    for word in text.split(","):
        ends = re.fullmatch(r"(\d+[KMG]?)(?:-(\d+[KMG]?))?", word, re.IGNORECASE | re.ASCII)
        if not ends or (ends[2] and parse_size(ends[2]) < parse_size(ends[1])):
            raise UsageError(f"sizes {text!r}", hint="write them like 8,64K or 0-4M")
    return text


def _targets(text: str) -> list[str]:
    """Those named, and those whose names begin with a name."""
    parts = [key.split("-") for key in _KEYS]
    known = dict.fromkeys("-".join(part[:n]) for part in parts for n in range(1, len(part) + 1))
    hint = f"their names begin with {', '.join(_GROUPS)}"  # all of them are some hundreds
    words = _choice(text, tuple(known), "target", hint)
    return [key for key in _KEYS if any(key == word or key.startswith(f"{word}-") for word in words)]


def _side(place: Place, key: str, words: Sequence[str], np: int) -> Side:
    if key == _LIBIVC:
        assert isinstance(place, Host)
        return lambda: places.bench_libivc(place, words)
    path = PATHS[key]
    if {*ONE_SIDED} & {*words}:
        # Debian's choice leaves nothing that serves them over messages.
        path = replace(path, mca={**path.mca, "osc": "^ucx"})
    return lambda: places.bench_mpi(place, path, words, np)


@app.command()
def run(
    paths: Annotated[
        str | None,
        typer.Option(
            help=f"Paths to compare, the first is the reference: {', '.join((*PATHS, _LIBIVC))}."
        ),
    ] = None,
    tests: Annotated[
        str, typer.Option(help=f"Tests to run, also: {', '.join(ONE_SIDED)}.")
    ] = ",".join(TESTS),
    sizes: Annotated[
        str | None, typer.Option(help="Message sizes, such as 8,64K (default: 0-4M).")
    ] = None,
    np: Annotated[int, typer.Option(min=2, help="Number of ranks.")] = 2,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Samples of each path (default: 5).")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.001, help="Time per size in a sample (default: 0.05).")
    ] = None,
    lab: Annotated[str | None, typer.Option(help="Run in the guests of this lab.")] = None,
    cpus: Cpus = None,
    output: Annotated[
        Path, typer.Option(help="Where to write: this name with .json and .png.")
    ] = Path("ivc-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes, two short rounds, if not said.")] = False,
) -> None:
    """Compare paths: latency, bandwidth, message rate, many-to-one, collective operations."""
    default = "tcp,ivc" if lab else "vader,vader-nocma,tcp,ivc,libivc"
    known = tuple(PATHS) if lab else (*PATHS, _LIBIVC)
    keys = _choice(paths or default, known, "path")
    names = _choice(tests, (*TESTS, *ONE_SIDED), "test")
    sizes = _sizes(sizes or (_QUICK_SIZES if quick else "0-4M"))
    rounds = rounds or (2 if quick else 5)
    seconds = seconds or (0.02 if quick else 0.05)
    pair = processors.choose(cpus)
    _check_files(output)
    session = Session(lambda: floor.measure(pair))
    with ExitStack() as stack:
        place: Place
        if lab:
            place = Guests(labs.attach(lab), pair)
        else:
            place = Host(pair, stack.enter_context(places.host_region()))
        steps = stack.enter_context(Steps(len(names) * rounds * len(keys)))
        for test in names:
            asked = ["--test", test, "--sizes", sizes, "--seconds", str(seconds)]
            own = [k for k in keys if k != _LIBIVC or test in ("latency", "bandwidth")]
            sides = {key: _side(place, key, asked, np) for key in own}
            session.alternate(
                sides, rounds, lambda side, number: steps.count(f"{test}, round {number}: {side}")
            )
    _write(session, keys, names, place.label, output)


def _write(session: Session, keys: list[str], names: list[str], where: str, output: Path) -> None:
    session.classify()
    console = Console()
    compared: dict[Key, Ratio] = {}
    for test in names:
        found = comparisons(session.samples, [test], keys, keys[0])
        console.print(report.table(test, session.samples, keys, keys[0], found))
        compared |= found
    if len(keys) > 1:
        console.print(report.CAPTION, highlight=False)
    best = floor.best(session.floors)
    console.print(
        f"bare machine: cache line one way {words.time_text(best.latency_us)}, "
        f"pipelined copy {words.rate_text((1 << 20) / best.copy_us)}"
    )
    console.print(report.state_line(session.samples))
    rows = summary.rows(session.samples)
    described = machine.describe()
    data = {
        "place": where,
        "reference": keys[0],
        "floor": best.as_dict(),
        "results": [row.as_dict() for row in rows],
        "comparisons": dicts(compared, keys[0]),
        "samples": [sample.as_dict() for sample in session.samples],
    }
    labels = {key: PATHS[key].label if key in PATHS else key for key in keys}

    def draw(path: Path) -> None:
        from . import plot  # takes half a second to import: only when something is drawn

        plot.draw(path, rows, names, labels, f"{where}: {machine.line(described)}")

    console.print(_files(output, "ivc-bench-1", described, data, draw))


def _check_files(output: Path) -> None:
    if not output.name:
        raise UsageError(f"--output {output}", hint="name files without their ending, such as ./ivc-bench")
    outputs.check(*_names_of(output))


def _names_of(output: Path) -> tuple[Path, Path]:
    return output.with_name(output.name + ".json"), output.with_name(output.name + ".png")


def _files(
    output: Path,
    schema: str,
    described: Mapping[str, object],
    data: Mapping[str, object],
    draw: Callable[[Path], None],
) -> str:
    """Write the data and its plot; returns the line that says where."""
    head = {
        "schema": schema,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": described,
    }
    files = _names_of(output)
    files[0].write_text(json.dumps({**head, **data}, indent=1) + "\n")
    draw(files[1])
    return f"written: {files[0]}, {files[1]}"


@app.command("compare")
def compare_command(
    file: Annotated[Path, typer.Argument(help="What `ivc bench run` or `ivc bench apps` has written (.json).")],
    sides: Annotated[
        str | None, typer.Option(help="Sides to compare, the first is the reference (default: those of the run).")
    ] = None,
) -> None:
    """Compare the sides of a run that is over: interval, probability, verdict, and what could have been seen."""
    found = results.read(file)
    names = _choice(sides, found.sides, "side") if sides else found.sides
    if len(names) < 2:
        raise UsageError(f"{file} has one side to compare: {', '.join(names)}", hint="give two: --sides A,B")
    console = Console(highlight=False)
    for tests in found.tables:
        compared = comparisons(found.samples, tests, names, names[0])
        for side in names[1:]:
            console.print(report.comparison_table(tests, side, names[0], compared))
    console.print(report.noise_line(series(found.samples, found.tests, names)))
    console.print(report.state_line(found.samples))


@app.command("many")
def many_command(
    ranks: Annotated[int, typer.Option(min=2, max=4096, help="Up to so many ranks.")] = many.RANKS,
    talkers: Annotated[
        int, typer.Option(min=1, help="With so many others each of them talks.")
    ] = many.TALKERS,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each number of ranks.")] = _MANY_ROUNDS,
    output: Annotated[
        Path, typer.Option(help="Where to write: this name with .json and .png.")
    ] = Path("ivc-many"),
) -> None:
    """Many ranks in one region: memory of each, an idle turn, and a message of one that knows all."""
    _check_files(output)
    counts = [1 << power for power in range(1, ranks.bit_length()) if 1 << power < ranks] + [ranks]
    with Steps(rounds * len(counts)) as steps:
        records = many.sweep(counts, talkers, rounds, steps.count)
    console = Console()
    console.print(report.many_table(records))
    described = machine.describe()
    data = {"rounds": rounds, "results": records}

    def draw(path: Path) -> None:
        many.draw(path, records, machine.line(described))

    console.print(_files(output, "ivc-many-1", described, data, draw))


@app.command("apps")
def apps_command(
    only: Annotated[
        str | None, typer.Option(help=f"Programs to run: {', '.join(apps.APPS)}.")
    ] = None,
    sides: Annotated[
        str, typer.Option(help="Where and how, the first is the reference.")
    ] = ",".join(apps.SIDES),
    guests: Annotated[int, typer.Option(help="So many guests and ranks: 2 or 4.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="How often the sides take turns.")] = 5,
    hypervisor: Annotated[str, typer.Option(help="Kind of guests.")] = "uml",
    cpus: Cpus = None,
    output: Annotated[
        Path, typer.Option(help="Where to write: this name with .json and .png.")
    ] = Path("ivc-apps"),
) -> None:
    """LAMMPS, HPCC and kernels that communicate: guests against processes of this host."""
    if guests not in (2, 4):
        raise UsageError(f"{guests} guests", hint="choose --guests 2 or --guests 4")
    keys = _choice(only, tuple(apps.APPS), "program") if only else list(apps.APPS)
    names = _choice(sides, apps.SIDES, "side")
    if names[0] != apps.NATIVE or len(names) == 1:
        raise UsageError(f"sides {sides}", hint=f"{apps.NATIVE} first, then what is held against it")
    _check_files(output)
    places.require_plugin()
    chosen = [apps.APPS[key] for key in keys]
    with ExitStack() as stack:
        steps = stack.enter_context(Steps(len(chosen) * rounds * len(names)))
        pair = processors.choose(cpus)
        measured = apps.compare(chosen, names, guests, hypervisor, rounds, pair, steps, stack)
    console = Console()
    console.print(report.apps_table(measured))
    console.print(report.CAPTION, highlight=False)
    console.print(report.state_line(measured.samples))
    described = machine.describe()

    def draw(path: Path) -> None:
        apps.draw(path, measured, f"{guests} ranks: {machine.line(described)}")

    data = {"guests": guests, "hypervisor": hypervisor, **measured.as_dict()}
    console.print(_files(output, "ivc-apps-1", described, data, draw))


@app.command("paths")
def paths_command(
    processes: Annotated[
        str | None,
        typer.Option(help="Grids of processes, such as 4x2x2, and numbers of which all grids are taken (default: 2,4,8,16)."),
    ] = None,
    cells: Annotated[
        str | None, typer.Option(help="Cells of the box (default: 96x96x96).")
    ] = None,
    n_steps: Annotated[int | None, typer.Option("--steps", min=2, help="Steps (default: 96).")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often the paths take turns (default: 3).")
    ] = None,
    hosts: Annotated[int, typer.Option(min=2, max=16, help="So many hosts; with --lab those of the lab.")] = 2,
    lab: Annotated[str | None, typer.Option(help="Run in the guests of this lab.")] = None,
    cpus: Cpus = None,
    output: Annotated[
        Path, typer.Option(help="Where to write: this name with .json and .png.")
    ] = Path("ivc-bench-paths"),
    quick: Annotated[bool, typer.Option("--quick", help="Up to 8 ranks, fewer cells, steps and rounds, if not said.")] = False,
) -> None:
    """Data paths and placements: advection by grids of processes on several hosts, memory against network."""
    program = advection.Program(
        advection.three(cells or ("48x48x48" if quick else "96x96x96")), n_steps or (24 if quick else 96)
    )
    grids = advection.chosen(processes or ("2,4,8" if quick else "2,4,8,16"))
    program.check(grids)
    _check_files(output)
    pair = processors.choose(cpus)
    with ExitStack() as stack:
        where, host = advection.ground(labs.attach(lab) if lab else None, hosts, pair, stack)
        steps = stack.enter_context(Steps(len(grids)))
        measured = advection.measure(where, host, program, grids, rounds or (1 if quick else 3), pair, steps)
    from . import advection_report  # half a second to import

    console = Console()
    console.print(advection_report.table(measured))
    console.print(f"{advection_report.CAPTION}\n{report.CAPTION}", highlight=False)
    console.print(report.state_line(measured.session.samples))
    described = machine.describe()

    def draw(path: Path) -> None:
        advection_report.draw(path, measured, f"{where.label}: {machine.line(described)}")

    console.print(_files(output, "ivc-bench-paths-1", described, {"place": where.label, **measured.as_dict()}, draw))


@app.command("wake")
def wake_command(
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each setting.")] = _WAKE_ROUNDS,
    seconds: Annotated[float, typer.Option(min=0.001, help="Time of one run.")] = 0.5,
    cpus: Cpus = None,
    output: Annotated[
        Path, typer.Option(help="Where to write: this name with .json and .png.")
    ] = Path("ivc-wake"),
) -> None:
    """Moderation of wake-ups: latency and processor time against IVC_MODERATION."""
    _check_files(output)
    pair = processors.choose(cpus)
    with Steps(rounds * len(wake.kinds()) * len(wake.SETTINGS)) as steps:
        records = wake.sweep(pair, rounds, seconds, steps.count)
    console = Console()
    console.print(report.wake_table(records))
    described = machine.describe()
    data = {"rounds": rounds, "seconds": seconds, "results": records}

    def draw(path: Path) -> None:
        wake.draw(path, records, machine.line(described))

    console.print(_files(output, "ivc-wake-1", described, data, draw))


def _rates(text: str) -> list[int]:
    words = list(dict.fromkeys(text.split(",")))
    if not all(re.fullmatch(r"\d{1,6}", word, re.ASCII) for word in words) or len(words) > _RATES_MAX:
        raise UsageError(f"rates {text!r}", hint=f"write up to {_RATES_MAX} numbers of Mbit/s, such as 0,1000; 0: no limit")
    return [int(word) for word in words]


def _nets(names: str, rates: str) -> list[wire.Net]:
    """A shared one without a limit would be no wire to share."""
    chosen = _choice(names, wire.NAMES, "network of a migration")
    nets = [wire.Net(name, rate) for name in chosen for rate in _rates(rates) if rate > 0 or name == wire.OWN]
    if wire.SHARED in chosen and not any(net.name == wire.SHARED for net in nets):
        raise UsageError(f"--migration-net {names} --rates {rates}", hint="a network in common needs a rate, such as 1000")
    return nets


@app.command("migrate")
def migrate_command(
    sides: Annotated[
        str, typer.Option("--paths", help=f"Paths between the ranks: {', '.join(move_cost.SIDES)}.")
    ] = "ivc",
    rates: Annotated[
        str, typer.Option(help="Mbit/s of the network that the migration takes; 0: no limit.")
    ] = "0,1000",
    networks: Annotated[
        str, typer.Option("--migration-net", help="Networks that it takes: one of its own, the ranks' (own, mpi).")
    ] = "own",
    n_steps: Annotated[int, typer.Option("--steps", min=20, help="Steps of LAMMPS.")] = 100,
    cells: Annotated[int, typer.Option(min=4, max=64, help="Length of its box: 4 atoms in each cell.")] = 16,
    guests: Annotated[int, typer.Option(min=2, max=8, help="So many guests and ranks.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each kind.")] = 3,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of which guest moves, and at which step (default: by chance).")
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Where to write: this name with .json and .png.")
    ] = Path("ivc-bench-migrate"),
) -> None:
    """What one move costs a program with steps: LAMMPS, of whose guests one moves at a random step."""
    chosen = _choice(sides, tuple(move_cost.SIDES), "path")
    plan = move_cost.Plan(
        chosen, _nets(networks, rates), n_steps, cells, guests, rounds, random.randrange(1 << 30) if seed is None else seed
    )
    _check_files(output)
    lammps.require(lammps.DEFAULT_INPUT)
    places.require_plugin()
    with ExitStack() as stack:  # whatever happens: the lab goes down
        tell = stack.enter_context(Steps(plan.runs()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ivc-bench-")))
        source = plan.write_input(folder)
        lab = stack.enter_context(
            labs.up(
                f"bench-{os.getpid()}", guests, "qemu", region_size=64 << 20, hosts=2, place=[1] * guests,
                share=[folder], progress=tell,
            )
        )  # fmt: skip
        costs = move_cost.Ground(lab, plan, source, tell).measure()
    from . import move_cost_report  # half a second to import

    console = Console()
    console.print(move_cost_report.table(costs))
    console.print(move_cost_report.legend(costs), highlight=False)
    described = machine.describe()

    def draw(path: Path) -> None:
        move_cost_report.draw(path, costs, f"{costs.guest}\n{machine.line(described)}")

    console.print(_files(output, "ivc-bench-migrate-2", described, costs.as_dict(), draw))


@app.command("xen")
def xen_command(
    lab: Annotated[
        str | None, typer.Option(help="Measure in this lab instead of bringing one up.")
    ] = None,
    hypervisor: Annotated[str, typer.Option(help="Kind of guests: xen or xen-pvh.")] = "xen",
    rounds: Annotated[int, typer.Option(min=1, help="How often the sides take turns.")] = _XEN_ROUNDS,
    seconds: Annotated[float, typer.Option(min=0.001, help="Time per size in a sample.")] = 1.0,
    output: Annotated[
        Path, typer.Option(help="Where to write: this name with .json and .png.")
    ] = Path("ivc-xen"),
) -> None:
    """Two guests of Xen: libivc against libxenvchan, Open MPI's paths, and the processor time of each."""
    if not hypervisor.startswith("xen"):
        raise UsageError(f"guests of {hypervisor}", hint="choose --hypervisor xen or xen-pvh")
    _check_files(output)
    given = labs.attach(lab) if lab else None
    xen.require()
    cpus = processors.choose()
    console = Console(highlight=False, soft_wrap=True)
    with ExitStack() as stack:  # takes the guests down
        steps = stack.enter_context(Steps(xen.steps_of(rounds)))
        if given:
            found = given
        else:
            steps.step("bringing up two guests of Xen")
            found = stack.enter_context(
                labs.up(f"xen-{os.getpid()}", 2, hypervisor, region_size=None, progress=steps)
            )
        measured = xen.compare(found, cpus, rounds, seconds, steps)
        guests = found.guest_description()
    for table in report.xen_tables(measured):
        console.print(table)
    for verdict in measured.verdicts():
        console.print(report.verdict_line(verdict), style=report.style(verdict.outcome))
    console.print(report.state_line(measured.samples))
    console.print(f"guests: {guests}")
    described = machine.describe()
    data = {"guests": guests, "rounds": rounds, "seconds": seconds, **measured.as_dict()}

    def draw(path: Path) -> None:
        xen.draw(path, measured, f"{guests}\n{machine.line(described)}")

    console.print(_files(output, "ivc-xen-1", described, data, draw))


@app.command("gate")
def gate_command(
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    only: Annotated[
        str | None,
        typer.Option(help=f"Targets to measure, or what their names begin with: {', '.join(_GROUPS)}."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds per pair of sides (default: 7).")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0.001, help="Time per size in a sample (default: 0.3).")
    ] = None,
    hypervisor: Annotated[str, typer.Option(help="Kind of guests.")] = "uml",
    cpus: Cpus = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three short rounds, if not said.")] = False,
) -> None:
    """Hold ivc against its targets. Exit code 1: one failed; 2: one could not be measured."""
    keys = _targets(only) if only else list(_KEYS)
    rounds = rounds or (3 if quick else 7)
    seconds = seconds or (0.1 if quick else 0.3)
    pair = processors.choose(cpus)
    verdicts = []
    timed: list[limits.LimitVerdict] = []
    crowd: list[many.BoundVerdict] = []
    console = Console(highlight=False, soft_wrap=True)
    with ExitStack() as stack:  # takes guests down and the region away
        steps = stack.enter_context(Steps())
        judge = gate.Gate(pair, seconds, stack, steps, hypervisor)
        for targets in gate.groups([t for t in TARGETS if t.key in keys]):
            for verdict in judge.judge(targets, rounds):
                verdicts.append(verdict)
                if not json_output:
                    console.print(report.verdict_line(verdict), style=report.style(verdict.outcome))
        moving = [one for one in moves.LIMITS if one.key in keys]
        if moving:
            times = rounds * _MOVES_PER_ROUND
            steps.step(f"a guest moves to and fro, {times} times")
            timed += limits.judge(moving, lambda: moves.measure(moving, pair, times))
        resting = [one for one in waiting.LIMITS if one.key in keys]
        if resting:
            steps.step(f"a rank waits, {rounds} times")
            timed += limits.judge(resting, lambda: waiting.measure(judge.host(), rounds))
        for one in timed:
            if not json_output:
                console.print(limits.line(one), style=report.style(one.outcome))
        bounds = [one for one in many.BOUNDS if one.key in keys]
        if bounds:
            crowd = many.judge(bounds, 1 if quick else _MANY_ROUNDS, steps.step)
        for bound in crowd:
            if not json_output:
                console.print(many.line(bound), style=report.style(bound.outcome))
    if json_output:
        data = {
            "schema": "ivc-gate-1",
            "machine": machine.describe(),
            "targets": [verdict.as_dict() for verdict in verdicts],
            "limits": [one.as_dict() for one in timed],
            "many": [one.as_dict() for one in crowd],
            "samples": [sample.as_dict() for sample in judge.session.samples],
        }
        print(json.dumps(data, indent=1))
    raise typer.Exit(gate.exit_code([one.outcome for one in (*verdicts, *timed, *crowd)]))
