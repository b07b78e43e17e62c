"""`headgate.pipelines.connection` and `calls`: work for callers that have no loop, or that may be interrupted.

Compared: the ended work with the cancelled work. A mismatch means that work continues after its caller gave it up.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import warnings
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from headgate.pipelines import calls
from headgate.pipelines.calls import Apart, apart
from headgate.pipelines.connection import Connection


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """An interrupt raises KeyboardInterrupt, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_call_that_is_broken_off_ends_its_work() -> None:
    ended = threading.Event()
    caller = threading.get_ident()

    async def work() -> None:
        try:
            signal.pthread_kill(caller, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # stands for code that closes sockets
            ended.set()

    with Connection("127.0.0.1:1") as connection:
        with pytest.raises(KeyboardInterrupt):
            connection.call(work())
        gc.collect()  # the event loop alone does not keep a task from being collected
    assert ended.is_set()


def test_an_interrupt_ends_work_that_cannot_be_interrupted() -> None:
    """A call to Spark's JVM, or to Arrow: it ends when its job is cancelled, or long after it was given up."""
    caller, cancelled = threading.get_ident(), threading.Event()

    def work() -> None:
        assert threading.get_ident() != caller, "here an interrupt would reach py4j"
        signal.pthread_kill(caller, signal.SIGINT)
        assert cancelled.wait(60)

    with pytest.raises(KeyboardInterrupt):
        apart(work, cancelled.set)
    assert cancelled.is_set()


def test_work_that_nothing_ends_is_given_up() -> None:
    ended, attempts = threading.Event(), threading.Semaphore(0)
    one = Apart(ended.wait).start()
    assert not one.end(attempts.release, within_s=0.01)
    assert attempts.acquire(timeout=60) and attempts.acquire(timeout=60), "a job that starts later is cancelled too"
    ended.set()
    assert one.end() and one.result()


def test_work_apart_gives_its_result_or_its_error() -> None:
    assert apart(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)


def test_an_interrupt_at_once_leaves_no_call_that_never_began(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(SimpleQueue[Any]):
        def get(self, *_: object, **__: object) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr(calls, "SimpleQueue", Interrupted)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(50):
            with pytest.raises(KeyboardInterrupt), Connection("127.0.0.1:1"):
                pass
        gc.collect()
    assert not [one.message for one in found if "never awaited" in str(one.message)]
