"""The records that a query's filter leaves. Pure.

DuckDB hands a filter over as an Arrow expression, which cannot be taken apart. Arrow can tell whether a filter may be true for rows
of which something is known, as it does for the directories of a partitioned data set. Everything here asks that one question: about
partitions, about row groups, and, by halving the interval, about the first and the last offset and time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from headgate.broker.client.gate_admin import RecordRange
from headgate.pipelines.sql.topic_columns import TABLE

_FORMAT: Any = ds.ParquetFileFormat()
_NOWHERE: Any = pyarrow.fs.LocalFileSystem()
_TIME = TABLE.field("timestamp").type
_TIME_US_MAX = (1 << 63) - 1
_partition: Any = ds.field("partition")
_offset: Any = ds.field("offset")
_timestamp: Any = ds.field("timestamp")


def may_match(filter: Any, known: Sequence[Any]) -> list[bool]:
    """For each expression that is true for some rows: whether `filter` may be true for one of these rows."""
    # These fragments have no files: Arrow only looks at what is known of them.
    fragments = [
        _FORMAT.make_fragment(str(number), _NOWHERE, partition_expression=expression) for number, expression in enumerate(known)
    ]
    dataset: Any = ds.FileSystemDataset(fragments, TABLE, _FORMAT, _NOWHERE)
    left = {int(fragment.path) for fragment in dataset.get_fragments(filter=filter)}
    return [number in left for number in range(len(known))]


def rows_known(partition: int, first: int, end: int, first_us: int | None, last_us: int | None) -> Any:
    """What is known of rows of a partition with offsets in [first, end) and times in [first_us, last_us]."""
    known = (_partition == partition) & (_offset >= first) & (_offset < end)
    if first_us is not None:
        known &= _timestamp >= _time(first_us)
    if last_us is not None:
        known &= _timestamp <= _time(last_us)
    return known


def columns_in(filter: Any) -> list[str]:
    """The columns of a filter, and perhaps others whose name is part of its text."""
    text = str(filter)
    return [name for name in TABLE.names if name in text]


def narrowed(filter: Any, partitions: Iterable[int], end: int) -> RecordRange | None:
    """The range of the records for which a filter may be true. None: it is true for no record.

    Args:
        partitions: all partitions. end: behind the last offset of all of them.
    """
    if filter is None:
        return RecordRange()
    numbers = list(partitions)
    named = columns_in(filter)
    if "partition" in named:
        found = may_match(filter, [_partition == number for number in numbers])
        numbers = [number for number, left in zip(numbers, found, strict=True) if left]
    first, last = _span(filter, _offset, int, 0, end - 1) if "offset" in named else (0, end - 1)
    if not numbers or first > last:
        return None
    first_ms = last_ms = None
    if "timestamp" in named:
        low, high = _span(filter, _timestamp, _time, -_TIME_US_MAX, _TIME_US_MAX)
        if low > high:
            return None
        first_ms = None if low == -_TIME_US_MAX else low // 1000
        last_ms = None if high == _TIME_US_MAX else high // 1000
    return RecordRange(
        partitions=frozenset(numbers), first_offset=first, last_offset=last, first_timestamp_ms=first_ms, last_timestamp_ms=last_ms
    )


def _span(filter: Any, column: Any, value: Callable[[int], Any], low: int, high: int) -> tuple[int, int]:
    """The first and the last value in [low, high] of a column for which the filter may be true. Without any, first > last."""

    def up_to(limit: int) -> bool:
        return may_match(filter, [(column >= value(low)) & (column <= value(limit))])[0]

    def start_at(limit: int) -> bool:
        return may_match(filter, [(column >= value(limit)) & (column <= value(high))])[0]

    if low > high or not up_to(high):
        return high + 1, high
    first, beyond = low, high
    while first < beyond:
        middle = (first + beyond) // 2
        first, beyond = (first, middle) if up_to(middle) else (middle + 1, beyond)
    last, before = high, first
    while before < last:
        middle = (before + last + 1) // 2
        before, last = (middle, last) if start_at(middle) else (before, middle - 1)
    return first, last


def _time(us: int) -> Any:
    return pa.scalar(us, _TIME)
