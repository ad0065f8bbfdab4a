"""Load from /proc: each round takes one sample of each host; the window is made of earlier ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ..errors import IvcError
from .contract import Options
from .hostfiles import HostError, HostFiles
from .load import GAP_SECONDS, Load, LoadSource, Sample, mean

_FILES = ("/proc/stat", "/proc/meminfo", "/proc/uptime", "/sys/block/*/stat")
#: There for disks of their own; loops, RAID and device mapper sit on others, which count.
_DEVICE = "/sys/block/*/device/uevent"


def sample_of(files: Mapping[str, str], at: float, boot: str) -> Sample:
    """Raises ValueError or KeyError when the files are not as Linux has them."""
    # user nice system idle iowait irq softirq steal; guest time is part of user and nice.
    ticks = [int(word) for word in files["/proc/stat"].split("\n")[0].split()[1:9]]
    memory = {
        name: int(kib) << 10
        for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", files["/proc/meminfo"], re.MULTILINE)
    }
    disks = {
        path.split("/")[3]: int(text.split()[9])
        for path, text in files.items()
        if path.startswith("/sys/block/") and path.endswith("/stat")
        and path.removesuffix("stat") + "device/uevent" in files
    }  # fmt: skip
    total = memory["MemTotal"]
    return Sample(
        at=at,
        uptime=float(files["/proc/uptime"].split()[0]),
        boot=boot,
        cpu_total=sum(ticks),
        cpu_idle=ticks[3] + ticks[4],
        memory_total=total,
        memory_used=total - memory["MemAvailable"],
        disks=disks,
    )


class ProcLoad(LoadSource[Options]):
    async def load(self, hosts: Sequence[HostFiles], window: float) -> list[Load]:
        return list(await asyncio.gather(*(self._load(host, window) for host in hosts)))

    async def _load(self, host: HostFiles, window: float) -> Load:
        try:
            async with asyncio.timeout(self.options.timeout):
                sample = await self._sample(host)
        except TimeoutError:
            return Load(host.name, text=f"no answer within {self.options.timeout:g} s")
        except IvcError as fault:
            return Load(host.name, text=str(fault))
        past, at = self.context.past, self.context.at
        past.add_sample(host.name, at, asdict(sample), keep=window + GAP_SECONDS)
        idle = past.idle_memory(host.name, sample.boot, sample.memory_used)
        if host.settings.idle_memory is not None:
            idle = host.settings.idle_memory
        samples = [Sample(**one) for one in past.samples(host.name)]
        return mean(host.name, samples, at - window, at, idle)

    async def _sample(self, host: HostFiles) -> Sample:
        files = await host.read(*_FILES, _DEVICE)
        try:
            return sample_of(files, self.context.at, host.boot_id)
        except KeyError as fault:
            raise HostError(f"host {host.name}: it has no {fault.args[0]}") from None
        except (ValueError, IndexError) as fault:
            raise HostError(f"host {host.name}: /proc is not as Linux has it: {fault!r}") from None
