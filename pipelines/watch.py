"""Watches the Spark job of a flood: how many rows its tasks have handled so far. Only a run needs this module; it imports Spark."""

from __future__ import annotations

import threading
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
    """

    def __init__(self, spark: SparkSession, group: str, rows_total: int, listener: Listener | None) -> None:
        self._spark = spark
        self._group = group
        self._rows_total = rows_total
        self._listener = listener
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-progress", daemon=True)

    def __enter__(self) -> Self:
        if self._listener is not None and getattr(self._spark, "_jsparkSession", None) is not None:
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
        shuffled = written = 0
        try:
            # Not `context.statusTracker()`: it takes `_jsc` from a context that may end meanwhile.
            tracker = StatusTracker(java.statusTracker())
            store = java.sc().statusStore()
            for job in tracker.getJobIdsForGroup(self._group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    if tracker.getStageInfo(stage) is None:
                        continue  # not begun
                    data = store.lastStageAttempt(stage)
                    shuffled += data.shuffleWriteRecords()
                    written += data.shuffleReadRecords()
        except (Py4JError, ConnectionError):
            # The job or Spark has ended; the caller that waits for it receives the error.
            return None
        if written:
            return Progress(phase=Phase.WRITING, rows_done=min(written, self._rows_total), rows_total=self._rows_total)
        return Progress(phase=Phase.SHUFFLING, rows_done=min(shuffled, self._rows_total), rows_total=self._rows_total)
