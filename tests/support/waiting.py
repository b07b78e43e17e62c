"""Wait for a condition that no event announces. A failure names the condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

PATIENCE_S = 90.0
"""Ends a hang, also on a busy machine. No test judges by it."""

Found = TypeVar("Found")


def until(
    holds: Callable[[], Found], what: str | Callable[[], str] = "", seconds: float = PATIENCE_S, *, pause_s: float = 0.02
) -> Found:
    """Poll until `holds` returns something true, and return that.

    Args:
        what: the condition, for the failure message; a function adds what is known when the time is over. Without it, the
            traceback shows `holds`.
        seconds: after this time AssertionError is raised.
        pause_s: between two polls.
    """
    end_s = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end_s, _failure(what, seconds)
        time.sleep(pause_s)
    return found


async def until_async(
    holds: Callable[[], Found], what: str | Callable[[], str] = "", seconds: float = PATIENCE_S, *, pause_s: float = 0.002
) -> Found:
    """`until` in an event loop, whose other tasks go on."""
    end_s = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end_s, _failure(what, seconds)
        await asyncio.sleep(pause_s)
    return found


async def begun(work: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
    """A task for `work` that has run up to its first wait, however busy the loop is."""
    waits = asyncio.Event()

    async def run() -> Found:
        waits.set()  # the caller continues in a later turn, after this one of `work`
        return await work

    task = asyncio.create_task(run())
    await waits.wait()
    return task


def _failure(what: str | Callable[[], str], seconds: float) -> str:
    return f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
