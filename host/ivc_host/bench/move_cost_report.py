"""What a move costs, step by step: the table, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.table import Table

from .move_cost import TOUCHED, Cost, Costs, Result
from .wire import Net

_HOUR = 3600.0
_COLOURS = ("#1f4e9c", "#c4621a", "#2b7a3f", "#7a2b6e", "#8c6d1f", "#2f8f9d", "#555555")


def table(costs: Costs) -> Table:
    """A column for each path and network of the migration: medians of the runs."""
    plan = costs.plan
    out = Table(title=f"LAMMPS, {4 * plan.cells**3} atoms, {plan.steps} steps: what one move costs")
    out.add_column("path; migration's network")
    found = costs.costs()
    for one in found:
        out.add_column(f"{one.side}; {one.net}", justify="right")
    for label, cells in zip(_ROWS, zip(*map(_cells, found), strict=True), strict=True):
        out.add_row(label, *cells)
    return out


_ROWS = ("overhead", "the same in seconds", "steps touched", "longest step", "usual step", "the move took",
         "the guest stood still", "bytes moved", "of a run of 1 h", "of a run of 24 h")  # fmt: skip


def _cells(one: Cost) -> list[str]:
    return [
        f"{one.percent:.1f} %",
        f"{one.seconds:.2f} s",
        f"{one.touched:g} ({one.touched_still:g})",
        f"{one.longest:.2f} s",
        f"{one.usual * 1000:.0f} ms",
        f"{one.took:.1f} s",
        f"{one.down:.2f} s",
        f"{one.bytes / 1e6:.0f} MB",
        f"{100 * one.seconds / _HOUR:.3f} %",
        f"{100 * one.seconds / (24 * _HOUR):.4f} %",
    ]


def legend(costs: Costs) -> str:
    """What the table's words mean."""
    plan = costs.plan
    return (
        f"Medians of {plan.rounds} runs each, those in which nobody moved beside them. A step is touched that "
        f"takes more than {TOUCHED:g} times the usual one (in brackets: in runs without a move). Seed "
        f"{plan.seed}. All {len(costs.results)} runs printed the same energies. Guests: {costs.guest}."
    )


def draw(path: Path, costs: Costs, title: str) -> None:
    """Time of each step of the last run of each kind; what a move took is shaded."""
    sides = list(costs.plan.sides)
    figure = Figure(figsize=(6.5 * len(sides) + 2, 4.4), layout="constrained")
    FigureCanvasAgg(figure)  # no display is needed, and none is looked for
    for axes, side in zip(figure.subplots(1, len(sides), squeeze=False)[0], sides):
        kinds: Sequence[Net | None] = [None, *costs.plan.nets]
        for net, colour in zip(kinds, _COLOURS):
            run = costs.of(side, net)[-1]
            label = "nobody moves" if net is None else f"a guest moves, network {net}"
            axes.plot(range(1, len(run.ends)), run.times(), ".-", linewidth=0.6, markersize=3,
                      color=colour, label=label)  # fmt: skip
            if run.trip:
                axes.axvspan(*_steps_of(run), color=colour, alpha=0.12, zorder=0)
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel("seconds")
        axes.set_title(f"Time of each step, {side}")
        axes.legend(fontsize=7)
    figure.suptitle(title, fontsize=8)
    figure.savefig(path, dpi=130)


def _steps_of(run: Result) -> tuple[float, float]:
    """Between which steps it moved; part of one counts as such."""
    assert run.trip is not None
    return _step_at(run.ends, run.trip.begin), _step_at(run.ends, run.trip.end)


def _step_at(ends: Sequence[float], at: float) -> float:
    for number, (before, after) in enumerate(zip(ends, ends[1:])):
        if at < after:
            return number + max(0.0, at - before) / max(after - before, 1e-9)
    return float(len(ends) - 1)
