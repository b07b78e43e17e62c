"""A flood's rows as a DataFrame, and their number for each partition. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.columns.expressions import ROW_OUTPUT
from headgate.pipelines.columns.stand_ins import Bucket
from headgate.pipelines.names import bare_function_mistake, quoted
from headgate.pipelines.part import Part
from headgate.pipelines.session import has_jvm
from headgate.pipelines.spark_errors import NO_FILES, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from headgate.pipelines.iceberg_columns import Reading

ARROW = "arrow"
SPARK = "spark"
"""The two ways to do a flood's work: tasks work on columns with Arrow, or Spark moves the rows."""
QUERY = "query"
"""The format of a source that is a SQL query."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of rows of each partition, by number, and their span of time (ms since 1970; None without rows).

    `keyless`: rows without a key, which are spread by their content.
    """

    rows: tuple[int, ...]
    keyless: int
    timestamp_min_ms: int | None
    timestamp_max_ms: int | None

    @property
    def total(self) -> int:
        return sum(self.rows)


@dataclass(frozen=True, slots=True)
class Rows:
    """A source's rows as records: `frame` has `timestamp`, `key`, `value`, perhaps `headers`, and columns that order ties."""

    frame: DataFrame
    has_key: bool
    has_headers: bool
    ties: tuple[str, ...] = field(default=())
    drops_malformed: bool = False
    """True when the source's reader drops rows that it cannot parse. It only notices errors in the columns that a query reads."""
    bucket: Bucket | None = None
    """The bucket for which the frame's files stand; Spark itself must not read these."""
    snapshot: str = ""
    """The snapshot of an Iceberg table that the rows are of."""
    by_spark: Callable[[str], Rows] | None = None
    """The same rows as Spark itself reads them, given the reason why columns cannot have them. Raises InvalidError."""
    readings: Mapping[str, Reading] = field(default_factory=dict)
    """How each file of an Iceberg table is read, by its path; by its URL with ``s3:`` on S3. Empty for other sources."""

    def for_spark(self, why: str) -> Rows:
        """The rows for Spark to read. `why`: the reason. Raises InvalidError when Spark lacks a package for their place."""
        return self if self.by_spark is None else self.by_spark(why)


@dataclass(frozen=True, slots=True)
class Job:
    """The settings that every task of a job needs. `bases`: the offset of each partition's first row; 0 for a missing partition."""

    store_url: str
    prefix: str
    name: str
    file_bytes: int
    bases: dict[int, int]


class EmptySourceError(InvalidError):
    """A source is there and has no files with content, such as a day without rows: a flood of it adds nothing."""


def _has_content(spark: SparkSession, source: str, options: Mapping[str, str]) -> bool:
    """True if files with content lie at a path or below it, in any format."""
    own = {name: value for name, value in options.items() if name.lower() == "pathglobfilter"}
    files = spark.read.format("binaryFile").options(**own).option("recursiveFileLookup", "true").load(source)
    return not files.where("length > 0").select("length").isEmpty()


def load(spark: SparkSession, source: str | DataFrame, format: str, options: Mapping[str, str]) -> DataFrame:
    """The source as a DataFrame. Raises InvalidError when the source does not exist or Spark cannot read it, EmptySourceError when
    it has no rows and no columns."""
    if not isinstance(source, str):
        return source
    with spark_errors(f"source cannot be read. source=`{source[:200]}` format=`{format}`"):
        if format == QUERY:
            frame = spark.sql(source)
            if not frame.columns:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"the source is a statement without rows: write a query, as `SELECT ...`. source=`{source[:200]}`",
                )
            return frame
        try:
            frame = spark.read.format(format).options(**dict(options)).load(source)
        except Exception as error:
            if NO_FILES in str(error) and not _has_content(spark, source, options):
                raise EmptySourceError(
                    Reason.NOT_FOUND, f"the source is there and has no files with content. source=`{source[:200]}`"
                ) from error
            raise
        if frame.columns == [spark.conf.get("spark.sql.columnNameOfCorruptRecord")]:
            way_out = "JSON whose rows, or lists of rows, go over several lines needs the option multiLine=true"
            raise InvalidError(
                Reason.INVALID_REQUEST, f"no row of the source can be parsed: {way_out}. source=`{source[:200]}` format=`{format}`"
            )
        return frame


