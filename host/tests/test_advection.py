"""The advection program, the random graph, and the sweep of `ivc bench paths`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ivc_host import paths
from ivc_host.bench import advection, places, processors, programs
from ivc_host.bench.programs import BenchError
from ivc_host.errors import UsageError
from ivc_host.lab.lab import Lab
from ivc_host.lab.process import Process
from ivc_host.lab.state import GuestRecord, LabRecord

GRID, STEPS = (20, 12, 18), 7


@pytest.fixture
def built() -> None:
    needed = (paths.build() / "bench" / "bench_kernels", paths.plugin() / "mca_btl_ivc.so")
    if shutil.which("mpirun") is None or not all(one.is_file() for one in needed):
        pytest.skip("mpirun is not installed, or bench_kernels or the plug-in is not built")


@pytest.fixture
def host(built: None) -> Iterator[places.Host]:
    with places.host_region() as region:
        yield places.Host(processors.choose(), region)


def kernel(host: places.Host, np: int, *words: str) -> programs.Record:
    done = host.mpi(places.PATHS["vader"], [str(programs.find("bench_kernels")), *words], np)
    (one,) = programs.checked(done, "bench_kernels")
    return one


def advected() -> tuple[float, str]:
    """The sum and the checksum, computed without any division among processes."""
    number = np.arange(np.prod(GRID), dtype=np.uint64)
    u = (number * np.uint64(2654435761) % np.uint64(1024)).astype(float).reshape(GRID)
    for _ in range(STEPS):
        u = u - 0.2 * (u - np.roll(u, 1, 0)) - 0.3 * (u - np.roll(u, 1, 1)) - 0.25 * (u - np.roll(u, 1, 2))
    bits = u.ravel().view(np.uint64) * (np.uint64(2) * number + np.uint64(1))
    return float(u.sum()), f"{int(bits.sum(dtype=np.uint64)):016x}"


@pytest.mark.parametrize("processes", ["1,1,1", "2,1,1", "1,2,1", "1,1,2", "2,2,1", "1,3,2", "5,1,1"])
def test_advection_is_the_same_for_every_grid_of_processes(host: places.Host, processes: str) -> None:
    ranks = int(np.prod([int(one) for one in processes.split(",")]))
    words = ["--grid", ",".join(map(str, GRID)), "--processes", processes, "--steps", str(STEPS)]
    found = kernel(host, ranks, "--test", "advection", *words)
    total, checksum = advected()
    assert found["checksum"] == checksum
    assert found["check"] == pytest.approx(total, rel=1e-12)
    assert found["processes"] == processes.replace(",", "x")
    assert 0 <= found["communication_us"] <= found["communication_max_us"] <= found["mean_us"]


@pytest.mark.parametrize("words", [("--grid", "8,8"), ("--processes", "2,0,1"), ("--processes", "2,2,1"), ("--grid", "1,8,8", "--processes", "2,1,1")])
def test_advection_refuses_what_does_not_fit(host: places.Host, words: tuple[str, ...]) -> None:
    argv = [str(programs.find("bench_kernels")), "--test", "advection", "--steps", "1", *words]
    done = host.mpi(places.PATHS["vader"], argv, 2)
    assert done.returncode != 0
    assert "bench_kernels: rank" in done.stderr or "Usage: bench_kernels" in done.stderr


def test_each_rank_of_the_graph_sends_to_others(host: places.Host) -> None:
    words = ("--test", "graph", "--entries", "50", "--steps", "3", "--degree")
    assert kernel(host, 4, *words, "2")["check"] == 8
    assert kernel(host, 3, *words, "9")["check"] == 6  # no more than there are


def ring(ranks: int, size: int = 1) -> Any:
    """Each rank sends SIZE to the next."""
    matrix = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        matrix[rank, (rank + 1) % ranks] = size
    return matrix


def sweep(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ivc_host", "bench", "paths", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_grids_are_those_of_the_poster() -> None:
    found = [advection.text(one) for one in advection.grids(16)]
    assert found == ["16x1x1", "1x16x1", "1x1x16", "4x4x1", "4x1x4", "1x4x4", "4x2x2"]
    assert [advection.text(one) for one in advection.grids(2)] == ["2x1x1", "1x2x1", "1x1x2"]
    assert advection.grids(7) == advection.chosen("7")
    assert advection.chosen("4x2x1,2,1x2x1")[-1] == (4, 2, 1)
    assert len(advection.chosen("4x2x1,2,1x2x1")) == 4


@pytest.mark.parametrize("words", ["", "1", "1x1x1", "4x2", "0x2x2", "2,", "ax2x2", "4x2x2x1", "257", "1000", "99x99x99"])
def test_nonsense_is_no_grid(words: str) -> None:
    with pytest.raises(UsageError):
        advection.chosen(words)


def test_cells_for_every_rank() -> None:
    program = advection.Program((8, 4, 4), 2)
    program.check([(8, 1, 1), (1, 4, 4)])
    with pytest.raises(UsageError, match="too few"):
        program.check([(1, 8, 1)])


def test_a_line_of_sixteen_on_four_hosts() -> None:
    """The poster's example: in blocks 4 of 16 neighbours are on two hosts, in turn all."""
    found = advection.cases((16, 1, 1), advection.Sent(ring(16), ring(16, 100)), 4)
    assert [(one.names, one.between) for one in found] == [(("block", "ivc place"), 0.25), (("cyclic",), 1.0)]
    assert found[0].placement == (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4


def test_ivc_place_has_a_case_of_its_own_where_it_is_better() -> None:
    other = np.zeros((4, 4), dtype=np.int64)
    other[0, 3] = other[1, 2] = 1000  # neither blocks nor turns
    found = {one.names: one for one in advection.cases((4, 1, 1), advection.Sent(ring(4), other), 2)}
    assert list(found) == [("block",), ("cyclic",), ("ivc place",)]
    assert (found["block",].between_bytes, found["ivc place",].between_bytes) == (1.0, 0.0)
    assert found["cyclic",].placement == (0, 1, 0, 1)


def said(*pairs: tuple[int, int]) -> str:
    line = "ivc: rank {} on host vm, peer {} on host vm: memory: sent 1 packets 8 bytes, received 1 packets 8 bytes"
    return "\n".join(line.format(*pair) for pair in pairs)


def test_a_run_by_another_path_is_noticed() -> None:
    case = advection.Case((4, 1, 1), ("block",), (0, 0, 1, 1), 0.5, 0.5)
    advection.check_paths(case, said((0, 1), (2, 3)))
    with pytest.raises(BenchError, match="no ranks of one host used memory"):
        advection.check_paths(case, "")
    with pytest.raises(BenchError, match="on two hosts"):
        advection.check_paths(case, said((0, 1), (1, 2)))


class Started(Lab):
    """A lab that says where ranks are started."""

    def __init__(self, hosts: Sequence[int]) -> None:
        guests = [GuestRecord(f"g{number}", "", host=host) for number, host in enumerate(hosts, 1)]
        super().__init__(LabRecord("fake", "uml", [], 0, 0, Process.of(os.getpid()), guests=guests))
        self.where: list[str] = []

    def mpirun(self, argv: Any, np: Any = None, mca: Any = None, env: Any = None, hosts: Any = None, *rest: Any, **more: Any) -> Any:
        self.where, self.mca = hosts, mca
        return subprocess.CompletedProcess([], 0, "", "")


def test_ranks_fill_the_guests_of_their_host() -> None:
    lab = Started([0, 0, 1, 1])
    ground = advection.InLab(lab, None, (0, 1))  # type: ignore[arg-type] # of this machine nothing is asked
    ground.run(advection.BRIDGED, ["program"], (0, 0, 1, 1, 0, 0, 1, 1))
    assert lab.where == ["g1", "g1", "g3", "g3", "g2", "g2", "g4", "g4"]
    assert lab.mca["rmaps"] == "seq"
    with pytest.raises(UsageError, match="on one host"):
        advection.InLab(Started([0, 0]), None, (0, 1))  # type: ignore[arg-type]


def test_a_sweep_writes_table_file_and_plot(built: None, tmp_path: Path) -> None:
    done = sweep("--processes", "4x1x1", "--cells", "12x8x8", "--steps", "5", "--rounds", "1", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "out.json").read_text())
    assert (data["schema"], data["cells"], data["steps"], data["hosts"]) == ("ivc-bench-paths-1", [12, 8, 8], 5, 2)
    # Of four messages a step those between ranks 1 and 2, and 3 and 0; nothing but the steps counts.
    between = {tuple(one["placements"]): one["messages_between_hosts"] for one in data["cases"]}
    assert between == {("block", "ivc place"): 0.5, ("cyclic",): 1.0}
    assert [one["side"] for one in data["samples"]] == ["bridged", "ivc", "native"] * 2
    for (one,) in (sample["records"] for sample in data["samples"]):
        assert 0 < one["communication_s"] <= one["communication_max_s"] <= one["seconds"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert not list(Path("/dev/shm").glob("ivc-bench-*"))


def test_a_sweep_refuses_what_cannot_be() -> None:
    for words in (["--cells", "96"], ["--processes", "1"], ["--cells", "1x1x1"], ["--output", "no/such/out"]):
        done = sweep(*words)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
