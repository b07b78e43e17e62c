"""Rows that are sorted in files against the same rows sorted at once.

Runs: rows with equal times, keys and values, in any number and size. Compared: all rows, in order; the bytes in memory while they
are merged; the files that stay. A mismatch means that a large flood comes out of order, or takes more memory than it may.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.columns import runs
from headgate.pipelines.columns.ordering import in_order, place_of
from headgate.pipelines.columns.runs import Order, sorted_rows
from tests.support.errors import raises

TIES = ("_tie_0", "_tie_1", "_tie_2")
COLUMNS = ("partition", "timestamp", "key", "value")
ORDER = Order(lambda rows: in_order(rows, TIES), lambda rows, row: place_of(rows, TIES, row))


def rows_of(dice: random.Random, count: int, times: int, value_bytes: int) -> pa.RecordBatch:
    def some(*values: Any) -> list[Any]:
        return [dice.choice(values) for _ in range(count)]

    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([dice.choice((0, 0, 0, 7)) for _ in range(count)], pa.int32()),
            "timestamp": pa.array([dice.randrange(times) - times // 2 for _ in range(count)], pa.int64()),
            "_tie_0": pa.array(some(None, -5, 7), pa.int32()),
            "_tie_1": pa.array(some(None, 253_402_300_800_000_000, -1), pa.timestamp("us", tz="UTC")),
            "_tie_2": pa.array(some(None, "", "é", "z", "\U0001f600", "\uffff"), pa.string()),
            "key": pa.array(some(None, b"", b"\x7f", b"\xff", b"hot"), pa.binary()),
            "value": pa.array([None if dice.random() < 0.1 else dice.randbytes(dice.randrange(value_bytes)) for _ in range(count)]),
        }
    )


def batches_of(rows: pa.RecordBatch, dice: random.Random) -> Iterator[pa.RecordBatch]:
    at = 0
    while at < rows.num_rows:
        some = dice.choice((1, 10, 300))
        yield rows.slice(at, some)
        at += some


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few rows, and few runs for one merge."""
    monkeypatch.setattr(runs, "CHUNK_BYTES_MIN", 1 << 9)
    monkeypatch.setattr(runs, "RUNS_MAX", 5)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("times", [1, 3, 1000, 1 << 61])
@pytest.mark.parametrize("bytes_max", [1, 1 << 12, 1 << 14, 1 << 30])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_rows_come_out_as_if_they_were_sorted_at_once(tmp_path: Path, times: int, bytes_max: int, is_sorted: bool) -> None:
    dice = random.Random(times + bytes_max)
    rows = rows_of(dice, 60 if bytes_max == 1 else 1200, times, 40)
    wanted = rows.take(pa.array(in_order(rows, TIES)))
    found = list(sorted_rows(batches_of(wanted if is_sorted else rows, dice), ORDER, bytes_max, COLUMNS, str(tmp_path)))
    assert (len(found) > 1) == (bytes_max < 1 << 30)
    assert pa.Table.from_batches(found).combine_chunks().equals(pa.Table.from_batches([wanted.select(COLUMNS)]))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small")
def test_memory_is_bounded_whatever_the_rows(tmp_path: Path) -> None:
    """Fifteen times as many rows as are sorted at once, all of one partition and time, some of them large."""
    dice = random.Random(2)
    bytes_max = 1 << 18

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(40):
            yield rows_of(dice, 200, 1, dice.choice((10, 900, 2000)))

    before = pa.total_allocated_bytes()
    count = most = 0
    for found in sorted_rows(batches(), ORDER, bytes_max, COLUMNS, str(tmp_path)):
        count += found.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == 40 * 200
    assert most <= 3 * bytes_max


def test_no_rows(tmp_path: Path) -> None:
    assert list(sorted_rows([], ORDER, 100, COLUMNS, str(tmp_path))) == []


def test_a_reader_that_stops_leaves_no_files(tmp_path: Path) -> None:
    dice = random.Random(1)
    some = sorted_rows(batches_of(rows_of(dice, 500, 3, 20), dice), ORDER, 1 << 10, COLUMNS, str(tmp_path))
    next(some)
    assert list(tmp_path.iterdir())
    some.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has a device that is always full")
def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(1)
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), "/dev/full"))
    with raises(RetryError, Reason.STORE_FULL, f"is full: make room.*spark.local.dir.*directory=`{tmp_path}"):
        list(sorted_rows(batches_of(rows_of(dice, 500, 3, 20), dice), ORDER, 1 << 10, COLUMNS, str(tmp_path)))
