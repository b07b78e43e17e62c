"""The two ways to do a flood's work: Spark moves rows, or its tasks work on columns with Arrow. `counted` chooses."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from headgate.broker.client.gate_admin import Place
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.columns.engine import SparkEngine
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.framed import framed
from headgate.pipelines.columns.job import ColumnWork, read_source
from headgate.pipelines.columns.memory import MEMORY_SETTING, limits_of, slots_of
from headgate.pipelines.columns.plain import plain_source
from headgate.pipelines.columns.processes import Processes
from headgate.pipelines.columns.source import Source
from headgate.pipelines.definition import Backfill
from headgate.pipelines.extents import Written
from headgate.pipelines.session import LazySession, has_jvm
from headgate.pipelines.spark_errors import spark_errors
from headgate.pipelines.spark_rows import ARROW, SPARK, Counts, Job, Rows, count_rows, placed
from headgate.pipelines.ways import REWRITE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SMALL_BYTES = 32 << 20
"""Raw bytes of a source whose tasks the driver does itself: a process takes as long to start."""


class Work(Protocol):
    """The rows of one source, counted.

    `engine`: `ARROW` or `SPARK`. `why`: the reason for Spark's rows. `way`: what the tasks do.
    """

    @property
    def engine(self) -> str: ...

    @property
    def why(self) -> str: ...

    @property
    def way(self) -> str: ...

    def count(self) -> Counts:
        """The rows of each partition. Raises InvalidError, RetryError."""

    def write(self, job: Job) -> list[Written]:
        """Write the files. Returns the output by partition, in the order of offsets. Raises InvalidError, RetryError."""


class NoWork:
    """The work on a source without files."""

    engine = why = ""
    way = "the source is there, and has no file with rows"

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def count(self) -> Counts:
        """No rows."""
        return Counts((0,) * self._partitions, 0, None, None)

    def write(self, job: Job) -> list[Written]:
        """Nothing."""
        return []


class PlainWork:
    """Work on plain columns of this machine, without Spark. The caller closes `processes`.

    Args:
        session: is told why it is needed after all, if a task finds that.
    """

    engine = ARROW
    why = ""

    def __init__(self, session: LazySession, flood: Backfill, source: Source, partitions: int) -> None:
        slots, directory = slots_of(session.master, os.cpu_count() or 1), session.conf.get("spark.local.dir")
        self._session = session
        small = sum(piece.raw_bytes for piece in source.pieces) <= SMALL_BYTES
        self.processes = Processes(0 if small else slots, directory)
        # Only an open gate keeps files until the commit, and a gate at the end opens with it.
        self.snapshot = source.snapshot
        files = REWRITE if flood.place == Place.END else flood.files
        self._columns = ColumnWork(self.processes, source, partitions, files, flood.order, proves=flood.verify)

    @property
    def way(self) -> str:
        return f"{self._columns.way}, without Spark"

    def count(self) -> Counts:
        with _told(self._session):
            return self._columns.count()

    def write(self, job: Job) -> list[Written]:
        with _told(self._session):
            return self._columns.write(job)


@contextmanager
def _told(session: LazySession) -> Iterator[None]:
    """Tell the session why it is needed, if the work inside cannot do without it."""
    try:
        yield
    except UnlikeError as error:
        session.why = str(error)
        raise


def plain_work(session: LazySession, flood: Backfill, partitions: int) -> PlainWork | NoWork:
    """The work on a flood that needs no Spark. Raises UnlikeError with the reason when it needs it; FatalError, RetryError when S3
    does not give out the source; InvalidError for a setting that cannot be."""
    if not session.is_usual:
        raise UnlikeError("Spark has settings of its own, or executors elsewhere")
    with _told(session):
        source = plain_source(flood, limits_of(session.conf.get(MEMORY_SETTING)))
    if source is None:
        return NoWork(partitions)
    return PlainWork(session, flood, framed(source, key=flood.key_frame, value=flood.value_frame), partitions)


def only_columns(flood: Backfill | None, why: str) -> None:
    """Raise InvalidError if Spark's rows cannot do a flood's work. `why`: columns cannot."""
    if flood is not None and flood.is_framed:
        raise InvalidError(
            Reason.UNSUPPORTED,
            f"keys and values in a registry's frame are made on columns, and this flood needs Spark's rows: {why}",
        )


def work_and_counts(spark: SparkSession, rows: Rows | None, partitions: int, flood: Backfill | None = None) -> tuple[Work, Counts]:
    """Choose the way for these rows and count them.

    Args:
        rows: None: the source has none.
        flood: says how keys and values are framed, if they are.
    """
    if rows is None:
        return NoWork(partitions), NoWork(partitions).count()
    try:
        if not has_jvm(spark):
            raise UnlikeError("Spark Connect shows no plan")
        columns = _Columns(spark, rows, partitions, flood)
        return columns, columns.count()
    except UnlikeError as error:
        why = str(error)
    only_columns(flood, why)
    moved = RowWork(spark, rows.for_spark(why), partitions, why)
    try:
        return moved, moved.count()
    except HeadgateError as error:
        if "file=`" not in why:
            raise
        # Spark may read a file that is not like the others as nulls, and then not name it.
        raise type(error)(error.reason, f"{error.message} Found earlier: {why}") from error


class _Columns:
    """Work on columns, and on Spark's rows after all if a task meets a value that Arrow treats in another way."""

    def __init__(self, spark: SparkSession, rows: Rows, partitions: int, flood: Backfill | None) -> None:
        source = read_source(rows)
        if flood is not None:
            source = framed(source, key=flood.key_frame, value=flood.value_frame)
        self._columns = ColumnWork(SparkEngine(spark), source, partitions)
        self._flood = flood
        self._work: ColumnWork | RowWork = self._columns
        self._spark = spark
        self._rows = rows
        self._partitions = partitions
        self._keyless = False

    @property
    def engine(self) -> str:
        return self._work.engine

    @property
    def why(self) -> str:
        return self._work.why

    @property
    def way(self) -> str:
        return self._work.way

    def count(self) -> Counts:
        counts = self._columns.count()
        self._keyless = counts.keyless > 0
        return counts

    def write(self, job: Job) -> list[Written]:
        try:
            return self._work.write(job)
        except UnlikeError as error:
            only_columns(self._flood, str(error))
            rows = self._rows.for_spark(str(error))
            self._work = RowWork(self._spark, rows, self._partitions, str(error), keyless=self._keyless)
            return self._work.write(job)


