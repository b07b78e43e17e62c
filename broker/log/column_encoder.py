"""Rows of columns to RecordBatch v2, with no Python per row.

A record is a handful of varints between the bytes of its key and its value (records.py has the layout). Arrow's *binary view* is
(length, up to 12 bytes in place) or (length, buffer, position), so a record is a few views: the varints in place, the key and
the value by reference. numpy computes the views, and one cast from binary view to binary copies each byte once, into batches
with room for their 61-byte headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from headgate.broker.log.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_ID,
    pack_header,
    stamp_crc,
)
from headgate.broker.log.column_schema import ArrowArray, Columns, Int64s, binary_offsets, from_arrow, lengths, take_apart, to_arrow
from headgate.broker.log.column_varints import BATCH_ROWS_MAX, IN_PLACE_BYTES, Entries, Varint, Views, numbered, width_of
from headgate.broker.log.compression import Codec, compress
from headgate.broker.runtime.errors import InvalidError, Reason

BATCH_BYTES_MAX = 1 << 20
GROUP_ROWS = 32 << 10
"""Rows that are laid out together: enough to keep numpy busy, few enough that its arrays fit a core's cache."""
RECORD_BYTES_MAX = 1 << 30
"""Bound of a record's own bytes. Arrow's positions have 31 bits."""

_REFERENCE = np.dtype([("size", "<u8"), ("buffer", "<u4"), ("position", "<u4")])
"""A binary view of a long value. Behind its size of four bytes stand its first bytes; this code never reads them."""


def encode_batches(
    rows: pa.RecordBatch | pa.Table,
    base_offset: int,
    *,
    leader_epoch: int = 0,
    compression: Codec | int | str = Codec.NONE,
    batch_bytes_max: int = BATCH_BYTES_MAX,
    batch_rows_max: int = BATCH_ROWS_MAX,
    end_offset: int | None = None,
) -> Iterator[memoryview]:
    """The rows as batches without producer: of consecutive offsets, or of those in the column `offset`.

    Consumers see one time in a batch with LogAppendTime. So a batch never mixes timestamp types, and rows with LogAppendTime share
    a batch only if they have the same time.

    Args:
        rows: columns as in `column_schema.SCHEMA`, and `timestamp_type` if some have LogAppendTime.
        base_offset: of the first row. A column `offset` must agree with it.
        end_offset: None: offsets are consecutive. Otherwise the rows have the offsets of the column `offset`, which may have gaps,
            and the batches together cover [base_offset, end_offset), less than 2^31 offsets.
        compression: a codec, its number or its name. A batch that does not shrink stays uncompressed.
        batch_bytes_max: of one batch before compression, header included. A larger row is a batch of its own.
        batch_rows_max: rows of one batch.

    Returns:
        One buffer per batch, each made on request. A caller that releases one before it requests the next gets all of them in the
        same memory, which a core's cache holds: a fifth faster.

    Raises:
        InvalidError: see `take_apart`; INVALID_RECORD when `offset` is not consecutive; MESSAGE_TOO_LARGE above 1 GiB.
    """
    codec = Codec.named(compression) if isinstance(compression, str) else Codec(compression)
    assert batch_bytes_max > 0 and batch_rows_max > 0, "a batch has room for one row"
    columns = take_apart(rows)
    if not len(columns):
        return iter(())
    if end_offset is not None:
        _check_order(columns.offsets, base_offset, end_offset)
    elif columns.offsets is not None:
        _check_offsets(columns.offsets, base_offset)
    records = _Records(columns)
    bounds = _bounds(records, batch_bytes_max, batch_rows_max)
    return _encoded(records, bounds, _Places(bounds, base_offset, end_offset, columns.offsets), leader_epoch, codec)


