"""The machine that a figure was measured on, in words."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def _caches() -> list[str]:
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, size, kind = (
                (index / name).read_text().strip() for name in ("level", "size", "type")
            )
        except OSError:
            continue
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return found


def _virtual() -> str | None:
    """The hypervisor below us, None on bare metal (or when nobody can tell)."""
    if shutil.which("systemd-detect-virt"):
        kind = subprocess.run(
            ["systemd-detect-virt", "--vm"], capture_output=True, text=True
        ).stdout.strip()
        if kind:
            return None if kind == "none" else kind
    try:
        return "yes" if " hypervisor " in f"{Path('/proc/cpuinfo').read_text()} " else None
    except OSError:
        return None


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def describe() -> dict[str, Any]:
    """For the JSON file."""
    return {
        "cpu": _cpu_model(),
        "processors": os.cpu_count(),
        "caches": _caches(),
        "virtual": _virtual(),
        "kernel": platform.release(),
        "system": _system(),
    }


def line(description: dict[str, Any] | None = None) -> str:
    """The same in one line."""
    it = description or describe()
    virtual = f", virtual ({it['virtual']})" if it["virtual"] else ""
    return (
        f"{it['cpu']}, {it['processors']} processors{virtual}, "
        f"{', '.join(map(str, it['caches']))}, {it['system']}, Linux {it['kernel']}"
    )
