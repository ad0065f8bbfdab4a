"""The demo's tables, words and picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from . import machine
from .compare import ratio
from .summary import Row, rows
from .words import paired_text, quotient_text, rate_text, size_text, time_text

if TYPE_CHECKING:
    from ..demo import Demo

_WAYS = ("network", "ivc", "native")
_LABELS = {
    "network": "two guests, their network (tcp)",
    "ivc": "two guests, ivc",
    "native": "two processes of the host (vader)",
}
#: What the kind of guest means for the figures.
_MEANING = {
    "uml": "What a guest computes, and what it does in shared memory, runs at the host's own "
    "speed: the ivc column is what ivc does. The network goes through a kernel that is itself a "
    "process, with slow system calls: hardware-virtualised guests have a faster one (virtio), so "
    "there the ratio is smaller.",
    "kvm": "Guests run on the processor itself; network and memory are what such guests have.",
    "tcg": "Every instruction of a guest is translated in software, memory and network alike: "
    "the figures show that it works with a real ivshmem device, not how fast it is.",
}


def meaning(hypervisor: str, description: str) -> str:
    if hypervisor == "uml":
        return _MEANING["uml"]
    return _MEANING["kvm" if "KVM" in description else "tcg"]


def _text(row: Row) -> str:
    if row.test == "bandwidth":
        return rate_text(row.figures["MB_s"])
    return time_text(row.figures["typical_us"])


def _sweep(demo: Demo, test: str, title: str) -> Table:
    found = {(row.side, row.bytes): row for row in rows(demo.sweep) if row.test == test}
    table = Table(title=title)
    for name in ("size", "network", "ivc", "speed-up", "native", "of native"):
        table.add_column(name, justify="right")
    for size in sorted({key[1] for key in found}):
        table.add_row(
            size_text(size),
            _text(found["network", size]),
            _text(found["ivc", size]),
            _times(demo, found, "network", test, size),
            _text(found["native", size]),
            _times(demo, found, "native", test, size),
        )
    return table


def _times(
    demo: Demo, found: dict[tuple[str, int], Row], reference: str, test: str, size: int
) -> str:
    """How many times as fast ivc is, by the row's own figures, then round by round where that differs;
    `~` where no round had both sides in one state."""
    more_is_better = test == "bandwidth"
    ours, theirs = (_text(found[way, size]) for way in ("ivc", reference))
    times = quotient_text(ours, theirs) if more_is_better else quotient_text(theirs, ours)
    metric = "MB_s" if more_is_better else "typical_us"
    one = ratio(demo.sweep, "ivc", reference, test, size, metric)
    if one is None:
        return f"~{times} x"
    paired = paired_text(times, one.median if more_is_better else 1 / one.median)
    return f"{times} x ({paired} x)" if paired else f"{times} x"


def _lammps(demo: Demo) -> Table:
    plan = demo.plan
    one = demo.median_lammps("ivc")
    table = Table(
        title=f"LAMMPS, {plan.source.name}: {one.atoms} atoms, {one.steps} steps, "
        f"{plan.ranks} ranks"
    )
    for name in ("", "network", "ivc", "native"):
        table.add_column(name, justify="right" if name else "left")
    results = {way: demo.median_lammps(way) for way in _WAYS}
    loops = {way: f"{results[way].loop_s:.3f} s" for way in _WAYS}
    table.add_row("loop time", *loops.values())
    table.add_row("of it Comm", *(f"{results[way].comm_s:.3f} s" for way in _WAYS))
    table.add_row("Comm share", *(f"{results[way].comm_percent:.1f} %" for way in _WAYS))
    table.add_row("times as fast", *(quotient_text(loops["network"], loops[w]) for w in _WAYS))
    return table


def _physics(demo: Demo) -> str:
    lines = len(demo.median_lammps("ivc").thermo)
    apart = demo.difference()
    runs = sum(len(results) for results in demo.lammps_runs.values())
    if apart == 0:
        return f"Physics: all {runs} runs printed the same {lines} lines of state, digit by digit."
    return (
        f"Physics: the {lines} lines of state of all {runs} runs agree within {apart:.1e} "
        "(relative to each column's largest value)."
    )


def show(demo: Demo, console: Console, took: float) -> None:
    """Everything in words and tables."""
    console.print(_sweep(demo, "latency", "Latency, one way"))
    console.print(_sweep(demo, "bandwidth", "Bandwidth, one way"))
    if demo.plan.ranks > 2:
        console.print(_sweep(demo, "alltoall", f"All-to-all of {demo.plan.ranks} ranks"))
    console.print(
        "speed-up: ivc against the network; of native: ivc against two processes of this host; "
        "more is better. In brackets: the median of the rounds' own ratios, where it is more than 5 % "
        "away. ~: the processors moved apart or together between the two. With ivc large "
        "blocks of malloc() lie in the shared memory (`ivc env --heap`).",
        highlight=False,
    )
    console.print(_lammps(demo))
    console.print(_physics(demo), highlight=False)
    console.print(
        f"Through shared memory in the LAMMPS runs over ivc: {demo.memory.packets} packets, "
        f"{demo.memory.bytes / 1e6:.1f} MB, and {demo.memory.read_bytes / 1e6:.1f} MB read where they lay.",
        highlight=False,
    )
    console.print(
        f"Guests: {demo.guest}. {meaning(demo.plan.hypervisor, demo.guest)}", highlight=False
    )
    if demo.plan.ranks > 2:
        console.print(
            "Four ranks: two in each guest, because ranks that wait yield to each other inside a "
            "guest, while four guests would fight for two processors. Latency and bandwidth are "
            "between one rank of each guest; all-to-all and LAMMPS use all four. There ranks share "
            "a processor, over ivc with the scheduling policy round robin (chrt --rr 1).",
            highlight=False,
        )
    console.print(f"Machine: {machine.line()}. Took {took:.0f} s.", highlight=False)


def draw(demo: Demo, path: Path) -> None:
    """The plot."""
    from . import plot  # half a second to import

    tests = ["latency", "bandwidth"] + (["alltoall"] if demo.plan.ranks > 2 else [])
    title = f"{demo.guest}\n{machine.line()}"
    plot.draw(path, rows(demo.sweep), tests, _LABELS, title)
