"""Tasks and those who wait for them: work that outlasts its waiter, what nobody waits for, and the end of one's own."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason
from headgate.broker.runtime.logging import get_logger

log = get_logger(__name__)

_T = TypeVar("_T")


async def outlast(work: asyncio.Future[_T]) -> _T:
    """The result of `work`, which goes on where its waiter is cancelled. How it ends is nobody's business then.

    Not `asyncio.shield`, which since Python 3.14 has the loop report an error that comes after its waiter has gone.
    """
    try:
        await asyncio.wait((work,))
    except asyncio.CancelledError:
        work.add_done_callback(looked_at)
        raise
    return work.result()


def looked_at(work: asyncio.Future[Any]) -> None:
    """For `add_done_callback`, where nobody may be left to hear how it ended: else the loop would report its error."""
    if not work.cancelled():
        work.exception()


def known(error: BaseException, part: str) -> HeadgateError:
    """Any error of a part of the broker as one with a reason; what nobody foresaw is logged with its traceback first."""
    if isinstance(error, HeadgateError):
        return error
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return FatalError(Reason.OUT_OF_MEMORY, f"out of memory in the {part}")
    log.exception("unexpected_error", error, part=part)
    return FatalError(Reason.INTERNAL, f"unexpected error of the {part}, see the log: {type(error).__name__}: {error}")


def watch(task: asyncio.Task[Any], part: str, fail: Callable[[HeadgateError], None]) -> None:
    """Have `fail` told of what a task raises for which nobody waits: else it would vanish, and with it what the task did."""

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            fail(known(error, part))

    task.add_done_callback(ended)


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
        looked_at(task)
    if cancelled:
        caller.cancel()
