"""The size of a source, from its metadata: without Spark, without reading rows. The only module of floods that does I/O.

Parquet: footers. Row groups are counted by the statistics of the event-time column; a group across a border is counted by
reading that column, or shared out by time when the column is too large. CSV and JSON: lines of the first MiB, scaled to the
size.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import PartitionSize
from headgate.pipelines.floods.spans import TimeSpan, partitions_per_path, path_span, source_path

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

FILES_MAX = 100_000
SAMPLE_BYTES = 1 << 20
EXACT_ROWS_MAX = 5_000_000
"""Up to this number of rows, the event-time column is read and counted."""
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_LINE_FORMATS = ("csv", "json", "text")


def can_count(flood: Flood) -> bool:
    """True when `measure` can return exact numbers. Other formats and floods with a condition are only estimated."""
    return flood.where is None and flood.source.format.lower() == "parquet"


def measure(flood: Flood, spans: Sequence[TimeSpan], now: datetime) -> list[PartitionSize]:
    """Rows and bytes of each partition's source. Rows that cannot be assigned to a partition are shared out among the partitions
    up to `now`.

    Raises:
        InvalidError: nothing exists at the path, its format differs from `format`, or it lacks the event-time column.
        FatalError: no credentials, or not allowed. RetryError: the file system does not answer.
    """
    by_path: dict[str, list[TimeSpan]] = {}
    for span in spans:
        by_path.setdefault(source_path(flood, span), []).append(span)
    found: list[PartitionSize] = []
    for path, wanted in by_path.items():
        found += _measure_path(flood, path, wanted, max(partitions_per_path(flood, now), len(wanted)))
    return sorted(found, key=lambda one: one.key)


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
    import pyarrow as pa
    import pyarrow.fs as pafs

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
        raise InvalidError(Reason.NOT_FOUND, f"the source is not there. flood=`{flood.name}` path=`{path}`")
    return system, path, files


def _measure_path(flood: Flood, path: str, spans: Sequence[TimeSpan], held: int) -> list[PartitionSize]:
    """`held`: approximate number of partitions at the path."""
    import pyarrow as pa

    system, path, files = _opened(flood, path)
    try:
        if flood.source.format.lower() == "parquet":
            return _parquet(flood, system, files, spans, path, held)
        return _estimate(flood, system, files, spans, held)
    except pa.ArrowInvalid as error:
        raise InvalidError(
            Reason.INVALID_CONFIG, f"the source is not {flood.source.format}: {_short(error)}. path=`{path}`"
        ) from error
    except OSError as error:
        raise _refused(error, path) from error


def _files(system: pafs.FileSystem, base: str) -> list[pafs.FileInfo]:
    """The data files under a path by Spark's rule: names that begin with `_` or `.` are not data."""
    import pyarrow.fs as pafs

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
    import fnmatch

    import pyarrow.fs as pafs

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
    flood: Flood, system: pafs.FileSystem, files: Sequence[pafs.FileInfo], spans: Sequence[TimeSpan], path: str, held: int
) -> list[PartitionSize]:
    import pyarrow.parquet as pq

    rows = dict.fromkeys(spans, 0.0)
    sizes = dict.fromkeys(spans, 0.0)
    exact = can_count(flood)
    budget = EXACT_ROWS_MAX
    named = path_span(flood, spans[0]) if exact else None
    elsewhere = 0.0
    for info in files:
        with system.open_input_file(str(info.path)) as handle, pq.ParquetFile(handle) as file:
            schema = file.schema_arrow
            column = flood.event_time.strip("`")
            if column not in schema.names:
                if column.isidentifier():
                    raise InvalidError(
                        Reason.INVALID_CONFIG,
                        f"the source has no such column. event_time=`{column}` columns=`{', '.join(schema.names)}` path=`{path}`",
                    )
                column = ""  # an expression: only Spark can evaluate it
            elif not _is_time(kind := schema.field(column).type):
                raise InvalidError(
                    Reason.INVALID_CONFIG,
                    "event time must be timestamp or date: to_timestamp(...) makes one of text, timestamp_millis(...) of numbers. "
                    f"event_time=`{column}` type=`{kind}` path=`{path}`",
                )
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                per_row = group.total_byte_size / max(group.num_rows, 1)
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


def _is_time(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _counted(column: pa.ChunkedArray[Any], spans: Sequence[TimeSpan]) -> dict[TimeSpan, float]:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = pa.timestamp("us", tz="UTC")
    values = pc.cast(column, kind, safe=False)
    counts = {}
    for span in spans:
        inside = pc.and_(pc.greater_equal(values, pa.scalar(span.start, kind)), pc.less(values, pa.scalar(span.end, kind)))
        counts[span] = float(pc.sum(pc.cast(inside, pa.int64())).as_py() or 0)
    return counts


def _estimate(
    flood: Flood, system: pafs.FileSystem, files: Sequence[pafs.FileInfo], spans: Sequence[TimeSpan], held: int
) -> list[PartitionSize]:
    """Sizes, and rows estimated from the density of lines."""
    total = sum(int(one.size or 0) for one in files)
    per_row, growth = 100.0, 1.0
    if flood.source.format.lower() in _LINE_FORMATS:
        first = max(files, key=lambda one: int(one.size or 0))
        with system.open_input_file(str(first.path)) as stored:
            sample = stored.read(SAMPLE_BYTES)
        length, lines = _decompressed(sample, str(first.path))
        per_row, growth = max(length / max(lines, 1), 1.0), length / max(len(sample), 1)
    size = total * growth / held
    return [PartitionSize(key=one.key, rows=round(size / per_row), size_bytes=round(size), exact=False) for one in spans]


def _decompressed(sample: bytes, path: str) -> tuple[int, int]:
    """Bytes and lines at the beginning of a file. The name tells the codec, as in Spark."""
    import pyarrow as pa

    length = lines = 0
    codec: Any = _CODECS.get(os.path.splitext(path)[1])
    with pa.input_stream(pa.py_buffer(sample), compression=codec) as stream:
        try:
            while piece := stream.read(SAMPLE_BYTES):
                length += len(piece)
                lines += piece.count(b"\n")
        except OSError:
            pass  # the sample ends inside a compressed block
    return length, lines


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
