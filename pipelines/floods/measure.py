"""The size of a source, from its metadata: without Spark, without reading rows. The only module of floods that does I/O.

Parquet: footers. Row groups are counted by the statistics of the event-time column; a group across a border is counted by
reading that column, or shared out by time when the column is too large. CSV and JSON: lines of the first MiB, scaled to the
size.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.floods.judge import Columns, drift, mixture, problems, time_column
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import SAID_MAX, PartitionSize
from headgate.pipelines.floods.source_columns import has_header, of_parquet, of_sample, of_table
from headgate.pipelines.floods.source_files import SourceFiles, find_files, refused, short, unread_note
from headgate.pipelines.floods.spans import TimeSpan, partitions_per_path, path_span, shares_path, source_path
from headgate.pipelines.listing import DataFile

SAMPLE_BYTES = 1 << 20
TEXT_BYTES_MAX = 64 << 20
"""Bytes of a sample after decompression."""
EXACT_ROWS_MAX = 5_000_000
"""Up to this number of rows, the event-time column is read and counted."""
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_LINE_FORMATS = ("csv", "json", "text")


def can_count(flood: Flood) -> bool:
    """True when `measure` can return exact numbers. Other formats and floods with a condition are only estimated."""
    return flood.where is None and flood.source.is_parquet


@dataclass(frozen=True, slots=True)
class Look:
    """What the metadata of a source tell about some partitions.

    `columns`: of each partition with files, by its key; None where only Spark knows them. `missing`: keys of partitions without a
    source. `empty`: those whose source is there, and has no files with content. `notes`: what a person should know, and no mistake.
    """

    sizes: tuple[PartitionSize, ...]
    columns: Mapping[str, Columns | None]
    missing: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def measure(flood: Flood, spans: Sequence[TimeSpan], now: datetime) -> list[PartitionSize]:
    """Rows and bytes of each partition's source. Arguments and errors are those of `look`."""
    return list(look(flood, spans, now).sizes)


def look(flood: Flood, spans: Sequence[TimeSpan], now: datetime, *, skip_missing: bool = False) -> Look:
    """Look at the source of some partitions: sizes, columns, mistakes. Rows that cannot be assigned to a partition are shared out
    among the partitions up to `now`.

    Args:
        skip_missing: leave out partitions without a source, instead of raising an error.

    Raises:
        InvalidError: nothing exists at the path, its format differs from `format`, or its columns do not fit the flood.
        FatalError: no credentials, or not allowed. RetryError: the file system does not answer, or the source changed meanwhile.
    """
    by_path: dict[str, list[TimeSpan]] = {}
    for span in spans:
        by_path.setdefault(source_path(flood, span), []).append(span)
    looks: list[_PathLook] = []
    missing: list[str] = []
    for path, wanted in by_path.items():
        own = [span for span in wanted if not shares_path(flood, span)]
        one = _PathLook(flood, path, own, max(partitions_per_path(flood, now), len(own)))
        try:
            one.run()
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND or not skip_missing:
                raise
            missing += [span.key for span in wanted]
            continue
        one.sizes += [_without_rows(span) for span in wanted if span not in own]
        looks.append(one)
    for source_look in looks:
        source_look.check_unchanged()
    sizes = sorted((size for source_look in looks for size in source_look.sizes), key=lambda size: size.key)
    empty = sorted(size.key for source_look in looks if source_look.is_empty for size in source_look.sizes)
    columns = {size.key: source_look.columns for source_look in looks if not source_look.is_empty for size in source_look.sizes}
    return Look(tuple(sizes), columns, tuple(sorted(missing)), tuple(empty), tuple(_notes(sizes, looks)))


def _notes(sizes: Sequence[PartitionSize], looks: Sequence[_PathLook]) -> Iterator[str]:
    for source_look in looks:
        if source_look.is_table:
            yield f"the source is {source_look.path}"
    if (note := next(filter(None, (source_look.note for source_look in looks)), None)) is not None:
        yield note
    empty = [size.key for size in sizes if size.exact and not size.rows]
    if empty:
        yield f"without rows, so nothing is added for them: {', '.join(empty[:SAID_MAX])}{', ...' if len(empty) > SAID_MAX else ''}"
    seen = [columns for source_look in looks for columns in source_look.seen]
    for before, after in pairwise(seen):
        if (text := drift(before, after)) is not None:
            yield text
            return


def _without_rows(span: TimeSpan) -> PartitionSize:
    return PartitionSize(key=span.key, rows=0, size_bytes=0, exact=True, elsewhere=0)


