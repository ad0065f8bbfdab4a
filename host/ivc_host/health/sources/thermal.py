"""Heat: processors that had to slow down, and sensors at the limits that their makers gave them."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostFiles

_THROTTLE = "/sys/devices/system/cpu/cpu*/thermal_throttle"
_HWMON = "/sys/class/hwmon/hwmon*"
_PARTS = ("input", "crit", "label")


class ThermalOptions(Options):
    throttles_per_hour: float = Field(default=10, gt=0)


class ThermalSource(HostSource[ThermalOptions]):
    Options = ThermalOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        files = await host.read(
            f"{_THROTTLE}/core_throttle_count",
            f"{_THROTTLE}/package_throttle_count",
            f"{_HWMON}/name",
            *(f"{_HWMON}/temp*_{part}" for part in _PARTS),
        )
        readings = [*self._throttles(host, files), *self._sensors(host, files)]
        return readings or [self.unknown(host, "no counter of throttling and no sensor is there")]

    def _throttles(self, host: HostFiles, files: Mapping[str, str]) -> list[Reading]:
        counts = [int(text) for path, text in files.items()
                  if path.endswith("_throttle_count") and text.strip().isdigit()]  # fmt: skip
        if not counts:
            return []
        limit = self.options.throttles_per_hour
        what = "times a processor was slowed down for its heat"
        return [self.counter(host, "temperature/throttling", sum(counts), limit, what)]

    def _sensors(self, host: HostFiles, files: Mapping[str, str]) -> list[Reading]:
        found = []
        for path, text in sorted(files.items()):
            if not path.endswith("_input"):
                continue
            stem = path.removesuffix("input")
            now, limit = _degrees(text), _degrees(files.get(f"{stem}crit"))
            if now is None or limit is None or limit <= 0:
                continue  # no limit, or a nonsensical one: nothing to judge by
            level = Level.FAILING if now >= limit else Level.OK
            name = _name(stem, files)
            said = f"{now:.0f} °C, critical at {limit:.0f} °C"
            found.append(self.reading(host, f"temperature/{name}", level, said, now, limit))
        return found


def _degrees(text: str | None) -> float | None:
    try:
        return int(text or "") / 1000
    except ValueError:
        return None


def _name(stem: str, files: Mapping[str, str]) -> str:
    """Chip, number of the chip, and what the driver calls the sensor."""
    chip = stem.split("/")[4]
    label = files.get(f"{stem}label", "").strip() or stem.rsplit("/", 1)[1].rstrip("_")
    name = files.get(f"/sys/class/hwmon/{chip}/name", "").strip()
    return f"{name or chip}/{chip.removeprefix('hwmon')}/{label}"
