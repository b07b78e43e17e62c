"""The end of tasks that somebody began for himself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended. What they raised is not raised here: who began them has heard of it.

    For `finally` blocks. Who waits here may be cancelled, once more even: gRPC does so where a client goes away from a call that
    is ending already. That is put off to what is awaited next, else what the block has still to give back would be kept for ever.
    """
    tasks = set(tasks)
    for task in tasks:
        task.cancel()
    caller = asyncio.current_task()
    assert caller is not None
    cancelled = False
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
            caller.uncancel()
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if cancelled:
        caller.cancel()
