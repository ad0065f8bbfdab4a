"""Tables for people: rich's, and the gate's plain lines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from .. import stats
from . import apps, gate, wake, xen
from .compare import Key, Ratio, Sample
from .gate import Verdict
from .programs import Record
from .summary import Row, rows
from .words import paired_text, quotient_text, rate_text, ratio_text, size_text, time_text

TITLES = {
    "latency": "Latency, one way (p99 in brackets)",
    "bandwidth": "Bandwidth, one way",
    "bidir": "Bandwidth, both ways at once",
    "rate": "Message rate, all pairs",
    "incast": "Many to one",
    "alltoall": "All-to-all, one operation (p99 in brackets)",
    "ring": "Round all ranks, one way (p99 in brackets)",
    "allreduce": "All-reduce, one operation (p99 in brackets)",
    "put": "Put, one operation until it is there (p99 in brackets)",
    "get": "Get, one operation (p99 in brackets)",
}


def figure_text(row: Row) -> str:
    """The figure of a row that a person looks for."""
    if row.test in ("latency", "alltoall", "ring", "allreduce", "put", "get"):
        typical = time_text(row.figures["typical_us"])
        return f"{typical}\n[{time_text(row.figures['p99_us'])}]"
    if row.test in ("rate", "incast") and row.bytes < 1024:
        return f"{row.figures['messages_s'] / 1e6:.3g} M/s"
    if not row.bytes:
        return f"{row.figures['messages_s'] / 1e6:.3g} M/s"
    return rate_text(row.figures["MB_s"])


def table(
    test: str,
    samples: Sequence[Sample],
    sides: Sequence[str],
    reference: str,
    compared: Mapping[Key, Ratio],
) -> Table:
    """One test: a row per size, a column per side, and each side's ratio to the reference: by the
    figures in the row, then what the rounds' own ratios say."""
    found = {(row.side, row.bytes): row for row in rows(samples) if row.test == test}
    present = [side for side in sides if any(key[0] == side for key in found)]
    out = Table(title=TITLES.get(test, test))
    out.add_column("size", justify="right")
    for side in present:
        out.add_column(side, justify="right")
    others = [side for side in present if side != reference and reference in present]
    for side in others:
        out.add_column(f"{side} / {reference}", justify="right")
    for size in sorted({key[1] for key in found}):
        cells = [figure_text(found[s, size]) if (s, size) in found else "-" for s in present]
        for side in others:
            both = [figure_text(found[s, size]) for s in (side, reference) if (s, size) in found]
            one = compared.get((test, side, size))
            cells.append(ratio_cell(both[0], both[1], one) if len(both) == 2 and one else "-")
        out.add_row(size_text(size), *cells)
    return out


def ratio_cell(ours: str, reference: str, one: Ratio) -> str:
    """The quotient of two figures of the row; in brackets the interval of the rounds' ratio, with their median where it
    is another; and whether there is a difference."""
    quotient = quotient_text(*(text.splitlines()[0] for text in (ours, reference)))
    paired = paired_text(quotient, one.median)
    found = one.comparison
    spread = interval_text(found.interval) if found.interval else one.spread()
    return f"{quotient}\n({f'{paired}: ' if paired else ''}{spread})\n{found.verdict('faster', 'slower')}"


def interval_text(found: stats.Interval) -> str:
    return f"{ratio_text(found.low)} .. {ratio_text(found.high)}"


#: What the cells of `table` and `apps_table` mean.
CAPTION = (
    f"in brackets: the ratio's {stats.LEVEL:.0%} interval, or the range of fewer than {stats.LEAST_ROUNDS} rounds; "
    f"faster, slower: P < {stats.ALPHA:g} after Holm's correction over the table"
)


