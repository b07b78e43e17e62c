"""Parquet extents as bytes: writes them and reads their footers. No I/O.

A file ends with its metadata, the length of the metadata (4 bytes, little-endian) and ``PAR1``. These three are the *footer*; a
reference to the file carries the footer's CRC-32C. A record's offset is the extent's base offset plus its row number in the file,
so a file can be committed at any offset. A column `offset` is optional, for other readers; if it exists, it must agree. In folded
files (folded_file.py) that column decides, because their offsets have gaps.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.log.column_schema import (
    HEADERS_TYPE,
    SCHEMA,
    ArrowArray,
    Columns,
    check_columns,
    has_timestamp_types,
    lengths,
    take_apart,
)
from headgate.broker.log.crc import crc32c
from headgate.broker.log.ranges_file import RangesFile
from headgate.broker.runtime.errors import InvalidError, Reason

MAGIC = b"PAR1"
TRAILER_BYTES = 8
"""The length of the metadata, and the magic."""
FOOTER_GUESS_BYTES = 64 << 10
"""Bytes of the first read, at the end of a file: the whole footer of most files."""
FOOTER_BYTES_MAX = 64 << 20
ROW_GROUP_BYTES = 8 << 20
"""Raw bytes of a row group: small enough to seek in, large enough that opening it costs little."""
ROW_GROUP_ROWS_MAX = 1 << 16
ROW_GROUP_BYTES_MAX = 256 << 20
"""Limit for files of other writers: a reader holds one row group in memory."""

READ_BYTES = 32 << 20
"""Decoded bytes that are read at once from a row group whose values repeat. So much may be in memory beyond a limit."""
READ_ROWS_MAX = 1 << 12
READ_ROWS = 1 << 9
"""Rows that are read at once if the length of the longest value is unknown."""

Data: TypeAlias = bytes | memoryview | Sequence[tuple[int, memoryview]]
"""The bytes of a row group from its `start` to its `end`; or (position in the file, bytes) of those parts that are read,
ascending."""

_LENGTH = struct.Struct("<I")
_COLUMNS = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
_NUMBERS = ("offset", "timestamp", "timestamp_type")
_DICTIONARIES = frozenset(("PLAIN_DICTIONARY", "RLE_DICTIONARY"))
_PREFIXES = frozenset(("DELTA_BYTE_ARRAY",))
"""Encodings that write the common beginning of values only once."""


@dataclass(frozen=True, slots=True)
class WrittenExtent:
    """The bytes of a file, and the fields of a reference to it. Times in ms."""

    data: pa.Buffer
    rows: int
    footer_crc32c: int
    timestamp_min_ms: int
    timestamp_max_ms: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows [first_row, first_row + rows) of a file, in its bytes [start, end). Times in ms; None if the file does not have them.
    `first_offset` is the least offset in the column `offset`; None if the file does not have it.

    `data_bytes` is the size of the columns without compression. If `repeats` is set, repeated parts of values count only once
    there, and the rows may be thousands of times larger.
    """

    number: int
    first_row: int
    rows: int
    start: int
    end: int
    data_bytes: int
    repeats: bool
    timestamp_min_ms: int | None
    timestamp_max_ms: int | None
    first_offset: int | None = None


@dataclass(frozen=True, slots=True)
class ExtentFile:
    """The content of a file's footer."""

    metadata: Any
    columns: tuple[str, ...]
    """The columns that are read, in the order of the file."""
    groups: tuple[RowGroup, ...]
    """The row groups with rows, in the order of the rows."""
    footer: bytes
    """The footer's bytes."""

    @property
    def rows(self) -> int:
        return self.groups[-1].first_row + self.groups[-1].rows if self.groups else 0

    def index_of(self, column: str) -> int:
        """The index of a column without nested parts among the file's columns. The column must exist."""
        schema = self.metadata.schema
        return next(index for index in range(len(schema)) if schema.column(index).path == column)

    def group_of(self, row: int) -> int:
        """The index in `groups` of the row group that contains a row."""
        return bisect_right(self.groups, row, key=lambda group: group.first_row) - 1

    @property
    def has_offsets(self) -> bool:
        """True if the footer tells where the offsets of each row group begin."""
        return all(group.first_offset is not None for group in self.groups)

    def group_at(self, offset: int) -> int:
        """The index in `groups` of the row group whose offsets contain `offset`, or are the last ones before it. Only for files
        with `has_offsets`."""
        return max(bisect_right(self.groups, offset, key=lambda group: group.first_offset or 0) - 1, 0)


