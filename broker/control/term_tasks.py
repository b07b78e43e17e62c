"""The tasks of one term of the leader. They end with the term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headgate.broker.runtime.errors import HeadgateError, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import known

logger = get_logger("leader")


class TermTasks:
    """The running tasks.

    Args:
        failed: called with the error of a task, unless the task may be repeated: a RetryError is only logged.
    """

    def __init__(self, failed: Callable[[HeadgateError], None]) -> None:
        self._failed = failed
        self.running: set[asyncio.Task[None]] = set()
        """The tasks that have not ended. For reading."""
        self._is_over = False

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run `work` until it or the term ends."""
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
