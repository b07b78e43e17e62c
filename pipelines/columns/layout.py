"""The layout of a source: its files as they are now, their row groups, and the spans of event time that the footers state."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.log.adopted_columns import WIDE_TIMES, wide_columns
from headgate.broker.log.crc import crc32c
from headgate.broker.log.parquet import metadata_of
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import ROW, Node, Query, array_of, passes
from headgate.pipelines.columns.files import Access, State, footer_of, opened, refused, state_of
from headgate.pipelines.columns.kinds import INTEGERS, KINDS, arrow_type, fields_of, of_kind, parts_of_arrow, shape_of
from headgate.pipelines.iceberg_columns import Reading, is_uuid
from headgate.pipelines.spark_parquet import Unit, has_julian_times, has_wide_times, time_unit

LINES_SAMPLE_BYTES = 64 << 10
"""The first bytes of each file show how long its lines are."""
LINES_END_BYTES = 4 << 10
"""The last bytes of each file are compared, beside its size and time."""
_PLAIN_NAMES = frozenset(("", ".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".log"))
"""Names of files that Hadoop does not take for compressed ones."""
READ_BYTES = 1 << 20
"""Bytes of one column of a large row group that are read at once."""
METADATA_BYTES = 16 << 20
"""Footers whose parsed metadata stay in memory, by their size in the files: those of some thousand small files, which are counted
after all of them were listed."""
FOOTER_THREADS = 8
"""Footers that the driver reads at the same time."""
DAY_US = 86_400_000_000

_UNIT_US: dict[Unit | None, int] = {"ms": 1000, "us": 1}


@dataclass(frozen=True, slots=True)
class Listed:
    """A file as Spark lists it. `values`, `access`, `names`: see `SourceFile`."""

    path: str
    values: tuple[tuple[str, Any], ...] = ()
    access: Access | None = None
    names: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as the driver found it. Each task compares it again, so no run mixes two states of a file."""

    path: str
    state: State
    footer_crc32c: int
    """Of a file of lines: the checksum of its last bytes."""
    values: tuple[tuple[str, Any], ...] = ()
    """The columns that the file does not have inside, such as those in its path, and their values as Arrow scalars."""
    access: Access | None = None
    """How to reach the bucket of a file on S3; its `path` is ``bucket/key``."""
    names: tuple[tuple[str, str], ...] = ()
    """(column, its name in the file) of the columns that are read. Empty: the file has the same names."""

    def check(self) -> None:
        """Raise RetryError if the file has changed."""
        try:
            same = state_of(self.path, self.access) == self.state
        except FileNotFoundError:
            same = False
        if not same:
            raise changed(self)

    def open(self) -> Any:
        """A handle for reading, if the file is still the same. Raises RetryError, OSError."""
        try:
            handle, state = opened(self.path, self.access)
        except FileNotFoundError:
            raise changed(self) from None
        if state != self.state:
            handle.close()
            raise changed(self)
        return handle


@dataclass(frozen=True, slots=True)
class Piece:
    """A row group with rows. `raw_bytes`: of the columns that are read, without compression. Times in microseconds since 1970.

    `repeats`: values that repeat count only once in `raw_bytes`. Without event time the span is that of the rows' numbers.
    `first_row`: the number of its first row in the source.

    Of a file of lines a piece is a range of bytes, `group` is its number, and `rows` is an estimate. The number of a row is then
    larger than that of the row before it, but not always by one.
    """

    file: SourceFile
    group: int
    rows: int
    raw_bytes: int
    repeats: bool
    low_us: int
    high_us: int
    first_row: int = 0


