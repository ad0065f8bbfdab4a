"""Questions to Prometheus, and whose answers they are."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .contract import HealthError, Options
from .hostfiles import HostFiles
from .web import Web

#: By how much the server's clock may differ: a sample counts for five minutes with it.
_CLOCK_SECONDS = 60.0


class PrometheusOptions(Options):
    url: str
    #: The label that names the host: as in the inventory, or an alias, with a port or without.
    label: str = "instance"
    user: str = ""
    password_file: str = ""
    token_file: str = ""
    ca_file: str = ""

    def web(self) -> Web:
        return Web(
            self.url,
            user=self.user,
            password_file=self.password_file,
            token_file=self.token_file,
            ca_file=self.ca_file,
            timeout=self.timeout,
        )


@dataclass(frozen=True)
class Series:
    labels: Mapping[str, str]
    #: Of one time for a vector, of many for a matrix: pairs of a time and a value.
    values: Sequence[tuple[float, float]]


async def query(web: Web, text: str) -> list[Series]:
    """The answer to an instant query: a vector, or a matrix for one that ends with [TIME]."""
    before = time.time()
    answer = await web.get("/api/v1/query", query=text)
    try:
        data = answer["data"]
        key = {"vector": "value", "matrix": "values"}[data["resultType"]]
        found = [_series(one, key) for one in data["result"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise HealthError(f"{web.url}: not what Prometheus answers to a query: {text}") from None
    if key == "value":
        _check_clock(web, found, before)
    return found


def _series(one: Mapping[str, Any], key: str) -> Series:
    values = [one[key]] if key == "value" else one[key]
    labels = {str(name): str(value) for name, value in one["metric"].items()}
    return Series(labels, [(float(at), float(value)) for at, value in values])


def _check_clock(web: Web, found: Sequence[Series], before: float) -> None:
    """An answer is of the server's now; with another clock, all its ages are wrong."""
    for one in found[:1]:
        ahead = one.values[0][0] - before
        if abs(ahead) > _CLOCK_SECONDS:
            raise HealthError(
                f"{web.url}: its clock is {ahead:+.0f} s from this machine's",
                hint="let both follow the same time server",
            )


def owners(hosts: Sequence[HostFiles]) -> dict[str, HostFiles]:
    return {name: host for host in hosts for name in host.names}


def owner(hosts: Mapping[str, HostFiles], name: str) -> HostFiles | None:
    """Whose a label's value is: as a whole, without its port, or its first part when that is a name."""
    found = hosts.get(name)
    if found is None:
        bare = name.rsplit(":", 1)[0].strip("[]")
        found = hosts.get(bare)
        if found is None and not bare.replace(".", "").isdigit():
            found = hosts.get(bare.split(".", 1)[0])
    return found
