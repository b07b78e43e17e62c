"""The rows of adopted files as records: decodes a unit of a recipe (`recipe.py`), and divides its rows among partitions.

No I/O: the caller brings the footers, and the bytes of the columns. Whatever a file holds, at most `UNIT_BYTES_MAX` of decoded
columns are in memory, and as many again in the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.column_encoder import encode_batches
from headgate.broker.log.column_partitioner import partitions_for_keys
from headgate.broker.log.compression import Codec
from headgate.broker.log.parquet import MAGIC, Data, ExtentFile, RowGroup, column_ranges, has_repeats, metadata_of, read_parts
from headgate.broker.log.recipe import UNIT_BYTES_MAX, Recipe, UnitBytes, UnitFile, Wanted
from headgate.broker.runtime.errors import InvalidError, Reason

TIMES = pa.timestamp("us", tz="UTC")
ROWS_AT_A_TIME = 1 << 16
"""Rows that are decoded at once where values repeat: their longest value bounds the bytes."""
_US = {"ms": 1000, "us": 1}
_BYTES = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string_view,
)
"""The types of keys and values."""


Group: TypeAlias = tuple[Any, int, Data]
"""The metadata of a file, the number of a row group, and the bytes of its columns."""


def ranges_of(metadata: Any, group: int, columns: Sequence[str], data_end: int) -> list[tuple[int, int]]:
    """(position, bytes) of the columns of a row group that are read, ascending.

    Args:
        data_end: position in the file at which its footer begins.

    Raises InvalidError(CORRUPT_MESSAGE) if the file lacks one, or the row group; if they lie outside of the file, or are larger
    than a unit.
    """
    if group >= metadata.num_row_groups:
        raise _bad(f"there is no row group {group}")
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    if missing := sorted(name for name in columns if paths.count(name) != 1):
        raise _bad(f"there is no column `{missing[0]}`")
    ranges = column_ranges(metadata, group, columns)
    if not metadata.row_group(group).num_rows:
        return []
    if any(begin < len(MAGIC) or size <= 0 or begin + size > data_end for begin, size in ranges):
        raise _bad(f"row group {group} lies outside of its file")
    chunks = [metadata.row_group(group).column(paths.index(name)) for name in columns]
    if max(sum(chunk.total_uncompressed_size for chunk in chunks), sum(size for _, size in ranges)) > UNIT_BYTES_MAX:
        raise _bad(f"row group {group} has more than {UNIT_BYTES_MAX >> 20} MiB")
    return ranges


def check_file(footer: bytes, size_bytes: int, groups: Iterable[int], columns: tuple[str, str, str]) -> list[int]:
    """The rows of each of some row groups of a file. Raises InvalidError, or an error of Arrow, unless the file has them, with
    these columns."""
    metadata = metadata_of(footer)
    found = []
    for group in groups:
        ranges_of(metadata, group, columns, size_bytes - len(footer))
        found.append(metadata.row_group(group).num_rows)
    schema = metadata.schema.to_arrow_schema()
    paths = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    # Times of 96 bits are read as microseconds.
    if metadata.schema.column(paths.index(columns[0])).physical_type != "INT96":
        _check_time(schema.field(columns[0]).type)
    for name in columns[1:]:
        _check_bytes(schema.field(name).type)
    return found


class UnitRows:
    """The decoded rows of a unit, and which of them belong to which partition, in the order of their offsets.

    Args:
        groups: of a unit, in its order.
        columns: names of the time, the key and the value.
        wanted: partitions, ascending.

    Raises:
        InvalidError(CORRUPT_MESSAGE): the bytes contradict a footer, a row has no key or no time, or the unit is too large.
    """

    def __init__(self, groups: Iterable[Group], columns: tuple[str, str, str], partitions: int, wanted: Sequence[int]) -> None:
        parts: list[pa.Table] = []
        numbers: list[npt.NDArray[np.int64]] = []
        size = 0
        for metadata, number, data in groups:
            for part in _parts(metadata, number, data, columns):
                size += part.nbytes
                if size > UNIT_BYTES_MAX:
                    raise _bad(f"a unit has more than {UNIT_BYTES_MAX >> 20} MiB")
                numbers.append(partitions_for_keys(part.column("key").chunk(0), partitions))
                parts.append(part)
        if not parts:
            raise _bad("a unit has no rows")
        self._table = pa.concat_tables(parts).combine_chunks()
        found = np.concatenate(numbers)
        if len(found) and found.min() < 0:
            raise _bad("a row has no key")
        times: Any = np.asarray(self._table.column("timestamp").combine_chunks().cast(pa.int64()))
        rows = np.flatnonzero(np.isin(found, wanted)) if len(wanted) < partitions else np.arange(len(found))
        # numpy sorts numbers of 16 bits by their digits, several times as fast.
        mine, at = found[rows].astype(np.int16 if partitions <= 1 << 15 else np.int32), times[rows]
        order = np.lexsort((at, mine)) if (np.diff(at) < 0).any() else np.argsort(mine, kind="stable")
        self._rows = rows[order]
        bounds = np.searchsorted(mine[order], [*wanted, partitions])
        self._places = {one: (int(bounds[place]), int(bounds[place + 1])) for place, one in enumerate(wanted)}

    def count(self, partition: int) -> int:
        """The number of rows of a wanted partition."""
        begin, end = self._places[partition]
        return end - begin

    def take(self) -> dict[int, pa.Table]:
        """The rows of each wanted partition: `timestamp` (microseconds), `key`, `value`. All share their memory."""
        table = self._table.take(pa.array(self._rows, pa.int64()))
        return {one: table.slice(begin, end - begin) for one, (begin, end) in self._places.items()}

    def take_apart(self, partition: int) -> pa.Table:
        """The same of one partition, in its own memory: a caller may keep a few rows for long."""
        begin, end = self._places[partition]
        return self._table.take(pa.array(self._rows[begin:end], pa.int64()))


def unit_rows(groups: Iterable[Group], columns: tuple[str, str, str], partitions: int, wanted: Sequence[int]) -> list[pa.Table]:
    """The rows of each wanted partition in the order of their offsets. Arguments and errors as for `UnitRows`."""
    return list(UnitRows(groups, columns, partitions, wanted).take().values())


def described(recipe: Recipe, number: int, footers: Sequence[bytes], codec: int, wanted: list[Wanted]) -> UnitBytes:
    """What a process needs to know of a unit. Raises InvalidError(CORRUPT_MESSAGE) if a file lacks a part of it."""
    unit = recipe.units[number]
    numbers: dict[int, list[int]] = {file: [] for file in recipe.files_of(unit)}
    places = {file: place for place, file in enumerate(numbers)}
    order = []
    for one in unit.groups:
        for group in range(one.first, one.end):
            order.append((places[one.file], len(numbers[one.file])))
            numbers[one.file].append(group)
    files = []
    for (file, mine), footer in zip(numbers.items(), footers, strict=True):
        metadata, adopted = metadata_of(footer), recipe.files[file]
        ranges = [ranges_of(metadata, group, recipe.columns, adopted.size_bytes - len(footer)) for group in mine]
        files.append(UnitFile(footer, adopted.size_bytes, adopted.modified_ns, mine, ranges))
    return UnitBytes(files, order, recipe.columns, recipe.partitions, codec, wanted)


def encode_unit(unit: UnitBytes, data: Sequence[Sequence[Data]]) -> Iterator[memoryview]:
    """The wanted rows of a unit as batches, in the order of `unit.wanted`, each in its own memory. Slow: run it in a thread or a
    process.

    Args:
        data: of each file the columns of its row groups.

    Raises:
        InvalidError: a file is not as it was counted.
    """
    tables = decode_unit(unit, data).take()
    del data
    for one in unit.wanted:
        rows = tables[one.partition]
        yield from encode_batches(rows, one.base_offset, leader_epoch=one.leader_epoch, compression=Codec(unit.codec))


def decode_unit(unit: UnitBytes, data: Sequence[Sequence[Data]]) -> UnitRows:
    """The wanted rows of a unit. Raises as `encode_unit`, also if a wanted partition has another number of rows than stated."""
    metadata = [metadata_of(file.footer) for file in unit.files]
    groups = ((metadata[file], unit.files[file].groups[place], data[file][place]) for file, place in unit.groups)
    try:
        rows = UnitRows(groups, unit.columns, unit.partitions, sorted({one.partition for one in unit.wanted}))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _bad(str(error)) from error
    for one in unit.wanted:
        if rows.count(one.partition) != one.rows:
            raise _bad(f"partition {one.partition} has {rows.count(one.partition)} rows instead of {one.rows}")
    return rows


def _parts(metadata: Any, number: int, data: Data, columns: tuple[str, str, str]) -> Iterator[pa.Table]:
    """The rows of a row group in steps, each with its columns in one piece."""
    rows = metadata.row_group(number).num_rows
    if not rows:
        return
    group = RowGroup(number, 0, rows, 0, 0, 0, has_repeats(metadata, number, columns[1:]), None, None)
    for table in read_parts(ExtentFile(metadata, columns, (group,), b""), group, data, ROWS_AT_A_TIME):
        # With as few copies as there are: a table that was read whole is in one piece.
        arrays = [_times(table.column(columns[0])), *(_bytes(table.column(name)) for name in columns[1:])]
        yield pa.table(dict(zip(("timestamp", "key", "value"), arrays, strict=True)))


def _times(column: Any) -> Any:
    """Times in microseconds, whole numbers, whatever they are in the file."""
    column = column.combine_chunks()
    if column.null_count:
        raise _bad("a row has no time")
    _check_time(column.type)
    return pa.chunked_array([pa.array(np.asarray(column.cast(pa.int64())) * _US[column.type.unit]).cast(TIMES)])


def _check_time(kind: Any) -> None:
    if not pa.types.is_timestamp(kind) or kind.unit not in _US:
        raise _bad(f"the time is of another type: {kind}")


def _check_bytes(kind: Any) -> None:
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    if not any(is_kind(stored) for is_kind in _BYTES):
        raise _bad(f"a key or a value is of another type: {kind}")


def _bytes(column: Any) -> Any:
    kind = column.type
    _check_bytes(kind)
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        column = column.cast(pa.binary())
    column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    return pa.chunked_array([column.view(pa.binary()) if pa.types.is_string(kind) else column])


def _bad(what: str) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, f"an adopted file is not as it was counted: {what}")
