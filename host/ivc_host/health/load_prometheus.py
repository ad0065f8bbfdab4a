"""Load from Prometheus, as node_exporter gives it: the whole window is there at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from pydantic import Field

from ..errors import IvcError
from .hostfiles import HostFiles
from .load import Load, LoadSource, covered
from .promql import PrometheusOptions, Series, owner, owners, query
from .web import Web

_TOTAL, _FREE = "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes"
_DISKS = 'device!~"(dm-|md|loop|ram|zram|nbd|sr).*"'


class PrometheusLoadOptions(PrometheusOptions):
    #: Hours; the least memory in use within them is what an idle host uses.
    idle_hours: float = Field(default=24.0, gt=0)


def queries(label: str, window: float, idle_hours: float) -> dict[str, str]:
    """Percent, or bytes, over the window; `times` are the samples themselves."""
    over, idle = f"{window:.0f}s", f"{idle_hours * 3600:.0f}s"
    idle_ticks = f'rate(node_cpu_seconds_total{{mode=~"idle|iowait"}}[{over}])'
    cpus = f'count by ({label}) (node_cpu_seconds_total{{mode="idle"}})'
    return {
        "cpu": f"100 * clamp_min(1 - sum by ({label}) ({idle_ticks}) / {cpus}, 0)",
        "used": f"max by ({label}) ({_TOTAL} - avg_over_time({_FREE}[{over}]))",
        "idle": f"max by ({label}) ({_TOTAL} - max_over_time({_FREE}[{idle}]))",
        "total": f"max by ({label}) ({_TOTAL})",
        "io": f"100 * max by ({label}) (rate(node_disk_io_time_seconds_total{{{_DISKS}}}[{over}]))",
        "times": f"node_boot_time_seconds[{over}]",
    }


class PrometheusLoad(LoadSource[PrometheusLoadOptions]):
    Options = PrometheusLoadOptions

    async def load(self, hosts: Sequence[HostFiles], window: float) -> list[Load]:
        try:
            async with asyncio.timeout(self.options.timeout), self.options.web() as web:
                return await self._load(web, hosts, window)
        except TimeoutError:
            text = f"{self.options.url}: no answer within {self.options.timeout:g} s"
        except IvcError as fault:
            text = str(fault)
        return [Load(host.name, text=text) for host in hosts]

    async def _load(self, web: Web, hosts: Sequence[HostFiles], window: float) -> list[Load]:
        asked = queries(self.options.label, window, self.options.idle_hours)
        answers = await asyncio.gather(*(query(web, text) for text in asked.values()))
        found = {key: self._by_host(hosts, some)
                 for key, some in zip(asked, answers, strict=True)}  # fmt: skip
        return [_load_of(host, window, {key: some.get(host.name) for key, some in found.items()})
                for host in hosts]  # fmt: skip

    def _by_host(self, hosts: Sequence[HostFiles], found: Sequence[Series]) -> dict[str, Series]:
        """Of several that are a host's, the one with the most samples: a job that is no more."""
        by_name, whose = owners(hosts), {}
        for one in sorted(found, key=lambda one: len(one.values)):
            host = owner(by_name, one.labels.get(self.options.label, ""))
            if host is not None:
                whose[host.name] = one
        return whose


def _load_of(host: HostFiles, window: float, own: Mapping[str, Series | None]) -> Load:
    times = own["times"]
    if times is None:
        return Load(host.name, text="Prometheus has no node_exporter's samples of it")
    last = {key: one.values[-1][1] for key, one in own.items() if one is not None}
    memory = None
    if {"used", "total"} <= last.keys() and last["total"] > 0:
        idle = host.settings.idle_memory
        idle_bytes = last.get("idle", last["used"]) if idle is None else idle
        memory = 100 * max(0.0, last["used"] - idle_bytes) / last["total"]
    at = [time for time, _ in times.values]
    # Up to the newest sample at most one interval is missing, and before the oldest one as much.
    spread = (at[-1] - at[0]) / (len(at) - 1) if len(at) > 1 else 0.0
    end = at[-1]
    return Load(
        host=host.name,
        cpu=_number(last.get("cpu")),
        memory=memory,
        io=_number(last.get("io")),
        coverage=min(1.0, covered(at, end - window + spread, end)),
    )


def _number(value: float | None) -> float | None:
    return None if value is None or value != value else value
