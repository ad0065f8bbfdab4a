"""What a part of the tests is, and how it counts.

A part runs programs, writes all they say into its log, and notes each check as passed, failed or
skipped. Invariant: a check that was not made is never counted as passed; a part that made none at
all has failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from .. import program

#: The number of the process that made a file.
_MAKER = re.compile(r"ivc-test-(?:cxx-)?(\d+)(?:-|$)")
_LINE = re.compile(r"^(ok|not ok|skip) \d+ - (.*)$")


@dataclass
class Tally:
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    name: str
    summary: str
    run: Callable[[Run], None]
    #: Too long, or not good enough yet, for every run: only when it is named.
    on_demand: bool = False


def leftovers() -> set[Path]:
    """Files in /dev/shm of test programs that have ended; those of running ones are no fault."""
    return {
        path
        for path in Path("/dev/shm").glob("ivc-test-*")
        if (maker := _MAKER.match(path.name)) and not Path(f"/proc/{maker[1]}").exists()
    }


class SkipPart(Exception):
    """The whole part cannot be run here; the text says why."""


class Run:
    """One run of a part: its log and its count. May be used by several threads."""

    def __init__(self, log: TextIO) -> None:
        self.tally = Tally()
        self._log = log
        self._lock = threading.Lock()
        #: What the last failed check's program said, for the one who reads the failure.
        self.evidence: list[str] = []

    def log(self, text: str) -> None:
        with self._lock:
            self._log.write(text.rstrip("\n") + "\n")
            self._log.flush()

    def passed(self, what: str) -> None:
        self.log(f"PASS {what}")
        with self._lock:
            self.tally.passed += 1

    def failed(self, what: str, evidence: str = "") -> None:
        self.log(f"FAIL {what}")
        with self._lock:
            self.tally.failures.append(what)
            self.evidence += evidence.splitlines()[-25:]

    def skipped(self, what: str, why: str) -> None:
        self.log(f"SKIP {what}: {why}")
        with self._lock:
            self.tally.skips.append(f"{what}: {why}")

    def check(self, what: str, good: bool, evidence: str = "") -> bool:
        if good:
            self.passed(what)
        else:
            self.failed(what, evidence)
        return good

    def program(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 300,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; what it says goes to the log. 124 when it took too long."""
        # Not in a session of its own: Ctrl-C reaches all that several threads have started.
        done = program.run(argv, {**os.environ, **(env or {})}, cwd, timeout, session=False)
        said, code = done.said, done.code
        if code is None:
            said, code = said + f"\n(ended after {timeout:.0f} s)\n", 124
        self.log(f"$ {' '.join(argv)}\n{said}\n(exit {code})")
        return subprocess.CompletedProcess(list(argv), code, said, "")

    def count(self, name: str, done: subprocess.CompletedProcess[str]) -> None:
        """Count the lines of a program of tests/check.h."""
        reason = ""
        lines = 0
        said: list[str] = []  # since the case before this one
        for line in done.stdout.splitlines():
            said.append(line)
            if line.startswith("# "):
                reason = line[2:]
            if not (match := _LINE.match(line)):
                continue
            lines += 1
            what = f"{name}: {match[2]}"
            if match[1] == "ok":
                self.passed(what)
            elif match[1] == "skip":
                self.skipped(what, reason)
            else:
                self.failed(what, "\n".join(said))
            said = []
        if lines == 0 or (done.returncode not in (0, 77) and "not ok" not in done.stdout):
            self.failed(f"{name}: ended with {done.returncode}", done.stdout)
