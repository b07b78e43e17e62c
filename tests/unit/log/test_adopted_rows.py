"""The row of adopted files as JSON: the same text whatever writer stored the columns, in steps or at once.

Compared: records of units with the JSON of the rows that were written, computed from the table itself. A mismatch means that a
topic has other records than a rewritten flood of the same files.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, get_args

import pyarrow as pa
import pytest

from headgate.broker.log import adopted as module
from headgate.broker.log import adopted_columns, parquet
from headgate.broker.log.adopted import Group, UnitRows
from headgate.broker.log.adopted_columns import ranges_of, row_kind
from headgate.broker.log.json_rows import json_rows
from headgate.broker.log.parquet import ExtentFile, RowGroup, metadata_of, read_parts
from headgate.broker.log.partitioner import partition_for_key
from headgate.broker.log.recipe import Comparison, Condition, Shape
from headgate.broker.runtime.errors import InvalidError
from tests.support.adopted import PARTITIONS, T0_US, checked, file_of, footer_of, unit_rows

arrow: Any = pa
COUNT = 500
EPOCH = date(1970, 1, 1)
ITEM = arrow.struct([("at", pa.timestamp("us", "UTC")), ("words", pa.list_(pa.string()))])


def items(at: int) -> list[Any]:
    return [{"at": T0_US + at, "words": ["x", None, "same"][: at % 4]}, None][: at % 3]


def lake(**changes: Any) -> pa.Table:
    """A table with a column for each kind of value, out of order, with names that history uses."""
    numbers = range(COUNT)
    columns = {
        "timestamp": arrow.array([T0_US + at * 7919 % 50 * 1000 for at in numbers], pa.timestamp("us", "UTC")),
        "offset": arrow.array([at * 7 % 41 for at in numbers], pa.int64()),
        "headers": [None if at % 3 else f"w{at % 5}" * (at % 4) for at in numbers],
        "raw": arrow.array([bytes([at % 256]) for at in numbers], pa.binary()),
        "items": arrow.array(
            [[{"at": T0_US + at, "words": ["x", None, "same"][: at % 4]}, None][: at % 3] for at in numbers], pa.list_(ITEM)
        ),
        "local": arrow.array([T0_US + at for at in numbers], pa.timestamp("us")),
        "counts": arrow.array([[("k", f"v{at % 3}")] if at % 2 else [] for at in numbers], pa.map_(pa.string(), pa.string())),
    }
    return pa.table({**columns, **changes})


SHAPE = Shape("timestamp", "offset", "", ["timestamp", "offset", "headers", "raw", "items", "local", "counts"], False)


def groups_of(data: bytes, shape: Shape = SHAPE, names: Mapping[str, str] | None = None, **given: str | None) -> list[Group]:
    metadata = metadata_of(footer_of(data))
    found: list[Group] = []
    for number in range(metadata.num_row_groups):
        ranges = ranges_of(metadata, number, shape.columns(given, names), len(data))
        parts = [(begin, memoryview(data)[begin : begin + size]) for begin, size in ranges]
        found.append(Group(metadata, number, parts, given, names or {}))
    return found


def found(groups: Sequence[Group], shape: Shape = SHAPE) -> list[list[tuple[int, bytes, str]]]:
    tables = unit_rows(groups, shape, PARTITIONS, range(PARTITIONS))
    return [
        list(
            zip(
                table.column("timestamp").cast(pa.int64()).to_pylist(), table.column("key").to_pylist(),
                table.column("value").cast(pa.string()).to_pylist(), strict=True,
            )
        )
        for table in tables
    ]  # fmt: skip


def expected(table: pa.Table, by_source: bool = False) -> list[list[tuple[int, bytes, str]]]:
    texts = json_rows(table.schema.names, [one.combine_chunks() for one in table.columns]).to_pylist()
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    keys = [str(one).encode() for one in table.column("offset").to_pylist()]
    rows = list(zip(times, keys, texts, strict=True))
    ordered = rows if by_source else sorted(rows, key=lambda row: row[0])
    return [[row for row in ordered if partition_for_key(row[1], PARTITIONS) == number] for number in range(PARTITIONS)]


WRITERS: list[dict[str, Any]] = [
    {},
    {"use_dictionary": False, "compression": "none"},
    {"use_deprecated_int96_timestamps": True},
    {"store_schema": False, "compression": "zstd", "data_page_version": "2.0"},
    {"use_dictionary": False, "column_encoding": {"headers": "DELTA_BYTE_ARRAY", "raw": "DELTA_LENGTH_BYTE_ARRAY"}},
]


@pytest.mark.parametrize("options", WRITERS, ids=str)
@pytest.mark.parametrize("step", [1 << 14, 7])
def test_rows_of_every_writer(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], step: int) -> None:
    monkeypatch.setattr(module, "JSON_ROWS", step)
    table = lake()
    if options.get("use_deprecated_int96_timestamps"):
        # All times are of 96 bits then, which are in UTC.
        table = table.drop_columns(["local"])
        shape = Shape("timestamp", "offset", "", table.schema.names, False)
    else:
        shape = SHAPE
    data = file_of(table, 64, **options)
    assert checked(data, range(8), shape) == [64] * 7 + [52]
    assert found(groups_of(data, shape), shape) == expected(table)


def test_other_types_of_the_same_values() -> None:
    table = lake()
    other = table.set_column(2, "headers", table.column("headers").cast(pa.large_string())).set_column(
        3, "raw", table.column("raw").cast(pa.binary(1)).combine_chunks()
    )
    other = other.set_column(2, "headers", other.column("headers").dictionary_encode())
    assert found(groups_of(file_of(other, 64))) == expected(table)


def test_columns_that_are_in_no_file() -> None:
    days = [arrow.array([value] * COUNT, pa.string()) for value in ("2026-01-01", None)]
    one = lake()
    shape = Shape("timestamp", "offset", "", [*one.schema.names, "day", "hour"], False)
    data = file_of(one, 64)
    first = groups_of(data, shape, day='"2026-01-01"', hour="5")
    hours = arrow.array([5] * COUNT, pa.int64())
    assert found(first, shape) == expected(one.append_column("day", days[0]).append_column("hour", hours))
    second = groups_of(data, shape, day=None, hour="5")
    assert found(second, shape) == expected(one.append_column("day", days[1]).append_column("hour", hours))


def test_the_order_of_the_source() -> None:
    table = lake()
    shape = Shape("timestamp", "offset", "", SHAPE.row, True)
    assert found(groups_of(file_of(table, 64)), shape) == expected(table, by_source=True)


@pytest.mark.parametrize("low", [None, T0_US + 10_000])
@pytest.mark.parametrize("high", [None, T0_US + 30_000])
def test_a_span_of_time(low: int | None, high: int | None) -> None:
    """Rows outside of it are no records, and may lack their time and their key."""
    table = lake()
    shape = Shape("timestamp", "offset", "", SHAPE.row, low_us=low, high_us=high)
    whole = expected(table)
    if shape.divides:
        missing = lake(timestamp=arrow.array([None] * COUNT, pa.timestamp("us", "UTC")))
        outside = arrow.array([shape.outside_us] * COUNT, pa.timestamp("us", "UTC"))
        keyless = lake(timestamp=outside, offset=arrow.array([None] * COUNT, pa.int64()))
        table = pa.concat_tables([table, missing, keyless])
    wanted = [[row for row in some if (low is None or row[0] >= low) and (high is None or row[0] < high)] for some in whole]
    assert found(groups_of(file_of(table, 64)), shape) == wanted
    assert (sum(map(len, wanted)) < COUNT) is shape.divides


def passing(table: pa.Table, *conditions: Condition) -> list[bool]:
    """As plain Python decides."""
    compare = {"=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    found = [True] * table.num_rows
    for one in conditions:
        for at, value in enumerate(table.column(one.column).to_pylist()):
            if one.value is None:
                found[at] &= (value is None) is (one.comparison == "is null")
            else:
                wanted: Any = EPOCH + timedelta(days=int(one.value)) if isinstance(value, date) else one.value
                found[at] &= value is not None and compare[one.comparison](value, wanted)
    return found


DAYS = [None if at % 7 == 0 else EPOCH + timedelta(days=20_000 + at % 3) for at in range(COUNT)]
CONDITIONS = [
    [Condition("offset", comparison, 20)] for comparison in get_args(Comparison)[:5]
] + [
    [Condition("headers", ">", "w1"), Condition("headers", "<=", "w3w3")],
    [Condition("headers", "=", "")],
    [Condition("headers", "is null"), Condition("offset", "is not null")],
    [Condition("day", "=", 20_001), Condition("small", "<", 90)],
    [Condition("offset", ">", 1 << 40)],
]  # fmt: skip


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
def test_conditions(conditions: list[Condition]) -> None:
    """Rows that do not pass are no records, and may lack their key. The columns of the conditions may be of the row, or not."""
    whole = lake(day=arrow.array(DAYS, pa.date32()), small=arrow.array([at % 100 for at in range(COUNT)], pa.int8()))
    chosen = passing(whole, *conditions)
    keys = [key if chosen[at] or at % 2 else None for at, key in enumerate(whole.column("offset").to_pylist())]
    if all(one.column != "offset" for one in conditions):
        whole = whole.set_column(1, "offset", arrow.array(keys, pa.int64()))
    shape = Shape("timestamp", "offset", "", SHAPE.row, conditions=conditions)
    wanted = expected(whole.filter(arrow.array(chosen)).select(SHAPE.row))
    assert shape.divides and sum(map(len, wanted)) == sum(chosen) < COUNT
    words = whole.set_column(2, "headers", whole.column("headers").dictionary_encode())
    large = whole.set_column(2, "headers", whole.column("headers").cast(pa.large_string()))
    for table in (whole, words, large):
        data = file_of(table, 64)
        assert sum(checked(data, range(8), shape)) == COUNT
        assert found(groups_of(data, shape), shape) == wanted


@pytest.mark.parametrize(
    "condition",
    [
        Condition("headers", "=", 5), Condition("offset", "=", "5"), Condition("raw", "<", "a"),
        Condition("local", ">", 5), Condition("items", "=", 1),
    ],
)  # fmt: skip
def test_a_condition_of_another_type_is_refused_at_the_fill_and_at_the_read(condition: Condition) -> None:
    shape, data = Shape("timestamp", "offset", "", SHAPE.row, conditions=[condition]), file_of(lake(), 64)
    for call in (lambda: checked(data, [0], shape), lambda: found(groups_of(data, shape), shape)):
        with pytest.raises(InvalidError, match="condition's column is of another type"):
            call()


def test_files_with_other_names_of_columns() -> None:
    """A table renamed its columns; one of them has the name that another had before."""
    table = lake()
    names = {"timestamp": "offset", "offset": "headers", "headers": "old"}
    renamed = table.rename_columns([names.get(name, name) for name in table.schema.names])
    shape = Shape("timestamp", "offset", "", SHAPE.row, conditions=[Condition("headers", "is not null")])
    chosen = arrow.array([one is not None for one in table.column("headers").to_pylist()])
    data = file_of(renamed, 64)
    assert sum(checked(data, range(8), shape, **names)) == COUNT
    assert found(groups_of(data, shape, names), shape) == expected(table.filter(chosen))


def test_text_that_is_no_text_is_a_record_too() -> None:
    """Spark replaces such bytes by a rule of its own; once adopted, a row must stay readable."""
    table = lake(headers=pa.array([b"a\xff"] * COUNT, pa.binary()).view(pa.string()))
    assert '"headers":"a\ufffd"' in found(groups_of(file_of(table, 64, use_dictionary=False)))[0][0][2]


FOREIGN = [pa.time64("us"), pa.timestamp("ns", "UTC"), pa.list_(pa.timestamp("ns"))]


@pytest.mark.parametrize("kind", FOREIGN, ids=str)
def test_types_that_are_not_written_as_json_are_refused(kind: Any) -> None:
    data = file_of(lake(raw=arrow.array([[0] if pa.types.is_list(kind) else 0] * COUNT, kind)))
    with pytest.raises(InvalidError, match="not as it was counted"):
        checked(data, [0], SHAPE)


def test_repeated_values_within_lists_are_decoded_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary of few bytes may be thousands of times larger as values, also within lists that begin with empty ones."""
    words = [[] if at < 20 else ["w" * 2000] * 4 for at in range(COUNT)]
    table = lake(items=arrow.array(words, pa.list_(pa.string())))
    monkeypatch.setattr(parquet, "READ_BYTES", 100_000)
    ((metadata, number, data, *_),) = groups = groups_of(file_of(table, COUNT, compression="zstd"))
    group = RowGroup(number, 0, COUNT, 0, 0, 0, True, None, None)
    parts = read_parts(ExtentFile(metadata, tuple(SHAPE.columns()), (group,), b""), group, data)
    assert {part.num_rows for part in parts} <= {12, COUNT % 12}, "four values of 2,000 bytes in each row, and some short ones"
    assert found(groups) == expected(table)


