"""Network adapters: links that went down, frames and symbols that arrived broken."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from ..contract import HostSource, Options, Reading
from ..hostfiles import HostFiles

_NET = "/sys/class/net"
_IB = "/sys/class/infiniband"
_ERRORS = ("rx_crc_errors", "rx_frame_errors", "rx_errors", "tx_errors", "tx_carrier_errors")
_SYMBOLS = ("symbol_error", "port_rcv_errors", "local_link_integrity_errors")
_DOWNS = ("link_downed", "link_error_recovery")


class LinksOptions(Options):
    #: Broken frames of Ethernet, and broken symbols and packets of InfiniBand.
    errors_per_hour: float = Field(default=100, gt=0)
    symbols_per_hour: float = Field(default=10, gt=0)
    #: Each time that a link goes down or up.
    changes_per_hour: float = Field(default=4, gt=0)


class LinksSource(HostSource[LinksOptions]):
    Options = LinksOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        files = await host.read(
            f"{_NET}/*/device/uevent",  # there for adapters; bridges and taps have no device
            f"{_NET}/*/carrier_changes",
            *(f"{_NET}/*/statistics/{name}" for name in _ERRORS),
            *(f"{_IB}/*/ports/*/counters/{name}" for name in (*_SYMBOLS, *_DOWNS)),
        )
        adapters = sorted({path.split("/")[4] for path in files if path.endswith("/device/uevent")})
        ports = sorted({path.rsplit("/", 2)[0] for path in files if path.startswith(_IB)})
        readings = [one for name in adapters for one in self._adapter(host, name, files)]
        readings += [one for port in ports for one in self._port(host, port, files)]
        return readings or [self.unknown(host, "no network adapter is there")]

    def _adapter(self, host: HostFiles, name: str, files: Mapping[str, str]) -> list[Reading]:
        folder, limits = f"{_NET}/{name}", self.options
        errors = _highest(files, [f"{folder}/statistics/{one}" for one in _ERRORS])
        changes = _highest(files, [f"{folder}/carrier_changes"])
        item = f"link/{name}"
        return [
            *self._counter(host, f"{item}/errors", errors, limits.errors_per_hour, "broken frames"),
            *self._counter(
                host, f"{item}/changes", changes, limits.changes_per_hour, "times down or up"
            ),
        ]

    def _port(self, host: HostFiles, port: str, files: Mapping[str, str]) -> list[Reading]:
        symbols = _highest(files, [f"{port}/counters/{one}" for one in _SYMBOLS])
        downs = _highest(files, [f"{port}/counters/{one}" for one in _DOWNS])
        device, _, number = port.removeprefix(f"{_IB}/").partition("/ports/")
        item, limits = f"link/{device}.{number}", self.options
        return [
            *self._counter(
                host, f"{item}/errors", symbols, limits.symbols_per_hour, "broken symbols"
            ),
            *self._counter(host, f"{item}/changes", downs, limits.changes_per_hour, "times down"),
        ]

    def _counter(
        self, host: HostFiles, item: str, value: int | None, limit: float, what: str
    ) -> list[Reading]:
        return [] if value is None else [self.counter(host, item, value, limit, what)]


def _highest(files: Mapping[str, str], paths: list[str]) -> int | None:
    """Of counters of which one may include another, the highest: a sum would count twice."""
    values = [int(text) for path in paths if (text := files.get(path, "").strip()).isdigit()]
    return max(values, default=None)
