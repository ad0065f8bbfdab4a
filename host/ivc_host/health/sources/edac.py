"""Errors of memory that the kernel's EDAC drivers count since boot."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostFiles

_MC = "/sys/devices/system/edac/mc/mc*"
_COUNTS = (f"{_MC}/ue_count", f"{_MC}/ce_count")
_PARTS = ("dimm", "rank", "csrow")


class EdacOptions(Options):
    corrected_per_hour: float = Field(default=10, gt=0)


class EdacSource(HostSource[EdacOptions]):
    Options = EdacOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        parts = [f"{_MC}/{part}*/*" for part in _PARTS]
        files = await host.read(*_COUNTS, *(f"{part}_{what}" for part in parts
                                            for what in ("label", "ce_count", "ue_count")))  # fmt: skip
        controllers = sorted({path.split("/")[6] for path in files})
        readings = [one for mc in controllers for one in self._controller(host, mc, files)]
        return readings or [
            self.unknown(
                host, "no memory controller reports (no ECC, or its EDAC driver is not loaded)"
            )
        ]

    def _controller(self, host: HostFiles, mc: str, files: Mapping[str, str]) -> list[Reading]:
        folder = f"/sys/devices/system/edac/mc/{mc}"
        found = []
        uncorrected = _number(files.get(f"{folder}/ue_count"))
        if uncorrected is not None:
            level = Level.FAILING if uncorrected > 0 else Level.OK
            where = _worst(folder, "ue_count", files)
            text = f"{uncorrected} uncorrected errors since boot{where}"
            item = f"memory/{mc}/uncorrected"
            found.append(self.reading(host, item, level, text, uncorrected, 0))
        corrected = _number(files.get(f"{folder}/ce_count"))
        if corrected is not None:
            what = f"corrected errors{_worst(folder, 'ce_count', files)}"
            limit = self.options.corrected_per_hour
            found.append(self.counter(host, f"memory/{mc}/corrected", corrected, limit, what))
        return found or [self.unknown(host, "its counters cannot be read", f"memory/{mc}")]


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _worst(folder: str, which: str, files: Mapping[str, str]) -> str:
    """Where most of them were, in words."""
    counts = {
        path: _number(text) or 0
        for path, text in files.items()
        if path.startswith(f"{folder}/") and path.endswith(f"_{which}")
    }
    path = max(counts, key=lambda path: counts[path], default="")
    if not path or not counts[path]:
        return ""
    label = files.get(path.removesuffix(which) + "label", "").strip()
    return f" (most in {label or path.split('/')[7]})"
