"""RecordBatch v2 to columns, with no Python per row.

The first step finds the beginning of each record (column_chain.py). Then all records are parsed together, field by field: a byte
or two are gathered at each record's position, or eight for a longer varint, which is extracted from that word. Keys and values
leave as binary views into the batches, which one cast copies together.

Batches with anything unexpected (a varint of nine bytes, lengths that contradict each other) go to `records.iter_records`, which
decides whether they are corrupt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.batch import (
    CODEC_MASK,
    CODEC_MAX,
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Buffer,
    split,
    unpack_header,
)
from headgate.broker.log.column_chain import RECORD_BYTES_MIN, find_records
from headgate.broker.log.column_schema import HEADERS_TYPE, SCHEMA, ArrowArray, Int64s, to_arrow
from headgate.broker.log.compression import DECOMPRESSED_BYTES_MAX, Codec, decompress
from headgate.broker.log.crc import crc32c
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.errors import InvalidError, Reason

Uint64s: TypeAlias = npt.NDArray[np.uint64]

GROUP_BYTES = 4 << 20
"""Bytes that are joined and parsed together, except for a single larger batch: within a core's caches."""
IN_PLACE_BYTES = 16 << 20
"""The same for bytes that are parsed in place: more rows share numpy's fixed costs."""
POSITION_MAX = (1 << 31) - 1
"""Largest position that a binary view can hold."""

_WORD_BYTES = 8
_IN_PLACE_BYTES = 12
_HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)
_32 = np.uint64(32)


class _Batch(NamedTuple):
    header: tuple[int, ...]
    """The fields of a `BatchHeader`, in its order."""
    whole: memoryview
    records: Buffer
    within: bytes | None
    """The records, at `position`; None for compressed records, and for buffers other than bytes."""
    position: int


class _UnusualError(Exception):
    """Raised for input that the fast path does not handle, or that is corrupt."""


