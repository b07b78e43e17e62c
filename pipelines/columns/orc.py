"""ORC by columns: the stripes of a source, and their rows.

pyarrow reads a stripe at once. What it reads means the same as with Spark for numbers, texts, bytes, dates from 1900 to 9999, and
times (ORC's `timestamp`) from 1970 to 2261 that were written in UTC, where Java works in UTC too. Everything else is Spark's
(`UnlikeError`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow.orc import ORCFile

from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.expressions import INTEGERS, UTC, Query
from headgate.pipelines.columns.files import opened, orc_tail_of
from headgate.pipelines.columns.layout import (
    ALWAYS,
    DAY_US,
    DAYS,
    Listed,
    Piece,
    SourceFile,
    changed,
    from_footers,
    numbered,
    span_of,
    unreadable,
)
from headgate.pipelines.columns.orc_tail import (
    Stripe,
    Tail,
    read_tail,
    zone_of,
)

pc: Any = pyarrow.compute

_FIXED_BYTES = {"boolean": 1, "byte": 1, "short": 2, "integer": 4, "float": 4, "date": 4}
"""Bytes of a value in memory, for types with fewer than eight. A text has eight too: its place, and room for nulls."""
_KINDS = frozenset((*INTEGERS, "boolean", "float", "double", "string", "binary", "date", "timestamp"))
"""Types of files that columns read."""
DATES = ((date(1900, 1, 1) - date(1970, 1, 1)).days, DAYS[1])
"""Days since 1970: older files count days before 1582 in another calendar, and Java prints years from 10000 with a sign."""
TIMES_MS = (0, (1 << 63) // 1_000_000 - 1000)
"""Milliseconds since 1970. Arrow holds the times of ORC in nanoseconds, and releases of ORC differ in fractions before 1970."""


def read_stripes(files: Iterable[Listed], query: Query, bytes_max: int) -> list[Piece]:
    """The stripes of these files that can have rows of the query.

    Args:
        bytes_max: most bytes of a stripe in memory.

    Raises UnlikeError when Arrow may read a file, or print a time of it, as Spark does not.
    """
    pieces = from_footers(files, query, lambda one, columns: _pieces(one, columns, query, bytes_max))
    return numbered(pieces) if query.is_by_row else pieces


@contextmanager
def open_stripes(file: SourceFile) -> Iterator[Any]:
    """A `pyarrow.orc.ORCFile`, if the file is still the same. Raises RetryError."""
    with file.open() as handle:
        try:
            tail = orc_tail_of(handle, file.state.size_bytes)
        except (OSError, InvalidError):
            tail = b""
        if crc32c(tail) != file.footer_crc32c:
            raise changed(file)
        yield ORCFile(handle)


def batches(file: Any, piece: Piece, columns: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of a stripe, `rows` at a time. `columns`: at least one. Times are in microseconds, cut off as Spark does."""
    found = file.read_stripe(piece.group, columns=columns)
    whole = pa.RecordBatch.from_arrays([_cut_off(column) for column in found.columns], names=found.schema.names)
    for begin in range(0, whole.num_rows, rows):
        yield whole.slice(begin, rows)


def _cut_off(column: Any) -> Any:
    """Times in microseconds; any other column as it is."""
    if not pa.types.is_timestamp(column.type):
        return column
    # Statistics round a fraction of the last millisecond before 1970 to 0.
    if pc.any(pc.less(column.cast(pa.int64()), 0)).as_py():
        raise UnlikeError("a time is before 1970")
    return column.cast(pa.timestamp("us"), safe=False)


def _pieces(listed: Listed, columns: Mapping[str, str], query: Query, bytes_max: int) -> list[Piece]:
    path = listed.path
    try:
        handle, state = opened(path, listed.access)
        with handle:
            raw = orc_tail_of(handle, state.size_bytes)
            tail = read_tail(raw)
            _check_columns(path, tail, columns)
            if any(tail.columns[name] == "timestamp" for name in columns):
                _check_zone(handle, path, tail)
    except (OSError, InvalidError) as error:
        raise unreadable(error, listed, "a footer") from error
    file = SourceFile(path, state, crc32c(raw), listed.values, listed.access)
    found = []
    for number, stripe in enumerate(tail.stripes):
        if not stripe.rows:
            continue
        _check_times(path, stripe, tail, columns)
        size = _bytes_of(stripe, columns)
        if size > bytes_max:
            raise UnlikeError(
                f"a stripe takes more memory than a task has for one: spark.headgate.taskMemory gives more. bytes=`{size}` "
                f"of=`{bytes_max}` file=`{path}`"
            )
        found.append(Piece(file, number, stripe.rows, size, False, *_span(listed, stripe, tail, query)))
    return found


def _check_columns(path: str, tail: Tail, columns: Mapping[str, str]) -> None:
    if tail.encrypted:
        raise UnlikeError(f"a file has encrypted columns. file=`{path}`")
    for name, kind in columns.items():
        there = tail.columns.get(name, "missing")
        if there not in _KINDS or there != kind:
            raise UnlikeError(
                f"a column of ORC is of a type that only Spark reads so. column=`{name}` type=`{there}` wanted=`{kind}` "
                f"file=`{path}`"
            )


def _check_zone(handle: Any, path: str, tail: Tail) -> None:
    """Raise UnlikeError unless all stripes were written in UTC: each keeps the times of its writer's clock."""
    for stripe in tail.stripes:
        begin, end = stripe.footer
        zone = zone_of(tail, handle.read_at(end - begin, begin))
        if zone not in UTC:
            raise UnlikeError(f"a file's times are of another zone than UTC. zone=`{zone}` file=`{path}`")


def _check_times(path: str, stripe: Stripe, tail: Tail, columns: Mapping[str, str]) -> None:
    for name in columns:
        limits = {"date": DATES, "timestamp": TIMES_MS}.get(tail.columns[name])
        values = stripe.values.get(name)
        if limits is None or (values is not None and not values.known):
            continue
        low, high = (None, None) if values is None else (values.low, values.high)
        if low is None or high is None or not limits[0] <= low <= high < limits[1]:
            raise UnlikeError(
                "a footer does not say that dates are in the years 1900 to 9999, or that times are in the years 1970 to 2261. "
                f"column=`{name}` file=`{path}`"
            )


def _bytes_of(stripe: Stripe, columns: Mapping[str, str]) -> int:
    """Bytes of these columns of a stripe in memory."""
    texts = sum(stripe.values[name].text_bytes for name in stripe.values.keys() & columns.keys())
    return texts + stripe.rows * sum(_FIXED_BYTES.get(kind, 8) for kind in columns.values())


def _span(listed: Listed, stripe: Stripe, tail: Tail, query: Query) -> tuple[int, int]:
    """The first and the last event time that the rows can have."""
    time = query.outputs["timestamp"]
    ends: dict[str, tuple[int, int]] = {}
    for name in time.columns() - dict(listed.values).keys():
        values = stripe.values.get(name)
        if values is None or values.low is None or values.high is None:
            return ALWAYS
        # A greatest time is in whole milliseconds, without what is behind them.
        units = {"date": (DAY_US, 0), "timestamp": (1000, 999)}.get(tail.columns[name], (1, 0))
        ends[name] = (values.low * units[0], values.high * units[0] + units[1])
    return span_of(time, query.source, listed, ends)
