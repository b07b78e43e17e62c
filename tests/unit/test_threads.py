"""Threads that start before they are needed, threads that cannot start, and a loop that stands still.

Runs: `begin`, `Pool` and `Watchdog` with real threads; the system starts a thread that never runs, as with too little memory.
Compared: the running threads, the raised errors, the calls. A mismatch means a broker that waits for ever for a missing thread,
or one that ends although it works.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from headgate.broker.runtime import threads
from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.threads import Pool, begin
from headgate.broker.runtime.watchdog import Watchdog
from tests.support.errors import raises
from tests.support.waiting import until

PATIENCE_S = 60.0


def names(prefix: str) -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)}


def test_all_threads_of_a_pool_run_before_there_is_work() -> None:
    pool = Pool(3, "early")
    assert names("early") == {"early_0", "early_1", "early_2"}
    pool.shutdown()
    assert names("early") == set()


def test_a_pool_works_in_order_and_gives_results_and_errors_back() -> None:
    seen: list[int] = []

    def work(number: int) -> int:
        seen.append(number)
        if number == 1:
            raise MemoryError
        return number * 10

    pool = Pool(1, "ordered")
    futures = [pool.submit(work, number) for number in range(3)]
    pool.shutdown()
    assert seen == [0, 1, 2]
    assert (futures[0].result(), futures[2].result()) == (0, 20)
    assert isinstance(futures[1].exception(), MemoryError)
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(work, 3)


def test_a_failed_call_keeps_nothing_alive() -> None:
    """Not even until cycles are collected: it may be the file that filled a disk."""

    class Used:
        pass

    def fail() -> None:
        used = Used()
        left.append(weakref.ref(used))
        raise OSError("no space")

    left: list[weakref.ref[Used]] = []
    pool = Pool(1, "failing")
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(OSError, match="no space"):
            pool.submit(fail).result(PATIENCE_S)
        pool.shutdown()
        assert left[0]() is None
    finally:
        gc.enable()


def test_work_that_waits_is_cancelled_where_that_is_asked_for() -> None:
    go = threading.Event()
    pool = Pool(1, "cancelled")
    first = pool.submit(go.wait)
    until(first.running, "the first runs")
    second = pool.submit(go.wait)
    pool.shutdown(wait=False, cancel_futures=True)
    go.set()
    pool.shutdown()
    assert first.result() and second.cancelled()


async def test_a_pool_serves_a_loop() -> None:
    pool = Pool(2, "loop")
    try:
        assert await asyncio.get_running_loop().run_in_executor(pool, threading.current_thread) is not threading.current_thread()
    finally:
        pool.shutdown()


def lost(*given: object) -> int:
    """The system has started a thread, which ends before it can report its start."""
    return 1


def refused(*given: object) -> int:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("outcome", [lost, refused])
def test_a_thread_that_does_not_begin_is_an_error_that_says_memory(
    monkeypatch: pytest.MonkeyPatch, outcome: Callable[..., int]
) -> None:
    monkeypatch.setattr(threading, "_start_new_thread", outcome)
    monkeypatch.setattr(threads, "START_TIMEOUT_S", 0.1)
    for start in (lambda: begin("lost", lambda: None), lambda: Pool(2, "lost")):
        with raises(FatalError, Reason.OUT_OF_MEMORY, "out of memory"):
            start()


async def test_a_loop_that_stands_still_is_told_of() -> None:
    ended = threading.Event()
    watchdog = Watchdog(asyncio.get_running_loop(), 100, ended.set)
    try:
        assert ended.wait(PATIENCE_S), "the loop stands here, and nobody has seen it"
    finally:
        watchdog.close()


async def test_a_loop_that_turns_is_left_alone() -> None:
    ended = threading.Event()
    watchdog = Watchdog(asyncio.get_running_loop(), 1000, ended.set)
    try:
        for _ in range(15):
            await asyncio.sleep(0.1)
        assert not ended.is_set()
    finally:
        watchdog.close()


def test_a_dropped_pool_ends_its_threads() -> None:
    pool = Pool(3, "dropped")
    pool.submit(int).result(PATIENCE_S)
    began = [thread for thread in threading.enumerate() if thread.name.startswith("dropped")]
    assert len(began) == 3
    del pool
    gc.collect()
    for thread in began:
        thread.join(PATIENCE_S)
    assert names("dropped") == set()