class _PathLook:
    """A look at one path of a source. `held`: approximate number of partitions at the path. `seen`: its columns, once for each form
    that they have. `lines`: the largest file of CSV or JSON, and its first lines."""

    def __init__(self, flood: Flood, path: str, spans: Sequence[TimeSpan], held: int) -> None:
        self.path = path
        self.sizes: list[PartitionSize] = []
        self.seen: list[Columns] = []
        self.columns: Columns | None = None
        self.lines: tuple[DataFile, bytes] | None = None
        self.is_table = flood.source.is_table
        self._flood = flood
        self._spans = spans
        self._held = held
        self._found: SourceFiles | None = None

    def run(self) -> None:
        """Fill the attributes. Raises as `look`."""

        flood = self._flood
        self._found = found = find_files(flood, self.path)
        self.path = found.path
        if not found.files:
            self.sizes = [_without_rows(span) for span in self._spans]
            return
        try:
            if flood.source.is_parquet:
                self.sizes = _parquet(flood, found, self._spans, self._held, self._see)
            else:
                self.sizes = self._estimate(found)
        except pa.ArrowNotImplementedError:
            # A file that Arrow does not open, and Spark may: integers of 128 bits.
            self.columns, self.seen = None, []
            self.sizes = self._estimate(found)
        except pa.ArrowInvalid as error:
            self.check_unchanged()
            raise InvalidError(
                Reason.INVALID_CONFIG,
                f"the source is not {flood.source.format}: {short(error).rstrip('.')}. path=`{_at(error, self.path)}`",
            ) from error
        except OSError as error:
            self.check_unchanged()
            raise refused(error, _at(error, self.path)) from error

    @property
    def is_empty(self) -> bool:
        """True if the path has no files with content."""
        return self._found is not None and not self._found.files

    @property
    def note(self) -> str | None:
        """What a person should know about the files."""
        return None if self._found is None else unread_note(self._found)

    def check_unchanged(self) -> None:
        """Raise RetryError when a file was written or removed since `run` listed them."""
        if self._found is not None:
            self._found.check_unchanged()

    def _see(self, columns: Columns, rows: int) -> None:
        """Judge columns of a file of `rows`, and keep them: Spark reads all files with the columns of the first one. Raises
        InvalidError with all their mistakes."""
        if any((columns.kinds, columns.forms) == (seen.kinds, seen.forms) for seen in self.seen):
            return
        if self.columns is None or self.is_table:
            found = problems(self._flood, columns)
        else:
            text = mixture(self._flood, self.columns, columns, rows)
            found = [] if text is None else [text]
        if found:
            raise InvalidError(Reason.INVALID_CONFIG, "\n".join(found))
        self.seen.append(columns)
        self.columns = self.seen[0]

    def _estimate(self, found: SourceFiles) -> list[PartitionSize]:
        """Sizes, and rows estimated from the density of lines."""
        flood, files, total = self._flood, found.files, sum(file.size_bytes for file in found.files)
        per_row, growth = 100.0, 1.0
        format = flood.source.format.lower()
        if format in _LINE_FORMATS and total:
            first = max(files, key=lambda file: file.size_bytes)
            stored, text = _sample(found.system, first)
            whole = text if stored == first.size_bytes else text[: text.rfind(b"\n") + 1]
            self.lines = (first, whole) if whole else None
            is_whole = stored == first.size_bytes and len(files) == 1
            columns = of_sample(text, is_whole, format, flood.source.options, first.path, first.columns)
            if columns is not None:
                self._see(columns, 1)
            per_row, growth = max(len(text) / max(text.count(b"\n"), 1), 1.0), len(text) / max(stored, 1)
        size = total * growth / self._held
        names = len(files) if format == "csv" and has_header(flood.source.options) else 0
        share = size / per_row - names / self._held
        # A few lines for many partitions are not nothing.
        rows, size_bytes = (max(round(number), math.ceil(min(number, 1.0) - 1e-6), 0) for number in (share, size))
        return [PartitionSize(key=span.key, rows=rows, size_bytes=size_bytes, exact=total == 0) for span in self._spans]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files at a path: their number and size, and when the newest one was written (1970 without files)."""

    files: int
    size_bytes: int
    modified: datetime


def listing(flood: Flood, span: TimeSpan) -> Listing:
    """The files of a partition's path, without a look into them. Raises as `find_files`."""
    files = find_files(flood, source_path(flood, span)).files
    return Listing(
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        modified=max((file.modified for file in files), default=datetime.fromtimestamp(0, UTC)),
    )


