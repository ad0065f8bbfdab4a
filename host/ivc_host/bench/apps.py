"""Applications: the same ranks as processes of this host and as guests, through each path.

LAMMPS on inputs that it ships, HPCC, and three kernels of our own (`bench_kernels`). Every run is
checked, and `mpi_share` tells what part of its time a rank was inside of MPI.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingError
from ..lab import lab as labs
from . import floor, lammps, places, programs
from .compare import CHECK, Key, Ratio, Sample, Session, Side, Tell, comparisons, dicts
from .places import PATHS, Guests, Host, MpiPath, Place
from .programs import BenchError, Record
from .progress import Steps

#: The reference first; then what may stand beside it.
NATIVE, NATIVE_IVC, NATIVE_HEAP = "native", "native-ivc", "native-ivc-heap"
GUESTS_IVC, GUESTS_HEAP, GUESTS_NETWORK = "guests-ivc", "guests-ivc-heap", "guests-network"
_PATHS: dict[str, MpiPath] = {
    NATIVE: PATHS["vader"],
    NATIVE_IVC: PATHS["ivc"],
    NATIVE_HEAP: PATHS["ivc-heap"],
    GUESTS_IVC: PATHS["ivc"],
    GUESTS_HEAP: PATHS["ivc-heap"],
    GUESTS_NETWORK: PATHS["tcp"],
}
SIDES = tuple(_PATHS)
LABELS = {
    NATIVE: "processes of this host, the MPI's own shared memory",
    NATIVE_IVC: "processes of this host, ivc",
    NATIVE_HEAP: "processes of this host, ivc, malloc() in the region",
    GUESTS_IVC: "guests, ivc",
    GUESTS_HEAP: "guests, ivc, malloc() in the region",
    GUESTS_NETWORK: "guests, their network",
}
#: Two runs of LAMMPS may add up in another order.
_SAME = 1e-5
_REGION = 256 << 20
_TIMEOUT = 900.0


@dataclass(frozen=True)
class App:
    """One program. `read` makes a record for each of `parts` from what it has printed, and raises when
    the result is wrong."""

    key: str
    parts: tuple[str, ...]
    argv: Callable[[int], list[str]]
    read: Callable[[str], list[Record]]
    #: What has to be there, and the package that has it.
    needs: tuple[tuple[str, str], ...] = ()


#: What stands for the size of a message where a program is not about one.
SIZE = 0


def _record(part: str, seconds: float, **more: object) -> Record:
    return {"test": part, "bytes": SIZE, "seconds": seconds, **more}


def _lammps(name: str) -> App:
    source = lammps.EXAMPLES / name / f"in.{name}"

    def argv(np: int) -> list[str]:
        del np
        return lammps.command(source)

    def read(output: str) -> list[Record]:
        result = lammps.parse(output)
        return [_record(f"lammps-{name}", result.loop_s, **{CHECK: result})]

    needs = (("lmp", "lammps"), (str(source), "lammps-examples"))
    return App(f"lammps-{name}", (f"lammps-{name}",), argv, read, needs)


#: HPCC's parameters (hpccinf.txt): HPL's, then PTRANS's additional ones. Small: 15 s for two ranks.
_HPCC_INPUT = """\
HPLinpack benchmark input file

