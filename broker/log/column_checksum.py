"""A sum over rows that does not depend on their order, so that two copies of a history can be compared without sorting either.

All arithmetic is modulo 2^64. The hash of some bytes: pad them with zeros to 8-byte little-endian words ``w``, then

    poly  = sum of stir(w[j]) * R**j            stir(w) = v ^ v >> 29 where v = (w ^ w >> 32) * S
    hash  = finish(poly + length * L)           finish = the finalizer of MurmurHash3 (64 bits); null has a fixed hash

and of a row: ``h = finish(time_ms + T)``, then ``h = finish(h * M + hash(part))`` for key, value and headers, these as the bytes
of the record's header section without the count. The sum of these is the checksum. It tells accidents, not forgers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.column_encoder import Sources, header_bytes
from headgate.broker.log.column_schema import ArrowArray, Columns, Int64s, binary_offsets, from_arrow, lengths, take_apart
from headgate.broker.log.column_varints import Uint64s

_MASK = (1 << 64) - 1
_R = 0x9E3779B97F4A7C15
_R_INVERSE = pow(_R, -1, 1 << 64)
_S = np.uint64(0xD6E8FEB86659FD93)
_L = np.uint64(0xA24BAED4963EE407)
_T = np.uint64(0x9FB21C651E98DF25)
_M = np.uint64(0xC2B2AE3D27D4EB4F)
_NULL = np.uint64(0x7FB5D329728EA185)
_NO_HEADERS = np.uint64(0x2545F4914F6CDD1D)

_29, _32, _33 = np.uint64(29), np.uint64(32), np.uint64(33)
_F1, _F2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)

_BLOCK_WORDS = 1 << 15
"""Words that are summed together: they fit the cache of a core."""
_LONG_WORDS = 32
"""Mean length, in words, from which copying values costs less than gathering their words."""


def checksum(rows: pa.RecordBatch | pa.Table) -> int:
    """The sum of the hashes of all rows, in [0, 2^64). Sums of parts add up (modulo 2^64); `offset` does not count.

    Raises InvalidError as `take_apart` does.
    """
    total = 0
    for part in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        if part.num_rows:
            total += int(row_hashes(take_apart(part)).sum(dtype=np.uint64))
    return total & _MASK


def row_hashes(columns: Columns) -> Uint64s:
    """One hash per row."""
    hashes = _finish(columns.timestamps.astype(np.uint64) + _T)
    for column in (columns.key, columns.value):
        hashes = _finish(hashes * _M + _hash(column))
    if columns.headers is None:
        return _finish(hashes * _M + _NO_HEADERS)
    counts, blobs = header_bytes(columns.headers)
    return _finish(hashes * _M + np.where(counts > 0, _hash(blobs), _NO_HEADERS))


def _finish(values: Uint64s) -> Uint64s:
    values = values ^ (values >> _33)
    values *= _F1
    values ^= values >> _33
    values *= _F2
    values ^= values >> _33
    return values


def _hash(array: ArrowArray) -> Uint64s:
    sizes = lengths(array)
    used = np.maximum(sizes, 0)
    hashes = np.empty(len(sizes), np.uint64)
    ends = np.cumsum((used + 7) >> 3)
    row = 0
    while row < len(sizes):
        before = int(ends[row - 1]) if row else 0
        end = max(int(np.searchsorted(ends, before + _BLOCK_WORDS, side="right")), row + 1)
        hashes[row:end] = _sums(array.slice(row, end - row), sizes[row:end])
        row = end
    hashes = _finish(hashes + used.astype(np.uint64) * _L)
    if array.null_count:
        hashes[sizes < 0] = _NULL
    return hashes


def _sums(array: ArrowArray, sizes: Int64s) -> Uint64s:
    """`poly` of each value. They have at most `_BLOCK_WORDS` words together, or there is one value only."""
    used = np.maximum(sizes, 0)
    words = _padded_words(array, used)
    total = np.zeros(len(words) + 1, np.uint64)
    scale, carry = 1, np.uint64(0)
    for start in range(0, len(words), _BLOCK_WORDS):
        block = words[start : start + _BLOCK_WORDS]
        stirred = block ^ (block >> _32)
        stirred *= _S
        stirred ^= stirred >> _29
        stirred *= _POWERS[: len(block)]
        if scale != 1:
            stirred *= np.uint64(scale)
        sums = total[start + 1 : start + 1 + len(block)]
        np.cumsum(stirred, out=sums)
        if start:
            sums += carry
        carry = sums[-1]
        scale = scale * _BLOCK_SCALE & _MASK
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum((used + 7) >> 3, out=ends[1:])
    if len(sizes) == 1:
        return total[ends[1:]]
    return (total[ends[1:]] - total[ends[:-1]]) * _INVERSE_POWERS[ends[:-1]]


def _padded_words(array: ArrowArray, used: Int64s) -> Uint64s:
    """The words of all values, one after the other; the last word of a value ends with zeros."""
    counts = (used + 7) >> 3
    total = int(counts.sum())
    buffer = array.buffers()[2]
    if buffer is None or not total:
        return np.zeros(0, np.uint64)
    offsets = binary_offsets(array)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = from_arrow(buffer, np.uint8, end - begin, begin)
    size = int(used[0])
    if end - begin == size * len(used) and int(used.min()) == int(used.max()):
        # Values of one length: their words are there, or each value is copied to a row of its own.
        if size & 7 == 0 and begin & 7 == 0:
            return data.view(np.uint64)
        rows = np.zeros((len(used), int(counts[0]) * 8), np.uint8)
        rows[:, :size] = data.reshape(len(used), size)
        return rows.view(np.uint64).reshape(-1)
    if total > _LONG_WORDS * len(used):
        return _joined_words(array, used, total)
    padded = np.zeros(end - begin + 8, np.uint8)
    padded[: end - begin] = data
    # Eight bytes from every position.
    spread: Uint64s = np.ndarray((len(padded) - 7,), "<u8", padded.data, 0, (1,))
    ends = np.cumsum(counts)
    starts = offsets[:-1].astype(np.int64) - begin
    places = np.repeat(starts - 8 * (ends - counts), counts)
    places += _PLACES[:total] if total <= _BLOCK_WORDS else 8 * np.arange(total)
    words: Uint64s = spread[places]
    short = np.flatnonzero(used & 7)
    words[ends[short] - 1] &= _MASKS[used[short] & 7]
    return words


def _joined_words(array: ArrowArray, used: Int64s, total: int) -> Uint64s:
    """`_padded_words` of long values: Arrow joins each value and its zeros."""
    sources = Sources()
    laid = np.zeros((len(used), 2, 2), np.uint64)
    laid[:, 0] = sources.views(array, lengths(array))
    laid[:, 1, 0] = -used & 7
    return from_arrow(sources.join(laid.reshape(-1, 2)).buffers()[2], np.uint64, total)


def _powers(base: int) -> Uint64s:
    values: npt.NDArray[np.uint64] = np.ones(_BLOCK_WORDS + 1, np.uint64)
    values[1:] = np.uint64(base)
    return np.multiply.accumulate(values)


_POWERS = _powers(_R)
_INVERSE_POWERS = _powers(_R_INVERSE)
_BLOCK_SCALE = pow(_R, _BLOCK_WORDS, 1 << 64)
_PLACES: Int64s = 8 * np.arange(_BLOCK_WORDS, dtype=np.int64)
_MASKS: Uint64s = np.array([(1 << 8 * size) - 1 for size in range(8)], np.uint64)
"""The bytes of a word that belong to a value of 1 to 7 bytes."""
