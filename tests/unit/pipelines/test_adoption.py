"""The plan of an adopted flood: which sources can be, which row groups are decoded together, and how large they are.

Runs: the pure parts of a plan, and the count of real files in one process. Compared: units with the order of event time and the
limits of a broker; bounds of decoded bytes with what decoding gives. A mismatch means that a flood commits what no broker can read,
or in another order.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.log.adopted import described, encode_unit
from headgate.broker.log.adopted_columns import part_of_row
from headgate.broker.log.crc import crc32c
from headgate.broker.log.json_rows import json_bytes_max
from headgate.broker.log.parquet import footer_size, name_of
from headgate.broker.log.recipe import (
    UNIT_BYTES_MAX,
    UNIT_FILES_MAX,
    UNIT_JSON_BYTES_MAX,
    VERSION_OF_CONDITIONS,
    Condition,
    Shape,
    Wanted,
    decode_recipe,
)
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.columns import adoption, decoded
from headgate.pipelines.columns.adoption import NotAdoptedError, PlannedUnit, shape_of, units_of
from headgate.pipelines.columns.decoded import decoded_bytes, formed_column, given_of, json_bytes
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import ROW_OUTPUT, Node, Query, row_as_json
from headgate.pipelines.columns.files import state_of
from headgate.pipelines.columns.job import ColumnWork
from headgate.pipelines.columns.layout import Listed, Piece, SourceFile, read_layout
from headgate.pipelines.columns.processes import Processes
from headgate.pipelines.columns.source import Source
from headgate.pipelines.columns.task_division import Limits
from headgate.pipelines.columns.tasks import Counted
from headgate.pipelines.spark_rows import Job

MIB = 1 << 20
arrow: Any = pa


def column(name: str, kind: str) -> Node:
    return Node("column", kind, name=name)


def cast(node: Node, kind: str) -> Node:
    return Node("cast", kind, (node,))


PLAIN = {"timestamp": column("at", "timestamp"), "key": column("user", "string"), "value": column("payload", "binary")}


def query(**outputs: Node) -> Query:
    return Query({**PLAIN, **outputs}, (), {"at": "timestamp", "user": "string", "payload": "binary"})


# -- columns


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"key": cast(column("user", "string"), "binary"), "value": column("payload", "string")},
        {"timestamp": cast(column("at", "timestamp_ntz"), "timestamp")},
    ],
)
def test_plain_columns_are_adopted(outputs: dict[str, Node]) -> None:
    assert shape_of(query(**outputs), has_key=True) == Shape("at", "user", "payload", [], False)


def test_the_row_as_json_and_whole_numbers_as_keys_are_adopted() -> None:
    names = ("at", "offset", "payload")
    json = Node("json", "string", tuple(column(name, "string") for name in names), value=names)
    some = query(key=cast(cast(column("id", "long"), "string"), "binary"), value=cast(json, "binary"))
    assert shape_of(some, has_key=True) == Shape("at", "id", "", list(names), False)


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ({"timestamp": cast(column("at", "string"), "timestamp")}, "event time is more than a column of time"),
        ({"timestamp": cast(column("day", "date"), "timestamp")}, "event time is more than a column of time"),
        ({"key": cast(column("at", "timestamp"), "string")}, "key is more than a column of bytes, text or whole numbers"),
        ({"key": cast(cast(column("id", "double"), "string"), "binary")}, "key is more than a column"),
        ({"value": Node("json", "string", (column("payload", "string"),), value=("p",))}, "have other names than the columns"),
        ({"value": cast(column("id", "long"), "string")}, "value is more than a column of bytes or text"),
        ({"value": Node("constant", "string", value="x")}, "value is more than a column"),
        ({"value": column("user", "string")}, "a column is used twice"),
        ({"value": column("headers", "string")}, "a column has a name that history uses. column=`headers`"),
        ({"key": column("offset", "string")}, "a column has a name that history uses. column=`offset`"),
        ({"_tie_0": column("id", "long")}, "orders rows of the same time"),
        ({ROW_OUTPUT: column("row", "long")}, "no event time"),
        ({"headers": column("h", "map")}, "headers"),
    ],
)
def test_records_that_are_more_than_columns_have_their_reason(outputs: dict[str, Node], why: str) -> None:
    with pytest.raises(NotAdoptedError, match=why):
        shape_of(query(**outputs), has_key=True)
    with pytest.raises(NotAdoptedError, match="without a key"):
        shape_of(query(), has_key=False)


# -- units


def piece(path: str, group: int, low: int, high: int, size: int = MIB, rows: int = 10) -> tuple[Piece, Counted]:
    file = SourceFile(path, state_of("/", None), 0)
    counted = Counted(0, [rows, 0], low_us=low, high_us=high, spans={0: (low // 1000, high // 1000)}, decoded_bytes=size)
    return Piece(file, group, rows, size, False, low, high), counted


def units(*some: tuple[Piece, Counted]) -> list[list[tuple[str, int]]]:
    found = units_of([one for one, _ in some], [one for _, one in some])
    return [[(one.file.path, one.group) for one in unit.pieces] for unit in found]


LARGE = adoption.UNIT_BYTES


def test_row_groups_that_follow_each_other_are_joined_up_to_a_unit() -> None:
    some = [piece("a", number, 10 * number, 10 * number + 9, LARGE // 2) for number in range(5)]
    assert units(*reversed(some)) == [[("a", 0), ("a", 1)], [("a", 2), ("a", 3)], [("a", 4)]]


def test_neighbours_may_share_a_time() -> None:
    some = [piece("b", 0, 0, 10, LARGE), piece("a", 0, 10, 20, LARGE), piece("a", 1, 20, 20, LARGE), piece("c", 0, 20, 30, LARGE)]
    assert units(*some) == [[("b", 0)], [("a", 0)], [("a", 1)], [("c", 0)]]


def test_overlaps_are_decoded_together() -> None:
    some = [piece("a", 0, 0, 10, LARGE), piece("b", 0, 9, 30, LARGE), piece("c", 0, 20, 25, LARGE), piece("d", 0, 30, 40, LARGE)]
    assert units(*some) == [[("a", 0), ("b", 0), ("c", 0)], [("d", 0)]]


def test_row_groups_without_rows_have_no_place() -> None:
    empty = piece("a", 1, 0, 0)[0], Counted(0, [0, 0])
    assert units(piece("a", 0, 0, 5), empty) == [[("a", 0)]]


def test_too_much_overlap_has_its_reason() -> None:
    fits = [piece(f"{number}", 0, number, 100, UNIT_BYTES_MAX // 4) for number in range(4)]
    assert len(units(*fits)) == 1
    with pytest.raises(NotAdoptedError, match="overlap in time have 320 MiB, more than 256: sort the files by time"):
        units(*fits, piece("4", 0, 50, 60, UNIT_BYTES_MAX // 4))
    many = [piece(f"{number}", 0, number, 100, 1) for number in range(UNIT_FILES_MAX + 1)]
    assert len(units(*many[1:])) == 1
    with pytest.raises(NotAdoptedError, match="17 files overlap in time, more than 16"):
        units(*many)


def test_in_the_order_of_the_source_overlaps_are_no_matter() -> None:
    some = [piece(path, group, 0, 100, LARGE // 2) for path in "ba" for group in range(3)]
    found = units_of([one for one, _ in some], [one for _, one in some], by_source=True)
    ours = [[(one.file.path, one.group) for one in unit.pieces] for unit in found]
    assert ours == [[("a", 0), ("a", 1)], [("a", 2), ("b", 0)], [("b", 1), ("b", 2)]]
    with pytest.raises(NotAdoptedError, match="a row group has 257 MiB"):
        one, counted = piece("a", 0, 0, 10, UNIT_BYTES_MAX + MIB)
        units_of([one], [counted], by_source=True)


def test_one_row_group_that_no_broker_can_hold_has_its_reason() -> None:
    with pytest.raises(NotAdoptedError, match="MiB"):
        units(piece("a", 0, 0, 10, UNIT_BYTES_MAX + MIB))


def test_files_of_a_unit_are_few() -> None:
    some = [piece(f"{number:03d}", 0, 10 * number, 10 * number + 9, 1) for number in range(3 * UNIT_FILES_MAX)]
    assert [len(unit) for unit in units(*some)] == [UNIT_FILES_MAX] * 3


def filters(*some: Node) -> Query:
    return Query(PLAIN, some, query().source)


def at(us: int) -> Node:
    return Node("constant", "timestamp", value=us)


TIME = PLAIN["timestamp"]
THERE = Node("is_not_null", "boolean", (TIME,))
LOW, HIGH = Node("GreaterThanOrEqual", "boolean", (TIME, at(5))), Node("LessThan", "boolean", (TIME, at(9)))
OTHER = Node("EqualTo", "boolean", (PLAIN["key"], Node("constant", "string", value="a")))


def compared(function: str, column: Node, value: Any) -> Node:
    return Node(function, "boolean", (column, Node("constant", column.kind, value=value)))


@pytest.mark.parametrize(
    ("some", "span"),
    [
        ((THERE, LOW, HIGH), (5, 9)), ((THERE, LOW), (5, None)), ((HIGH,), (None, 9)), ((), (None, None)),
        ((THERE, LOW, HIGH, OTHER), (5, 9)), ((Node("LessThan", "boolean", (PLAIN["key"], at(9))),), (None, None)),
        ((Node("LessThanOrEqual", "boolean", (TIME, at(9))),), (None, 10)), ((LOW, compared("GreaterThan", TIME, 7)), (8, None)),
        ((compared("EqualTo", TIME, 7),), (7, 8)),
    ],
)  # fmt: skip
def test_a_span_of_time_may_divide_row_groups(some: tuple[Node, ...], span: tuple[int | None, int | None]) -> None:
    shape = shape_of(filters(*some), has_key=True)
    assert (shape.low_us, shape.high_us) == span
    one, counted = piece("a", 0, 5, 8)
    assert len(units_of([replace(one, rows=one.rows + 1)], [counted], divides=True)) == 1


COUNTRY, DAY, NUMBER = column("country", "string"), column("day", "date"), column("number", "integer")


@pytest.mark.parametrize(
    ("some", "conditions"),
    [
        ((THERE, LOW, OTHER), [Condition("user", "=", "a")]),
        (
            (Node("is_not_null", "boolean", (COUNTRY,)), compared("GreaterThanOrEqual", COUNTRY, "CH")),
            [Condition("country", ">=", "CH")],
        ),
        ((compared("LessThan", NUMBER, 5), compared("LessThan", NUMBER, 5)), [Condition("number", "<", 5)]),
        ((compared("EqualTo", DAY, date(2026, 1, 1)), Node("is_null", "boolean", (COUNTRY,))),
         [Condition("day", "=", 20_454), Condition("country", "is null")]),
        ((Node("is_not_null", "boolean", (COUNTRY,)),), [Condition("country", "is not null")]),
        # These are decided by row groups, whole.
        ((OTHER, compared("LessThan", column("share", "double"), 0.5)), []),
        ((OTHER, Node("or", "boolean", (OTHER, OTHER))), []),
        ((compared("EqualTo", cast(COUNTRY, "binary"), b"x"),), []),
        ((Node("LessThan", "boolean", (NUMBER, NUMBER)),), []),
    ],
)  # fmt: skip
def test_conditions_that_a_recipe_can_have(some: tuple[Node, ...], conditions: list[Condition]) -> None:
    assert shape_of(filters(*some), has_key=True).conditions == conditions


def test_a_condition_that_divides_a_row_group_has_its_reason() -> None:
    one, counted = piece("a", 0, 0, 5)
    with pytest.raises(NotAdoptedError, match="condition divides"):
        units((replace(one, rows=one.rows + 1), counted))


def planned(*some: tuple[Piece, Counted]) -> PlannedUnit:
    return PlannedUnit([one for one, _ in some], [one for _, one in some])


def test_recipes_are_cut_between_files(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: Any = adoption.recipes_of
    monkeypatch.setattr(adoption, "RECIPE_UNITS", 4)
    some = [planned(piece(f"{number // 3}", number % 3, number, number)) for number in range(12)]
    assert [len(units) for units in cut(some)] == [6, 6]
    # One file that is larger than some recipes.
    some = [planned(piece("a", number, number, number)) for number in range(20)]
    assert [len(units) for units in cut(some)] == [8, 8, 4]
    monkeypatch.setattr(adoption, "RECIPE_SHARES", 3)
    some = [planned(piece(f"{number}", 0, number, number)) for number in range(7)]
    assert [len(units) for units in cut(some)] == [3, 3, 1]
    assert list(cut([])) == []


def test_shares_add_up() -> None:
    first, second = piece("a", 0, 0, 5000), piece("b", 0, 3000, 9000)
    second[1].rows, second[1].spans = [1, 2], {0: (3, 4), 1: (5, 9)}
    found = planned(first, second).shares()
    assert [(one.partition, one.rows, one.timestamp_min_ms, one.timestamp_max_ms) for one in found] == [(0, 11, 0, 5), (1, 2, 5, 9)]


# -- decoded sizes


def write(path: Path, values: Any, **options: Any) -> list[Piece]:
    rows = len(values)
    table = pa.table(
        {
            "at": arrow.array(range(rows), pa.timestamp("us", "UTC")),
            "user": [f"u{row % 5}" for row in range(rows)],
            "payload": values,
        }
    )
    pq.write_table(table, path, row_group_size=rows, **options)
    return read_layout([Listed(str(path))], query(value=column("payload", "binary")))


VALUES: dict[str, list[bytes | None]] = {
    "different": [b"%0200d" % row for row in range(2000)],
    "the same": [b"v" * 1000] * 2000,
    "one is long": [b"v" * 3_000_000, *(b"%d" % (row % 7) for row in range(2000))],
    "null": [None] * 2000,
    "some null": [None if row % 3 else b"value" for row in range(2000)],
    "empty": [b""] * 2000,
}
DELTA = {"use_dictionary": False, "column_encoding": {"payload": "DELTA_BYTE_ARRAY", "user": "DELTA_BYTE_ARRAY"}}


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, DELTA, {"dictionary_pagesize_limit": 4000}])
@pytest.mark.parametrize("name", VALUES)
def test_decoded_sizes_are_bounded_from_above_and_nearly_right(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    (one,) = write(tmp_path / "a.parquet", arrow.array(VALUES[name], pa.binary()), **options)
    table = pq.read_table(tmp_path / "a.parquet", columns=["at", "user", "payload"])
    actual = sum(chunk.nbytes for name in table.schema.names for chunk in table.column(name).chunks)
    found = decoded_bytes(one, ("at", "user", "payload"))
    assert actual <= found
    if name != "one is long":
        assert found <= 3 * actual + MIB


def test_a_dictionary_bomb_has_its_size_and_its_reason(tmp_path: Path) -> None:
    """A value of 1 MB, 300 times, in a file of some kilobytes."""
    pieces = write(tmp_path / "a.parquet", arrow.array([b"v" * MIB] * 300, pa.binary()), compression="zstd")
    assert decoded_bytes(pieces[0], ("at", "user", "payload")) >= 300 * MIB
    # Rows that the sample of a plan does not see: every other row is small.
    values = [b"s"] * 3000 + [b"v" * MIB] * 300
    source = Source(query(value=column("payload", "binary")), True, tuple(write(tmp_path / "b.parquet", values)), Limits())
    processes = Processes(0, None)
    with pytest.raises(InvalidError, match="MiB, more than 256"):
        ColumnWork(processes, source, 3, "link").count()
    work = ColumnWork(processes, source, 3, "auto")
    assert sum(work.count().rows) == 3300
    assert "the source's files are not adopted: a row group has 300 MiB" in work.way
    processes.close()


def test_texts_that_a_file_does_not_have_are_not_adopted(tmp_path: Path) -> None:
    """A UUID is 16 bytes in its file, and 36 characters in Spark."""
    values = arrow.array([uuid.UUID(int=row).bytes for row in range(50)], pa.uuid())
    pieces = write_uuids(tmp_path / "a.parquet", values)
    assert formed_column(pieces[0].file, ("at", "user", "payload"), {}) == "payload"
    source = Source(query(value=column("payload", "string")), True, pieces, Limits())
    processes = Processes(0, None)
    with pytest.raises(InvalidError, match="the values of a column are not as its file has them"):
        ColumnWork(processes, source, 3, "copy").count()
    processes.close()


def test_bytes_that_are_no_text_are_adopted_whether_a_sample_meets_them_or_not(tmp_path: Path) -> None:
    """Brokers write U+FFFD for them. A rewrite leaves such rows to Spark."""
    texts = pa.array([b"a\xff"] * 50, pa.binary()).view(pa.string())
    table = pa.table({"at": arrow.array(range(50), pa.timestamp("us", "UTC")), "user": ["u"] * 50, "payload": texts})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False)
    columns = tuple(column(name, kind) for name, kind in (("at", "timestamp"), ("user", "string"), ("payload", "string")))
    json = cast(Node("json", "string", columns, value=("at", "user", "payload")), "binary")
    asked = Query({**PLAIN, "value": json}, (), {"at": "timestamp", "user": "string", "payload": "string"})
    source = Source(asked, True, tuple(read_layout([Listed(str(tmp_path / "a.parquet"))], asked)), Limits())
    processes = Processes(0, None)
    assert sum(ColumnWork(processes, source, 3, "link").count().rows) == 50
    with pytest.raises(UnlikeError, match="not UTF-8"):
        ColumnWork(processes, source, 3, "rewrite")
    processes.close()


def write_uuids(path: Path, values: Any) -> tuple[Piece, ...]:
    rows = len(values)
    table = pa.table({"at": arrow.array(range(rows), pa.timestamp("us", "UTC")), "user": ["u"] * rows, "payload": values})
    pq.write_table(table, path)
    asked = Query({**PLAIN, "value": column("payload", "string")}, (), {"at": "timestamp", "user": "string", "payload": "string"})
    return tuple(read_layout([Listed(str(path))], asked))


def stored(path: Path, rows: int) -> Piece:
    """The one row group of a file."""
    data = path.read_bytes()
    footer = data[-footer_size(data, len(data)) :]
    return Piece(SourceFile(str(path), state_of(str(path), None), crc32c(footer)), 0, rows, 0, False, 0, 0)


def nested(values: Any, lists: int = 1) -> Any:
    """The values, each alone in so many lists."""
    for _ in range(lists):
        values = arrow.ListArray.from_arrays(arrow.array(range(len(values) + 1), pa.int32()), values)
    return values


ROWS = 2000
PARTS: dict[str, Any] = {
    "bytes of one length": nested(arrow.array([b"x" * 500] * ROWS, pa.binary(500))),
    "no bytes of one length": arrow.StructArray.from_arrays([pa.nulls(ROWS, pa.binary(300))], ["a"]),
    "bytes of one length beside": arrow.array([b"x" * 500] * ROWS, pa.binary(500)),
    "numbers in many lists": nested(arrow.array([1] * ROWS, pa.int64()), 20),
    "texts in many lists": nested(arrow.array(["x"] * ROWS), 9),
    "decimals": nested(arrow.array([None, 1] * (ROWS // 2), pa.decimal128(38, 0))),
    "long names": nested(arrow.StructArray.from_arrays([arrow.array([1] * ROWS, pa.int8())], ["n" * 900])),
    "many parts": arrow.StructArray.from_arrays([pa.nulls(ROWS, pa.int8())] * 50, [f"{number}" for number in range(50)]),
    "empty lists": arrow.array([[[], []]] * ROWS, pa.list_(pa.list_(pa.int8()))),
    "a map": arrow.array([[("k", "the same text again")] * 3] * ROWS, pa.map_(pa.string(), pa.string())),
}


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}])
@pytest.mark.parametrize("name", PARTS)
def test_sizes_of_rows_as_json_are_bounded_from_above(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """A broker that has more than the flood counted can never read these rows again."""
    path, column_ = tmp_path / "a.parquet", PARTS[name]
    # A leaf of the same name comes first in the file.
    other = arrow.array([{"rest": 1}] * ROWS, arrow.struct([("rest", pa.int64())]))
    pq.write_table(pa.table({"other": other, "rest": column_}), path, row_group_size=ROWS, **options)
    one = stored(path, ROWS)
    read = part_of_row(pq.read_table(path).column("rest"), pq.read_schema(path).field("rest").type)
    assert read.nbytes <= (decoded := decoded_bytes(one, ["rest"]))
    assert json_bytes_max(["rest"], [read]) <= 6 * (decoded + json_bytes(one, Shape("", "", "", ["rest"]), {}))


def test_values_that_a_file_lacks_are_counted_in_each_row(tmp_path: Path) -> None:
    values = (("a:b", arrow.scalar("x:y", pa.string())), ("none", arrow.scalar(None, pa.int64())))
    given = given_of(SourceFile("a", state_of("/", None), 0, values), Shape("", "", "", ["a:b", "none"]))
    assert given == {"a:b": '"x:y"', "none": None}
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": arrow.array([1] * 10)}), path)
    one = stored(path, 10)
    shape = Shape("", "", "", ["x", "a"])
    assert json_bytes(one, shape, {"a": "1" * 1000}) - json_bytes(one, shape, {"a": None}) == 10_000


def test_rows_that_are_too_large_as_json_have_their_reason() -> None:
    one, counted = piece("a", 0, 0, 10)
    counted.json_bytes = UNIT_JSON_BYTES_MAX
    assert len(units_of([one, replace(one, group=1, low_us=10)], [counted, replace(counted, low_us=10)])) == 2
    with pytest.raises(NotAdoptedError, match="a row group has 1025 MiB as JSON, more than 1024: write smaller row groups"):
        units_of([one], [replace(counted, json_bytes=UNIT_JSON_BYTES_MAX + MIB)])


def test_values_of_paths_that_are_too_long_have_their_reason(tmp_path: Path) -> None:
    (one,) = write(tmp_path / "a.parquet", arrow.array([b"v"] * 5, pa.binary()))
    json = row_as_json(["day"], [column("day", "string")])
    some = Query({**PLAIN, "value": cast(json, "binary")}, (), {"day": "string", **query().source})
    day = ("day", arrow.scalar("d" * 5000, pa.string()))
    source = Source(some, True, (replace(one, file=replace(one.file, values=(day,))),), Limits())
    with Processes(0, None) as engine, pytest.raises(InvalidError, match="lacks have too long values"):
        ColumnWork(engine, source, 3, "link").count()


def test_a_condition_and_columns_with_other_names_go_into_the_recipe(tmp_path: Path) -> None:
    """A table renamed `user` to `person`, and removed an older `person`; its older file has the old names. What brokers make of the
    recipe is compared with the rows."""
    rows = 300
    numbers, times = arrow.array(range(rows), pa.int64()), arrow.array(range(0, rows * 1000, 1000), pa.timestamp("us", "UTC"))
    people = [f"u{at % 7}" for at in range(rows)]
    store = tmp_path / "store"
    store.mkdir()
    old, new = tmp_path / "a.parquet", tmp_path / "b.parquet"
    # Another column of that name, which the table removed.
    old_rows = {"at": times, "user": people, "n": numbers, "person": ["gone"] * rows}
    pq.write_table(pa.table(old_rows), old, row_group_size=64)
    later = arrow.array(range(rows * 1000, 2 * rows * 1000, 1000), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": later, "person": people, "n": numbers}), new, row_group_size=64)
    kinds = {"at": "timestamp", "person": "string", "n": "long"}
    columns = [column(name, kind) for name, kind in kinds.items()]
    value = cast(Node("json", "string", tuple(columns), value=tuple(kinds)), "binary")
    few = Node("LessThan", "boolean", (columns[2], Node("constant", "long", value=100)))
    asked = Query({"timestamp": columns[0], "key": cast(columns[1], "binary"), "value": value}, (few,), kinds)
    names = (("at", "at"), ("person", "user"), ("n", "n"))
    pieces = tuple(read_layout([Listed(str(old), names=names), Listed(str(new))], asked))
    with Processes(0, None) as engine:
        work = ColumnWork(engine, Source(asked, True, pieces, Limits()), 1, "link")
        assert work.count().rows == (200,)
        (written,) = work.write(Job(str(store), "t/", "job", 1 << 20, {}))
    assert (written.tally.rows, "2 files of the source are adopted" in work.way) == (200, True)
    recipe = decode_recipe((store / written.files[0].path).read_bytes())
    assert recipe.version == VERSION_OF_CONDITIONS and recipe.shape.conditions == [Condition("n", "<", 100)]
    assert [file.names for file in recipe.files] == [{"person": "user"}, {}]
    found: list[str] = []
    for number, unit in enumerate(recipe.units):
        files = [(store / recipe.files[one].path).read_bytes() for one in recipe.files_of(unit)]
        wanted = [Wanted(0, 0, unit.shares[0].rows, 0)]
        asked_unit = described(recipe, number, [data[-footer_size(data, len(data)) :] for data in files], 0, wanted)
        parts = [
            [[(begin, data[begin : begin + size]) for begin, size in ranges] for ranges in file.ranges]
            for file, data in zip(asked_unit.files, files, strict=True)
        ]
        found += [bytes(one.value or b"").decode() for batch in encode_unit(asked_unit, parts) for one in iter_records(batch)]
    assert [json.loads(one)["person"] for one in found] == people[:100] * 2
    assert [json.loads(one)["n"] for one in found] == [*range(100), *range(100)]


def test_each_column_of_a_wide_file_is_looked_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """2,000 columns took ten seconds for each row group."""
    names, path, asked = [f"c{number}" for number in range(300)], tmp_path / "a.parquet", 0

    def name(chunk: Any) -> str:
        nonlocal asked
        asked += 1
        return name_of(chunk)

    pq.write_table(pa.table({name: arrow.array(range(10)) for name in names}), path)
    monkeypatch.setattr(decoded, "name_of", name)
    assert decoded_bytes(stored(path, 10), names) > 300 * 80 and asked == 300
