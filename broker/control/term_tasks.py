"""The tasks of one term of the leader. They end with the term."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from headgate.broker.runtime.errors import HeadgateError, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import known

logger = get_logger("leader")

PAUSE_S = 0.5
"""First pause before a task begins again, in seconds. It doubles with each failure."""
PAUSE_S_MAX = 30.0
"""Longest such pause. A task that ran for longer than this before it failed begins with the first pause again."""


class TermTasks:
    """The running tasks.

    Args:
        failed: called with the error of a task, unless the task may be repeated: a RetryError is only logged.
        now_s: the monotonic time in seconds.
        retries: counts the new beginnings of `keep`, by the task's name.
    """

    def __init__(
        self, failed: Callable[[HeadgateError], None], now_s: Callable[[], float], retries: Counter[str] | None = None
    ) -> None:
        self._failed = failed
        self._now_s = now_s
        self.retries: Counter[str] = Counter() if retries is None else retries
        self.running: set[asyncio.Task[None]] = set()
        """The tasks that have not ended. For reading."""
        self._is_over = False

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Run `work` until it returns or the term ends. It begins again after a RetryError, with a growing pause in between: the
        store may be gone for minutes, and no other code would begin the work again."""
        return self.spawn(self._keep(work, name), name)

    async def _keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        pause_s = PAUSE_S
        while True:
            began_s = self._now_s()
            try:
                return await work()
            except RetryError as error:
                if self._now_s() - began_s > PAUSE_S_MAX:
                    pause_s = PAUSE_S
                self.retries[name] += 1
                logger.warning("leader_task_waits", task=name, pause_s=pause_s, error=error.message)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` until it or the term ends. For work that repeats itself, or that other code begins again."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    def end(self) -> None:
        """Cancel all tasks. Their errors do not count any more."""
        self._is_over = True
        for task in self.running:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or self._is_over:
            return
        if isinstance(error, RetryError):
            logger.warning("leader_task_failed", task=task.get_name(), error=error.message)
        else:
            self._failed(known(error, "leader"))
