"""The decoded size of columns, from a file's footer and its dictionaries: what a broker that reads them has in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.log.adopted_columns import row_kind, value_bytes
from headgate.broker.log.column_schema import lengths
from headgate.broker.log.json_rows import json_rows
from headgate.broker.log.parquet import leaves, name_of
from headgate.broker.log.recipe import UNIT_BYTES_MAX, Shape
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.columns.kinds import arrow_type
from headgate.pipelines.columns.layout import READ_BYTES, Piece, SourceFile, metadata_of_source
from headgate.pipelines.iceberg_columns import is_uuid

ROW_BYTES = 9
"""Of a row in a column beside its bytes: where it begins, and whether it is null."""
LIST_BYTES = 5
"""Of a list beside its values: where they begin, and whether it is null."""
VALUE_BYTES = 40
"""Of a value as JSON with what stands around it, beside its name and the bytes of a text."""
LEVEL_BYTES = 10
"""The same of what is around it."""
_STORED = ("total_compressed_size", "total_uncompressed_size")
SMALL_BYTES = 1 << 20
"""Up to this size nothing but the footer is read to know it."""
ROWS = 1 << 9
"""Rows that are read at once where their values may be far larger than in the file."""


def decoded_bytes(piece: Piece, columns: Sequence[str]) -> int:
    """Bytes of these columns of a row group, decoded; at most so many. Raises OSError, RetryError, and errors of Arrow."""
    metadata = metadata_of_source(piece.file)
    group = metadata.row_group(piece.group)
    chunks: dict[str, dict[int, Any]] = {name: {} for name in columns}
    for index in range(metadata.num_columns):
        chunk = group.column(index)
        chunks.get(name_of(chunk), {})[index] = chunk
    total = 0
    for name in columns:
        mine = chunks[name]
        (index, chunk), *others = mine.items()
        is_plain = not others and chunk.path_in_schema == name
        size = _of_chunk(piece, metadata, index, chunk) if is_plain else _of_nested(piece, metadata, name, mine)
        # A broker reads what is stored, too.
        total += max(size, *(sum(getattr(chunk, stored) for chunk in mine.values()) for stored in _STORED))
    return total


def json_bytes(piece: Piece, shape: Shape, given: Mapping[str, str | None]) -> int:
    """Bytes of the rows of a row group as JSON, beside those of their decoded texts; at most so many, without escapes. `given`: the
    columns that the file lacks. Raises as `decoded_bytes`."""
    group = metadata_of_source(piece.file).row_group(piece.group)
    chunks = [group.column(index) for index in range(group.num_columns)]
    names = names_of(piece.file, shape)
    row = {names.get(name, name): name for name in shape.row if name not in given}
    inside = 0
    for path, values in ((chunk.path_in_schema, chunk.num_values) for chunk in chunks if name_of(chunk) in row):
        column, *parts = path.split(".")
        # All names on the path of a value stand before it, at most.
        inside += values * (VALUE_BYTES + LEVEL_BYTES * len(parts) + len(json.dumps(".".join((row[column], *parts)))))
    return int(inside + piece.rows * sum(len(json.dumps(name)) + len((text or "").encode()) + 4 for name, text in given.items()))


def given_of(file: SourceFile, shape: Shape) -> dict[str, str | None]:
    """The columns of the row that are not in a file, as JSON."""
    found: dict[str, str | None] = {}
    for name, value in file.values:
        if name in shape.row:
            (text,) = json_rows([""], [pa.array([value.as_py()], value.type)]).to_pylist()
            found[name] = text.partition(":")[2][:-1] if value.is_valid else None
    return found


def names_of(file: SourceFile, shape: Shape) -> dict[str, str]:
    """The columns that are read and have another name in a file, and that name."""
    lacking = [name for name, _ in file.values]
    read = shape.columns(lacking)
    return {name: own for name, own in file.names if name in read and name != own}


def formed_column(file: SourceFile, columns: Sequence[str], row: Mapping[str, str]) -> str:
    """The first of these columns whose values are not as the file has them; empty if there is none.

    Args:
        row: the columns of the row as JSON, and their kinds.
    """
    schema = metadata_of_source(file).schema.to_arrow_schema()
    names = dict(file.names)
    for name in columns:
        kind = schema.field(names.get(name, name)).type
        try:
            as_it_is = row_kind(kind) == arrow_type(row[name]) if name in row else not is_uuid(kind)
        except InvalidError:
            return name
        if not as_it_is:
            return name
    return ""


def _of_chunk(piece: Piece, metadata: Any, index: int, chunk: Any) -> int:
    """Each value is in the chunk as it is, or in its dictionary, or begins as the value before it."""
    rows, name, size = piece.rows, chunk.path_in_schema, chunk.total_uncompressed_size
    beside = rows * ROW_BYTES
    if chunk.physical_type != "BYTE_ARRAY":
        return int(beside + rows * max(value_bytes(metadata, index), 8))
    has_prefixes = "DELTA_BYTE_ARRAY" in chunk.encodings
    has_dictionary = any("DICTIONARY" in encoding for encoding in chunk.encodings)
    if not has_prefixes and not has_dictionary:
        return int(beside + size)
    if not has_prefixes:
        if rows * size <= SMALL_BYTES:
            return int(beside + rows * size)
        longest = next(
            (int(lengths(batch.dictionary.cast(pa.binary())).max(initial=0)) for batch in _batches(piece, metadata, [name], 1)), 0
        )
        if (most := beside + size + rows * longest) <= UNIT_BYTES_MAX // 4:
            return int(most)
    total = beside
    for column in _batches(piece, metadata, [name], ROWS, as_dictionary=not has_prefixes):
        total += column.nbytes if has_prefixes else _expanded(column)
    return total


def _of_nested(piece: Piece, metadata: Any, name: str, indexes: Mapping[int, Any]) -> int:
    """The same of a column with parts. A value is in as many lists as may be around it, and may be the only one there."""
    chunks = indexes.values()
    beside = 0
    for index, chunk in indexes.items():
        leaf = metadata.schema.column(index)
        around = (leaf.max_definition_level + 1) // 8 + LIST_BYTES * leaf.max_repetition_level
        beside += chunk.num_values * (max(value_bytes(metadata, index), 8) + ROW_BYTES + around) + chunk.total_uncompressed_size
    if any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in chunks):
        return int(beside + sum(column.nbytes for column in _batches(piece, metadata, [name], ROWS, as_dictionary=False)))
    encoded = [
        chunk.path_in_schema
        for chunk in chunks
        if chunk.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in encoding for encoding in chunk.encodings)
    ]
    return (
        int(beside + sum(_expanded(column) for column in _batches(piece, metadata, [name], ROWS, encoded))) if encoded else beside
    )


def _expanded(column: Any) -> int:
    """Bytes of the values of a column, and of those within it, that are stored in a dictionary."""
    total = 0
    for leaf in leaves(column):
        if pa.types.is_dictionary(leaf.type) and not pa.types.is_primitive(leaf.type.value_type):
            sizes = np.maximum(lengths(leaf.dictionary.cast(pa.binary())), 0)
            total += int(sizes[np.asarray(leaf.indices.drop_null())].sum())
    return total


def _batches(
    piece: Piece, metadata: Any, columns: list[str], rows: int, encoded: list[str] | None = None, *, as_dictionary: bool = True
) -> Iterator[Any]:
    """A column of a row group, so many rows at a time. `encoded`: the paths of its leaves that stay encoded; default: the column.
    Arrow gives values with prefixes only as they are."""
    with piece.file.open() as handle:
        file = pq.ParquetFile(
            handle,
            metadata=metadata,
            pre_buffer=False,
            buffer_size=READ_BYTES,
            read_dictionary=(columns if encoded is None else encoded) if as_dictionary else None,
        )
        for batch in file.iter_batches(rows, row_groups=[piece.group], columns=columns, use_threads=False):
            column = batch.column(0)
            plain = as_dictionary and encoded is None and not pa.types.is_dictionary(column.type)
            yield column.dictionary_encode() if plain else column
