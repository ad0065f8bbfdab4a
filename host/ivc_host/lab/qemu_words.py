"""Words of a QEMU command line: what the machines of all mechanisms that use QEMU have in common.

All devices sit at fixed addresses of the PCI bus, so that a machine is the same on every host.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import LabError, MissingError
from .hypervisor import Copy

QEMU = "qemu-system-x86_64"

#: Slots on the PCI bus; 0 and 1 are the chip set's own, those from SLOT_OWN on the mechanism's.
SLOT_NET = 0x03
SLOT_DISK = 0x04
SLOT_RNG = 0x05
SLOT_SHARE = 0x08  # and the following ones, one per shared directory, live or copied
SLOT_OWN = 0x10
MAX_SHARES = SLOT_OWN - SLOT_SHARE


def require() -> None:
    """Raise when there is no QEMU."""
    if shutil.which(QEMU) is None:
        raise MissingError(f"{QEMU} is not installed", hint="./run setup installs qemu-system-x86")


def check_shares(number: int) -> None:
    """Raise when a machine has no room for that many shared directories."""
    if number > MAX_SHARES:
        raise LabError(f"a guest can see at most {MAX_SHARES} directories of the host")


def console_device(log: Path) -> list[str]:
    """The first serial port, which writes to a file."""
    return [
        *("-chardev", f"file,id=console,path={quoted(log)},append=on"),
        *("-serial", "chardev:console"),
    ]


def standard_devices(tap: str, mac: str, root: Path) -> list[str]:
    """Network, the disk with the root image, random numbers."""
    return [
        *("-netdev", f"tap,id=net0,ifname={tap},script=no,downscript=no"),
        *("-device", f"virtio-net-pci,netdev=net0,mac={mac},romfile=,addr={SLOT_NET:#x}"),
        *("-blockdev", _disk_node(root, "root")),
        *("-device", f"virtio-blk-pci,drive=root,addr={SLOT_DISK:#x}"),
        *("-device", f"virtio-rng-pci,addr={SLOT_RNG:#x}"),
    ]


def copy_devices(copies: Sequence[Copy]) -> list[str]:
    """A disk for each."""
    words = []
    for number, copy in enumerate(copies):
        node = f"disk{number}"
        words += ["-blockdev", _disk_node(copy.image, node)]
        device = f"virtio-blk-pci,drive={node},serial={tag(number)}"
        words += ["-device", f"{device},addr={SLOT_SHARE + number:#x}"]
    return words


def live_device(path: Path, tag: str, slot: int, *, writable: bool = False) -> list[str]:
    """A directory by 9p."""
    backend = f"local,id={tag},path={quoted(path)},security_model=none,multidevs=remap"
    return [
        *("-fsdev", f"{backend},readonly={'off' if writable else 'on'}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag},addr={slot:#x}"),
    ]


def tag(number: int) -> str:
    """The name of a shared directory: its 9p tag, or the serial number of its disk."""
    return f"share{number}"


def quoted(path: Path) -> str:
    """A path inside one of QEMU's option lists, where a comma separates."""
    return str(path).replace(",", ",,")


def _disk_node(path: Path, name: str) -> str:
    # Without locking: all guests of all labs read the same file, and nobody writes it.
    return (
        f"driver=raw,node-name={name},read-only=on,"
        f"file.driver=file,file.locking=off,file.filename={quoted(path)}"
    )
