"""Tasks and their waiters: work that outlasts its waiter, tasks that no caller awaits, the end of a caller's own tasks, and imports
beside the loop."""

from __future__ import annotations

import asyncio
import errno
import os
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import Any, TypeVar

from headgate.broker.runtime.errors import FatalError, HeadgateError, Reason
from headgate.broker.runtime.logging import get_logger

logger = get_logger(__name__)

_T = TypeVar("_T")
_K = TypeVar("_K")


async def outlast(work: asyncio.Future[_T]) -> _T:
    """The result of `work`. If the waiter is cancelled, the work continues, and its result or error is ignored.

    `asyncio.shield` does not serve here: since Python 3.14 the loop reports an error that comes after the waiter has been
    cancelled.
    """
    try:
        await asyncio.wait((work,))
    except asyncio.CancelledError:
        work.add_done_callback(looked_at)
        raise
    return work.result()


async def finished(work: asyncio.Future[Any]) -> None:
    """Wait until `work` has ended. Its result or error is left to it."""
    await asyncio.wait((work,))


@types.coroutine
def measured(work: Coroutine[Any, Any, _T], now: Callable[[], float], spent: Callable[[float], None]) -> Generator[Any, Any, _T]:
    """Await a coroutine, and tell the duration of each of its steps, between two waits."""
    advance: Callable[[], Any] = partial(work.send, None)
    while True:
        began = now()
        try:
            waited = advance()
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            spent(now() - began)
        try:
            advance = partial(work.send, (yield waited))
        except BaseException as error:  # noqa: BLE001  # the coroutine decides what becomes of it
            advance = partial(work.throw, error)


def looked_at(work: asyncio.Future[Any]) -> None:
    """Done callback for tasks that no caller may await any more: marks the error as seen, so that the loop does not report it."""
    if not work.cancelled():
        work.exception()


def known(error: BaseException, part: str) -> HeadgateError:
    """The HeadgateError for any error of a part of the broker. An unexpected error is first logged with its traceback."""
    if isinstance(error, HeadgateError):
        return error
    if _is_out_of_memory(error):
        return FatalError(Reason.OUT_OF_MEMORY, f"out of memory in the {part}")
    logger.exception("unexpected_error", error, part=part)
    return FatalError(Reason.INTERNAL, f"unexpected error of the {part}, see the log: {type(error).__name__}: {error}")


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, ImportError):
        # The loader of shared objects has a message only (glibc, `dl-load.c`), and ENOMEM's text behind it at best.
        return "failed to map segment" in str(error) or os.strerror(errno.ENOMEM) in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def watch(task: asyncio.Task[Any], part: str, fail: Callable[[HeadgateError], None]) -> None:
    """Call `fail` with the error of a task that no caller awaits: otherwise the error would vanish, and the task's work with it."""

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            fail(known(error, part))

    task.add_done_callback(ended)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended. Their errors are not raised here: the code that created the tasks handles
    them.

    For `finally` blocks. The waiting caller may be cancelled meanwhile, even again: gRPC does that when a client leaves a
    call that is ending already. The cancellation is postponed to the caller's next await: otherwise the caller could not
    release what it still holds.
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


async def in_parallel(call: Callable[[_K], Awaitable[_T]], arguments: Iterable[_K], at_once: int) -> list[_T]:
    """The results of the calls, in order. `at_once` calls are under way at a time. The first error ends the others. Their tasks
    have the name of the caller's."""
    slots = asyncio.Semaphore(at_once)
    caller = asyncio.current_task()
    name = None if caller is None else caller.get_name()

    async def one(argument: _K) -> _T:
        async with slots:
            return await call(argument)

    tasks = [asyncio.create_task(one(argument), name=name) for argument in arguments]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


async def load(importing: Callable[[], _T]) -> _T:
    """The result of a function that imports modules. It runs in a thread: the loop continues while hundreds of modules load."""
    return await asyncio.get_running_loop().run_in_executor(None, importing)
