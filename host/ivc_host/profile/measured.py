"""What memory saves against the network, as `ivc bench run` has measured it."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from ..errors import UsageError
from .figures import Savings
from .raw import size_class

_MEMORY, _NETWORK = "ivc", "tcp"


def savings(file: Path) -> Savings:
    """Seconds that a message of each size class takes less, one way."""
    from ..bench import results  # it loads what measures and compares, which most profiles do without

    found = results.read(file)
    times = {side: _times(found, side) for side in (_MEMORY, _NETWORK)}
    both = sorted(times[_MEMORY].keys() & times[_NETWORK].keys())
    if not both:
        raise UsageError(
            f"{file} has no latency of both {_MEMORY} and {_NETWORK}",
            hint="measure it in guests: ivc bench run --tests latency --output FILE",
        )
    return {key: max(0.0, times[_NETWORK][key] - times[_MEMORY][key]) for key in both}


def _times(found: results.Results, side: str) -> dict[int, float]:  # type: ignore[name-defined] # noqa: F821
    by_class: dict[int, list[float]] = {}
    for sample in found.samples:
        for record in sample.records if sample.side == side else []:
            if record["test"] == "latency":
                by_class.setdefault(size_class(record["bytes"]), []).append(record["typical_us"] * 1e-6)
    return {key: median(values) for key, values in by_class.items()}
