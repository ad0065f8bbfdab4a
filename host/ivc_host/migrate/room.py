"""Whether a region on some host can take a guest's processes."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass

from .. import window as windows
from ..errors import IvcError, MissingError
from ..hypervisor.faults import MigrateError
from ..hypervisor.reach import Reach

#: What a process needs to join and to have a small ring to each of a few peers.
BYTES_PER_MEMBER = 256 * 1024


@dataclass(frozen=True)
class Room:
    """What a region's file says about itself."""

    size: int
    state: str
    free_places: int
    free_bytes: int
    #: Of the file's bytes, how many have no memory yet; and how much memory its file system has.
    missing: int
    available: int


def _of(window: windows.Window, missing: int, available: int) -> Room:
    taken = sum(member.phase in ("joining", "active") for member in window.members)
    free = window.free_bytes if window.free_bytes is not None else window.size
    places = window.geometry.capacity - taken
    return Room(window.size, window.state, places, free, missing, available)


def _here(path: str) -> Room:
    window = windows.read(path)
    info, system = os.stat(path), os.statvfs(path)
    missing = max(info.st_size - info.st_blocks * 512, 0)
    # A file system without a limit of its own (hugetlbfs) tells nothing.
    if not stat.S_ISREG(info.st_mode) or system.f_blocks == 0:
        missing = 0
    return _of(window, missing, system.f_bavail * system.f_frsize)


async def _there(reach: Reach, path: str) -> Room:
    done = await reach.run([*reach.own("ivc"), "region", "show", path, "--json"])
    if done.code == 127:
        raise MissingError(f"ivc is not there on {reach.host.name}", hint="install it there")
    if done.code != 0:
        raise MigrateError(done.last_line().removeprefix("ivc: "))
    told = json.loads(done.out)
    taken = sum(member["phase"] in ("joining", "active") for member in told["members"])
    free = told["free_bytes"] if told["free_bytes"] is not None else told["size"]
    missing, available = await _memory(reach, path)
    return Room(told["size"], told["state"], told["capacity"] - taken, free, missing, available)


async def _memory(reach: Reach, path: str) -> tuple[int, int]:
    file = await reach.run(["stat", "-L", "-c", "%s %b %B", path])
    system = await reach.run(["stat", "-L", "-f", "-c", "%b %a %S", path])
    if file.code != 0 or system.code != 0:
        return 0, 0  # a system without this stat: the hypervisor will find out
    size, blocks, unit = map(int, file.out.split())
    n_blocks, n_free, block = map(int, system.out.split())
    if n_blocks == 0:
        return 0, 0
    return max(size - blocks * unit, 0), n_free * block


async def check(reach: Reach, path: str, members: int) -> Room:
    """The region's room, when MEMBERS processes more find theirs in it; else MigrateError."""
    where = f"region {path} on {reach.host.name}"
    try:
        room = _here(path) if reach.is_here else await _there(reach, path)
    except MissingError:
        raise
    except IvcError as fault:
        raise MigrateError(f"host {reach.host.name} has no region to give: {fault}") from None
    if room.state not in ("ready", "unformatted"):
        raise MigrateError(f"{where} is {room.state}", hint=f"see 'ivc region show {path}'")
    if room.size & (room.size - 1):
        raise MigrateError(
            f"{where} has {room.size} bytes, and a device's must be a power of two",
            hint="ivc region create makes such a one",
        )
    if room.missing > room.available:
        raise MigrateError(
            f"{where} has no memory behind it: {room.missing >> 20} MiB are missing and its file"
            f" system has {room.available >> 20} MiB",
            hint="make room there, or a smaller region",
        )
    need = members * BYTES_PER_MEMBER
    if room.free_places < members or room.free_bytes < need:
        raise MigrateError(
            f"{where} has no room: {members} processes come, it has {room.free_places} places and"
            f" {room.free_bytes / 2**20:.1f} MiB left",
            hint="make it larger, or end others that use it",
        )
    return room
