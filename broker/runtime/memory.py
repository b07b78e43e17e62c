"""Memory that the process has freed, and the system does not have back yet."""

from __future__ import annotations

from collections.abc import Callable


def _malloc_trim() -> Callable[[int], object] | None:
    import ctypes

    found: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return found


def give_back() -> None:
    """Give the pages that are free inside of the allocator's heap back to the system, where the C library can.

    glibc gives back only what is free at the heap's end: one small object there keeps all that was freed below it resident.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)
