"""Threads that run before another part depends on them: the only module that starts threads.

`threading.Thread.start` waits without a limit until the new thread reports that it runs. If memory is short, a thread may end
before it can report that, and its starter then waits for ever. An event loop that starts threads while it serves would stand
still. So all threads of a broker start together with the broker, and `begin` waits for them with a limit.
`concurrent.futures.ThreadPoolExecutor` starts a thread when work is submitted, from the submitting thread; `Pool` takes its
place.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

from headgate.broker.runtime.errors import FatalError, Reason

START_TIMEOUT_S = 60.0
"""Time in which a thread must run, seconds. At load 40 on 2 processors a thread needs less than a second; without memory it
never runs."""

_T = TypeVar("_T")
_P = ParamSpec("_P")


Thread: TypeAlias = threading.Thread
"""The type of the result of `begin`, for annotations."""


def begin(name: str, work: Callable[[], object], count: int = 1) -> Sequence[Thread]:
    """Start threads that run `work`, and return once all of them run. They end with the process at the latest.

    An exception that leaves `work` goes to `threading.excepthook`.

    Raises:
        FatalError(OUT_OF_MEMORY): not all threads run; the running ones continue. The caller cannot do its work.
    """
    running = threading.Semaphore(0)

    def run() -> None:
        running.release()
        work()

    threads = [threading.Thread(target=run, name=name if count == 1 else f"{name}_{at}", daemon=True) for at in range(count)]
    refused: list[BaseException] = []

    def start() -> None:
        try:
            for thread in threads:
                thread.start()
        except BaseException as error:  # noqa: BLE001  # raised by the waiting thread
            refused.append(error)
            running.release()

    try:
        # `start` may wait for ever, so it runs in a thread that no other thread waits for.
        _thread.start_new_thread(start, ())
        for _ in threads:
            if not running.acquire(timeout=START_TIMEOUT_S) or refused:
                raise RuntimeError(refused[0] if refused else f"not running after {START_TIMEOUT_S:g} s")
    except (RuntimeError, MemoryError) as error:
        raise FatalError(
            Reason.OUT_OF_MEMORY, f"out of memory, or of threads that are allowed: a thread does not start: {error}. name=`{name}`"
        ) from error
    return threads


class Pool(Executor):
    """Threads that run submitted work in order. All threads run when the constructor returns.

    The threads do not refer to the pool: a pool that is dropped without `shutdown` ends its threads when it is collected.

    Args:
        threads: calls that run at a time; further calls wait.
        name: name of the threads, for people.

    Raises FatalError(OUT_OF_MEMORY): the threads do not start.
    """

    def __init__(self, threads: int, name: str) -> None:
        assert threads > 0, threads
        self._lock = threading.Lock()
        self._queue: _Queue = SimpleQueue()
        self._over = False
        try:
            self._threads = begin(name, partial(_work, self._queue), threads)
        except FatalError:
            _end(self._queue, threads)
            raise
        self._dropped = weakref.finalize(self, _end, self._queue, threads)
        self._dropped.atexit = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have a thread call `fn`. A MemoryError of the call, like any exception, is stored in its future."""
        future: Future[_T] = Future()
        with self._lock:
            if self._over:
                raise RuntimeError("cannot submit work to a pool that was shut down")
            self._queue.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more work; waiting work is done first, or cancelled."""
        with self._lock:
            if not self._over:
                self._over = True
                if cancel_futures:
                    self._cancel_waiting()
                self._dropped()
        if wait:
            for thread in self._threads:
                thread.join()

    def _cancel_waiting(self) -> None:
        while not self._queue.empty():
            item = self._queue.get()
            if item is not None:
                item[0].cancel()


_Queue: TypeAlias = "SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]"
"""Submitted work. None ends the thread that takes it."""


Pools: TypeAlias = Callable[[int, str], Executor]
"""Makes a pool: `Pool`, or its replacement in a simulation."""


def _work(queue: _Queue) -> None:
    while (item := queue.get()) is not None:
        _call(*item)
        # Its result must not stay alive until the next work arrives.
        del item


def _end(queue: _Queue, threads: int) -> None:
    for _ in range(threads):
        queue.put(None)


def _call(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  # the caller's
        future.set_exception(error)
        # The error's traceback has this frame. As a cycle it would keep alive what the call used, such as files.
        del future
    else:
        future.set_result(result)
