"""From readings over time to the state of each host. Pure: no clock, no file, no host.

Invariants:

* an item is failing after as many failing readings in a row as its rule says; before, it is a warning;
* what is unknown changes no level: it neither makes a host failing nor makes it well again, and breaks
  no row; since when it is unknown is kept;
* a failing item is ok again by hand, or after a time of good readings where the rule has one;
* a host is as bad as the worst thing that is known of it, and unknown when nothing is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from .contract import Level, Reading


@dataclass(frozen=True)
class Rule:
    """How readings of one source count."""

    confirm: int = 2
    #: Seconds of good readings that end a failing state; None: nothing but a hand does.
    recover: float | None = None
    #: Whether a good reading must wait for that at all.
    latches: bool = True
    #: Seconds between two failing readings of a row, at least: sooner, they may be of one and the same event.
    apart: float = 0.0


@dataclass(frozen=True)
class ItemKey:
    host: str
    source: str
    item: str


@dataclass(frozen=True)
class ItemState:
    """What is held of one item. `level` is UNKNOWN only when nothing else was ever heard of it."""

    level: Level = Level.UNKNOWN
    #: When it came to that level.
    since: float = 0.0
    #: The last reading that was not unknown.
    said: Level = Level.UNKNOWN
    text: str = ""
    value: float | None = None
    threshold: float | None = None
    at: float = 0.0
    #: Failing, and good, readings in a row, and when the row began.
    failing_row: int = 0
    good_row: int = 0
    row_since: float = 0.0
    unknown_since: float | None = None
    unknown_text: str = ""


def step(state: ItemState, reading: Reading, rule: Rule) -> ItemState:
    """STATE after one more reading."""
    if reading.level is Level.UNKNOWN:
        since = reading.at if state.unknown_since is None else state.unknown_since
        return replace(state, unknown_since=since, unknown_text=reading.text)
    is_bad, is_good = reading.level is Level.FAILING, reading.level is Level.OK
    goes_on = reading.level is state.said
    told = replace(
        state,
        said=reading.level,
        text=reading.text,
        value=reading.value,
        threshold=reading.threshold,
        at=reading.at,
        failing_row=state.failing_row + 1 if is_bad else 0,
        good_row=state.good_row + 1 if is_good else 0,
        row_since=state.row_since if goes_on else reading.at,
        unknown_since=None,
        unknown_text="",
    )
    level = _level(told, rule)
    return told if level is state.level else replace(told, level=level, since=reading.at)


def _level(told: ItemState, rule: Rule) -> Level:
    if told.level is Level.FAILING and rule.latches and not _is_recovered(told, rule):
        return Level.FAILING
    if told.said is Level.FAILING:
        return Level.FAILING if _is_confirmed(told, rule) else Level.WARNING
    if told.said is Level.WARNING:
        return Level.WARNING
    held = told.level is Level.WARNING and told.good_row < rule.confirm
    return Level.WARNING if held else Level.OK


def _is_confirmed(told: ItemState, rule: Rule) -> bool:
    spans = told.at - told.row_since >= (rule.confirm - 1) * rule.apart
    return told.failing_row >= rule.confirm and spans


def _is_recovered(told: ItemState, rule: Rule) -> bool:
    is_good = told.said is Level.OK and rule.recover is not None
    return is_good and told.at - told.row_since >= (rule.recover or 0.0)


def fold(
    states: Mapping[ItemKey, ItemState], readings: Iterable[Reading], rules: Mapping[str, Rule]
) -> dict[ItemKey, ItemState]:
    """STATES after one round: all readings that these sources gave of these hosts.

    A source that says nothing more of an item, while it speaks of the host, has lost sight of it.
    """
    told = {ItemKey(one.host, one.source, one.item): one for one in readings}
    after = dict(states)
    heard: dict[tuple[str, str], Reading] = {}
    for key, one in told.items():
        heard.setdefault((key.host, key.source), one)
        after[key] = step(after.get(key, ItemState()), one, rules.get(key.source, Rule()))
    for key in states:
        any_word = heard.get((key.host, key.source))
        if key in told or any_word is None:
            continue
        if not key.item:
            del after[key]  # the source has found its voice again
            continue
        whole = told.get(ItemKey(key.host, key.source, ""))
        text = whole.text if whole else f"{key.source} does not speak of it any more"
        lost = replace(any_word, item=key.item, level=Level.UNKNOWN, text=text)
        after[key] = step(after[key], lost, Rule())
    return after


@dataclass(frozen=True)
class Item:
    key: ItemKey
    state: ItemState
    rule: Rule

    @property
    def why(self) -> str:
        """Its level in words."""
        state, text = self.state, f"{self.key.item or self.key.source}: {self.state.text}"
        if not state.text:
            text = f"{self.key.item or self.key.source}: {state.unknown_text}"
        if state.said is Level.FAILING and state.level is not Level.FAILING:
            row = min(state.failing_row, self.rule.confirm)
            soon = ", too soon after each other" if row == self.rule.confirm else ""
            return f"{text} (failing, {row} of {self.rule.confirm} readings{soon})"
        if state.said is Level.OK and state.level is not Level.OK:
            return f"{text} (was {state.level}, and is not yet over)"
        return text


@dataclass(frozen=True)
class HostState:
    host: str
    level: Level
    #: Since when, by the item that is this bad for longest; 0 when nothing is known.
    since: float
    items: tuple[Item, ...]
    #: Items that were known once and are not now.
    silent: tuple[Item, ...]
    #: Sources that have nothing to say of this host.
    unknown: tuple[Item, ...]
    contradictions: tuple[str, ...]


def judge(
    hosts: Iterable[str], states: Mapping[ItemKey, ItemState], rules: Mapping[str, Rule]
) -> dict[str, HostState]:
    """The state of each host. Sources without a rule are not asked any more, and do not count."""
    items: dict[str, list[Item]] = {host: [] for host in hosts}
    for key in sorted(states, key=lambda key: (key.host, key.source, key.item)):
        if key.host in items and key.source in rules:
            items[key.host].append(Item(key, states[key], rules[key.source]))
    return {host: _host(host, found) for host, found in items.items()}


def _host(host: str, items: list[Item]) -> HostState:
    known = [one for one in items if one.state.level is not Level.UNKNOWN]
    level = max((one.state.level for one in known), key=lambda level: level.rank,
                default=Level.UNKNOWN)  # fmt: skip
    worst = [one.state.since for one in known if one.state.level is level]
    return HostState(
        host=host,
        level=level,
        since=min(worst, default=0.0),
        items=tuple(items),
        silent=tuple(one for one in known if one.state.unknown_since is not None),
        unknown=tuple(one for one in items if one.state.level is Level.UNKNOWN),
        contradictions=tuple(_contradictions(known)),
    )


def _contradictions(known: list[Item]) -> Iterable[str]:
    """Sources that speak of the same kind of thing, of which one is content and one is not at all."""
    worst: dict[str, dict[str, Level]] = {}
    for one in known:
        if one.state.unknown_since is None:
            sources = worst.setdefault(one.key.item.partition("/")[0], {})
            before = sources.get(one.key.source, Level.UNKNOWN)
            sources[one.key.source] = max(before, one.state.said, key=lambda level: level.rank)
    for kind, sources in sorted(worst.items()):
        bad = [name for name, level in sources.items() if level is Level.FAILING]
        good = [name for name, level in sources.items() if level is Level.OK]
        if bad and good:
            yield f"{kind}: {', '.join(bad)} says failing, {', '.join(good)} says ok"
