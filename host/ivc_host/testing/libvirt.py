"""The part `libvirt`: two hosts with a libvirtd each, and a guest that moves between them.

A member of the region runs in the guest all the time: an example program of the project's. It is asked
to let go, its `<shmem>` is detached, libvirt moves the domain, and the same process is then a member of
the other host's region. Before that a move is interrupted, and one loses a libvirtd in the middle: both
must leave everything as it was. Whoever watches a host finds its libvirtd again after a restart.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .. import paths
from .. import window as windows
from ..errors import MissingError
from ..guard.watch import watch
from ..hypervisor.contract import Event
from ..hypervisor.faults import MachineError
from ..lab import lab
from ..lab import libvirt as lab_libvirt
from ..migrate import inventory
from ..migrate.find import hypervisors_of
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


def _restart(where: lab.Lab, host: str) -> None:
    """Both libvirtd are asked by their sockets, which tell where they keep their state."""
    found = inventory.load(inventory.lab_inventory(where.name)).host(host).settings
    socket = Path(found.uri.partition("socket=")[2])  # type: ignore[attr-defined]
    lab_libvirt.restart(host, socket.parents[1], where.record.namespace)


def _restarted_in_a_move(run: Run, where: lab.Lab, guest: str, host: str) -> None:
    """The libvirtd of HOST dies while the guest's memory moves to h2: it runs on where it was."""
    code, said, error = _disturbed(where, guest, lambda mover: _restart(where, host))
    run.log(said + error)
    good = code == 1 and "it runs on h1 as before" in error and error.count("\n") == 1
    run.check(f"{guest}: the libvirtd of {host} is restarted in the middle of its move: {error}", good,
              said + error)  # fmt: skip


def _watched(run: Run, where: lab.Lab, guest: str) -> None:
    """Between two looks: the same connection object finds the new libvirtd, and its events."""

    async def work() -> tuple[list[str], list[str]]:
        book, said, seen = inventory.load(inventory.lab_inventory(where.name)), list[str](), list[str]()
        async with hypervisors_of([book.host("h1")]) as (one,):

            def news(host: str, event: Event | None) -> None:
                seen.append(event.kind if event else "lost")

            task = asyncio.create_task(watch([one], news, said.append, 0.5))
            machine = await one.machine(guest)
            assert machine is not None
            await asyncio.sleep(1)
            _restart(where, "h1")
            while "lost" not in seen:
                await asyncio.sleep(0.1)
            end = time.monotonic() + _JOIN_SECONDS
            while time.monotonic() < end and "resumed" not in seen:
                with suppress(MachineError):
                    await machine.pause()
                    await machine.resume()
                    seen.append("resumed")
                await asyncio.sleep(0.2)
            await asyncio.sleep(2)
            await machine.pause()
            await machine.resume()
            await asyncio.sleep(1)
            task.cancel()
            return said, seen

    said, seen = asyncio.run(asyncio.wait_for(work(), _MOVE_SECONDS))
    after = seen[seen.index("resumed"):] if "resumed" in seen else []
    good = len(said) == 2 and "tells of no events" in said[0] and "again" in said[1]
    run.check(f"h1: its libvirtd is found again: {said}, {seen}", good and {"paused", "running"} <= set(after))


def _interrupt(run: Run, where: lab.Lab, guest: str) -> None:
    """Ctrl-C while its memory moves: `virDomainAbortJob`, the device again, the order withdrawn."""
    code, said, error = _disturbed(where, guest, lambda mover: mover.send_signal(signal.SIGINT))
    run.log(said + error)
    good = code == 130 and "interrupted; it runs on" in error
    run.check(f"{guest} is interrupted on its way to h2", good, said + error)


def _disturbed(
    where: lab.Lab, guest: str, do: Callable[[subprocess.Popen[str]], None]
) -> tuple[int, str, str]:
    """A move to h2, and what is done to it when the guest's memory begins to move."""
    words = _ivc("migrate", guest, "--to", "h2", "--lab", where.name, "--json")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if json.loads(line).get("phase") == "migrate":
                do(process)
                break
        said, error = process.communicate(timeout=_MOVE_SECONDS)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said, error


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
        _interrupt(run, two, guest)
        for host in ("h1", "h2"):
            _restarted_in_a_move(run, two, guest, host)
        _watched(run, two, guest)
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
