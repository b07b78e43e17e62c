"""The size of a source, from its metadata: without Spark, without reading rows. The only module of floods that does I/O.

Parquet: footers. Row groups are counted by the statistics of the event-time column; a group across a border is counted by
reading that column, or shared out by time when the column is too large. CSV and JSON: lines of the first MiB, scaled to the
size.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.pipelines.floods.columns import has_header, nearest, of_sample, of_schema
from headgate.pipelines.floods.judge import Columns, drift, problems, time_column
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import SAID_MAX, PartitionSize
from headgate.pipelines.floods.spans import TimeSpan, partitions_per_path, path_span, source_path

FILES_MAX = 100_000
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

    `columns`: of each path that was looked at, None where only Spark knows them. `missing`: keys of partitions without a source.
    `notes`: what a person should know, and no mistake.
    """

    sizes: tuple[PartitionSize, ...]
    columns: Mapping[str, Columns | None]
    missing: tuple[str, ...] = ()
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
        one = _PathLook(flood, path, wanted, max(partitions_per_path(flood, now), len(wanted)))
        try:
            one.run()
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND or not skip_missing:
                raise
            missing += [span.key for span in wanted]
            continue
        looks.append(one)
    for one in looks:
        one.check_unchanged()
    sizes = sorted((size for one in looks for size in one.sizes), key=lambda size: size.key)
    return Look(tuple(sizes), {one.path: one.columns for one in looks}, tuple(sorted(missing)), tuple(_notes(sizes, looks)))


def _notes(sizes: Sequence[PartitionSize], looks: Sequence[_PathLook]) -> Iterator[str]:
    for one in looks:
        if one.is_table:
            yield f"the source is {one.path}"
    empty = [one.key for one in sizes if one.exact and not one.rows]
    if empty:
        yield f"without rows, so nothing is added for them: {', '.join(empty[:SAID_MAX])}{', ...' if len(empty) > SAID_MAX else ''}"
    seen = [columns for one in looks for columns in one.seen]
    for before, after in pairwise(seen):
        if (text := drift(before, after)) is not None:
            yield text
            return


class _PathLook:
    """A look at one path of a source. `held`: approximate number of partitions at the path. `seen`: its columns, once for each form
    that they have. `lines`: the first ones of the largest file of CSV or JSON."""

    def __init__(self, flood: Flood, path: str, spans: Sequence[TimeSpan], held: int) -> None:
        self.path = path
        self.sizes: list[PartitionSize] = []
        self.seen: list[Columns] = []
        self.columns: Columns | None = None
        self.lines: tuple[str, bytes] | None = None
        self.is_table = flood.source.is_table
        self._flood = flood
        self._spans = spans
        self._held = held
        self._system: Any = None
        self._files: Sequence[pafs.FileInfo] = ()

    def run(self) -> None:
        """Fill the attributes. Raises as `look`."""

        flood = self._flood
        self._system, self.path, self._files = _opened(flood, self.path)
        try:
            if flood.source.is_parquet:
                self.sizes = _parquet(flood, self._system, self._files, self._spans, self.path, self._held, self._see)
            else:
                self.sizes = self._estimate()
        except pa.ArrowInvalid as error:
            self.check_unchanged()
            raise InvalidError(
                Reason.INVALID_CONFIG, f"the source is not {flood.source.format}: {_short(error)}. path=`{self.path}`"
            ) from error
        except OSError as error:
            self.check_unchanged()
            raise _refused(error, self.path) from error

    def check_unchanged(self) -> None:
        """Raise RetryError when a file was written or removed since `run` listed it."""
        now = {one.path: one for one in self._system.get_file_info([one.path for one in self._files])}
        for before in self._files:
            after = now[before.path]
            if (after.type, after.size, after.mtime_ns) != (before.type, before.size, before.mtime_ns):
                raise RetryError(
                    Reason.NOT_FOUND,
                    "the source changed while it was planned: plan again when its files are complete. "
                    f"file=`{before.path}` size=`{before.size}` now=`{after.size}`",
                )

    def _see(self, columns: Columns) -> None:
        """Judge columns, and keep them. Raises InvalidError with all their mistakes."""
        if any(columns.kinds == one.kinds for one in self.seen):
            return
        if found := problems(self._flood, columns):
            raise InvalidError(Reason.INVALID_CONFIG, "\n".join(found))
        self.seen.append(columns)
        self.columns = self.seen[0]

    def _estimate(self) -> list[PartitionSize]:
        """Sizes, and rows estimated from the density of lines."""
        flood, files, total = self._flood, self._files, sum(int(one.size or 0) for one in self._files)
        per_row, growth = 100.0, 1.0
        format = flood.source.format.lower()
        if format in _LINE_FORMATS and total:
            first = max(files, key=lambda one: int(one.size or 0))
            stored, text = _sample(self._system, first)
            whole = text if stored == first.size else text[: text.rfind(b"\n") + 1]
            self.lines = (str(first.path), whole) if whole else None
            columns = of_sample(text, stored == first.size, format, flood.source.options, str(first.path))
            if columns is not None:
                self._see(columns)
            per_row, growth = max(len(text) / max(text.count(b"\n"), 1), 1.0), len(text) / max(stored, 1)
        size = total * growth / self._held
        names = len(files) if format == "csv" and has_header(flood.source.options) else 0
        rows, exact = max(round(size / per_row - names / self._held), 0), total == 0
        return [PartitionSize(key=one.key, rows=rows, size_bytes=round(size), exact=exact) for one in self._spans]


