"""What is on record about a lab: its directory under /run, and lab.json in it.

The directory is the lab: it exists from the first moment of `up` to the last of `down`, so making
it is what reserves the name, and removing it is the last thing done.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import LabError, UsageError
from .process import Process

DEFAULT_NAME = "default"
_VERSION = 5


def base() -> Path:
    return Path("/run/ivc/lab")


@dataclass
class GuestRecord:
    name: str
    address: str
    processes: list[Process] = field(default_factory=list)
    #: Which of the lab's "hosts" it stands on, from 1: guests of one host share a region.
    host: int = 1
    uuid: str = ""
    #: What takes the guest in on another host; the guest is there once `processes` have ended.
    receiver: list[Process] = field(default_factory=list)
    receiver_host: int = 0
    #: On each host the file with the number of its process, where the hypervisor keeps one.
    pid_files: list[str] = field(default_factory=list)

    def alive(self) -> bool:
        return _all_alive(self.processes)

    def settle(self) -> None:
        """Where the guest is now. Whoever migrates it ends the side that does not have it."""
        if _all_alive(self.processes):
            return
        for host, file in enumerate(self.pid_files, start=1):
            if (found := _process_in(file, self.uuid)) is not None:
                self.processes, self.host = [found], host
        if _all_alive(self.receiver):
            self.processes, self.host = self.receiver, self.receiver_host
            self.receiver, self.receiver_host = [], 0


@dataclass
class HostRecord:
    """A "host" that is a machine of its own."""

    name: str
    address: str
    #: Where it keeps the UUIDs of the guests that live on it, once it has started its own.
    roll: str
    processes: list[Process] = field(default_factory=list)

    def alive(self) -> bool:
        return _all_alive(self.processes)

    def guests(self) -> list[str] | None:
        """The UUIDs of the guests on it; None before it has started them."""
        try:
            return Path(self.roll).read_text().split()
        except OSError:
            return None


def _process_in(file: str, uuid: str) -> Process | None:
    """Its file is left behind when it is killed, and the number may be another's by now."""
    try:
        found = Process.of(int(Path(file).read_text()))
        command = Path(f"/proc/{found.pid}/cmdline").read_bytes()
        return found if uuid.encode() in command else None
    except (OSError, ValueError, ProcessLookupError):
        return None


def _all_alive(processes: list[Process]) -> bool:
    return bool(processes) and all(one.alive() for one in processes)