def records(
    frame: DataFrame,
    *,
    key: str | None,
    value: str | None,
    event_time: str | None,
    headers: str | None,
    order_by: tuple[str, ...],
    where: str | None,
    now_ms: int,
    options: Mapping[str, str],
    part: Part | None = None,
) -> Rows:
    """The rows as records. Raises InvalidError: no such column, not an expression, a type that cannot be written.

    Args:
        key, value, event_time, headers: columns or SQL expressions. Without `key`: records without keys. Without `value`: the
            row as JSON. Without `event_time`: `now_ms`, and the order of the source.
        order_by: order of records with equal event times; their content decides last.
        options: the reader options of the source.
        where, part: the rows that become records.
    """
    from pyspark.sql import functions as F

    names = frame.columns
    given = {"event_time": event_time, "key": key, "value": value, "headers": headers}
    part = part or Part()
    conditions = [condition for condition in (where, *part.conditions) if condition is not None]
    _check_names(given, (*conditions, *order_by), names)
    columns = [_timestamp(frame, event_time, now_ms)]
    frame = _filtered(frame, conditions, part.bounds(), event_time)
    with spark_errors(f"key is no expression of this source. key=`{key}` columns=`{', '.join(names)}`"):
        columns.append((F.lit(None).cast("binary") if key is None else as_bytes(frame, key, "key")).alias("key"))
    with spark_errors(f"value is no expression of this source. value=`{value}` columns=`{', '.join(names)}`"):
        whole = F.to_json(F.struct(*[F.col(quoted(name)) for name in names])).cast("binary")
        columns.append((whole if value is None else as_bytes(frame, value, "value")).alias("value"))
    if headers is not None:
        with spark_errors(f"headers are no expression of this source. headers=`{headers}` columns=`{', '.join(names)}`"):
            columns.append(_headers(frame, headers).alias("headers"))
    ties: list[str] = []
    if event_time is None:
        # Without event times, the source's own order is the best available.
        columns.append(F.monotonically_increasing_id().alias(ROW_OUTPUT))
        ties.append(ROW_OUTPUT)
    for number, text in enumerate(order_by):
        with spark_errors(f"order is no expression of this source. order_by=`{text}` columns=`{', '.join(names)}`"):
            column_type(frame, text)  # Spark looks at an expression only when something is asked of it
            columns.append(expression(frame, text).alias(f"_tie_{number}"))
            ties.append(f"_tie_{number}")
    with spark_errors("rows cannot be made into records"):
        drops = any(name.lower() == "mode" and value.lower() == "dropmalformed" for name, value in options.items())
        return Rows(frame.select(*columns), key is not None, headers is not None, tuple(ties), drops)


def _check_names(given: Mapping[str, str | None], others: Sequence[str], names: list[str]) -> None:
    """Raise InvalidError for a name that Spark would take for a function."""
    for field_name, text in (*given.items(), *(("expression", other) for other in others)):
        if text is not None and (mistake := bare_function_mistake(field_name, text, names)) is not None:
            raise InvalidError(Reason.INVALID_REQUEST, f"{mistake} columns=`{', '.join(names)}`")


def _filtered(frame: DataFrame, conditions: Sequence[str], bounds: tuple[str, str] | None, event_time: str | None) -> DataFrame:
    """The rows that meet all conditions, and whose event time is in [start, end). Raises InvalidError."""
    for where in conditions:
        with spark_errors(f"where is not a condition on this source. where=`{where}`"):
            frame = frame.where(expression(frame, where))
    if bounds is None or event_time is None:
        return frame
    with spark_errors(f"event time cannot be compared with a time. event_time=`{event_time}`"):
        at = expression(frame, event_time)
        start, end = (expression(frame, bound) for bound in bounds)
        return frame.where((at >= start) & (at < end))


