"""The project's targets, as a table. A later issue adds a line here and, if need be, a side.

A target compares one figure of two sides; sides that are compared take turns in one run, so the
targets are grouped by the pair of sides they need.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import apps
from .compare import MORE_IS_BETTER, Ratio
from .words import size_text


@dataclass(frozen=True)
class Target:
    key: str
    text: str
    #: Two sides that `gate.Gate.side` knows.
    ours: str
    reference: str
    test: str
    bytes: int
    #: `MB_s` (more is better), or a time (less is better): `seconds` of a program, else `..._us`.
    metric: str
    #: What the ratio ours/reference is held against; None: it is reported only.
    bound: float | None
    #: The reference's test where it has another name, and its size where that is another.
    reference_test: str | None = None
    reference_bytes: int | None = None
    #: Instead of a bound on the ratio: by how many microseconds ours may take longer.
    extra_us: float | None = None
    #: In guests, each has one of its own.
    ranks: int = 2
    #: One of apps.APPS, of which `test` is a part; None: the benchmark that belongs to the side.
    program: str | None = None
    #: Measured by processes that do nothing else, as programs do that send one length only.
    alone: bool = False

    @property
    def reported_only(self) -> bool:
        return self.bound is None and self.extra_us is None

    @property
    def less_is_better(self) -> bool:
        return self.metric not in MORE_IS_BETTER

    def bound_text(self) -> str:
        if self.extra_us is not None:
            return f"<= +{self.extra_us:g} us"
        if self.bound is None:
            return "none"
        digits = f"{self.bound:.3f}".removesuffix("0")
        return f"{'<=' if self.less_is_better else '>='} {digits}"

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
_CROWDED = 5  # "at least 5 times better", more ranks than processors
_ALONE = 1.05  # "within 5 %", each rank with its processor
_NATIVE = 1.015  # "within 1.5 % of native"


@dataclass(frozen=True)
class _Peer:
    """Ours, and the shared memory that it is held against: as it comes, and copying in and out, the only
    way that is open between virtual machines."""

    key: str
    mpi: str
    ours: str
    reference: str
    copied: str
    #: What the reference is called.
    against: str = "its own shared memory"
    #: The longest message to compare; longer ones the reference may read out of the sender's memory.  None: all.
    copied_max: int | None = None

    @property
    def copying(self) -> str:
        """What the reference is called when it copies in and out."""
        return self.against if self.copied == self.reference else f"{self.against} without CMA"


_PEERS = (
    _Peer("vader", "Open MPI", "ivc", "vader", "vader-nocma", "vader"),
    _Peer("mpich-shm", "MPICH", "mpich-ivc", "mpich-shm", "mpich-shm-nocma"),
    _Peer("intel-shm", "Intel MPI", "intel-ivc", "intel-shm", "intel-shm", copied_max=64 << 10),
)
_HEAP = _Peer("heap-vader", "Open MPI, malloc() in the region,", "ivc-heap", "vader", "vader-nocma", "vader")
_GUESTS_HEAP = _Peer("guests-heap-vader", "Open MPI between UML guests, malloc() in the region,", "guests-ivc-heap",
                     "vader", "vader-nocma", "vader of two processes")  # fmt: skip
_GUESTS = _Peer("guests-vader", "Open MPI between UML guests", "guests-ivc", "vader", "vader-nocma",
                "vader of two processes")  # fmt: skip


def _short(peer: _Peer) -> tuple[Target, ...]:
    """Messages of 8 B."""
    words = f"{peer.mpi} 8 B", f"ivc against {peer.against}"
    sides = peer.ours, peer.reference
    return (
        Target(f"{peer.key}-latency", f"{words[0]} one way, {words[1]}", *sides, "latency", 8, "typical_us", 0.9),
        Target(f"{peer.key}-p99", f"{words[0]} one way, p99, {words[1]}", *sides, "latency", 8, "p99_us", 1.0),
        Target(f"{peer.key}-max", f"{words[0]} one way, longest, {words[1]}", *sides, "latency", 8, "max_us", None),
        Target(f"{peer.key}-rate", f"{words[0]} stream, {words[1]}", *sides, "bandwidth", 8, "MB_s", 1.3),
    )


#: What long messages are compared at: every power of two from 4 KiB to 4 MiB.
_SIZES = tuple(1 << power for power in range(12, 23))


def _in_key(size: int) -> str:
    return size_text(size).replace(" ", "").removesuffix("iB").lower()


def _long(peer: _Peer) -> tuple[Target, ...]:
    """One way and as a stream, copied in and out."""
    found = []
    for size in _SIZES:
        if peer.copied_max is not None and size > peer.copied_max:
            break
        words = f"{peer.mpi} {size_text(size)}", f"ivc against {peer.copying}"
        short = _in_key(size)
        found += [
            Target(f"{peer.key}-{short}-time", f"{words[0]} one way, {words[1]}", peer.ours, peer.copied,
                   "latency", size, "typical_us", 1 / _AHEAD),
            Target(f"{peer.key}-{short}-stream", f"{words[0]} stream, {words[1]}", peer.ours, peer.copied,
                   "bandwidth", size, "MB_s", _AHEAD),
        ]  # fmt: skip
    return tuple(found)


def _alone(peer: _Peer) -> tuple[Target, ...]:
    """A stream of one length in a process of its own: how it goes may be decided when it begins."""
    found = []
    for size in (32 << 10, 64 << 10, 256 << 10, _MIB):
        text = f"{peer.mpi} {size_text(size)} stream alone, ivc against {peer.copying}"
        found.append(Target(f"{peer.key}-alone-{_in_key(size)}", text, peer.ours, peer.copied,
                            "bandwidth", size, "MB_s", _AHEAD, alone=True))  # fmt: skip
    return tuple(found)


def _all_to_all(peer: _Peer) -> tuple[Target, ...]:
    if peer.copied_max is not None:
        return ()
    text = f"{peer.mpi} all-to-all of 64 KiB, 8 ranks, ivc against {peer.copying}"
    return (Target(f"{peer.key}-alltoall", text, peer.ours, peer.copied,
                   "alltoall", 64 << 10, "typical_us", 1 / _AHEAD, ranks=8),)  # fmt: skip


def _lent(test: str, words: str, bound: float | None) -> Target:
    """In memory of the region, against the same in the program's own: one copy against two."""
    return Target(f"lent-{test}", f"MPICH 1 MiB {words}, memory of the region against the program's own",
                  "mpich-ivc-lent", "mpich-ivc", test, _MIB, "MB_s" if bound else "typical_us", bound)  # fmt: skip