def _nearest(system: pafs.FileSystem, base: str) -> str:
    """A hint at what stands beside a path that does not exist."""

    parent = os.path.dirname(base.rstrip("/"))
    if not parent or system.get_file_info(parent).type != pafs.FileType.Directory:
        return ""
    return nearest(base, (one.base_name for one in system.get_file_info(pafs.FileSelector(parent))[:FILES_MAX]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The files at a path: their number and size, and when the newest one was written."""

    files: int
    size_bytes: int
    modified: datetime


def listing(flood: Flood, span: TimeSpan) -> Listing:
    """The files of a partition's path, without a look into them. Raises what `measure` raises."""
    _, _, files = _opened(flood, source_path(flood, span))
    return Listing(
        files=len(files),
        size_bytes=sum(int(one.size or 0) for one in files),
        modified=max(_aware(one.mtime) if one.mtime is not None else datetime.fromtimestamp(0, UTC) for one in files),
    )


def _opened(flood: Flood, path: str) -> tuple[pafs.FileSystem, str, list[pafs.FileInfo]]:
    """The file system of a path, the path for messages, and its files: at least one."""
    if flood.source.is_table:
        return _opened_table(flood, path)
    url = path.replace("s3a://", "s3://", 1)
    try:
        if "://" in url:
            system, base = pafs.FileSystem.from_uri(url)
        else:
            # Messages have the absolute path: the working directory of Dagster's processes is not the user's.
            system, base = pafs.LocalFileSystem(), os.path.abspath(url)
            path = base
        files = _files(system, base)
    except pa.ArrowInvalid as error:
        raise InvalidError(Reason.INVALID_CONFIG, f"the source's path is not one: {_short(error)}. path=`{path}`") from error
    except OSError as error:
        raise _refused(error, path) from error
    if not files:
        raise InvalidError(Reason.NOT_FOUND, f"the source is not there{_nearest(system, base)}. flood=`{flood.name}` path=`{path}`")
    return system, path, files


def _opened_table(flood: Flood, source: str) -> tuple[pafs.FileSystem, str, list[pafs.FileInfo]]:
    """The file system of a table's data files, the name of its snapshot, and the files."""
    from headgate.pipelines.iceberg_table import read_snapshot

    snapshot = read_snapshot(source, flood.source.options)
    if not snapshot.files:
        raise InvalidError(Reason.NOT_FOUND, f"the table has no rows. flood=`{flood.name}` table=`{snapshot.name}`")
    urls = [one.replace("s3a://", "s3://", 1) for one in snapshot.files]
    try:
        remote = "://" in urls[0]
        system = pafs.FileSystem.from_uri(urls[0])[0] if remote else pafs.LocalFileSystem()
        found: Any = system.get_file_info([one.partition("://")[2] for one in urls] if remote else urls)
    except OSError as error:
        raise _refused(error, snapshot.name) from error
    missing = [one.path for one in found if one.type != pafs.FileType.File]
    if missing:
        raise InvalidError(
            Reason.NOT_FOUND,
            f"data files of the table are not there. table=`{snapshot.name}` file=`{missing[0]}` files=`{len(missing)}`",
        )
    return system, snapshot.name, found


def _files(system: pafs.FileSystem, base: str) -> list[pafs.FileInfo]:
    """The data files under a path by Spark's rule: names that begin with `_` or `.` are not data."""

    if any(character in base for character in "*?["):
        return [one for one in _globbed(system, base) if one.size]
    info = system.get_file_info(base)
    if info.type == pafs.FileType.File:
        return [info]
    if info.type == pafs.FileType.NotFound:
        return []
    inside = system.get_file_info(pafs.FileSelector(base, recursive=True))
    found = [one for one in inside if one.type == pafs.FileType.File and not one.base_name.startswith(("_", "."))]
    if len(found) > FILES_MAX:
        raise InvalidError(Reason.INVALID_CONFIG, f"the source has too many files. files=`{len(found)}` max=`{FILES_MAX}`")
    return sorted(found, key=lambda one: str(one.path))


def _globbed(system: pafs.FileSystem, base: str) -> list[pafs.FileInfo]:

    fixed = base[: min(base.index(character) for character in "*?[" if character in base)].rpartition("/")[0] or "."
    if system.get_file_info(fixed).type != pafs.FileType.Directory:
        return []
    inside = system.get_file_info(pafs.FileSelector(fixed, recursive=True))
    return [
        one for one in inside
        if one.type == pafs.FileType.File
        and (fnmatch.fnmatchcase(str(one.path), base) or fnmatch.fnmatchcase(str(one.path), f"{base}/*"))
    ]  # fmt: skip


def _parquet(
    flood: Flood,
    system: pafs.FileSystem,
    files: Sequence[pafs.FileInfo],
    spans: Sequence[TimeSpan],
    path: str,
    held: int,
    see: Callable[[Columns], None],
) -> list[PartitionSize]:

    rows = dict.fromkeys(spans, 0.0)
    sizes = dict.fromkeys(spans, 0.0)
    exact = can_count(flood)
    by_path = flood.partition_by == "path"
    budget = EXACT_ROWS_MAX
    named = path_span(flood, spans[0]) if exact and not by_path else None
    elsewhere = 0.0
    for info in files:
        with system.open_input_file(str(info.path)) as handle, pq.ParquetFile(handle) as file:
            # A table has its columns in the files, and other directories than columns.
            columns = of_schema(file.schema_arrow, path if flood.source.is_table else str(info.path))
            see(columns)
            column = time_column(flood, columns) or ""  # an expression: only Spark can evaluate it
            column = next((name for name in file.schema_arrow.names if name.casefold() == column.casefold()), "")
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
        PartitionSize(key=one.key, rows=round(rows[one]), size_bytes=round(sizes[one]), exact=exact, elsewhere=outside)
        for one in spans
    ]


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


def _sample(system: pafs.FileSystem, file: pafs.FileInfo) -> tuple[int, bytes]:
    """The number of stored bytes of a file's sample, and the sample, decompressed. The name tells the codec, as in Spark."""

    with system.open_input_file(str(file.path)) as handle:
        stored = handle.read(SAMPLE_BYTES)
    found = bytearray()
    codec: Any = _CODECS.get(os.path.splitext(str(file.path))[1])
    with pa.input_stream(pa.py_buffer(stored), compression=codec) as stream:
        try:
            while len(found) < TEXT_BYTES_MAX and (piece := stream.read(SAMPLE_BYTES)):
                found += piece
        except OSError:
            pass  # the sample ends inside a compressed block
    return len(stored), bytes(found)


def _aware(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _refused(error: OSError, path: str) -> Exception:
    text = _short(error)
    lowered = text.lower()
    if any(
        word in lowered for word in ("credential", "access_denied", "access denied", "forbidden", "permission", "no response body")
    ):
        return FatalError(
            Reason.STORE_MISCONFIGURED, f"the source may not be read: are there credentials for it? {text} path=`{path}`"
        )
    if isinstance(error, FileNotFoundError):
        return InvalidError(Reason.NOT_FOUND, f"the source is not there. path=`{path}`")
    return RetryError(Reason.STORE_UNAVAILABLE, f"the source cannot be read now: {text} path=`{path}`")


def sample_file(flood: Flood, span: TimeSpan) -> tuple[str, bytes] | None:
    """The path of a partition's largest file, and its first lines, decompressed and whole; None when they have no end. Raises as
    `look`."""
    one = _PathLook(flood, source_path(flood, span), [span], 1)
    one.run()
    return one.lines