class DividedRows:
    """Rows that become batches in parts, each in an order of its own: what all parts need is found once, and no row is copied
    before it stands in its batch.

    Args:
        rows: the columns `timestamp`, `key` and `value`.

    Raises: as `encode_batches`.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._records = _Records(take_apart(rows))

    def encode(
        self, rows: Int64s, base_offset: int, *, leader_epoch: int, codec: Codec, batch_rows_max: int
    ) -> Iterator[memoryview]:
        """Some rows as batches, as `encode_batches` would encode them. `rows`: their numbers, in the order of their offsets."""
        records = self._records.chosen(rows)
        bounds = _bounds(records, BATCH_BYTES_MAX, batch_rows_max)
        return _encoded(records, bounds, _Places(bounds, base_offset, None, None), leader_epoch, codec)


def _bounds(records: _Records, batch_bytes_max: int, batch_rows_max: int) -> list[int]:
    """The first rows of the batches, and the end."""
    sizes, bounds = records.bytes_max(), [0]
    for start, end in pairwise(_same_time(records)):
        bounds += [
            start + bound for bound in _split(sizes[start:end], batch_bytes_max - HEADER_BYTES, min(batch_rows_max, len(sizes)))[1:]
        ]
    return bounds


def _encoded(records: _Records, bounds: list[int], places: _Places, leader_epoch: int, codec: Codec) -> Iterator[memoryview]:
    return chain.from_iterable(_encode_group(records, group, places, leader_epoch, codec) for group in _groups(bounds))


class _Places:
    """The offsets of batches: of each its first one and the one behind its last, by the batch's first row."""

    def __init__(self, bounds: list[int], base_offset: int, end_offset: int | None, offsets: Int64s | None) -> None:
        self._offsets = None if end_offset is None else offsets
        """The offset of each row, if they have gaps."""
        self._base_offset = base_offset
        self._end_offset = base_offset + bounds[-1] if end_offset is None else end_offset
        self._rows = bounds[-1]

    def of(self, row: int) -> int:
        """The first offset of the batch that begins at a row; the end of all batches for the row behind the last one."""
        if row == self._rows:
            return self._end_offset
        return self._base_offset if not row else self._base_offset + row if self._offsets is None else int(self._offsets[row])

    def deltas(self, firsts: Int64s, counts: Int64s) -> Int64s | None:
        """The distance of each row from the base offset of its batch; None if it is the row's number in the batch."""
        if self._offsets is None:
            return None
        bases = np.array([self.of(row) for row in firsts.tolist()], np.int64)
        start, end = int(firsts[0]), int(firsts[-1] + counts[-1])
        deltas: Int64s = self._offsets[start:end] - np.repeat(bases, counts)
        numbers = np.arange(start, end, dtype=np.int64) - np.repeat(firsts, counts)
        return None if np.array_equal(deltas, numbers) else deltas


def _same_time(records: _Records) -> list[int]:
    """The first rows of the runs that may share a batch, and the end."""
    types, timestamps = records.types, records.timestamps
    if types is None or not types.any():
        return [0, len(timestamps)]
    apart = (types[1:] != types[:-1]) | ((types[1:] == 1) & (timestamps[1:] != timestamps[:-1]))
    return [0, *(np.flatnonzero(apart) + 1).tolist(), len(timestamps)]


def _check_order(offsets: Int64s | None, base_offset: int, end_offset: int) -> None:
    if offsets is None:
        raise InvalidError(Reason.INVALID_RECORD, "there is no column `offset`, and not every offset has a row")
    if bool((np.diff(offsets) < 1).any()) or not base_offset <= int(offsets[0]) or not int(offsets[-1]) < end_offset:
        raise InvalidError(
            Reason.INVALID_RECORD,
            f"rows are not in the order of their offsets, or outside the extent. first=`{offsets[0]}` last=`{offsets[-1]}` "
            f"base=`{base_offset}` end=`{end_offset}`",
        )
    if end_offset - base_offset >= 1 << 31:
        raise InvalidError(Reason.INVALID_RECORD, f"offsets lie too far apart. base=`{base_offset}` end=`{end_offset}`")


def _check_offsets(offsets: Int64s, base_offset: int) -> None:
    expected = np.arange(base_offset, base_offset + len(offsets), dtype=np.int64)
    if not np.array_equal(offsets, expected):
        row = int(np.flatnonzero(offsets != expected)[0])
        raise InvalidError(
            Reason.INVALID_RECORD,
            f"offsets are not consecutive. row=`{row}` offset=`{offsets[row]}` expected=`{expected[row]}`",
        )


