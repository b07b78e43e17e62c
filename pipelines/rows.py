"""The rows of a source, wherever it is: as Spark loads it, on S3 behind files that stand for objects, or in an Iceberg table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.stand_ins import hadoop_settings, stand_in
from headgate.pipelines.iceberg import ICEBERG
from headgate.pipelines.spark_errors import spark_errors
from headgate.pipelines.spark_paths import bucket_of
from headgate.pipelines.spark_rows import Rows, load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WITHOUT_CHECKSUMS = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
"""Settings with which Spark opens a local file as S3A opens an object, whatever its name is. Otherwise it looks for a checksum
beside it, and there is none for a name with a colon."""
_loading = threading.Lock()
"""Held while a session has these settings."""


def rows_of(
    spark: SparkSession, source: str | DataFrame, format: str, options: Mapping[str, str], made: Callable[[DataFrame], Rows]
) -> Rows:
    """The rows of a source. Those of a source on S3 show Spark files that stand for its objects, as far as columns can read it: so
    Spark needs no package.

    Args:
        made: makes the rows of a frame.

    Raises as `load` and `made` do.
    """
    if isinstance(source, str) and format.lower() == ICEBERG:
        from headgate.pipelines.iceberg_rows import rows_of_table

        return rows_of_table(spark, source, options, made)
    if not isinstance(source, str) or not bucket_of(source) or not hasattr(spark, "_jsparkSession"):
        return made(load(spark, source, format, options))

    def by_spark(why: str) -> Rows:
        try:
            return made(load(spark, source, format, options))
        except InvalidError as error:
            if error.reason is not Reason.UNSUPPORTED:
                raise
            raise InvalidError(error.reason, f"{error.message} why=`not on columns: {why}`") from error

    bucket = None
    try:
        with spark_errors(f"source cannot be read. source=`{source[:200]}` format=`{format}`"):
            path, bucket = stand_in(spark, source, format, options)
            with _without_checksums(spark):
                frame = load(spark, path, format, options)
            return replace(made(frame), bucket=bucket, by_spark=by_spark)
    except UnlikeError as error:
        return by_spark(str(error))
    except HeadgateError as error:
        if bucket is None:
            raise
        raise type(error)(error.reason, bucket.in_words(error.message)) from error


@contextmanager
def _without_checksums(spark: SparkSession) -> Iterator[None]:
    """Let Spark open stand-ins to learn their columns."""
    settings = hadoop_settings(spark)
    with _loading:
        before = {name: settings.get(name) for name in WITHOUT_CHECKSUMS}
        try:
            for name, value in WITHOUT_CHECKSUMS.items():
                settings.set(name, value)
            yield
        finally:
            for name, value in before.items():
                settings.unset(name) if value is None else settings.set(name, value)
