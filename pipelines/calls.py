"""Calls that may be interrupted, of asynchronous code and of code that holds back or loses an interrupt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from headgate.broker.runtime.tasks import looked_at

_T = TypeVar("_T")

SIGNAL_S = 0.5
"""Longest part of a wait, in seconds. A signal that comes just before Python waits for a lock is handled only after the wait, so a
Ctrl-C at that moment would wait for the end of the call."""
CANCEL_S = 0.2
"""Pause between two attempts to cancel work: Spark only cancels jobs that have started."""
GIVE_UP_S = 5.0
"""Longest wait for the end of cancelled work, in seconds. Listing a bucket and planning in Spark's JVM cannot be cancelled."""


class Apart(Generic[_T]):
    """Work in a thread of its own. The calling thread stays free for interrupts.

    A call to Spark's JVM turns an interrupt into an error of its own, or loses it, and a call to Arrow holds it back until it
    returns. The thread does not keep the process alive: work that was given up may still run when the process ends.
    """

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self._ended = threading.Event()
        self._found: list[_T] = []
        self._error: BaseException | None = None

    def start(self) -> Self:
        """Start the work. An interrupt may come before this call returns: call it where `end` follows."""
        threading.Thread(target=self._run, name="headgate-apart", daemon=True).start()
        return self

    def result(self) -> _T:
        """Wait for the end of the work. Returns its result, or raises its error. An interrupt of the caller is raised at once."""
        while not self._ended.wait(SIGNAL_S):
            pass
        if self._error is not None:
            raise self._error
        return self._found[0]

    def end(self, cancel: Callable[[], None] | None = None, within_s: float = GIVE_UP_S) -> bool:
        """Cancel the work and wait for its end. Returns False when it still runs after `within_s` seconds.

        Args:
            cancel: called repeatedly until the work has ended, from another thread; it may block.
        """
        if cancel is not None and not self._ended.is_set():
            threading.Thread(target=self._cancel, args=(cancel,), name="headgate-cancel", daemon=True).start()
        return self._ended.wait(within_s)

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        finally:
            self._ended.set()

    def _cancel(self, cancel: Callable[[], None]) -> None:
        while not self._ended.is_set():
            cancel()
            self._ended.wait(CANCEL_S)


def apart(work: Callable[[], _T], cancel: Callable[[], None] | None = None) -> _T:
    """Do work in a thread of its own and wait for it. Returns its result, or raises its error.

    An interrupt of the caller cancels the work, gives it up after `GIVE_UP_S` seconds, and is raised. Only the main thread is
    ever interrupted, so any other thread does the work itself.

    Args:
        cancel: see `Apart.end`.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    thread = Apart(work)
    try:
        return thread.start().result()
    except BaseException:
        thread.end(cancel)  # without effect on work that has ended
        raise


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
