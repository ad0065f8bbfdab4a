"""Guests run by QEMU: a real PCI bus with an ivshmem device, under KVM where that works, else TCG.

The region is the memory of an `ivshmem-plain` device (PCI 1af4:1110, BAR 2), shared with every
other guest that has the same file. All devices sit at fixed addresses of a bus that can hot-plug,
so that a guest can let go of the region, migrate, and find another one in its place. What stands in
the way of migration (9p) is not there in a lab of several hosts; nor is anything that a process on
the second host could not open (every disk is a file that nobody writes).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import LabError, MissingError
from . import image, kvm, tsc
from .hypervisor import PREFIX_LENGTH, GuestSpec, Progress, SilentProgress
from .initramfs import Seed
from .process import Process, spawn

QEMU = "qemu-system-x86_64"

#: Slots on the PCI bus; 0 and 1 are the chip set's own.
SLOT_NET = 0x03
SLOT_DISK = 0x04
SLOT_RNG = 0x05
SLOT_SHARE = 0x08  # and the following ones, one per shared directory, live or copied
SLOT_REGION = 0x10
MAX_SHARES = SLOT_REGION - SLOT_SHARE

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
    cpus: int = 1
    #: `kvm` or `tcg`; None lets a probe guest decide.
    accelerator: str | None = None

    def prepare(self, progress: Progress) -> None:
        """Make the guests' image unless it is there, and find out whether KVM works."""
        if shutil.which(QEMU) is None:
            raise MissingError(
                f"{QEMU} is not installed", hint="./run setup installs qemu-system-x86"
            )
        self._image = image.make(progress)
        self._settle(progress)

    def start(self, spec: GuestSpec) -> list[Process]:
        """Start one guest; its processes are this one alone."""
        if len(spec.share) + len(spec.copies) > MAX_SHARES:
            raise LabError(f"a guest can see at most {MAX_SHARES} directories of the host")
        archive = _archive(spec)
        archive.touch(0o600)  # it holds the lab's private keys
        archive.write_bytes(self._image.archive.read_bytes() + _seed(spec).archive())
        return [_spawn(spec, [*self.command(spec), *_region_device(spec)])]

    def receive(self, spec: GuestSpec) -> list[Process]:
        """Start what takes a guest in. It waits to be told where from (`migrate-incoming`)."""
        self._settle(SilentProgress())
        return [_spawn(spec, [*self.command(spec), "-incoming", "defer"])]

    def guest_description(self) -> str:
        self._settle(SilentProgress())  # of an earlier command, remembered
        version = self._image.kernel_version
        plural = "1 CPU" if self.cpus == 1 else f"{self.cpus} CPUs"
        if self.accelerator == "kvm":
            return f"QEMU/KVM, Linux {version}, {plural}, code at native speed"
        return (
            f"QEMU/TCG, Linux {version}, {plural}, every instruction emulated: "
            "figures show that it works, not how fast it is"
        )

    def _settle(self, progress: Progress) -> None:
        if self.accelerator is None:
            self.accelerator = "kvm" if kvm.usable(self._image, progress) else "tcg"

    @cached_property
    def _image(self) -> image.Image:
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
            *("-chardev", f"file,id=console,path={_quoted(spec.console)},append=on"),
            *("-serial", "chardev:console"),
            # Relative: the length of a socket's path is limited, and this is our directory.
            *("-qmp", f"unix:{qmp_name(spec.host)},server=on,wait=off"),
            *("-kernel", str(self._image.kernel), "-initrd", str(_archive(spec))),
            *("-append", self._kernel_line()),
            *("-netdev", f"tap,id=net0,ifname={spec.tap},script=no,downscript=no"),
            *("-device", f"virtio-net-pci,netdev=net0,mac={spec.mac},romfile=,addr={SLOT_NET:#x}"),
            *("-blockdev", _disk_node(self._image.root, "root")),
            *("-device", f"virtio-blk-pci,drive=root,addr={SLOT_DISK:#x}"),
            *("-device", f"virtio-rng-pci,addr={SLOT_RNG:#x}"),
            *_share_devices(spec),
            *_copy_devices(spec),
        ]

    def _memory(self, spec: GuestSpec) -> str:
        if self.accelerator == "kvm":
            return f"{spec.memory_mb}M"
        # Eight KiB less than a round number. QEMU before 9.0 collects the pages that an emulated
        # guest has written by two ways; the one for sizes that are multiples of 256 KiB forgets to
        # tell the processor that it has to report them anew (mended by "physmem: Fix migration
        # dirty bitmap coherency with TCG memory access"). A guest then arrives with old pages.
        return f"{(spec.memory_mb << 10) - 8}K"

    def _kernel_line(self) -> str:
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


