"""Moderation of wake-ups: what it does to latency, and to the processor time of both sides.

Measured by `bench_wake`, whose receiver sleeps whenever it has nothing: the trade-off that network
cards have with interrupts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from . import places, programs
from .programs import Record

#: Values of IVC_MODERATION: microseconds between two wake-ups.
SETTINGS = ("0", "20", "50", "100", "200", "500", "1000", "adaptive")
#: Microseconds between two messages of a stream.
INTERVALS = (5, 20, 50, 200)
_ANSWER_INTERVAL = 50
_REGION = 16 << 20


def kinds() -> list[tuple[str, int]]:
    """Test, and the distance of its messages."""
    return [("stream", interval) for interval in INTERVALS] + [("answer", _ANSWER_INTERVAL)]


def measure(test: str, interval: int, setting: str, pair: tuple[int, int], seconds: float) -> Record:
    with places.host_region(_REGION) as region:
        argv = [str(programs.find("bench_wake")), "--test", test, "--interval", str(interval)]
        argv += ["--seconds", str(seconds), "--cpus", f"{pair[0]},{pair[1]}", "--region", str(region)]
        done = programs.run(argv, env={"IVC_MODERATION": setting}, timeout=120 + 20 * seconds)
    return programs.checked(done, f"bench_wake, IVC_MODERATION={setting}")[0]


def sweep(pair: tuple[int, int], rounds: int, seconds: float, step: Callable[[str], None]) -> list[Record]:
    """A record for each test, distance and setting: of several runs, in turns, the median of each figure."""
    found: dict[tuple[str, int, str], list[Record]] = {}
    for number in range(rounds):
        for test, interval in kinds():
            for setting in SETTINGS:
                step(f"{test}, every {interval} us, IVC_MODERATION={setting}, round {number + 1}")
                record = measure(test, interval, setting, pair, seconds)
                found.setdefault((test, interval, setting), []).append(record)
    return [{**programs.median(records), "setting": key[2]} for key, records in found.items()]


def label(record: Record) -> str:
    """What was sent."""
    if record["test"] == "answer":
        return f"answered, {record['interval_us']:g} us apart"
    return f"one way, every {record['interval_us']:g} us"


def draw(path: Path, records: Sequence[Record], title: str) -> None:
    """Write a PNG: latency, and processor time of both sides, against the setting."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    figures = (
        ("p50_us", "Latency, median (dotted: p99)", "us"),
        ("receiver_cpu_us", "Processor time of the receiver, per message", "us"),
        ("send_us", "Time of a call that sends", "us"),
    )
    lines: dict[str, list[Record]] = {}
    for record in records:
        lines.setdefault(label(record), []).append(record)
    for axes, (key, what, unit) in zip(panels, figures, strict=True):
        for name, own in lines.items():
            at = [SETTINGS.index(record["setting"]) for record in own]
            line = axes.plot(at, [record[key] for record in own], marker="o", markersize=4, label=name)[0]
            if key == "p50_us":
                tail = [record["p99_us"] for record in own]
                axes.plot(at, tail, linestyle=":", linewidth=1, color=line.get_color())
        axes.set_xticks(range(len(SETTINGS)), SETTINGS, fontsize=8)
        axes.set_xlabel("IVC_MODERATION")
        axes.set_ylabel(unit)
        axes.set_yscale("log")
        axes.set_title(what, fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=7)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)
