"""Numbers, sizes and times as people read them."""

from __future__ import annotations

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNTS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
NOTHING = "\N{EN DASH}"
"""Stands for a number that is not known."""


def count(value: float | None) -> str:
    """``12,345`` or ``1.23 M``."""
    if value is None:
        return NOTHING
    if abs(value) < 100_000:
        return f"{value:,.0f}"
    for size, letter in _COUNTS:
        if abs(value) >= size:
            return f"{_three(value / size)} {letter}"
    return f"{value:,.0f}"


def exact(value: float | None) -> str:
    """``1,234,567``."""
    return NOTHING if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """``1.5 MiB``."""
    if value is None:
        return NOTHING
    at = 0
    while abs(value) >= 1000 and at < len(_SIZES) - 1:
        value, at = value / 1024, at + 1
    return f"{_three(value) if at else f'{value:.0f}'} {_SIZES[at]}"


def rate(value: float | None) -> str:
    """``1.5 MiB/s``."""
    return NOTHING if value is None else f"{size(value)}/s"


def duration(seconds: float | None) -> str:
    """``4 s``, ``3 min 20 s``, ``5 h 12 min``, ``3 d 4 h``."""
    if seconds is None:
        return NOTHING
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for big, small, big_name, small_name in ((60, 1, "min", "s"), (3600, 60, "h", "min"), (86_400, 3600, "d", "h")):
        if whole < big * (60 if big < 3600 else 24) or big == 86_400:
            rest = whole % big // small
            return f"{whole // big} {big_name}" + (f" {rest} {small_name}" if rest else "")
    raise AssertionError(whole)


def age(seconds: float | None) -> str:
    """``now``, ``20 s ago``, ``3 min ago``. Coarse, so that a part of the page with ages does not change every second."""
    if seconds is None:
        return NOTHING
    if seconds < 5:
        return "now"
    if seconds < 60:
        return f"{seconds // 10 * 10 or 5:.0f} s ago"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min ago"
    return f"{seconds // 3600:.0f} h ago" if seconds < 86_400 else f"{seconds // 86_400:.0f} d ago"


def coarse(seconds: float | None) -> str:
    """A long duration in its greatest unit, for the same reason: ``40 s``, ``12 min``, ``5 h 10 min``, ``3 d 4 h``."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{max(seconds // 10 * 10, 10):.0f} s"
    return duration(seconds // 60 * 60 if seconds < 7200 else seconds // 600 * 600)


def percent(share: float | None) -> str:
    """``42 %``."""
    return NOTHING if share is None else f"{share * 100:.0f} %"


def _three(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
