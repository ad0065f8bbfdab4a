"""From samples to one figure per side, test and size: what tables, plots and files show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from .compare import Sample
from .floor import STATES

#: How the samples' figures of one kind become one: the extremes stay extremes.
_MERGE = {"min_us": np.min, "max_us": np.max}
_FIGURES = (
    "typical_us",
    "mean_us",
    "min_us",
    "p50_us",
    "p90_us",
    "p95_us",
    "p99_us",
    "max_us",
    "MB_s",
    "messages_s",
)


@dataclass(frozen=True)
class Row:
    """One side, one test, one size."""

    side: str
    test: str
    bytes: int
    figures: dict[str, float]
    samples: int
    dropped: int
    state: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def rows(samples: Sequence[Sample]) -> list[Row]:
    """Merge the samples of each side, near ones if there are any, else those of another state.

    Every figure is the median over the samples, but the minimum and the maximum.
    """
    keys: dict[tuple[str, str, int], list[tuple[str, dict[str, float]]]] = {}
    for sample in samples:
        for record in sample.records:
            key = (sample.side, record["test"], record["bytes"])
            keys.setdefault(key, []).append((sample.state, record))
    found = []
    for (side, test, size), measured in keys.items():
        for state in STATES:
            used = [record for own, record in measured if own == state]
            if used:
                break
        figures = {
            name: float(_MERGE.get(name, np.median)([r[name] for r in used]))
            for name in _FIGURES
            if all(name in record for record in used)
        }
        found.append(Row(side, test, size, figures, len(used), len(measured) - len(used), state))
    return found
