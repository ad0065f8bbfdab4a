"""Many ranks in one region: what each costs of its memory, and what the others cost each in time.

Measured by `bench_many`, whose ranks are endpoints of one thread; every message is
checked. As the bounds of the gate: how much longer with many ranks than with two, in turns.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import IvcError
from . import places, programs
from .gate import FAILED, PASSED, UNMEASURED
from .programs import Record
from .words import quotient_text

#: What a rank's share of the region should be: enough for rings to everybody it talks to.
_REGION_PER_RANK = 2 << 20
_REGION_MIN = 16 << 20
#: How many ranks a job of the targets has, and with how many others each of them talks.
RANKS = 1024
TALKERS = 32


def region_size(ranks: int) -> int:
    """A power of two."""
    return max(_REGION_MIN, 1 << (ranks * _REGION_PER_RANK - 1).bit_length())


def check_room(ranks: int) -> None:
    """Raise when /dev/shm cannot hold what the ranks will write."""
    free = shutil.disk_usage("/dev/shm").free
    needed = ranks * (TALKERS * 24 + 256) * 1024
    if free < needed:
        raise programs.BenchError(
            f"{ranks} ranks need {needed >> 20} MiB in /dev/shm, {free >> 20} MiB are free",
            hint="fewer ranks: --ranks",
        )


def measure(ranks: int, talkers: int) -> Record:
    """One run in a fresh region: a minute for 1,024 ranks, each of which has a thread that looks after
    the region ten times a second. Those need a processor besides the one that is measured."""
    with places.host_region(region_size(ranks)) as region:
        argv = [str(programs.find("bench_many"))]
        argv += ["--ranks", str(ranks), "--talkers", str(talkers), "--region", str(region)]
        return programs.checked(programs.run(argv, timeout=300), f"bench_many, {ranks} ranks")[0]


def sweep(
    ranks: Sequence[int], talkers: int, rounds: int, step: Callable[[str], None]
) -> list[Record]:
    """A record for each number of ranks: of several runs, in turns, the median of each figure."""
    check_room(max(ranks))
    found: dict[int, list[Record]] = {count: [] for count in ranks}
    for number in range(rounds):
        for count in ranks:
            step(f"{count} ranks, round {number + 1}")
            found[count].append(measure(count, talkers))
    return [programs.median(records) for records in found.values()]


@dataclass(frozen=True)
class Bound:
    key: str
    text: str
    #: A figure of bench_many.
    figure: str
    #: With RANKS ranks at most so many bytes, or so many times what it is with two.
    most_bytes: int | None = None
    most_times: float | None = None


BOUNDS = (
    Bound("many-silent", "region memory of a rank that has not sent", "joined_bytes_per_rank",
          most_bytes=256 << 10),
    Bound("many-talking", "region memory of a rank that talks to 32", "talking_bytes_per_rank",
          most_bytes=1 << 20),
    Bound("many-idle", "turn of an idle rank, silent peers", "progress_silent_us", most_times=1.2),
    Bound("many-known", "turn of an idle rank, all have sent once", "progress_known_us",
          most_times=1.2),
    Bound("many-message", "message of 64 B from one of them", "message_us", most_times=1.2),
)  # fmt: skip


@dataclass(frozen=True)
class BoundVerdict:
    bound: Bound
    outcome: str
    #: With two ranks (None: only many matter), and with many.
    few: float | None = None
    many: float | None = None
    reason: str | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def _verdict(bound: Bound, few: Record, many: Record) -> BoundVerdict:
    found = many[bound.figure]
    if bound.most_bytes is not None:
        outcome = PASSED if found <= bound.most_bytes else FAILED
        return BoundVerdict(bound, outcome, None, found)
    assert bound.most_times is not None
    outcome = PASSED if found <= bound.most_times * few[bound.figure] else FAILED
    return BoundVerdict(bound, outcome, few[bound.figure], found)


def judge(
    bounds: Sequence[Bound], rounds: int, step: Callable[[str], None]
) -> list[BoundVerdict]:
    try:
        few, many = sweep((2, RANKS), TALKERS, rounds, step)
    except IvcError as error:
        return [BoundVerdict(one, UNMEASURED, reason=str(error)) for one in bounds]
    return [_verdict(bound, few, many) for bound in bounds]


def line(verdict: BoundVerdict) -> str:
    """target: figure, with how many ranks, bound: outcome."""
    bound = verdict.bound
    if verdict.many is None:
        return f"{bound.text}: not measured: {verdict.reason}"
    if bound.most_bytes is not None:
        return (
            f"{bound.text}, {RANKS} ranks: {verdict.many / 1024:.0f} KiB, bound <= "
            f"{bound.most_bytes >> 10} KiB: {verdict.outcome}"
        )
    assert verdict.few is not None
    many, few = (f"{us * 1000:.1f} ns" for us in (verdict.many, verdict.few))
    return (
        f"{bound.text}, {RANKS} ranks: {many}, 2 ranks: "
        f"{few}, {quotient_text(many, few)} times, bound <= "
        f"{bound.most_times:.2f}: {verdict.outcome}"
    )


def draw(path: Path, records: Sequence[Record], title: str) -> None:
    """Write a PNG: memory of a rank, and times, against the number of ranks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    memory, times = figure.subplots(1, 2)
    ranks = [record["ranks"] for record in records]
    talkers = max(record["talkers"] for record in records)
    panels = (
        (memory, 1 / 1024, (("joined_bytes_per_rank", "nobody has sent"),
                            ("talking_bytes_per_rank", f"each has sent to {talkers:g} others"))),
        (times, 1000, (("progress_silent_us", "idle turn, nobody has sent"),
                       ("progress_known_us", "idle turn, each has sent once"),
                       ("message_us", "message of 64 B, both sides"))),
    )  # fmt: skip
    for axes, scale, lines in panels:
        for key, label in lines:
            values = [record[key] * scale for record in records]
            axes.plot(ranks, values, marker="o", markersize=4, label=label)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, [f"{count:g}" for count in ranks])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("ranks in one region")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    for kib in (256, 1024):
        memory.axhline(kib, linestyle=":", color="grey")
    memory.set_title("Memory of the region, per rank (dotted: the bounds at 1,024)", fontsize=10)
    memory.set_ylabel("KiB")
    times.set_title("Time, on one processor", fontsize=10)
    times.set_ylabel("ns")
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)