def _archive(spec: GuestSpec) -> Path:
    """Written once: where a guest moves to, its firmware must find the same bytes."""
    return spec.state / "initramfs.cpio"


def _spawn(spec: GuestSpec, command: list[str]) -> Process:
    return spawn(
        command,
        namespace=spec.namespace,
        cwd=spec.state,
        output=spec.console,  # where a guest that does not start is looked for
    )


def _share_devices(spec: GuestSpec) -> list[str]:
    words = []
    for number, path in enumerate(spec.share):
        backend = f"local,id=fs{number},path={_quoted(path)},security_model=none"
        device = f"virtio-9p-pci,fsdev=fs{number},mount_tag={_tag(number)}"
        words += ["-fsdev", f"{backend},readonly=on,multidevs=remap"]
        words += ["-device", f"{device},addr={SLOT_SHARE + number:#x}"]
    return words


def _copy_devices(spec: GuestSpec) -> list[str]:
    words = []
    for number, copy in enumerate(spec.copies):
        node = f"disk{number}"
        words += ["-blockdev", _disk_node(copy.image, node)]
        device = f"virtio-blk-pci,drive={node},serial={_tag(number)}"
        words += ["-device", f"{device},addr={SLOT_SHARE + number:#x}"]
    return words


def _region_device(spec: GuestSpec) -> list[str]:
    if spec.region is None:
        return []
    memory = f"memory-backend-file,id={REGION_MEMORY},share=on,size={spec.region_size}"
    device = f"ivshmem-plain,id={REGION_DEVICE},memdev={REGION_MEMORY}"
    return [
        *("-object", f"{memory},mem-path={_quoted(spec.region)}"),
        *("-device", f"{device},addr={SLOT_REGION:#x}"),
    ]


def _seed(spec: GuestSpec) -> Seed:
    keys = spec.keys
    files = (
        ("/etc/hosts", keys.hosts, 0o644),
        ("/etc/ssh/ssh_host_ed25519_key", keys.host_key, 0o600),
        ("/etc/ssh/ssh_host_ed25519_key.pub", keys.host_key.with_suffix(".pub"), 0o644),
        ("/root/.ssh/authorized_keys", keys.authorized_keys, 0o600),
        ("/root/.ssh/known_hosts", keys.known_hosts, 0o644),
        ("/root/.ssh/id_ed25519", keys.identity, 0o600),
        ("/root/.ssh/id_ed25519.pub", keys.identity.with_suffix(".pub"), 0o644),
    )
    return Seed(
        name=spec.name,
        address=f"{spec.address}/{PREFIX_LENGTH}",
        shares=(
            *(("9p", _tag(n), str(path)) for n, path in enumerate(spec.share)),
            *(("disk", _tag(n), str(copy.path)) for n, copy in enumerate(spec.copies)),
        ),
        files=tuple((path, source.read_bytes(), mode) for path, source, mode in files),
    )


def _tag(number: int) -> str:
    return f"share{number}"


def _quoted(path: Path) -> str:
    """A path inside one of QEMU's option lists, where a comma separates."""
    return str(path).replace(",", ",,")


def _disk_node(path: Path, name: str) -> str:
    # Without locking: all guests of all labs read the same file, and nobody writes it.
    return (
        f"driver=raw,node-name={name},read-only=on,"
        f"file.driver=file,file.locking=off,file.filename={_quoted(path)}"
    )
