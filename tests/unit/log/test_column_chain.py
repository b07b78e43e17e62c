"""Starts of records: lanes give the same ones as a sequential scan, and wrongly guessed lanes are detected."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from headgate.broker.log import column_chain
from headgate.broker.log.batch import HEADER_BYTES
from headgate.broker.log.column_chain import find_records
from headgate.broker.log.column_schema import Int64s
from headgate.broker.log.records import Record, encode_batch

CHANCE = random.Random(7)


class Batches:
    """Some batches back to back, each of records with these values."""

    def __init__(self, *batches: list[bytes]) -> None:
        encoded = [
            bytes(encode_batch([Record(at, 1000 + 3 * at, b"k%d" % at, value, ()) for at, value in enumerate(values)]))
            for values in batches
        ]
        sizes = np.array([len(batch) for batch in encoded])
        self.data = b"".join(encoded)
        self.ends = np.cumsum(sizes)
        self.firsts = self.ends - sizes + HEADER_BYTES
        self.counts = np.array([len(values) for values in batches])

    def one_by_one(self) -> list[int]:
        walked = [column_chain._walk(self.data, *args) for args in zip(self.firsts.tolist(), self.counts.tolist(), strict=True)]
        return [start for starts in walked for start in starts]

    def in_lanes(self) -> list[int] | None:
        found = column_chain._in_lanes(self.data, self.firsts, self.ends, self.counts)
        return None if found is None else found.tolist()

    def found(self) -> list[int] | None:
        found = find_records(self.data, self.firsts, self.ends, self.counts)
        return None if found is None else found.tolist()


def values(count: int, low: int, high: int, fill: Callable[[int], bytes] = CHANCE.randbytes) -> list[bytes]:
    return [fill(CHANCE.randint(low, high)) for _ in range(count)]


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([values(5000, 50, 150)], id="one"),
        pytest.param([values(4000, 500, 1500)], id="large-values"),
        pytest.param([values(3000, 0, 20)], id="small-values"),
        pytest.param([values(60, 50, 150) for _ in range(100)], id="many"),
        pytest.param([values(count, 10, 300) for count in (1, 5000, 3, 700, 1)], id="of-all-sizes"),
        pytest.param([values(5000, 50, 150, lambda size: b"x" * size)], id="text"),
        pytest.param([values(5000, 50, 150, lambda size: b"\1\0\2\3\4\5\6\7" * (size // 8))], id="zeros-among-them"),
    ],
)
def test_lanes_find_what_is_there(batches: list[list[bytes]]) -> None:
    some = Batches(*batches)
    assert some.in_lanes() == some.one_by_one() == some.found()


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([values(2000, 9000, 9100)], id="longer-than-two-bytes-say"),
        pytest.param([values(2000, 100, 100) + values(1, 100_000, 100_000)], id="a-single-long-one"),
        pytest.param([values(2000, 100, 300, bytes)], id="nothing-but-zeros"),
        pytest.param([values(4000, 50, 150, lambda size: b"\1\0" * (size // 2))], id="full-of-zeros"),
    ],
)
def test_what_lanes_are_not_for_is_found_all_the_same(batches: list[list[bytes]]) -> None:
    some = Batches(*batches)
    assert some.in_lanes() is None
    assert some.found() == some.one_by_one()


def test_lanes_that_begin_at_the_wrong_place_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Batches(values(5000, 50, 150))
    right = some.one_by_one()
    guess = column_chain._guess

    def wrong(*args: object) -> Int64s:
        guessed = guess(*args)  # type: ignore[arg-type]
        return np.unique(np.append(guessed, guessed[10:90:8] + 1))

    monkeypatch.setattr(column_chain, "_guess", wrong)
    assert some.in_lanes() == right


@pytest.mark.parametrize("inside", [0, 1])
def test_values_that_look_like_records(inside: int) -> None:
    """Batches inside values: their records have valid lengths and offsets, but are no records."""
    nested = bytes(encode_batch([Record(at, 1000, b"k", b"v" * 40, ()) for at in range(30)]))[HEADER_BYTES + inside :]
    some = Batches([nested] * 2000)
    assert some.found() == some.one_by_one()


def test_records_that_are_cut_off() -> None:
    some = Batches(values(3000, 50, 150))
    some.data = some.data[: some.ends[0] - 200]
    assert some.found() is None


def test_more_records_than_there_are() -> None:
    some = Batches(values(3000, 50, 150), values(3000, 50, 150))
    some.counts = np.array([2999, 3001])
    assert some.in_lanes() is None
