"""A profile as one HTML file that needs no network: plots are SVG within it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from . import figures, plots, summary
from .model import NAMES, Profile
from .words import bytes_text, count_text, percent, seconds_text

#: A table of more rows is not read: the CSV has them.
_PAIRS = 100
#: Of more ranks a map has no cell that could be seen.
_MAPPED = 4096

_CSS = """
body { font: 15px/1.45 system-ui, sans-serif; color: #111; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #999; }
table { border-collapse: collapse; } td, th { padding: .15rem .7rem; border-bottom: 1px solid #ccc; text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; } figure { margin: 0; break-inside: avoid; } figcaption { font-weight: 600; }
.plots figure { flex: 1 1 30rem; max-width: 34rem; } svg { max-width: 100%; height: auto; }
.note { border-left: .3rem solid #555; padding-left: .7rem; } code { background: #eee; overflow-wrap: anywhere; }
.scroll { max-height: 30rem; overflow: auto; }
"""


def page(profile: Profile, savings: figures.Savings | None = None) -> str:
    parts = [
        f"<h1>Communication of {html.escape(summary.title(profile))}</h1>",
        _origin(profile),
        *(f'<p class="note">{html.escape(remark)}</p>' for remark in profile.remarks),
        _table([("", False), ("", False)], summary.rows(profile, savings)),
        *_matrices(profile),
        *_section("Message sizes", plots.sizes(profile), "Messages that ivc carried, by size and path"),
        *_section("Time line", plots.time_line(profile), "Share of memory, and rate, by time of sending"),
        *_why(profile),
        *_pairs(profile),
        *_calls(profile),
        *_ranks(profile),
    ]
    head = f'<meta charset="utf-8"><title>ivc profile</title><style>{_CSS}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _origin(profile: Profile) -> str:
    when = datetime.fromtimestamp(profile.begin, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    command = f"<code>{html.escape(' '.join(profile.command))}</code>, " if profile.command else ""
    status = "" if profile.exit_status in (None, 0) else f", exit status {profile.exit_status}"
    return f"<p>{command}{when}{status}</p>"


def _table(columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> str:
    """Columns are a name and whether they hold numbers."""
    kinds = [' class="n"' if number else "" for _, number in columns]
    head = "".join(f"<th{kind}>{html.escape(name)}</th>" for (name, _), kind in zip(columns, kinds))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{html.escape(cell)}</td>" for cell, kind in zip(row, kinds)) + "</tr>" for row in rows
    )
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if any(name for name, _ in columns) else ''}<tbody>{body}</tbody></table>"


def _figure(svg: str, caption: str) -> str:
    return f'<figure role="img" aria-label="{html.escape(caption)}"><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>'


def _section(title: str, svg: str | None, caption: str) -> list[str]:
    return [] if svg is None else [f"<h2>{title}</h2>", _figure(svg, caption)]


def _matrices(profile: Profile) -> list[str]:
    if not figures.total(profile).messages:
        return []
    if profile.size > _MAPPED:
        return [f"<p>Maps are drawn for up to {_MAPPED} ranks.</p>"]
    maps = [
        _figure(plots.heat(profile, lambda pair: pair.bytes, "bytes"), "Bytes sent"),
        _figure(plots.heat(profile, lambda pair: pair.messages, "messages"), "Messages sent"),
        _figure(plots.path_map(profile), "Path of most bytes"),
    ]
    return ["<h2>Who sends to whom</h2>", f'<div class="plots">{"".join(maps)}</div>']


def _why(profile: Profile) -> list[str]:
    found = figures.reasons(profile)
    if not found:
        return []
    columns = [("pairs", True), ("on one host", True), ("bytes", True), ("messages", True), ("path", False), ("why", False)]
    rows = [
        (str(one.pairs), str(one.together), bytes_text(one.volume.bytes), count_text(one.volume.messages),
         NAMES[one.path], one.why)
        for one in found
    ]  # fmt: skip
    return ["<h2>Pairs that do not use memory</h2>", _table(columns, rows)]


def _pairs(profile: Profile) -> list[str]:
    pairs = [pair for pair in figures.heaviest(profile, _PAIRS) if pair.messages]
    if not pairs:
        return []
    whole = figures.total(profile).bytes or 1
    columns = [("from", True), ("to", True), ("bytes", True), ("messages", True), ("of all bytes", True), ("path", False), ("why", False)]
    rows = [
        (str(pair.sender), str(pair.receiver), bytes_text(pair.bytes), count_text(pair.messages),
         percent(pair.bytes / whole), summary.path_text(pair), pair.why or "")
        for pair in pairs
    ]  # fmt: skip
    return [f"<h2>The {len(pairs)} heaviest pairs</h2>", f'<div class="scroll">{_table(columns, rows)}</div>']


def _calls(profile: Profile) -> list[str]:
    found = figures.calls(profile)
    if not found:
        return []
    svg = plots.calls(found)
    columns = [("call", False), ("calls", True), ("time, all ranks", True), ("mean", True), ("bytes", True)]
    rows = [
        (name, count_text(count), seconds_text(time), seconds_text(time / count) if count else "-", bytes_text(size))
        for name, count, time, size in found
    ]
    drawn = [_figure(svg, "Time in MPI by call")] if svg else []
    return ["<h2>Calls of MPI</h2>", *drawn, f'<div class="scroll">{_table(columns, rows)}</div>']


def _ranks(profile: Profile) -> list[str]:
    sent = figures.sent_by_rank(profile)
    columns = [("rank", True), ("guest", False), ("region", False), ("sent", True), ("time", True), ("in MPI", True), ("", False)]
    rows = [
        (str(one.rank), one.host, one.region or "none", bytes_text(sent[one.rank]), seconds_text(one.seconds),
         percent(one.in_mpi / one.seconds) if one.in_mpi is not None and one.seconds else "-",
         "" if one.complete else "ended early")
        for one in profile.processes
    ]  # fmt: skip
    return ["<h2>Ranks</h2>", f'<div class="scroll">{_table(columns, rows)}</div>']
