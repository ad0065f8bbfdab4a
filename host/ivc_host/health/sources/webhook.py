"""Alerts that Alertmanager sends to `ivc guard webhook`: each holds until it is sent as resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import alerts
from ..contract import Options, Reading, Source
from ..hostfiles import HostFiles


class WebhookOptions(Options, alerts.AlertRules):
    #: A file with the token that a sender must show; empty: whoever reaches the port may send.
    token_file: str = ""


class WebhookSource(Source[WebhookOptions]):
    Options = WebhookOptions
    confirm = 1

    async def read(self, hosts: Sequence[HostFiles]) -> list[Reading]:
        return self.taken(hosts, [])

    def taken(self, hosts: Sequence[HostFiles], sent: Sequence[Any]) -> list[Reading]:
        """What holds after these alerts were sent."""
        new = alerts.readings(self, self.options, hosts, sent)
        held = {
            (host.name, last.item): self.reading(host, last.item, last.level, last.text)
            for host in hosts
            for last in self.context.past.last(host.name, self.name)
        }
        found = held | new
        silent = [host for host in hosts if not any(name == host.name for name, _ in found)]
        return [*found.values(), *(alerts.none(self, host) for host in silent)]
