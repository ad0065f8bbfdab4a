"""The network that a migration takes: one of its own, or that of the ranks.

The hosts of a lab are processes of one kernel. What a migration sends goes through the lab's loopback
interface, which carries nothing else. The wire that leads to the other host is made of a queue for each
direction, of a limited rate, that packets are sent through on their way: all of a migration, and all of
the guests that are on that host. So the two take each other's bandwidth, as on one cable.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..lab import network, process
from .programs import BenchError

OWN, SHARED = NAMES = ("own", "mpi")
_TO, _FROM = "wire-to", "wire-from"


@dataclass(frozen=True)
class Net:
    """One of NAMES, and its rate in Mbit/s; 0: no limit, which a shared one has."""

    name: str
    rate: int

    def __str__(self) -> str:
        if self.rate == 0:
            rate = "no limit"
        else:
            rate = f"{self.rate / 1000:g} Gbit/s" if self.rate >= 1000 else f"{self.rate} Mbit/s"
        return f"{self.name}, {rate}"


def _queue(device: str, rate: int) -> list[str]:
    return ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{rate}mbit", "burst", "1mb",
            "latency", "50ms"]  # fmt: skip


def _through(device: str, direction: str, wire: str) -> list[str]:
    """All that the device sends (egress) or takes in (ingress) goes through the wire first."""
    return ["tc", "filter", "add", "dev", device, direction, "protocol", "all", "u32", "match", "u32", "0", "0",
            "action", "mirred", "egress", "redirect", "dev", wire]  # fmt: skip


def _shared_lines(net: Net, taps: Sequence[str]) -> list[list[str]]:
    lines = []
    for wire in (_TO, _FROM):
        lines += [["ip", "link", "add", wire, "type", "ifb"], ["ip", "link", "set", wire, "up"], _queue(wire, net.rate)]
    lines += [["tc", "qdisc", "add", "dev", device, "clsact"] for device in ("lo", *taps)]
    lines.append(_through("lo", "egress", _TO))
    for tap in taps:
        lines += [_through(tap, "egress", _TO), _through(tap, "ingress", _FROM)]
    return lines


def _run(namespace: Path, words: Sequence[str]) -> str:
    """What is wrong; nothing when all is well."""
    done = subprocess.run([*process.enter(namespace), *words], capture_output=True, text=True, timeout=30)
    return "" if done.returncode == 0 else f"{' '.join(words)}: {done.stderr.strip()}"


@contextmanager
def laid(namespace: Path, net: Net, guests: Sequence[str], host: int) -> Iterator[None]:
    """Between the host of that number and the others, for as long as the block lasts."""
    taps = [network.tap_name(guest, host) for guest in guests]
    if net.name == SHARED:
        lines = _shared_lines(net, taps)
    else:
        lines = [_queue("lo", net.rate)] if net.rate else []
    try:
        for words in lines:
            if trouble := _run(namespace, words):
                raise BenchError(
                    f"the network of a migration: {trouble}",
                    hint="the kernel must offer the queue tbf (sch_tbf), and for --migration-net mpi ifb, sch_ingress,"
                    " cls_u32 and act_mirred; --rates 0 needs none of them",
                )
        yield
    finally:
        if lines:
            _take_away(namespace, ("lo", *taps))


def _take_away(namespace: Path, devices: Sequence[str]) -> None:
    """All there is of it, however far it had come."""
    for device in devices:
        for place in ("root", "clsact"):
            _run(namespace, ["tc", "qdisc", "del", "dev", device, place])
    for wire in (_TO, _FROM):
        _run(namespace, ["ip", "link", "del", wire])
