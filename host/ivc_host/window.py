"""A region's bytes as the host sees them: header, directory, owner words (docs/region-format.md).

Reading never writes. The one thing that is written here is zeros, by `clear`, which makes a window
as if it had never been used.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .errors import IvcError

MAGIC = 0x314E495743564923
VERSION = 3
PAGE = 4096
SIZE_MIN = 1 << 20
WELL_KNOWN = ("/dev/shm/ivc", "/dev/hugepages/ivc")

_HEADER = struct.Struct("<QIIQ16sQQQQQQIIQ32s")
_MEMBER = struct.Struct("<QQIIQQ16sQ64sQ56xQ56x")
_FLOCK = struct.Struct("hhqqi4x")
_NAMESPACE = "/proc/self/ns/pid"
_PHASES = ("free", "joining", "active", "left", "dead")
_BEAT = 0.1  # seconds between two heartbeats of a living member
_BEATS = 0.3


class RegionError(IvcError):
    """A region could not be read, made, cleared or removed."""


class NoPermissionError(RegionError):
    """It is there, and not for us."""


@dataclass(frozen=True)
class Geometry:
    """Where the tables lie; follows from the size alone (src/region/window.c)."""

    capacity: int
    members: int
    inboxes: int
    owners: int
    blocks: int
    n_blocks: int

    @classmethod
    def of(cls, size: int) -> Geometry:
        capacity = min(max(size // (256 * 1024), 64), 4096) & ~63
        inbox = 64 + 2 * _align(capacity // 8, 64)
        members = PAGE
        inboxes = members + capacity * _MEMBER.size
        owners = _align(inboxes + capacity * inbox, PAGE)
        blocks = _align(owners + size // PAGE * 4, PAGE)
        return cls(capacity, members, inboxes, owners, blocks, (size - blocks) // PAGE)


@dataclass
class Member:
    slot: int
    generation: int
    phase: str
    magic_id: int
    client_id: int
    pid: int
    pid_start: int
    pid_namespace: int
    host: str
    boot_id: str
    heartbeat: int
    #: Its process number means something here: that is proven.
    same_kernel: bool

    def process_exists(self) -> bool:
        """Of our own kernel only: whether that very process is still there."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            return False
        return int(fields[19]) == self.pid_start

    def is_present(self) -> bool:
        return self.phase in ("joining", "active")


@dataclass
class Window:
    """What was read of a region at one moment."""

    path: str
    size: int
    state: str  # "ready", "unformatted", "damaged", "foreign"
    geometry: Geometry
    uuid: str | None = None
    epoch: int | None = None
    version: int | None = None
    lease_ms: int = 10000
    tenant: str = ""
    free_bytes: int | None = None
    members: list[Member] = field(default_factory=list)
    #: The slots whose members do not beat; when that was looked at.
    silent: list[int] = field(default_factory=list)


def _align(n: int, unit: int) -> int:
    return (n + unit - 1) // unit * unit


def _own_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _is_here(namespace: int, endpoint_id: int) -> bool:
    """Whether a member lives in our kernel and process id namespace (src/region/presence.c).

    Copies of one snapshot have one boot id, and their namespaces one number. So a member holds a lock
    on its namespace's own file: whoever sees it shares the kernel. One that has died has none.
    """
    try:
        with open(_NAMESPACE, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_ino != namespace:
                return False
            place = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, endpoint_id & (1 << 63) - 1, 1, 0)
            found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, place)
    except OSError:
        return False
    return bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK)


def file_of(name: str) -> str:
    """The file behind a region's name: a path, or pci:ADDRESS."""
    if name.startswith("pci:"):
        return f"/sys/bus/pci/devices/{name[4:]}/resource2"
    return name


def _device_size(info: os.stat_result) -> int:
    """A DAX device tells its size in sysfs.

    User-mode Linux's mmapper tells none, and reading it to find out may touch a page that does not
    exist, which ends the guest: on the host there is the file behind it, in the guest ivc_info.
    """
    number = f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    try:
        return int(Path(f"/sys/dev/char/{number}/size").read_text())
    except (OSError, ValueError):
        raise RegionError(
            "a device that does not tell its size",
            hint="name the file behind it on the host, or use ivc_info in the guest",
        ) from None


def _size(fd: int) -> int:
    info = os.fstat(fd)
    if stat.S_ISDIR(info.st_mode):
        raise RegionError("a directory", hint="name a file in it")
    return _device_size(info) if stat.S_ISCHR(info.st_mode) else info.st_size


def _explain(name: str, fault: OSError) -> RegionError:
    if fault.errno == errno.ENOENT:
        return RegionError(f"region {name}: no such file", hint=f"ivc region create {name}")
    if fault.errno in (errno.EACCES, errno.EPERM):
        return NoPermissionError(
            f"region {name}: no permission", hint="be in its group, or use sudo (see ls -l)"
        )
    return RegionError(f"region {name}: {fault.strerror}")


