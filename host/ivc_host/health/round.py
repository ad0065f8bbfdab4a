"""One round: every source is asked once, at the same time as the others; what comes of it is kept."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from ..errors import IvcError
from .contract import Reading, Source, stamped
from .hostfiles import HostFiles
from .judge import Rule
from .settings import Hysteresis

#: What a source may take beyond its own limit for a host, before it is given up.
_GRACE_SECONDS = 5.0


def rules(
    sources: Sequence[Source[Any]], hysteresis: Hysteresis, apart: float = 0.0
) -> dict[str, Rule]:
    return {
        source.name: Rule(
            source.confirm or hysteresis.confirm, hysteresis.recover, source.latches, apart
        )
        for source in sources
    }


async def read(
    sources: Sequence[Source[Any]], hosts: Sequence[HostFiles], at: float
) -> list[Reading]:
    """The readings of one round. A source that fails is unknown for all hosts, and spoils no other."""
    found = await asyncio.gather(*(_read(source, hosts, at) for source in sources))
    return [stamped(reading, at) for some in found for reading in some]


async def _read(source: Source[Any], hosts: Sequence[HostFiles], at: float) -> list[Reading]:
    source.context.at = at
    try:
        async with asyncio.timeout(source.options.timeout + _GRACE_SECONDS):
            found = await source.read(hosts)
            return [*_valid(source, hosts, found), *_unsaid(source, hosts, found)]
    except TimeoutError:
        text = f"no answer within {source.options.timeout:g} s"
    except IvcError as fault:
        text = str(fault)
    except Exception as fault:  # of a plug-in that is not ours: the others must go on
        text = f"a defect of this source: {type(fault).__name__}: {fault}"
    return [source.unknown(host, text) for host in hosts]


def _valid(
    source: Source[Any], hosts: Sequence[HostFiles], found: Sequence[Reading]
) -> list[Reading]:
    """What it may say: of these hosts, in its own name, numbers that are numbers."""
    names = {host.name for host in hosts}
    return [
        Reading(
            **{
                **vars(one),
                "source": source.name,
                "value": one.value if one.value is None or math.isfinite(one.value) else None,
            }
        )
        for one in found
        if one.host in names
    ]


def _unsaid(
    source: Source[Any], hosts: Sequence[HostFiles], found: Sequence[Reading]
) -> list[Reading]:
    said = {one.host for one in found}
    return [source.unknown(host, "it says nothing of this host")
            for host in hosts if host.name not in said]  # fmt: skip


def twins(hosts: Sequence[HostFiles]) -> dict[str, str]:
    """Hosts that are one machine by two names of ssh: the later name, and the first one.

    Hosts without ssh are all this machine, and their inventory's author knows it (a lab is so).
    """
    first: dict[str, str] = {}
    found = {}
    for host in hosts:
        if host.boot_id and not host.reach.is_here:
            other = first.setdefault(host.boot_id, host.name)
            if other != host.name:
                found[host.name] = other
    return found
