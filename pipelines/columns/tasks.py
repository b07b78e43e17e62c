"""The first half of a flood's tasks on columns, as they run in Spark's Python workers: read, count, make records.

A task holds at most about `Limits.chunk_bytes` of rows that it read. Nothing here calls Spark.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.log.column_partitioner import partitions_for_keys, runs
from headgate.broker.log.column_schema import whole
from headgate.broker.log.recipe import Shape
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.certificate import Tally
from headgate.pipelines.columns.batches import joined
from headgate.pipelines.columns.decoded import decoded_bytes, formed_column, given_of, json_bytes
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import ROW, ROW_OUTPUT, Query, array_of, passes
from headgate.pipelines.columns.kinds import HEADERS, INTEGERS, TIMESTAMP, arrow_type, of_kind
from headgate.pipelines.columns.layout import LINES_SAMPLE_BYTES, Piece, SourceFile, open_file, open_lines, unreadable
from headgate.pipelines.columns.lines import Lines
from headgate.pipelines.columns.task_division import Limits
from headgate.pipelines.columns.xxhash64 import spread
from headgate.pipelines.tally import tally

ARROW_VERSION_MIN = 23
"""The first release of Arrow that a worker may have, as in the package's requirements."""
SAMPLED_PIECES = 8
SAMPLED_ROWS = 256
"""Row groups, and rows of each, that show the size of a row."""
DIGITS_MAX = 20
"""Characters of a whole number."""
ROWS_MAX = 1 << 16
ROWS_IF_REPEATED = 1 << 12
"""Rows that are decoded at once, and that many when values may be far larger than their encoding."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What every task of a flood knows.

    `ties`: outputs that order records of equal times. `sample_rows`: one of so many rows shows how the rows lie in time.
    `spreads`: some rows have no key; their content spreads them over the partitions. `lines`: the format of files that are not
    Parquet. `limits`: shares of the memory of each task. `spans`: the times of each partition are counted.
    """

    query: Query
    partitions: int
    ties: tuple[str, ...]
    sample_rows: int
    spreads: bool = False
    lines: Lines | None = None
    limits: Limits = field(default_factory=Limits)
    spans: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns of a record and of its order."""
        return ("timestamp", *self.fields, *self.ties)

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of a record, but for its time."""
        return ("key", "value", *((HEADERS,) if self.query.has_headers else ()))

    @property
    def counted(self) -> tuple[str, ...]:
        """The columns that show a record's partition and its order."""
        content = ("value",) if self.spreads else ()
        return ("timestamp", "key", *content, *((ROW_OUTPUT,) if self.query.is_by_row else ()))


@dataclass(slots=True)
class Counted:
    """The rows that a task counted in one stretch. Times in microseconds."""

    stretch: int
    rows: list[int]
    keyless: int = 0
    nulls: int = 0
    low_us: int | None = None
    high_us: int | None = None
    samples: list[tuple[int, int]] = field(default_factory=list)
    """(partition, time) of some rows."""
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The least and the greatest time of each partition's rows, in milliseconds; only if `Spec.spans`."""
    decoded_bytes: int = 0
    """Of the columns of a record, at most; only if `Spec.spans`."""
    json_bytes: int = 0
    """Of the rows as JSON, at most, but for escapes; 0 if the value is a column."""
    formed: str = ""
    """A column whose values are not as its file has them, such as one of UUIDs; only if `Spec.spans`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a chunk of rows begins. `part`: the row group, or the first byte of the lines, as a message names it."""

    path: str
    part: str
    first: int
    """Number of the first row in that part."""

    def __str__(self) -> str:
        return f"file=`{self.path}` {self.part} row=`{self.first}`"


# -- reading


def check_arrow() -> None:
    """Raise InvalidError when this Python has a release of Arrow that may read, compute or write in another way."""
    if int(pa.__version__.partition(".")[0]) < ARROW_VERSION_MIN:
        raise InvalidError(
            Reason.UNSUPPORTED,
            f"an executor's Python has an old pyarrow: install {ARROW_VERSION_MIN} or later on each executor. "
            f"host=`{socket.gethostname()}` python=`{sys.executable}` pyarrow=`{pa.__version__}`",
        )


