"""Errors of memory, processors and PCI Express that rasdaemon has recorded on a host.

Its database is read there, with the host's own Python and by the host's own clock: the times in it are
that clock's.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostError, HostFiles

#: Runs on the host: prints how many events of each kind and gravity there were in the last hours.
#: A table that this rasdaemon does not have is left out. Of a machine check the gravity is bit 61 of
#: its status (UC); in SQLite numbers have a sign.
_COUNT = r"""
import datetime, json, sqlite3, sys
path, hours = sys.argv[1], float(sys.argv[2])
since = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=hours)
base = sqlite3.connect("file:" + path + "?mode=ro", uri=True, timeout=5)
kinds = {
    "memory": "SELECT timestamp, err_type, err_count FROM mc_event",
    "pci": "SELECT timestamp, err_type, 1 FROM aer_event",
    "processor": "SELECT timestamp, CASE WHEN (status >> 61) & 1 THEN 'Uncorrected' ELSE 'Corrected' END,"
                 " 1 FROM mce_record",
    "page": "SELECT timestamp, 'Uncorrected', 1 FROM memory_failure_event",
}
counts = {}
for kind, query in kinds.items():
    try:
        rows = base.execute(query + " ORDER BY id DESC LIMIT 20000")
    except sqlite3.OperationalError as fault:
        if "no such table" in str(fault):
            continue
        sys.exit(str(fault))
    counts[kind] = {}
    for stamp, gravity, count in rows:
        at = datetime.datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S %z")
        if at < since:
            break
        counts[kind][gravity] = counts[kind].get(gravity, 0) + count
print(json.dumps(counts))
"""


class RasdaemonOptions(Options):
    database: str = "/var/lib/rasdaemon/ras-mc_event.db"
    hours: float = Field(default=24, gt=0)
    #: Corrected errors within that time: rasdaemon's own limit for one page.
    corrected: float = Field(default=50, gt=0)


def level_of(gravity: str, count: float, corrected: float) -> Level:
    """How bad events of that gravity are, in rasdaemon's words."""
    if gravity in ("Uncorrected (Non-Fatal)", "Deferred"):
        return Level.WARNING  # the device was reset, the data was not used
    if gravity.startswith(("Uncorrected", "Fatal")):
        return Level.FAILING
    return Level.WARNING if gravity == "Corrected" and count >= corrected else Level.OK


class RasdaemonSource(HostSource[RasdaemonOptions]):
    Options = RasdaemonOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        options = self.options
        words = ["python3", "-c", _COUNT, options.database, f"{options.hours}"]
        counts = await host.run_json(words, options.timeout)
        found = [self._reading(host, kind, some) for kind, some in _checked(host, counts).items()]
        return found or [self.unknown(host, f"{options.database} has no table of rasdaemon")]

    def _reading(self, host: HostFiles, kind: str, some: dict[str, int]) -> Reading:
        options = self.options
        levels = [level_of(gravity, count, options.corrected) for gravity, count in some.items()]
        level = max(levels, key=lambda level: level.rank, default=Level.OK)
        events = ", ".join(f"{count} {gravity.lower()}" for gravity, count in sorted(some.items()))
        text = f"{events or 'no'} events within {options.hours:g} hours"
        return self.reading(
            host, f"{kind}/rasdaemon", level, text, sum(some.values()), options.corrected
        )


def _checked(host: HostFiles, counts: Any) -> dict[str, dict[str, int]]:
    try:
        return {str(kind): {str(gravity): int(count) for gravity, count in some.items()}
                for kind, some in counts.items()}  # fmt: skip
    except (AttributeError, TypeError, ValueError):
        raise HostError(f"host {host.name}: not what was asked of rasdaemon's database") from None
