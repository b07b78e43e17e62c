"""The rows of a source, wherever it is: as Spark loads it, on S3 behind files that stand for objects, or in an Iceberg table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.stand_ins import stand_in
from headgate.pipelines.plan import ICEBERG, Rows, load, spark_errors
from headgate.pipelines.spark_paths import bucket_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
            return replace(made(load(spark, path, format, options)), bucket=bucket, by_spark=by_spark)
    except UnlikeError as error:
        return by_spark(str(error))
    except HeadgateError as error:
        if bucket is None:
            raise
        raise type(error)(error.reason, bucket.in_words(error.message)) from error
