"""The migration demo's tables, words and picture."""

from __future__ import annotations

import statistics
from bisect import bisect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from . import machine
from .trace import longest_gap
from .words import rate_text, size_text, time_text

if TYPE_CHECKING:
    from ..demo_migrate import Loaded, Shown
    from ..moves import Move

#: What `ivc migrate` tells, in the order in which it happens, and how people call it.
_STEPS = (
    ("suspend", "memory is given up"),
    ("suspend-done", "all have answered"),
    ("detach-done", "device gone"),
    ("switch-done", "runs on the other host"),
    ("attach-done", "new device"),
)
_COLOURS = {"memory": "#e3f1e3", "network": "#f8ead8"}      # by the first word of a phase
_TITLES = {"latency": "Latency of {size}, one way", "bandwidth": "Bandwidth, {size}"}
_UNITS = {"latency": "us, one way", "bandwidth": "MB/s"}


def _phases(shown: Shown) -> Table:
    table = Table(title=_title(shown))
    for name in ("phase", "median", "longest iteration", "seconds", "iterations"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    medians = shown.medians()
    for name, (begin, end) in shown.phases().items():
        inside = [one.us for one in shown.points if begin <= one.time <= end]
        longest = time_text(max(inside)) if inside else ""
        value = _figure_text(shown, medians[name])
        table.add_row(name, value, longest, f"{end - begin:.1f}", str(len(inside)))
    return table


def _title(shown: Shown) -> str:
    return _TITLES[shown.plan.test].format(size=size_text(shown.plan.size))


def _figure_text(shown: Shown, us: float | None) -> str:
    if not us:
        return ""
    figure = shown.plan.figure(us)
    return rate_text(figure) if shown.plan.window else time_text(figure)


def _compared(shown: Shown) -> str:
    first, _, third = shown.medians().values()
    return f"The third phase takes {third / first:.2f} times the first. " if first and third else ""


def _moves(moves: list[Move], shown: Shown) -> Table:
    table = Table(title="The moves, seconds after each was asked for")
    table.add_column("")
    for one in moves:
        table.add_column(f"{one.guest} to {one.to}", justify="right")
    for name, text in _STEPS:
        times = [(one.at(name), one.begin) for one in moves]
        table.add_row(text, *(f"{at - begin:.2f}" if at else "" for at, begin in times))
    table.add_row("done", *(f"{one.end - one.begin:.2f}" for one in moves), end_section=True)
    gaps = [longest_gap(shown.points, one.begin, one.end) for one in moves]
    table.add_row("longest time without a message", *(f"{gap:.2f}" for gap in gaps))
    return table


def _lammps(loaded: Loaded) -> Table:
    one = loaded.undisturbed[0]
    table = Table(title=f"LAMMPS: {one.atoms} atoms, {one.steps} steps, 2 ranks")
    for name in ("", "undisturbed", "a guest moves away and back"):
        table.add_column(name, justify="right" if name else "left")
    for label, pick in (("loop time", "loop_s"), ("of it Comm", "comm_s")):
        medians = (
            statistics.median(getattr(r, pick) for r in runs)
            for runs in (loaded.undisturbed, loaded.disturbed)
        )
        table.add_row(label, *(f"{value:.2f} s" for value in medians))
    return table


def show(shown: Shown, console: Console, took: float) -> None:
    """Everything in words and tables."""
    console.print(_phases(shown))
    console.print(_moves(shown.moves, shown))
    console.print(
        f"{_compared(shown)}{len(shown.points)} iterations, each message checked; the ranks sent "
        f"{shown.packets['memory']} packets through memory, {shown.packets['network']} bytes over the "
        "network.",
        highlight=False,
    )
    if shown.loaded is not None:
        console.print(_lammps(shown.loaded))
        console.print(
            f"Two moves cost LAMMPS {shown.loaded.cost:.2f} s (medians of "
            f"{len(shown.loaded.disturbed)} runs each). States that it printed differ by "
            f"{shown.loaded.difference():.1e} at most.",
            highlight=False,
        )
    console.print(
        f"Guests: {shown.guest}. Their clock is known within {shown.clock.error * 1000:.0f} ms. "
        f"Machine: {machine.line()}. Took {took:.0f} s.",
        highlight=False,
    )


def _places(shown: Shown) -> tuple[list[float], Callable[[float], float]]:
    """Where the points are drawn, and where a time is."""
    times = [one.time for one in shown.points]
    if shown.plan.axis == "iteration":
        return [float(number) for number in range(len(times))], lambda at: bisect(times, at)
    return [at - times[0] for at in times], lambda at: at - times[0]


def _mark_moves(axes: Axes, shown: Shown, place: Callable[[float], float]) -> None:
    for name, (begin, end) in shown.phases().items():
        axes.axvspan(place(begin), place(end), color=_COLOURS[name.split()[0]], zorder=0)
        middle = (place(begin) + place(end)) / 2
        axes.text(middle, 0.97, name, transform=axes.get_xaxis_transform(), ha="center", va="top")
    for one in shown.moves:
        for index, (name, text) in enumerate(_STEPS):
            at = one.at(name)
            if at is None:
                continue
            height = 0.02 + 0.27 * (index % 3)  # some are too near to each other for their names
            axes.axvline(place(at), color="#888888", linewidth=0.6, linestyle=":")
            axes.text(
                place(at), height, f" {text}", transform=axes.get_xaxis_transform(), rotation=90,
                fontsize=5, va="bottom", ha="right", color="#444444",
            )  # fmt: skip


def draw(shown: Shown, path: Path) -> None:
    """A point for each iteration, with the moves marked; and LAMMPS's times beside it."""
    loaded = shown.loaded
    columns = 2 if loaded else 1
    # No display is needed, and none is looked for.
    figure = Figure(figsize=(13 if loaded else 10, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    ratios = {"width_ratios": [4, 1][:columns]}
    grid = figure.subplots(1, columns, squeeze=False, gridspec_kw=ratios)
    axes = grid[0][0]
    at, place = _places(shown)
    axes.plot(at, [shown.plan.figure(one.us) for one in shown.points], ".", markersize=2, color="#1f4e9c")
    axes.set_yscale("log")
    axes.set_xlim(at[0], at[-1])
    _mark_moves(axes, shown, place)
    axes.set_xlabel("seconds" if shown.plan.axis == "time" else "iteration")
    axes.set_ylabel(_UNITS[shown.plan.test])
    axes.set_title(f"{_title(shown)}, while a guest moves to another host and back")
    if loaded:
        _draw_lammps(grid[0][1], loaded)
    figure.suptitle(f"{shown.guest}\n{machine.line()}", fontsize=8)
    figure.savefig(path, dpi=130)


def _draw_lammps(axes: Axes, loaded: Loaded) -> None:
    for at, runs in enumerate((loaded.undisturbed, loaded.disturbed)):
        seconds = [one.loop_s for one in runs]
        axes.bar(at, statistics.median(seconds), width=0.6, color=("#9db8d9", "#d9a679")[at])
        axes.plot([at] * len(seconds), seconds, "k.", markersize=4)
    axes.set_xticks([0, 1], ["undisturbed", "two moves"])
    axes.set_ylabel("LAMMPS loop time, s")
    axes.set_title(f"two moves cost {loaded.cost:.1f} s", fontsize=9)
