"""What a source of health is.

A source is a class behind the entry point group `ivc.health`. It is asked once a round for all hosts
and answers with readings: one for each thing that it watches. It keeps no state of its own between
rounds; what it said before is in `Context.past`. What it cannot find out is a reading of level
`UNKNOWN` that says why, never an exception for one host's sake and never `OK`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ..errors import IvcError
from .hostfiles import HostFiles


class HealthError(IvcError):
    """Health or load could not be found out; says of whom, and what to try."""


class Level(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILING = "failing"
    UNKNOWN = "unknown"

    @property
    def rank(self) -> int:
        """How bad it is. Unknown is not bad, but nothing to rely on either."""
        return _RANKS[self]


_RANKS = {Level.UNKNOWN: 0, Level.OK: 1, Level.WARNING: 2, Level.FAILING: 3}


@dataclass(frozen=True)
class Reading:
    """What one source says of one thing of one host at one time."""

    host: str
    source: str
    #: "KIND/NAME", such as memory/mc0; sources that speak of the same kind can contradict each other.
    #: Empty: of the source as a whole, which then is UNKNOWN.
    item: str
    level: Level
    text: str
    value: float | None = None
    threshold: float | None = None
    #: Seconds since the epoch, by the clock of this machine.
    at: float = 0.0

    @property
    def kind(self) -> str:
        return self.item.partition("/")[0]


class Past(Protocol):
    """What was read in earlier rounds."""

    def value_before(self, host: str, source: str, item: str, at: float) -> float | None:
        """The item's value at that time, or its first one when that is later; None: there is none."""

    def last(self, host: str, source: str) -> list[Reading]:
        """What that source last said that was a warning or worse."""


class Options(BaseModel):
    """Keys of a source's table in guard.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    #: Seconds for one round.
    timeout: float = Field(default=60.0, gt=0)


@dataclass
class Context:
    """What all sources share in a round."""

    past: Past
    at: float = 0.0


OptionsT = TypeVar("OptionsT", bound=Options)


class Source(ABC, Generic[OptionsT]):
    """One kind of evidence about hosts."""

    #: The class of its options; the keys are those of its table in guard.toml.
    Options: ClassVar[type[Options]] = Options
    #: Failing readings in a row until a host counts as failing; None: as the settings say. 1 is for
    #: sources that have waited themselves.
    confirm: ClassVar[int | None] = None
    #: A failing host stays so until it is cleared by hand, or for the time that the settings say.
    latches: ClassVar[bool] = True

    def __init__(self, name: str, options: OptionsT, context: Context) -> None:
        self.name = name
        self.options = options
        self.context = context

    @abstractmethod
    async def read(self, hosts: Sequence[HostFiles]) -> list[Reading]:
        """Readings of these hosts. May raise IvcError when it can say nothing of any of them."""

    def reading(
        self,
        host: HostFiles,
        item: str,
        level: Level,
        text: str,
        value: float | None = None,
        threshold: float | None = None,
    ) -> Reading:
        return Reading(host.name, self.name, item, level, text, value, threshold, self.context.at)

    def unknown(self, host: HostFiles, text: str, item: str = "") -> Reading:
        return self.reading(host, item, Level.UNKNOWN, text)

    def growth(self, host: HostFiles, item: str, value: float, seconds: float) -> float:
        """By how much a counter has grown in that time, or since it was first read."""
        before = self.context.past.value_before(
            host.name, self.name, item, self.context.at - seconds
        )
        if before is None:
            return 0.0
        return value - before if value >= before else value  # it began anew, at a boot

    def counter(
        self, host: HostFiles, item: str, value: float, limit: float, what: str, hours: float = 1
    ) -> Reading:
        """A warning when a counter grows by LIMIT in that many hours."""
        grown = self.growth(host, item, value, hours * 3600)
        level = Level.WARNING if grown >= limit else Level.OK
        period = "an hour" if hours == 1 else f"{hours:g} hours"
        text = f"{grown:.0f} {what} within {period}, {value:.0f} in all"
        return self.reading(host, item, level, text, value, limit)


class HostSource(Source[OptionsT]):
    """A source that asks each host by itself: one that is not reached is unknown, the others go on."""

    @abstractmethod
    async def read_host(self, host: HostFiles) -> list[Reading]: ...

    async def read(self, hosts: Sequence[HostFiles]) -> list[Reading]:
        found = await asyncio.gather(*(self._read(host) for host in hosts))
        return [reading for some in found for reading in some]

    async def _read(self, host: HostFiles) -> list[Reading]:
        try:
            async with asyncio.timeout(self.options.timeout):
                return await self.read_host(host)
        except TimeoutError:
            return [self.unknown(host, f"no answer within {self.options.timeout:g} s")]
        except IvcError as fault:
            return [self.unknown(host, str(fault))]


def stamped(reading: Reading, at: float) -> Reading:
    return dataclasses.replace(reading, at=at)
