"""What a source of load is, and the arithmetic of a window.

Load is percent of the processors, of the memory above what the host uses when it is idle, and of the
busiest disk's time, each a mean over the window. How much of the window samples cover is told beside
it: a mean of a few samples proves nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Generic, Protocol

from .contract import Options, OptionsT
from .hostfiles import HostFiles

#: Two samples cover the time between them when it is no longer: Prometheus's own limit for a value.
GAP_SECONDS = 300.0


@dataclass(frozen=True)
class Load:
    host: str
    cpu: float | None = None
    memory: float | None = None
    io: float | None = None
    #: The part of the window that samples cover, 0 to 1.
    coverage: float = 0.0
    #: Why something is not known.
    text: str = ""


@dataclass(frozen=True)
class Sample:
    """Counters of a host at one time, as /proc has them."""

    #: By the clock of this machine, and by the host's own since it booted.
    at: float
    uptime: float
    boot: str
    cpu_total: int
    cpu_idle: int
    memory_total: int
    memory_used: int
    #: Milliseconds for which each disk was busy.
    disks: dict[str, int]


def covered(times: Sequence[float], start: float, end: float) -> float:
    """The part of START to END that lies between neighbours of TIMES which are close enough."""
    inside = sum(
        max(0.0, min(b, end) - max(a, start)) for a, b in pairwise(times) if b - a <= GAP_SECONDS
    )
    return inside / (end - start)


def mean(host: str, samples: Sequence[Sample], start: float, end: float, idle: int) -> Load:
    """The load of a window; a pair of samples counts with the time that it covers of it."""
    pairs = [(a, b) for a, b in pairwise(samples) if _belong(a, b, start)]
    weights = [min(b.at, end) - max(a.at, start) for a, b in pairs]
    whole = sum(weights)
    if whole <= 0:
        return Load(host, text="too few samples: it takes two, at most five minutes apart")

    def over(values: Sequence[float]) -> float:
        return sum(value * weight for value, weight in zip(values, weights, strict=True)) / whole

    disks = {name for _, b in pairs for name in b.disks}
    return Load(
        host=host,
        cpu=over([_cpu(a, b) for a, b in pairs]),
        memory=over([100 * max(0.0, (a.memory_used + b.memory_used) / 2 - idle) / b.memory_total
                     for a, b in pairs]),
        io=max((over([_disk(a, b, name) for a, b in pairs]) for name in disks), default=0.0),
        coverage=whole / (end - start),
    )  # fmt: skip


def _belong(a: Sample, b: Sample, start: float) -> bool:
    """Whether two samples are of one life of the host, near enough, and inside of the window."""
    return (
        a.boot == b.boot
        and 0 < b.at - a.at <= GAP_SECONDS
        and b.at > start
        and b.cpu_total > a.cpu_total
        and b.uptime > a.uptime
    )


def _cpu(a: Sample, b: Sample) -> float:
    total = b.cpu_total - a.cpu_total
    # Idle time counted for a processor that sleeps may go back a little.
    return 100 * min(1.0, max(0.0, 1 - (b.cpu_idle - a.cpu_idle) / total))


def _disk(a: Sample, b: Sample, name: str) -> float:
    if name not in a.disks or name not in b.disks:
        return 0.0
    busy = (b.disks[name] - a.disks[name]) / 1000 / (b.uptime - a.uptime)
    return 100 * min(1.0, max(0.0, busy))


class LoadPast(Protocol):
    """What a source of load may ask of earlier rounds."""

    def add_sample(self, host: str, at: float, sample: Any, keep: float) -> None: ...

    def samples(self, host: str) -> list[dict[str, Any]]: ...

    def idle_memory(self, host: str, boot: str, used: int) -> int: ...


@dataclass
class LoadContext:
    past: LoadPast
    at: float = 0.0


class LoadSource(ABC, Generic[OptionsT]):
    """Behind the entry point group `ivc.load`."""

    Options: ClassVar[type[Options]] = Options

    def __init__(self, name: str, options: OptionsT, context: LoadContext) -> None:
        self.name = name
        self.options = options
        self.context = context

    @abstractmethod
    async def load(self, hosts: Sequence[HostFiles], window: float) -> list[Load]:
        """One for each host, over the WINDOW seconds that end now; faults are in its text."""
