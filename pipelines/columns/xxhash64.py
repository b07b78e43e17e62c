"""Spark's `xxhash64(timestamp, value)` by columns: it spreads rows without a key over the partitions.

XXH64 (https://xxhash.com/doc/), with the seed 42. As in Spark, the hash of one column is the seed of the next one, and a null
leaves the hash as it is.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headgate.broker.log.column_schema import ArrowArray, Int64s, binary_offsets, from_arrow, lengths

Hashes: TypeAlias = npt.NDArray[np.uint64]

SEED = np.uint64(42)
BLOCK_ROWS = 1 << 13
"""Rows that are hashed at once: their intermediate values fit into the processor's cache."""
_1 = np.uint64(0x9E3779B185EBCA87)
_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_3 = np.uint64(0x165667B19E3779F9)
_4 = np.uint64(0x85EBCA77C2B2AE63)
_5 = np.uint64(0x27D4EB2F165667C5)
_STRIPE = 32


def spread(times: ArrowArray, values: ArrowArray, partitions: int) -> Int64s:
    """The partition of each row that has no key: Spark's `pmod(xxhash64(timestamp, value), partitions)`.

    Args:
        times: int64, microseconds since 1970.
        values: binary.
    """
    found = np.empty(len(times), np.int64)
    for start in range(0, len(times), BLOCK_ROWS):
        some = slice(start, start + BLOCK_ROWS)
        found[some] = _hashes(times[some], values[some]).view(np.int64) % partitions
    return found


def _hashes(times: ArrowArray, values: ArrowArray) -> Hashes:
    known: Any = times.fill_null(0).to_numpy(zero_copy_only=False)
    seeds = np.full(len(times), SEED)
    of_times = _end(_word(seeds + _5 + np.uint64(8), known.view(np.uint64)))
    if times.null_count:
        of_times = np.where(times.is_null().to_numpy(zero_copy_only=False), seeds, of_times)
    sizes = lengths(values)
    return np.where(sizes < 0, of_times, _of_bytes(values, np.maximum(sizes, 0), of_times))


def _of_bytes(values: ArrowArray, sizes: Int64s, seeds: Hashes) -> Hashes:
    positions = binary_offsets(values).astype(np.int64)
    first, size = int(positions[0]), int(positions[-1] - positions[0])
    data: Any = np.zeros(size + 8, np.uint8)
    if size:
        data[:-8] = from_arrow(values.buffers()[2], np.uint8, size, first)
    starts = positions[:-1] - first
    # Eight bytes from every position.
    words: Hashes = np.ndarray((len(data) - 7,), "<u8", data.data, 0, (1,))
    hashed = seeds + _5
    rows = np.flatnonzero(sizes >= _STRIPE)
    if len(rows):
        hashed[rows] = _of_stripes(words, starts[rows], sizes[rows] // _STRIPE, seeds[rows])
    hashed += sizes.astype(np.uint64)
    ends = starts + sizes
    at = starts + sizes // _STRIPE * _STRIPE
    for _ in range(3):
        rows = np.flatnonzero(at + 8 <= ends)
        hashed[rows] = _word(hashed[rows], words[at[rows]])
        at[rows] += 8
    rows = np.flatnonzero(at + 4 <= ends)
    four = words[at[rows]] & np.uint64(0xFFFFFFFF)
    hashed[rows] = _turned(hashed[rows] ^ four * _1, 23) * _2 + _3
    at[rows] += 4
    for _ in range(3):
        rows = np.flatnonzero(at < ends)
        hashed[rows] = _turned(hashed[rows] ^ data[at[rows]].astype(np.uint64) * _5, 11) * _1
        at[rows] += 1
    return _end(hashed)


def _of_stripes(words: Hashes, starts: Int64s, stripes: Int64s, seeds: Hashes) -> Hashes:
    """The hashes of all whole stripes of 32 bytes; each row has one at least."""
    lanes = [seeds + _1 + _2, seeds + _2, seeds.copy(), seeds - _1]
    rows = np.arange(len(starts))
    for number in range(int(stripes.max())):
        rows = rows[stripes[rows] > number]
        at = starts[rows] + number * _STRIPE
        for lane, values in enumerate(lanes):
            values[rows] = _turned(values[rows] + words[at + 8 * lane] * _2, 31) * _1
    hashed = sum((_turned(values, by) for values, by in zip(lanes, (1, 7, 12, 18), strict=True)), np.zeros_like(seeds))
    for values in lanes:
        hashed = (hashed ^ _turned(values * _2, 31) * _1) * _1 + _4
    return hashed


def _word(hashed: Hashes, words: Hashes) -> Hashes:
    """The hashes after eight more bytes."""
    return _turned(hashed ^ _turned(words * _2, 31) * _1, 27) * _1 + _4


def _turned(values: Hashes, by: int) -> Hashes:
    return values << np.uint64(by) | values >> np.uint64(64 - by)


def _end(hashed: Hashes) -> Hashes:
    hashed = (hashed ^ hashed >> np.uint64(33)) * _2
    hashed = (hashed ^ hashed >> np.uint64(29)) * _3
    return hashed ^ hashed >> np.uint64(32)
