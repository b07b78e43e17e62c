"""The columns of adopted files that records need: which of them a row group has, and their values as times, bytes or JSON.

The types of values do not depend on how a file stores them: dictionaries, long texts and times of another unit become the same
values, so that the same rows are the same records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from headgate.broker.log.column_schema import whole
from headgate.broker.log.json_rows import is_writable
from headgate.broker.log.parquet import MAGIC, column_ranges, metadata_of, name_of
from headgate.broker.log.recipe import UNIT_BYTES_MAX, AdoptedFile, Comparison, Condition, Shape
from headgate.broker.runtime.errors import InvalidError, Reason

arrow: Any = pa
pc: Any = pyarrow.compute

TIMES = pa.timestamp("us", tz="UTC")
WIDE_TIMES = pa.timestamp("ns")
"""The type in a schema of times of 96 bits. They are in UTC, and are read as microseconds."""
GIVEN = pa.large_string()
"""The type of columns that are JSON already; see `json_rows.json_rows`."""
_WIDTHS = {"INT32": 4, "FLOAT": 4, "BYTE_ARRAY": 4}
"""Bytes of a decoded value; 8 for others."""
_US = {"ms": 1000, "us": 1}
_BYTES = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string_view,
    pa.types.is_integer,
)
"""The types of keys and values. Whole numbers become text."""


def ranges_of(metadata: Any, group: int, columns: Collection[str], data_end: int) -> list[tuple[int, int]]:
    """(position, bytes) of the columns of a row group that are read, ascending.

    Args:
        data_end: position in the file at which its footer begins.

    Raises InvalidError(CORRUPT_MESSAGE) if the file lacks one, or the row group; if they lie outside of the file, or are larger
    than a unit.
    """
    if group >= metadata.num_row_groups:
        raise bad(f"there is no row group {group}")
    chunks = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
    columns = frozenset(columns)
    wanted = [chunk for chunk in chunks if name_of(chunk) in columns]
    if missing := sorted(columns - {name_of(chunk) for chunk in wanted}):
        raise bad(f"there is no column `{missing[0]}`")
    ranges = column_ranges(metadata, group, columns)
    if not metadata.row_group(group).num_rows:
        return []
    if any(begin < len(MAGIC) or size <= 0 or begin + size > data_end for begin, size in ranges):
        raise bad(f"row group {group} lies outside of its file")
    stored = max(sum(chunk.total_uncompressed_size for chunk in wanted), sum(size for _, size in ranges))
    if max(stored, _bytes_min(metadata, group, columns)) > UNIT_BYTES_MAX:
        raise bad(f"row group {group} has more than {UNIT_BYTES_MAX >> 20} MiB")
    return ranges


def _bytes_min(metadata: Any, group: int, columns: Collection[str]) -> int:
    """Bytes of these columns of a row group beside those of texts, decoded: equal and missing values take none in a file."""
    total = 0
    for index in range(metadata.num_columns):
        chunk = metadata.row_group(group).column(index)
        if name_of(chunk) in columns and chunk.physical_type != "BOOLEAN":
            total += chunk.num_values * value_bytes(metadata, index)
    return total


def value_bytes(metadata: Any, index: int) -> int:
    """Bytes of a value of a leaf of a file's columns, decoded, beside those of a text."""
    leaf = metadata.schema.column(index)
    return int(leaf.length) if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(leaf.physical_type, 8)


def check_file(footer: bytes, groups: Iterable[int], shape: Shape, file: AdoptedFile) -> list[int]:
    """The rows of each of some row groups of a file. Raises InvalidError, or an error of Arrow, unless the file has them, with
    the columns of these records."""
    metadata = metadata_of(footer)
    columns = shape.columns(file.given, file.names)
    found = []
    for group in groups:
        ranges_of(metadata, group, columns, file.size_bytes - len(footer))
        found.append(metadata.row_group(group).num_rows)
    schema = metadata.schema.to_arrow_schema()
    known = Counter(schema.names)
    if twice := sorted(name for name in columns if known[name] != 1):
        raise bad(f"a column is not there once: `{twice[0]}`")

    def own(name: str) -> str:
        return file.names.get(name, name)

    def kind(name: str) -> Any:
        return schema.field(own(name)).type

    if kind(shape.time) != WIDE_TIMES or own(shape.time) not in wide_columns(metadata):
        _check_time(kind(shape.time))
    _check_bytes(kind(shape.key))
    if not shape.row:
        _check_bytes(kind(shape.value))
    inside = [name for name in shape.row if name not in file.given]
    for name in inside:
        row_kind(kind(name))
    if foreign := nanoseconds(metadata) & set(map(own, inside)):
        raise bad(f"a column has times in nanoseconds: `{min(foreign)}`")
    for condition in shape.conditions:
        _compared(condition, kind(condition.column))
    return found


