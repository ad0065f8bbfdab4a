"""Guests run by QEMU: a real PCI bus with an ivshmem device, under KVM where that works, else TCG.

The region is the memory of an `ivshmem-plain` device (PCI 1af4:1110, BAR 2), shared with every
other guest that has the same file. All devices sit at fixed addresses of a bus that can hot-plug,
so that a guest can let go of the region, migrate, and find another one in its place. What stands in
the way of migration (9p) is not there in a lab of several hosts; nor is anything that a process on
the second host could not open (every disk is a file that nobody writes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import LabError
from . import image, kvm, ssh, tsc
from .hypervisor import PREFIX_LENGTH, GuestSpec, HostSpec, Progress, SilentProgress
from .initramfs import Seed
from .process import Process, spawn
from .qemu_words import (
    QEMU,
    SLOT_OWN,
    SLOT_SHARE,
    check_shares,
    console_device,
    copy_devices,
    live_device,
    quoted,
    require,
    standard_devices,
    tag,
)

#: The region's slot on the PCI bus.
SLOT_REGION = SLOT_OWN

#: Names by which QMP commands reach the region, for attach and detach.
REGION_MEMORY = "ivcmem"
REGION_DEVICE = "ivc0"


@dataclass
class Qemu:
    """The mechanism `qemu` of a lab."""

    name: str = "qemu"
    ready_timeout: float = 120.0
    default_memory_mb: int = 512
    migrates: bool = True
    own_hosts: bool = False
    regions: bool = True
    live_shares: bool = True
    cpus: int = 1
    #: `kvm` or `tcg`; None lets a probe guest decide.
    accelerator: str | None = None

    def prepare(self, progress: Progress) -> None:
        """Make the guests' image unless it is there, and find out whether KVM works."""
        require()
        self.guest_image = image.make(progress)
        self.settle(progress)

    def check(self, hosts: Sequence[HostSpec]) -> None:
        for guest in (guest for host in hosts for guest in host.guests):
            check_shares(len(guest.share) + len(guest.copies))

    def start(self, host: HostSpec) -> dict[str, list[Process]]:
        """Start the guests; the processes of each are one alone."""
        return {guest.name: [self._start(guest)] for guest in host.guests}

    def _start(self, spec: GuestSpec) -> Process:
        self.guest_image.write_archive(archive(spec), seed(spec))
        return _spawn(spec, [*self.command(spec), *_region_device(spec)])

    def receive(self, spec: GuestSpec) -> list[Process]:
        """Start what takes a guest in. It waits to be told where from (`migrate-incoming`)."""
        self.settle(SilentProgress())
        return [_spawn(spec, [*self.command(spec), "-incoming", "defer"])]

    def guest_description(self) -> str:
        self.settle(SilentProgress())  # of an earlier command, remembered
        version = self.guest_image.kernel_version
        plural = "1 CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
        if self.accelerator == "kvm":
            return f"QEMU/KVM, Linux {version}, {plural}, code at native speed"
        return (
            f"QEMU/TCG, Linux {version}, {plural}, every instruction emulated: "
            "figures show that it works, not how fast it is"
        )

    def settle(self, progress: Progress) -> None:
        if self.accelerator is None:
            self.accelerator = "kvm" if kvm.usable(self.guest_image, progress) else "tcg"

    @cached_property
    def guest_image(self) -> image.Image:
        """Of an earlier `prepare`, perhaps of another process."""
        found = image.find()
        if found is None:
            raise LabError("the guests' image is not there", hint="it is made by `ivc lab up`")
        return found

    def command(self, spec: GuestSpec) -> list[str]:
        """The command line of one guest, but for its region: the same on every host."""
        return [
            *(QEMU, "-name", spec.name, "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-M", "pc", "-m", self._memory(spec), "-display", "none", "-uuid", spec.uuid),
            *self._processor(),
            *console_device(spec.console),
            # Relative: the length of a socket's path is limited, and this is our directory.
            *("-qmp", f"unix:{qmp_name(spec.host)},server=on,wait=off"),
            *("-kernel", str(self.guest_image.kernel), "-initrd", str(archive(spec))),
            *("-append", self.kernel_line()),
            *standard_devices(spec.tap, spec.mac, self.guest_image.root),
            *_share_devices(spec),
            *copy_devices(spec.copies),
        ]

    def _memory(self, spec: GuestSpec) -> str:
        if self.accelerator == "kvm":
            return f"{spec.memory_mb}M"
        # Eight KiB less than a round number. QEMU before 9.0 collects the pages that an emulated
        # guest has written by two ways; the one for sizes that are multiples of 256 KiB forgets to
        # tell the processor that it has to report them anew (mended by "physmem: Fix migration
        # dirty bitmap coherency with TCG memory access"). A guest then arrives with old pages.
        return f"{(spec.memory_mb << 10) - 8}K"

    def kernel_line(self) -> str:
        # The kernel distrusts TCG's time stamp counter, which is the host's, and would read the
        # time from an emulated device: 1.2 us a call instead of 0.1.
        clock = _clock() if self.accelerator == "tcg" else ""
        return f"{clock}console=ttyS0 quiet panic=-1 random.trust_cpu=on mitigations=off"

    def _processor(self) -> list[str]:
        if self.accelerator == "kvm":
            return ["-accel", "kvm", "-cpu", "host", "-smp", str(self.cpus)]
        # Room for one more processor than there is: only then does TCG translate the guest's
        # atomic instructions and barriers as such. Alone, it takes the guest for the only one
        # that touches its memory, and another guest in the same region would miss updates.
        return [
            *("-accel", "tcg,thread=multi", "-cpu", "max"),
            *("-smp", f"{self.cpus},maxcpus={self.cpus + 1}"),
        ]


def _clock() -> str:
    rate = tsc.khz()
    return "tsc=reliable " + (f"tsc_early_khz={rate} " if rate else "")


def qmp_name(host: int) -> str:
    """The QMP socket of a guest's QEMU on that host, in the guest's directory."""
    return f"h{host}.qmp"


def _spawn(spec: GuestSpec, command: list[str]) -> Process:
    # The console's log, because that is where a guest that does not start is looked for.
    return spawn(command, namespace=spec.namespace, cwd=spec.state, output=spec.console)


def archive(spec: GuestSpec) -> Path:
    """Written once: where a guest moves to, its firmware must find the same bytes."""
    return spec.state / "initramfs.cpio"


def _share_devices(spec: GuestSpec) -> list[str]:
    words = []
    for number, path in enumerate(spec.share):
        words += live_device(path, tag(number), SLOT_SHARE + number)
    return words


def _region_device(spec: GuestSpec) -> list[str]:
    if spec.region is None:
        return []
    memory = f"memory-backend-file,id={REGION_MEMORY},share=on,size={spec.region_size}"
    device = f"ivshmem-plain,id={REGION_DEVICE},memdev={REGION_MEMORY}"
    return [
        *("-object", f"{memory},mem-path={quoted(spec.region)}"),
        *("-device", f"{device},addr={SLOT_REGION:#x}"),
    ]


def seed(spec: GuestSpec) -> Seed:
    return Seed(
        name=spec.name,
        address=f"{spec.address}/{PREFIX_LENGTH}",
        shares=(
            *(("9p", tag(n), str(path)) for n, path in enumerate(spec.share)),
            *(("serial", tag(n), str(copy.path)) for n, copy in enumerate(spec.copies)),
        ),
        files=ssh.guest_files(spec.keys),
    )
