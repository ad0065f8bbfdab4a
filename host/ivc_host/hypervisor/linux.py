"""What a Linux host says about itself, for hypervisors that do not say it."""

from __future__ import annotations

from .contract import HostDescription
from .faults import MachineError
from .reach import Reach

_LOOK = "cat /proc/meminfo /proc/cpuinfo; for d in /sys/class/net/*/bridge; do [ -d $d ] && echo bridge: $d; done"


async def describe(reach: Reach) -> HostDescription:
    done = await reach.run(["sh", "-c", f"{_LOOK}; true"])
    if done.code != 0:
        raise MachineError(f"host {reach.host.name} is not reached: {done.last_line()}")
    return parse(done.out)


def parse(text: str) -> HostDescription:
    memory = {"MemTotal": 0, "MemAvailable": 0}
    flags: frozenset[str] = frozenset()
    cpus, bridges = 0, []
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in memory:
            memory[key] = int(value.split()[0]) << 10
        elif key == "processor":
            cpus += 1
        elif key == "flags":
            flags = frozenset(value.split())
        elif key == "bridge":
            bridges.append(value.split("/")[-2])
    return HostDescription(
        memory["MemTotal"], memory["MemAvailable"], cpus, flags, tuple(bridges)
    )
