"""The rows of adopted files as records: decodes a unit of a recipe (`recipe.py`), and divides its rows among partitions.

No I/O: the caller brings the footers, and the bytes of the columns. Whatever a file holds, at most `UNIT_BYTES_MAX` of decoded
columns are in memory, and as many again in the order of the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.log.adopted_columns import GIVEN, bad, content, part_of_row, passes, ranges_of, times
from headgate.broker.log.column_encoder import BATCH_BYTES_MAX, DividedRows, encode_batches
from headgate.broker.log.column_partitioner import partitions_for_keys
from headgate.broker.log.column_schema import whole
from headgate.broker.log.column_varints import BATCH_ROWS_MAX
from headgate.broker.log.compression import Codec
from headgate.broker.log.json_rows import json_bytes_max, json_rows
from headgate.broker.log.parquet import Data, ExtentFile, RowGroup, has_repeats, metadata_of, read_parts
from headgate.broker.log.recipe import UNIT_BYTES_MAX, UNIT_JSON_BYTES_MAX, Recipe, Shape, Unit, UnitBytes, UnitFile, Wanted

ROWS_AT_A_TIME = 1 << 16
"""Rows that are decoded at once where values repeat: their longest value bounds the bytes."""
WHOLE_BYTES = 64 << 20
"""Repeated values of a row group up to which it is decoded at once."""
JSON_ROWS = 1 << 14
"""Rows whose JSON is made at once: it may be far larger than they are. Batches end with them, so the number is a part of the
format, and so is `JSON_BYTES`."""
JSON_BYTES = 256 << 20
"""Bytes of JSON that are made at once, at most: rows that may have more are halved until they have not, or one row is left."""

DIVIDED_BYTES_MIN = 256
"""Bytes of a row, on average, from which batches are made of the rows where they lie. Smaller ones are copied in the order of their
partition first: to find each of them in memory takes longer than to copy it."""
JSON_BYTES_MAX = 6 * UNIT_JSON_BYTES_MAX
"""Bytes of a unit as JSON if each byte of a text had the longest escape."""


class Group(NamedTuple):
    """A row group: the metadata of its file, its number, and the bytes of its columns. `given`, `names`: as of `AdoptedFile`."""

    metadata: Any
    number: int
    data: Data
    given: Mapping[str, str | None]
    names: Mapping[str, str]


class UnitRows:
    """The decoded rows of a unit, and which of them belong to which partition, in the order of their offsets.

    Args:
        groups: of a unit, in its order.
        wanted: partitions, ascending.

    Raises:
        InvalidError(CORRUPT_MESSAGE): the bytes contradict a footer, a row has no key or no time, or the unit is too large.
    """

    def __init__(self, groups: Iterable[Group], shape: Shape, partitions: int, wanted: Sequence[int]) -> None:
        self._row = shape.row
        self._given: list[Mapping[str, str | None]] = []
        """The columns that are not in the files, of each row group. Rows have its number: values may be far larger."""
        parts: list[pa.Table] = []
        numbers: list[npt.NDArray[np.int64]] = []
        passed: list[npt.NDArray[np.bool_]] = []
        size = 0
        for number, group in enumerate(groups):
            self._given.append(group.given)
            for part, mine in _parts(group, shape, number):
                passed.append(mine)
                size += part.nbytes
                if size > UNIT_BYTES_MAX:
                    raise bad(f"a unit has more than {UNIT_BYTES_MAX >> 20} MiB")
                numbers.append(partitions_for_keys(part.column("key").chunk(0), partitions))
                parts.append(part)
        if not parts:
            raise bad("a unit has no rows")
        self._table = pa.concat_tables(parts).combine_chunks()
        found = np.concatenate(numbers)
        at_us: Any = np.asarray(whole(self._table.column("timestamp")).cast(pa.int64()))
        chosen = np.concatenate(passed)
        if shape.low_us is not None:
            chosen &= at_us >= shape.low_us
        if shape.high_us is not None:
            chosen &= at_us < shape.high_us
        if (found[chosen] < 0).any():
            raise bad("a row has no key")
        if len(wanted) < partitions:
            chosen &= np.isin(found, wanted)
        rows = np.flatnonzero(chosen)
        # numpy sorts numbers of 16 bits by their digits, several times as fast.
        of_row, at = found[rows].astype(np.int16 if partitions <= 1 << 15 else np.int32), at_us[rows]
        order = np.lexsort((at, of_row)) if not shape.by_source and (np.diff(at) < 0).any() else np.argsort(of_row, kind="stable")
        self._rows = rows[order]
        bounds = np.searchsorted(of_row[order], [*wanted, partitions])
        if self._row and self._json_bytes() > JSON_BYTES_MAX:
            raise bad("the rows of a unit are too large as JSON")
        self._places = {part: (int(bounds[place]), int(bounds[place + 1])) for place, part in enumerate(wanted)}

    def rows(self, partition: int) -> npt.NDArray[np.int64]:
        """The numbers of the rows of a wanted partition, in the order of their offsets."""
        begin, end = self._places[partition]
        return self._rows[begin:end]

    def divided(self) -> DividedRows | None:
        """All rows, to be encoded without a copy of each partition's. None: a copy is cheaper, or they become JSON."""
        small = self._table.nbytes < DIVIDED_BYTES_MIN * self._table.num_rows
        return None if self._row or small else DividedRows(self._table)

    def records(self, partition: int) -> Iterator[pa.Table]:
        """The rows of a wanted partition in their order: `timestamp` (microseconds), `key`, `value`. They have memory of their own,
        so a caller may keep a few rows for long. A row as JSON is made when it is asked for, `JSON_ROWS` at a time."""
        yield from self._made(self._table.take(pa.array(self.rows(partition), pa.int64())))

    def _made(self, rows: pa.Table) -> Iterator[pa.Table]:
        if not self._row:
            yield rows
            return
        rows = rows.combine_chunks()
        begin = 0
        while begin < rows.num_rows:
            count = min(JSON_ROWS, rows.num_rows - begin)
            parts = self._columns(rows.slice(begin, count))
            while count > 1 and json_bytes_max(self._row, parts) > JSON_BYTES:
                count //= 2
                parts = [part.slice(0, count) for part in parts]
            try:
                value = json_rows(self._row, parts, replaces=True).view(pa.binary())
            except (pa.ArrowException, ValueError) as error:
                raise bad(f"a row cannot be written as JSON: {error}") from error
            times, keys = (column.slice(begin, count) for column in rows.columns[:2])
            yield pa.table({"timestamp": times, "key": keys, "value": value})
            begin += count

    def _columns(self, rows: pa.Table) -> list[Any]:
        """The columns of the row, each in one piece."""
        numbers = rows.column("group").chunk(0)
        found: list[Any] = []
        for place, name in enumerate(self._row):
            if name in self._given[0]:
                found.append(pa.array([column[name] for column in self._given], GIVEN).take(numbers))
            else:
                found.append(rows.column(f"row {place}").chunk(0))
        return found

    def _json_bytes(self) -> int:
        """Bytes of all rows as JSON, at most."""
        given = max(sum(len((text or "").encode()) for text in column.values()) for column in self._given)
        places = [place for place, name in enumerate(self._row) if name not in self._given[0]]
        columns = [self._table.column(f"row {place}").chunk(0) for place in places]
        return self._table.num_rows * given + json_bytes_max(self._row, [self._table.column("timestamp").chunk(0), *columns])


