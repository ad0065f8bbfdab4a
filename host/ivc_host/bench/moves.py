"""What moving a guest may cost a job: bounds in time, measured by `bench_moves` (no virtual machine)."""

from __future__ import annotations

from collections.abc import Sequence

from . import programs
from .limits import Limit
from .programs import Record

_ANSWERS_US = 100e3

LIMITS = (
    *(
        Limit(
            key=f"answers-{mode}",
            text=f"from the order to the answer, {mode}, p99",
            test=f"answers-{mode}",
            figure="p99_us",
            most_us=_ANSWERS_US,
        )
        for mode in ("communicating", "idle", "computing")
    ),
    Limit(
        key="arrival",
        text="from the device to the first message through memory, p99",
        test="arrival",
        figure="p99_us",
        most_us=1e6,
    ),
    Limit(
        key="pause",
        text="longest round trip of a move less that of a time without, p95",
        test="pause",
        without="still",
        figure="p95_us",
        most_us=100e3,
    ),
)


def measure(limits: Sequence[Limit], cpus: tuple[int, int], moves: int) -> list[Record]:
    """Move a guest away and back so many times, in each way that the limits ask for."""
    tests = dict.fromkeys(test for limit in limits for test in limit.tests())
    argv = [str(programs.find("bench_moves")), "--test", ",".join(tests), "--moves", str(moves)]
    argv += ["--cpus", f"{cpus[0]},{cpus[1]}"]
    return programs.checked(programs.run(argv, timeout=120 + 10 * moves), "bench_moves")
