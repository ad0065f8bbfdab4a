"""Start a guest kernel that is an ordinary process so that it cannot write to its host.

A user-mode Linux guest may mount any host directory through hostfs with the rights of the process
that it is. So that process gets a mount namespace of its own, in which everything is read-only
except the guest's state directory and the region's file, and in which the guest's memory lies on
a tmpfs of limited size. Nothing of this is visible outside, and all of it ends with the process.

Run as `python -m ivc_host.lab.confine STATE MEMORY_MB REGION|- PROGRAM [ARGS...]`; replaces itself
by the program, with TMPDIR set to the tmpfs.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        sys.exit(f"ivc: {what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode(),
    )
    _check(result, f"cannot mount {source} on {target}")


def _keep_writable(path: str) -> None:
    """Lay a path over itself as a mount of its own, which then has its own read-only flag."""
    _mount(path, path, None, _MS_BIND)
    _mount(path, path, None, _MS_BIND | _MS_REMOUNT)


def confine(state: str, memory_mb: int, region: str | None) -> str:
    """Make the mount namespace; returns the directory for the guest's memory."""
    _check(_libc.unshare(_CLONE_NEWNS), "cannot make a mount namespace")
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    attributes = _MountAttr(set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        b"/",
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, "cannot make the host's file systems read-only (Linux 5.12 or later is needed)")
    _keep_writable(state)
    if region is not None:
        _keep_writable(region)
    memory = os.path.join(state, "memory")
    os.makedirs(memory, exist_ok=True)
    _mount("ivc-guest", memory, "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=700,size={memory_mb}m")
    return memory


def _allow_open_files() -> None:
    """As many as the host's kernel lets anybody have.

    hostfs holds a file open for each that the guest has looked at and still remembers: a `find /`
    in the guest would take all that a process is usually allowed.
    """
    with open("/proc/sys/fs/nr_open") as file:
        most = int(file.read())
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    state, memory_mb, region, *program = sys.argv[1:]
    os.environ["TMPDIR"] = confine(state, int(memory_mb), None if region == "-" else region)
    _allow_open_files()
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"ivc: cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