def _parquet(
    flood: Flood, found: SourceFiles, spans: Sequence[TimeSpan], held: int, see: Callable[[Columns, int], None]
) -> list[PartitionSize]:
    """Sizes from the footers of Parquet files, by path."""
    rows = dict.fromkeys(spans, 0.0)
    sizes = dict.fromkeys(spans, 0.0)
    exact = can_count(flood)
    by_path = flood.partition_by == "path"
    budget = EXACT_ROWS_MAX
    named = path_span(flood, spans[0]) if exact and not by_path else None
    elsewhere = 0.0
    for info in found.files:
        # INT96 holds times of years for which nanoseconds have no number.
        with (
            _reading(info.path),
            found.system.open_input_file(info.path) as handle,
            pq.ParquetFile(handle, coerce_int96_timestamp_unit="us") as file,
        ):
            columns = of_parquet(file, info.path, info.columns) if found.columns is None else of_table(found.columns, found.path)
            see(columns, file.metadata.num_rows)
            column = time_column(flood, columns) or ""  # an expression: only Spark can evaluate it
            # Spark reads null for a column that only the first file has, and rows without a time belong to no partition.
            if column and column not in columns and not by_path:
                continue
            names = (found.columns or file.schema_arrow).names
            column = next((name for name in names if name.lower() == column.lower()), "")
            if (reading := found.readings.get(info.path)) is not None:
                column = reading.fields[column].name if column in reading.fields else ""
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                per_row = group.total_byte_size / max(group.num_rows, 1)
                if by_path:
                    counts, sure, read = dict.fromkeys(spans, float(group.num_rows)), True, 0
                else:
                    counts, sure, read = _group(file, number, group, column, spans, budget, held)
                budget -= read
                exact = exact and sure
                if named is not None:
                    within = counts
                    if spans != [named]:
                        within, sure, read = _group(file, number, group, column, [named], budget, held)
                        budget -= read
                    elsewhere += group.num_rows - within.get(named, 0.0)
                    named = named if sure else None
                for span, count in counts.items():
                    rows[span] += count
                    sizes[span] += count * per_row
    outside = None if named is None else round(elsewhere)
    return [
        PartitionSize(key=span.key, rows=round(rows[span]), size_bytes=round(sizes[span]), exact=exact, elsewhere=outside)
        for span in spans
    ]


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Note at errors which file they are about."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        error.add_note(path)
        raise


def _at(error: Exception, path: str) -> str:
    """The file that an error is about, or a path."""
    return next(iter(getattr(error, "__notes__", ())), path)


def _group(
    file: Any, number: int, group: Any, column: str, spans: Sequence[TimeSpan], budget: int, held: int
) -> tuple[dict[TimeSpan, float], bool, int]:
    """Rows of a row group by partition; whether that is exact; the number of values read for it."""
    if not column:
        return dict.fromkeys(spans, group.num_rows / held), False, 0
    low, high = _bounds(group, column)
    if low is not None and high is not None:
        touched = [span for span in spans if span.start <= high and low < span.end]
        if not touched:
            return {}, True, 0
        if len(touched) == 1 and touched[0].start <= low and high < touched[0].end:
            return {touched[0]: float(group.num_rows)}, True, 0
    if group.num_rows <= budget:
        return _counted(file.read_row_group(number, columns=[column]).column(0), spans), True, group.num_rows
    if low is None or high is None:
        return dict.fromkeys(spans, group.num_rows / held), False, 0
    length = max((high - low).total_seconds(), 1.0)
    shares = {span: (min(high, span.end) - max(low, span.start)).total_seconds() / length for span in touched}
    return {span: group.num_rows * min(max(share, 0.0), 1.0) for span, share in shares.items()}, False, 0


def _bounds(group: Any, column: str) -> tuple[datetime | None, datetime | None]:
    for number in range(group.num_columns):
        part = group.column(number)
        if part.path_in_schema == column and part.is_stats_set and part.statistics.has_min_max and not part.statistics.null_count:
            low, high = part.statistics.min, part.statistics.max
            if isinstance(low, datetime) and isinstance(high, datetime):
                return _aware(low), _aware(high)
    return None, None


def _counted(column: pa.ChunkedArray[Any], spans: Sequence[TimeSpan]) -> dict[TimeSpan, float]:

    kind = pa.timestamp("us", tz="UTC")
    values = pc.cast(column, kind, safe=False)
    counts = {}
    for span in spans:
        inside = pc.and_(pc.greater_equal(values, pa.scalar(span.start, kind)), pc.less(values, pa.scalar(span.end, kind)))
        counts[span] = float(pc.sum(pc.cast(inside, pa.int64())).as_py() or 0)
    return counts


def _sample(system: Any, file: DataFile) -> tuple[int, bytes]:
    """The number of stored bytes of a file's sample, and the sample, decompressed. The name tells the codec, as in Spark."""

    with system.open_input_file(file.path) as handle:
        stored = handle.read(SAMPLE_BYTES)
    found = bytearray()
    codec: Any = _CODECS.get(os.path.splitext(file.path)[1])
    with pa.input_stream(pa.py_buffer(stored), compression=codec) as stream:
        try:
            while len(found) < TEXT_BYTES_MAX and (piece := stream.read(SAMPLE_BYTES)):
                found += piece
        except OSError:
            pass  # the sample ends inside a compressed block
    return len(stored), bytes(found)


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def sample_file(flood: Flood, span: TimeSpan) -> tuple[DataFile, bytes] | None:
    """A partition's largest file, and its first lines, decompressed and whole; None when they have no end. Raises as `look`."""
    one = _PathLook(flood, source_path(flood, span), [span], 1)
    one.run()
    return one.lines
