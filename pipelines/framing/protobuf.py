"""Protobuf's encoding of columns (https://protobuf.dev/programming-guides/encoding/), by the descriptor of a message.

Fields stand in the order of their numbers. A field without presence is left out where it has its default, as the libraries of
Protobuf leave it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.schemas.protobuf_files import messages_of
from headgate.pipelines.framing.bytes_of_columns import (
    arrow,
    entries,
    filled,
    fixed,
    in_lists,
    misfit,
    numbers,
    pc,
    sized,
    together,
    varints,
    zigzag,
)  # fmt: skip

TIMESTAMP = "google.protobuf.Timestamp"
SECOND_US = 1_000_000
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value" for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_F = FieldDescriptor
_SIGNED = (_F.TYPE_SINT32, _F.TYPE_SINT64)
_UNSIGNED = (_F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_FIXED32, _F.TYPE_FIXED64)
_FIXED: dict[int, Any] = {
    _F.TYPE_DOUBLE: np.dtype("<f8"), _F.TYPE_FLOAT: np.dtype("<f4"), _F.TYPE_FIXED64: np.dtype("<u8"),
    _F.TYPE_SFIXED64: np.dtype("<i8"), _F.TYPE_FIXED32: np.dtype("<u4"), _F.TYPE_SFIXED32: np.dtype("<i4"),
}  # fmt: skip
_NARROW = (_F.TYPE_INT32, _F.TYPE_UINT32, _F.TYPE_SINT32, _F.TYPE_FIXED32, _F.TYPE_SFIXED32)
_INTEGERS = (*_NARROW, _F.TYPE_INT64, _F.TYPE_UINT64, _F.TYPE_SINT64, _F.TYPE_FIXED64, _F.TYPE_SFIXED64)
_SIZED = (_F.TYPE_STRING, _F.TYPE_BYTES, _F.TYPE_MESSAGE)
VARINT, FIXED_64, LENGTH, FIXED_32 = 0, 1, 2, 5
"""Wire types."""
_NAMES = {value: name.removeprefix("TYPE_").lower() for name, value in vars(_F).items() if name.startswith("TYPE_")}


class Protobuf:
    """The first message of a file.

    Args:
        schema: the file's descriptor in base64, as a registry gives it for ``format=serialized``.
        references: those of the files that it imports, the ones that others import first.

    Raises:
        InvalidError: it is no descriptor, or has no message.
    """

    def __init__(self, schema: str, references: Sequence[tuple[str, str]] = ()) -> None:
        try:
            messages = messages_of(schema, references)
        except (ValueError, TypeError, KeyError, DecodeError) as error:
            raise InvalidError(Reason.INVALID_REQUEST, f"the registry's schema is no Protobuf file: {error}") from error
        if not messages:
            raise InvalidError(Reason.INVALID_REQUEST, "the registry's schema has no message")
        self.message = messages[0]
        self.fields = [field.name for field in self.message.fields]

    def problems(self, columns: Mapping[str, Any]) -> list[str]:
        """Why rows of these columns do not fit. `columns`: Arrow's types by name."""
        return list(_misfits(self.message, columns, ""))

    def encode(self, columns: Mapping[str, Any]) -> Any:
        """The bytes of each row. Raises InvalidError for a row that does not fit."""
        return _message(self.message, columns, "")


@lru_cache(16)
def protobuf(schema: str, references: tuple[tuple[str, str], ...] = ()) -> Protobuf:
    """The message, parsed once in each process. Raises as `Protobuf`."""
    return Protobuf(schema, references)


# -- whether columns fit


def _misfits(message: Descriptor, columns: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, kind in columns.items():
        if (field := message.fields_by_name.get(name)) is not None:
            yield from _field_misfits(field, kind, f"{path}.{name}" if path else name)


def _field_misfits(field: FieldDescriptor, kind: Any, path: str) -> Iterator[str]:
    types = pa.types
    if _is_map(field):
        key, value = field.message_type.fields
        if not types.is_map(kind):
            yield misfit(path, f"a map is wanted, the column is of {kind}")
        else:
            yield from _field_misfits(key, kind.key_type, f"{path}.key")
            yield from _field_misfits(value, kind.item_type, f"{path}.value")
    elif field.is_repeated:
        if not types.is_list(kind):
            yield misfit(path, f"a list is wanted, the column is of {kind}")
        else:
            yield from _value_misfits(field, kind.value_type, f"{path}[]")
    else:
        yield from _value_misfits(field, kind, path)


def _value_misfits(field: FieldDescriptor, kind: Any, path: str) -> Iterator[str]:
    types = pa.types
    if field.type == _F.TYPE_MESSAGE and field.message_type.full_name in _WRAPPERS:
        yield from _value_misfits(field.message_type.fields_by_name["value"], kind, path)
    elif field.type == _F.TYPE_MESSAGE and field.message_type.full_name == TIMESTAMP:
        if not types.is_timestamp(kind) or kind.tz is None:
            yield misfit(path, f"a time with a zone is wanted, the column is of {kind}")
    elif field.type == _F.TYPE_MESSAGE:
        if not types.is_struct(kind):
            yield misfit(path, f"a struct is wanted, the column is of {kind}")
        else:
            yield from _misfits(field.message_type, {field.name: field.type for field in kind}, path)
    else:
        fits = (
            types.is_signed_integer(kind) and kind.bit_width <= (32 if field.type in _NARROW else 64) if field.type in _INTEGERS
            else types.is_boolean(kind) if field.type == _F.TYPE_BOOL
            else types.is_string(kind) if field.type in (_F.TYPE_STRING, _F.TYPE_ENUM)
            else types.is_binary(kind) if field.type == _F.TYPE_BYTES
            else types.is_float32(kind) if field.type == _F.TYPE_FLOAT
            else types.is_float32(kind) or types.is_float64(kind) if field.type == _F.TYPE_DOUBLE
            else False
        )  # fmt: skip
        if not fits:
            hint = f": a time needs a field of {TIMESTAMP}" if types.is_timestamp(kind) else ""
            yield misfit(path, f"{_NAMES[field.type]} is wanted, the column is of {kind}{hint}")


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.type == _F.TYPE_MESSAGE and field.message_type.GetOptions().map_entry)