class Sources:
    """The buffers to which views refer, and the views of arrays with bytes in them."""

    def __init__(self) -> None:
        self.buffers: list[pa.Buffer] = []

    def views(self, array: ArrowArray, sizes: Int64s) -> Views:
        """One view for each value of a binary array of these `lengths`; an empty one for null."""
        first = len(self.buffers)
        short = np.flatnonzero(sizes <= IN_PLACE_BYTES)
        if len(short) * 4 > len(sizes):
            return self._cast(array, sizes)
        # Arrow would put the first bytes of each value into its view: a pass over all of the memory for bytes that nothing reads.
        data = array.buffers()[2]
        if data is not None:
            self.buffers.append(data)
        fields = np.empty(len(sizes), _REFERENCE)
        fields["size"], fields["buffer"], fields["position"] = sizes, first, binary_offsets(array)[:-1]
        made = fields.view(np.uint64).reshape(-1, 2)
        if len(short):
            made[short] = self._cast(array.take(pa.array(short)), sizes[short])
        return made

    def _cast(self, array: ArrowArray, sizes: Int64s) -> Views:
        cast = array.cast(pa.binary_view())
        _, views, *data = cast.buffers()
        assert views is not None
        found: Views = from_arrow(views, np.uint64, 2 * len(cast), 16 * cast.offset).reshape(len(cast), 2)
        first = np.uint64(len(self.buffers))
        self.buffers += [buffer for buffer in data if buffer is not None]
        made = np.empty_like(found)
        low, high = made[:, 0], made[:, 1]
        # The view of a null is undefined; here it must be empty.
        present = (sizes >= 0).view(np.uint8)
        np.multiply(found[:, 0], present, out=low)
        np.multiply(found[:, 1], present, out=high)
        if first:
            high += (sizes > IN_PLACE_BYTES) * first
        return made

    def view(self, data: bytes) -> Views:
        """A view of some bytes, more than fit in place."""
        assert len(data) > IN_PLACE_BYTES, "it is referred to"
        self.buffers.append(pa.py_buffer(data))
        return np.array([[len(data), len(self.buffers) - 1]], np.uint64)

    def join(self, views: Views) -> ArrowArray:
        """One binary array with the bytes of all views, one behind the other."""
        array = pa.Array.from_buffers(pa.binary_view(), len(views), [None, to_arrow(views), *self.buffers], 0)
        return array.cast(pa.binary())


class _Field:
    """All keys, or all values: their lengths, -1 for null, the bounds of these, and the views of their bytes, if any has some."""

    __slots__ = ("lengths", "longest", "shortest", "views")

    def __init__(self, sizes: Int64s, views: Views | None) -> None:
        self.lengths = sizes
        self.shortest, self.longest = int(sizes.min()), int(sizes.max())
        self.views = views if self.longest > 0 else None

    @classmethod
    def of(cls, array: ArrowArray, sources: Sources) -> _Field:
        sizes = lengths(array)
        return cls(sizes, sources.views(array, sizes) if sizes.max() > 0 else None)

    def chosen(self, rows: Int64s) -> _Field:
        # As numbers of 16 bytes: numpy moves these faster than pairs.
        views = None if self.views is None else self.views.view(np.complex128)[rows, 0].view(np.uint64).reshape(-1, 2)
        return _Field(self.lengths[rows], views)

    @property
    def bytes(self) -> Int64s:
        """The lengths, 0 for null."""
        return self.lengths if self.shortest >= 0 else np.maximum(self.lengths, 0)

    def varint(self, start: int, end: int) -> Varint:
        """The lengths of the rows [start, end)."""
        return Varint(self.lengths[start:end], self.shortest, self.longest)