def chunks(spec: Spec, pieces: Iterable[Piece], columns: list[str]) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """Rows of some pieces, of at most about `Limits.chunk_bytes` at a time. Each file is opened once.

    Raises UnlikeError when Arrow cannot read a file; RetryError when a file has changed, or a bucket does not answer.
    """
    check_arrow()
    for source, groups in groupby(sorted(pieces, key=lambda piece: (piece.file.path, piece.group)), lambda piece: piece.file):
        try:
            yield from _of_file(spec, source, groups, columns)
        except (OSError, pa.ArrowException) as error:
            source.check()
            raise unreadable(error, source, "a file") from error
        source.check()


def _of_file(spec: Spec, source: SourceFile, pieces: Iterable[Piece], columns: list[str]) -> Iterator[tuple[Place, pa.RecordBatch]]:
    if spec.lines is not None:
        with open_lines(source) as lines:
            for piece in pieces:
                part = f"from_byte=`{piece.group * spec.lines.piece_bytes}`"
                yield Place(source.path, part, 0), _of_lines(lines, spec, piece, columns, spec.lines.piece_bytes)
        return
    with open_file(source, spec.limits.task_bytes) as file:
        for piece in pieces:
            for first, batch in _of_group(file, piece, columns, spec.limits.chunk_bytes):
                yield Place(source.path, f"row_group=`{piece.group}`", first), batch


def _of_lines(handle: Any, spec: Spec, piece: Piece, columns: list[str], size: int) -> pa.RecordBatch:
    """The rows of the lines that begin in the first `size` bytes of a piece."""
    lines = spec.lines
    assert lines is not None, "the source is of lines"
    begin = piece.group * lines.piece_bytes
    values = dict(piece.file.values)
    inside = [name for name in columns if name not in values and name != ROW]
    known = [name for name in spec.query.source if name not in values and name != ROW]
    # Without a column the lines could not be counted.
    read = {name: (kind, arrow_type(kind)) for name in inside or known[:1] for kind in (spec.query.source[name],)}
    table = lines.read(handle, piece.file.path, begin, begin + size, read)
    arrays = {name: whole(table.column(name)) for name in inside}
    return _with_given(piece, columns, arrays, piece.first_row, table.num_rows)


def _with_given(piece: Piece, columns: list[str], arrays: dict[str, Any], first_row: int, rows: int) -> pa.RecordBatch:
    """A batch of `columns`: those read from the file, those in its path, and the rows' numbers."""
    values = dict(piece.file.values)
    for name in columns:
        if name == ROW:
            arrays[name] = pa.array(np.arange(first_row, first_row + rows))
        elif name in values:
            arrays[name] = pa.repeat(values[name], rows)
    return pa.RecordBatch.from_pydict(arrays)


