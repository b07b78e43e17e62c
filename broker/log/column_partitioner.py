"""`partitioner.partition_for_key` for a column of keys, with no Python per row."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.column_schema import ArrowArray, Int64s, binary_offsets, from_arrow, lengths

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
FEW_KEYS = 64
"""As many keys as this, or fewer, are hashed one by one where only they are long enough: a step of numpy takes as long."""


def partitions_for_keys(keys: ArrowArray, partitions: int) -> Int64s:
    """The partition of each key of a binary array, in a topic of `partitions`; -1 where the key is null."""
    sizes = lengths(keys)
    found = (murmur2_of(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
    return np.where(sizes < 0, -1, found)


def murmur2_of(keys: ArrowArray) -> npt.NDArray[np.uint32]:
    """`partitioner.murmur2` of each key; undefined for null."""
    sizes = np.maximum(lengths(keys), 0)
    if not len(sizes):
        return np.zeros(0, np.uint32)
    starts = binary_offsets(keys)[:-1].astype(np.int64)
    buffer = keys.buffers()[2]
    data = np.zeros((0 if buffer is None else buffer.size) + 4, np.uint8)
    if buffer is not None:
        data[:-4] = from_arrow(buffer, np.uint8)
    # Four bytes from every position.
    words: npt.NDArray[np.uint32] = np.ndarray((len(data) - 3,), "<u4", data.data, 0, (1,))
    hashed = _SEED ^ sizes.astype(np.uint32)
    # As far as every key reaches, all are hashed together; then those that are longer.
    common = int(sizes.min()) >> 2
    for number in range(common):
        word = words[starts + 4 * number] * _M
        word = (word ^ word >> np.uint32(24)) * _M
        hashed *= _M
        hashed ^= word
    rows = np.flatnonzero(sizes >> 2 > common)
    number = common
    while len(rows) > FEW_KEYS:
        word = words[starts[rows] + 4 * number] * _M
        word = (word ^ word >> np.uint32(24)) * _M
        hashed[rows] = hashed[rows] * _M ^ word
        number += 1
        rows = rows[sizes[rows] >> 2 > number]
    for row in rows:
        whole = words[starts[row] + 4 * number : starts[row] + (sizes[row] & ~3) : 4] * _M
        hashed[row] = _folded(int(hashed[row]), ((whole ^ whole >> np.uint32(24)) * _M).tolist())
    rest = sizes & 3
    rows = np.flatnonzero(rest)
    tail = words[starts[rows] + (sizes[rows] & ~3)] & ((1 << 8 * rest[rows]) - 1).astype(np.uint32)
    hashed[rows] = (hashed[rows] ^ tail) * _M
    hashed = (hashed ^ hashed >> np.uint32(13)) * _M
    return hashed ^ hashed >> np.uint32(15)


def _folded(found: int, words: list[int]) -> int:
    for word in words:
        found = found * 0x5BD1E995 & 0xFFFFFFFF ^ word
    return found


def split_by_partition(rows: pa.Table, numbers: Int64s) -> list[tuple[int, pa.Table]]:
    """The rows of each non-empty partition, in the order of the table."""
    order = np.argsort(numbers, kind="stable")
    return [(number, rows.take(order[start:end])) for number, start, end in runs(numbers[order])]


def runs(numbers: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """(number, first row, end row) of each run of equal numbers."""
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return ((int(numbers[start]), start, end) for start, end in pairwise(cuts) if start < end)
