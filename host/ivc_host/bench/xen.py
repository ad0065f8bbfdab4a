"""libivc between two guests of Xen, held against what else can carry bytes between them.

The sides take turns, and beside each stream stands the processor time that it cost each guest and
dom0, as the 2009 report on an Open MPI plug-in for Xen had it.

The lab's processors are emulated, and yet this machine's floor tells: a MiB that changes between processors
without a common cache takes four times as long, whoever carries it. A look at all takes minutes, in
which that changes; so the sides with a target run short races besides.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import MissingError, UsageError
from ..lab.lab import Lab
from . import floor, places, programs
from .compare import Sample, Session, ratio
from .gate import FAILED, PASSED, UNMEASURED, Verdict
from .places import PATHS, Guests, MpiPath
from .programs import BenchError, Record
from .progress import Steps
from .summary import Row, rows
from .targets import Target

LIBIVC, VCHAN, VCHAN_LOOK = "libivc", "vchan", "vchan-look"
PLUGIN, TCP, ONE_GUEST = "mpi-ivc", "mpi-tcp", "one-guest"
LABELS = {
    LIBIVC: "libivc",
    VCHAN: "libxenvchan, by its calls",
    VCHAN_LOOK: "libxenvchan, its ring watched by the program",
    PLUGIN: "Open MPI, ivc",
    TCP: "Open MPI, tcp over the bridge",
    ONE_GUEST: "Open MPI vader, two processes of one guest",
}
SIDES = tuple(LABELS)
SIZES = (8, 64, 4 << 10, 64 << 10, 1 << 20)
_STREAM = SIZES[-1]

TARGETS = (
    Target("xen-latency", "libivc against libxenvchan, 8 B one way", LIBIVC, VCHAN,
           "latency", 8, "typical_us", 0.5),
    Target("xen-stream", "libivc against libxenvchan, 1 MiB stream", LIBIVC, VCHAN,
           "bandwidth", _STREAM, "MB_s", 1.5),
    # No bounds: nobody uses libxenvchan like that.
    Target("xen-look-latency", "the same, its ring watched by the program, 8 B one way", LIBIVC, VCHAN_LOOK,
           "latency", 8, "typical_us", None),
    Target("xen-look-stream", "the same, its ring watched by the program, 1 MiB stream", LIBIVC, VCHAN_LOOK,
           "bandwidth", _STREAM, "MB_s", None),
)  # fmt: skip

#: By its own calls libxenvchan can be waited for in these ways; now one and now the other is the faster.
_VCHAN_WAITS = ("poll", "block")
_TIMEOUT = 600.0

#: Those with a target; races until so many were near throughout, and at most.
_RACERS = tuple(dict.fromkeys(side for one in TARGETS for side in (one.ours, one.reference)))
_RACES, _RACES_MOST = 5, 15
_RACE_SECONDS = "0.3"

#: The run whose processor time is taken: so long, in rounds of so many messages.
_PROCESSOR_SECONDS = 8.0
_WINDOW = 64
#: bench_* time each of `--iterations` rounds twice, up to 50 without grouping them.
_PASSES, _ROUNDS_MOST = 2, 50
_IDLE_SECONDS = 8.0
DOM0 = "Domain-0"

#: Runs the tests, with further words for the program.
Run = Callable[[Sequence[str], Sequence[str]], list[Record]]


def domain_seconds(listing: str) -> dict[str, float]:
    """Processor time of each domain since its start, from what `xl list` prints."""
    found = {}
    for line in listing.splitlines()[1:]:
        words = line.split()
        try:
            found[words[0]] = float(words[-1])
        except (IndexError, ValueError):
            raise BenchError("what `xl list` prints cannot be read", detail=listing) from None
    if DOM0 not in found:
        raise BenchError("`xl list` does not name dom0", detail=listing or None)
    return found


@dataclass(frozen=True)
class Use:
    """Processor time of each domain over a stretch of time; the look at the end is a part of it."""

    seconds: dict[str, float]
    length: float

    def beyond(self, other: Use) -> Use:
        """What this one took more than the other."""
        more = {name: used - other.seconds.get(name, 0.0) for name, used in self.seconds.items()}
        return Use(more, self.length - other.length)

    def less_idle(self, idle: Use) -> dict[str, float]:
        """Without what each domain takes when nothing runs."""
        share = self.length / idle.length if idle.length > 0 else 0.0
        return {
            name: max(0.0, used - share * idle.seconds.get(name, 0.0))
            for name, used in self.seconds.items()
        }


def rounds_for(megabytes_s: float) -> int:
    """How many rounds of a window take about `_PROCESSOR_SECONDS` in each pass together."""
    window_s = _WINDOW * _STREAM / 1e6 / megabytes_s
    return min(_ROUNDS_MOST, max(2, 1 + round(_PROCESSOR_SECONDS / _PASSES / window_s)))


def require() -> None:
    """Raise when something is not built; before guests are brought up, who see what is built then."""
    places.require_plugin()
    for name in ("bench_libivc", "bench_mpi"):
        programs.find(name)
    try:
        programs.find("bench_vchan")
    except MissingError as error:
        hint = "it needs libxenvchan (Debian: libxen-dev), then ./run build"
        raise MissingError(str(error), hint=hint) from None


class _Unpinned(Guests):
    """QEMU's threads stay free, because one process has dom0 and all guests; see `Pair.pinned`."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab, (0, 0))

    def pin(self, cpus: tuple[int, int]) -> None:
        del cpus