def _of_group(file: pq.ParquetFile, piece: Piece, columns: list[str], chunk_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(number of the first row in its row group, rows) of one piece."""
    most = ROWS_IF_REPEATED if piece.repeats else ROWS_MAX
    rows = min(max(chunk_bytes * piece.rows // max(piece.raw_bytes, 1), 1), most)
    waiting: list[pa.RecordBatch] = []
    size = first = read = 0
    for batch in _batches(file, piece, columns, rows):
        waiting.append(batch)
        size += batch.nbytes
        read += batch.num_rows
        if size >= chunk_bytes:
            yield first, joined(waiting)
            waiting, size, first = [], 0, read
    if waiting:
        yield first, joined(waiting)


def _batches(file: pq.ParquetFile, piece: Piece, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of one piece, `rows` at a time."""
    inside = [name for name in columns if name != ROW and name not in dict(piece.file.values)]
    own = dict(piece.file.names)
    first = piece.first_row
    # A batch without columns would not know its rows.
    some = [own.get(name, name) for name in inside] or file.schema_arrow.names[:1]
    for batch in file.iter_batches(rows, row_groups=[piece.group], columns=some, use_threads=False):
        yield _with_given(piece, columns, {name: batch.column(own.get(name, name)) for name in inside}, first, batch.num_rows)
        first += batch.num_rows


def _columns(spec: Spec, batch: pa.RecordBatch) -> tuple[dict[str, Any], int]:
    """The columns of the rows that pass the filters, and the number of these rows."""
    try:
        found: dict[str, Any] = {name: of_kind(batch.column(name), spec.query.source[name]) for name in batch.schema.names}
    except pa.ArrowInvalid as error:
        raise UnlikeError(f"a value of a file does not fit into its type: {error}") from error
    passed = passes(spec.query.filters, found)
    if passed is None:
        return found, batch.num_rows
    passed = passed.fill_null(False)
    return {name: column.filter(passed) for name, column in found.items()}, passed.true_count


def _made(spec: Spec, names: Iterable[str], place: Place, batch: pa.RecordBatch) -> tuple[dict[str, Any], int]:
    """These outputs of the rows that pass the filters, and the number of these rows. An error names the place of its row."""
    try:
        columns, rows = _columns(spec, batch)
        return {name: array_of(spec.query.outputs[name], columns, rows) for name in names}, rows
    except InvalidError as error:
        half = batch.num_rows // 2
        if half:
            # A part has the error too, and the first row that has it is the one to name.
            _made(spec, names, place, batch.slice(0, half))
            _made(spec, names, replace(place, first=place.first + half), batch.slice(half))
        raise InvalidError(error.reason, f"{error.message} {place}") from error


def _sample(spec: Spec, piece: Piece, columns: list[str]) -> pa.RecordBatch:
    if spec.lines is not None:
        with open_lines(piece.file) as lines:
            return _of_lines(lines, spec, piece, columns, min(LINES_SAMPLE_BYTES, spec.lines.piece_bytes))
    with open_file(piece.file, spec.limits.task_bytes) as file:
        return next(_batches(file, piece, columns, SAMPLED_ROWS))


def row_bytes(spec: Spec, pieces: Sequence[Piece]) -> float:
    """The size of a record, from some rows of some pieces. What the columns take in their files says little: values may repeat
    there, and JSON repeats the names of the columns."""
    size = rows = 0
    names = spec.query.columns(*spec.outputs)
    for piece in pieces[:: max(len(pieces) // SAMPLED_PIECES, 1)]:
        try:
            batch = _sample(spec, piece, names)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(error, piece.file, "a row group") from error
        try:
            made, count = _made(spec, spec.outputs, Place(piece.file.path, "", 0), batch)
        except InvalidError:
            continue  # the task that reads the row reports it
        if count:
            size += sum(array.nbytes for array in made.values())
            rows += count
    return size / rows if rows else stored_row_bytes(pieces)


def stored_row_bytes(pieces: Sequence[Piece]) -> float:
    """The size of a row in its file, without compression."""
    return sum(piece.raw_bytes for piece in pieces) / max(sum(piece.rows for piece in pieces), 1)


# -- counting


def count_stretch(spec: Spec, stretch: int, pieces: Iterable[Piece]) -> Counted:
    """Count the rows of some pieces by partition, from their keys and times alone if all of them have keys."""
    totals = np.zeros(spec.partitions, np.int64)
    counted = Counted(stretch, [])
    seen = 0
    for place, batch in chunks(spec, pieces, spec.query.columns(*spec.counted)):
        made, rows = _made(spec, spec.counted, place, batch)
        if not rows:
            continue
        times = made["timestamp"] = made["timestamp"].cast(pa.int64())
        counted.keyless += made["key"].null_count
        counted.nulls += times.null_count
        numbers = _partitions(spec, made)
        totals += np.bincount(numbers[numbers >= 0], minlength=spec.partitions)
        if times.null_count == rows or (counted.keyless and not spec.spreads):
            continue
        known: Any = np.asarray(times.drop_null())
        low, high = int(known.min()), int(known.max())
        counted.low_us = low if counted.low_us is None else min(counted.low_us, low)
        counted.high_us = high if counted.high_us is None else max(counted.high_us, high)
        if spec.spans and not times.null_count:
            _add_spans(counted.spans, numbers, np.asarray(times) // 1000)
        some = slice(-seen % spec.sample_rows, None, spec.sample_rows)
        order = made.get(ROW_OUTPUT, times).fill_null(low)
        counted.samples += zip(numbers[some].tolist(), np.asarray(order)[some].tolist(), strict=True)
        seen += rows
    counted.rows = totals.tolist()
    return counted


def measure(spec: Spec, counted: Counted, piece: Piece, shape: Shape) -> None:
    """Add the decoded size of a piece's columns to its count. Raises as `count`."""
    given, names = [name for name, _ in piece.file.values], dict(piece.file.names)
    try:
        counted.decoded_bytes = decoded_bytes(piece, shape.columns(given, names))
        if shape.row:
            # A broker has them beside the row.
            counted.decoded_bytes += decoded_bytes(piece, [names.get(name, name) for name in (shape.time, shape.key)])
            counted.json_bytes = counted.decoded_bytes + json_bytes(piece, shape, given_of(piece.file, shape))
        if spec.query.source[shape.key] in INTEGERS:
            counted.decoded_bytes += piece.rows * DIGITS_MAX
        counted.formed = formed_column(piece.file, shape.columns(given), {name: spec.query.source[name] for name in shape.row})
    except (OSError, pa.ArrowException) as error:
        raise unreadable(error, piece.file, "a file") from error


def _add_spans(spans: dict[int, tuple[int, int]], numbers: npt.NDArray[np.int64], times_ms: npt.NDArray[np.int64]) -> None:
    """Widen the span of each partition by the times of some rows. -1 in `numbers`: a row has no partition."""
    # numpy sorts numbers of 16 bits by their digits, several times as fast.
    order = np.argsort(numbers.astype(np.int16 if numbers.max() < 1 << 15 else np.int32), kind="stable")
    firsts = np.flatnonzero(np.diff(numbers[order], prepend=-2))
    lows, highs = np.minimum.reduceat(times_ms[order], firsts), np.maximum.reduceat(times_ms[order], firsts)
    for partition, low, high in zip(numbers[order][firsts].tolist(), lows.tolist(), highs.tolist(), strict=True):
        before = spans.get(partition, (low, high))
        spans[partition] = min(low, before[0]), max(high, before[1])


def _partitions(spec: Spec, made: Mapping[str, Any]) -> npt.NDArray[np.int64]:
    """The partition of each row; -1 for a row without a key if these are not spread."""
    found = partitions_for_keys(made["key"], spec.partitions)
    if spec.spreads and made["key"].null_count:
        rows = np.flatnonzero(found < 0)
        found[rows] = spread(made["timestamp"].take(rows), made["value"].take(rows), spec.partitions)
    return found


# -- records


def records(spec: Spec, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """The records of some pieces: `partition`, `timestamp` (microseconds), `key`, `value`, perhaps `headers`, and `ties`.
    Without event time `timestamp` is the number of the row."""
    for place, batch in chunks(spec, pieces, spec.query.columns(*spec.outputs)):
        made, rows = _made(spec, spec.outputs, place, batch)
        if not rows:
            continue
        made["timestamp"] = made["timestamp"].cast(pa.int64())
        numbers: Any = _partitions(spec, made).astype(np.int32)
        if spec.query.is_by_row:
            made["timestamp"] = made.pop(ROW_OUTPUT)
        yield pa.RecordBatch.from_pydict({"partition": pa.array(numbers), **made})


def tallies(spec: Spec, pieces: Iterable[Piece]) -> list[tuple[int, Tally]]:
    """(partition, sums of its records) of some pieces."""
    found: dict[int, Tally] = {}
    for rows in records(spec, pieces):
        numbers: Any = rows.column("partition").to_numpy()
        order: Any = np.argsort(numbers, kind="stable")
        fields = rows.take(pa.array(order)).select(["timestamp", *spec.fields])
        fields = fields.set_column(0, "timestamp", fields.column(0).cast(TIMESTAMP))
        for partition, begin, end in runs(numbers[order]):
            found[partition] = found.get(partition, Tally()) + tally(fields.slice(begin, end - begin))
    return list(found.items())
