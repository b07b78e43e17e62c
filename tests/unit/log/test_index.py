"""The batch index (`broker/log/index.py`): the row of an offset, the row of a timestamp, and its bytes.

A mismatch means that a consumer gets other records than it requested, or none.
"""

from __future__ import annotations

import struct

import pytest

from headgate.broker.log.index import ROW_BYTES, BatchIndex
from headgate.broker.runtime.errors import CorruptError

ROWS = [(10, 1000, 48, 100), (13, 900, 148, 61), (14, 1000, 300, 5000), (40, -1, 6000, 70), (41, 2000, 2**32 - 1, 2**32 - 1)]


def index(rows: list[tuple[int, int, int, int]] = ROWS) -> BatchIndex:
    made = BatchIndex()
    for row in rows:
        made.add(*row)
    return made


def rows(of: BatchIndex) -> list[tuple[int, int, int, int]]:
    return list(zip(of.offsets, of.timestamps, of.positions, of.sizes, strict=True))


@pytest.mark.parametrize(("offset", "row"), [(0, 0), (10, 0), (12, 0), (13, 1), (14, 2), (39, 2), (40, 3), (41, 4), (10**9, 4)])
def test_find(offset: int, row: int) -> None:
    assert index().find(offset) == row


def test_find_from_a_row_on_never_goes_before_it() -> None:
    assert index().find(0, 2) == 2
    assert index().find(13, 2) == 2
    assert index().find(40, 2) == 3


@pytest.mark.parametrize(
    ("timestamp", "first", "row"),
    [
        (0, 0, 0),
        (1000, 0, 0),
        (1001, 0, 4),
        (1000, 1, 2),
        (900, 1, 1),
        (-1, 3, 3),
        (0, 3, 4),
        (2000, 0, 4),
        (2001, 0, None),
        (0, 5, None),
    ],
)
def test_find_timestamp_is_the_first_row_that_reaches_it(timestamp: int, first: int, row: int | None) -> None:
    assert index().find_timestamp(timestamp, first) == row


def test_bytes_are_four_little_endian_columns() -> None:
    data = index().encode()
    columns = list(zip(*ROWS, strict=True))
    assert data == b"".join(struct.pack(f"<5{kind}", *column) for kind, column in zip("qqII", columns, strict=True))
    assert rows(BatchIndex.decode(data)) == ROWS
    assert rows(BatchIndex.decode(memoryview(data))) == ROWS


@pytest.mark.parametrize(("first", "end"), [(0, 5), (0, 0), (1, 4), (4, 5), (2, None)])
def test_a_part_of_the_rows(first: int, end: int | None) -> None:
    assert rows(BatchIndex.decode(index().encode(first, end))) == ROWS[first:end]


def test_a_section_that_is_cut_off_is_said_to_be() -> None:
    data = index().encode()
    for size in range(len(data)):
        if size % ROW_BYTES:
            with pytest.raises(CorruptError):
                BatchIndex.decode(data[:size])


def test_rows_are_dropped_from_the_front() -> None:
    some = index()
    some.drop(2)
    assert rows(some) == ROWS[2:]
    assert len(some) == 3
    some.drop(0)
    some.drop(3)
    assert len(some) == 0
    some.add(*ROWS[0])
    assert rows(some) == ROWS[:1]


def test_neighbours_are_one_stretch() -> None:
    assert index().stretches() == [(48, 161), (300, 5000), (6000, 70), (2**32 - 1, 2**32 - 1)]
    assert index().rows(0, 2, 10**9).stretches() == [(48, 161)]
    assert BatchIndex().stretches() == []