def wide_columns(metadata: Any) -> set[str]:
    """The columns with times of 96 bits, which a schema shows as nanoseconds."""
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    return {leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}


def nanoseconds(metadata: Any) -> set[str]:
    """The columns with other times in nanoseconds."""
    leaves = map(metadata.schema.column, range(metadata.num_columns))
    return {leaf.path.partition(".")[0] for leaf in leaves if '"nanoseconds"' in leaf.logical_type.to_json()}


def times(column: Any, missing_us: int | None = None) -> Any:
    """Times in microseconds, in one piece, whatever they are in the file. Raises InvalidError if a row has none, and no time is
    given for such rows."""
    column = whole(column)
    if column.null_count and missing_us is None:
        raise bad("a row has no time")
    _check_time(column.type)
    found = np.asarray(column.cast(pa.int64()).fill_null(0)) * _US[column.type.unit]
    if column.null_count:
        found[np.asarray(column.is_null())] = missing_us
    return pa.array(found).cast(TIMES)


def passes(conditions: Sequence[Condition], columns: Mapping[str, Any], rows: int) -> npt.NDArray[np.bool_]:
    """Which of some rows pass all conditions. Raises InvalidError if a column is of another type than its constant."""
    found = np.ones(rows, np.bool_)
    for condition in conditions:
        column = columns[condition.column]
        column = whole(column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column)
        if condition.value is None:
            passed = column.is_null() if condition.comparison == "is null" else column.is_valid()
        else:
            constant = _compared(condition, column.type)
            passed = _COMPARISONS[condition.comparison](column, constant).fill_null(False)
        found &= np.asarray(passed)
    return found


_COMPARISONS: dict[Comparison, Any] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def _compared(condition: Condition, kind: Any) -> Any:
    """The constant of a condition as a value that is compared with a column of this type. Raises InvalidError."""
    if condition.value is None:
        return None
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if isinstance(condition.value, str):
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return arrow.scalar(condition.value, kind)
    elif pa.types.is_signed_integer(kind):
        return arrow.scalar(condition.value, pa.int64())
    elif kind == pa.date32() and -(1 << 31) <= condition.value < 1 << 31:
        return arrow.scalar(condition.value, pa.int32()).cast(kind)
    raise bad(f"a condition's column is of another type than its constant. column=`{condition.column}` type=`{kind}`")


def content(column: Any) -> Any:
    """Keys or values as bytes, in one piece."""
    kind = column.type
    _check_bytes(kind)
    if pa.types.is_integer(kind):
        column, kind = column.cast(pa.string()), pa.string()
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        column = column.cast(pa.binary())
    column = whole(column)
    return column.view(pa.binary()) if pa.types.is_string(kind) else column


def part_of_row(column: Any, kind: Any) -> Any:
    """A column of the row, in one piece, of a type that is written as JSON. `kind`: its type in the file's schema."""
    kind = row_kind(kind)
    return whole(column if column.type == kind else column.cast(kind))


def row_kind(kind: Any) -> Any:
    """The type whose values a part of the row has, for the type of a file's column. Raises InvalidError for others."""
    found = _row_kind(kind)
    if not is_writable(found):
        raise bad(f"a column of the row is of a type that is not written as JSON: {kind}")
    return found


def _row_kind(kind: Any) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _row_kind(kind.value_type)
    if types.is_struct(kind):
        return arrow.struct([(field.name, _row_kind(field.type)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(_row_kind(kind.key_type), _row_kind(kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind):
        return arrow.list_(_row_kind(kind.value_type))
    if types.is_timestamp(kind):
        if kind.unit not in _US and kind != WIDE_TIMES:
            return pa.null()
        return TIMES if kind == WIDE_TIMES or kind.tz is not None else pa.timestamp("us")
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


def _check_time(kind: Any) -> None:
    if not pa.types.is_timestamp(kind) or kind.unit not in _US:
        raise bad(f"the time is of another type: {kind}")


def _check_bytes(kind: Any) -> None:
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    stored = stored.value_type if pa.types.is_dictionary(stored) else stored
    if not any(is_kind(stored) for is_kind in _BYTES):
        raise bad(f"a key or a value is of another type: {kind}")


def bad(what: str) -> InvalidError:
    return InvalidError(Reason.CORRUPT_MESSAGE, f"an adopted file is not as it was counted: {what}")
