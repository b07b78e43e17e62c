"""Floods on columns whose tasks run one after the other in the test's process, against one query of Spark's for many floods.

A flood on columns in Spark's workers is two jobs, and one by rows is two or three more: seconds each, whatever the source. What
the rows become does not depend on the process that runs the tasks. `test_columns.py` and `test_columns_kills.py` keep whole floods,
which show that the tasks also work in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.pipelines.columns.job import ColumnWork, read_source
from headgate.pipelines.columns.processes import Processes
from headgate.pipelines.extents import Written
from headgate.pipelines.spark_rows import Counts, Job, Rows, placed
from headgate.pipelines.work import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 5
FLOOD = "flood"
"""The column of Spark's query that tells the floods apart."""
HEADERS = "array<struct<key: string, value: binary>>"

Record: TypeAlias = tuple[Any, ...]
"""(time in microseconds, key, value), and the headers of a flood that has them."""
Found: TypeAlias = dict[int, list[Record]]
"""The records of each partition that has some, in the order of their offsets."""


def on_columns(rows: Rows) -> ColumnWork:
    """The flood of these rows on columns, in this process. Raises UnlikeError when columns cannot read them."""
    return ColumnWork(Processes(0), read_source(rows), PARTITIONS)


def of_spark(floods: Mapping[str, Rows]) -> dict[str, Found]:
    """The records that Spark's rows give for each flood, by one query over all of them: one sort, one hash of keys. Floods with an
    order of their own need a query of their own, so they are not for this."""
    from pyspark.sql import functions as F

    from headgate.pipelines.murmur2 import partition_column

    frames: list[Any] = []
    for name, rows in floods.items():
        assert not rows.ties, f"the flood has an order of its own. flood=`{name}`"
        headers: Any = F.col("headers") if rows.has_headers else F.lit(None)
        frames.append(
            rows.frame.select(F.lit(name).alias(FLOOD), "timestamp", "key", "value", headers.cast(HEADERS).alias("headers"))
        )
    while len(frames) > 1:  # in pairs: Spark analyses each union with all that is below it
        frames = [
            one.unionAll(other[0]) if (other := frames[at + 1 : at + 2]) else one for at, one in enumerate(frames) if at % 2 == 0
        ]
    spread = F.pmod(F.xxhash64("timestamp", "value"), F.lit(PARTITIONS)).cast("int")
    number = F.coalesce(partition_column(frames[0].sparkSession, F.col("key"), PARTITIONS), spread)
    rows = frames[0].coalesce(1).withColumn("partition", number).withColumn("at", F.unix_micros("timestamp"))
    found: dict[str, Found] = {name: {} for name in floods}
    for row in rows.sortWithinPartitions(FLOOD, "partition", "timestamp", "key", "value", "headers").toArrow().to_pylist():
        record = (row["at"], row["key"], row["value"], row["headers"] or [])
        some = found[row[FLOOD]].setdefault(row["partition"], [])
        some.append(record if floods[row[FLOOD]].has_headers else record[:3])
    return found


def of_rows(spark: SparkSession, rows: Rows) -> Found:
    """The records of a flood as Spark's rows, placed and sorted by the code that also writes them. For floods with an order of
    their own; `of_spark` takes many others in one query."""
    fields = ["at", "key", "value", *(["headers"] if rows.has_headers else [])]
    frame = placed(spark, rows, PARTITIONS, True).selectExpr("*", "unix_micros(timestamp) AS at").select("partition", *fields)
    found: Found = {}
    for row in frame.toArrow().to_pylist():
        found.setdefault(row["partition"], []).append(tuple(row[name] or [] if name == "headers" else row[name] for name in fields))
    return found


def assert_as_rows(spark: SparkSession, rows: Rows, place: Path) -> Counts:
    """`assert_alike` for one flood, which may have an order of its own."""
    return assert_found({"": rows}, {"": of_rows(spark, rows)}, place)[""]


def assert_alike(floods: Mapping[str, Rows], place: Path) -> dict[str, Counts]:
    """Make the records of each flood on columns and by Spark's rows and compare them, with their order and their counts. Returns
    the counts. `floods`: by a name that a failure shows. `place`: an empty directory."""
    return assert_found(floods, of_spark(floods), place)


def assert_found(floods: Mapping[str, Rows], expected: Mapping[str, Found], place: Path) -> dict[str, Counts]:
    """`assert_alike` with what `of_spark` gave, for floods that columns make in several ways."""
    counted = {}
    for number, (name, rows) in enumerate(floods.items()):
        work = on_columns(rows)
        counts = counted[name] = work.count()
        found = {
            partition: [tuple(field or [] if at == 3 else field for at, field in enumerate(record)) for record in some]
            for partition, some in written(work, place / str(number))[1].items()
        }
        assert found == expected[name], f"another record or order on columns than by Spark. flood=`{name}`"
        times = [record[0] // 1000 for some in expected[name].values() for record in some]
        keyless = sum(record[1] is None for some in expected[name].values() for record in some)
        rows_of = tuple(len(expected[name].get(partition, ())) for partition in range(PARTITIONS))
        assert counts == Counts(rows_of, keyless, min(times, default=None), max(times, default=None)), name
    return counted


def written(work: Work, store: Path) -> tuple[list[Written], Found]:
    """Write the files of a flood. Returns what the work says of them, and the records in them."""
    bases = {number: 1000 * number for number in range(PARTITIONS)}
    output = work.write(Job(str(store), "topics/t/data/", "job", 64 << 10, bases))
    found: Found = {}
    for one in output:
        offset = bases[one.partition]
        for file in one.files:
            assert (file.partition, file.base_offset) == (one.partition, offset)
            table = pq.read_table(store / file.path, partitioning=None)
            assert table.num_rows == file.rows
            offset += file.rows
            times = table.column("timestamp").cast(pa.int64()).to_pylist()
            fields = [table.column(name).to_pylist() for name in table.schema.names if name not in ("offset", "timestamp")]
            found.setdefault(one.partition, []).extend(zip(times, *fields, strict=True))
    return output, found
