"""The asyncio client for synchronous callers: one event loop on a thread of its own, for the whole process.

One loop for all callers, because grpc's channels belong to the loop that made them, and Dagster calls from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from headgate.pipelines.calls import run_on

_T = TypeVar("_T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def call(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end. An interrupt of the caller cancels it. Raises the coroutine's error."""
    return run_on(_running(), work)


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="headgate-client", daemon=True).start()
        return _loop
