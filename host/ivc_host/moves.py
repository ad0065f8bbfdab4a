"""Moves of a lab's guest by `ivc migrate`, for the demo and the tests: asked for in one place.

What the command tells is kept with its time of this host's clock, so that a job's own times can be
laid beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import IvcError
from .lab import lab as labs


class MoveError(IvcError):
    """A guest was not moved."""


@dataclass(frozen=True)
class Mark:
    """Something that `ivc migrate` has told, and when."""

    time: float
    name: str


@dataclass(frozen=True)
class Move:
    """One migration, on this host's clock."""

    guest: str
    to: str
    begin: float
    end: float
    marks: list[Mark]
    #: The last line of `ivc migrate --json`.
    report: Mapping[str, Any]

    def at(self, name: str) -> float | None:
        """When the first mark of that name was made."""
        return next((mark.time for mark in self.marks if mark.name == name), None)


def move(lab: labs.Lab, guest: str, to: str, timeout: float = 10.0) -> Move:
    """Move a guest to another host; TIMEOUT is for its processes to let go of memory."""
    command = [sys.executable, "-m", "ivc_host", "migrate", guest, "--lab", lab.name, "--to", to]
    command += ["--timeout", f"{timeout:g}"]
    begin = time.time()
    marks: list[Mark] = []
    last: dict[str, Any] = {}
    with subprocess.Popen(
        [*command, "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if event := _event(line):
                marks.append(Mark(float(event.get("time", time.time())), _mark_name(event)))
                last = event
    if child.returncode != 0:
        raise MoveError(
            f"{guest} was not moved to {to} (exit {child.returncode})", detail=last.get("error")
        )
    return Move(guest, to, begin, time.time(), marks, last)


def _event(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _mark_name(event: Mapping[str, Any]) -> str:
    """Such as suspend, suspend-done, switch-done."""
    if event["event"] == "phase":
        return str(event["phase"])
    if event["event"] == "phase-done":
        return f"{event['phase']}-done"
    return str(event["event"])
