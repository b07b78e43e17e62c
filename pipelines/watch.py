"""Watches the Spark job of a flood: how many rows its tasks have handled so far. Only a run needs this module; it imports Spark."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StatusTracker

from headgate.pipelines.progress import Listener, Phase, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERVAL_S = 0.5


class Watch:
    """Watches a Spark job from a thread of its own while the caller waits for the job, and informs a listener.

    Args:
        group: the job group of the job.
        rows_total: rows that pass the job, once through its shuffle and once into files.
        by_tasks: tasks are counted instead of rows: Spark does not see the rows of tasks that work on columns.
    """

    def __init__(
        self, spark: SparkSession, group: str, rows_total: int, listener: Listener | None, *, by_tasks: bool = False
    ) -> None:
        self._spark = spark
        self._group = group
        self._rows_total = rows_total
        self._listener = listener
        self._by_tasks = by_tasks
        self._before: frozenset[int] | None = None
        """Jobs of the group that ended earlier, such as the count of the source; None until they are known."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-progress", daemon=True)

    def __enter__(self) -> Self:
        if self._listener is not None and getattr(self._spark, "_jsparkSession", None) is not None:
            with suppress(Py4JError, ConnectionError, AttributeError):
                # AttributeError: the session ends at this moment.
                tracker = StatusTracker(self._spark.sparkContext._jsc.statusTracker())
                self._before = frozenset(tracker.getJobIdsForGroup(self._group))
            self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        assert self._listener is not None
        last = None
        while not self._stop.wait(INTERVAL_S):
            seen = self._look()
            if seen is not None and seen != last:
                self._listener(seen)
                last = seen

    def _look(self) -> Progress | None:
        context: Any = self._spark.sparkContext
        java = context._jsc
        if java is None:
            return None  # the session ends at this moment
        try:
            # Not `context.statusTracker()`: it takes `_jsc` from a context that may end meanwhile.
            tracker = StatusTracker(java.statusTracker())
            store = java.sc().statusStore()
            jobs = sorted(set(tracker.getJobIdsForGroup(self._group)) - (self._before or frozenset()))
            if not jobs:
                return None
            if self._by_tasks:
                return self._seen_tasks(tracker, store, jobs[-1])
            stages = [store.lastStageAttempt(stage) for job in jobs for stage in _begun(tracker, job)]
            shuffled = sum(stage.shuffleWriteRecords() for stage in stages)
            return self._seen(shuffled, sum(stage.shuffleReadRecords() for stage in stages))
        except (Py4JError, ConnectionError):
            # The job or Spark has ended; the caller that waits for it receives the error.
            return None

    def _seen_tasks(self, tracker: StatusTracker, store: Any, job: int) -> Progress:
        """The progress of one job, as if each task had the same number of rows. Its last stage writes, the others exchange rows."""
        info = tracker.getJobInfo(job)
        last = max(info.stageIds, default=0) if info is not None else 0
        rows = {True: 0, False: 0}
        for number in _begun(tracker, job):
            stage = store.lastStageAttempt(number)
            rows[number == last] += self._rows_total * stage.numCompleteTasks() // max(stage.numTasks(), 1)
        return self._seen(rows[False], rows[True])

    def _seen(self, shuffled: int, written: int) -> Progress:
        phase, rows = (Phase.WRITING, written) if written else (Phase.SHUFFLING, shuffled)
        return Progress(phase=phase, rows_done=min(rows, self._rows_total), rows_total=self._rows_total)


def _begun(tracker: StatusTracker, job: int) -> list[int]:
    """The stages of a job that have begun."""
    info = tracker.getJobInfo(job)
    return [stage for stage in info.stageIds if tracker.getStageInfo(stage) is not None] if info is not None else []
