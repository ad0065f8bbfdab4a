"""Figures of a profile as people read them."""

from __future__ import annotations

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_BINARY = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


def bytes_text(size: float) -> str:
    """1.23 MB: decimal, as rates are."""
    for scale, unit in _UNITS:
        if abs(size) >= scale * 0.9995:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def count_text(count: float) -> str:
    """12 345 in a form that no reader takes for a fraction."""
    return f"{count:,.0f}".replace(",", " ")


def percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def seconds_text(seconds: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def class_text(key: int) -> str:
    """The largest size of a class: 8 B, 4 KiB."""
    if key < 0:
        return "0 B"
    for shift, unit in _BINARY:
        if key >= shift:
            return f"{1 << (key - shift)} {unit}"
    return f"{1 << key} B"