def _bare(prefix: str, who: str, ours: str) -> tuple[Target, ...]:
    """libivc against the tests of bench_floor."""
    one_way = "one way, against a bare cache-line hand-over"
    return (
        Target(f"{prefix}floor", f"{who} 8 B {one_way}", ours, "floor",
               "latency", 8, "typical_us", 1.2, "pingpong", 8),
        Target(f"{prefix}floor-64", f"{who} 64 B {one_way}", ours, "floor",
               "latency", 64, "typical_us", 1.4, "pingpong", 8),
        Target(f"{prefix}floor-rate", f"{who} 8 B stream, against a bare ring of slots", ours, "floor",
               "bandwidth", 8, "MB_s", 0.6, "ring", 8),
        *(Target(f"{prefix}floor-{_in_key(size)}-stream",
                 f"{who} {size_text(size)} stream, against the best bare pipelined copy", ours, "floor",
                 "bandwidth", size, "MB_s", 0.9, "pipeline") for size in _SIZES),
    )  # fmt: skip


def _wait(test: str, words: str) -> Target:
    """Four guests on two processors: who only looks keeps the processor from whom it waits for."""
    return Target(f"wait-{test}", f"Open MPI 8 B {words}, four UML guests on two processors, against pure polling",
                  "guests-ivc", "guests-ivc-polling", test, 8, "typical_us", 1 / _CROWDED, ranks=4)  # fmt: skip


def _apps() -> tuple[Target, ...]:
    """Each part of each program, in guests and on this host."""
    return tuple(
        Target(f"apps-{part}", f"{part}, two UML guests through ivc against two processes through vader",
               "guests-ivc", "vader", part, apps.SIZE, "seconds", _NATIVE, program=app.key)
        for app in apps.APPS.values()
        for part in app.parts
    )  # fmt: skip


TARGETS = (
    *(one for peer in _PEERS for one in _short(peer)),
    *(one for peer in _PEERS for one in _long(peer)),
    *(one for peer in _PEERS for one in _all_to_all(peer)),
    *_alone(_PEERS[0]),
    *_long(_HEAP),
    *_all_to_all(_HEAP),
    *_bare("", "libivc", "libivc"),
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
    Target(
        key="wait-own",
        text="Open MPI 8 B one way, each rank with its processor, against pure polling",
        ours="ivc",
        reference="ivc-polling",
        test="latency",
        bytes=8,
        metric="typical_us",
        bound=_ALONE,
    ),
    *_bare("guests-", "libivc between UML guests", "guests-libivc"),
    *_short(_GUESTS),
    *_long(_GUESTS),
    *_long(_GUESTS_HEAP),
    *_apps(),
    # Last: one lab is up at a time, and these have another.
    _wait("ring", "round all ranks"),
    _wait("allreduce", "all-reduce"),
)
