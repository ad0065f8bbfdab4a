"""PCI Express errors that the kernel's Advanced Error Reporting counts for each device since boot."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import Field

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostFiles

_DEVICES = "/sys/bus/pci/devices"
_KINDS = {
    "fatal": "TOTAL_ERR_FATAL",
    "nonfatal": "TOTAL_ERR_NONFATAL",
    "correctable": "TOTAL_ERR_COR",
}


class AerOptions(Options):
    correctable_per_hour: float = Field(default=100, gt=0)
    nonfatal_per_hour: float = Field(default=1, gt=0)


class AerSource(HostSource[AerOptions]):
    Options = AerOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        files = await host.read(*(f"{_DEVICES}/*/aer_dev_{kind}" for kind in _KINDS))
        devices = sorted({path.split("/")[5] for path in files})
        if not devices:
            return [self.unknown(host, "no device reports (no PCI Express, or no AER)")]
        return [one for device in devices for one in self._device(host, device, files)]

    def _device(self, host: HostFiles, device: str, files: Mapping[str, str]) -> list[Reading]:
        counts = {
            kind: int(match[1])
            for kind, word in _KINDS.items()
            if (match := re.search(rf"^{word} (\d+)$",
                                   files.get(f"{_DEVICES}/{device}/aer_dev_{kind}", ""), re.MULTILINE))
        }  # fmt: skip
        found: list[Reading] = []
        item, limits = f"pci/{device}", self.options
        if "fatal" in counts:
            level = Level.FAILING if counts["fatal"] else Level.OK
            text = f"{counts['fatal']} fatal errors since boot"
            found.append(self.reading(host, f"{item}/fatal", level, text, counts["fatal"], 0))
        for kind, limit in (("nonfatal", limits.nonfatal_per_hour),
                            ("correctable", limits.correctable_per_hour)):  # fmt: skip
            if kind in counts:
                found.append(
                    self.counter(host, f"{item}/{kind}", counts[kind], limit, f"{kind} errors")
                )
        return found
