"""Plots: one panel per test, a line per side, logarithmic scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none is looked for

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from .summary import Row  # noqa: E402
from .words import size_text  # noqa: E402

_TIMES = ("latency", "alltoall", "ring", "allreduce", "put", "get")
_TITLES = {
    "latency": "Latency, one way",
    "bandwidth": "Bandwidth",
    "bidir": "Bandwidth, both ways",
    "rate": "Message rate",
    "incast": "Many to one",
    "alltoall": "All-to-all",
    "ring": "Round all ranks, one way",
    "allreduce": "All-reduce",
    "put": "Put",
    "get": "Get",
}


def _figure(row: Row) -> float | None:
    if row.test in _TIMES:
        return row.figures["typical_us"]
    if row.test == "rate":
        return row.figures["messages_s"] / 1e6
    return row.figures.get("MB_s", 0) / 1000 or None


def _unit(test: str) -> str:
    return "us" if test in _TIMES else "million messages/s" if test == "rate" else "GB/s"


def panel(axes: Axes, test: str, rows: Sequence[Row], labels: Mapping[str, str]) -> None:
    """Draw one test. Sizes of 0 have no place on a logarithmic scale and are left out."""
    for side, label in labels.items():
        own = sorted((r for r in rows if r.side == side and r.test == test), key=lambda r: r.bytes)
        points = [(r.bytes, _figure(r)) for r in own if r.bytes and _figure(r)]
        if not points:
            continue
        line = axes.plot(*zip(*points), marker="o", markersize=3, label=label)[0]
        if test in _TIMES:  # tails are where virtual machines hurt
            tail = [(r.bytes, r.figures["p99_us"]) for r in own if r.bytes]
            axes.plot(*zip(*tail), linestyle=":", linewidth=1, color=line.get_color())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes = sorted({r.bytes for r in rows if r.test == test and r.bytes})
    ticks = sizes[:: max(1, len(sizes) // 6)]
    axes.set_xticks(ticks, [size_text(size) for size in ticks], fontsize=7)
    axes.set_title(_TITLES.get(test, test) + (" (dotted: p99)" if test in _TIMES else ""))
    axes.set_ylabel(_unit(test))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def draw(
    path: Path, rows: Sequence[Row], tests: Sequence[str], labels: Mapping[str, str], title: str
) -> None:
    """Write a PNG with a panel per test."""
    tests = [test for test in tests if any(row.test == test for row in rows)]
    columns = min(2, len(tests))
    lines = -(-len(tests) // columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(6 * columns, 3.8 * lines), squeeze=False, layout="constrained"
    )
    for axes, test in zip(grid.flat, tests):
        panel(axes, test, rows, labels)
    for axes in grid.flat[len(tests) :]:
        axes.set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
