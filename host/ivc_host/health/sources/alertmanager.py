"""The alerts that Alertmanager has now.

An alert's rule has waited by its own `for:`, so one reading is enough. What an alert was about is ok
again when Alertmanager does not have it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .. import alerts
from ..contract import HealthError, Level, Reading, Source
from ..hostfiles import HostFiles
from ..promql import PrometheusOptions


class AlertmanagerOptions(PrometheusOptions, alerts.AlertRules):
    pass


class AlertmanagerSource(Source[AlertmanagerOptions]):
    Options = AlertmanagerOptions
    confirm = 1

    async def read(self, hosts: Sequence[HostFiles]) -> list[Reading]:
        async with self.options.web() as web:
            found = await web.get(
                "/api/v2/alerts", active="true", silenced="false", inhibited="false"
            )
        if not isinstance(found, list):
            raise HealthError(f"{web.url}: not what Alertmanager answers")
        return self.readings(hosts, found)

    def readings(self, hosts: Sequence[HostFiles], active: Iterable[Any]) -> list[Reading]:
        found = alerts.readings(self, self.options, hosts, active)
        for host in hosts:
            for last in self.context.past.last(host.name, self.name):
                over = self.reading(host, last.item, Level.OK, "no alert any more")
                found.setdefault((host.name, last.item), over)
            if not any(name == host.name for name, _ in found):
                found[host.name, ""] = alerts.none(self, host)
        return list(found.values())