def test_kinds_of_rows() -> None:
    assert row_kind(arrow.dictionary(pa.int8(), pa.large_string())) == pa.string()
    assert row_kind(pa.timestamp("ns")) == pa.timestamp("us", "UTC") and row_kind(pa.timestamp("ms")) == pa.timestamp("us")


def test_values_of_paths_take_no_memory_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood counts what is in the files, so what is not must not make a unit too large for a broker."""
    table, day = lake(), "d" * 5000
    data = file_of(table, 64, use_dictionary=False)
    monkeypatch.setattr(module, "UNIT_BYTES_MAX", 2 * table.nbytes)
    shape = Shape("timestamp", "offset", "", [*table.schema.names, "day"], False)
    wanted = expected(table.append_column("day", arrow.array([day] * COUNT, pa.string())))
    assert found(groups_of(data, shape, day=f'"{day}"'), shape) == wanted


def test_large_rows_are_written_in_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One text of Arrow has 2 GiB at most, and a row may be many times larger as JSON. Steps depend on the content alone."""
    table = lake(headers=["\x01" * (at % 50) for at in range(COUNT)])
    groups = groups_of(file_of(table, 64))
    monkeypatch.setattr(module, "JSON_BYTES", 10_000)
    assert found(groups) == expected(table)
    rows = UnitRows(groups, SHAPE, PARTITIONS, range(PARTITIONS))
    steps = [(partition, some.num_rows) for partition in range(PARTITIONS) for some in rows.records(partition)]
    assert max(rows for _, rows in steps) < 30
    alone = UnitRows(groups, SHAPE, PARTITIONS, [1])
    assert [(1, some.num_rows) for some in alone.records(1)] == [one for one in steps if one[0] == 1]
    monkeypatch.setattr(module, "JSON_BYTES_MAX", 10_000)
    with pytest.raises(InvalidError, match="too large as JSON"):
        UnitRows(groups, SHAPE, PARTITIONS, [1])


def test_equal_numbers_and_missing_values_have_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file they take no bytes. A reader decodes them all at once."""
    zeros = lake(raw=arrow.array([None] * COUNT, pa.binary()), local=arrow.array([0] * COUNT, pa.timestamp("us")))
    data = file_of(zeros.select(["timestamp", "offset", "raw", "local"]), COUNT)
    shape = Shape("timestamp", "offset", "", ["raw", "local"])
    size = COUNT * (8 + 8 + 4 + 8)
    monkeypatch.setattr(adopted_columns, "UNIT_BYTES_MAX", size)
    assert checked(data, [0], shape) == [COUNT]
    monkeypatch.setattr(adopted_columns, "UNIT_BYTES_MAX", size - 1)
    with pytest.raises(InvalidError, match="has more than"):
        checked(data, [0], shape)
