"""What a rank that waits may cost: a bound on its processor time, measured by `bench_mpi --test wait`.

The targets about waiting that compare two sides are with the others, in `targets`.
"""

from __future__ import annotations

from . import places
from .limits import Limit
from .places import PATHS, Host
from .programs import Record

_WAIT_S = 10

LIMITS = (
    Limit(
        key="wait-cpu",
        text=f"processor time of a rank that waits {_WAIT_S} s in MPI_Recv, median",
        test="wait",
        figure="p50_us",
        most_us=0.01 * _WAIT_S * 1e6,
    ),
)


def measure(host: Host, waits: int, wait_s: float = _WAIT_S) -> list[Record]:
    """Let the second of two ranks wait so many times for the first, which sleeps."""
    words = ["--test", "wait", "--sizes", "8", "--wait", str(wait_s), "--seconds", str(waits * wait_s)]
    return places.bench_mpi(host, PATHS["ivc"], words, timeout=60 + 2 * waits * wait_s)
