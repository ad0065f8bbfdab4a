"""What `ivc bench paths` found, as a table and as the poster's figures 4 to 6."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..profile.words import percent
from .advection import BLOCK, BRIDGED, IVC, LABELS, PLACEMENTS, SIDES, Case, Grid, Results, text
from .report import ratio_cell
from .words import time_text

#: Told apart without colours, too: fill of computation, edge, marker.
_FILL = {BRIDGED: "#303030", IVC: "#4f9bd9", "native": "#e6e6e6"}
_MARK = {BRIDGED: "s", IVC: "o", "native": "^"}
#: Part of a panel's height above its bars, for the legend.
_ROOM = 0.25
CAPTION = "time of all steps, the slowest rank; in square brackets the part in MPI, mean over the ranks"


def table(results: Results) -> Table:
    """A row for each grid and placement."""
    out = Table(title=f"Advection of {text(results.program.cells)} cells, {results.program.steps} steps, {results.hosts} hosts")
    out.add_column("processes", no_wrap=True)
    out.add_column("placement", no_wrap=True)
    out.add_column("between hosts", justify="right")
    for side in SIDES:
        out.add_column(side, justify="right")
    compared = results.comparisons()
    for grid in results.grids():
        for case in (one for one in results.cases if one.grid == grid):
            cells = [_cell(results, case, side, compared) for side in SIDES]
            out.add_row(text(grid), "\n".join(case.names), percent(case.between), *cells)
        out.add_section()
    return out


def _cell(results: Results, case: Case, side: str, compared: Any) -> str:
    own, reference = (time_text(results.median(case, one) * 1e6) for one in (side, BRIDGED))
    words = f"{own} [{_share(results, case, side):.0%}]"
    if side != BRIDGED:
        found = compared.get((case.test, side, 0))
        words += "\n" + (ratio_cell(own, reference, found).replace("\n", " ") if found else "no comparable round")
    return words.replace("[", "\\[")


def _share(results: Results, case: Case, side: str) -> float:
    return results.median(case, side, "communication_s") / results.median(case, side)


def draw(path: Path, results: Results, title: str) -> None:
    """Write a PNG: figure 4 with a panel for each placement, below it figures 5 and 6."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 13.5), layout="constrained")
    FigureCanvasAgg(figure)
    rows = figure.add_gridspec(4, 2, height_ratios=(1, 1, 1, 1.5))
    panels: list[Any] = []
    for number, name in enumerate(PLACEMENTS):
        panels.append(figure.add_subplot(rows[number, :], sharey=panels[0] if panels else None))
        _times(panels[-1], results, name)
    panels[0].legend(handles=_handles(), fontsize=8, ncols=len(SIDES), loc="upper left")
    _split(figure.add_subplot(rows[3, 0]), results)
    _speedup(figure.add_subplot(rows[3, 1]), results)
    figure.suptitle(
        f"Advection, {text(results.program.cells)} cells, {results.program.steps} steps, {results.hosts} hosts\n{title}", fontsize=9
    )
    figure.savefig(path, dpi=100)


def _handles() -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=_FILL[side], edgecolor="black", label=f"{side}: {LABELS[side]}") for side in SIDES]


def _bar(axes: Any, index: int, sides: int, values: Sequence[float], **style: Any) -> None:
    """The bars of one side, beside those of the others."""
    width = 0.8 / sides
    at = [number + (index - (sides - 1) / 2) * width for number in range(len(values))]
    axes.bar(at, values, width, edgecolor="black", linewidth=0.5, **style)


def _times(axes: Any, results: Results, name: str) -> None:
    """Figure 4: the total time by grid and path, for one placement."""
    all_grids = results.grids()
    for index, side in enumerate(SIDES):
        values = [results.median(results.case(grid, name), side) for grid in all_grids]
        _bar(axes, index, len(SIDES), values, color=_FILL[side])
    axes.set_xticks(range(len(all_grids)), map(text, all_grids), rotation=35, ha="right", fontsize=8)
    axes.set_title(f"Total time, placement: {name}", fontsize=10)
    axes.set_ylabel("seconds")
    axes.margins(x=0.01, y=_ROOM)
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)


def _lines(results: Results) -> list[Grid]:
    return [grid for grid in results.grids() if grid[1:] == (1, 1)]


def _split(axes: Any, results: Results) -> None:
    """Figure 5: computation, and above it communication, for p x 1 x 1."""
    lines = _lines(results)
    for index, side in enumerate(SIDES):
        found = [results.case(grid, BLOCK) for grid in lines]
        whole = [results.median(case, side) for case in found]
        inside = [results.median(case, side, "communication_s") for case in found]
        rest = [max(0.0, one - other) for one, other in zip(whole, inside)]
        _bar(axes, index, len(SIDES), rest, color=_FILL[side])
        _bar(axes, index, len(SIDES), inside, bottom=rest, color="white", hatch="////")
    axes.set_xticks(range(len(lines)), map(text, lines))
    axes.set_title(f"Computation (filled) and time in MPI (hatched), placement: {BLOCK}", fontsize=10)
    axes.set_ylabel("seconds")
    axes.grid(alpha=0.3, axis="y")
    axes.set_axisbelow(True)
    axes.margins(y=_ROOM)
    axes.legend(handles=_handles(), fontsize=8, loc="upper left")


def _speedup(axes: Any, results: Results) -> None:
    """Figure 6: what a path gains over the network, against what goes between hosts; each round is a point."""
    for side in SIDES[1:]:
        points = [
            (case.between * 100, reference / own)
            for case in results.cases
            for reference, own in zip(results.values(case, BRIDGED), results.values(case, side))
        ]
        axes.scatter(*zip(*points), s=18, marker=_MARK[side], color=_FILL[side], edgecolor="black", linewidth=0.5, label=side)
    axes.axhline(1, linestyle=":", color="grey")
    axes.set_yscale("log", base=2)
    low, high = (math.floor(math.log2(axes.get_ylim()[0])), math.ceil(math.log2(axes.get_ylim()[1])))
    axes.set_yticks([2.0**n for n in range(low, high + 1)], [f"{2.0**n:g}" for n in range(low, high + 1)])
    axes.set_xlim(-3, 103)
    axes.set_title("Speed-up over all by network", fontsize=10)
    axes.set_xlabel("messages between hosts, % of all")
    axes.set_ylabel("times as fast")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