#: Before a rank's command: a processor for each. Left to the guest's scheduler, messages took milliseconds
#: in one run of two, as they do where two ranks take turns on one processor.
_APART = ["sh", "-c", 'exec taskset -c "$OMPI_COMM_WORLD_LOCAL_RANK" "$@"', "sh"]


class _OneGuest:
    """Two processes in the first guest, which has a second processor meanwhile."""

    label = "one guest of Xen"

    def __init__(self, lab: Lab, dom0: str) -> None:
        self._lab = lab
        self._dom0 = dom0
        self._guest = lab.guests[0]

    def mpi(
        self, path: MpiPath, argv: Sequence[str], np: int = 2, timeout: float = _TIMEOUT
    ) -> subprocess.CompletedProcess[str]:
        mca = {**path.mca, "pml": "ob1", "mpi_yield_when_idle": "0"}
        with self._processors():
            here = ["--host", f"{self._guest}:{np}"]
            return self._lab.mpirun([*_APART, *argv], np, mca, path.env, timeout=timeout, options=here)

    @contextmanager
    def _processors(self) -> Iterator[None]:
        try:
            self._set(2, "while [ ! -e $online ]; do sleep 0.1; done; echo 1 >$online")
            yield
        finally:
            self._set(1, "while [ $(nproc) -gt 1 ]; do sleep 0.1; done")

    def _set(self, count: int, then: str) -> None:
        done = self._lab.run(self._dom0, ["xl", "vcpu-set", self._guest, str(count)], timeout=60)
        programs.check(done, f"xl vcpu-set {self._guest} {count}")
        line = f"online=/sys/devices/system/cpu/cpu1/online; {then}"
        done = self._lab.run(self._guest, ["timeout", "30", "sh", "-c", line], timeout=60)
        programs.check(done, f"{count} processors in {self._guest}")


