"""Which hypervisors there are: the entry points of one group, this project's own among them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import metadata

from ..errors import IvcError, MissingError, UsageError
from .contract import Hypervisor
from .host import Host
from .reach import Reach

GROUP = "ivc.hypervisors"


@cache
def _points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def names() -> list[str]:
    return sorted(_points())


def kind(name: str) -> type[Hypervisor]:
    """The class of that name."""
    if name not in _points():
        raise UsageError(f"hypervisor {name} is not known", hint=f"known: {', '.join(names())}")
    point = _points()[name]
    try:
        found = point.load()
    except (ImportError, AttributeError) as fault:
        raise MissingError(
            f"hypervisor {name}: {point.value} is not there ({fault})", hint="install it anew"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Hypervisor)):
        raise UsageError(f"hypervisor {name}: {point.value} is no class of {Hypervisor.__module__}")
    return found


def of(host: Host, reach: Reach) -> Hypervisor:
    return kind(host.hypervisor)(host, reach)


def host_of(word: str, region: str | None = None) -> Host | None:
    """The host that a word means by itself: a socket's path, a URI; None: it may be a name."""
    for name in names():
        try:
            found = kind(name).host_of(word)
        except IvcError:
            continue  # one that is not there is told when it is asked for
        if found is not None:
            return replace(found, region=region)
    return None
