"""An answer that several callers share, and that is not made more often than it should be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks, looked_at

T = TypeVar("T")


class Shared(Generic[T]):
    """The result of `make`. Callers that come while it is being made wait for the same result, and a result is given to further
    callers until it is too old.

    Args:
        now: a monotonic clock, in seconds.
        pause_s: age in seconds at which a result is made again.
        pause_per_look: the same, as a multiple of the time that making it took: an answer that costs much is made seldom.
    """

    def __init__(
        self, make: Callable[[], Awaitable[T]], now: Callable[[], float], pause_s: float, pause_per_look: float = 0.0
    ) -> None:
        self._make = make
        self._now = now
        self._pause_s = pause_s
        self._pause_per_look = pause_per_look
        self._due_s = 0.0
        self._task: asyncio.Task[T] | None = None
        self._result: tuple[T] | None = None

    async def get(self) -> T:
        """The result. Raises the error of `make`; RetryError(CLOSED) after `close`."""
        if self._task is None:
            if self._result is not None and self._now() < self._due_s:
                return self._result[0]
            self._task = asyncio.create_task(self._run(), name="view")
            self._task.add_done_callback(looked_at)  # the callers may be gone
        task = self._task
        await asyncio.wait((task,))
        if task.cancelled():
            raise RetryError(Reason.CLOSED, "this broker ends")
        return task.result()

    async def close(self) -> None:
        """End the making."""
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> T:
        began_s = self._now()
        try:
            result = await self._make()
            self._result = (result,)
            return result
        finally:
            now_s = self._now()
            self._due_s = now_s + max(self._pause_s, self._pause_per_look * (now_s - began_s))
            self._task = None
