"""What a matrix consists of when it has been made: cells, and in each what every program did.

Invariant: a program that was not run has the reason with it; it never counts as passed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import paths
from ..bench import machine
from ..errors import UsageError

PASS, FAIL, NOT_RUN = "pass", "FAIL", "not run"
_SCHEMA = "ivc-matrix-1"
#: Instead of a number of ranks: each test of a suite has its own.
EACH = 0


def job_text(program: str, ranks: int) -> str:
    return program if ranks == EACH else f"{program}, {ranks} ranks"


@dataclass
class Outcome:
    """One program on so many ranks."""

    program: str
    ranks: int
    status: str
    #: Why it failed or was not run; with what it passed otherwise.
    text: str = ""
    seconds: float = 0.0
    #: Test suite: names of what failed, each with the reason. Latency: microseconds by size.
    failures: dict[str, str] = field(default_factory=dict)
    latency_us: dict[str, float] = field(default_factory=dict)
    tests: int = 0
    #: Test suite: what was not run, or may fail by the suite's own word, each with the reason.
    excused: dict[str, str] = field(default_factory=dict)
    #: The day (UTC), and the version of our tree, as git describes it.
    day: str = ""
    tree: str = ""


@dataclass
class Cell:
    """One MPI in one place, through ours (`ivc`) or without us (`own`)."""

    mpi: str
    version: str
    place: str
    way: str
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.mpi, self.place, self.way

    def find(self, program: str, ranks: int) -> Outcome | None:
        found = (o for o in self.outcomes if o.program == program and o.ranks == ranks)
        return next(found, None)


def failed(cells: Iterable[Cell]) -> list[tuple[Cell, Outcome]]:
    """What ours should have passed and did not; without us an MPI may fail as it likes."""
    return [
        (cell, outcome)
        for cell in cells
        if cell.way == "ivc"
        for outcome in cell.outcomes
        if outcome.status != PASS
    ]


def anywhere(text: str) -> str:
    """The text without the folders of the machine that it comes from."""
    return text.replace(str(paths.project()), ".").replace(str(Path.home()), "~")


def save(path: Path, cells: Iterable[Cell]) -> None:
    """Replace the file as a whole: it is written after each job."""
    data = {
        "schema": _SCHEMA,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine.describe(),
        "cells": [asdict(cell) for cell in cells],
    }
    new = path.with_name(path.name + ".new")
    new.write_text(anywhere(json.dumps(data, indent=1, default=str)) + "\n")
    os.replace(new, path)


def load(path: Path) -> list[Cell]:
    """The cells of a file that an earlier run has left; none when there is no file."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        if data["schema"] != _SCHEMA:
            raise KeyError("schema")
        return [
            Cell(**{**cell, "outcomes": [Outcome(**one) for one in cell["outcomes"]]})
            for cell in data["cells"]
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds no matrix ({error})", hint="name another file") from error