def comparison_table(
    tests: Sequence[str], side: str, reference: str, compared: Mapping[Key, Ratio]
) -> Table:
    """Two sides: a row per size, or per part of several, with all that the statistics say."""
    several = len(tests) > 1
    out = Table(title=f"{side} / {reference}" if several else f"{tests[0]}: {side} / {reference}")
    heads = ("part" if several else "size", "ratio", f"{stats.LEVEL:.0%} interval", "rounds", "larger in", "P")
    for head in (*heads, "could see", "verdict"):
        out.add_column(head, justify="right", no_wrap=head.endswith(("interval", "verdict")))
    for (name, own, size), one in compared.items():
        if own == side:
            out.add_row(name if several else size_text(size), *_comparison_cells(one, side, reference))
    return out


def _comparison_cells(one: Ratio, side: str, reference: str) -> list[str]:
    found = one.comparison
    state = "" if one.state == "near" else f" {one.state}"
    return [
        ratio_text(found.median),
        interval_text(found.interval) if found.interval else "-",
        f"{found.rounds}{state}",
        f"{found.larger.share:.0%}" if found.larger else "-",
        "-" if found.p is None else "<0.001" if found.p < 0.001 else f"{found.p:.2g}",
        f"{found.resolvable:.1%}" if found.resolvable is not None else "-",
        found.verdict(side, reference),
    ]


def noise_line(series: Mapping[Key, Sequence[float]]) -> str:
    """What the sides say of themselves: the null check, and how many rounds would find what."""
    long_enough = [values for values in series.values() if len(values) >= 2 * stats.LEAST_ROUNDS]
    if not long_enough:
        return f"Noise: fewer than {2 * stats.LEAST_ROUNDS} rounds do not tell it."
    null = stats.family([stats.against_itself(values) for values in long_enough])
    alike = sum(one.outcome is stats.Outcome.NONE for one in null)
    noise = stats.calibrate(long_enough)
    needed = noise.rounds_for(0.05)
    return (
        f"Noise of a round's ratio: {noise.sigma:.1%}; a difference of 5 % takes {needed or 'over 1000'} rounds. Null check, odd "
        f"rounds against even ones: no difference in {alike} of {len(null)} rows."
    )


def many_table(records: Sequence[Record]) -> Table:
    """A row for each number of ranks."""
    out = Table(title="Many ranks in one region")
    heads = ("ranks", "memory of a rank", "... that has sent", "idle turn", "... all known", "message")
    for head in heads:
        out.add_column(head, justify="right")
    for record in records:
        memory = (record["joined_bytes_per_rank"], record["talking_bytes_per_rank"])
        times = (record["progress_silent_us"], record["progress_known_us"], record["message_us"])
        out.add_row(
            f"{record['ranks']:g}",
            *(f"{bytes_ / 1024:.0f} KiB" for bytes_ in memory),
            *(f"{us * 1000:.1f} ns" for us in times),
        )
    return out


def apps_table(results: apps.Results) -> Table:
    """A row for each program: its time on each side, its ratio to that on this host, and what share of the
    time the ranks were in MPI."""
    out = Table(title="Applications (in brackets: share of the time in MPI)")
    out.add_column("program")
    for side in results.sides:
        out.add_column(apps.LABELS[side], justify="right")
    compared = results.comparisons()
    for part in results.parts():
        cells = []
        medians = {
            side: time_text(statistics.median(results.values(side, part, "seconds")) * 1e6)
            for side in results.sides
        }
        for side, text in medians.items():
            share = statistics.median(results.values(side, part, "share"))
            found = compared.get((part, side, apps.SIZE))
            if side != apps.NATIVE:
                cell = ratio_cell(text, medians[apps.NATIVE], found) if found else "no comparable round"
                text += "\n" + cell.replace("\n", " ")
            cells.append(f"{text} [{share:.0%}]".replace("[", "\\["))
        out.add_row(part, *cells)
    return out


