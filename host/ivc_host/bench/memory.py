"""What the plug-in says at the end of a job when IVC_STATS is set: bytes that went by memory."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

_LINE = re.compile(
    r"ivc: rank [^\n]*: memory: sent (\d+) packets (\d+) bytes(?:[^\n]*?read in place (\d+) bytes)?"
)


@dataclass
class MemoryUse:
    packets: int = 0
    bytes: int = 0
    read_bytes: int = 0

    def add(self, other: MemoryUse) -> None:
        self.packets += other.packets
        self.bytes += other.bytes
        self.read_bytes += other.read_bytes

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def memory_use(output: str) -> MemoryUse:
    """The sum over all ranks and peers of what was sent, and beside that of what was read where it lies."""
    found = [[int(number or 0) for number in line] for line in _LINE.findall(output)]
    return MemoryUse(*(sum(column) for column in zip(*found, strict=True)) if found else ())
