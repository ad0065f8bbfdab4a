"""A lab's network: a namespace of its own, a bridge, a tap per machine, and no way out.

The namespace is kept by a mount on a file in the lab's state directory, not under /run/netns, so
that a lab leaves no mount behind when it goes. Devices are never removed one by one: they die
with the namespace, once the last process has left it and the file is unmounted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import LabError, MissingError
from . import hypervisor, process

_MNT_DETACH = 2


def create(namespace: Path, taps: Sequence[str]) -> None:
    """Make the namespace with loopback, bridge and taps, everything up."""
    if not Path("/dev/net/tun").exists():
        raise MissingError(
            "this kernel has no /dev/net/tun, which a lab's network needs", hint="try: modprobe tun"
        )
    namespace.touch()
    made = subprocess.run(
        ["unshare", f"--net={namespace}", "--", "true"], capture_output=True, text=True
    )
    if made.returncode != 0:
        raise LabError(
            f"cannot make a network namespace at {namespace}: {made.stderr.strip()}",
            hint="a lab needs root on a machine or virtual machine, not in a plain container",
        )
    _configure(namespace, taps)


def _configure(namespace: Path, taps: Sequence[str]) -> None:
    bridge = hypervisor.BRIDGE
    lines = [
        "link set lo up",
        f"link add {bridge} type bridge stp_state 0",
        f"addr add {hypervisor.BRIDGE_ADDRESS}/{hypervisor.PREFIX_LENGTH} dev {bridge}",
        f"link set {bridge} up",
    ]
    for tap in taps:
        lines += [f"tuntap add dev {tap} mode tap", f"link set {tap} master {bridge} up"]
    # One `ip` for all of it. (pyroute2 was tried: it took longer and once waited for ever.)
    done = subprocess.run(
        [*process.enter(namespace), "ip", "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise LabError(
            f"cannot set up the bridge and the taps in {namespace}: "
            + "; ".join(done.stderr.split("\n")).strip("; "),
            hint="the kernel must offer bridge and tun devices (modprobe bridge tun)",
        )


def remove(namespace: Path) -> None:
    """Let go of the namespace; with its last process gone the kernel removes all of it."""
    libc = ctypes.CDLL(None, use_errno=True)
    # More than once when `create` was interrupted and repeated; EINVAL: nothing is mounted there.
    while libc.umount2(os.fsencode(namespace), _MNT_DETACH) == 0:
        pass
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOENT):
        raise LabError(f"cannot unmount {namespace}: {os.strerror(code)}")
    namespace.unlink(missing_ok=True)


def tap_name(machine: str, host: int = 1) -> str:
    """A tap serves one process: a guest that moves finds another one on each host."""
    return f"tap-{machine}" if host == 1 else f"tap-{machine}-h{host}"


def address(index: int) -> str:
    """The address of guest number INDEX, counted from 1."""
    return _address(hypervisor.FIRST_GUEST + index - 1)


def host_address(number: int) -> str:
    """The address of a host that is a machine of its own, counted from 1."""
    return _address(hypervisor.FIRST_HOST + number - 1)


def _address(last: int) -> str:
    prefix = hypervisor.BRIDGE_ADDRESS.rsplit(".", 1)[0]
    return f"{prefix}.{last}"


def mac(address: str) -> str:
    """A locally administered address; unique within the lab, and labs do not meet."""
    return f"52:54:00:77:00:{int(address.rsplit('.', 1)[1]):02x}"
