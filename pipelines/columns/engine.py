"""What runs the tasks of a flood on columns: Spark, or processes of this machine. The functions and their work are pickled.

`SparkEngine` needs a session; `Processes` (processes.py) need none.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.writing import Blob, Part
from headgate.pipelines.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNLIKE = re.compile(rf"{re.escape(UnlikeError.__module__)}\.{UnlikeError.__name__}: (.*)")
_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Direct:
    """Tasks that write what they read."""

    write: Callable[[Any], Iterable[Part]]
    work: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Tasks that read some rows and divide them into buckets, and tasks that write some buckets each.

    Args:
        read: (bucket, its rows) of each member of `work`.
        writers: the writing task of each bucket.
        write: called with the number of a writing task, and with its buckets' rows in any order.
    """

    read: Callable[[Any], Iterable[tuple[int, Blob]]]
    work: Sequence[Any]
    writers: Sequence[int]
    write: Callable[[int, Iterable[tuple[int, Blob]]], Iterable[Part]]


Writing: TypeAlias = Direct | Exchanged


class Engine(Protocol):
    """Runs tasks.

    `slots`: tasks at a time. `master`: Spark's word for the place of the tasks.
    """

    @property
    def slots(self) -> int: ...

    @property
    def master(self) -> str: ...

    def each(self, task: Callable[[_Work], Iterable[_Result]], work: Sequence[_Work], *, small: bool = False) -> list[_Result]:
        """The results of a task for each member of `work`, in that order. `small`: a process would take longer to start.

        Raises UnlikeError when a task finds that its rows are not for columns; InvalidError, RetryError.
        """

    def write(self, jobs: Sequence[Writing]) -> list[Part]:
        """The parts that these tasks write, all jobs at once. Raises as `each` does."""

    def spill(self) -> AbstractContextManager[str | None]:
        """A directory for rows on their way between tasks, if all tasks run on this machine."""


class SparkEngine:
    """Spark's tasks, in Python workers."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext

    @property
    def slots(self) -> int:
        return int(self._context.defaultParallelism)

    @property
    def master(self) -> str:
        return str(self._context.master)

    def each(self, task: Callable[[_Work], Iterable[_Result]], work: Sequence[_Work], *, small: bool = False) -> list[_Result]:
        return _collected(self._tasks(work).flatMap(task))

    def write(self, jobs: Sequence[Writing]) -> list[Part]:
        if not jobs:
            return []
        found: list[Part] = _collected(self._context.union([self._written(job) for job in jobs]))
        return found

    def _written(self, job: Writing) -> Any:
        if isinstance(job, Direct):
            return self._tasks(job.work).flatMap(job.write)
        writers = job.writers
        moved = self._tasks(job.work).flatMap(job.read).partitionBy(writers[-1] + 1, lambda bucket: writers[bucket])
        return moved.mapPartitionsWithIndex(job.write)

    def _tasks(self, work: Sequence[Any]) -> Any:
        """One task for each member of `work`."""
        return self._context.parallelize(work, max(len(work), 1))

    @contextmanager
    def spill(self) -> Iterator[str | None]:
        if not is_local(self.master):
            yield None
            return
        # Spark removes its own directory even if this process is killed. A task that was cancelled may still write.
        place = self._context._temp_dir
        with tempfile.TemporaryDirectory(prefix="headgate-rows-", dir=place, ignore_cleanup_errors=True) as directory:
            yield directory


def _collected(rows: Any) -> list[Any]:
    try:
        found: list[Any] = rows.collect()
    except Exception as error:  # of several classes; only the message has the task's own
        unlike = _UNLIKE.search(str(error))
        if unlike is None:
            raise
        raise UnlikeError(unlike.group(1)) from error
    return found
