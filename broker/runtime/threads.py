"""Threads that run before anything depends on them: the only place that begins threads.

`threading.Thread.start` waits without limit until the new thread says that it runs. Where memory is short a thread may end before
it can say so, and its starter then waits for ever: an event loop that starts threads while it serves would stand still. So all
threads of a broker begin while it starts, and `begin` waits for them with a limit.
`concurrent.futures.ThreadPoolExecutor` starts its threads when work comes, from the thread that brings it; `Pool` takes its place.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeAlias, TypeVar

from headgate.broker.runtime.errors import FatalError, Reason

START_TIMEOUT_S = 60.0
"""Time in which a thread must run, seconds. At load 40 on 2 processors one needs less than a second; where memory is short it never
runs."""

_T = TypeVar("_T")
_P = ParamSpec("_P")


Thread: TypeAlias = threading.Thread
"""What `begin` returns, for annotations."""


def begin(name: str, work: Callable[[], object], count: int = 1) -> Sequence[Thread]:
    """Begin threads that do `work`, and return once all of them run. They end with the process at the latest.

    An exception that leaves `work` goes to `threading.excepthook`.

    Raises:
        FatalError(OUT_OF_MEMORY): not all threads run; those that do go on. The caller cannot do its work.
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
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            refused.append(error)
            running.release()

    try:
        # `start` may wait for ever, so it does that in a thread that no other thread waits for.
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
    """Threads that take work in order of its submission. All of them run when the constructor returns.

    Args:
        threads: how many calls run at a time; more wait.
        name: of the threads, for people.

    Raises FatalError(OUT_OF_MEMORY): the threads do not start.
    """

    def __init__(self, threads: int, name: str) -> None:
        assert threads > 0, threads
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._over = False
        try:
            self._threads = begin(name, self._work, threads)
        except FatalError:
            for _ in range(threads):
                self._queue.put(None)
            raise

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have a thread call `fn`. A MemoryError of the call belongs to its future, as every exception does."""
        future: Future[_T] = Future()
        with self._lock:
            if self._over:
                raise RuntimeError("cannot submit work to a pool that was shut down")
            self._queue.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; what waits is done first, or is cancelled."""
        with self._lock:
            if not self._over:
                self._over = True
                if cancel_futures:
                    self._cancel_waiting()
                for _ in self._threads:
                    self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _cancel_waiting(self) -> None:
        while not self._queue.empty():
            item = self._queue.get()
            if item is not None:
                item[0].cancel()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            _call(*item)
            # Its result must not live until the next work comes.
            del item


Pools: TypeAlias = Callable[[int, str], Executor]
"""Makes a pool: `Pool`, or what stands for it in a simulation."""


def _call(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  # the caller's
        future.set_exception(error)
    else:
        future.set_result(result)
