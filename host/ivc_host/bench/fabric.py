"""libfabric's own benchmarks (fabtests) as sides of a comparison: two pinned programs of this host.

`latency` is fi_rdm_tagged_pingpong, `bandwidth` fi_rdm_tagged_bw. Their figure is a mean over all
rounds, not the typical batch of our own programs; both sides are treated alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import MissingError
from ..fabtests import source
from ..fabtests.runner import PASSED, Runner
from ..fabtests.sets import Test
from . import hydra
from .programs import BenchError, Record

_PROGRAMS = {"latency": "fi_rdm_tagged_pingpong", "bandwidth": "fi_rdm_tagged_bw"}
#: Under the heading "bytes iters total time MB/sec usec/xfer Mxfers/sec".
_LINE = re.compile(r"^\w+\s+\w+\s+[\w.]+\s+[\d.]+s\s+([\d.]+)\s+([\d.]+)\s+[\d.]+\s*$", re.M)
_TRIAL = 200  # rounds that tell how many fit into the time


@dataclass(frozen=True)
class FabricPath:
    key: str
    label: str
    provider: str
    env: Mapping[str, str] = field(default_factory=dict)
    #: Run under the libfabric that MPICH's wheel brings; Debian's has no such provider.
    newer: bool = False


_LOOPBACK = {"FI_TCP_IFACE": "lo"}
PATHS = {
    path.key: path
    for path in (
        FabricPath("fabric-ivc", "libfabric ivc", "ivc"),
        FabricPath("fabric-shm", "libfabric shm", "shm"),
        FabricPath("fabric-newer-ivc", "newer libfabric ivc", "ivc", newer=True),
        FabricPath("fabric-newer-sm2", "newer libfabric sm2", "sm2", newer=True),
        FabricPath("fabric-network-ivc", "libfabric ivc over tcp", "ivc", _LOOPBACK),
        FabricPath("fabric-network-rxm", "libfabric tcp;ofi_rxm", "tcp;ofi_rxm", _LOOPBACK),
    )
}


def _environment(path: FabricPath, region: Path) -> dict[str, str]:
    env = {name: "" for name in os.environ if name.startswith("IVC_")} | dict(path.env)
    if path.newer:
        folder = hydra.library("mpich") / "lib" / "mpich"
        if not (folder / "libfabric.so.1").exists():
            raise MissingError(f"{folder}: MPICH's wheel has no libfabric of its own there")
        env["LD_LIBRARY_PATH"] = str(folder)
    if path.provider == "ivc":
        env["FI_PROVIDER_PATH"] = str(hydra.provider_folder())
        env["FI_PROVIDER"] = "ivc"
        env["IVC_REGION"] = "none" if "network" in path.key else str(region)
    return env


class Fabric:
    """One path. Remembers how long a round takes: each sample lasts as long as asked for."""

    def __init__(self, path: FabricPath, cpus: tuple[int, int], region: Path) -> None:
        self._path = path
        env = _environment(path, region)
        self._runner = Runner(source.find().folder, path.provider, env, 60.0, cpus)
        self._round_us: dict[tuple[str, int], float] = {}

    def bench(self, wanted: Sequence[tuple[str, int]], seconds: float) -> list[Record]:
        """Each wanted (test, size), for that long."""
        return [self._one(test, size, seconds) for test, size in wanted]

    def _one(self, test: str, size: int, seconds: float) -> Record:
        key = (test, size)
        if key not in self._round_us:
            self._round_us[key] = self._run(test, size, _TRIAL)["typical_us"]
        rounds = min(max(int(seconds * 1e6 / self._round_us[key]), _TRIAL), 1_000_000)
        return self._run(test, size, rounds)

    def _run(self, test: str, size: int, rounds: int) -> Record:
        line = f"{_PROGRAMS[test]} -S {size} -I {rounds} -w {_TRIAL}"
        result = self._runner.run(Test("standard", line))
        what = f"{_PROGRAMS[test]} through {self._path.label}"
        if result.outcome != PASSED:
            raise BenchError(f"{what}: {result.outcome}, {result.how}", detail=result.said[-1500:])
        found = _LINE.findall(result.said)
        if not found:
            raise BenchError(f"{what} printed no result", detail=result.said[-500:])
        megabytes, us = found[-1]
        return {"test": test, "bytes": size, "typical_us": float(us), "MB_s": float(megabytes)}
