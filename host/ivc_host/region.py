"""`ivc region`: makes, shows, clears and removes the files that guests share."""

from __future__ import annotations

import dataclasses
import datetime
import grp
import json
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from . import window as windows
from .errors import UsageError
from .lab.cli import parse_size
from .window import RegionError, Window

app = typer.Typer(no_args_is_help=True, help="Regions: the memory that guests share.")

Path_ = Annotated[str, typer.Argument(metavar="PATH", help="A file, a device, or pci:ADDRESS.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

#: Where `list` looks: every file here that is a region.
_FOLDERS = ("/dev/shm", "/dev/hugepages")

#: Mode of a file that `create` has begun and not finished.
_BEGUN = 0o600


def _group_id(name: str | None) -> int:
    if name is None:
        return -1
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(f"group {name}: no such group", hint=f"groupadd --system {name}") from None


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise UsageError(f"{text!r} is not a mode", hint="write it like 660")
    return mode


#: What fails when there is no memory for it.
_ROOM = "on hugetlbfs reserve huge pages and use a multiple of their size; elsewhere see 'df'"


def _make(path: str, size: int, mode: int, group: int, group_name: str | None) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _BEGUN)
    except FileExistsError:
        raise RegionError(f"{path}: exists already", hint="see 'ivc region show'") from None
    except OSError as fault:
        raise RegionError(f"{path}: {fault.strerror}") from None
    try:
        with _step(path, f"make it {size} bytes large", _ROOM):
            os.ftruncate(fd, size)
            # Now, or a process of some guest dies of SIGBUS when the file system turns out to be full.
            os.posix_fallocate(fd, 0, size)
        with _step(path, f"give it to group {group_name}", "be in that group, or use sudo"):
            os.fchown(fd, -1, group)
        with _step(path, f"set its mode to {mode:o}", None):
            os.fchmod(fd, mode)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


@contextmanager
def _step(path: str, what: str, hint: str | None) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        raise RegionError(f"{path}: cannot {what}: {fault.strerror}", hint=hint) from None


@app.command()
def create(
    path: Path_,
    size: Annotated[str, typer.Option(help="Such as 64M; a power of two for ivshmem.")] = "64M",
    mode: Annotated[str, typer.Option(help="Permissions, octal.")] = "660",
    group: Annotated[str | None, typer.Option(help="Group that may use it.")] = None,
) -> None:
    """Make a file that guests can share. It formats itself at first use."""
    if not path:
        raise UsageError("a region needs a path", hint="such as /dev/shm/ivc")
    n_bytes = parse_size(size)
    if n_bytes < windows.SIZE_MIN or n_bytes % windows.PAGE:
        raise UsageError(
            f"{size}: a region is a multiple of 4 KiB and at least 1 MiB",
            hint="256 KiB for each process, and more for large messages",
        )
    _make(path, n_bytes, _mode(mode), _group_id(group), group)
    print(f"{path}: {n_bytes >> 20} MiB")
    if n_bytes & (n_bytes - 1):
        print("note: ivshmem needs a power of two; this size serves processes of one kernel only")


def _describe(window: Window) -> dict[str, object]:
    fields = dataclasses.asdict(window)
    fields["capacity"] = fields.pop("geometry")["capacity"]
    for one, member in zip(fields["members"], window.members, strict=True):
        one["process_exists"] = member.process_exists() if member.same_kernel else None
    return fields


def _missing(window: Window) -> int:
    """Bytes of a file that are not there yet: a guest that has it as a device cannot ask for them."""
    if window.path.startswith(("pci:", "/sys/")):
        return 0
    info = os.stat(window.path)
    return max(0, window.size - info.st_blocks * 512) if stat.S_ISREG(info.st_mode) else 0


def _print(window: Window) -> None:
    print(f"region {window.path}")
    print(f"    size:     {window.size / 2**20:g} MiB, room for {window.geometry.capacity} members")
    missing = _missing(window)
    if missing:
        print(
            f"    sparse:   {missing / 2**20:g} MiB come when they are first used, if there is room then;"
            f" now: fallocate -l {window.size} {window.path}"
        )
    if window.state != "ready":
        print(f"    state:    {_words(window)}")
        return
    made = datetime.datetime.fromtimestamp((window.epoch or 0) / 1e9, datetime.UTC)
    print(f"    uuid:     {window.uuid}\n    made:     {made:%Y-%m-%d %H:%M:%S} UTC")
    print(f"    tenant:   {window.tenant or '(anyone)'}")
    print(f"    free:     {(window.free_bytes or 0) / 2**20:.1f} MiB")
    for m in window.members:
        here = ", this kernel" if m.same_kernel else ""
        print(
            f"    slot {m.slot}: client {m.client_id} of {m.magic_id}, process {m.pid}"
            f" on {m.host}{here}, {'silent' if m.slot in window.silent else m.phase}"
        )


def _words(window: Window) -> str:
    return {
        "unformatted": "not formatted yet; it formats itself at first use",
        "damaged": f"damaged, or of another version (format {window.version},"
        f" this tool has {windows.VERSION}); 'ivc region reset' makes it anew",
        "foreign": "holds something that is not an ivc region",
    }[window.state]


@app.command()
def show(path: Path_, as_json: Json = False) -> None:
    """Show a region's header and members. Reads only."""
    window = windows.look(path)
    if as_json:
        print(json.dumps(_describe(window), indent=2))
    else:
        _print(window)


def _candidates() -> list[str]:
    found = {name for name in windows.WELL_KNOWN if os.path.exists(name)}
    for folder in _FOLDERS:
        if os.path.isdir(folder):
            found.update(str(p) for p in Path(folder).iterdir() if p.is_file())
    return sorted(found)


def _is_listed(window: Window) -> bool:
    """Zeros may be anybody's file: without a header the name has to say what it is."""
    if window.uuid is not None or window.path in windows.WELL_KNOWN:
        return True
    return window.state == "unformatted" and os.path.basename(window.path).startswith("ivc")


def _look() -> tuple[list[Window], list[str]]:
    """The regions, and the files that cannot be looked at."""
    found, closed = [], []
    for name in _candidates():
        try:
            window = windows.look(name)
        except windows.NoPermissionError:
            closed.append(name)
        except RegionError:
            continue  # somebody else's file
        else:
            found += [window] if _is_listed(window) else []
    return found, closed


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the regions of this machine: files in /dev/shm and /dev/hugepages.

    One that nobody has used yet is zeros, as other files may be: it is listed when its name begins
    with ivc.
    """
    found, closed = _look()
    if as_json:
        print(json.dumps([_describe(w) for w in found], indent=2))
    for window in found if not as_json else []:
        active = sum(m.phase == "active" and m.slot not in window.silent for m in window.members)
        silent = f", {len(window.silent)} silent" if window.silent else ""
        print(f"{window.path}  {window.size / 2**20:g} MiB  {window.state}  {active} members{silent}")
    if not found and not closed and not as_json:
        print("no regions; make one with 'ivc region create /dev/shm/ivc'")
    _tell_closed(closed)


def _tell_closed(closed: list[str]) -> None:
    known = [name for name in closed if name in windows.WELL_KNOWN]
    for name in known:
        print(f"{name}: no permission; be in its group, or use sudo (see ls -l)", file=sys.stderr)
    others = len(closed) - len(known)
    if others:
        files = "1 file" if others == 1 else f"{others} files"
        print(f"{files} without permission, which may be regions: see with sudo", file=sys.stderr)


def _refuse_living(memory: mmap.mmap, window: Window) -> None:
    members = windows.living(memory, window)
    if members:
        m = members[0]
        raise RegionError(
            f"region {window.path}: in use by {len(members)} members, such as process {m.pid}"
            f" on {m.host}",
            hint="end them, or use --force (their connections fail)",
        )


@app.command()
def reset(
    path: Path_,
    force: Annotated[bool, typer.Option("--force", help="Even if in use, or no region.")] = False,
) -> None:
    """Make a region as if it had never been used. Refuses while members live."""
    with windows.mapped(path, writable=True) as memory:
        window = windows.parse(path, memory)
        if window.state == "foreign" and not force:
            raise RegionError(
                f"region {path}: holds something that is not an ivc region",
                hint=f"--force overwrites its first {window.geometry.blocks} bytes",
            )
        if not force:
            _refuse_living(memory, window)
        windows.clear(memory, window.geometry)
    print(f"{path}: cleared; it formats itself at next use")


@app.command()
def remove(
    path: Path_,
    force: Annotated[bool, typer.Option("--force", help="Even if it is in use.")] = False,
) -> None:
    """Remove a region's file. Refuses while members live, and what is not a region."""
    if not os.path.lexists(path):
        raise RegionError(f"region {path}: no such file")
    if not os.path.isfile(path) or path.startswith(("/sys/", "/proc/")):
        raise RegionError(f"region {path}: not a file that could be removed")
    if not _is_begun(path):
        _refuse_foreign(path, force)
    try:
        os.unlink(path)
    except OSError as fault:
        raise RegionError(f"{path}: {fault.strerror}") from None
    print(f"{path}: removed")


def _is_begun(path: str) -> bool:
    """Whether a `create` that was killed left it: empty, and ours alone."""
    info = os.stat(path)
    return (info.st_size, info.st_uid, info.st_mode & 0o777) == (0, os.geteuid(), _BEGUN)


def _refuse_foreign(path: str, force: bool) -> None:
    with windows.mapped(path) as memory:
        window = windows.parse(path, memory)
        if window.state == "foreign":
            raise RegionError(
                f"{path}: not an ivc region", hint="if you mean it, use rm"
            )
        if not force:
            _refuse_living(memory, window)
