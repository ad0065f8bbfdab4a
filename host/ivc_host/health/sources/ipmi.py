"""Sensors and the event log of a host's management controller, by ipmitool.

With `bmc.ipmi` in the host's table of guard.toml it is asked by network, from here; without it, ipmitool
of the host asks through the host's own interface.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from ..contract import HostSource, Level, Options, Reading
from ..hostfiles import HostError, HostFiles
from ..settings import Bmc

#: ipmitool's words for the thresholds of a sensor that were crossed; "ns": it tells nothing now.
_STATES = {
    "ok": Level.OK,
    "nc": Level.WARNING, "lnc": Level.WARNING, "unc": Level.WARNING,
    "cr": Level.FAILING, "lcr": Level.FAILING, "ucr": Level.FAILING,
    "nr": Level.FAILING, "lnr": Level.FAILING, "unr": Level.FAILING,
}  # fmt: skip
_KINDS = {"degrees C": "temperature", "degrees F": "temperature", "RPM": "fan", "Volts": "voltage",
          "Watts": "power", "Amps": "power"}  # fmt: skip
#: Events of the log that are bad by themselves, lower case.
_FAILING = ("uncorrectable", "non-recoverable", "bus fatal", "machine check", "critical interrupt")
_WARNING = (
    "correctable ecc",
    "bus correctable",
    "failure detected",
    "predictive failure",
    "critical",
)


class IpmiOptions(Options):
    #: Of the event log, by the controller's own clock.
    hours: float = Field(default=24, gt=0)


def words_for(bmc: Bmc) -> list[str]:
    """ipmitool, as far as the controller goes. A password is never a word of a command."""
    if not bmc.ipmi:
        return ["ipmitool", "-c"]
    address, _, port = bmc.ipmi.rpartition(":") if ":" in bmc.ipmi else (bmc.ipmi, "", "623")
    words = ["ipmitool", "-c", "-I", "lanplus", "-R", "2", "-N", "2", "-H", address, "-p", port]
    words += ["-U", bmc.user] if bmc.user else []
    words += ["-C", str(bmc.ipmi_cipher)] if bmc.ipmi_cipher is not None else []
    return words + (["-f", bmc.password_file] if bmc.password_file else [])


class IpmiSource(HostSource[IpmiOptions]):
    Options = IpmiOptions

    async def read_host(self, host: HostFiles) -> list[Reading]:
        where = host
        if host.settings.bmc.ipmi:
            where = HostFiles(replace(host.reach.host, ssh=()))  # by network, from this machine
        ask = words_for(host.settings.bmc)
        sensors = await self._lines(where, [*ask, "sdr", "list"])
        # One after the other: a controller has few sessions.
        now = await self._lines(where, [*ask, "sel", "time", "get"])
        events = await self._lines(where, [*ask, "sel", "elist", "last", "200"])
        found = [*self.sensors(host, sensors), self.events(host, events, now[0] if now else "")]
        return found

    async def _lines(self, where: HostFiles, words: Sequence[str]) -> list[str]:
        done = await where.run(words, self.options.timeout)
        if done.code != 0:
            raise HostError(f"{words[0]} of {where.name}: {done.last_line()}")
        return done.out.splitlines()

    def sensors(self, host: HostFiles, lines: Sequence[str]) -> list[Reading]:
        """Of lines such as "Temp1,48,degrees C,ok"; a discrete sensor has no number."""
        found = []
        for row in csv.reader(lines):
            if len(row) < 4 or row[3].strip().lower() not in _STATES:
                continue
            name, value, unit, state = (word.strip() for word in row[:4])
            number = _number(value)
            kind = _KINDS.get(unit, "sensor")
            level = _STATES[state.lower()]
            text = f"{value} {unit}".strip() + (
                f", beyond its limit ({state})" if level is not Level.OK else ""
            )
            found.append(
                self.reading(host, f"{kind}/{name.replace('/', ' ')}", level, text, number)
            )
        return found

    def events(self, host: HostFiles, lines: Sequence[str], now: str) -> Reading:
        """Of the log's last hours, the worst. A controller's clock is compared with itself only."""
        item, limit = "log/sel", datetime.timedelta(hours=self.options.hours)
        end = _time(now)
        if end is None:
            return self.unknown(host, f"the controller's clock says {now!r}", item)
        level, text, count = Level.OK, f"nothing bad within {self.options.hours:g} hours", 0
        for row in csv.reader(lines):
            at = _time(f"{row[1]} {row[2]}") if len(row) > 4 else None
            if at is None or end - at > limit or row[-1].strip().lower() == "deasserted":
                continue
            said = " ".join(word.strip() for word in row[3:] if word.strip())
            own = _level(said.lower())
            count += own is not Level.OK
            if own.rank > level.rank:
                level, text = own, said
        return self.reading(host, item, level, text, count, 0)


def _level(text: str) -> Level:
    if any(word in text for word in _FAILING):
        return Level.FAILING
    return Level.WARNING if any(word in text for word in _WARNING) else Level.OK


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _time(text: str) -> datetime.datetime | None:
    """ipmitool prints local time, with a zone or without; both ends of a difference are alike."""
    words = " ".join(text.split()[:2])
    for form in ("%m/%d/%y %H:%M:%S", "%m/%d/%Y %H:%M:%S"):  # by its version
        with contextlib.suppress(ValueError):
            return datetime.datetime.strptime(words, form)
    return None
