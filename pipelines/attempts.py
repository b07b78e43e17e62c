"""The number of a task's attempt, which the names of its files carry: retries and speculative copies never write the same file."""

from __future__ import annotations

import sys
from typing import Any

_own: list[int] = []
"""The number of the attempt that this process makes without Spark; empty in Spark's workers."""


def begin(number: int) -> None:
    """Begin an attempt in a process without Spark. `number`: unique within the flood's run."""
    _own[:] = [number]


def attempt_id() -> int:
    """The number of this attempt at a task, unique within the application."""
    if _own:
        return _own[0]
    spark: Any = sys.modules.get("pyspark")  # Spark's workers have imported it
    context = None if spark is None else spark.TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())
