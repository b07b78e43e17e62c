"""The rows of adopted files as records: decodes a unit of a recipe (`recipe.py`), and divides its rows among partitions.

No I/O: the caller brings the footers, and the bytes of the columns. Whatever a file holds, at most `UNIT_BYTES_MAX` of decoded
columns are in memory, and as many again in the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.column_partitioner import partitions_for_keys
from headgate.broker.log.parquet import Data, ExtentFile, RowGroup, column_ranges, has_repeats, metadata_of, read_parts
from headgate.broker.log.recipe import UNIT_BYTES_MAX
from headgate.broker.runtime.errors import InvalidError, Reason

TIMES = pa.timestamp("us", tz="UTC")
ROWS_AT_A_TIME = 1 << 16
"""Rows that are decoded at once where values repeat: their longest value bounds the bytes."""
_US = {"ms": 1000, "us": 1}


@dataclass(frozen=True, slots=True)
class GroupData:
    """A row group of an adopted file, and the bytes of its columns. `footer`: of the file, from its metadata to its end."""

    footer: Any
    group: int
    data: Data


def ranges_of(metadata: Any, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
    """(position, bytes) of the columns of a row group that are read, ascending. Raises InvalidError(CORRUPT_MESSAGE) if the file
    lacks one, or the row group."""
    if group >= metadata.num_row_groups:
        raise _bad(f"there is no row group {group}")
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if missing := sorted(name for name in columns if paths.count(name) != 1):
        raise _bad(f"there is no column `{missing[0]}`")
    return column_ranges(metadata, group, columns)


def unit_rows(groups: Sequence[GroupData], columns: tuple[str, str, str], partitions: int, wanted: Sequence[int]) -> list[pa.Table]:
    """The rows of each wanted partition in the order of their offsets: `timestamp` (microseconds), `key`, `value`.

    Args:
        groups: of a unit, in its order.
        columns: names of the time, the key and the value.
        wanted: partitions, ascending.

    Raises:
        InvalidError(CORRUPT_MESSAGE): the bytes contradict a footer, a row has no key or no time, or the unit is too large.
    """
    parts: list[pa.Table] = []
    numbers: list[npt.NDArray[np.int64]] = []
    size = 0
    for one in groups:
        for part in _parts(one, columns):
            size += part.nbytes
            if size > UNIT_BYTES_MAX:
                raise _bad(f"a unit has more than {UNIT_BYTES_MAX >> 20} MiB")
            numbers.append(partitions_for_keys(part.column("key").chunk(0), partitions))
            parts.append(part)
    table = pa.concat_tables(parts).combine_chunks()
    found = np.concatenate(numbers)
    if len(found) and found.min() < 0:
        raise _bad("a row has no key")
    times: Any = np.asarray(table.column("timestamp").combine_chunks().cast(pa.int64()))
    rows = np.flatnonzero(np.isin(found, wanted)) if len(wanted) < partitions else np.arange(len(found))
    mine, at = found[rows], times[rows]
    order = np.lexsort((at, mine)) if (np.diff(at) < 0).any() else np.argsort(mine, kind="stable")
    table = table.take(pa.array(rows[order]))
    bounds = np.searchsorted(mine[order], [*wanted, partitions])
    return [table.slice(int(bounds[place]), int(bounds[place + 1] - bounds[place])) for place in range(len(wanted))]


def _parts(one: GroupData, columns: tuple[str, str, str]) -> Iterator[pa.Table]:
    """The rows of a row group in steps, each with its columns in one piece."""
    metadata = one.footer if not isinstance(one.footer, bytes | memoryview) else metadata_of(one.footer)
    rows = metadata.row_group(one.group).num_rows
    if not rows:
        return
    repeats = has_repeats(metadata, one.group, columns[1:])
    raw = sum(size for _, size in ranges_of(metadata, one.group, columns))
    group = RowGroup(one.group, 0, rows, 0, 0, raw, repeats, None, None)
    for table in read_parts(ExtentFile(metadata, columns, (group,), b""), group, one.data, ROWS_AT_A_TIME):
        # With as few copies as there are: a table that was read whole is in one piece.
        arrays = [_times(table.column(columns[0])), *(_bytes(table.column(name)) for name in columns[1:])]
        yield pa.table(dict(zip(("timestamp", "key", "value"), arrays, strict=True)))


def _times(column: Any) -> Any:
    """Times in microseconds, whole numbers, whatever they are in the file."""
    column = column.combine_chunks()
    if column.null_count:
        raise _bad("a row has no time")
    if not pa.types.is_timestamp(column.type) or column.type.unit not in _US:
        raise _bad(f"the time is of another type: {column.type}")
    return pa.chunked_array([pa.array(np.asarray(column.cast(pa.int64())) * _US[column.type.unit]).cast(TIMES)])


def _bytes(column: Any) -> Any:
    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        column = column.cast(pa.binary())
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    return pa.chunked_array([column.view(pa.binary()) if pa.types.is_string(kind) else column])


def _bad(what: str) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, f"an adopted file is not as it was counted: {what}")
