"""Figures as people read them."""

from __future__ import annotations

_SCALE = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0,
    "MB/s": 1e6, "GB/s": 1e9, "M/s": 1e6,
}  # fmt: skip
#: So far apart both ratios of two sides are shown: that of their medians, and the median of the
#: rounds' own, which the machine's changes between rounds do not move.
_APART = 0.05

def size_text(size: int) -> str:
    """8 B, 64 KiB, 1 MiB"""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << shift and not size % (1 << shift):
            return f"{size >> shift} {unit}"
    return f"{size} B"


def time_text(us: float) -> str:
    if us < 1:
        return f"{us * 1000:.0f} ns"
    if us < 1000:
        return f"{us:.3g} us"
    if us < 1e6:
        return f"{us / 1000:.3g} ms"
    return f"{us / 1e6:.3g} s"


def rate_text(megabytes_s: float) -> str:
    if megabytes_s >= 1000:
        return f"{megabytes_s / 1000:.1f} GB/s"
    return f"{megabytes_s:.3g} MB/s"


def printed(text: str) -> float:
    """The figure that one of the texts above shows."""
    number, unit = text.split()
    return float(number) * _SCALE[unit]


def quotient_text(one: str, other: str) -> str:
    """One printed figure over the other: what a reader gets who divides them."""
    below = printed(other)
    return ratio_text(printed(one) / below) if below else "-"


def paired_text(quotient: str, paired: float) -> str:
    """The median of the rounds' ratios; empty where the quotient beside it says the same."""
    apart = quotient == "-" or abs(paired / float(quotient) - 1) > _APART
    return ratio_text(paired) if apart else ""


def ratio_text(ratio: float) -> str:
    if ratio >= 10:
        return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}"
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
