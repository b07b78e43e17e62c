"""Floods of plain columns, which need no Spark: their source beside the one of Spark's analysis.

Compared, for a table of sources and definitions in one session: the query, the files with their row groups, spans and values, of
`plain_source` with those of `read_source`; and which ones are left to Spark. A mismatch means that a flood gives other records, or
other offsets, when it runs without Spark.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.pipelines.backfill import Backfill
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.job import read_source
from headgate.pipelines.columns.kinds import arrow_type, fields_of, kind_of, nested_kind
from headgate.pipelines.columns.plain import plain_source
from headgate.pipelines.columns.source import Source
from headgate.pipelines.columns.task_division import Limits
from headgate.pipelines.part import Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

arrow: Any = pa
UTC = datetime.UTC
AT = datetime.datetime(2026, 1, 1, 1, 2, 3, tzinfo=UTC)
SPAN = (datetime.datetime(2026, 1, 1, tzinfo=UTC), datetime.datetime(2026, 1, 2, tzinfo=UTC))
ROWS = 20


def table(rows: int = ROWS, first: int = 0) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "at": arrow.array([AT + datetime.timedelta(minutes=number) for number in numbers], pa.timestamp("us", "UTC")),
            "Id": arrow.array(numbers, pa.int64()),
            "small": arrow.array(numbers, pa.int32()),
            "tiny": arrow.array([number % 9 for number in numbers], pa.int8()),
            "name": [None if number % 7 == 3 else f"name {number}" for number in numbers],
            "raw": arrow.array([b"%d" % number for number in numbers], pa.binary()),
            "flag": [number % 2 == 0 for number in numbers],
            "price": arrow.array([Decimal(number) / 4 for number in numbers], pa.decimal128(12, 2)),
            "day": arrow.array([AT.date()] * rows, pa.date32()),
            "local": arrow.array([AT.replace(tzinfo=None)] * rows, pa.timestamp("ms")),
            "two words": [f"{number}" for number in numbers],
        }
    )


def plain(path: Path) -> None:
    pq.write_table(table(), path / "a.parquet", row_group_size=7)
    pq.write_table(table(5, 20), path / "b.parquet")
    (path / "_SUCCESS").touch()


def in_paths(names: str, *values: tuple[str, ...]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        for number, some in enumerate(values):
            place = path.joinpath(*(f"{name}={value}" for name, value in zip(names.split(), some, strict=True)))
            place.mkdir(parents=True)
            pq.write_table(table(4, 4 * number), place / "part.parquet")

    return write


def by_spark(path: Path) -> None:
    from headgate.pipelines.session import session

    frame = session().createDataFrame(table().to_pandas())
    frame.write.mode("overwrite").parquet(str(path))


def nested(**options: Any) -> Callable[[Path], None]:
    """Structs in lists, and lists in maps, by Arrow's own writer."""
    items = arrow.array([[{"a": 1, "b": [2]}]] * ROWS, pa.list_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int8()))])))
    counts = arrow.array([[("k", AT)]] * ROWS, pa.map_(pa.string(), pa.timestamp("us", "UTC")))
    more = table().append_column("items", items).append_column("counts", counts)
    return lambda path: pq.write_table(more, path / "a.parquet", **options)


def with_column(name: str, values: Any) -> Callable[[Path], None]:
    return lambda path: pq.write_table(table().append_column(name, values), path / "a.parquet")


def with_wide_times(version: bytes | None = None) -> Callable[[Path], None]:
    notes = None if version is None else {b"org.apache.spark.version": version}
    rows = table().replace_schema_metadata(notes)
    return lambda path: pq.write_table(rows, path / "a.parquet", use_deprecated_int96_timestamps=True)


