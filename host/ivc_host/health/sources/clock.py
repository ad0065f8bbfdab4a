"""The host's clock against this machine's: times of its events mean nothing when they differ."""

from __future__ import annotations

from pydantic import Field

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostFiles


class ClockOptions(Options):
    #: Seconds.
    warning: float = Field(default=5.0, gt=0)


class ClockSource(HostSource[ClockOptions]):
    Options = ClockOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        await host.read()
        ahead = host.ahead or 0.0
        level = Level.WARNING if abs(ahead) >= self.options.warning else Level.OK
        way = "ahead of" if ahead > 0 else "behind"
        text = f"{abs(ahead):.1f} s {way} this machine's" if ahead else "as this machine's"
        return [self.reading(host, "clock/system", level, text, ahead, self.options.warning)]
