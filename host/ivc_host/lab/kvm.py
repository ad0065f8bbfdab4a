"""Whether KVM runs an ordinary kernel on this host.

That /dev/kvm exists says little: nested or partial virtualisation may offer the device and then
stop in the first instructions of a kernel. So a probe guest is booted, and only its word counts.
The answer holds until the host boots again.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from . import initramfs
from .hypervisor import Progress, cache_lock
from .image import Image

DEVICE = Path("/dev/kvm")
#: A kernel under KVM is in user space after about a second.
PROBE_SECONDS = 8.0


def usable(image: Image, progress: Progress) -> bool:
    """Whether guests can run under KVM here; boots a probe the first time after a host's boot."""
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return False
    with cache_lock("kvm-probe") as answer:
        # A new boot, kernel or image may change it.
        question = f"{_boot_id()} {image.path.name}"
        known = answer.read_text().splitlines() if answer.exists() else []
        if known[:1] != [question]:
            progress.step("trying whether KVM runs a guest")
            verdict = "yes" if _probe(image) else "no"
            new = answer.with_suffix(".new")
            new.write_text(f"{question}\n{verdict}\n")
            new.rename(answer)
            known = [question, verdict]
        return known[1] == "yes"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def command(image: Image) -> list[str]:
    """A guest without a seed: it says that user space runs and ends."""
    return [
        *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-M", "pc", "-accel", "kvm", "-cpu", "host", "-m", "256"),
        *("-display", "none", "-serial", "stdio", "-monitor", "none"),
        *("-kernel", str(image.kernel), "-initrd", str(image.archive)),
        *("-append", "console=ttyS0 panic=-1"),
    ]


def _probe(image: Image) -> bool:
    try:
        done = subprocess.run(
            command(image),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return initramfs.PROBE_MARK.encode() in done.stdout
