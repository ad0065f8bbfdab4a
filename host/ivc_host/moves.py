"""Moves of a lab's guest by `ivc migrate`, for the demo and the tests: asked for in one place.

What the command tells is kept with its time of this host's clock, so that a job's own times can be
laid beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import IvcError
from .lab import lab as labs

#: An emulated xl takes its time.
_RESTORE_SECONDS = 600.0


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
    begin = time.time()
    words = ["migrate", guest, "--lab", lab.name, "--to", to, "--timeout", f"{timeout:g}"]
    marks, last = _told(words, f"{guest} was not moved to {to}")
    return Move(guest, to, begin, time.time(), marks, last)


def rest(lab: labs.Lab, guest: str, host: str, timeout: float = 10.0) -> Move:
    """Save a guest of Xen to a file and restore it where it was; else as `move`."""
    begin = time.time()
    file = f"/store/{guest}-rests.xen"
    words = ["save", guest, file, "--lab", lab.name, "--timeout", f"{timeout:g}"]
    marks, last = _told(words, f"{guest} was not saved")
    restored = lab.run(host, ["xl", "restore", file], timeout=_RESTORE_SECONDS)
    if restored.returncode != 0:
        raise MoveError(f"{guest} was not restored on {host}", detail=restored.stderr)
    lab.run(host, ["rm", file], timeout=_RESTORE_SECONDS)
    return Move(guest, host, begin, time.time(), marks, last)


def _told(words: Sequence[str], trouble: str) -> tuple[list[Mark], dict[str, Any]]:
    """Runs ivc with these words; the marks, and the last event."""
    command = [sys.executable, "-m", "ivc_host", *words, "--json"]
    marks: list[Mark] = []
    last: dict[str, Any] = {}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if event := _event(line):
                marks.append(Mark(float(event.get("time", time.time())), _mark_name(event)))
                last = event
    if child.returncode != 0:
        raise MoveError(f"{trouble} (exit {child.returncode})", detail=last.get("error"))
    return marks, last


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
