"""What a migration tells under way: a bar on a terminal, lines in a log, events for a program."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ..hypervisor.contract import Moving
from .journey import Report

_LINE_SECONDS = 1.0
_EVENT_SECONDS = 0.25


def amount(n_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024 or unit == "GiB":
            return f"{n_bytes:.0f} {unit}" if unit in ("B", "KiB") else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    raise AssertionError("a unit is always found")


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _line(moving: Moving) -> str:
    if moving.transferred is None:  # the hypervisor counts nothing
        return "done" if moving.done else moving.phase
    words = [
        f"{amount(moving.transferred)} sent",
        f"{amount(moving.remaining)} left",
        f"{amount(moving.rate)}/s",
    ]
    if moving.expected_downtime is not None:
        words.append(f"expected downtime {duration(moving.expected_downtime)}")
    return ", ".join(words)


class Quiet:
    """Tells nothing; the others differ from it where they have something to say."""

    def __init__(self, on_no_return: Callable[[], None]) -> None:
        self._on_no_return = on_no_return

    def phase(self, name: str, text: str) -> None:
        del name, text

    def phase_done(self, name: str, seconds: float) -> None:
        del name, seconds

    def waiting(self, text: str) -> None:
        del text

    def moving(self, moving: Moving) -> None:
        del moving

    def note(self, text: str) -> None:
        del text

    def no_return(self) -> None:
        self._on_no_return()

    def close(self) -> None:
        """Nothing is shown any more."""


class Lines(Quiet):
    """For a log: one line for each thing, at most one a second while memory moves."""

    def __init__(self, on_no_return: Callable[[], None]) -> None:
        super().__init__(on_no_return)
        self._shown = 0.0

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def phase(self, name: str, text: str) -> None:
        self._print(text)

    def waiting(self, text: str) -> None:
        self._print(f"waiting for {text}")

    def moving(self, moving: Moving) -> None:
        now = time.monotonic()
        if moving.done or now - self._shown >= _LINE_SECONDS:
            self._shown = now
            self._print(_line(moving))

    def note(self, text: str) -> None:
        self._print(text)


class Bar(Quiet):
    """For a terminal."""

    def __init__(self, on_no_return: Callable[[], None], console: Console) -> None:
        super().__init__(on_no_return)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            console=console,
            transient=True,
        )
        self._progress.start()
        self._task: TaskID = self._progress.add_task("", total=None, words="")

    def phase(self, name: str, text: str) -> None:
        self._progress.update(self._task, description=text, words="", total=None)

    def waiting(self, text: str) -> None:
        self._progress.update(self._task, words=f"waiting for {text}")

    def moving(self, moving: Moving) -> None:
        done = moving.total - moving.remaining
        self._progress.update(
            self._task, total=moving.total or None, completed=done, words=_line(moving)
        )

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


class Events(Quiet):
    """For a program: one JSON object a line on the standard output."""

    def __init__(self, on_no_return: Callable[[], None]) -> None:
        super().__init__(on_no_return)
        self._shown = 0.0

    def emit(self, event: str, **fields: Any) -> None:
        print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)

    def phase(self, name: str, text: str) -> None:
        self.emit("phase", phase=name, text=text)

    def phase_done(self, name: str, seconds: float) -> None:
        self.emit("phase-done", phase=name, seconds=round(seconds, 6))

    def waiting(self, text: str) -> None:
        self.emit("waiting", text=text)

    def moving(self, moving: Moving) -> None:
        now = time.monotonic()
        if moving.done or now - self._shown >= _EVENT_SECONDS:
            self._shown = now
            self.emit("progress", **dataclasses.asdict(moving))

    def note(self, text: str) -> None:
        self.emit("note", text=text)

    def no_return(self) -> None:
        super().no_return()
        self.emit("no-return")


def teller(as_json: bool, on_no_return: Callable[[], None]) -> Quiet:
    if as_json:
        return Events(on_no_return)
    console = Console(stderr=True)
    return Bar(on_no_return, console) if console.is_terminal else Lines(on_no_return)


def print_phases(phases: Mapping[str, float]) -> None:
    """Of what was done, in seconds: a line each."""
    for phase, seconds in phases.items():
        print(f"    {phase:8} {duration(seconds):>8}")


def print_report(report: Report) -> None:
    """The phases, and where the machine is now."""
    print(f"{report.vm}: {report.source} -> {report.target}")
    for phase, seconds in report.phases.items():
        extra = ""
        if phase == "migrate":
            extra = f"  {amount(report.transferred)}" if report.transferred is not None else ""
            if report.downtime is not None:
                still = report.downtime + report.resume
                extra += f", stood still for {duration(still)}"
        print(f"    {phase:8} {duration(seconds):>8}{extra}")
    print(f"    {'total':8} {duration(report.total):>8}")
    region = f"region {report.region}" if report.region else "no region"
    print(f"{report.vm} runs on {report.target}, {region}")
