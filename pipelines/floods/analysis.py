"""Expressions of a flood, judged by Spark: its analysis of names and types, and for CSV and JSON a sample of rows. Nothing is
written, and of other sources no row is read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.backfill import Backfill
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.measure import sample_file
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.spans import TimeSpan
from headgate.pipelines.listing import LISTING_OPTIONS
from headgate.pipelines.part import Part
from headgate.pipelines.session import activate, is_local
from headgate.pipelines.spark_errors import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE_ROWS = 200
"""Rows of CSV or JSON whose expressions are computed."""
_SAMPLED = ("csv", "json")


def analyse(spark: SparkSession, flood: Flood, span: TimeSpan) -> None:
    """Judge the expressions of a flood on the source of one partition. Raises InvalidError with the first mistake, in terms of the
    flood."""
    activate(spark)
    with _source(spark, flood, span) as (job, is_sample):
        try:
            _check_expressions(job, flood, spark)
        except InvalidError:
            if not is_sample:
                raise
            # Rows behind the sample, and other files, can bring columns and kinds that it lacks.
            _check_expressions(job_of(flood, span, cluster="", partitions=1), flood, spark)
            return
        if is_sample:
            _check_sample(replace(job, part=Part(conditions=job.part.conditions if job.part else ())), spark)


@contextmanager
def _source(spark: SparkSession, flood: Flood, span: TimeSpan) -> Iterator[tuple[Backfill, bool]]:
    """The partition as a backfill, and whether its source is a sample of lines: to know their columns, Spark would read whole
    files."""
    job = job_of(flood, span, cluster="", partitions=1)
    found = (
        sample_file(flood, span) if flood.source.format.lower() in _SAMPLED and is_local(spark.sparkContext.master or "") else None
    )
    if found is None:
        yield job, False
        return
    file, lines = found
    with tempfile.TemporaryDirectory(prefix="headgate-sample-") as directory:
        place = os.path.join(directory, *file.columns)
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, f"sample.{flood.source.format.lower()}"), "wb") as sample:
            sample.write(lines)
        options = {name: value for name, value in job.options.items() if name.lower() not in LISTING_OPTIONS}
        yield replace(job, source=directory, options=options), True


def _check_expressions(job: Backfill, flood: Flood, spark: SparkSession) -> None:
    job.rows(spark, now_ms=0)
    if flood.late is not None:
        _check_late(replace(job, part=Part(conditions=(flood.late,))), spark)


def _check_late(job: Backfill, spark: SparkSession) -> None:
    try:
        job.rows(spark, now_ms=0)
    except InvalidError as error:
        raise InvalidError(error.reason, f"late: {error.message}") from error


def _check_sample(job: Backfill, spark: SparkSession) -> None:
    with spark_errors("the expressions fail on the first rows of the source."):
        found = [row["timestamp"] for row in job.rows(spark, now_ms=0).frame.limit(SAMPLE_ROWS).collect()]
    if found and all(name is None for name in found):
        raise InvalidError(
            Reason.INVALID_RECORD,
            f"event time is null in all of the first rows: is the form of its text another one? event_time=`{job.event_time}` "
            f"rows=`{len(found)}`",
        )