def _timestamp(frame: DataFrame, event_time: str | None, now_ms: int) -> Column:
    """The time of each record. Raises InvalidError."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if event_time is None:
        return (F.lit(now_ms) / 1000).cast(T.TimestampType()).alias("timestamp")
    names = ", ".join(frame.columns)
    with spark_errors(f"event time is no expression of this source. event_time=`{event_time}` columns=`{names}`"):
        found = column_type(frame, event_time)
        if not isinstance(found, T.TimestampType | T.TimestampNTZType | T.DateType):
            raise InvalidError(
                Reason.INVALID_REQUEST,
                "event time must be timestamp or date: to_timestamp(...) makes one of text, timestamp_millis(...) of numbers, "
                "timestamp_micros(... div 1000) of nanoseconds. "
                f"event_time=`{event_time}` type=`{found.simpleString()}`",
            )
        return expression(frame, event_time).cast(T.TimestampType()).alias("timestamp")


def count_rows(spark: SparkSession, rows: Rows, partitions: int) -> Counts:
    """The number of rows of each partition: one pass over the needed columns, and another one over the rows without a key.

    When the reader drops malformed rows, this pass reads all columns, as the write does, so that both passes drop the same rows.

    Raises InvalidError when an event time is null; RetryError with Spark's message when Spark cannot read the source.
    """
    from pyspark.sql import functions as F

    from headgate.pipelines.murmur2 import partition_column

    aggregates = _aggregates(F.unix_millis("timestamp"))
    if rows.drops_malformed:
        aggregates.append(F.bit_xor(F.xxhash64(*rows.frame.columns)).alias("all_columns"))
    known: Column = F.lit(None).cast("int")
    if rows.has_key:
        known = partition_column(spark, F.col("key"), partitions)
    totals = [0] * partitions
    spans: list[int] = []
    nulls = keyless = 0
    if rows.has_key:
        first = rows.frame.groupBy(known.alias("p"))
        for row in _collect(first.agg(*aggregates), "source cannot be counted"):
            if row["p"] is None:
                keyless = row["n"]
            else:
                totals[row["p"]] = row["n"]
            nulls += row["nulls"]
            spans.extend(at for at in (row["first"], row["last"]) if at is not None)
    if keyless or not rows.has_key:
        spread = F.pmod(F.xxhash64("timestamp", "value"), F.lit(partitions)).cast("int")
        second = rows.frame.where(F.col("key").isNull()).groupBy(spread.alias("p"))
        nulls_again = 0
        for row in _collect(second.agg(*aggregates), "source cannot be counted"):
            totals[row["p"]] += row["n"]
            nulls_again += row["nulls"]
            if not rows.has_key:
                keyless += row["n"]
                spans.extend(at for at in (row["first"], row["last"]) if at is not None)
        nulls = nulls if rows.has_key else nulls_again
    check_nulls(nulls, sum(totals))
    return Counts(tuple(totals), keyless, min(spans, default=None), max(spans, default=None))


def check_nulls(nulls: int, of: int) -> None:
    """Raise InvalidError when rows have no event time."""
    if nulls:
        raise InvalidError(
            Reason.INVALID_RECORD,
            "event time of some rows is null: leave them out with where, or give them a time with coalesce(column, ...). "
            f"rows=`{nulls}` of=`{of}`",
        )


def placed(spark: SparkSession, rows: Rows, partitions: int, keyless: bool) -> DataFrame:
    """The rows with their `partition`: task n holds partition n, sorted by event time.

    Ties follow `Rows.ties`, then the records' content: two runs give the same order.

    Args:
        keyless: True when some rows have no key.
    """
    from pyspark.sql import functions as F

    from headgate.pipelines.murmur2 import partition_column

    number: Column = F.pmod(F.xxhash64("timestamp", "value"), F.lit(partitions)).cast("int")
    if rows.has_key:
        known = partition_column(spark, F.col("key"), partitions)
        number = F.coalesce(known, number) if keyless else known
    fields = ["timestamp", "key", "value", *(["headers"] if rows.has_headers else [])]
    frame = rows.frame.withColumn("partition", number)
    ties = rows.ties
    if ROW_OUTPUT in ties and _is_one_relation(spark, frame):
        # Spark reads large files first. Their paths are an order that users know.
        frame, ties = frame.withColumn("_tie_file", F.input_file_name()), ("_tie_file", *ties)
    frame = frame.repartitionById(partitions, F.col("partition"))
    frame = frame.sortWithinPartitions("timestamp", *ties, *fields[1:])
    return frame.select("partition", *fields)


def _is_one_relation(spark: SparkSession, frame: Any) -> bool:
    """True if all rows come from one relation, as Spark requires of a plan that asks for the file of a row."""
    return has_jvm(spark) and frame._jdf.queryExecution().analyzed().collectLeaves().size() == 1


def expression(frame: DataFrame, text: str) -> Column:
    """A column by its name in any case, including names with special characters; otherwise a SQL expression."""
    from pyspark.sql import functions as F

    # Parentheses keep Spark from reading a second word as an alias: `seq desc` would be `seq` in ascending order.
    return F.col(quoted(text)) if text.lower() in map(str.lower, frame.columns) else F.expr(f"({text}\n)")


def column_type(frame: DataFrame, text: str) -> Any:
    """The type of a column or an expression."""
    return frame.select(expression(frame, text).alias("it")).schema[0].dataType


def as_bytes(frame: DataFrame, text: str, what: str) -> Column:
    """A column or expression as bytes: text in UTF-8, numbers and times as Spark prints them."""
    found = column_type(frame, text)
    column = expression(frame, text)
    if found.typeName() == "binary":
        return column
    if found.typeName() in ("struct", "array", "map", "variant"):
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"{what} must be bytes or text: write to_json(...). {what}=`{text}` type=`{found.simpleString()}`",
        )
    return column.cast("string").cast("binary")


def _headers(frame: DataFrame, text: str) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    found = column_type(frame, text)
    column = expression(frame, text)
    if isinstance(found, T.MapType):
        column = F.map_entries(column)
        found = T.ArrayType(T.StructType([T.StructField("key", found.keyType), T.StructField("value", found.valueType)]))
    shape = found.elementType if isinstance(found, T.ArrayType) else None
    if not isinstance(shape, T.StructType) or len(shape) != 2:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            f"headers must be a map, or an array of structs of a key and a value. headers=`{text}` type=`{found.simpleString()}`",
        )
    name, content = shape.names
    return F.transform(
        column,
        lambda header: (
            F.struct(header[name].cast("string").alias("key"), header[content].cast("string").cast("binary").alias("value"))
            if not isinstance(shape[content].dataType, T.BinaryType)
            else F.struct(header[name].cast("string").alias("key"), header[content].alias("value"))
        ),
    )


def _aggregates(milliseconds: Column) -> list[Column]:
    from pyspark.sql import functions as F

    return [
        F.count(F.lit(1)).alias("n"),
        F.count_if(F.col("timestamp").isNull()).alias("nulls"),
        F.min(milliseconds).alias("first"),
        F.max(milliseconds).alias("last"),
    ]


def _collect(frame: DataFrame, what: str) -> list[Any]:
    with spark_errors(what):
        return frame.collect()