def wake_table(records: Sequence[Record]) -> Table:
    """A row for each kind of messages and each setting."""
    out = Table(title="Moderation of wake-ups")
    out.add_column("64 B", no_wrap=True)
    heads = ("setting", "median", "p99", "receiver's CPU", "wake-ups", "sender's call")
    for head in heads:
        out.add_column(head, justify="right")
    before = ""
    for record in records:
        name = wake.label(record)
        if before and name != before:
            out.add_section()
        out.add_row(
            name if name != before else "",
            record["setting"],
            *(time_text(record[key]) for key in ("p50_us", "p99_us", "receiver_cpu_us")),
            f"{record['receiver_wakes']:.2f}",
            time_text(record["send_us"]),
        )
        before = name
    return out


def _megabytes_text(megabytes_s: float) -> str:
    return f"{megabytes_s:.0f}" if megabytes_s >= 100 else f"{megabytes_s:.3g}"


def xen_tables(results: xen.Results) -> list[Table]:
    """Latency and stream, a row per size; then the processor time of the longest, a row per side."""
    found = []
    for test, title, metric, text in (
        ("latency", "Latency, one way", "typical_us", time_text),
        ("bandwidth", "Stream, one way, MB/s", "MB_s", _megabytes_text),
    ):
        out = Table(title=title)
        out.add_column("size", justify="right")
        for side in xen.SIDES:
            out.add_column(side, justify="right", no_wrap=True)
        for size in xen.SIZES:
            cells = [results.row(side, test, size) for side in xen.SIDES]
            out.add_row(size_text(size), *(text(row.figures[metric]) if row else "-" for row in cells))
        found.append(out)
    caption = "; ".join(f"{side}: {label}" for side, label in xen.LABELS.items() if side != label)
    out = Table(title="Processor time of a 1 MiB stream, seconds per GB", caption=caption)
    out.add_column("side")
    for domain in (*results.domains, "together"):
        out.add_column(domain, justify="right")
    for side in xen.SIDES:
        used = results.processor(side)
        if used:
            each = [used.get(domain, 0.0) for domain in results.domains]
            out.add_row(side, *(f"{seconds:.2f}" for seconds in (*each, sum(each))))
    return [*found, out]


def state_line(samples: Sequence[Sample]) -> str:
    """How many samples the machine's state has cost."""
    words = {
        "near": "with the processors near each other",
        "far": "far apart",
        "shared": "on one core",
        "mixed": "while that changed",
    }
    count = {state: sum(sample.state == state for sample in samples) for state in words}
    parts = [f"{count[state]} {text}" for state, text in words.items() if count[state]]
    return f"{len(samples)} samples: {', '.join(parts)}; only samples of one state are compared"


#: How a target's metric is written where that is no time in microseconds.
_FIGURES: dict[str, Callable[[float], str]] = {"MB_s": rate_text, "seconds": lambda s: time_text(s * 1e6)}


def verdict_line(verdict: Verdict) -> str:
    """target | ours | reference | their ratio | the rounds' ratios | bound | outcome, in one line. The bound
    is held against the median of the rounds' ratios; it is within the noise if the interval holds it."""
    target, found = verdict.target, verdict.ratio
    if found is None:
        return f"{target.text}: not measured: {verdict.reason}"
    text = _FIGURES.get(target.metric, time_text)
    note = f", {found.dropped} dropped" if found.dropped else ""
    far = f", processors {found.state}" if found.state != "near" else ""
    ours, reference = text(found.ours), text(found.reference)
    interval = found.comparison.interval
    level = f", {stats.LEVEL:.0%} {interval_text(interval)}" if interval else ""
    unsure = " (within the noise)" if interval and target.bound is not None and interval.holds(target.bound) else ""
    return (
        f"{target.text}: {ours}, reference {reference}, ratio {quotient_text(ours, reference)}, "
        f"by rounds {ratio_text(found.median)} ({found.spread()}, {found.rounds} rounds{note}{far}){level}, "
        f"bound {target.bound_text()}{unsure}: {verdict.outcome}"
    )


def style(outcome: str) -> str:
    return {gate.PASSED: "green", gate.FAILED: "bold red", gate.UNMEASURED: "yellow"}.get(
        outcome, ""
    )