HPL.out      output file name (if any)
8            device out
1            # of problems sizes (N)
{size}         Ns
1            # of NBs
80           NBs
0            PMAP process mapping
1            # of process grids (P x Q)
{rows}            Ps
{columns}            Qs
16.0         threshold
1            # of panel fact
2            PFACTs
1            # of recursive stopping criterium
4            NBMINs
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs
1            # of broadcast
1            BCASTs
1            # of lookahead depth
1            DEPTHs
2            SWAP
64           swapping threshold
0            L1 in
0            U  in
1            Equilibration
8            memory alignment in double
##### This line (no. 32) is ignored (it serves as a separator). ######
0            Number of additional problem sizes for PTRANS
1200         values of N
0            number of additional blocking sizes for PTRANS
40           values of NB
"""
_HPCC_RUN = (
    'd=$(mktemp -d) && cd "$d" && printf "%s" "$1" > hpccinf.txt && hpcc; r=$?; '
    'cat "$d"/hpccoutf.txt 2>/dev/null; rm -rf "$d"; exit $r'
)
_HPCC_PARTS = ("hpcc-hpl", "hpcc-ptrans", "hpcc-randomaccess", "hpcc-fft")


def _hpcc_argv(np: int) -> list[str]:
    rows = 2 if np >= 4 else 1
    text = _HPCC_INPUT.format(size=2000, rows=rows, columns=np // rows)
    return ["env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", "sh", "-c", _HPCC_RUN, "sh", text]


def _hpcc_read(output: str) -> list[Record]:
    """The summary at the end of hpccoutf.txt: NAME=value."""
    found = dict(line.split("=", 1) for line in output.splitlines() if line.count("=") == 1)
    try:
        n, gflops = float(found["MPIFFT_N"]), float(found["MPIFFT_Gflops"])
        seconds = {
            "hpcc-hpl": float(found["HPL_time"]),
            "hpcc-ptrans": float(found["PTRANS_time"]),
            "hpcc-randomaccess": float(found["MPIRandomAccess_time"]),
            # as HPCC defines it: 5 n log2 n operations
            "hpcc-fft": 5 * n * math.log2(n) / gflops / 1e9,
        }
        right = (
            int(found["Success"]) == 1
            and float(found["PTRANS_residual"]) < 16
            and float(found["MPIRandomAccess_ErrorsFraction"]) < 0.01
            and float(found["MPIFFT_maxErr"]) < 1e-9
        )
    except (KeyError, ValueError) as error:
        raise BenchError(f"HPCC's summary cannot be read: {error}", detail=output[-800:]) from error
    if not right:
        raise BenchError("HPCC says that a result is wrong", detail=output[-2000:])
    return [_record(part, seconds[part]) for part in _HPCC_PARTS]


def _kernel(name: str) -> App:
    def argv(np: int) -> list[str]:
        del np
        return [str(programs.find("bench_kernels")), "--test", name, "--steps", "1000"]

    def read(output: str) -> list[Record]:
        found = [one for one in programs.records(output) if one["program"] == "bench_kernels"]
        if [one["test"] for one in found] != [name]:
            raise BenchError(f"bench_kernels printed no result for {name}", detail=output[-800:])
        seconds = found[0]["mean_us"] * found[0]["batch"] / 1e6
        return [_record(f"kernel-{name}", seconds, **{CHECK: found[0]["check"]})]

    return App(f"kernel-{name}", (f"kernel-{name}",), argv, read)


APPS = {
    app.key: app
    for app in (
        _lammps("melt"),
        _lammps("peptide"),
        _lammps("rigid"),
        App("hpcc", _HPCC_PARTS, _hpcc_argv, _hpcc_read, (("hpcc", "hpcc"),)),
        _kernel("halo"),
        _kernel("transpose"),
        _kernel("sparse"),
    )
}


def require(apps: Sequence[App]) -> None:
    for app in apps:
        for what, package in app.needs:
            if shutil.which(what) is None and not Path(what).is_file():
                raise MissingError(f"{what} is missing", hint=f"install {package}, or: ./run setup")


def run(app: App, place: Place, path: MpiPath, np: int) -> list[Record]:
    """The records of one run, each with the share of time that its ranks were in MPI."""
    preload = [path.env.get("LD_PRELOAD"), str(programs.find("mpi_share.so"))]
    argv = ["env", f"LD_PRELOAD={':'.join(filter(None, preload))}", *app.argv(np)]
    done = place.mpi(path, argv, np, _TIMEOUT)
    programs.check(done, f"{app.key} on {place.label} through {path.label}")
    found = [one for one in programs.records(done.stdout) if one["program"] == "mpi_share"]
    if len(found) != 1:
        raise BenchError(f"{app.key}: mpi_share printed {len(found)} results instead of one")
    share_of_time = found[0]["mpi_us"] / found[0]["total_us"]
    return [{**record, "share": share_of_time} for record in app.read(done.stdout)]


class Results:
    """Of all sides that took turns."""

    def __init__(self, apps: Sequence[App], sides: Sequence[str], session: Session) -> None:
        self.apps = apps
        self.sides = sides
        self.session = session

    @property
    def samples(self) -> list[Sample]:
        return self.session.samples

    def parts(self) -> list[str]:
        return [part for app in self.apps for part in app.parts]

    def values(self, side: str, part: str, figure: str) -> list[float]:
        found = (one.value(part, SIZE, figure) for one in self.samples if one.side == side)
        return [value for value in found if value is not None]

    def comparisons(self) -> dict[Key, Ratio]:
        """To the processes of this host, round by round."""
        return comparisons(self.samples, self.parts(), self.sides, NATIVE)

    def as_dict(self) -> dict[str, object]:
        return {
            "sides": list(self.sides),
            "comparisons": dicts(self.comparisons(), NATIVE),
            "samples": [sample.as_dict() for sample in self.samples],
        }


def check(app: App, samples: Sequence[Sample]) -> None:
    """Raise when two runs of a program came to different results."""
    for part in app.parts:
        checks = [
            record[CHECK]
            for sample in samples
            for record in sample.records
            if record["test"] == part and CHECK in record
        ]
        for one in checks[1:]:
            same = (
                lammps.difference(checks[0], one) <= _SAME
                if isinstance(one, lammps.Result)
                else one == checks[0]
            )
            if not same:
                raise BenchError(
                    f"{part}: two runs came to different results",
                    hint="this is a defect: please report it with the two commands",
                )


def compare(
    apps: Sequence[App],
    sides: Sequence[str],
    guests: int,
    hypervisor: str,
    rounds: int,
    cpus: tuple[int, int],
    steps: Steps,
    stack: ExitStack,
) -> Results:
    """Run each program on every side in turns, one rank per guest and as many on this host."""
    require(apps)
    where: dict[str, Place] = {}
    host = Host(cpus, stack.enter_context(places.host_region()))
    if any(side.startswith("guests") for side in sides):
        steps.step(f"bringing up {guests} guests")
        lab = stack.enter_context(
            labs.up(f"apps-{os.getpid()}", guests, hypervisor, region_size=_REGION, progress=steps)
        )
        place = Guests(lab, cpus)
        where = {side: place for side in sides if side.startswith("guests")}
    where = {side: where.get(side, host) for side in sides}
    session = Session(lambda: floor.measure(cpus))

    def side(app: App, name: str) -> Side:
        return lambda: run(app, where[name], _PATHS[name], guests)

    def tell(app: App) -> Tell:
        return lambda name, number: steps.count(f"{app.key}, round {number}: {name}")

    for app in apps:
        session.alternate({name: side(app, name) for name in sides}, rounds, tell(app), most=rounds)
        check(app, session.samples)
    return Results(apps, sides, session)


def draw(path: Path, results: Results, title: str) -> None:
    """Write a PNG: the time of each program on each side, against processes of this host."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    parts, compared = results.parts(), results.comparisons()
    others = [side for side in results.sides if side != NATIVE]
    width = 0.8 / len(others)
    for index, side in enumerate(others):
        found = [compared.get((part, side, SIZE)) for part in parts]
        at = [number + (index - (len(others) - 1) / 2) * width for number in range(len(parts))]
        heights = [one.median if one else 0 for one in found]
        spread = [[one.median - one.low if one else 0 for one in found],
                  [one.high - one.median if one else 0 for one in found]]  # fmt: skip
        axes.bar(at, heights, width, yerr=spread, capsize=2, label=LABELS[side])
    axes.axhline(1, linestyle=":", color="grey")
    axes.set_xticks(range(len(parts)), parts, rotation=25, ha="right", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylabel("times as long as processes of this host")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3, axis="y")
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)