class ExtentEncoder:
    """A Parquet file in the making: each row group is encoded as soon as its rows are there. zstd, no dictionaries, row groups of
    about `row_group_bytes`. A column `offset` is not written.

    Args:
        schema: of all batches. Raises the errors of `column_schema.check_columns`.
    """

    def __init__(self, schema: pa.Schema, *, row_group_bytes: int = ROW_GROUP_BYTES) -> None:
        check_columns(schema)
        self._given = schema
        self._row_group_bytes = row_group_bytes
        self._with_headers = schema.get_field_index("headers") >= 0 and not pa.types.is_null(schema.field("headers").type)
        kind = schema.field("timestamp").type
        in_us = pa.types.is_timestamp(kind) and kind.unit == "us"
        self._times_kind = pa.timestamp("us", tz="UTC") if in_us else SCHEMA.field("timestamp").type
        self._schema = self._layout()
        self._out = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._out, self._schema, compression="zstd", compression_level=1, write_page_checksum=True, **self._encodings()
        )
        self._low, self._high = 1 << 62, -(1 << 62)
        self._waiting: list[pa.RecordBatch] = []
        """Rows of the next row group."""
        self._waiting_bytes = self._waiting_rows = 0
        self.rows = 0

    def _layout(self) -> pa.Schema:
        """The columns of the file."""
        fields: list[Any] = [
            pa.field("timestamp", self._times_kind, nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            *([pa.field("headers", HEADERS_TYPE)] if self._with_headers else []),
        ]
        return pa.schema(fields)

    def _encodings(self) -> dict[str, Any]:
        """The options of the writer that depend on the columns."""
        return {
            "use_dictionary": False,
            "column_encoding": {"timestamp": "DELTA_BINARY_PACKED"},
            # Statistics of keys and values would be copies of whole values.
            "write_statistics": ["timestamp"],
        }

    def _arrays(self, times: ArrowArray, columns: Columns) -> list[ArrowArray]:
        """The columns of some rows, as in `_layout`."""
        headers = columns.headers if columns.headers is not None else pa.nulls(len(columns), HEADERS_TYPE)
        return [times, columns.key, columns.value, *([headers] if self._with_headers else [])]

    @property
    def held_bytes(self) -> int:
        """Encoded bytes so far, and the bytes of the rows that wait for the rest of their row group."""
        return self._out.tell() + self._waiting_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows behind those before. Raises the errors of `column_schema.take_apart`."""
        assert batch.schema.equals(self._given), batch.schema
        if not batch.num_rows:
            return
        columns = take_apart(batch)
        self._low = min(self._low, int(columns.timestamps.min()))
        self._high = max(self._high, int(columns.timestamps.max()))
        times = batch.column("timestamp").cast(pa.int64()) if self._times_kind.unit == "us" else pa.array(columns.timestamps)
        sizes = np.maximum(lengths(columns.key), 0) + np.maximum(lengths(columns.value), 0) + 8
        if columns.headers is not None:
            sizes += columns.headers.nbytes // batch.num_rows
        conformed = pa.RecordBatch.from_arrays(self._arrays(times.cast(self._times_kind), columns), schema=self._schema)
        ends = np.cumsum(sizes)
        start, before = 0, 0
        while start < batch.num_rows:
            end = int(np.searchsorted(ends, before + self._row_group_bytes - self._waiting_bytes, side="right"))
            end = min(max(end, start + (not self._waiting)), start + ROW_GROUP_ROWS_MAX - self._waiting_rows, batch.num_rows)
            if end > start:
                self._waiting.append(conformed.slice(start, end - start))
                self._waiting_bytes += int(ends[end - 1]) - before
                self._waiting_rows += end - start
                start, before = end, int(ends[end - 1])
            if start < batch.num_rows:
                self._encode()
        self.rows += batch.num_rows

    def finish(self) -> WrittenExtent:
        """The file. Raises InvalidError: INVALID_RECORD if there are no rows."""
        if not self.rows:
            raise InvalidError(Reason.INVALID_RECORD, "an extent has at least one row. rows=`0`")
        if self._waiting:
            self._encode()
        self._writer.close()
        data = self._out.getvalue()
        tail = memoryview(data)[-FOOTER_GUESS_BYTES:]
        footer = memoryview(data)[len(data) - footer_size(tail, len(data)) :]
        return WrittenExtent(data, self.rows, crc32c(footer), self._low, self._high)

    def _encode(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0


def write_extent_file(rows: pa.Table | pa.RecordBatch, *, row_group_bytes: int = ROW_GROUP_BYTES) -> WrittenExtent:
    """The rows as a Parquet file; see `ExtentEncoder`.

    Raises InvalidError: INVALID_RECORD if there are no rows, and the errors of `column_schema.take_apart`.
    """
    encoder = ExtentEncoder(rows.schema, row_group_bytes=row_group_bytes)
    for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches():
        encoder.add(batch)
    return encoder.finish()


def footer_size(tail: bytes | memoryview, size_bytes: int) -> int:
    """Length of a file's footer, from at least the last eight bytes of the file.

    Args:
        size_bytes: size of the whole file.

    Raises:
        InvalidError(INVALID_RECORD): this is not the end of a Parquet file.
    """
    if len(tail) < TRAILER_BYTES or bytes(tail[-4:]) != MAGIC:
        raise InvalidError(Reason.INVALID_RECORD, f"not a Parquet file, or not all of it. end=`{bytes(tail[-4:])!r}`")
    size = int(_LENGTH.unpack_from(tail, len(tail) - TRAILER_BYTES)[0]) + TRAILER_BYTES
    if size > min(FOOTER_BYTES_MAX, size_bytes - len(MAGIC)):
        raise InvalidError(Reason.INVALID_RECORD, f"a Parquet footer does not fit. footer_bytes=`{size}` file_bytes=`{size_bytes}`")
    return size


def read_footer(footer: bytes | memoryview, size_bytes: int) -> ExtentFile:
    """The content of a footer, if the file can be history.

    Args:
        footer: the bytes from the metadata to the file's end.
        size_bytes: size of the whole file.

    Raises:
        InvalidError(INVALID_RECORD): broken, encrypted, wrong columns, a row group that is too large or lies outside the file.
    """
    try:
        metadata = metadata_of(footer)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise InvalidError(Reason.INVALID_RECORD, f"a Parquet footer cannot be read: {error}") from error
    if len(set(schema.names)) != len(schema.names):
        raise InvalidError(Reason.INVALID_RECORD, "two columns have the same name")
    check_columns(schema)
    known = _COLUMNS if has_timestamp_types(schema) else tuple(name for name in _COLUMNS if name != "timestamp_type")
    columns = tuple(name for name in schema.names if name in known)
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    read = [index for index, path in enumerate(paths) if path.split(".", 1)[0] in known]
    timestamp, kind = paths.index("timestamp"), schema.field("timestamp").type
    offset = paths.index("offset") if "offset" in paths else -1
    groups: list[RowGroup] = []
    first_row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        start, end, data_bytes, repeats = size_bytes, 0, 0, False
        low = high = first_offset = None
        for index in read:
            chunk = group.column(index)
            begin = _begin(chunk)
            start, end = min(start, begin), max(end, begin + chunk.total_compressed_size)
            data_bytes += chunk.total_uncompressed_size
            repeats |= paths[index] not in _NUMBERS and not (_DICTIONARIES | _PREFIXES).isdisjoint(chunk.encodings)
            statistics = chunk.statistics if index == timestamp else None
            if statistics is not None and statistics.null_count:
                raise InvalidError(Reason.INVALID_RECORD, "a timestamp is null: every record has a time")
            if statistics is not None and statistics.has_min_max:
                # The raw numbers: Python's dates do not have all years.
                low, high = _ms(statistics.min_raw, kind), _ms(statistics.max_raw, kind)
            if index == offset and chunk.statistics is not None and chunk.statistics.has_min_max:
                first_offset = int(chunk.statistics.min)
        if not len(MAGIC) <= start < end <= size_bytes - len(footer):
            raise InvalidError(
                Reason.INVALID_RECORD, f"a row group lies outside its file. group=`{number}` start=`{start}` end=`{end}`"
            )
        if max(data_bytes, end - start) > ROW_GROUP_BYTES_MAX:
            raise InvalidError(
                Reason.INVALID_RECORD,
                f"a row group is too large to be served. group=`{number}` bytes=`{data_bytes}` max=`{ROW_GROUP_BYTES_MAX}`",
            )
        groups.append(RowGroup(number, first_row, group.num_rows, start, end, data_bytes, repeats, low, high, first_offset))
        first_row += group.num_rows
    return ExtentFile(metadata, columns, tuple(groups), bytes(footer))


def metadata_of(footer: bytes | memoryview) -> Any:
    """The metadata in a footer, of a file with any columns. Raises the errors of Arrow."""
    # Arrow reads from the end, and reads nothing before the footer.
    return pq.read_metadata(pa.BufferReader(pa.py_buffer(b"".join((MAGIC, footer)))))


def name_of(chunk: Any) -> str:
    """The name of the column to which a column chunk belongs: a nested column has several."""
    return str(chunk.path_in_schema).partition(".")[0]


def column_ranges(metadata: Any, group: int, columns: Collection[str]) -> list[tuple[int, int]]:
    """(position, bytes) of these columns of a row group, ascending. Neighbours are one range."""
    chunks = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
    wanted = sorted((_begin(chunk), chunk.total_compressed_size) for chunk in chunks if name_of(chunk) in columns)
    found: list[tuple[int, int]] = []
    for begin, size in wanted:
        if found and sum(found[-1]) == begin:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((begin, size))
    return found


def has_repeats(metadata: Any, group: int, columns: Sequence[str]) -> bool:
    """True if values of these columns of a row group that repeat are stored once."""
    chunks = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
    known = frozenset(columns)
    return any(name_of(chunk) in known and not (_DICTIONARIES | _PREFIXES).isdisjoint(chunk.encodings) for chunk in chunks)


def _begin(chunk: Any) -> int:
    """The position of the first byte of a column in a row group."""
    has_dictionary = chunk.has_dictionary_page and chunk.dictionary_page_offset is not None
    return int(min(chunk.data_page_offset, chunk.dictionary_page_offset) if has_dictionary else chunk.data_page_offset)


def unproven_times(file: ExtentFile) -> list[RowGroup]:
    """The row groups whose footer does not prove that every row has a time, or does not give the first and the last time.

    Each result has only the bytes of the time column.
    """
    index = file.index_of("timestamp")
    nullable = file.metadata.schema.column(index).max_definition_level > 0
    found = []
    for group in file.groups:
        chunk = file.metadata.row_group(group.number).column(index)
        counted = not nullable or (chunk.statistics is not None and chunk.statistics.has_null_count)
        if not counted or group.timestamp_min_ms is None:
            found.append(times_of(file, group))
    return found


def times_of(file: ExtentFile, group: RowGroup, *columns: str) -> RowGroup:
    """A row group that has only the bytes of its time column, and of these columns beside it."""
    return part_of(file, group, ("timestamp", *columns))


def part_of(file: ExtentFile, group: RowGroup, columns: tuple[str, ...]) -> RowGroup:
    """A row group that has only the bytes of these columns of `file.columns`, and of what lies between them."""
    metadata = file.metadata.row_group(group.number)
    chunks = [metadata.column(index) for index in range(metadata.num_columns)]
    wanted = [chunk for chunk in chunks if chunk.path_in_schema.split(".", 1)[0] in columns]
    begins = [_begin(chunk) for chunk in wanted]
    ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, wanted, strict=True)]
    return replace(group, start=min(begins), end=max(ends))


def iter_group(file: ExtentFile, group: RowGroup, data: bytes | memoryview, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of a row group in batches, in the order of the file. Batches are small where values repeat.

    Args:
        data: the file's bytes [group.start, group.end). For `group.repeats` they must have all columns: see `part_of`.

    Raises:
        InvalidError(CORRUPT_MESSAGE): the bytes contradict the footer.
    """
    if not group.repeats:
        yield from read_group(file, group, data, columns).to_batches()
        return
    for batch in _in_batches(file, group, data, plain=False):
        yield batch.select(columns)


def read_group(file: ExtentFile, group: RowGroup, data: Data, columns: tuple[str, ...] | None = None) -> pa.Table:
    """The rows of a row group.

    Args:
        data: the file's bytes [group.start, group.end).
        columns: default: all columns of `file.columns`.

    Raises:
        InvalidError(CORRUPT_MESSAGE): the bytes contradict the footer.
    """
    try:
        table = _parquet(file, group, data).read_row_group(group.number, columns=list(columns or file.columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise InvalidError(Reason.CORRUPT_MESSAGE, f"a row group cannot be read: {error}") from error
    if table.num_rows != group.rows:
        raise _lacks_rows(group, table.num_rows)
    return table


def read_parts(
    file: ExtentFile, group: RowGroup, data: Data, rows_max: int = READ_ROWS_MAX, whole_bytes_max: int = 0
) -> Iterator[pa.Table]:
    """The rows of a row group in order: at once, or in parts of about `READ_BYTES`, at most `rows_max` rows, if its values repeat.

    Args:
        whole_bytes_max: repeated values that have at most so many bytes in all rows are read at once: in a third of the time.

    Raises InvalidError(CORRUPT_MESSAGE): the bytes contradict the footer.
    """
    if not group.repeats:
        yield read_group(file, group, data)
        return
    try:
        repeated = _repeated_bytes(file, group, data)
    except (pa.ArrowException, OSError) as error:
        raise InvalidError(Reason.CORRUPT_MESSAGE, f"a row group cannot be read: {error}") from error
    if repeated is not None and repeated * group.rows <= whole_bytes_max:
        yield read_group(file, group, data)
        return
    for batch in _in_batches(file, group, data, rows_max=rows_max, repeated=repeated):
        yield pa.Table.from_batches([batch])


def read_some(file: ExtentFile, group: RowGroup, data: bytes | memoryview, first: int, bytes_max: int) -> pa.Table:
    """Rows of a row group from its row number `first` on: all rows, or as many as reach `bytes_max`.

    Earlier rows are read and dropped. The memory beyond `bytes_max` is bounded by `READ_BYTES`.

    Raises:
        InvalidError(CORRUPT_MESSAGE): the bytes contradict the footer.
    """
    if not first and not group.repeats and group.data_bytes <= bytes_max:
        return read_group(file, group, data)
    found: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in _in_batches(file, group, data, first):
        found.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= bytes_max:
            break
    return pa.Table.from_batches(found)


def _in_batches(
    file: ExtentFile,
    group: RowGroup,
    data: Data,
    first: int = 0,
    *,
    plain: bool = True,
    rows_max: int = READ_ROWS_MAX,
    repeated: int | None = -1,
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group from its row number `first` on, in batches of about `READ_BYTES`.

    Args:
        plain: without dictionaries.
        repeated: as `_repeated_bytes` gives it; -1: it is not known yet.

    Raises InvalidError(CORRUPT_MESSAGE): the bytes contradict the footer.
    """
    row = 0
    try:
        repeated = _repeated_bytes(file, group, data) if repeated == -1 else repeated
        rows = READ_ROWS if repeated is None else min(max(READ_BYTES // (repeated + 1), 1), rows_max)
        for batch in _batches(file, group, data, rows):
            row += batch.num_rows
            if row > first:
                wanted = batch.slice(max(0, batch.num_rows - (row - first)))
                yield wanted.cast(_without_dictionaries(wanted.schema)) if plain else wanted
    except (pa.ArrowException, OSError) as error:
        raise InvalidError(Reason.CORRUPT_MESSAGE, f"a row group cannot be read: {error}") from error
    if row != group.rows:
        raise _lacks_rows(group, row)


def _repeated_bytes(file: ExtentFile, group: RowGroup, data: Data) -> int | None:
    """The most bytes that the values of a row have which are stored in dictionaries: each row may have the longest ones. None if
    the footer does not bound all other values."""
    chunks = [file.metadata.row_group(group.number).column(index) for index in range(file.metadata.num_columns)]
    known = frozenset(file.columns)
    chunks = [chunk for chunk in chunks if name_of(chunk) in known]
    if any(not _PREFIXES.isdisjoint(chunk.encodings) for chunk in chunks):
        return None
    encoded = [chunk for chunk in chunks if chunk.physical_type == "BYTE_ARRAY" and not _DICTIONARIES.isdisjoint(chunk.encodings)]
    if not encoded:
        return 0
    # Columns stay encoded here. Their first values bring their whole dictionaries; a nested column may begin with rows without any.
    rows = 1 if all(name_of(chunk) == chunk.path_in_schema for chunk in encoded) else READ_ROWS
    counts: Counter[str] = Counter()
    for chunk in encoded:
        counts[name_of(chunk)] += chunk.num_values
    names = list(counts)
    longest = 0
    for batch in _batches(file, group, data, rows, [chunk.path_in_schema for chunk in encoded], names):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            for leaf in leaves(column):
                if pa.types.is_dictionary(leaf.type):
                    most = int(lengths(leaf.dictionary.cast(pa.binary())).max(initial=0))
                    longest += most * max(-(-counts[name] // max(group.rows, 1)), 1)
        break
    return longest


def leaves(column: Any) -> Iterator[Any]:
    """The columns without parts within a column."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = column.flatten()
    elif pa.types.is_map(kind):
        parts = [column.keys, column.items]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [column.values]
    else:
        yield column
        return
    for part in parts:
        yield from leaves(part)


def _batches(
    file: ExtentFile, group: RowGroup, data: Data, rows: int, dictionaries: list[str] | None = None, columns: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, at most `rows` in each batch. `dictionaries`: paths of columns that stay encoded. `columns`: those
    that are read; default: all of the file's."""
    parquet = _parquet(file, group, data, dictionaries)
    return parquet.iter_batches(rows, row_groups=[group.number], columns=list(columns or file.columns), use_threads=False)


def _parquet(file: ExtentFile, group: RowGroup, data: Data, dictionaries: list[str] | None = None) -> pq.ParquetFile:
    parts = [(group.start, memoryview(data))] if isinstance(data, bytes | memoryview) else data
    source = pa.PythonFile(cast(Any, RangesFile(parts)), mode="r")
    return pq.ParquetFile(
        source,
        metadata=file.metadata,
        read_dictionary=dictionaries,
        pre_buffer=False,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",
    )


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    kinds = ((field, field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in schema)
    return pa.schema([field.with_type(kind) for field, kind in kinds])


def _lacks_rows(group: RowGroup, rows: int) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, f"a row group lacks rows. rows=`{rows}` stated=`{group.rows}`")


def _ms(raw: Any, kind: Any) -> int | None:
    """A stored statistic of the column `timestamp`, converted to ms."""
    if not isinstance(raw, int):
        return None
    unit = kind.unit if pa.types.is_timestamp(kind) else "ms"
    # Parquet has no seconds: Arrow writes them as milliseconds.
    return raw // {"ns": 1_000_000, "us": 1000}.get(unit, 1)
