"""Figures as people read them."""

from __future__ import annotations


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


def ratio_text(ratio: float) -> str:
    if ratio >= 10:
        return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}"
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