@dataclass
class LabRecord:
    """The content of lab.json."""

    name: str
    hypervisor: str
    #: One region for each "host"; empty when the guests have none.
    regions: list[str]
    region_size: int
    memory_mb: int
    #: The command that brings the lab up; `up` is not finished while it lives and `ready` is false.
    owner: Process
    ready: bool = False
    #: How many "hosts" it has.
    hosts: int = 1
    #: Whether its guests can move from host to host.
    migrates: bool = False
    #: Whether what guests see of this machine are copies.
    copied: bool = False
    #: The directories of this machine that guests see.
    shares: list[str] = field(default_factory=list)
    created: float = field(default_factory=time.time)
    guests: list[GuestRecord] = field(default_factory=list)
    #: Its "hosts" in their order, where those are machines of their own.
    machines: list[HostRecord] = field(default_factory=list)
    version: int = _VERSION

    @property
    def directory(self) -> Path:
        return directory(self.name)

    @property
    def namespace(self) -> Path:
        return namespace(self.name)

    @property
    def region(self) -> str | None:
        """The first host's region, which is the only one in most labs."""
        return self.regions[0] if self.regions else None

    @property
    def ssh_directory(self) -> Path:
        return self.directory / "ssh"

    @property
    def inventory(self) -> Path:
        """What `ivc migrate`, `ivc attach` and `ivc detach` read; QEMU guests only."""
        return self.directory / "hosts.toml"

    def status(self) -> str:
        """One word: up, starting, broken (some member has died) or abandoned (`up` was killed)."""
        if not self.ready:
            return "starting" if self.owner.alive() else "abandoned"
        return "up" if all(one.alive() for one in self.members()) else "broken"

    def members(self) -> list[HostRecord | GuestRecord]:
        """All that have an address."""
        return [*self.machines, *self.guests]

    def member(self, name: str) -> HostRecord | GuestRecord:
        """A guest, or a host that is a machine of its own."""
        return next((one for one in self.machines if one.name == name), None) or self.guest(name)

    def settle(self) -> None:
        """Find out where the guests are now, and which have died."""
        rolls = [machine.guests() for machine in self.machines]
        for guest in self.guests:
            guest.settle()
            if rolls:
                self._settle_by(rolls, guest)

    def _settle_by(self, rolls: list[list[str] | None], guest: GuestRecord) -> None:
        """While it moves it can be on two: the old host counts."""
        having = [n for n, roll in enumerate(rolls, start=1) if guest.uuid in (roll or ())]
        if having and guest.host not in having:
            guest.host = having[0]
        known = rolls[guest.host - 1] is not None
        guest.processes = self.machines[guest.host - 1].processes if having or not known else []

    def guest(self, name: str) -> GuestRecord:
        for guest in self.guests:
            if guest.name == name:
                return guest
        names = ", ".join(guest.name for guest in self.guests)
        raise UsageError(f"lab {self.name} has no guest {name}", hint=f"its guests are {names}")

    def save(self) -> None:
        """Replace lab.json as a whole: a reader sees the old or the new one."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        new = self.directory / "lab.json.new"
        new.write_text(text)
        os.replace(new, self.directory / "lab.json")


def check_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,19}", name):
        raise UsageError(
            f"{name!r} cannot be a lab's name",
            hint="use up to 20 lower-case letters, digits and hyphens",
        )
    return name


def directory(name: str) -> Path:
    return base() / name


def namespace(name: str) -> Path:
    return directory(name) / "netns"


def region_path(name: str, host: int = 1) -> Path:
    # A lab's name holds no dot, so one lab's second region is never another lab's first.
    return Path("/dev/shm") / (f"ivc-lab-{name}" if host == 1 else f"ivc-lab-{name}.{host}")


def copies_path(name: str) -> Path:
    """Where disks of a lab are: too large for /run, which may be memory."""
    return Path("/var/tmp") / f"ivc-lab-{name}"


def store_path(name: str) -> Path:
    """What the hosts of a lab have in common, where they are machines of their own."""
    return copies_path(name) / "store"


def load(name: str) -> LabRecord | None:
    """The record of a lab; None when there is none (yet), or none that this version can read."""
    try:
        data = json.loads((directory(name) / "lab.json").read_text())
        if data["version"] != _VERSION:
            return None
        parts = {
            "owner": Process(**data["owner"]),
            "guests": [GuestRecord(**_with_processes(one)) for one in data["guests"]],
            "machines": [HostRecord(**_with_processes(one)) for one in data["machines"]],
        }
        record = LabRecord(**{**data, **parts})
        record.settle()
        return record
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _with_processes(data: dict[str, Any]) -> dict[str, Any]:
    keys = data.keys() & {"processes", "receiver"}
    return {**data, **{key: [Process(**one) for one in data[key]] for key in keys}}


@contextmanager
def changing(name: str) -> Iterator[LabRecord]:
    """The record of a lab that is up, for oneself alone; saved at the end of the block."""
    with open(directory(name) / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = load(name)
        if record is None:
            raise LabError(f"there is no lab named {name}", hint="see `ivc lab list`")
        yield record
        record.save()


def reserve(name: str) -> None:
    """Make the lab's directory; fails when the name is taken."""
    try:
        base().mkdir(parents=True, exist_ok=True)
        directory(name).mkdir(mode=0o700)
    except FileExistsError:
        raise LabError(
            f"there is a lab named {name} already",
            hint=f"choose another --name, or first: ivc lab down --name {name}",
        ) from None
    except PermissionError:
        raise LabError("a lab needs root", hint="run the same command with sudo") from None


def release(name: str) -> None:
    """Remove every file of a lab, and the parents that nobody else uses."""
    first = region_path(name)
    for region in (first, *first.parent.glob(f"{first.name}.*")):
        region.unlink(missing_ok=True)
    for folder in (copies_path(name), directory(name)):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            raise LabError(f"cannot remove {folder}", hint="remove it by hand")
    for parent in (base(), base().parent):
        try:
            parent.rmdir()
        except OSError:
            break  # another lab lives there


def names() -> Iterator[str]:
    """Every lab that has a directory, whatever its state."""
    if base().is_dir():
        yield from sorted(entry.name for entry in base().iterdir() if entry.is_dir())
