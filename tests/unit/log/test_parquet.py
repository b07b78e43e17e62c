"""Parquet extents as bytes: the written files, and files that are refused by their footer alone.

Runs: tables of several shapes through the writer; footers of good and of bad files through the reader, without the rows.
Compared: row groups, sizes, times and checksums with the rows; the table that Arrow's own reader gives with the written one. A
mismatch means that a reference does not describe its file, or that a file which cannot be served is accepted.
"""

from __future__ import annotations

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c

from headgate.broker.log import parquet
from headgate.broker.log.history_columns import HEADERS_TYPE, checksum
from headgate.broker.log.parquet import ROW_GROUP_ROWS_MAX, footer_size, read_footer, read_group, write_extent_file
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises


def table(count: int, value_bytes: int = 30) -> pa.Table:
    chance = random.Random(count)
    return pa.table(
        {
            "timestamp": pa.array([chance.randrange(-(10**12), 10**13) for _ in range(count)], pa.int64()),
            "key": pa.array([chance.choice([None, b"", b"k%d" % at]) for at in range(count)], pa.binary()),
            "value": pa.array([chance.choice([None, chance.randbytes(value_bytes)]) for _ in range(count)], pa.binary()),
            "headers": pa.array(
                [[{"key": "h", "value": b"%d" % at}] if at % 7 == 0 else None for at in range(count)], HEADERS_TYPE
            ),
        }
    )


def footer_of(data: bytes) -> bytes:
    return data[len(data) - footer_size(data[-8:], len(data)) :]


@pytest.mark.parametrize("parts", [1, 3, 50])
@pytest.mark.parametrize("group_bytes", [1, 500, 10_000, 1 << 30])
def test_row_groups_have_all_rows_in_order(parts: int, group_bytes: int) -> None:
    source = table(200)
    chunks = pa.concat_tables([source.slice(at * 200 // parts, (at + 1) * 200 // parts - at * 200 // parts) for at in range(parts)])
    written = write_extent_file(chunks, row_group_bytes=group_bytes)
    data = bytes(written.data)
    file = read_footer(footer_of(data), len(data))
    assert (file.rows, written.rows) == (200, 200)
    assert written.footer_crc32c == crc32c(footer_of(data))
    times = source.column("timestamp").to_pylist()
    assert (written.timestamp_min_ms, written.timestamp_max_ms) == (min(times), max(times))
    first = 0
    found = []
    for at, group in enumerate(file.groups):
        assert group.first_row == first
        assert (group.timestamp_min_ms, group.timestamp_max_ms) == (
            min(times[first : first + group.rows]),
            max(times[first : first + group.rows]),
        )
        assert [file.group_of(row) for row in (first, first + group.rows - 1)] == [at, at]
        found.append(read_group(file, group, data[group.start : group.end]))
        first += group.rows
    assert len(file.groups) == {1: 200, 1 << 30: 1}.get(group_bytes, len(file.groups))
    assert pa.concat_tables(found).select(["key", "value", "headers"]) == source.select(["key", "value", "headers"])
    assert checksum(pa.concat_tables(found)) == checksum(source)
    assert pq.read_table(io.BytesIO(data)).num_rows == 200


def test_row_groups_of_tiny_rows_are_bounded_by_their_number() -> None:
    count = ROW_GROUP_ROWS_MAX * 2 + 1
    source = pa.table({"timestamp": pa.array(range(count)), "key": pa.nulls(count), "value": pa.nulls(count)})
    data = bytes(write_extent_file(source).data)
    file = read_footer(footer_of(data), len(data))
    assert [group.rows for group in file.groups] == [ROW_GROUP_ROWS_MAX, ROW_GROUP_ROWS_MAX, 1]


def test_a_column_offset_is_not_written_and_microseconds_stay() -> None:
    source = table(10)
    stamps = pa.array([at * 1000 - 1 for at in range(10)]).cast(pa.timestamp("us", tz="UTC"))
    source = source.set_column(0, "timestamp", stamps).append_column("offset", pa.array(range(10)))
    written = write_extent_file(source)
    shown = pq.read_table(pa.BufferReader(written.data))
    assert shown.column_names == ["timestamp", "key", "value", "headers"]
    assert shown.column("timestamp").cast(pa.int64()).to_pylist() == [at * 1000 - 1 for at in range(10)]
    assert (written.timestamp_min_ms, written.timestamp_max_ms) == (-1, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.slice(0, 0), "at least one row"),
        (lambda rows: rows.drop_columns(["value"]), "no column `value`"),
        (lambda rows: rows.set_column(0, "timestamp", pa.nulls(10, pa.int64())), "timestamp is null"),
        (lambda rows: rows.set_column(1, "key", pa.array(range(10))), "`key` is neither"),
    ],
)
def test_what_is_not_written(change: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        write_extent_file(change(table(10)))


def test_footers_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = bytes(write_extent_file(table(50)).data)
    footer = footer_of(good)
    for tail in (b"", b"PAR1", b"\xff\xff\xff\xffPAR1", b"\x00\x00\x00\x00PARE"):
        with pytest.raises(InvalidError):
            footer_size(tail, len(good))
    for bad in (footer[:10] + footer[-8:], bytes(len(footer) - 8) + footer[-8:]):
        with pytest.raises(InvalidError):
            read_footer(bad, len(good))
    with pytest.raises(InvalidError, match="outside"):
        read_footer(footer, len(footer) + 20)
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES_MAX", 100)
    with pytest.raises(InvalidError, match="too large"):
        read_footer(footer, len(good))


def test_a_file_of_dictionaries_is_read_as_what_is_in_them() -> None:
    """A writer that had dictionary columns notes that in the file, and pyarrow reads them as dictionary columns again."""
    plain = table(50)
    noted = plain
    for name in ("key", "value"):
        noted = noted.set_column(noted.schema.get_field_index(name), name, plain[name].dictionary_encode())
    out = pa.BufferOutputStream()
    pq.write_table(noted, out)
    data = out.getvalue().to_pybytes()
    file = read_footer(footer_of(data), len(data))
    group = file.groups[0]
    read = read_group(file, group, data[group.start : group.end])
    assert pa.types.is_dictionary(read.schema.field("key").type)
    assert checksum(read) == checksum(plain)


def test_rows_that_are_not_there() -> None:
    data = bytes(write_extent_file(table(50)).data)
    file = read_footer(footer_of(data), len(data))
    group = file.groups[0]
    with raises(InvalidError, Reason.CORRUPT_MESSAGE):
        read_group(file, group, data[group.start : group.end - 10])
