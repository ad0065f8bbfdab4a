"""Starting the benchmark programs: find them, run them, read their JSON lines."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import paths, program
from ..errors import IvcError, MissingError

#: One JSON line of a benchmark program.
Record = dict[str, Any]


class BenchError(IvcError):
    """A benchmark could not be run."""


def find(name: str) -> Path:
    """A benchmark program of the build tree."""
    found = paths.build() / "bench" / name
    if not found.is_file():
        raise MissingError(f"{found} is not built", hint="run: ./run build")
    return found


def records(output: str) -> list[Record]:
    """The JSON lines among whatever else a program, or mpirun around it, has printed."""
    found = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def median(found: Sequence[Record]) -> Record:
    """Of several runs of one thing: the median of each figure."""
    return {
        key: statistics.median(record[key] for record in found)
        if isinstance(value, (int, float))
        else value
        for key, value in found[0].items()
    }


def run(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    timeout: float = 300.0,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of the host in a session of its own; raises BenchError on a time-out."""
    try:
        done = program.run(argv, {**os.environ, **(env or {})}, cwd, timeout, errors_apart=True)
    except OSError as error:
        raise MissingError(f"cannot start {argv[0]}: {error.strerror}") from error
    if done.code is None:
        raise BenchError(
            f"{' '.join(map(str, argv[:1]))} has not ended after {timeout:.0f} s",
            hint="the machine may be overloaded; try --quick",
        )
    return subprocess.CompletedProcess(list(argv), done.code, done.said, done.errors)


def check(done: subprocess.CompletedProcess[str], what: str) -> None:
    """Raise when a program has failed, with the end of what it said."""
    if done.returncode == 0:
        return
    said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    said = [line for line in said if not line.startswith(("----", "{"))]
    raise BenchError(
        f"{what} failed with exit code {done.returncode}", detail="\n".join(said[-12:]) or None
    )


def checked(done: subprocess.CompletedProcess[str], what: str) -> list[Record]:
    """The records of a program that has ended well and measured something."""
    check(done, what)
    found = records(done.stdout)
    if not found:
        raise BenchError(f"{what} printed no result", detail=done.stdout[-500:] or None)
    return found