class _Records:
    """The facts about all rows before they are laid out: the sizes of their parts, and the views of their bytes."""

    def __init__(self, columns: Columns) -> None:
        self.timestamps = columns.timestamps
        self.types = columns.types
        offsets = columns.offsets
        self.span = len(columns) if offsets is None else max(len(columns), int(offsets[-1]) - int(offsets[0]) + (1 << 31))
        """Upper bound of the distance of an offset from that of its batch."""
        self.sources = Sources()
        # The views of the first one are used unchanged.
        self.value = _Field.of(columns.value, self.sources)
        self.key = _Field.of(columns.key, self.sources)
        self.payload = self.key.bytes + self.value.bytes
        self.header_counts: Int64s | None = None
        self.header_lengths: Int64s | None = None
        self.header_views: Views | None = None
        if columns.headers is not None:
            self.header_counts, blobs = header_bytes(columns.headers)
            self.header_lengths = lengths(blobs)
            self.header_views = self.sources.views(blobs, self.header_lengths)
            self.payload = self.payload + self.header_lengths
        self.room = self.sources.view(bytes(HEADER_BYTES))
        """The place of a batch's header."""
        largest = int(self.payload.max())
        if largest > RECORD_BYTES_MAX:
            raise InvalidError(Reason.MESSAGE_TOO_LARGE, f"a record is too large. bytes=`{largest}` max=`{RECORD_BYTES_MAX}`")

    def chosen(self, rows: Int64s) -> _Records:
        """Some of the rows, in the order of their numbers in `rows`."""
        assert self.types is None and self.header_counts is None, "adopted rows have neither"
        made = copy(self)
        made.timestamps, made.span = self.timestamps[rows], len(rows)
        made.value, made.key, made.payload = self.value.chosen(rows), self.key.chosen(rows), self.payload[rows]
        return made

    def bytes_max(self) -> Int64s:
        """Upper bound of each row's bytes in an uncompressed batch."""
        span = int(self.timestamps.max()) - int(self.timestamps.min())
        overhead = 2 + 5 + width_of(2 * span) + width_of(2 * self.span)
        overhead += width_of(2 * max(self.key.longest, 0)) + width_of(2 * max(self.value.longest, 0))
        if self.header_counts is not None:
            overhead += width_of(2 * int(self.header_counts.max()))
        return self.payload + overhead


def header_bytes(headers: ArrowArray) -> tuple[Int64s, ArrowArray]:
    """Each row's number of headers, and their bytes as they stand in a record behind the count."""
    counts: Int64s = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    items = headers.flatten()
    if items.null_count or items.field(0).null_count:
        raise InvalidError(Reason.INVALID_RECORD, "a header has no name")
    names, values = items.flatten()
    names, values = names.cast(pa.binary()), values.cast(pa.binary())
    sources = Sources()
    laid = np.empty((len(items), 4, 2), np.uint64)
    for column, array in enumerate((names, values)):
        sizes = lengths(array)
        prefix = Entries(len(sizes))
        prefix.add(Varint(sizes))
        (laid[:, 2 * column],) = prefix.views()
        laid[:, 2 * column + 1] = sources.views(array, sizes)
    joined = sources.join(laid.reshape(-1, 2))
    ends = from_arrow(joined.buffers()[1], np.int32, len(joined) + 1)
    rows = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=rows[1:])
    blobs = pa.Array.from_buffers(pa.binary(), len(counts), [None, to_arrow(ends[4 * rows]), joined.buffers()[2]], 0)
    return counts, blobs


def _split(sizes: Int64s, bytes_max: int, rows_max: int) -> list[int]:
    """The first rows of the batches, and the end."""
    ends = np.cumsum(sizes)
    bounds = [0]
    count = len(sizes)
    start, before = 0, 0
    while start < count:
        end = int(ends.searchsorted(before + bytes_max, side="right"))
        end = min(max(end, start + 1), start + rows_max, count)
        bounds.append(end)
        start, before = end, int(ends[end - 1])
    return bounds


def _groups(bounds: list[int]) -> Iterator[list[int]]:
    """Runs of whole batches that are laid out together; each a list of bounds."""
    first = 0
    for index in range(1, len(bounds)):
        if index == len(bounds) - 1 or bounds[index + 1] - bounds[first] > GROUP_ROWS:
            yield bounds[first : index + 1]
            first = index


