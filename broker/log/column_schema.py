"""The columns of history: the content of a Parquet extent, and the conversion of any table of that shape to numpy.

pyarrow and numpy are imported at the top: no module on the way to a broker's first answer may import this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.broker.runtime.errors import InvalidError, Reason

Int64s: TypeAlias = npt.NDArray[np.int64]
ArrowArray: TypeAlias = Any
"""A pyarrow array; the stubs know fewer kinds of arrays than they forbid."""
_Number = TypeVar("_Number", bound=np.generic)

HEADERS_TYPE: Any = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))

_FIELDS: list[Any] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", HEADERS_TYPE),
]
SCHEMA = pa.schema(_FIELDS)
"""The columns that readers return. Writers may omit `offset` (then: base offset + row number) and `headers`, and give time in
any unit."""

TIMESTAMP_MS_MAX = 1 << 54
"""Times beyond this, 570,000 years away, are refused: their deltas would not fit the eight bytes of the codec."""

_PER_MS = {"us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of some rows, each in one piece: times in ms, `key` and `value` as binary, `headers` None when no row has any.

    All arrays have the same length, and no offset of their own that a reader of their buffers would need.
    """

    timestamps: Int64s
    key: ArrowArray
    value: ArrowArray
    headers: ArrowArray | None
    offsets: Int64s | None
    types: npt.NDArray[np.int32] | None = None
    """Timestamp types as Kafka's clients number them: 0 CreateTime, 1 LogAppendTime. None: all are CreateTime."""

    def __len__(self) -> int:
        return len(self.timestamps)


@lru_cache(maxsize=64)
def check_columns(schema: pa.Schema) -> None:
    """Raise InvalidError(INVALID_RECORD) when a file or table of this schema cannot be history; the message names the column."""
    for name in ("timestamp", "key", "value"):
        if schema.get_field_index(name) < 0:
            raise _bad(f"there is no column `{name}`", schema)
    kind = schema.field("timestamp").type
    if not (pa.types.is_timestamp(kind) or pa.types.is_int64(kind)):
        raise _bad("column `timestamp` is not a time", schema)
    for name in ("key", "value"):
        kind = schema.field(name).type
        if not _is_bytes(kind.value_type if pa.types.is_dictionary(kind) else kind):
            raise _bad(f"column `{name}` is neither binary nor text", schema)
    if schema.get_field_index("offset") >= 0 and not pa.types.is_integer(schema.field("offset").type):
        raise _bad("column `offset` is not an integer", schema)
    if schema.get_field_index("headers") >= 0:
        kind = schema.field("headers").type
        if pa.types.is_null(kind):
            return
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
            raise _bad("column `headers` is not a list of (key, value)", schema)
        item = kind.value_type
        if item.num_fields != 2 or item.field(0).name != "key" or item.field(1).name != "value":
            raise _bad("column `headers` is not a list of (key, value)", schema)
        if not _is_bytes(item.field(0).type) or not _is_bytes(item.field(1).type):
            raise _bad("column `headers` is not a list of (text, binary)", schema)


def take_apart(rows: pa.RecordBatch | pa.Table) -> Columns:
    """The columns of `rows`, each in one piece.

    Raises:
        InvalidError: INVALID_RECORD for missing columns, wrong types, null times or header names; INVALID_TIMESTAMP for times that
            no reader could use.
    """
    check_columns(rows.schema)
    names = rows.schema.names
    offsets: Int64s | None = None
    if "offset" in names:
        column = whole(rows.column("offset"))
        if column.null_count:
            raise InvalidError(Reason.INVALID_RECORD, f"an offset is null. rows=`{column.null_count}`")
        offsets = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    headers = None
    if "headers" in names:
        headers = _headers(whole(rows.column("headers")))
    types: npt.NDArray[np.int32] | None = None
    if has_timestamp_types(rows.schema):
        given = whole(rows.column("timestamp_type")).fill_null(0).to_numpy(zero_copy_only=False)
        types = (given == 1).astype(np.int32)
    return Columns(
        timestamps=timestamps_ms(rows.column("timestamp")),
        key=_binary(whole(rows.column("key"))),
        value=_binary(whole(rows.column("value"))),
        headers=headers,
        offsets=offsets,
        types=types,
    )


