"""Columns of bytes, computed as a whole: varints, numbers of a fixed size, and bytes that stand one behind the other.

All results are `pa.BinaryArray` without nulls. Rows that are null in an argument have any bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

arrow: Any = pa
pc: Any = pyarrow.compute
EMPTY = arrow.scalar(b"", pa.binary())


def varints(values: npt.NDArray[Any]) -> Any:
    """Unsigned varints (LEB128) of numbers of 64 bits; negative ones are those of two's complement, in ten bytes."""
    words = values.astype(np.int64, copy=False).view(np.uint64)
    widths = np.ones(len(words), np.int32)
    largest = int(words.max(initial=0))
    for index in range(1, 10):
        if largest >> 7 * index == 0:
            break
        widths += words >= np.uint64(1 << 7 * index)
    offsets = np.zeros(len(words) + 1, np.int32)
    np.cumsum(widths, out=offsets[1:])
    out = np.zeros(int(offsets[-1]), np.uint8)
    for index in range(int(widths.max(initial=0))):
        mine = slice(None) if index == 0 else np.flatnonzero(widths > index)
        more = (widths[mine] > index + 1).astype(np.uint8) << 7
        out[offsets[:-1][mine] + index] = (words[mine] >> np.uint64(7 * index)).astype(np.uint8) & 0x7F | more
    return arrow.Array.from_buffers(pa.binary(), len(words), [None, arrow.py_buffer(offsets), arrow.py_buffer(out)])


def zigzag(values: npt.NDArray[Any]) -> Any:
    """Signed varints, as Avro and Protobuf's `sint` have them."""
    numbers = values.astype(np.int64, copy=False)
    return varints((numbers << 1) ^ (numbers >> 63))


def fixed(values: npt.NDArray[Any]) -> Any:
    """Numbers in their own size, little-endian."""
    return of_size(np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize))


def of_size(rows: npt.NDArray[np.uint8]) -> Any:
    """Rows of equally many bytes. `rows`: shape (n, size)."""
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32) if len(rows) else np.zeros(1, np.int32)
    return arrow.Array.from_buffers(
        pa.binary(), len(rows), [None, arrow.py_buffer(offsets), arrow.py_buffer(np.ascontiguousarray(rows))]
    )


def together(parts: Sequence[Any]) -> Any:
    """Columns, and scalars for constants, one behind the other."""
    return pc.binary_join_element_wise(*parts, EMPTY)


def sized(content: Any, *, signed: bool) -> Any:
    """Bytes with their length before them. `signed`: as a signed varint."""
    lengths = np.asarray(pc.binary_length(content))
    return together([(zigzag if signed else varints)(lengths), content])


def in_lists(lists: Any, items: Any) -> Any:
    """The items of each list, one behind the other. `items`: one for each value of `lists.flatten()`; null lists have none."""
    lengths = np.asarray(lists.value_lengths().fill_null(0))
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pc.binary_join(arrow.ListArray.from_arrays(pa.array(offsets), items), EMPTY)


def entries(maps: Any) -> tuple[Any, Any, Any]:
    """(the maps as lists, their keys, their values); keys and values without those of null maps."""
    kind = maps.type
    lists = maps.cast(pa.list_(arrow.struct([("key", kind.key_type), ("value", kind.item_type)])))
    keys, values = lists.flatten().flatten()
    return lists, keys, values


def numbers(column: Any) -> npt.NDArray[Any]:
    """The integers, or the times and days since 1970, of a column; 0 for nulls."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    found: npt.NDArray[Any] = np.asarray(column.fill_null(0))
    return found


def filled(column: Any, empty: Any) -> Any:
    """Bytes or texts as bytes, `empty` for nulls."""
    column = column.cast(pa.binary()) if not pa.types.is_binary(column.type) else column
    return column.fill_null(empty) if column.null_count else column


def misfit(field: str, what: str) -> str:
    """A message about the values of a field."""
    return f"{what}{'' if what.endswith('?') else '.'} field=`{field}`"
