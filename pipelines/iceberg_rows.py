"""The rows of a snapshot of an Iceberg table, for columns and for Spark.

For columns, one relation of Spark's lists all files with the table's columns, and `Rows.readings` says how each file is read. For
Spark's rows, files that are read alike are read together, by the names that they have in the file, and then given the table's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.stand_ins import stand_in_files
from headgate.pipelines.iceberg_columns import as_text, has_time, has_uuid, id_of, is_uuid, parts_of
from headgate.pipelines.iceberg_table import Snapshot, TableFile, read_snapshot
from headgate.pipelines.names import quoted
from headgate.pipelines.spark_errors import spark_errors
from headgate.pipelines.spark_paths import bucket_of
from headgate.pipelines.spark_rows import Rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SHAPES_MAX = 200
"""Kinds of files that Spark's rows join: each is a scan of its own in Spark's plan, whose analysis grows with them."""
_S3 = re.compile("^s3[an]?:")


def rows_of_table(spark: SparkSession, source: str, options: Mapping[str, str], made: Callable[[DataFrame], Rows]) -> Rows:
    """The rows of a snapshot of an Iceberg table, from its files. Raises as `read_snapshot` and `made` do; InvalidError when Spark
    cannot read them."""
    snapshot = read_snapshot(source, options)

    def rows(frame: Callable[[], DataFrame]) -> Rows:
        with spark_errors(f"source cannot be read. source=`{snapshot.name}`"):
            return replace(made(frame()), snapshot=snapshot.name)

    if times := [field.name for field in snapshot.schema if has_time(field.type)]:
        raise InvalidError(
            Reason.UNSUPPORTED,
            "Spark reads no columns of times of day, and the flood needs Spark: key, value, time and condition must be other "
            f"columns, without expressions. columns=`{', '.join(times)}` source=`{snapshot.name}`",
        )

    def by_spark(why: str) -> Rows:
        if ids := [field.name for field in snapshot.schema if has_uuid(field.type)]:
            raise InvalidError(
                Reason.UNSUPPORTED,
                f"Spark reads no columns of UUIDs, and the flood cannot be done on columns: {why}. columns=`{', '.join(ids)}` "
                f"source=`{snapshot.name}`",
            )
        return rows(lambda: _frame(spark, snapshot))

    if not hasattr(spark, "_jsparkSession"):
        return by_spark("Spark Connect shows no plan")
    paths, bucket = [file.path for file in snapshot.files], None
    if paths and bucket_of(paths[0]):
        try:
            paths, bucket = stand_in_files(spark, paths)
        except UnlikeError as error:
            return by_spark(str(error))
    readings = {_S3.sub("s3:", file.path): file.reading for file in snapshot.files}
    listed = rows(lambda: _read(spark, snapshot.columns, paths))
    return replace(listed, bucket=bucket, by_spark=by_spark, readings=readings)


def _read(spark: SparkSession, schema: pa.Schema, paths: Iterable[str]) -> DataFrame:
    """Parquet files as they are named: characters of patterns are none, and directories are no columns."""
    kinds = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    found = [_S3.sub("s3a:", path) for path in paths]
    if not found:
        return spark.createDataFrame([], kinds)
    return spark.read.schema(kinds).options(recursiveFileLookup="true", __globPaths__="false").parquet(*found)


def _frame(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """The rows as Spark reads them."""
    shapes: dict[bytes, list[TableFile]] = {}
    for file in snapshot.files:
        shapes.setdefault(file.reading.shape, []).append(file)
    if not shapes:
        return _read(spark, snapshot.columns, ())
    if len(shapes) > SHAPES_MAX:
        raise InvalidError(
            Reason.UNSUPPORTED,
            "the table's files have columns of too many kinds for Spark: rewrite its data files (Spark: CALL "
            f"system.rewrite_data_files). kinds=`{len(shapes)}` max=`{SHAPES_MAX}` source=`{snapshot.name}`",
        )
    return reduce(lambda left, other: left.unionAll(other), (_of_shape(spark, snapshot, files) for files in shapes.values()))


def _of_shape(spark: SparkSession, snapshot: Snapshot, files: list[TableFile]) -> DataFrame:
    """The rows of files that are read alike."""
    arrow: Any = pa
    reading = files[0].reading
    schema = pa.schema([arrow.field(field.name, as_text(field.type)) for field in reading.fields.values()])
    frame = _read(spark, schema, [file.path for file in files])
    columns = []
    for want in snapshot.schema:
        have = reading.fields.get(want.name)
        column = _constant(reading.values[want.name], want) if have is None else _made(F.col(quoted(have.name)), have, want)
        columns.append(column.alias(want.name))
    return frame.select(*columns)


def _made(column: Column, have: Any, want: Any) -> Column:
    """A column of a file as the table has it: its parts by their ids."""
    if as_text(have.type) == as_text(want.type):
        same_ids = [id_of(part) for part in parts_of(have.type)] == [id_of(part) for part in parts_of(want.type)]
        if same_ids or not any(id_of(part) for part in parts_of(have.type)):
            return column
    if pa.types.is_struct(want.type):
        known = {id_of(field): field for field in have.type}
        parts = [
            (
                _made(column[part.name], part, field) if (part := known.get(id_of(field))) is not None else _constant(None, field)
            ).alias(field.name)
            for field in want.type
        ]
        return F.when(column.isNotNull(), F.struct(*parts))
    if pa.types.is_map(want.type):
        (have_key, have_item), (key, item) = parts_of(have.type), parts_of(want.type)
        pairs = F.transform(
            F.map_entries(column),
            lambda pair: F.struct(_made(pair["key"], have_key, key), _made(pair["value"], have_item, item)),
        )
        return F.map_from_entries(pairs)
    if parts_of(want.type):
        (have_member,), (member,) = parts_of(have.type), parts_of(want.type)
        return F.transform(column, lambda item: _made(item, have_member, member))
    return column.cast(_kind(want))


def _constant(value: Any, want: Any) -> Column:
    """A column of one value: an Arrow scalar, or None."""
    plain = None if value is None else value.as_py()
    if plain is not None and is_uuid(want.type):
        plain = str(plain)
    return F.lit(plain).cast(_kind(want))


def _kind(want: Any) -> Any:
    return from_arrow_type(as_text(want.type), prefer_timestamp_ntz=True)
