"""The project's targets, as a table. A later issue adds a line here and, if need be, a side.

A target compares one figure of two sides; sides that are compared take turns in one run, so the
targets are grouped by the pair of sides they need.
"""

from __future__ import annotations

from dataclasses import dataclass

from .compare import Ratio
from .words import size_text


@dataclass(frozen=True)
class Target:
    key: str
    text: str
    #: Two sides of `gate.SIDES`.
    ours: str
    reference: str
    test: str
    bytes: int
    #: `typical_us` (less is better) or `MB_s` (more is better).
    metric: str
    #: What the ratio ours/reference is held against; None: it is reported only.
    bound: float | None
    #: The reference's test where it has another name, and its size where that is another.
    reference_test: str | None = None
    reference_bytes: int | None = None
    #: Instead of a bound on the ratio: by how many microseconds ours may take longer.
    extra_us: float | None = None
    ranks: int = 2

    @property
    def reported_only(self) -> bool:
        return self.bound is None and self.extra_us is None

    @property
    def less_is_better(self) -> bool:
        return self.metric.endswith("_us")

    def bound_text(self) -> str:
        if self.extra_us is not None:
            return f"<= +{self.extra_us:g} us"
        if self.bound is None:
            return "none"
        return f"{'<=' if self.less_is_better else '>='} {self.bound:.2f}"

    def holds(self, ratio: Ratio) -> bool:
        if self.extra_us is not None:
            return ratio.ours - ratio.reference <= self.extra_us
        if self.bound is None:
            return True
        return ratio.median <= self.bound if self.less_is_better else ratio.median >= self.bound


_MIB = 1 << 20
_WITHIN = 1.15  # "within 15 %"
_AHEAD = 1.2  # "at least 1.2 times better"
_LENT = 1.8  # "at least 1.8 times the two-copy path"

#: Ours, and the shared memory of the same MPI: as it comes, and copying in and out, the only way that
#: is open between virtual machines.
_PEERS = (
    ("vader", "Open MPI", "ivc", "vader", "vader-nocma"),
    ("mpich-shm", "MPICH", "mpich-ivc", "mpich-shm", "mpich-shm-nocma"),
    ("intel-shm", "Intel MPI", "intel-ivc", "intel-shm", None),
)


def _short(key: str, mpi: str, ours: str, reference: str) -> tuple[Target, ...]:
    """Messages of 8 B against the MPI's own shared memory."""
    against = f"ivc against {'vader' if key == 'vader' else 'its own shared memory'}"
    return (
        Target(f"{key}-latency", f"{mpi} 8 B one way, {against}", ours, reference,
               "latency", 8, "typical_us", 0.9),
        Target(f"{key}-p99", f"{mpi} 8 B one way, p99, {against}", ours, reference,
               "latency", 8, "p99_us", 1.0),
        Target(f"{key}-rate", f"{mpi} 8 B stream, {against}", ours, reference,
               "bandwidth", 8, "MB_s", 1.3),
    )  # fmt: skip


def _long(key: str, mpi: str, ours: str, reference: str) -> tuple[Target, ...]:
    """Every power of two from 4 KiB to 4 MiB, one way and as a stream, copied in and out."""
    found = []
    for size in (1 << power for power in range(12, 23)):
        words = f"{mpi} {size_text(size)}", f"ivc against {key} without CMA"
        short = size_text(size).replace(" ", "").removesuffix("iB").lower()
        found += [
            Target(f"{key}-{short}-time", f"{words[0]} one way, {words[1]}", ours, reference,
                   "latency", size, "typical_us", 1 / _AHEAD),
            Target(f"{key}-{short}-stream", f"{words[0]} stream, {words[1]}", ours, reference,
                   "bandwidth", size, "MB_s", _AHEAD),
        ]  # fmt: skip
    return tuple(found)


def _all_to_all(key: str, mpi: str, ours: str, reference: str) -> Target:
    return Target(f"{key}-alltoall", f"{mpi} all-to-all of 64 KiB, 8 ranks, ivc against {key} without CMA",
                  ours, reference, "alltoall", 64 << 10, "typical_us", 1 / _AHEAD, ranks=8)  # fmt: skip


def _lent(test: str, words: str, bound: float | None) -> Target:
    """In memory of the region, against the same in the program's own: one copy against two."""
    return Target(f"lent-{test}", f"MPICH 1 MiB {words}, memory of the region against the program's own",
                  "mpich-ivc-lent", "mpich-ivc", test, _MIB, "MB_s" if bound else "typical_us", bound)  # fmt: skip


def _bare(
    key: str, text: str, test: str, size: int, bare: str, bare_size: int, metric: str, bound: float
) -> Target:
    """libivc against a test of bench_floor."""
    return Target(key, f"libivc {text}", "libivc", "floor", test, size, metric, bound, bare, bare_size)


