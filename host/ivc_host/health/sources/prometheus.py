"""Any query of Prometheus with thresholds; without queries of one's own, a few for node_exporter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...errors import IvcError
from ..contract import Level, Reading, Source
from ..hostfiles import HostFiles
from ..promql import PrometheusOptions, Series, owner, owners, query
from ..web import Web


class Query(BaseModel):
    """A question, and from which value on its answer is bad."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    #: "KIND/NAME", as an item.
    item: str = Field(pattern=r"^[^/\s]+/\S+$")
    query: str
    warning: float | None = None
    failing: float | None = None
    #: Whether values above the thresholds are bad, or those below; the threshold itself is bad, too.
    bad: Literal["above", "below"] = "above"

    @model_validator(mode="after")
    def _has_threshold(self) -> Query:
        if self.warning is None and self.failing is None:
            raise ValueError("a query needs a threshold: warning, failing or both")
        return self

    def level(self, value: float) -> tuple[Level, float | None]:
        """The level, and the threshold that it is by."""
        sign = 1 if self.bad == "above" else -1
        for level, limit in ((Level.FAILING, self.failing), (Level.WARNING, self.warning)):
            if limit is not None and sign * value >= sign * limit:
                return level, limit
        return Level.OK, self.failing if self.warning is None else self.warning


#: Of node_exporter; docs/guard.md says where the thresholds are from. Of several series of a host the
#: worst counts.
DEFAULT_QUERIES = [
    Query(item="memory/uncorrected", failing=1, query="node_edac_uncorrectable_errors_total"),
    Query(
        item="memory/corrected",
        warning=10,
        query="increase(node_edac_correctable_errors_total[1h])",
    ),
    Query(
        item="temperature/critical",
        failing=0,
        query="node_hwmon_temp_celsius - (node_hwmon_temp_crit_celsius > 0)",
    ),
    Query(item="disk/raid", warning=1, query='node_md_disks{state="failed"}'),
    Query(item="link/errors", warning=100, query="increase(node_network_receive_errs_total[1h])"),
]


class PrometheusHealthOptions(PrometheusOptions):
    queries: list[Query] = DEFAULT_QUERIES

    @model_validator(mode="after")
    def _items_once(self) -> PrometheusHealthOptions:
        items = [one.item for one in self.queries]
        twice = {item for item in items if items.count(item) > 1}
        if twice:
            raise ValueError(f"several queries have the item {', '.join(sorted(twice))}")
        return self


class PrometheusSource(Source[PrometheusHealthOptions]):
    Options = PrometheusHealthOptions

    async def read(self, hosts: Sequence[HostFiles]) -> list[Reading]:
        async with self.options.web() as web:
            up = await self._up(web, hosts)
            found = await asyncio.gather(
                *(self._ask(web, one, hosts) for one in self.options.queries)
            )
        return [*up, *(reading for some in found for reading in some)]

    async def _up(self, web: Web, hosts: Sequence[HostFiles]) -> list[Reading]:
        """Hosts of which it scrapes nothing: unknown as a whole, not one query after the other."""
        by_name = owners(hosts)
        scraped: dict[str, bool] = {}
        for one in await query(web, "up"):
            host = owner(by_name, one.labels.get(self.options.label, ""))
            if host is not None:
                scraped[host.name] = scraped.get(host.name, False) or one.values[0][1] > 0
        missing = f"Prometheus has no target whose {self.options.label} is this host or an alias"
        return [
            self.unknown(host, "Prometheus does not reach it" if host.name in scraped else missing)
            for host in hosts
            if not scraped.get(host.name)
        ]

    async def _ask(self, web: Web, asked: Query, hosts: Sequence[HostFiles]) -> list[Reading]:
        try:
            answers = await query(web, asked.query)
        except IvcError as fault:
            return [self.unknown(host, str(fault), asked.item) for host in hosts]
        worst: dict[str, Reading] = {}
        by_name = owners(hosts)
        for one in answers:
            host = owner(by_name, one.labels.get(self.options.label, ""))
            if host is not None:
                reading = self._reading(host, asked, one)
                other = worst.get(host.name)
                if other is None or reading.level.rank > other.level.rank:
                    worst[host.name] = reading
        return list(worst.values())

    def _reading(self, host: HostFiles, asked: Query, one: Series) -> Reading:
        value = one.values[-1][1]
        if value != value:
            return self.unknown(host, "the answer is not a number", asked.item)
        level, limit = asked.level(value)
        labels = ", ".join(
            f"{name}={text}"
            for name, text in sorted(one.labels.items())
            if name not in ("__name__", "job", self.options.label)
        )
        text = f"{value:g}" + (f" ({labels})" if labels else "")
        return self.reading(host, asked.item, level, text, value, limit)
