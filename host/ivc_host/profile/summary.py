"""A profile on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import figures
from .model import NAMES, Pair, Profile
from .words import bytes_text, count_text, percent, seconds_text

_HEAVIEST = 5
_REASONS = 8


def show(profile: Profile, savings: figures.Savings | None, console: Console) -> None:
    for remark in profile.remarks:
        console.print(f"[yellow]{'note' if profile.complete else 'incomplete'}:[/] {escape(remark)}", soft_wrap=True)
    table = Table(title=title(profile), show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows(profile, savings):
        table.add_row(name, escape(value))
    console.print(table)
    if figures.total(profile).messages:
        console.print(_heaviest(profile))
    if told := figures.reasons(profile):
        console.print(_reasons(told))


def title(profile: Profile) -> str:
    version = re.split("[,\n]", profile.mpi)[0].split()  # then follows much else
    by = f", {' '.join(version)}" if version else ""
    guests = len(set(figures.guests(profile).values()))
    return f"{_plural(profile.size, 'rank')} in {_plural(guests, 'guest')}{by}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def rows(profile: Profile, savings: figures.Savings | None) -> list[tuple[str, str]]:
    """Name and value of each figure of the job as a whole."""
    whole = figures.total(profile)
    found = [
        ("sent", f"{bytes_text(whole.bytes)} in {count_text(whole.messages)} messages"),
        ("time", _time(profile)),
        ("communication rate", _rate(profile)),
        *_paths(profile),
        *_places(profile),
        ("imbalance", _imbalance(profile)),
        ("time in MPI", _in_mpi(profile)),
        ("all by memory", _gain(profile, savings)),
    ]
    return [(name, value) for name, value in found if value]


def _time(profile: Profile) -> str:
    seconds = figures.seconds(profile)
    if not seconds:
        return ""
    what = "MPI_Init to MPI_Finalize" if figures.in_mpi(profile) else "life of the endpoints"
    return f"{seconds_text(seconds)} ({what}, longest rank)"


def _rate(profile: Profile) -> str:
    rate = figures.rate(profile)
    return "" if rate is None else f"{rate / 1e6:.3g} MB/s sent by a process (mean)"


def _paths(profile: Profile) -> list[tuple[str, str]]:
    shares = figures.by_path(profile)
    return [
        (name if path == "mpi" else f"by {name}", _share(shares[path]))
        for path, name in NAMES.items()
        if path == "memory" or shares[path].messages
    ]


def _share(one: figures.Shares) -> str:
    return f"{percent(one.bytes)} of the bytes, {percent(one.messages)} of the messages"


def _places(profile: Profile) -> list[tuple[str, str]]:
    """Between hosts, as far as regions tell which guests have one in common."""
    hosts = figures.hosts(profile)
    count = len(set(hosts.values()))
    told = [("between hosts", _share(figures.between(profile, hosts)))]
    if count == 1:
        return [("between hosts", "nothing: all ranks are on one")]
    within = figures.chance(profile, hosts)
    inside = 1 - figures.between(profile, hosts).bytes
    return [*told, ("within hosts", f"{percent(inside)} of the bytes; by chance {percent(within)}, (c-1)/(P-1)")]


def _imbalance(profile: Profile) -> str:
    found = figures.imbalance(profile)
    if found is None:
        return ""
    sent = figures.sent_by_rank(profile)
    return f"rank {sent.index(max(sent))} sends {found:.2f} times the mean"


def _in_mpi(profile: Profile) -> str:
    parts = figures.in_mpi(profile)
    if not parts:
        return ""
    return f"{percent(sum(parts) / len(parts))} (mean), {percent(min(parts))} to {percent(max(parts))}"


def _gain(profile: Profile, savings: figures.Savings | None) -> str:
    gain = figures.gain(profile, savings)
    if not gain.messages:
        return ""
    moved = f"{bytes_text(gain.bytes)} in {count_text(gain.messages)} messages would leave the network"
    if gain.seconds is None:
        return f"{moved} (in time: --measured FILE)"
    return f"{moved}; {seconds_text(gain.seconds)} less for a rank, if it waits for each (from the measured latencies)"


def _heaviest(profile: Profile) -> Table:
    table = Table(title="Heaviest pairs", title_justify="left")
    for name in ("from", "to", "bytes", "messages", "of all bytes"):
        table.add_column(name, justify="right")
    table.add_column("path")
    whole = figures.total(profile).bytes or 1
    for pair in figures.heaviest(profile, _HEAVIEST):
        if pair.messages:
            words = (bytes_text(pair.bytes), count_text(pair.messages), percent(pair.bytes / whole), path_text(pair))
            table.add_row(str(pair.sender), str(pair.receiver), *words)
    return table


def path_text(pair: Pair) -> str:
    """memory, or memory 93 %, network 7 %."""
    used = {name: size for path, name in NAMES.items() if (size := pair.by(path).bytes)}
    if len(used) < 2:
        main = figures.main_path(pair)
        return NAMES[main] if main else "-"
    return ", ".join(f"{name} {percent(size / pair.bytes)}" for name, size in used.items())


def _reasons(told: list[figures.Reason]) -> Table:
    table = Table(title="Pairs that do not use memory", title_justify="left")
    for name in ("pairs", "on one host", "bytes", "messages"):
        table.add_column(name, justify="right")
    table.add_column("path")
    table.add_column("why", overflow="fold")
    for one in told[:_REASONS]:
        volume = (bytes_text(one.volume.bytes), count_text(one.volume.messages))
        table.add_row(str(one.pairs), str(one.together), *volume, NAMES[one.path], escape(one.why))
    return table


# ---- two profiles


def show_difference(before: Profile, after: Profile, console: Console) -> None:
    table = Table(title=f"{_plural(before.size, 'rank')}: what changed", title_justify="left")
    table.add_column()
    for name in ("before", "after", "change"):
        table.add_column(name, justify="right")
    for name, measure, text in _MEASURES:
        values = [measure(before), measure(after)]
        words = ["-" if value is None else text(value) for value in values]
        table.add_row(name, *words, _change(values, text))
    console.print(table)
    changed = _changed_pairs(before, after)
    if not changed:
        console.print("Every pair has sent as much as before, by the same path.")
        return
    console.print(_pairs_table(changed))


def _change(values: list[float | None], text: Callable[[float], str]) -> str:
    old, new = values
    if old is None or new is None or old == new:
        return ""
    if text is percent:
        return f"{100 * (new - old):+.1f} points"
    return f"{100 * (new - old) / old:+.1f} %" if old else ""


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


_MEASURES: tuple[tuple[str, Callable[[Profile], float | None], Callable[[float], str]], ...] = (
    ("bytes", lambda one: figures.total(one).bytes, bytes_text),
    ("messages", lambda one: figures.total(one).messages, count_text),
    ("time", lambda one: figures.seconds(one) or None, seconds_text),
    ("communication rate, each process", figures.rate, lambda value: f"{value / 1e6:.3g} MB/s"),
    ("bytes by memory", lambda one: figures.by_path(one)["memory"].bytes, percent),
    ("messages by memory", lambda one: figures.by_path(one)["memory"].messages, percent),
    ("bytes between hosts", lambda one: figures.between(one, figures.hosts(one)).bytes, percent),
    ("messages between hosts", lambda one: figures.between(one, figures.hosts(one)).messages, percent),
    ("time in MPI", lambda one: _mean(figures.in_mpi(one)), percent),
)

_CHANGED = 10


def _changed_pairs(before: Profile, after: Profile) -> list[tuple[Pair, Pair]]:
    """Those that sent something else, or by another path; the largest change first."""
    both = [{(pair.sender, pair.receiver): pair for pair in one.between_ranks()} for one in (before, after)]
    found = []
    for key in sorted(both[0].keys() | both[1].keys()):
        none = Pair(sender=key[0], receiver=key[1])
        old, new = both[0].get(key, none), both[1].get(key, none)
        if (old.bytes, old.messages, path_text(old)) != (new.bytes, new.messages, path_text(new)):
            found.append((old, new))
    return sorted(found, key=lambda one: -abs(one[1].bytes - one[0].bytes))


def _pairs_table(changed: list[tuple[Pair, Pair]]) -> Table:
    shown = changed[:_CHANGED]
    left_out = f", the {len(shown)} with the largest change" if len(changed) > len(shown) else ""
    table = Table(title=f"{_plural(len(changed), 'pair')} changed{left_out}", title_justify="left")
    for name in ("from", "to", "bytes before", "after", "messages before", "after"):
        table.add_column(name, justify="right")
    table.add_column("path before")
    table.add_column("after")
    for old, new in shown:
        volume = [bytes_text(old.bytes), bytes_text(new.bytes), count_text(old.messages), count_text(new.messages)]
        table.add_row(str(old.sender), str(old.receiver), *volume, path_text(old), path_text(new))
    return table
