"""What an alert of Alertmanager says of a host: the same for those asked for and those sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from .contract import Level, Reading, Source
from .hostfiles import HostFiles
from .promql import owner, owners


class AlertRules(BaseModel):
    """Which alerts count as what."""

    #: The label that names the host.
    label: str = "instance"
    #: By the label "severity"; an alert of another severity is left alone.
    failing: list[str] = ["critical", "page"]
    warning: list[str] = ["warning"]
    #: Alerts of these names only; empty: of all.
    alerts: list[str] = []

    def level(self, severity: Any) -> Level | None:
        if severity in self.failing:
            return Level.FAILING
        return Level.WARNING if severity in self.warning else None


def readings(
    source: Source[Any], rules: AlertRules, hosts: Sequence[HostFiles], alerts: Iterable[Any]
) -> dict[tuple[str, str], Reading]:
    """By host and item, the worst that an alert says. One that is resolved is ok."""
    by_name = owners(hosts)
    worst: dict[tuple[str, str], Reading] = {}
    for alert in alerts:
        labels, notes = _texts(alert, "labels"), _texts(alert, "annotations")
        host, level = (
            owner(by_name, labels.get(rules.label, "")),
            rules.level(labels.get("severity")),
        )
        name = labels.get("alertname", "")
        if host is None or level is None or not name or (rules.alerts and name not in rules.alerts):
            continue
        text = notes.get("summary") or notes.get("description") or name
        if alert.get("status") == "resolved":
            level, text = Level.OK, f"resolved: {text}"
        one = source.reading(host, f"alert/{name}", level, text)
        key = (one.host, one.item)
        if key not in worst or level.rank > worst[key].level.rank:
            worst[key] = one
    return worst


def _texts(alert: Any, key: str) -> dict[str, str]:
    found = alert.get(key) if isinstance(alert, dict) else None
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def none(source: Source[Any], host: HostFiles) -> Reading:
    return source.reading(host, "alert/none", Level.OK, "no alert")
