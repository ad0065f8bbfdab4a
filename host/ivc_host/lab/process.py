"""Processes inside a lab's network namespace: start them, recognise them again, end them all.

A lab never relies on a list of process numbers alone: whatever runs in its namespace belongs to
it, including what a guest kernel or an ssh session has forked meanwhile. A number is only ever
signalled after it was seen in that namespace.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import LabError


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    #: Clock ticks since boot, field 22 of /proc/PID/stat.
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """Describe a process that runs now; raises ProcessLookupError when there is none."""
        start = _start_time(pid)
        if start is None:
            raise ProcessLookupError(pid)
        return cls(pid, start)

    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return _start_time(self.pid) == self.start_time


def _start_time(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def enter(namespace: Path) -> list[str]:
    """The words that, put before a command, run it inside the namespace (same pid, no fork)."""
    return ["nsenter", f"--net={namespace}", "--"]


def spawn(
    argv: Sequence[str],
    *,
    namespace: Path,
    cwd: Path,
    output: Path,
    env: Mapping[str, str] | None = None,
) -> Process:
    """Start a process that outlives this command, inside the namespace, in a session of its own.

    Its input is empty, both its outputs are appended to `output`.
    """
    with open(output, "ab") as out:
        try:
            child = subprocess.Popen(
                [*enter(namespace), *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise LabError(f"cannot start {argv[0]}: {error}") from error
    _children.append((namespace, child))
    try:
        return Process.of(child.pid)
    except ProcessLookupError as error:
        raise LabError(f"{argv[0]} ended at once", detail=tail(output)) from error


#: Kept so that poll() can reap them; a process of an earlier command is reaped by init.
_children: list[tuple[Path, subprocess.Popen[bytes]]] = []


def _kill_children(namespace: Path) -> None:
    """End what this command has spawned for the namespace, even if it has not entered it yet."""
    for place, child in _children:
        if place == namespace:
            child.kill()
            child.wait()
    _children[:] = [(place, child) for place, child in _children if child.poll() is None]


def members(namespace: Path) -> list[int]:
    """Every process inside the namespace, except this one."""
    try:
        want = os.stat(namespace)
    except FileNotFoundError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            have = os.stat(entry / "ns/net")
        except OSError:
            continue  # it ended meanwhile, or is a zombie
        if (have.st_dev, have.st_ino) == (want.st_dev, want.st_ino):
            found.append(int(entry.name))
    return found


def kill_members(namespace: Path, timeout: float = 20.0) -> None:
    """Kill whatever runs inside the namespace, again and again until nothing does."""
    end = time.monotonic() + timeout
    _kill_children(namespace)
    while left := members(namespace):
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if time.monotonic() > end:
            raise LabError(
                f"processes {', '.join(map(str, left))} in {namespace} do not end",
                hint="look at them with ps, then run `ivc lab down` again",
            )
        time.sleep(0.02)


def tail(path: Path, lines: int = 25) -> str:
    """The end of a log, with what a terminal would choke on taken out.

    A panic counts as the end: the trace behind it is long and tells less than what went before.
    """
    try:
        data = path.read_bytes()[-32768:]
    except FileNotFoundError:
        return "(no output)"
    text = data.decode(errors="replace").replace("\r", "")
    clean = "".join(c for c in text if c in "\n\t" or c.isprintable()).splitlines()
    panics = [at for at, line in enumerate(clean) if "Kernel panic" in line]
    if panics:
        clean = clean[: panics[0] + 3]
    return "\n".join(clean[-lines:]) or "(no output)"