def has_timestamp_types(schema: pa.Schema) -> bool:
    """True if rows of this schema give their timestamp types: a column `timestamp_type` of another type is not Headgate's."""
    return bool(schema.get_field_index("timestamp_type") >= 0 and pa.types.is_int32(schema.field("timestamp_type").type))


def to_arrow(array: npt.NDArray[Any]) -> pa.Buffer:
    """The memory of an array."""
    return pa.py_buffer(cast(Any, array))


def from_arrow(buffer: pa.Buffer | None, kind: type[_Number], count: int = -1, position: int = 0) -> npt.NDArray[_Number]:
    """`count` numbers in a buffer from `position` (bytes) on; all of it by default."""
    return np.frombuffer(cast(Any, buffer), kind, count, position)


def binary_offsets(array: ArrowArray) -> npt.NDArray[np.int32]:
    """The n + 1 positions of a binary array's values in its data buffer."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(1, np.int32)
    return from_arrow(buffer, np.int32, len(array) + 1, 4 * array.offset)


def lengths(array: ArrowArray) -> Int64s:
    """The length of each value of a binary array; -1 where it is null."""
    positions = binary_offsets(array)
    sizes = (positions[1:] - positions[:-1]).astype(np.int64)
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = -1
    return sizes


def timestamps_ms(column: ArrowArray) -> Int64s:
    """A column `timestamp` in ms. Raises InvalidError(INVALID_RECORD | INVALID_TIMESTAMP)."""
    column = whole(column)
    if column.null_count:
        raise InvalidError(Reason.INVALID_RECORD, f"a timestamp is null: every record has a time. rows=`{column.null_count}`")
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    values: Int64s = column.view(pa.int64()).to_numpy(zero_copy_only=False)
    if unit in _PER_MS:
        # Floor, as in Kafka's clients and Spark: a time before 1970 belongs to the millisecond that contains it.
        values = values // _PER_MS[unit]
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    limit = TIMESTAMP_MS_MAX if unit != "s" else TIMESTAMP_MS_MAX // 1000
    if low < -limit or high > limit:
        raise InvalidError(Reason.INVALID_TIMESTAMP, f"a timestamp is out of range. unit=`{unit}` lowest=`{low}` highest=`{high}`")
    return values * 1000 if unit == "s" else values


def _headers(column: ArrowArray) -> ArrowArray | None:
    if pa.types.is_null(column.type):
        return None
    if len(column) == 0 or column.null_count == len(column) or len(items := column.flatten()) == 0:
        return None
    nameless = max(items.null_count, items.field(0).null_count)
    if nameless:
        raise InvalidError(Reason.INVALID_RECORD, f"a header, or its name, is null: only its value may be. headers=`{nameless}`")
    if column.type == HEADERS_TYPE and column.offset == 0:
        return column
    try:
        return column.cast(HEADERS_TYPE)
    except pa.ArrowInvalid as error:
        raise InvalidError(Reason.INVALID_RECORD, f"column `headers` cannot be read as (text, binary): {error}") from error


def _binary(column: ArrowArray) -> ArrowArray:
    if column.type == pa.binary():
        return column
    try:
        return column.cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidError(Reason.INVALID_RECORD, f"a column cannot be read as bytes: {error}") from error


def whole(column: ArrowArray) -> ArrowArray:
    """A column in one piece. Without a copy if it is in one already: Arrow's `combine_chunks` copies that one too."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        raise InvalidError(Reason.MESSAGE_TOO_LARGE, f"a column of more than 2 GB cannot be taken at once. bytes=`{column.nbytes}`")
    return combined


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_null(kind)
    )


def _bad(what: str, schema: pa.Schema) -> InvalidError:
    columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return InvalidError(Reason.INVALID_RECORD, f"not a table of records: {what}. columns=`{columns}`")