class _Kept:
    """The metadata of the files that were opened last. Threads use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._metadata: dict[SourceFile, Any] = {}
        self._size_bytes = 0

    def get(self, file: SourceFile) -> Any:
        """None if it is not known."""
        return self._metadata.get(file)

    def put(self, file: SourceFile, metadata: Any) -> None:
        with self._lock:
            before = self._metadata.pop(file, None)
            self._metadata[file] = metadata
            self._size_bytes += metadata.serialized_size - (before.serialized_size if before is not None else 0)
            while self._size_bytes > METADATA_BYTES and len(self._metadata) > 1:
                self._size_bytes -= self._metadata.pop(next(iter(self._metadata))).serialized_size


_kept = _Kept()

ALWAYS = (-(1 << 63), (1 << 63) - 1)
"""The span of a row group whose footer states no times."""


def read_layout(files: Iterable[Listed], query: Query) -> list[Piece]:
    """The row groups of these files that can have rows of the query, by path. Raises UnlikeError when Arrow may read a file as
    Spark does not."""
    columns = {name: query.source[name] for name in query.columns(*query.outputs)}
    unclear = sorted(name for name in columns if "." in name)
    if unclear:
        raise UnlikeError(f"a column has a dot in its name. column=`{unclear[0]}`")

    def of_file(listed: Listed) -> list[Piece]:
        given = dict(listed.values)
        return _pieces(listed, {name: kind for name, kind in columns.items() if name not in given and name != ROW}, query)

    wanted = sorted((file for file in files if _may_pass(file, query)), key=lambda file: file.path)
    with ThreadPoolExecutor(FOOTER_THREADS, "headgate-footers") as pool:
        pieces = [piece for found in pool.map(of_file, wanted) for piece in found]
    return _numbered(pieces) if query.is_by_row else pieces


def as_read(listed: Listed, reading: Reading, query: Query) -> Listed:
    """A file of an Iceberg table, with the columns that it has under other names, and the values of those that it lacks."""
    wanted = set(query.columns(*query.outputs))
    if nested := sorted(wanted & reading.nested):
        raise UnlikeError(
            f"the parts of a column are others in a file than in the table. column=`{nested[0]}` file=`{listed.path}`"
        )
    values = []
    for name in sorted(wanted & reading.values.keys()):
        value, kind = reading.values[name], arrow_type(query.source[name])
        if kind is None or fields_of(query.source[name]):
            raise UnlikeError(f"a column of several parts is not in a file. column=`{name}` file=`{listed.path}`")
        values.append((name, of_kind(pa.array([value], value.type), query.source[name])[0]))
    return replace(listed, values=tuple(values), names=tuple((name, own) for name, own in reading.names if name in wanted))


def read_lines(files: Iterable[Listed], query: Query, piece_bytes: int) -> list[Piece]:
    """These files of lines in pieces of `piece_bytes`. Raises UnlikeError when Spark may see other bytes in a file."""
    found = []
    first = 0
    for listed in sorted((file for file in files if _may_pass(file, query)), key=lambda file: file.path):
        if os.path.splitext(listed.path)[1].lower() not in _PLAIN_NAMES:
            raise UnlikeError(f"a file's name may say that it is compressed. file=`{listed.path}`")
        try:
            handle, state = opened(listed.path, listed.access)
            with handle:
                sample = handle.read(LINES_SAMPLE_BYTES)
                end = crc32c(_end(handle, state.size_bytes))
        except OSError as error:
            raise unreadable(error, listed, "a file") from error
        file = SourceFile(listed.path, state, end, listed.values, listed.access)
        size_bytes = state.size_bytes
        row_bytes = max(len(sample) / max(sample.count(b"\n"), 1), 1)
        for number, begin in enumerate(range(0, size_bytes, piece_bytes)):
            size = min(piece_bytes, size_bytes - begin)
            span = (first, first + size - 1) if query.is_by_row else ALWAYS
            found.append(Piece(file, number, math.ceil(size / row_bytes), size, False, *span, first_row=first))
            first += size
    return found


def _end(handle: Any, size_bytes: int) -> bytes:
    size = min(LINES_END_BYTES, size_bytes)
    end: bytes = handle.read_at(size, size_bytes - size)
    return end


def _may_pass(listed: Listed, query: Query) -> bool:
    """False when the columns in the path of a file show that no row of it passes the filters."""
    arrow: Any = pa
    values = {name: arrow.repeat(value, 1) for name, value in listed.values}
    passed = passes(
        [condition for condition in query.filters if condition.columns() and condition.columns() <= values.keys()], values
    )
    return passed is None or passed[0].as_py() is True


def _numbered(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces with the numbers of their rows in place of their times."""
    found = []
    first = 0
    for piece in pieces:
        found.append(replace(piece, low_us=first, high_us=first + piece.rows - 1, first_row=first))
        first += piece.rows
    return found


def open_lines(file: SourceFile) -> Any:
    """A handle for reading a file of lines, if it is still the same. Raises RetryError."""
    handle = file.open()
    if crc32c(_end(handle, file.state.size_bytes)) != file.footer_crc32c:
        raise changed(file)
    return handle


def changed(file: SourceFile) -> RetryError:
    """The error for a file that is not as the driver found it."""
    return RetryError(
        Reason.INVALID_RECORD,
        f"a file of the source changed or vanished while the flood ran: run the flood again. file=`{file.path}`",
    )


