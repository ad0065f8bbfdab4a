"""Guests run by Xen: each host is a QEMU machine with Xen and a dom0, which runs its guests.

Outside there is one process per host: QEMU, with the processor emulated, because Xen needs more of
it than nested virtualisation offers in most places. Its network card and the guests' interfaces are
ports of a bridge in dom0, so hosts and guests are on the lab's one network. Guests get the disks of
their host, which are the same files for all hosts; `xl` in dom0 moves guests between them.

What dom0 does is in `xen-dom0.sh`. It has the host's state directory as /lab: there lie, for each
guest to start, its description (`g1.cfg`), what its kernel unpacks (`g1.cpio`) and later the log of
its console.
"""

from __future__ import annotations

import json
import os
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import LabError
from . import image, ssh
from .hypervisor import PREFIX_LENGTH, Copy, GuestSpec, HostSpec, Progress
from .initramfs import Seed
from .process import Process, spawn
from .qemu_words import (
    QEMU,
    SLOT_OWN,
    check_shares,
    console_device,
    copy_devices,
    live_device,
    require,
    standard_devices,
    tag,
)

#: What dom0 needs for itself, and for what it serves to each guest.
_DOM0_MB = 512
_DOM0_GUEST_MB = 16
#: What Xen takes for itself, and beside each guest's memory.
_XEN_MB = 128
_XEN_GUEST_MB = 8

_DOM0 = Path(__file__).with_name("xen-dom0.sh")
#: Called by xl with the back end's place in XenStore. Xen's own take tens of seconds when emulated.
_BLOCK = """#!/bin/sh
# The disk is a block device of dom0, and nobody writes it.
[ "$1" = add ] || exit 0
number=$(stat -L -c '%t:%T' "$(xenstore-read "$XENBUS_PATH/params")")
xenstore-write "$XENBUS_PATH/physical-device" "$number" "$XENBUS_PATH/hotplug-status" connected
"""
_VIF = """#!/bin/sh
# The interface becomes a port of the lab's network.
case $1 in
    add | online) ip link set "$vif" master br0 up ;;
    *) exit 0 ;;
esac
xenstore-write "$XENBUS_PATH/hotplug-status" connected
"""
_XEN_DEFAULTS = """XENCONSOLED_ARGS="--log=guest --log-dir=/lab/consoles"
"""
_KERNEL_LINE = "console=hvc0 quiet panic=-1 random.trust_cpu=on mitigations=off"


@dataclass
class Xen:
    """The mechanisms `xen` and `xen-pvh` of a lab."""

    name: str = "xen"
    #: The type of the guests, in xl's words: paravirtual, or with the processor's virtualisation.
    type: str = "pv"
    ready_timeout: float = 300.0
    default_memory_mb: int = 256
    migrates: bool = True
    own_hosts: bool = True
    regions: bool = False
    live_shares: bool = False

    def prepare(self, progress: Progress) -> None:
        """Make the image of dom0 and guests unless it is there."""
        require()
        self._image = image.make(progress, image.XEN)

    def check(self, hosts: Sequence[HostSpec]) -> None:
        check_shares(len(hosts[0].copies))
        needed, available = sum(map(_memory_mb, hosts)), _available_mb()
        if needed > available:
            raise LabError(
                f"a lab with Xen of this size needs {needed} MiB of memory, "
                f"this machine has {available} MiB available",
                hint="ask for fewer --guests, fewer --hosts or less --memory",
            )

    def start(self, host: HostSpec) -> dict[str, list[Process]]:
        """Start a host; its process is also that of each of its guests."""
        consoles = host.state / "consoles"
        consoles.mkdir()
        for guest in host.guests:
            log = consoles / f"guest-{guest.name}.log"
            log.touch()
            guest.console.symlink_to(log)
            self._image.write_archive(host.state / f"{guest.name}.cpio", _guest_seed(guest))
            (host.state / f"{guest.name}.cfg").write_text(_guest_config(guest, self.type))
        self._image.write_archive(host.state / _ARCHIVE, _dom0_seed(host))
        # By this name, because the path itself may hold a blank.
        (host.state / _KERNEL).symlink_to(self._image.kernel)
        command = self._command(host)
        started = spawn(command, namespace=host.namespace, cwd=host.state, output=host.console)
        return {name: [started] for name in (host.name, *(guest.name for guest in host.guests))}

    def receive(self, spec: GuestSpec) -> list[Process]:
        raise LabError(
            f"{spec.name} is a guest of Xen, which moves its guests itself",
            hint="log in to its host (ivc lab ssh h1): xl migrate, or xl save and xl restore",
        )

    def guest_description(self) -> str:
        return (
            f"Xen {self._image.xen_version} ({self.type.upper()}) in QEMU/TCG, "
            f"Linux {self._image.kernel_version}, 1 CPU, every instruction emulated: "
            "figures show that it works, not how fast it is"
        )

    @cached_property
    def _image(self) -> image.Image:
        """Of an earlier `prepare`, perhaps of another process."""
        found = image.find(image.XEN)
        if found is None:
            raise LabError("the guests' image is not there", hint="it is made by `ivc lab up`")
        return found

    def _command(self, host: HostSpec) -> list[str]:
        return [
            *(QEMU, "-name", host.name, "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-M", "pc", "-m", f"{_memory_mb(host)}M", "-display", "none"),
            # Xen does not start on the newest processor that QEMU knows (`max`). It runs PVH guests
            # by the processor's virtualisation, with page tables of its own (npt).
            *("-accel", "tcg,thread=multi", "-cpu", "qemu64,+svm,+npt"),
            *("-smp", str(_processors(host))),
            *console_device(host.console),
            *("-kernel", str(self._image.xen), "-append", _xen_line(host)),
            *("-initrd", f"{_KERNEL} {_KERNEL_LINE},{_ARCHIVE}"),
            *standard_devices(host.tap, host.mac, self._image.root),
            *copy_devices(host.copies),
            *live_device(host.state, "lab", SLOT_OWN, writable=True),
            *live_device(host.store, "store", SLOT_OWN + 1, writable=True),
            *live_device(self._image.path, "image", SLOT_OWN + 2),
        ]