class RowWork:
    """Spark reads, partitions and sorts the rows; its Python workers write them."""

    engine = SPARK

    def __init__(self, spark: SparkSession, rows: Rows, partitions: int, why: str, *, keyless: bool = False) -> None:
        """`keyless`: some rows are known to have no key. `count` finds that too."""
        self.why = why
        self.way = f"Spark moves the rows: {why}"
        self._spark = spark
        self._rows = rows
        self._partitions = partitions
        self._keyless = keyless

    def count(self) -> Counts:
        counts = count_rows(self._spark, self._rows, self._partitions)
        self._keyless = counts.keyless > 0
        return counts

    def write(self, job: Job) -> list[Written]:
        from headgate.pipelines.extent_sink import FORMAT, ExtentSink, SinkJob

        self._spark.dataSource.register(ExtentSink)
        with tempfile.TemporaryDirectory(prefix="headgate-flood-") as directory, spark_errors("the job failed."):
            path = os.path.join(directory, "written.json")
            frame = placed(self._spark, self._rows, self._partitions, self._keyless)
            frame.write.format(FORMAT).option("job", SinkJob(job, path).to_json()).mode("append").save()
            with open(path) as file:
                return sorted((Written.from_dict(row) for row in json.load(file)), key=lambda written: written.partition)
