"""Calls of asynchronous code from synchronous threads that may be interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from headgate.broker.runtime.tasks import looked_at

_T = TypeVar("_T")

SIGNAL_S = 0.5
"""Longest part of a wait, in seconds. A signal that comes just before Python waits for a lock is handled only after the wait, so a
Ctrl-C at that moment would wait for the end of the call."""


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end on a loop that another thread runs. Raises the coroutine's error. An interrupt of the caller
    cancels the coroutine.

    Not `asyncio.run_coroutine_threadsafe`: an interrupt can leave the lock of its future held, and then the loop's thread waits for
    that lock for ever. And the loop refers to its tasks only weakly: a task whose caller has left may vanish before it has ended.
    """
    ended: SimpleQueue[asyncio.Task[_T]] = SimpleQueue()
    started: list[asyncio.Task[_T]] = []

    def start() -> None:
        task = loop.create_task(work)
        started.append(task)
        task.add_done_callback(looked_at)
        task.add_done_callback(ended.put)

    def cancel() -> None:
        if started:
            started[0].cancel()  # without effect on a task that has ended
        else:
            work.close()

    try:
        # Here already: the loop may start the work, and an interrupt may come, before this call returns.
        loop.call_soon_threadsafe(start)
        while True:
            try:
                return ended.get(timeout=SIGNAL_S).result()
            except Empty:
                continue
    except BaseException:
        loop.call_soon_threadsafe(cancel)
        raise