#: In a host's state directory.
_KERNEL = "kernel"
_ARCHIVE = "dom0.cpio"


def _dom0_mb(host: HostSpec) -> int:
    return _DOM0_MB + _DOM0_GUEST_MB * host.room


def _memory_mb(host: HostSpec) -> int:
    """The QEMU machine's. It takes from this machine only what was written to."""
    return _XEN_MB + _dom0_mb(host) + host.room * (host.memory_mb + _XEN_GUEST_MB)


def _available_mb() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) >> 10


def _processors(host: HostSpec) -> int:
    """No more than there are, but two: alone, an emulated one takes short cuts with atomics."""
    return max(2, min(os.cpu_count() or 1, 1 + host.room))


def _xen_line(host: HostSpec) -> str:
    size = f"{_dom0_mb(host)}M"
    # Memory is not overwritten at start: QEMU would have to have all of it. No defence against
    # guests that spy on the processor: it is emulated. Room for `xl debug-keys` to tell of all guests.
    return (
        f"console=com1 com1=115200,8n1 conring_size=1m dom0_mem={size},max:{size} dom0_max_vcpus=2 bootscrub=0 "
        "spec-ctrl=no"
    )


def _dom0_seed(host: HostSpec) -> Seed:
    return Seed(
        name=host.name,
        address=f"{host.address}/{PREFIX_LENGTH}",
        shares=tuple(("serial", tag(n), str(copy.path)) for n, copy in enumerate(host.copies)),
        files=(
            *ssh.guest_files(host.keys),
            ("/etc/xen/lab-dom0", _DOM0.read_bytes(), 0o755),
            ("/etc/xen/scripts/lab-block", _BLOCK.encode(), 0o755),
            ("/etc/xen/scripts/lab-vif", _VIF.encode(), 0o755),
            ("/etc/default/xen", _XEN_DEFAULTS.encode(), 0o644),
        ),
        inittab="::sysinit:/etc/xen/lab-dom0 daemons\n::once:/etc/xen/lab-dom0 guests\n",
    )


def _guest_seed(guest: GuestSpec) -> Seed:
    return Seed(
        name=guest.name,
        address=f"{guest.address}/{PREFIX_LENGTH}",
        shares=tuple(("disk", _disk(n), str(copy.path)) for n, copy in _numbered(guest.copies)),
        files=ssh.guest_files(guest.keys),
        disk=_disk(0),
        inittab="::sysinit:/bin/mount -t xenfs xenfs /proc/xen\n",
    )


def _guest_config(guest: GuestSpec, type: str) -> str:
    """For `xl create`; the values are Python's, of which JSON's texts and lists are a part."""
    numbers = range(1 + len(guest.copies))
    values = {
        "name": guest.name,
        "type": type,
        "uuid": guest.uuid,
        "kernel": "/image/kernel",
        "ramdisk": f"/lab/{guest.name}.cpio",
        "extra": _KERNEL_LINE,
        "memory": guest.memory_mb,
        "vcpus": 1,
        # A second one can be given while it runs (`xl vcpu-set`): benchmarks put two processes into one.
        "maxvcpus": 2,
        # Dom0's own disks, in the same order.
        "disk": [
            f"format=raw,vdev={_disk(n)},access=ro,backendtype=phy,script=lab-block,"
            f"target=/dev/vd{string.ascii_lowercase[n]}"
            for n in numbers
        ],
        "vif": [f"mac={guest.mac},bridge=br0,script=lab-vif"],
        "on_poweroff": "destroy",
        "on_reboot": "destroy",
        "on_crash": "destroy",
    }
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _numbered(copies: Sequence[Copy]) -> list[tuple[int, Copy]]:
    return list(enumerate(copies, start=1))


def _disk(number: int) -> str:
    """The guest's name for a disk of its host; the first is the root image."""
    return f"xvd{string.ascii_lowercase[number]}"