class Pair:
    """Two guests of one host of Xen, and all ways between them."""

    def __init__(self, lab: Lab, steps: Steps) -> None:
        self.lab = lab
        self._steps = steps
        self._check()
        self.server, self.client = lab.guests[:2]
        self.dom0 = f"h{lab.record.guests[0].host}"
        self._domains = {name: self._domain(name) for name in (self.server, self.client)}
        self._numbers = itertools.count(os.getpid() << 16)
        guests, one = _Unpinned(lab), _OneGuest(lab, self.dom0)
        self.sides: dict[str, Run] = {
            LIBIVC: lambda tests, words: places.bench_libivc(guests, _words(tests, words), _TIMEOUT),
            VCHAN: self._vchan_calls,
            VCHAN_LOOK: lambda tests, words: self._vchan(tests, words, "look"),
            PLUGIN: lambda tests, words: _mpi(guests, PATHS["ivc"], tests, words),
            TCP: lambda tests, words: _mpi(guests, PATHS["tcp"], tests, words),
            ONE_GUEST: lambda tests, words: _mpi(one, PATHS["vader"], tests, words),
        }
        self._idle = self._idle_use()

    def _check(self) -> None:
        record = self.lab.record
        if not record.hypervisor.startswith("xen"):
            raise UsageError(f"the guests of lab {record.name} are not Xen's", hint="see --hypervisor")
        if len({guest.host for guest in record.guests[:2]}) > 1 or len(record.guests) < 2:
            raise UsageError(f"lab {record.name} has no two guests on one host", hint="--guests 2, --hosts 1")

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep the guests on different processors of their host, so that two that poll never share one. The
        first guest's second one shares with the other guest."""
        pins = ((self.server, "0", "0"), (self.server, "1", "1"), (self.client, "0", "1"))
        try:
            for guest, number, processor in pins:
                self._pin(guest, number, processor)
            yield
        finally:
            for guest in (self.server, self.client):
                self._pin(guest, "all", "all")

    def _pin(self, guest: str, number: str, processor: str) -> None:
        done = self.lab.run(self.dom0, ["xl", "vcpu-pin", guest, number, processor], timeout=60)
        programs.check(done, f"xl vcpu-pin {guest} {number} {processor}")

    def measure(self, side: str, seconds: float) -> list[Record]:
        """Latency and stream of each size, and the processor time of the longest one."""
        sizes = ",".join(map(str, SIZES))
        found = self.sides[side](("latency", "bandwidth"), ["--sizes", sizes, "--seconds", str(seconds)])
        stream = next(r for r in found if (r["test"], r["bytes"]) == ("bandwidth", _STREAM))
        return [*found, self._processor(side, stream)]

    def race(self, side: str) -> list[Record]:
        """What the targets compare, in a few seconds."""
        sizes = f"{SIZES[0]},{_STREAM}"
        words = ["--sizes", sizes, "--seconds", _RACE_SECONDS]
        return self.sides[side](("latency", "bandwidth"), words)

    def _processor(self, side: str, stream: Record) -> Record:
        """Of a long run and a short one, what the first took more: starting them costs the same."""
        many = rounds_for(stream["MB_s"])
        run = self.sides[side]
        if "wait" in stream:  # libxenvchan's, in the way that was the faster
            run = partial(self._vchan, wait=stream["wait"])
        self._steps.step(f"{side}: processor time")
        long, short = self._stream_use(run, many), self._stream_use(run, 1)
        gigabytes = _PASSES * (many - 1) * _WINDOW * _STREAM / 1e9
        used = long.beyond(short).less_idle(self._idle)
        per_gigabyte = {name: seconds / gigabytes for name, seconds in used.items()}
        return {"test": "processor", "bytes": _STREAM, "gigabytes": gigabytes, "seconds_per_GB": per_gigabyte}

    def _stream_use(self, run: Run, rounds: int) -> Use:
        # So much time that the number of rounds decides.
        words = ["--sizes", str(_STREAM), "--seconds", "1000000", "--warmup", "1"]
        words += ["--iterations", str(rounds), "--window", str(_WINDOW)]
        return self._use_of(lambda: run(("bandwidth",), words))

    def _idle_use(self) -> Use:
        self._steps.step("processor time of idle guests")
        return self._use_of(lambda: time.sleep(_IDLE_SECONDS)).beyond(self._use_of(lambda: None))

    def _use_of(self, run: Callable[[], Any]) -> Use:
        before, begin = self._domain_seconds(), time.monotonic()
        run()
        after = self._domain_seconds()
        return Use({name: after[name] - before[name] for name in before}, time.monotonic() - begin)

    def _domain_seconds(self) -> dict[str, float]:
        done = self.lab.run(self.dom0, ["xl", "list"], timeout=60)
        programs.check(done, f"xl list in {self.dom0}")
        names = (self.server, self.client, DOM0)
        return {name: used for name, used in domain_seconds(done.stdout).items() if name in names}

    def _domain(self, guest: str) -> int:
        done = self.lab.run(self.dom0, ["xl", "domid", guest], timeout=60)
        programs.check(done, f"xl domid {guest} in {self.dom0}")
        return int(done.stdout)

    def _vchan_calls(self, tests: Sequence[str], words: Sequence[str]) -> list[Record]:
        """Of each test and size, the record of the way that was the faster."""
        runs = [self._vchan(tests, words, wait) for wait in _VCHAN_WAITS]
        return [min(found, key=lambda record: record["typical_us"]) for found in zip(*runs, strict=True)]

    def _vchan(self, tests: Sequence[str], words: Sequence[str], wait: str) -> list[Record]:
        common = [*_words(tests, words), "--wait", wait]
        common += ["--path", f"data/bench-vchan-{next(self._numbers)}"]
        serving, asking = ([*common, "--domain", str(self._domains[peer])] for peer in (self.client, self.server))
        done = places.two_guests(self.lab, "bench_vchan", serving, asking, _TIMEOUT)
        return programs.checked(done, f"bench_vchan, the client in {self.client}")