@contextmanager
def mapped(name: str, writable: bool = False) -> Iterator[mmap.mmap]:
    """The region's bytes. A file or device that is too small to be one is refused."""
    path = file_of(name)
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            try:
                size = _size(fd)
            except RegionError as fault:
                raise RegionError(f"region {name}: {fault.message}", hint=fault.hint) from None
            if size < SIZE_MIN:
                raise RegionError(
                    f"region {name}: too small, {size} bytes; a region has at least {SIZE_MIN}"
                )
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            memory = mmap.mmap(fd, size, access=access)
        finally:
            os.close(fd)
    except OSError as fault:
        raise _explain(name, fault) from None
    with memory:
        yield memory


def _read_members(memory: mmap.mmap, geometry: Geometry) -> list[Member]:
    found = []
    own_boot_id = _own_boot_id()
    for slot in range(geometry.capacity):
        values = _MEMBER.unpack_from(memory, geometry.members + slot * _MEMBER.size)
        (state, magic_id, client_id, pid, pid_start, namespace, raw_boot_id, _, host, endpoint_id,
         heartbeat) = values  # fmt: skip
        phase = state & 0xFFFFFFFF
        if not 0 < phase < len(_PHASES):
            continue
        boot_id = str(uuid.UUID(bytes=raw_boot_id))
        found.append(
            Member(
                slot=slot,
                generation=state >> 32,
                phase=_PHASES[phase],
                magic_id=magic_id,
                client_id=client_id,
                pid=pid,
                pid_start=pid_start,
                pid_namespace=namespace,
                host=_text(host),
                boot_id=boot_id,
                heartbeat=heartbeat,
                same_kernel=boot_id == own_boot_id and _is_here(namespace, endpoint_id),
            )
        )
    return found


def _text(raw: bytes) -> str:
    """What a member wrote, fit for a terminal."""
    text = raw.split(b"\0", 1)[0].decode("ascii", "replace")
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text)


def _free_bytes(memory: mmap.mmap, geometry: Geometry) -> int:
    owners = memory[geometry.owners : geometry.owners + 4 * geometry.n_blocks]
    return sum(word == 0 for word in memoryview(owners).cast("I")) * PAGE


def parse(name: str, memory: mmap.mmap) -> Window:
    """Reads header and directory."""
    size = len(memory)
    window = Window(path=name, size=size, state="foreign", geometry=Geometry.of(size))
    (magic, version, capacity, made_size, raw_uuid, epoch, members, inboxes, owners, blocks,
     n_blocks, lease_ms, _, _, tenant) = _HEADER.unpack_from(memory, 0)  # fmt: skip
    if magic == 0 and not any(memory[:PAGE]):
        window.state = "unformatted"
    if magic != MAGIC:
        return window
    window.uuid = str(uuid.UUID(bytes=raw_uuid))
    window.epoch, window.version, window.lease_ms = epoch, version, lease_ms
    window.tenant = _text(tenant)
    window.state = "damaged"
    if version == VERSION and SIZE_MIN <= made_size <= size:
        window.geometry = Geometry.of(made_size)
        if Geometry(capacity, members, inboxes, owners, blocks, n_blocks) == window.geometry:
            window.state = "ready"
    if version == VERSION:
        window.members = _read_members(memory, window.geometry)
        window.free_bytes = _free_bytes(memory, window.geometry)
    return window


def read(name: str) -> Window:
    with mapped(name) as memory:
        return parse(name, memory)


def look(name: str) -> Window:
    """Reads it, and tells the silent from the living, which takes some beats."""
    with mapped(name) as memory:
        window = parse(name, memory)
        window.silent = [m.slot for m in silent(memory, window)]
        return window


def living(memory: mmap.mmap, window: Window) -> list[Member]:
    """The members that may still be using the memory.

    One that is known to be of our own kernel and whose process is there does. Of all others only the
    heartbeat tells, also of one that has died here: it is watched for as long as the region's lease,
    and the first that moves ends the wait.
    """
    present = [m for m in window.members if m.is_present()]
    ours = [m for m in present if m.same_kernel and m.process_exists()]
    others = [m for m in present if m not in ours]
    deadline = time.monotonic() + window.lease_ms / 1000
    while others and not ours and time.monotonic() < deadline:
        time.sleep(_BEAT)
        now = {m.slot: m.heartbeat for m in _read_members(memory, window.geometry)}
        moved = [m for m in others if now.get(m.slot, m.heartbeat) != m.heartbeat]
        if moved:
            return moved
    return ours


def silent(memory: mmap.mmap, window: Window) -> list[Member]:
    """The members whose hearts stand still, and of which nothing else is known."""
    others = [m for m in window.members if m.is_present() and not m.same_kernel]
    if others:
        time.sleep(_BEATS)
    now = {m.slot: m.heartbeat for m in (_read_members(memory, window.geometry) if others else [])}
    return [m for m in others if now.get(m.slot) == m.heartbeat]


def clear(memory: mmap.mmap, geometry: Geometry) -> None:
    """Zeroes the tables, then the header. Blocks need none of it: who takes one clears it."""
    memory[PAGE : geometry.blocks] = bytes(geometry.blocks - PAGE)
    memory[:PAGE] = bytes(PAGE)