def _encode_group(record: _Records, bounds: list[int], places: _Places, leader_epoch: int, codec: Codec) -> Iterator[memoryview]:
    start, end = bounds[0], bounds[-1]
    firsts = np.array(bounds[:-1], np.int64)
    counts = np.array(bounds[1:], np.int64) - firsts
    timestamps = record.timestamps[start:end]
    # As numbers of 16 bytes: numpy moves these faster than pairs.
    columns = [views.view(np.complex128)[:, 0] for views in _lay_out(record, start, end, firsts, counts, places)]
    width = len(columns)
    laid = np.empty(((end - start) * width + 2 * len(counts), 2), np.uint64)
    flat = laid.view(np.complex128)[:, 0]
    position = 0
    bare = record.header_counts is None
    # Each record includes the empty header list of the record before it, so that the list needs no view of its own. The first
    # record of a batch includes none, and the last one gets its own.
    closing = np.array([1 if bare else 0, 0], np.uint64)
    marks = np.empty(len(counts) + 1, np.int64)
    for number, (first, count) in enumerate(zip((firsts - start).tolist(), counts.tolist(), strict=True)):
        marks[number] = position
        laid[position] = record.room
        stop = position + 1 + count * width
        target = flat[position + 1 : stop].reshape(count, width)
        for column, views in enumerate(columns):
            target[:, column] = views[first : first + count]
        if bare:
            _drop_first_byte(laid, position + 1)
        laid[stop] = closing
        position = stop + 1
    marks[-1] = position
    base_times = timestamps[firsts - start].tolist()
    max_times = np.maximum.reduceat(timestamps, firsts - start).tolist()
    for number, (first, count) in enumerate(zip(firsts.tolist(), counts.tolist(), strict=True)):
        base_offset = places.of(first)
        # The result gets no local name: see `encode_batches`.
        yield _make_batch(
            record.sources.join(laid[marks[number] : marks[number + 1]]),
            codec, base_offset, places.of(first + count) - 1 - base_offset, leader_epoch, count, base_times[number],
            max_times[number], append_time=record.types is not None and bool(record.types[first]),
        )  # fmt: skip


def _make_batch(
    joined: ArrowArray, codec: Codec, base_offset: int, last_offset_delta: int, leader_epoch: int, count: int, base_time: int,
    max_time: int, *, append_time: bool,
) -> memoryview:  # fmt: skip
    """The records with their header in the room before them, compressed if that makes them smaller."""
    data = joined.buffers()[2]
    assert data is not None
    batch = from_arrow(data, np.uint8).data
    assert not batch.readonly, "what Arrow made for us is ours to write to"
    used = Codec.NONE
    if codec is not Codec.NONE:
        packed = compress(codec, batch[HEADER_BYTES:], fast=True)
        if len(packed) < len(batch) - HEADER_BYTES:
            used, batch = codec, memoryview(bytearray(HEADER_BYTES) + packed)
    pack_header(
        batch, 0,
        base_offset, len(batch) - LENGTH_OVERHEAD_BYTES, leader_epoch, 2, 0, int(used) | append_time * LOG_APPEND_TIME,
        last_offset_delta, base_time, max_time, NO_PRODUCER_ID, -1, -1, count,
    )  # fmt: skip
    stamp_crc(batch)
    return batch


def _drop_first_byte(laid: Views, at: int) -> None:
    """Shorten a view in place by its first byte."""
    low, high = int(laid[at, 0]), int(laid[at, 1])
    size, body = low & 0xFFFFFFFF, (low >> 32 | high << 32) >> 8
    laid[at, 0] = (size - 1) | (body & 0xFFFFFFFF) << 32
    laid[at, 1] = body >> 32


def _lay_out(record: _Records, start: int, end: int, firsts: Int64s, counts: Int64s, places: _Places) -> list[Views]:
    """The views that make up one record each, column by column, for the rows [start, end)."""
    bare = record.header_counts is None
    timestamps = record.timestamps[start:end]
    time_deltas = timestamps - np.repeat(timestamps[firsts - start], counts)
    deltas, key = places.deltas(firsts, counts), record.key.varint(start, end)
    before_key = [Varint(time_deltas), *(numbered(counts, key) if deltas is None else [Varint(deltas), key])]
    before_value = [record.value.varint(start, end)]
    before_headers = [] if record.header_counts is None else [Varint(record.header_counts[start:end])]
    fixed = before_key + before_value + before_headers
    sizes = record.payload[start:end] + (1 + bare + sum(varint.widths for varint in fixed if isinstance(varint.widths, int)))
    for varint in fixed:
        if not isinstance(varint.widths, int):
            sizes += varint.widths
    columns: list[Views] = []
    entries = Entries(end - start)
    if bare:
        entries.zero()
    entries.add(Varint(sizes))
    entries.zero()
    for varint in before_key:
        entries.add(varint)
    if record.key.views is not None:
        columns += entries.views()
        columns.append(record.key.views[start:end])
        entries = Entries(end - start)
    entries.add(*before_value)
    if record.value.views is not None:
        columns += entries.views()
        columns.append(record.value.views[start:end])
        entries = Entries(end - start)
    if record.header_views is not None:
        entries.add(*before_headers)
        columns += entries.views()
        columns.append(record.header_views[start:end])
    elif not entries.empty:
        columns += entries.views()
    return columns
