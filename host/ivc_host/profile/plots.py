"""Plots of a profile as SVG, to be put into a page. All are readable in grey."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display is needed, and none is looked for

import numpy as np  # noqa: E402
from matplotlib import colors, patches, pyplot, ticker  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from . import figures  # noqa: E402
from .model import NAMES, PATHS, Pair, Path_, Profile  # noqa: E402
from .words import bytes_text, class_text, count_text  # noqa: E402

#: From light to dark: what should catch the eye, the network, is the darkest.
_GREY: dict[Path_, str] = {"memory": "#d0d0d0", "mpi": "#8f8f8f", "network": "#202020"}
_HATCH: dict[Path_, str] = {"memory": "", "mpi": "///", "network": ""}
#: So many ranks are named on an axis at most.
_TICKS = 16

#: A cell is a cell at any size of the page.
_CELLS: Any = {"interpolation": "none"}

_STYLE: Any = {"svg.fonttype": "path", "svg.hashsalt": "ivc", "font.size": 9}


def _svg(draw: Callable[[Axes], None], width: float, height: float) -> str:
    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(figsize=(width, height), layout="constrained")
        draw(axes)
        return _text(figure)


def _text(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]  # the page has a head of its own


def _matrix(profile: Profile, measure: Callable[[Pair], float]) -> Any:
    matrix = np.zeros((profile.size, profile.size))
    for pair in profile.between_ranks():
        matrix[pair.sender, pair.receiver] = measure(pair)
    return matrix


def _ranks(axes: Axes, size: int) -> None:
    """Whole numbers, so far apart that they do not touch."""
    step = next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 256, 512, 1024, size) if size / step <= _TICKS)
    numbers = list(range(0, size, step))
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_yticks(numbers, [str(number) for number in numbers])
    axes.set_xlabel("receiver (rank)")
    axes.set_ylabel("sender (rank)")


def heat(profile: Profile, measure: Callable[[Pair], float], unit: str) -> str:
    """Dark is much. The scale is logarithmic: pairs differ by orders of magnitude."""
    text = bytes_text if unit == "bytes" else count_text
    matrix = _matrix(profile, measure)
    found = matrix[matrix > 0]

    def draw(axes: Axes) -> None:
        low, high = (found.min(), found.max()) if found.size else (1, 1)
        scale = colors.LogNorm(low, high if high > low else low * 10)
        shades = pyplot.get_cmap("Greys")(np.linspace(0.15, 1, 256))
        image = axes.imshow(np.ma.masked_equal(matrix, 0), cmap=colors.ListedColormap(shades), norm=scale, **_CELLS)
        axes.set_facecolor("white")
        _ranks(axes, profile.size)
        bar = axes.figure.colorbar(image, ax=axes, label=unit, shrink=0.85)
        bar.ax.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: text(value)))
        bar.ax.yaxis.set_minor_formatter(ticker.NullFormatter())
        if high < low * 10:  # no power of ten may lie in between
            bar.set_ticks([low] if high <= low else [low, high])

    return _svg(draw, 5.2, 4.3)


def path_map(profile: Profile) -> str:
    """By which path most bytes of each pair went."""
    number = {path: index + 1.0 for index, path in enumerate(_GREY)}
    matrix = _matrix(profile, lambda pair: number[path] if (path := figures.main_path(pair)) else 0.0)

    def draw(axes: Axes) -> None:
        palette = colors.ListedColormap(["white", *_GREY.values()])
        axes.imshow(matrix, cmap=palette, vmin=-0.5, vmax=len(_GREY) + 0.5, **_CELLS)
        _ranks(axes, profile.size)
        shown = [patches.Patch(facecolor="white", edgecolor="black", label="nothing sent")]
        shown += [patches.Patch(facecolor=shade, edgecolor="black", label=NAMES[path]) for path, shade in _GREY.items()]
        axes.figure.legend(handles=shown, loc="outside lower center", ncols=2, frameon=False)

    return _svg(draw, 5.2, 4.9)


def sizes(profile: Profile) -> str | None:
    """Messages by size, one bar per class, paths on top of each other."""
    used = {path: by for path in PATHS if (by := profile.sizes.get(path)) and any(one.messages for one in by.values())}
    if not used:
        return None
    keys = range(min(min(by) for by in used.values()), max(max(by) for by in used.values()) + 1)

    def draw(axes: Axes) -> None:
        width = 0.8 / len(used)
        for index, (path, by) in enumerate(used.items()):
            at = [key - keys[0] + (index - (len(used) - 1) / 2) * width for key in keys]
            counts = [by[key].messages if key in by else 0 for key in keys]
            axes.bar(at, counts, width, color=_GREY[path], edgecolor="black", hatch=_HATCH[path], label=NAMES[path])
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.5)
        step = -(-len(keys) // 14)
        axes.set_xticks(range(0, len(keys), step), [class_text(key) for key in keys[::step]], rotation=45, ha="right")
        axes.set_xlabel("size of the message, up to")
        axes.set_ylabel("messages")
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: count_text(value)))
        axes.figure.legend(loc="outside right upper", frameon=False)

    return _svg(draw, 8.5, 3.2)


def time_line(profile: Profile) -> str | None:
    """The share of memory in each stretch of time, over the bytes per second."""
    steps = profile.steps
    if not any(step.memory or step.network for step in steps):
        return None
    edges = [step.begin for step in steps] + [steps[-1].end]
    shares = [100 * step.memory / whole if (whole := step.memory + step.network) else np.nan for step in steps]
    rates = [(step.memory + step.network) / max(1e-9, step.end - step.begin) / 1e6 for step in steps]
    with pyplot.rc_context(_STYLE):
        figure, panels = pyplot.subplots(2, 1, figsize=(8.5, 3.8), sharex=True, layout="constrained")
        panels[0].stairs(shares, edges, fill=True, color=_GREY["mpi"], baseline=0)
        panels[0].set_ylim(0, 103)
        panels[0].set_ylabel("by memory\n(% of bytes)")
        panels[1].stairs(rates, edges, fill=True, color=_GREY["mpi"])
        panels[1].set_ylim(bottom=0)
        panels[1].set_ylabel("all ranks\n(MB/s)")
        panels[1].set_xlabel("time since the job's begin (s)")
        panels[1].set_xlim(edges[0], edges[-1])
        figure.align_ylabels(list(panels))
        return _text(figure)


def calls(rows: Sequence[tuple[str, int, float, int]]) -> str | None:
    """Where the time in MPI went."""
    shown = [row for row in rows if row[2] > 0][:12][::-1]
    if not shown:
        return None

    def draw(axes: Axes) -> None:
        axes.barh([row[0] for row in shown], [row[2] for row in shown], color=_GREY["mpi"], edgecolor="black")
        axes.set_xlabel("time in the call, sum over all ranks (s)")

    return _svg(draw, 8.5, 0.9 + 0.27 * len(shown))
