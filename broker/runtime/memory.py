"""Freed memory that the system does not have back yet."""

from __future__ import annotations

from collections.abc import Callable


def _malloc_trim() -> Callable[[int], object] | None:
    import ctypes

    found: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


def give_back() -> None:
    """Return free pages inside of the allocator's heap to the system, if the C library can.

    glibc by itself returns only free memory at the heap's end: one small object there keeps all freed memory below it
    resident.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