FLOOD: dict[str, Any] = {"event_time": "at", "key": "name"}
PLAIN: list[tuple[str, Callable[[Path], None], dict[str, Any]]] = [
    ("a table", plain, {}),
    ("the row, written out", plain, {"value": "to_json(struct(*))"}),
    ("nested columns in the row", nested(), {}),
    ("nanoseconds", with_column("ns", arrow.array(range(ROWS), pa.timestamp("ns"))), {}),
    ("nanoseconds with a zone", with_column("ns", arrow.array(range(ROWS), pa.timestamp("ns", "UTC"))), {"key": "ns"}),
    ("no key", plain, {"key": None}),
    ("no time", plain, {"event_time": None}),
    ("no time, ordered", plain, {"event_time": None, "order_by": ("Id",)}),
    ("in another case", plain, {"key": "ID", "event_time": "AT"}),
    ("a short number", plain, {"key": "small"}),
    ("a byte", plain, {"key": "tiny", "value": "name"}),
    ("bytes", plain, {"key": "raw", "value": "raw"}),
    ("a truth", plain, {"key": "flag"}),
    ("a decimal", plain, {"key": "price"}),
    ("a date", plain, {"key": "day"}),
    ("by day", plain, {"event_time": "day"}),
    ("by a time without zone", plain, {"event_time": "local"}),
    ("two words", plain, {"key": "two words", "value": "two words"}),
    ("two words in backquotes", plain, {"key": "`two words`", "event_time": " `At` ", "order_by": ("`Id`",)}),
    ("ordered", plain, {"order_by": ("small", "name")}),
    ("a span", plain, {"part": Part(span=SPAN)}),
    ("a number is more", plain, {"where": "Id >= 5 and id < 15"}),
    ("a small number is", plain, {"where": "small = 5"}),
    ("a text is", plain, {"where": "name = 'name 4'"}),
    ("a name is there", plain, {"where": "name is not null"}),
    ("a name is missing", plain, {"where": "`two words` IS NULL"}),
    ("a day is", plain, {"where": "day >= '2026-01-01' and Id > 1", "part": Part(span=SPAN)}),
    ("times of 96 bits, as Spark writes them", by_spark, {}),
    ("times of 96 bits of another writer", with_wide_times(), {}),
    ("days in paths", in_paths("dt", ("2026-01-01",), ("2026-01-02",)), {}),
    ("a day of the path", in_paths("dt", ("2026-01-01",), ("2026-01-02",)), {"where": "dt = '2026-01-02'"}),
    ("hours in paths", in_paths("dt hour", ("2026-01-01", "1"), ("2026-01-01", "02")), {"key": "hour"}),
    ("words in paths", in_paths("land", ("de",), ("at",)), {"key": "land"}),
    ("a value is missing in paths", in_paths("land", ("de",), ("__HIVE_DEFAULT_PARTITION__",)), {"key": "land"}),
    ("large numbers in paths", in_paths("id2", ("1",), ("4000000000",)), {}),
]
LEFT: list[tuple[str, Callable[[Path], None], dict[str, Any]]] = [
    ("an expression", plain, {"key": "upper(name)"}),
    ("a time as key", plain, {"key": "at"}),
    ("an expression in the condition", plain, {"where": "Id % 2 = 0"}),
    ("or", plain, {"where": "Id = 1 or Id = 2"}),
    ("a constant of another type", plain, {"where": "Id = '5'"}),
    ("a byte is compared", plain, {"where": "tiny = 5"}),
    ("a span of days", plain, {"event_time": "day", "part": Part(span=SPAN)}),
    ("headers", plain, {"headers": "map('a', name)"}),
    ("an option", plain, {"options": {"mergeSchema": "true"}}),
    ("a column that is not there", plain, {"key": "nome"}),
    ("a function without brackets", plain, {"key": "current_user"}),
    ("nested columns in an old form", nested(use_compliant_nested_type=False), {}),
    ("times of 96 bits of an old Spark", with_wide_times(b"3.0.3"), {}),
    ("fractions in paths", in_paths("share", ("0.5",), ("1",)), {}),
    ("times in paths", in_paths("t", ("2026-01-01 01%3A00%3A00",)), {}),
    ("a column in files and paths", in_paths("name", ("a",)), {}),
    ("two columns of one name", with_column("ID", pa.array(range(ROWS))), {}),
    ("nanoseconds as event time", with_column("ns", arrow.array([0] * ROWS, pa.timestamp("ns"))), {"event_time": "ns"}),
    ("nothing there", lambda path: path.rmdir(), {}),
]


def flood_of(path: Path, changes: dict[str, Any]) -> Backfill:
    return Backfill(topic="t", source=str(path), **{**FLOOD, **changes})


def alike(source: Source, flood: Backfill) -> dict[str, Any]:
    """What decides the records and their order. The present time, of a flood without event time, is left out."""
    query = source.query
    outputs = dict(query.outputs)
    if flood.event_time is None:
        outputs["timestamp"] = replace(outputs["timestamp"], value=0)
    known = {*query.columns(*query.outputs)}
    return {
        "outputs": outputs,
        "filters": sorted({repr(one) for one in query.filters}),
        "kinds": {name: kind for name, kind in query.source.items() if name in known},
        "has_key": source.has_key,
        "ties": source.ties,
        "pieces": [replace(piece, file=replace(piece.file, values=tuple(sorted(piece.file.values)))) for piece in source.pieces],
        "lines": source.lines,
    }


@pytest.mark.parametrize(("what", "write", "changes"), PLAIN, ids=[one[0] for one in PLAIN])
def test_a_plain_source_is_the_one_that_spark_finds(
    spark: SparkSession, tmp_path: Path, what: str, write: Callable[[Path], None], changes: dict[str, Any]
) -> None:
    path = tmp_path / "source"
    path.mkdir()
    write(path)
    flood = flood_of(path, changes)
    found = plain_source(flood, Limits())
    assert found is not None
    assert alike(found, flood) == alike(read_source(flood.rows(spark, 0)), flood)


@pytest.mark.parametrize(("what", "write", "changes"), LEFT, ids=[one[0] for one in LEFT])
def test_what_is_not_certain_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, what: str, write: Callable[[Path], None], changes: dict[str, Any]
) -> None:
    path = tmp_path / "source"
    path.mkdir()
    write(path)
    with pytest.raises(UnlikeError):
        plain_source(flood_of(path, changes), Limits())


def test_a_source_without_rows_is_none(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    assert plain_source(flood_of(tmp_path, {}), Limits()) is None


def test_the_kind_of_a_deep_type_grows_with_its_levels() -> None:
    """Each level once doubled the escapes of those inside: a file with 30 levels took all memory."""
    kind: str = "long"
    for level in range(60):
        kind = nested_kind("array", [("element", kind)]) if level % 2 else nested_kind("struct", [('a"b', kind)])
    assert len(kind) < 60 * 40 and arrow_type(kind) is None
    inside: Any = kind_of({"type": "array", "elementType": {"type": "struct", "fields": [{"name": "a", "type": "long"}]}})
    assert fields_of(inside) == [("element", 'struct [["a", "long"]]')] and fields_of(fields_of(inside)[0][1]) == [("a", "long")]
