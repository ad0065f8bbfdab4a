"""What a host's management controller says by Redfish: the health of the system and of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..contract import HealthError, HostSource, Level, Options, Reading
from ..hostfiles import HostFiles
from ..web import Web

#: The standard's words.
_LEVELS = {"OK": Level.OK, "Warning": Level.WARNING, "Critical": Level.FAILING}
#: A collection of more systems or chassis than a host has is not followed.
_MOST = 16


class RedfishSource(HostSource[Options]):
    async def read_host(self, host: HostFiles) -> list[Reading]:
        bmc = host.settings.bmc
        if not bmc.redfish:
            text = f"guard.toml has no bmc.redfish for it: [hosts.{host.name}.bmc]"
            return [self.unknown(host, text)]
        async with Web(
            bmc.redfish,
            user=bmc.user,
            password_file=bmc.password_file,
            ca_file=bmc.ca_file,
            timeout=self.options.timeout,
        ) as web:
            root = await web.get("/redfish/v1/")
            parts = [
                one for key in ("Systems", "Chassis") for one in await self._members(web, root, key)
            ]
            found = [one for part in parts for one in await self._part(host, web, part)]
        return found or [self.unknown(host, f"{bmc.redfish}: it tells of no system and no chassis")]

    async def _members(self, web: Web, root: Any, key: str) -> list[tuple[str, Any]]:
        path = _link(root, key)
        if path is None:
            return []
        listed = _get(await web.get(path), "Members")
        paths = [_id(one) for one in listed] if isinstance(listed, list) else []
        known = [path for path in paths if path is not None][:_MOST]
        return [(key, one) for one in await asyncio.gather(*(web.get(path) for path in known))]

    async def _part(self, host: HostFiles, web: Web, part: tuple[str, Any]) -> list[Reading]:
        kind, data = part
        name = str(_get(data, "Id") or "?")
        found = [self._reading(host, f"{kind.lower()}/{name}", data)]
        for key in ("Processor", "Memory"):
            summary = _get(data, f"{key}Summary")
            if summary is not None:
                found.append(self._reading(host, f"{key.lower()}/{name}", summary))
        thermal = _link(data, "Thermal")
        if thermal is not None:
            found += self._thermal(host, name, await web.get(thermal))
        return [one for one in found if one is not None]

    def _thermal(self, host: HostFiles, name: str, data: Any) -> Iterable[Reading | None]:
        for kind, key in (("temperature", "Temperatures"), ("fan", "Fans")):
            sensors = _get(data, key)
            for one in sensors if isinstance(sensors, list) else []:
                label = _get(one, "Name") or _get(one, "MemberId") or "?"
                yield self._reading(host, f"{kind}/{name}/{label}", one)

    def _reading(self, host: HostFiles, item: str, data: Any) -> Reading | None:
        """By the roll-up where there is one: it counts what is inside, too. None: it is not there."""
        status = _get(data, "Status")
        if _get(status, "State") in ("Absent", "Disabled"):
            return None
        word = _get(status, "HealthRollup") or _get(status, "Health")
        if word is None:
            return None
        if word not in _LEVELS:
            return self.unknown(host, f"its health is {word!r}", item)
        value = _get(data, "ReadingCelsius")
        number = float(value) if isinstance(value, int | float) else None
        return self.reading(host, item, _LEVELS[word], f"{word}", number)


def _get(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, dict) else None


def _id(data: Any) -> str | None:
    """A link; only of the same server, or our password would go to another one."""
    found = _get(data, "@odata.id")
    if found is None:
        return None
    if not isinstance(found, str) or not found.startswith("/") or found.startswith("//"):
        raise HealthError(f"a link that leads elsewhere: {found!r}")
    return found


def _link(data: Any, key: str) -> str | None:
    return _id(_get(data, key))
