"""Disks, by smartctl's JSON (smartmontools 7.0 or later) on each host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostError, HostFiles

#: Sectors that an ATA disk gave up, or is about to.
_SECTORS = {5: "reallocated", 197: "pending", 198: "uncorrectable"}
#: Bits of NVMe's critical warning, by its specification; that of the temperature is only a warning.
_NVME = {0x01: "spare blocks run out", 0x02: "too hot or too cold", 0x04: "reliability is degraded",
         0x08: "read-only", 0x10: "its backup of volatile memory failed"}  # fmt: skip
_NVME_MILD = 0x02


class SmartOptions(Options):
    #: Sectors that a disk may give up within a day.
    sectors_per_day: float = Field(default=1, gt=0)
    #: Percent of an SSD's life.
    wear: float = Field(default=100, gt=0)


class SmartSource(HostSource[SmartOptions]):
    Options = SmartOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        scan = await host.run_json(["smartctl", "--scan-open", "-j"], self.options.timeout)
        devices = [
            one for one in _list(scan, "devices") if "name" in one and "open_error" not in one
        ]
        found = []
        for device in devices:
            words = ["smartctl", "-j", "-H", "-A", "-d", str(device.get("type", "auto"))]
            answer = await host.run_json([*words, str(device["name"])], self.options.timeout)
            found += self.readings(host, str(device["name"]).removeprefix("/dev/"), answer)
        return found or [self.unknown(host, "smartctl finds no disk that tells")]

    def readings(self, host: HostFiles, name: str, answer: Any) -> list[Reading]:
        """What smartctl's answer about one disk says."""
        if not isinstance(answer, dict):
            raise HostError(f"host {host.name}: not what smartctl prints")
        item = f"disk/{name}"
        found = []
        passed = _at(answer, "smart_status", "passed")
        if isinstance(passed, bool):
            level = Level.OK if passed else Level.FAILING
            text = "passes its own assessment" if passed else "FAILED by its own assessment"
            found.append(self.reading(host, f"{item}/status", level, text))
        found += self._ata(host, item, answer)
        found += self._nvme(host, item, _at(answer, "nvme_smart_health_information_log"))
        defects = _at(answer, "scsi_grown_defect_list")
        if isinstance(defects, int):
            found.append(self._sectors(host, f"{item}/defects", defects, "grown defects"))
        if not found:
            said = "; ".join(
                str(one.get("string")) for one in _list(answer.get("smartctl"), "messages")
            )
            return [self.unknown(host, said or "it tells nothing", item)]
        return found

    def _sectors(self, host: HostFiles, item: str, value: int, what: str) -> Reading:
        return self.counter(host, item, value, self.options.sectors_per_day, what, hours=24)

    def _ata(self, host: HostFiles, item: str, answer: Mapping[str, Any]) -> list[Reading]:
        found = []
        for one in _list(answer.get("ata_smart_attributes"), "table"):
            raw = _at(one, "raw", "value")
            if one.get("id") in _SECTORS and isinstance(raw, int):
                what = _SECTORS[one["id"]]
                found.append(self._sectors(host, f"{item}/{what}", raw, f"{what} sectors"))
        return found

    def _nvme(self, host: HostFiles, item: str, log: Any) -> list[Reading]:
        if not isinstance(log, dict):
            return []
        found = []
        bits = log.get("critical_warning")
        if isinstance(bits, int):
            texts = [text for bit, text in _NVME.items() if bits & bit]
            level = Level.FAILING if bits & ~_NVME_MILD else Level.WARNING if bits else Level.OK
            text = ", ".join(texts) or (
                f"critical warning {bits:#x}" if bits else "no critical warning"
            )
            found.append(self.reading(host, f"{item}/critical", level, text, bits, 0))
        errors, used = log.get("media_errors"), log.get("percentage_used")
        if isinstance(errors, int):
            found.append(self._sectors(host, f"{item}/media", errors, "media errors"))
        if isinstance(used, int):
            limit = self.options.wear
            level = Level.WARNING if used >= limit else Level.OK
            found.append(
                self.reading(host, f"{item}/wear", level, f"{used} % of its life", used, limit)
            )
        return found


def _at(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _list(data: Any, key: str) -> list[dict[str, Any]]:
    found = _at(data, key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
