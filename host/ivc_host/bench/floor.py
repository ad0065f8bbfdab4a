"""The bare machine beside each sample, and what it says about the sample.

The two processors of a virtual machine sit near each other on the real one, or far apart; that
changes by itself every few seconds or minutes and moves every figure between cores by a factor
of four to fifteen. So each sample is enclosed by two short measurements of the bare machine
(`bench_floor`), and samples are only compared with samples taken in the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from . import programs

#: States differ when a hand-over of a cache line takes this many times as long. Within a state it
#: scatters by a quarter (other load, clock speed); far apart begins at three times.
LATENCY_STEP = 1.7
#: The same for the copy, which scatters more.
COPY_STEP = 3.0

#: In order of preference. `shared`: faster than near, as two hyperthreads of one core would be.
STATES = ("near", "far", "shared", "mixed")


@dataclass(frozen=True)
class Floor:
    """One measurement of the bare machine."""

    #: One way of a cache line from core to core, in microseconds.
    latency_us: float
    #: A 1 MiB message copied in by one core and out by the other, in microseconds.
    copy_us: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def measure(cpus: tuple[int, int], seconds: float = 0.02) -> Floor:
    """Measure the bare machine: about 0.1 s."""
    argv = [str(programs.find("bench_floor")), "--test", "pingpong,copy"]
    argv += ["--cpus", f"{cpus[0]},{cpus[1]}", "--seconds", str(seconds)]
    found = programs.checked(programs.run(argv, timeout=60), "bench_floor")
    by_test = {record["test"]: record["typical_us"] for record in found}
    return Floor(by_test["pingpong"], by_test["copy"])


def _populated(values: Sequence[float], step: float) -> float:
    """The lowest value that is no freak: a tenth of all lie between it and `step` times it."""
    ordered = sorted(values)
    enough = max(2, len(ordered) // 10)
    for value in ordered:
        if sum(value <= other <= step * value for other in ordered) >= enough:
            return value
    return ordered[0]


def best(floors: Sequence[Floor]) -> Floor:
    """The best that the machine shows for more than a moment, per figure."""
    return Floor(
        _populated([f.latency_us for f in floors], LATENCY_STEP),
        _populated([f.copy_us for f in floors], COPY_STEP),
    )


def _state(floor: Floor, reference: Floor) -> str:
    if floor.latency_us < reference.latency_us / LATENCY_STEP:
        return "shared"
    if (
        floor.latency_us > LATENCY_STEP * reference.latency_us
        or floor.copy_us > COPY_STEP * reference.copy_us
    ):
        return "far"
    return "near"


def state(before: Floor, after: Floor, reference: Floor) -> str:
    """The state a sample was taken in; `mixed` when it changed meanwhile."""
    found = {_state(before, reference), _state(after, reference)}
    return found.pop() if len(found) == 1 else "mixed"