def open_file(file: SourceFile, group_bytes: int) -> pq.ParquetFile:
    """The file for reading, if it is still the same. Raises RetryError.

    Args:
        group_bytes: most bytes of a row group that are read at once. Larger ones are read in steps.
    """
    handle = file.open()
    metadata = metadata_of_source(file, handle)
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    at_once = all(
        sum(group.column(index).total_compressed_size for index in range(group.num_columns)) <= group_bytes for group in groups
    )
    return pq.ParquetFile(
        handle,
        metadata=metadata,
        # On a local file system threads that read ahead cost more than the reads.
        pre_buffer=at_once and file.access is not None,
        buffer_size=0 if at_once else READ_BYTES,
        coerce_int96_timestamp_unit="us",
    )


def metadata_of_source(file: SourceFile, handle: Any = None) -> Any:
    """The metadata of a file. Raises RetryError, OSError.

    Args:
        handle: of the file, if it is open: its footer is then compared.
    """
    known = _kept.get(file)
    if handle is None:
        if known is not None:
            return known
        with file.open() as opened_here:
            return metadata_of_source(file, opened_here)
    try:
        footer = footer_of(handle, file.state.size_bytes)
    except (OSError, InvalidError):
        footer = b""
    if crc32c(footer) != file.footer_crc32c:
        raise changed(file)
    if known is None:
        known = metadata_of(footer)
        _kept.put(file, known)
    return known


def unreadable(error: Exception, file: Listed | SourceFile, what: str) -> Exception:
    """The error for a file that cannot be read. Spark tells more of a file's form, but reads a bucket no better."""
    if file.access is not None and isinstance(error, OSError):
        return refused(error, file.path)
    return UnlikeError(f"{what} cannot be read: {error} file=`{file.path}`")


def _pieces(listed: Listed, columns: Mapping[str, str], query: Query) -> list[Piece]:
    path = listed.path
    time = query.outputs["timestamp"]
    try:
        handle, state = opened(path, listed.access)
        with handle:
            footer = footer_of(handle, state.size_bytes)
        metadata = metadata_of(footer)
        schema = metadata.schema.to_arrow_schema()
    except (OSError, InvalidError, pa.ArrowException) as error:
        raise unreadable(error, listed, "a footer") from error
    schema = pa.schema([field.with_name(_renamed(listed, field.name)) for field in schema])
    wide = frozenset(_renamed(listed, name) for name in wide_columns(metadata))
    _check_file(path, metadata.metadata, schema, columns, wide)
    file = SourceFile(path, state, crc32c(footer), listed.values, listed.access, listed.names)
    _kept.put(file, metadata)
    paths = [_renamed(listed, metadata.schema.column(index).path) for index in range(metadata.num_columns)]
    read = [index for index, name in enumerate(paths) if name.partition(".")[0] in columns]
    pieces = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if not group.num_rows:
            continue
        chunks = [group.column(index) for index in read]
        raw = sum(chunk.total_uncompressed_size for chunk in chunks)
        repeats = any(
            "DICTIONARY" in encoding or encoding.startswith("DELTA_BYTE") for chunk in chunks for encoding in chunk.encodings
        )
        timed = time.columns() & columns.keys()
        known = {name: _raw_ends(group.column(paths.index(name)).statistics, columns[name]) for name in timed}
        ends = {name: kind for name, kind in known.items() if kind != ALWAYS}
        pieces.append(Piece(file, number, group.num_rows, raw, repeats, *span_of(time, query.source, listed, ends)))
    return pieces


def _renamed(listed: Listed, path: str) -> str:
    """The path of a column in a file, with the source's name of the column; with no name that the source has for another column."""
    if not listed.names:
        return path
    own = {inside: name for name, inside in listed.names}
    if dotted := next((inside for inside in own if "." in inside), None):
        raise UnlikeError(f"a column has a dot in its name. column=`{dotted}` file=`{listed.path}`")
    column, dot, rest = path.partition(".")
    return f"{own.get(column, chr(0))}{dot}{rest}"


def _check_file(
    path: str, notes: Mapping[bytes, bytes] | None, schema: pa.Schema, columns: Mapping[str, str], wide: frozenset[str]
) -> None:
    """Raise UnlikeError if Arrow may read a column as Spark does not. `wide`: columns with times of 96 bits."""
    if has_julian_times(notes):
        raise UnlikeError(f"a file has times in an old calendar. file=`{path}`")
    if (wide & columns.keys()) and not has_wide_times(notes):
        raise UnlikeError(f"a file has times of 96 bits of Spark before 3.1. file=`{path}`")
    for name, kind in columns.items():
        if name in wide and kind == "timestamp":
            continue
        found = schema.get_all_field_indices(name)
        is_wide = name in wide and not shape_of(kind)
        if len(found) != 1 or is_wide or not _is_kind(schema.field(found[0]).type, kind):
            there = schema.field(found[0]).type if found else "missing"
            raise UnlikeError(
                f"a column is of another type in a file. column=`{name}` type=`{there}` wanted=`{kind}` file=`{path}`"
            )