def _words(tests: Sequence[str], words: Sequence[str]) -> list[str]:
    return ["--test", ",".join(tests), *words]


def _mpi(
    place: places.Place, path: MpiPath, tests: Sequence[str], words: Sequence[str]
) -> list[Record]:
    return places.bench_mpi(place, path, _words(tests, words), timeout=_TIMEOUT)


class Results:
    """Of all sides that took turns."""

    def __init__(self, session: Session, domains: Sequence[str]) -> None:
        self.samples: Sequence[Sample] = session.samples
        #: Of the processor time: the server's guest, the client's, dom0.
        self.domains = tuple(domains)
        measured = [row for row in rows(self.samples) if row.figures]
        self._rows = {(row.side, row.test, row.bytes): row for row in measured}

    def row(self, side: str, test: str, size: int) -> Row | None:
        return self._rows.get((side, test, size))

    def processor(self, side: str) -> dict[str, float]:
        """Seconds per GB of each domain, the median of the rounds."""
        found = [
            record["seconds_per_GB"]
            for sample in self.samples
            for record in sample.records
            if sample.side == side and record["test"] == "processor"
        ]
        return programs.median(found) if found else {}

    def verdicts(self) -> list[Verdict]:
        return [self._verdict(target) for target in TARGETS]

    def _verdict(self, target: Target) -> Verdict:
        found = ratio(self.samples, target.ours, target.reference, target.test, target.bytes, target.metric)
        if found is None:
            return Verdict(target, UNMEASURED, reason="one of the two sides was not measured")
        if target.reported_only:
            return Verdict(target, "reported", found)
        return Verdict(target, PASSED if target.holds(found) else FAILED, found)

    def as_dict(self) -> dict[str, object]:
        return {
            "sides": LABELS,
            "results": [row.as_dict() for row in self._rows.values()],
            "processor_seconds_per_GB": {side: self.processor(side) for side in SIDES},
            "targets": [verdict.as_dict() for verdict in self.verdicts()],
            "samples": [
                {"side": one.side, "round": one.round, "state": one.state, "records": one.records}
                for one in self.samples
            ],
        }


def steps_of(rounds: int) -> int:
    """How many there are at least."""
    return rounds * len(SIDES) + _RACES * len(_RACERS)


def compare(
    lab: Lab, cpus: tuple[int, int], rounds: int, seconds: float, steps: Steps
) -> Results:
    """Let the sides take turns. CPUS are the processors of this machine that are looked at in between."""
    pair = Pair(lab, steps)
    session = Session(lambda: floor.measure(cpus))
    with pair.pinned():
        session.alternate(
            {side: lambda side=side: pair.measure(side, seconds) for side in SIDES},
            rounds,
            lambda side, number: steps.count(f"round {number}: {side}"),
            most=rounds,
        )
        session.alternate(
            {side: lambda side=side: pair.race(side) for side in _RACERS},
            _RACES,
            lambda side, number: steps.count(f"race {number}: {side}"),
            most=_RACES_MOST,
        )
    return Results(session, (pair.server, pair.client, DOM0))


def draw(path: Path, results: Results, title: str) -> None:
    """Write a PNG: latency and stream of each size, and the processor time of the longest."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 3)
    for axes, (test, metric, what, unit) in zip(
        panels,
        (("latency", "typical_us", "Latency, one way", "us"),
         ("bandwidth", "MB_s", "Stream", "MB/s")),
    ):  # fmt: skip
        for side, label in LABELS.items():
            own = [(size, results.row(side, test, size)) for size in SIZES]
            points = [(size, row.figures[metric]) for size, row in own if row]
            if points:
                axes.plot(*zip(*points), marker="o", markersize=3, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("bytes of a message")
        axes.set_ylabel(unit)
        axes.set_title(what, fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].legend(fontsize=7)
    below = [0.0] * len(SIDES)
    for domain in results.domains:
        heights = [results.processor(side).get(domain, 0.0) for side in SIDES]
        panels[2].bar(range(len(SIDES)), heights, bottom=below, label=domain)
        below = [a + b for a, b in zip(below, heights)]
    panels[2].set_xticks(range(len(SIDES)), SIDES, rotation=25, ha="right", fontsize=8)
    panels[2].set_ylabel("seconds per GB")
    panels[2].set_title("Processor time of a 1 MiB stream", fontsize=10)
    panels[2].legend(fontsize=7)
    panels[2].grid(alpha=0.3, axis="y")
    figure.suptitle(title, fontsize=9)
    figure.savefig(path, dpi=110)
