"""The file of hosts: where ranks may be put."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import UsageError

_LINE = re.compile(r"(?P<name>[\w.-]+)(?:\s+(?:slots=)?|:)(?P<slots>\d{1,6})(?:\s+(?P<host>[\w.-]+)(?:\s+(?P<switch>[\w.-]+))?)?")


@dataclass(frozen=True)
class Place:
    """What a launcher starts ranks on: a guest, or a host."""

    name: str
    slots: int
    #: The machine that it runs on: itself, or the host of a guest.
    host: str
    #: What the host is connected to; empty: all that say nothing are on one.
    switch: str = ""


def read(file: Path) -> list[Place]:
    """Lines of NAME SLOTS [HOST [SWITCH]]; NAME:SLOTS and NAME slots=N are taken, too."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise UsageError(f"cannot read {file}: {getattr(fault, 'strerror', None) or fault}") from None
    found: list[Place] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if match is None or int(match["slots"]) == 0:
            raise UsageError(f"{file}, line {number}: {text!r}", hint="write NAME SLOTS, and behind it the host of a guest, and its switch")
        if match["name"] in (place.name for place in found):
            raise UsageError(f"{file}, line {number}: {match['name']} for the second time")
        found.append(Place(match["name"], int(match["slots"]), match["host"] or match["name"], match["switch"] or ""))
        if len({place.switch for place in found if place.host == found[-1].host}) > 1:
            raise UsageError(f"{file}, line {number}: {found[-1].host} is on another switch than before")
    if not found:
        raise UsageError(f"{file} names no host", hint="write a line for each: NAME SLOTS")
    return found
