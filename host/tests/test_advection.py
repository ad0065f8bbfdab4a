"""The advection program, the random graph, and the sweep of `ivc bench paths`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np
import pytest

from ivc_host import paths
from ivc_host.bench import places, processors, programs

GRID, STEPS = (20, 12, 18), 7


@pytest.fixture
def host() -> Iterator[places.Host]:
    if shutil.which("mpirun") is None or not (paths.build() / "bench" / "bench_kernels").is_file():
        pytest.skip("mpirun is not installed, or bench_kernels is not built")
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
