"""The end of tasks, with cancellations from all sides."""

from __future__ import annotations

import asyncio

import pytest

from broker.runtime.tasks import end_tasks


class Work:
    """A task that takes `turns` of the loop to end once it is cancelled."""

    def __init__(self, turns: int = 0, error: Exception | None = None) -> None:
        self._turns, self._error = turns, error
        self.ended = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(self._turns):
                await asyncio.sleep(0)
            self.ended = True
            if self._error is not None:
                raise self._error


async def test_all_are_ended_and_what_they_raise_is_not_raised() -> None:
    some = [Work(), Work(3), Work(1, RuntimeError("on its way out"))]
    await asyncio.sleep(0)
    await end_tasks(one.task for one in some)
    assert [one.ended for one in some] == [True, True, True]
    await end_tasks(one.task for one in some)
    await end_tasks(())


@pytest.mark.parametrize("cancellations", [1, 2, 5])
async def test_a_cancellation_meanwhile_is_put_off(cancellations: int) -> None:
    work = Work(10)
    done: list[str] = []

    async def caller() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            await end_tasks([work.task])
            done.append("given back")
            await asyncio.sleep(0)
            done.append("never reached")

    task = asyncio.create_task(caller())
    for _ in range(3):
        await asyncio.sleep(0)
    for _ in range(cancellations):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended
    assert done == ["given back"]


async def test_a_deadline_meanwhile_is_a_deadline() -> None:
    loop = asyncio.get_running_loop()
    work = Work(10)
    await asyncio.sleep(0)
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