def _is_kind(found: Any, kind: str) -> bool:
    """True if Spark reads a column of this Arrow type as `kind`."""
    if shape_of(kind):
        return _is_nested_kind(found, kind)
    if pa.types.is_dictionary(found):
        found = found.value_type
    if kind == "string":
        return pa.types.is_string(found) or pa.types.is_large_string(found) or is_uuid(found)
    if kind == "binary":
        return pa.types.is_binary(found) or pa.types.is_large_binary(found) or type(found) is pa.FixedSizeBinaryType
    if kind in ("timestamp", "timestamp_ntz"):
        zoned = pa.types.is_timestamp(found) and found.tz is not None
        return pa.types.is_timestamp(found) and found.unit in ("ms", "us") and zoned == (kind == "timestamp")
    if kind == "long" and pa.types.is_timestamp(found):
        return bool(found.unit == "ns")
    # Columns of Iceberg tables may have grown to these types.
    return bool(found == arrow_type(kind)) or (kind, str(found)) in (("long", "int32"), ("double", "float"))


def _is_nested_kind(found: Any, kind: str) -> bool:
    """The same of a nested kind: the parts have the same names, in the same order."""
    fields = fields_of(kind)
    shape, parts = parts_of_arrow(found)
    if not parts or shape != shape_of(kind) or [name for name, _ in parts] != [name for name, _ in fields]:
        return False
    return all(
        # Times of 96 bits, and no others, have no zone and this unit.
        (part == WIDE_TIMES and inside == "timestamp") or (not _is_formed(part) and _is_kind(part, inside))
        for (_, part), (_, inside) in zip(parts, fields, strict=True)
    )


def _is_formed(found: Any) -> bool:
    """True for types that Arrow does not cast within nested ones."""
    return pa.types.is_dictionary(found) or is_uuid(found)


def span_of(time: Node, kinds: Mapping[str, str], listed: Listed, ends: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """The first and the last event time that some rows of a file can have; `ALWAYS` if that is not known. An event time of one
    column grows with it.

    Args:
        kinds: Spark's names of the types of all columns.
        ends: the least and the greatest value of columns, integers or microseconds since 1970.
    """
    arrow: Any = pa
    names = time.columns()
    given = dict(listed.values)
    if names <= given.keys():
        return _times(time, {name: arrow.repeat(given[name], 2) for name in names})
    if len(names) != 1 or not names <= ends.keys() or not _grows(time):
        return ALWAYS
    (name,) = names
    kind = kinds[name]
    if time.function == "column" and kind not in INTEGERS:
        return ends[name]  # it is a time already
    values = arrow.array(ends[name], pa.int64())
    if kind not in INTEGERS:
        values = values.cast(KINDS["timestamp"] if kind == "date" else KINDS[kind])
    return _times(time, {name: values.cast(KINDS[kind])})


def _raw_ends(statistics: Any, kind: str) -> tuple[int, int]:
    """The least and the greatest value of a column, integers or microseconds since 1970; `ALWAYS` if the footer does not say."""
    if kind not in INTEGERS:
        return _ends(statistics, kind)
    return ALWAYS if statistics is None or not statistics.has_min_max else (statistics.min_raw, statistics.max_raw)


def _times(time: Node, columns: Mapping[str, Any]) -> tuple[int, int]:
    """The first and the last of two event times."""
    try:
        low, high = array_of(time, columns, 2).cast(pa.int64()).to_pylist()
    except (InvalidError, pa.ArrowInvalid):
        return ALWAYS
    return (low, high) if low is not None and high is not None else ALWAYS


def _ends(statistics: Any, kind: str) -> tuple[int, int]:
    """The least and the greatest time of a column of dates or times, in microseconds; `ALWAYS` if the footer does not say."""
    if statistics is None or not statistics.has_min_max:
        return ALWAYS
    factor = DAY_US if kind == "date" else _UNIT_US.get(time_unit(statistics.logical_type))
    return ALWAYS if factor is None else (statistics.min_raw * factor, statistics.max_raw * factor)


def _grows(time: Node) -> bool:
    return time.function == "column" or (time.function in ("cast", "time") and all(_grows(argument) for argument in time.arguments))