TARGETS = (
    *(one for key, mpi, ours, own, _ in _PEERS for one in _short(key, mpi, ours, own)),
    *(one for key, mpi, ours, _, copied in _PEERS if copied for one in _long(key, mpi, ours, copied)),
    *(_all_to_all(key, mpi, ours, copied) for key, mpi, ours, _, copied in _PEERS if copied),
    _bare("floor", "8 B one way, against a bare cache-line hand-over",
          "latency", 8, "pingpong", 8, "typical_us", 1.2),
    _bare("floor-64", "64 B one way, against a bare cache-line hand-over",
          "latency", 64, "pingpong", 8, "typical_us", 1.4),
    _bare("floor-rate", "8 B stream, against a bare ring of slots",
          "bandwidth", 8, "ring", 8, "MB_s", 0.6),
    _bare("floor-copy", "1 MiB stream, against a bare pipelined copy",
          "bandwidth", _MIB, "copy", _MIB, "MB_s", 0.9),
    _lent("put", "put", _LENT),
    _lent("get", "get", _LENT),
    _lent("latency", "message one way", None),
    Target(
        key="vader-stream",
        text="Open MPI 1 MiB stream, ivc against vader without CMA",
        ours="ivc",
        reference="vader-nocma",
        test="bandwidth",
        bytes=_MIB,
        metric="MB_s",
        bound=1.0,
    ),
    Target(
        key="guests-latency",
        text="Open MPI 8 B one way through ivc, two UML guests against two processes",
        ours="guests-ivc",
        reference="ivc",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=_WITHIN,
    ),
    Target(
        key="guests-stream",
        text="Open MPI 1 MiB stream through ivc, two UML guests against two processes",
        ours="guests-ivc",
        reference="ivc",
        test="bandwidth",
        bytes=_MIB,
        metric="MB_s",
        bound=1 / _WITHIN,
    ),
    Target(
        key="network-latency",
        text="Open MPI 8 B one way between two UML guests, ivc against tcp",
        ours="guests-ivc",
        reference="guests-tcp",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=None,
    ),
    Target(
        key="network-stream",
        text="Open MPI 1 MiB stream between two UML guests, ivc against tcp",
        ours="guests-ivc",
        reference="guests-tcp",
        test="bandwidth",
        bytes=_MIB,
        metric="MB_s",
        bound=None,
    ),
    Target(
        key="mpich-ofi-latency",
        text="MPICH 8 B one way, ivc against ofi over shm",
        ours="mpich-ivc",
        reference="mpich-ofi-shm",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=1.0,
    ),
    Target(
        key="mpich-ofi-stream",
        text="MPICH 1 MiB stream, ivc against ofi over shm without CMA",
        ours="mpich-ivc",
        reference="mpich-ofi-shm-nocma",
        test="bandwidth",
        bytes=_MIB,
        metric="MB_s",
        bound=1.0,
    ),
    Target(
        key="mpich-shm-stream",
        text="MPICH 1 MiB stream, ivc against its own shared memory without CMA",
        ours="mpich-ivc",
        reference="mpich-shm-nocma",
        test="bandwidth",
        bytes=_MIB,
        metric="MB_s",
        bound=1.0,
    ),
    Target(
        key="intel-latency",
        text="Intel MPI 8 B one way, ivc against ofi over shm",
        ours="intel-ivc",
        reference="intel-ofi-shm",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=1.0,
    ),
    Target(
        key="fabric-shm-latency",
        text="libfabric 8 B tagged ping-pong, ivc against shm",
        ours="fabric-ivc",
        reference="fabric-shm",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=1.0,
    ),
    Target(
        key="fabric-shm-rate",
        text="libfabric 8 B tagged stream, ivc against shm",
        ours="fabric-ivc",
        reference="fabric-shm",
        test="bandwidth",
        bytes=8,
        metric="MB_s",
        bound=1.0,
    ),
    Target(
        key="fabric-sm2-latency",
        text="newer libfabric 8 B tagged ping-pong, ivc against sm2",
        ours="fabric-newer-ivc",
        reference="fabric-newer-sm2",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=1.0,
    ),
    Target(
        key="fabric-sm2-rate",
        text="newer libfabric 8 B tagged stream, ivc against sm2",
        ours="fabric-newer-ivc",
        reference="fabric-newer-sm2",
        test="bandwidth",
        bytes=8,
        metric="MB_s",
        bound=1.0,
    ),
    Target(
        key="network-64k",
        text="libfabric 64 KiB ping-pong over loopback, ivc over tcp against tcp;ofi_rxm",
        ours="fabric-network-ivc",
        reference="fabric-network-rxm",
        test="latency",
        bytes=64 << 10,
        metric="typical_us",
        bound=1.05,
    ),
    Target(
        key="network-1m",
        text="libfabric 1 MiB ping-pong over loopback, ivc over tcp against tcp;ofi_rxm",
        ours="fabric-network-ivc",
        reference="fabric-network-rxm",
        test="latency",
        bytes=_MIB,
        metric="typical_us",
        bound=1.05,
    ),
    Target(
        key="network-8b",
        text="libfabric 8 B ping-pong over loopback, ivc over tcp against tcp;ofi_rxm",
        ours="fabric-network-ivc",
        reference="fabric-network-rxm",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=None,
        extra_us=1.0,
    ),
)
