"""The source of one run of a flood, counted and written by the way that it needs: plain columns without Spark."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.jobs import Jobs
from headgate.pipelines.late import missing
from headgate.pipelines.progress import Listener, Phase, Progress
from headgate.pipelines.session import LazySession
from headgate.pipelines.spark_rows import ARROW, Counts, Job
from headgate.pipelines.ways import must_adopt
from headgate.pipelines.work import PlainWork, RowWork, Work, only_columns, plain_work, work_and_counts

if TYPE_CHECKING:
    from headgate.pipelines.definition import Backfill


class FloodSource:
    """The work on the source of a run.

    Args:
        session: starts when the source needs Spark. None: the rows are not asked for.
        tell: receives the progress of tasks, also from other threads.
    """

    def __init__(self, backfill: Backfill, session: LazySession | None, jobs: Jobs, tell: Listener) -> None:
        self._backfill = backfill
        self._session = session
        self._jobs = jobs
        self._tell = tell
        self._work: Work | None = None
        self.snapshot = ""
        """The snapshot of an Iceberg table that the source is."""

    @property
    def work(self) -> Work:
        """What counted the rows."""
        assert self._work is not None, "the rows are counted first"
        return self._work

    def count(self, partitions: int, flood_id: str) -> Counts:
        """The rows of each partition. Raises InvalidError, RetryError; FatalError when Spark does not start."""
        assert self._session is not None, "a run that only asks counts nothing"
        try:
            plain = plain_work(self._session, self._backfill, partitions)
            self._jobs.processes = plain.processes if isinstance(plain, PlainWork) else None
            counts, self._work = plain.count(), plain
            self.snapshot = plain.snapshot if isinstance(plain, PlainWork) else ""
            return counts
        except UnlikeError as error:
            must_adopt(self._backfill.files, self._backfill.order, str(error))
            self.close()
        spark = self._jobs.spark()
        with self._jobs.group():  # Spark reads whole files of JSON to know their columns
            rows = self._backfill.rows_if_any(spark)
            self.snapshot = "" if rows is None else rows.snapshot
            self._work, counts = work_and_counts(spark, rows, partitions, self._backfill)
            if (behind := self._backfill.late_behind) is not None:
                whole = replace(self._backfill, part=behind.part).rows_if_any(spark)
                counts = missing(behind, 0 if whole is None else whole.frame.count(), counts, flood_id)
        return counts

    def write(self, job: Job, counts: Counts) -> list[Any]:
        """Write the files. Returns the output of each partition. Raises as `count`."""
        if isinstance(self.work, PlainWork):
            try:
                self.work.processes.done = partial(self._tell_tasks, counts.total)
                return self.work.write(job)
            except UnlikeError as error:
                self._work = self._moved(str(error), counts)
            finally:
                self.close()
        from headgate.pipelines.watch import Watch

        watch = Watch(self._jobs.spark(), self._jobs.name, counts.total, self._tell, by_tasks=self.work.engine == ARROW)
        with self._jobs.group(), watch:
            return self.work.write(job)

    def close(self) -> None:
        """End what does tasks without Spark. Later tasks start it again."""
        if self._jobs.processes is not None:
            self._jobs.processes.close()

    def _moved(self, why: str, counts: Counts) -> Work:
        """Spark's rows instead of plain columns, of which a task has found that they are not for columns."""
        only_columns(self._backfill, why)
        spark = self._jobs.spark()
        rows = self._backfill.rows(spark, time.time_ns() // 1_000_000).for_spark(why)
        return RowWork(spark, rows, len(counts.rows), why, keyless=counts.keyless > 0)

    def _tell_tasks(self, rows: int, read: int, reading: int, written: int, writing: int) -> None:
        """Tell the progress of tasks, as if each had the same number of rows."""
        phase, done, of = (Phase.WRITING, written, writing) if written else (Phase.SHUFFLING, read, reading)
        self._tell(Progress(phase=phase, rows_done=rows * done // max(of, 1), rows_total=rows))
