"""Work that outlasts its waiter, the end of tasks, with cancellations at every point, and the errors of a broker's parts."""

from __future__ import annotations

import asyncio
import errno
import gc
from typing import Any

import pytest

from headgate.broker.runtime.errors import Reason
from headgate.broker.runtime.tasks import end_tasks, known, outlast
from tests.support.waiting import begun, until_async


class Work:
    """A task that, once it is cancelled, waits for `may_end` and takes `turns` of the loop to end."""

    task: asyncio.Task[None]

    def __init__(self, turns: int = 0, error: Exception | None = None) -> None:
        self._turns, self._error = turns, error
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ended = False

    async def begin(self) -> Work:
        self.task = await begun(self._run())
        return self

    async def _run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
            for _ in range(self._turns):
                await asyncio.sleep(0)
            self.ended = True
            if self._error is not None:
                raise self._error


async def test_all_are_ended_and_what_they_raise_is_not_raised() -> None:
    some = [await work.begin() for work in (Work(), Work(3), Work(1, RuntimeError("on its way out")))]
    await end_tasks(one.task for one in some)
    assert [one.ended for one in some] == [True, True, True]
    await end_tasks(one.task for one in some)
    await end_tasks(())


@pytest.mark.parametrize("cancellations", [1, 2, 5])
async def test_a_cancellation_meanwhile_is_put_off(cancellations: int) -> None:
    work = await Work().begin()
    work.may_end.clear()
    done: list[str] = []

    async def caller() -> None:
        await end_tasks([work.task])
        done.append("given back")
        await asyncio.sleep(0)
        done.append("never reached")

    task = await begun(caller())
    for _ in range(cancellations):
        task.cancel()
        await until_async(lambda: not task.cancelling())
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended
    assert done == ["given back"]


async def test_a_deadline_meanwhile_is_a_deadline() -> None:
    loop = asyncio.get_running_loop()
    work = await Work(10).begin()
    given_back = False
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as deadline:
            loop.call_soon(deadline.reschedule, loop.time())
            try:
                await end_tasks([work.task])
                given_back = True
            finally:
                await asyncio.sleep(0)
    assert work.ended
    assert given_back
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_work_outlasts_its_waiter_and_its_error_is_nobodys_business_then(told: list[dict[str, Any]]) -> None:
    going_on = asyncio.Event()

    async def work() -> None:
        await going_on.wait()
        raise ValueError

    working = asyncio.create_task(work())
    waiting = await begun(outlast(working))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not working.done()
    going_on.set()
    await asyncio.wait((working,))
    del working
    await asyncio.sleep(0)
    gc.collect()
    assert told == []


async def test_who_waits_for_work_that_outlasts_it_gets_its_result_error_or_end() -> None:
    loop = asyncio.get_running_loop()
    done, failed, ended = loop.create_future(), loop.create_future(), loop.create_future()
    done.set_result(1)
    failed.set_exception(ValueError())
    ended.cancel()
    assert await outlast(done) == 1
    with pytest.raises(ValueError):
        await outlast(failed)
    with pytest.raises(asyncio.CancelledError):
        await outlast(ended)


@pytest.fixture
async def told() -> list[dict[str, Any]]:
    """The errors that the loop reports."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    return reports


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "no memory"), True),
        (ImportError("_random.so: failed to map segment from shared object"), True),
        (ImportError("x.so: cannot open shared object file: Cannot allocate memory"), True),
        (ImportError("No module named x"), False),
        (OSError(errno.EIO, "broken"), False),
    ],
)
def test_a_want_of_memory_is_called_so(error: Exception, is_memory: bool) -> None:
    assert (known(error, "start").reason is Reason.OUT_OF_MEMORY) is is_memory