# -- bytes


def _message(message: Descriptor, columns: Mapping[str, Any], path: str) -> Any:
    rows = len(next(iter(columns.values()))) if columns else 0
    fields = sorted((field for field in message.fields if field.name in columns), key=lambda field: field.number)
    if not fields:
        return pa.array([b""] * rows, pa.binary())
    return together([_field(field, columns[field.name], f"{path}.{field.name}" if path else field.name) for field in fields])


def _field(field: FieldDescriptor, column: Any, path: str, *, of_map: bool = False) -> Any:
    """A field of each row with its tag; no bytes where the field is not there. `of_map`: a key or a value, which stands there with
    its default too."""
    if _is_map(field):
        key, value = field.message_type.fields
        lists, keys, values = entries(column)
        inside = [_field(key, keys, f"{path}.key", of_map=True), _field(value, values, f"{path}.value", of_map=True)]
        return in_lists(lists, together([_tag(field, LENGTH), sized(together(inside), signed=False)]))
    if field.is_repeated:
        items = column.flatten()
        if items.null_count:
            raise InvalidError(Reason.INVALID_RECORD, misfit(path, "a list has a missing value, which Protobuf has not"))
        values = _value(field, items, path)
        if field.type in _SIZED or not field.is_packed:
            return in_lists(column, together([_tag(field, _wire(field)), values]))
        packed = sized(in_lists(column, values), signed=False)
        some = pc.greater(column.value_lengths().fill_null(0), 0)
        return pc.if_else(some, together([_tag(field, LENGTH), packed]), b"")
    there = pc.is_valid(column)
    if not field.has_presence and not of_map:
        there = pc.and_(there, _is_set(field, column))
    found = together([_tag(field, _wire(field)), _value(field, column, path)])
    return pc.if_else(there, found, b"")


def _is_set(field: FieldDescriptor, column: Any) -> Any:
    """Where a value is not the default."""
    if field.type in (_F.TYPE_STRING, _F.TYPE_BYTES):
        return pc.greater(pc.binary_length(column), 0).fill_null(False)
    if field.type == _F.TYPE_ENUM:
        return pc.not_equal(column, field.enum_type.values_by_number[0].name).fill_null(False)
    if field.type == _F.TYPE_BOOL:
        return column.fill_null(False)
    if field.type in (_F.TYPE_FLOAT, _F.TYPE_DOUBLE):
        # -0.0 is no default.
        values = np.asarray(column.fill_null(0.0))
        return pa.array((values != 0) | np.signbit(values))
    return pa.array(numbers(column) != 0)


def _value(field: FieldDescriptor, column: Any, path: str) -> Any:
    """Values without tags; any bytes for nulls."""
    if field.type == _F.TYPE_MESSAGE:
        return sized(_nested(field.message_type, column, path), signed=False)
    if field.type in (_F.TYPE_STRING, _F.TYPE_BYTES):
        return sized(filled(column, b""), signed=False)
    if field.type == _F.TYPE_ENUM:
        known = field.enum_type.values
        places = pc.index_in(column, value_set=pa.array([field.name for field in known], pa.string()))
        if places.null_count > column.null_count:
            wrong = column.filter(pc.and_(places.is_null(), pc.is_valid(column)))[0].as_py()
            raise InvalidError(Reason.INVALID_RECORD, misfit(path, f"the schema has no such value: {wrong[:100]}"))
        return varints(np.array([field.number for field in known], np.int64)[numbers(places)])
    if field.type == _F.TYPE_BOOL:
        return varints(np.asarray(column.fill_null(False)).astype(np.int64))
    if field.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT):
        return fixed(np.asarray(column.cast(pa.float64()).fill_null(0.0)).astype(_FIXED[field.type]))
    values = numbers(column)
    if field.type in _UNSIGNED and (values < 0).any():
        raise InvalidError(Reason.INVALID_RECORD, misfit(path, "a number is negative, and the schema wants an unsigned one"))
    if field.type in _FIXED:
        return fixed(values.astype(_FIXED[field.type]))
    return zigzag(values) if field.type in _SIGNED else varints(values.astype(np.int64))


def _nested(message: Descriptor, column: Any, path: str) -> Any:
    if message.full_name in _WRAPPERS:
        return _field(message.fields_by_name["value"], column, path)
    if message.full_name == TIMESTAMP:
        times = numbers(column)
        seconds = times // SECOND_US
        return _message(message, {"seconds": pa.array(seconds), "nanos": pa.array((times - seconds * SECOND_US) * 1000)}, path)
    return _message(message, {field.name: part for field, part in zip(column.type, column.flatten(), strict=True)}, path)


def _wire(field: FieldDescriptor) -> int:
    if field.type in _SIZED:
        return LENGTH
    size = _FIXED[field.type].itemsize if field.type in _FIXED else 0
    return {0: VARINT, 8: FIXED_64, 4: FIXED_32}[size]


def _tag(field: FieldDescriptor, wire: int) -> Any:
    return arrow.scalar(varints(np.array([field.number << 3 | wire]))[0].as_py(), pa.binary())