def described(recipe: Recipe, number: int, footers: Sequence[bytes], codec: int, wanted: list[Wanted]) -> UnitBytes:
    """What a process needs to know of a unit. Raises InvalidError(CORRUPT_MESSAGE) if a file lacks a part of it."""
    unit = recipe.units[number]
    numbers: dict[int, list[int]] = {file: [] for file in recipe.files_of(unit)}
    places = {file: place for place, file in enumerate(numbers)}
    order = []
    for row_group in unit.groups:
        for group in range(row_group.first, row_group.end):
            order.append((places[row_group.file], len(numbers[row_group.file])))
            numbers[row_group.file].append(group)
    files = []
    for (file, mine), footer in zip(numbers.items(), footers, strict=True):
        metadata, adopted = metadata_of(footer), recipe.files[file]
        columns = recipe.shape.columns(adopted.given, adopted.names)
        ranges = [ranges_of(metadata, group, columns, adopted.size_bytes - len(footer)) for group in mine]
        files.append(UnitFile(footer, adopted.size_bytes, adopted.modified_ns, mine, ranges, adopted.given, adopted.names))
    return UnitBytes(files, order, recipe.shape, recipe.partitions, codec, wanted, batches_of(unit))


def batches_of(unit: Unit) -> int:
    """The number of batches of each partition: as many as the largest one needs. A fetch has about one batch of each partition, so
    the partitions of one consumer come to the next unit together, and it is decoded once for all of them."""
    rows = [share.rows for share in unit.shares]
    return max(-(-unit.data_bytes * max(rows, default=0) // (max(sum(rows), 1) * BATCH_BYTES_MAX)), 1)


def encode_unit(unit: UnitBytes, data: Sequence[Sequence[Data]]) -> Iterator[memoryview]:
    """The wanted rows of a unit as batches, in the order of `unit.wanted`, each in its own memory. Slow: run it in a thread or a
    process.

    Args:
        data: of each file the columns of its row groups.

    Raises:
        InvalidError: a file is not as it was counted.
    """
    decoded = decode_unit(unit, data)
    del data
    divided = decoded.divided()
    for part in unit.wanted:
        offset, most = part.base_offset, min(max(-(-part.rows // unit.batches), 1), BATCH_ROWS_MAX)
        if divided is not None:
            mine = decoded.rows(part.partition)
            yield from divided.encode(mine, offset, leader_epoch=part.leader_epoch, codec=Codec(unit.codec), batch_rows_max=most)
            continue
        for rows in decoded.records(part.partition):
            yield from encode_batches(
                rows, offset, leader_epoch=part.leader_epoch, compression=Codec(unit.codec), batch_rows_max=most
            )
            offset += rows.num_rows


def decode_unit(unit: UnitBytes, data: Sequence[Sequence[Data]]) -> UnitRows:
    """The wanted rows of a unit. Raises as `encode_unit`, also if a wanted partition has another number of rows than stated."""
    metadata = [metadata_of(file.footer) for file in unit.files]
    groups = (
        Group(metadata[file], one.groups[place], data[file][place], one.given, one.names)
        for file, place in unit.groups
        for one in (unit.files[file],)
    )
    try:
        rows = UnitRows(groups, unit.shape, unit.partitions, sorted({part.partition for part in unit.wanted}))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise bad(str(error)) from error
    for part in unit.wanted:
        if len(rows.rows(part.partition)) != part.rows:
            raise bad(f"partition {part.partition} has {len(rows.rows(part.partition))} rows instead of {part.rows}")
    return rows


def _parts(group: Group, shape: Shape, place: int) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
    """The rows of a row group in steps, and which of them pass the conditions. Each step has its columns in one piece: `timestamp`,
    `key`, and `value`; or the parts of the row that the file has, and `group`, the place of the row group in its unit."""
    metadata, number, data, given, names = group
    rows = metadata.row_group(number).num_rows
    if not rows:
        return
    columns = tuple(shape.columns(given, names))
    kinds: Any = metadata.schema.to_arrow_schema() if shape.row else None
    read = RowGroup(number, 0, rows, 0, 0, 0, has_repeats(metadata, number, columns[1:]), None, None)
    for table in read_parts(ExtentFile(metadata, columns, (read,), b""), read, data, ROWS_AT_A_TIME, WHOLE_BYTES):
        column = {name: table.column(names.get(name, name)) for name in shape.columns(given)}
        # With as few copies as there are: a table that was read whole is in one piece.
        arrays = {"timestamp": times(column[shape.time], shape.outside_us), "key": content(column[shape.key])}
        if not shape.row:
            arrays["value"] = content(column[shape.value])
        else:
            arrays["group"] = pa.array(np.full(table.num_rows, place, np.int32))
        for at, name in enumerate(shape.row):
            if name not in given:
                arrays[f"row {at}"] = part_of_row(column[name], kinds.field(names.get(name, name)).type)
        yield pa.table(arrays), passes(shape.conditions, column, table.num_rows)
