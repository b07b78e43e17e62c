"""The decisions of a flood on columns: how row groups become tasks, and the order of records.

Compared with plain Python. A mismatch means that history comes out of order, or that one task holds far more than it may.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from headgate.pipelines.columns.files import State
from headgate.pipelines.columns.layout import ALWAYS, Piece, SourceFile
from headgate.pipelines.columns.ordering import in_order
from headgate.pipelines.columns.task_division import Limits, Stretch, buckets, readings, stretches, task_bytes, writers

FILE = SourceFile("/lake/a.parquet", State(1000, 1), 1)


def piece(low: int, high: int, raw_bytes: int = 10, number: int = 0, file: SourceFile = FILE) -> Piece:
    return Piece(file, number, 5, raw_bytes, False, low, high)


def spans(found: list[Stretch]) -> list[list[tuple[int, int]]]:
    return [[(one.low_us, one.high_us) for one in stretch.pieces] for stretch in found]


@pytest.mark.parametrize(
    ("pieces", "bytes_max", "expected"),
    [
        ([], 10, []),
        ([(0, 5), (6, 9)], 10, [[(0, 5)], [(6, 9)]]),
        ([(6, 9), (0, 5)], 20, [[(0, 5), (6, 9)]]),  # neighbours share a stretch
        ([(0, 5), (5, 9)], 10, [[(0, 5), (5, 9)]]),  # equal times are ordered by content: one stretch, even if it is large
        ([(0, 9), (1, 2), (3, 4), (10, 11)], 10, [[(0, 9), (1, 2), (3, 4)], [(10, 11)]]),
        ([ALWAYS, (1, 2), (3, 4)], 10, [[ALWAYS, (1, 2), (3, 4)]]),
    ],
)
def test_stretches(pieces: list[tuple[int, int]], bytes_max: int, expected: list[list[tuple[int, int]]]) -> None:
    assert spans(stretches([piece(*one) for one in pieces], bytes_max)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_stretches_of_any_pieces_follow_one_another(seed: int) -> None:
    dice = random.Random(seed)
    made = [piece(low := dice.randrange(1000), low + dice.randrange(40), dice.randrange(1, 20), number) for number in range(60)]
    found = stretches(made, 50)
    assert sorted((one for stretch in found for one in stretch.pieces), key=lambda one: one.group) == made
    for before, after in pairwise(found):
        assert max(one.high_us for one in before.pieces) < min(one.low_us for one in after.pieces)
        assert before.raw_bytes + after.raw_bytes > 50 or min(before.raw_bytes, after.raw_bytes) > 50
    for stretch in found:
        for earlier, later in pairwise(stretch.runs):
            assert max(one.high_us for one in earlier) < min(one.low_us for one in later)
        units = stretch.units(20)
        assert [one for unit in units for one in unit] == list(stretch.pieces)
        assert all(unit in stretch.runs or sum(one.raw_bytes for one in unit) <= 20 for unit in units)
        tasks = readings(stretch, 50)
        assert sorted(one.group for task in tasks for one in task) == sorted(one.group for one in stretch.pieces)
        assert all(len(task) == 1 or sum(one.raw_bytes for one in task) <= 50 for task in tasks)


@pytest.mark.parametrize("seed", range(20))
def test_buckets_hold_all_rows_in_order(seed: int) -> None:
    dice = random.Random(seed)
    rows = [dice.choice((0, 3, 50, 4000)) for _ in range(9)]
    samples = [[dice.randrange(dice.choice((1, 5, 10_000))) for _ in range(min(count, 500))] for count in rows]
    found = buckets(rows, samples, 10.0, 1000)
    assert {partition for partition, count in enumerate(rows) if count} == set(found.first)
    for partition, cuts in found.cuts.items():
        assert list(cuts) == sorted(set(cuts))
        numbers = [found.first[partition] + part for part in range(len(cuts) + 1)]
        assert [found.buckets[number].partitions for number in numbers] == [(partition,)] * len(numbers)
        # A part is near its bound, unless one time has more rows than that.
        times = samples[partition]
        parts = [bisect_right(cuts, time) for time in times]
        for part in set(parts):
            inside = [time for time, own in zip(times, parts, strict=True) if own == part]
            size = len(inside) / len(times) * rows[partition] * 10
            assert size <= 2000 or max(map(inside.count, set(inside))) > len(inside) / 4
    assert sum(bucket.raw_bytes for bucket in found.buckets) == pytest.approx(sum(rows) * 10)
    numbers = writers(found.buckets, 3000)
    assert sorted(set(numbers)) == list(range(max(numbers, default=-1) + 1)) and list(numbers) == sorted(numbers)
    for number in set(numbers):
        mine = [bucket.raw_bytes for bucket, own in zip(found.buckets, numbers, strict=True) if own == number]
        assert len(mine) == 1 or sum(mine) <= 3000
    together = [bucket for bucket in found.buckets if len(bucket.partitions) > 1]
    assert all(sum(rows[partition] for partition in bucket.partitions) * 10 <= 1000 for bucket in together)


def test_small_sources_are_few_tasks_and_large_ones_are_bounded() -> None:
    assert task_bytes(1 << 20, 8, Limits()) == 8 << 20
    assert task_bytes(1 << 30, 2, Limits()) == 128 << 20
    assert task_bytes(1 << 28, 8, Limits()) == 1 << 24
    assert task_bytes(100 << 20, 1, Limits()) == 100 << 20
    assert task_bytes(1 << 30, 2, Limits(64 << 20)) == 8 << 20
    assert task_bytes(1 << 20, 8, Limits(16 << 20)) == 2 << 20


@pytest.mark.parametrize("span", [3, 1000, 1 << 61])
@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_plain_python(seed: int, span: int) -> None:
    dice = random.Random(seed)
    count = 400

    def text() -> bytes | None:
        return None if dice.random() < 0.1 else bytes(dice.choice(b"\x00a\x7f\x80\xff") for _ in range(dice.randrange(3)))

    rows = [
        (dice.randrange(4), dice.randrange(-span, span), dice.choice((None, -5, 0, 7)), text(), text(), number)
        for number in range(count)
    ]
    columns = list(zip(*rows, strict=True))
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array(columns[0], pa.int32()),
            "timestamp": pa.array(columns[1], pa.int64()),
            "_tie_0": pa.array(columns[2], pa.int64()),
            "key": pa.array(columns[3], pa.binary()),
            "value": pa.array(columns[4], pa.binary()),
        }
    )
    order = in_order(batch, ["_tie_0"])
    assert sorted(order.tolist()) == list(range(count))

    def first(value: object) -> tuple[bool, object]:
        return (value is not None, 0 if value is None else value)

    def place(row: tuple[object, ...]) -> tuple[object, ...]:
        return (row[0], row[1], *map(first, row[2:5]))

    assert [place(rows[number]) for number in order] == sorted(map(place, rows))


def test_no_rows_have_no_order() -> None:
    empty = pa.RecordBatch.from_pydict({"partition": pa.array([], pa.int32())})
    assert np.array_equal(in_order(empty, []), [])
