"""Results of work in another thread, for callers that may be interrupted."""

from __future__ import annotations

from concurrent.futures import Future, wait
from typing import TypeVar

_T = TypeVar("_T")

SIGNAL_S = 0.5
"""Longest part of a wait, in seconds. A signal that comes just before Python waits for a lock is handled only after the wait, so a
Ctrl-C at that moment would wait for the end of the call."""


def result_of(future: Future[_T]) -> _T:
    """Wait for a result. Raises the work's error, and KeyboardInterrupt."""
    while not wait((future,), SIGNAL_S).done:
        pass
    return future.result()
