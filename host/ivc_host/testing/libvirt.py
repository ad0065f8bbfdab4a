"""The part `libvirt`: two hosts with a libvirtd each, and a guest that moves between them.

A member of the region runs in the guest all the time: an example program of the project's. It is asked
to let go, its `<shmem>` is detached, libvirt moves the domain, and the same process is then a member of
the other host's region. Before that a move is interrupted and must leave everything as it was.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .. import paths
from .. import window as windows
from ..errors import MissingError
from ..lab import lab
from . import guests
from .part import Run, SkipPart

_JOIN_SECONDS = 30.0
_MOVE_SECONDS = 120.0
_PHASES = ["check", "prepare", "suspend", "detach", "migrate", "attach"]


def _member(where: lab.Lab, guest: str) -> int:
    """Start a process that stays in whatever region the guest has; its number there."""
    server = paths.build() / "examples" / "server"
    line = f"setsid {server} </dev/null >/tmp/server.log 2>&1 & echo $!"
    done = where.run(guest, ["sh", "-c", line], timeout=30)
    return int(done.stdout)


def _holds(region: Path, pid: int, host: str) -> bool:
    members = windows.read(str(region)).members
    return any(m.pid == pid and m.host == host and m.phase == "active" for m in members)


def _until(true: Callable[[], bool], seconds: float = _JOIN_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _ivc(*words: str) -> list[str]:
    return [sys.executable, "-m", "ivc_host", *words]


def _move(run: Run, where: lab.Lab, guest: str, to: str) -> None:
    words = _ivc("migrate", guest, "--to", to, "--lab", where.name, "--json")
    done = run.program(words, timeout=_MOVE_SECONDS)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    phases = [event["phase"] for event in events if event["event"] == "phase-done"]
    good = done.returncode == 0 and phases == _PHASES
    run.check(f"{guest} moves to {to}: {', '.join(phases)}", good, done.stdout)
    bytes_ = events[-1].get("transferred") if events else None
    run.check(f"libvirt's statistics: {bytes_} bytes", bool(bytes_), done.stdout)


def _interrupt(run: Run, where: lab.Lab, guest: str, to: str) -> None:
    """Ctrl-C while its memory moves: `virDomainAbortJob`, the device again, the order withdrawn."""
    words = _ivc("migrate", guest, "--to", to, "--lab", where.name, "--json")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if json.loads(line).get("phase") == "migrate":
                process.send_signal(signal.SIGINT)
                break
        said, error = process.communicate(timeout=_MOVE_SECONDS)
    finally:
        process.kill()
        process.wait()
    run.log(said + error)
    good = process.returncode == 130 and "interrupted; it runs on" in error
    run.check(f"{guest} is interrupted on its way to {to}", good, said + error)


def _up(run: Run) -> lab.Lab:
    if os.geteuid() != 0:
        raise SkipPart("a lab needs root: run with sudo")
    try:
        return lab.up(f"test-libvirt-{os.getpid() % 10000}", 1, "libvirt", hosts=2, place=[1])
    except MissingError as error:
        raise SkipPart(str(error)) from error


def libvirt(run: Run) -> None:
    with _up(run) as two:
        (guest,) = two.guests
        here, there = (Path(region) for region in two.record.regions)
        guests.info(run, two, "ivshmem")
        pid = _member(two, guest)
        run.check(f"{guest}: process {pid} is in {here}", _until(lambda: _holds(here, pid, guest)))
        _interrupt(run, two, guest, "h2")
        run.check(f"{guest}: it is in {here} again", _until(lambda: _holds(here, pid, guest)))
        _move(run, two, guest, "h2")
        found = _until(lambda: _holds(there, pid, guest))
        run.check(f"{guest}: the same process is in {there}, and not in {here}",
                  found and not _holds(here, pid, guest))  # fmt: skip
        guests.info(run, two, "ivshmem")
        record = two.refresh().guest(guest)
        run.check(f"the lab knows that {guest} is on h2", record.host == 2 and record.alive())
    left = [str(path) for path in (here, there, two.record.directory) if path.exists()]
    run.check("nothing of the lab is left", not left, "\n".join(left))