def decode_batches(
    buffers: Iterable[Buffer],
    *,
    start: int | None = None,
    end: int | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> pa.RecordBatch:
    """The records of batches, in `column_schema.SCHEMA`, as one part of `decode_in_parts`."""
    (rows,) = decode_in_parts(buffers, start=start, end=end, decompressed_bytes_max=decompressed_bytes_max)
    return rows


def decode_in_parts(
    buffers: Iterable[Buffer],
    *,
    start: int | None = None,
    end: int | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    records_max: int | None = None,
    part_bytes: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of batches, in `column_schema.SCHEMA`, at least one part. Control batches are skipped; a record without headers
    has null there.

    Args:
        buffers: each with one or more whole batches, back to back.
        start, end: only offsets in [start, end).
        decompressed_bytes_max, records_max: of one batch.
        part_bytes: size of records from which a part is complete: memory is bounded by it and one batch. None: all are one part.

    Raises:
        InvalidError: CORRUPT_MESSAGE (also where a CRC is wrong) or UNSUPPORTED_COMPRESSION, for any bytes whatever; above
            2 GB MESSAGE_TOO_LARGE.
    """
    low = start if start is not None else -(1 << 62)
    high = end if end is not None else 1 << 62
    parts: list[list[ArrowArray]] = []
    group: list[_Batch] = []
    size = held = 0
    given = False
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        within = view.obj if isinstance(view.obj, bytes) and len(view.obj) == len(view) else None
        position = 0
        for whole in split(view):
            batch = _open(whole, within, position, low, high, decompressed_bytes_max)
            position += len(whole)
            if batch is None:
                continue
            if records_max is not None and batch.header[12] > records_max:
                raise _corrupt("has too many records to be decoded", batch.header[12])
            stays = group and batch.within is not None and batch.within is group[0].within
            if group and size + len(batch.records) > (IN_PLACE_BYTES if stays else GROUP_BYTES):
                parts.append(_decode_group(group, low, high, decompressed_bytes_max))
                group, size = [], 0
            if not group and part_bytes is not None and held >= part_bytes:
                yield _joined(parts)
                parts, held, given = [], 0, True
            group.append(batch)
            size += len(batch.records)
            held += len(batch.records)
    if group:
        parts.append(_decode_group(group, low, high, decompressed_bytes_max))
    if parts or not given:
        yield _joined(parts)


def _joined(parts: list[list[ArrowArray]]) -> pa.RecordBatch:
    if not parts:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in SCHEMA], schema=SCHEMA)
    columns = parts[0] if len(parts) == 1 else [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]
    try:
        # Up to here keys and values are views: this is their only copy.
        return pa.RecordBatch.from_arrays(
            [column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
        )
    except pa.ArrowInvalid as error:
        raise InvalidError(Reason.MESSAGE_TOO_LARGE, f"more than 2 GB of keys or values cannot be one table: {error}") from error


def timestamp_types(batches: Buffer, offsets: Int64s) -> npt.NDArray[np.int32]:
    """The timestamp types of decoded records, numbered as in Kafka's clients: 0 CreateTime, 1 LogAppendTime.

    Args:
        batches: whole batches, back to back, with these records.
        offsets: the records' offsets, each in one of the batches.
    """
    headers = [unpack_header(whole) for whole in split(memoryview(batches))]
    last_offsets = np.array([header[0] + header[6] for header in headers], np.int64)
    types = np.array([header[5] & LOG_APPEND_TIME != 0 for header in headers], np.int32)
    return types[np.searchsorted(last_offsets, offsets)]


def _open(
    whole: memoryview, within: bytes | None, position: int, low: int, high: int, decompressed_bytes_max: int
) -> _Batch | None:
    header = unpack_header(whole)
    base_offset, _, _, magic, crc, attributes, last_delta, _, _, _, _, _, count = header
    if magic != 2:
        raise _corrupt("has an unknown magic", magic)
    if crc32c(whole[CRC_START:]) != crc:
        raise _corrupt("does not match its CRC-32C", crc)
    codec = attributes & CODEC_MASK
    if codec > CODEC_MAX:
        raise InvalidError(Reason.UNSUPPORTED_COMPRESSION, f"record batch has an unknown codec. codec=`{codec}`")
    if attributes & CONTROL or base_offset + last_delta < low or base_offset >= high or not count:
        return None
    records: Buffer = whole[HEADER_BYTES:]
    if codec:
        records, within = decompress(Codec(codec), whole[HEADER_BYTES:], decompressed_bytes_max), None
    return _Batch(header, whole, records, within, position + HEADER_BYTES)


def _decode_group(group: list[_Batch], low: int, high: int, decompressed_bytes_max: int) -> list[ArrowArray]:
    try:
        return _Group(group).decode(low, high)
    except _UnusualError:
        return _decode_slowly(group, low, high, decompressed_bytes_max)


def _decode_slowly(group: list[_Batch], low: int, high: int, decompressed_bytes_max: int) -> list[ArrowArray]:
    records: list[Record] = []
    for batch in group:
        records += iter_records(batch.whole, decompressed_bytes_max=decompressed_bytes_max)
    records = [record for record in records if low <= record.offset < high]
    headers = [
        [
            {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
            for name, value in record.headers
        ]
        or None
        for record in records
    ]
    return [
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.timestamp_ms for record in records], pa.int64()).cast(SCHEMA.field("timestamp").type),
        pa.array([record.key for record in records], pa.binary_view()),
        pa.array([record.value for record in records], pa.binary_view()),
        pa.array(headers, HEADERS_TYPE),
    ]


class _Group:
    """The records of some batches in one buffer."""

    def __init__(self, group: list[_Batch]) -> None:
        sizes = np.array([len(batch.records) for batch in group], np.int64)
        within = group[0].within
        if within is not None and all(batch.within is within for batch in group) and len(within) <= POSITION_MAX:
            # They are read in place, or joined first.
            self._data = within
            self._batch_starts = np.array([batch.position for batch in group], np.int64)
            self._batch_ends = self._batch_starts + sizes
        else:
            self._data = b"".join([*(batch.records for batch in group), bytes(_WORD_BYTES)])
            self._batch_ends = np.cumsum(sizes)
            self._batch_starts = self._batch_ends - sizes
        # Eight bytes from every position; gathering from this array makes the rest fast.
        self._last_word = len(self._data) - _WORD_BYTES
        self._words: Uint64s = np.ndarray((self._last_word + 1,), "<u8", self._data, 0, (1,))
        self._octets = np.frombuffer(self._data, np.uint8)
        base_offset, _, _, _, _, attributes, last_delta, base_time, max_time, _, _, _, count = zip(
            *(batch.header for batch in group), strict=True
        )
        self._base_offsets = np.array(base_offset, np.int64)
        self._attributes = np.array(attributes, np.int64)
        self._last_deltas = np.array(last_delta, np.int64)
        self._base_times = np.array(base_time, np.int64)
        self._max_times = np.array(max_time, np.int64)
        self._counts = np.array(count, np.int64)
        if int(self._counts.min()) < 0 or bool((self._counts * RECORD_BYTES_MIN > sizes).any()):
            raise _UnusualError("a record takes seven bytes or more")

    def decode(self, low: int, high: int) -> list[ArrowArray]:
        """The columns of `SCHEMA`, keys and values as views."""
        starts = find_records(self._data, self._batch_starts, self._batch_ends, self._counts)
        if starts is None:
            raise _UnusualError("a record is cut off")
        first_rows = np.cumsum(self._counts) - self._counts
        size, body = self._varint(starts)
        ends = body + size
        # The chain is right if each record ends where the next begins, and the last of a batch at the batch's end.
        following = np.empty_like(starts)
        following[:-1] = starts[1:]
        following[first_rows + self._counts - 1] = self._batch_ends
        if not np.array_equal(ends, following):
            raise _UnusualError("records and their lengths disagree")
        time_delta, at = self._varint(body + 1)
        offset_delta, at = self._varint(at)
        key_start, key_size, at = self._bytes(at, ends)
        value_start, value_size, at = self._bytes(at, ends)
        header_count, at = self._varint(at)
        if bool((at > ends).any()):
            raise _UnusualError("fields do not fit")
        offsets = self._offsets(offset_delta, first_rows)
        times = self._times(time_delta)
        bare = not header_count.any()
        if bare and not np.array_equal(at, ends):
            raise _UnusualError("records have bytes behind their fields")
        headers = None if bare else self._headers(header_count, at, ends)
        columns: list[ArrowArray] = [
            pa.array(offsets),
            pa.Array.from_buffers(SCHEMA.field("timestamp").type, len(times), [None, to_arrow(times)]),
        ]
        keep: Int64s | None = None
        if int(offsets.min()) < low or int(offsets.max()) >= high:
            keep = np.flatnonzero((offsets >= low) & (offsets < high))
            key_start, key_size, value_start, value_size = key_start[keep], key_size[keep], value_start[keep], value_size[keep]
            columns = [column.take(pa.array(keep)) for column in columns]
        columns.append(self._array(key_start, key_size))
        columns.append(self._array(value_start, value_size))
        if headers is None:
            columns.append(pa.nulls(len(key_size), HEADERS_TYPE))
        else:
            columns.append(headers if keep is None else headers.take(pa.array(keep)))
        return columns

    def _offsets(self, deltas: Int64s, first_rows: Int64s) -> Int64s:
        steps = np.diff(deltas)
        steps[first_rows[1:] - 1] = 1
        last = self._last_deltas
        if (
            bool((steps < 1).any())
            or bool((deltas[first_rows] < 0).any())
            or bool((deltas[first_rows + self._counts - 1] > last).any())
        ):
            raise _UnusualError("offsets do not grow")
        return deltas + np.repeat(self._base_offsets, self._counts)

    def _times(self, deltas: Int64s) -> Int64s:
        times = deltas + np.repeat(self._base_times, self._counts)
        appended = (self._attributes & LOG_APPEND_TIME) != 0
        if appended.any():
            times = np.where(np.repeat(appended, self._counts), np.repeat(self._max_times, self._counts), times)
        return times

    def _gather(self, positions: Int64s) -> Uint64s:
        """Eight bytes from each position on; 0 behind the end."""
        words = self._words[np.minimum(positions, self._last_word)]
        beyond = np.flatnonzero(positions > self._last_word)
        if len(beyond):
            # (A shift by 64 or more gives 0 in numpy.) A position behind the end is detected later: a record's end is checked.
            words[beyond] >>= (positions[beyond] - self._last_word).view(np.uint64) << np.uint64(3)
        return words

    def _varint(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The zigzag varints at some positions, and the positions behind them."""
        # (A position behind the end is detected later: a record's end is checked.)
        first = self._octets.take(positions, mode="clip")
        more = first >= 0x80
        if not more.any():
            zigzag = first.astype(np.int64)
            behind = positions + 1
        else:
            second = self._octets.take(positions + 1, mode="clip")
            if int((first & second).max()) >= 0x80:
                return self._long_varint(positions)
            zigzag = (first & 0x7F).astype(np.int64) | (second * more).astype(np.int64) << 7
            behind = positions + 1 + more
        return (zigzag >> 1) ^ -(zigzag & 1), behind

    def _long_varint(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """The same, when some have more than two bytes."""
        words = self._gather(positions)
        stops = ~words & _HIGH_BITS
        lowest = stops & (~stops + _ONE)
        mask = lowest | (lowest - _ONE)
        widths = np.bitwise_count(mask) >> 3
        width_max = int(widths.max())
        if width_max > 8 or not stops.all():
            raise _UnusualError("a varint has more than eight bytes")
        groups = words & mask & _LOW_BITS
        values = groups & np.uint64(0x7F)
        for index in range(1, width_max):
            values |= (groups >> np.uint64(index)) & np.uint64(0x7F << 7 * index)
        signed = values.view(np.int64)
        return (signed >> 1) ^ -(signed & 1), positions + widths

    def _bytes(self, positions: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """(start, length or -1 for null, position behind it) of bytes with their length before them."""
        sizes, starts = self._varint(positions)
        if int(sizes.min()) < -1:
            raise _UnusualError("a length is negative")
        behind = starts + np.maximum(sizes, 0)
        if bool((behind > ends).any()):
            raise _UnusualError("a field does not fit")
        return starts, sizes, behind

    def _array(self, starts: Int64s, sizes: Int64s) -> ArrowArray:
        """Views of the bytes there; null where the size is -1."""
        count = len(starts)
        present = None if not count or int(sizes.min()) >= 0 else sizes >= 0
        used = sizes if present is None else np.maximum(sizes, 0)
        views = np.empty((count, 2), np.uint64)
        views[:, 0] = used
        views[:, 1] = starts.astype(np.uint64) << _32
        small = np.flatnonzero(used <= _IN_PLACE_BYTES)
        if len(small):
            first = self._gather(starts[small])
            views[small, 0] |= first << _32
            views[small, 1] = first >> _32 | self._gather(starts[small] + 8) << _32
        bitmap = None if present is None else to_arrow(np.packbits(present, bitorder="little"))
        data = pa.py_buffer(self._data)
        return pa.Array.from_buffers(pa.binary_view(), count, [bitmap, to_arrow(views), data], -1)

    def _headers(self, counts: Int64s, at: Int64s, ends: Int64s) -> ArrowArray:
        if int(counts.min()) < 0 or bool((counts > (ends - at) // 2).any()):
            raise _UnusualError("a header count does not fit")
        list_offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=list_offsets[1:])
        total = int(list_offsets[-1])
        name_start, name_size, value_start, value_size = (np.empty(total, np.int64) for _ in range(4))
        at = at.copy()
        rows = np.flatnonzero(counts)
        for number in range(int(counts.max())):
            rows = rows[counts[rows] > number]
            items = list_offsets[rows] + number
            name_start[items], name_size[items], at[rows] = self._bytes(at[rows], ends[rows])
            value_start[items], value_size[items], at[rows] = self._bytes(at[rows], ends[rows])
        if not np.array_equal(at, ends) or int(name_size.min()) < 0:
            raise _UnusualError("headers and the record's length disagree")
        try:
            names = self._array(name_start, name_size).cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise _UnusualError("a header's name is not UTF-8") from error
        items_array = pa.StructArray.from_arrays(
            [names, self._array(value_start, value_size).cast(pa.binary())], fields=list(HEADERS_TYPE.value_type)
        )
        bitmap = to_arrow(np.packbits(counts > 0, bitorder="little"))
        buffers: list[pa.Buffer | None] = [bitmap, to_arrow(list_offsets.astype(np.int32))]
        return pa.Array.from_buffers(HEADERS_TYPE, len(counts), buffers, children=[items_array])


def _corrupt(what: str, value: int) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, f"record batch {what}. value=`{value}`")
