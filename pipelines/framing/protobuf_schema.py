"""A Protobuf message of columns: its text, and the same as a descriptor."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.framing.protobuf import TIMESTAMP

_F = descriptor_pb2.FieldDescriptorProto
_SCALARS = (
    (pa.types.is_boolean, "bool", _F.TYPE_BOOL), (pa.types.is_string, "string", _F.TYPE_STRING),
    (pa.types.is_binary, "bytes", _F.TYPE_BYTES), (pa.types.is_float32, "float", _F.TYPE_FLOAT),
    (pa.types.is_float64, "double", _F.TYPE_DOUBLE), (pa.types.is_int64, "int64", _F.TYPE_INT64),
    (pa.types.is_signed_integer, "int32", _F.TYPE_INT32),
)  # fmt: skip
_MAP_KEYS = (_F.TYPE_BOOL, _F.TYPE_STRING, _F.TYPE_INT32, _F.TYPE_INT64)


def derived(columns: Mapping[str, Any], name: str) -> tuple[str, str]:
    """(text, descriptor in base64) of a file with one message, whose fields have presence. Raises InvalidError for a type or a name
    that Protobuf has not."""
    file = descriptor_pb2.FileDescriptorProto(name="flood.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    message = file.message_type.add(name=_camel(name))
    _fill(message, columns, f".{message.name}")
    text = ['syntax = "proto3";', 'import "google/protobuf/timestamp.proto";', "", *_lines(message, "")]
    return "\n".join(text) + "\n", base64.b64encode(file.SerializeToString()).decode()


def _fill(message: descriptor_pb2.DescriptorProto, columns: Mapping[str, Any], path: str) -> None:
    for number, (name, kind) in enumerate(columns.items(), 1):
        if not (name.isascii() and name.isidentifier()):
            raise InvalidError(Reason.INVALID_REQUEST, f"Protobuf has no such name for a field: rename the column. column=`{name}`")
        # Field numbers from 19,000 to 19,999 are Protobuf's own, and no source has so many columns.
        field = message.field.add(name=name, number=number, label=_F.LABEL_OPTIONAL)
        if pa.types.is_list(kind):
            field.label, kind = _F.LABEL_REPEATED, kind.value_type
        if pa.types.is_map(kind):
            field.label = _F.LABEL_REPEATED
            entry = message.nested_type.add(name=f"{_camel(name)}Entry")
            entry.options.map_entry = True
            for place, (part, inside) in enumerate((("key", kind.key_type), ("value", kind.item_type)), 1):
                _type(
                    entry.field.add(name=part, number=place, label=_F.LABEL_OPTIONAL), inside, message, f"{path}", f"{name}_{part}"
                )
            if entry.field[0].type not in _MAP_KEYS:
                raise _none(name, kind)
            field.type, field.type_name = _F.TYPE_MESSAGE, f"{path}.{entry.name}"
            continue
        _type(field, kind, message, path, name)
        if field.label == _F.LABEL_OPTIONAL and field.type != _F.TYPE_MESSAGE:
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")


def _type(field: Any, kind: Any, message: descriptor_pb2.DescriptorProto, path: str, name: str) -> None:
    for is_kind, _, number in _SCALARS:
        if is_kind(kind):
            field.type = number
            return
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        field.type, field.type_name = _F.TYPE_MESSAGE, f".{TIMESTAMP}"
        return
    if not pa.types.is_struct(kind):
        raise _none(name, kind)
    inside = message.nested_type.add(name=_camel(name))
    field.type, field.type_name = _F.TYPE_MESSAGE, f"{path}.{inside.name}"
    _fill(inside, {field.name: field.type for field in kind}, f"{path}.{inside.name}")


def _lines(message: descriptor_pb2.DescriptorProto, indent: str) -> Iterator[str]:
    yield f"{indent}message {message.name} {{"
    entries = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    for nested in message.nested_type:
        if nested.name not in entries:
            yield from _lines(nested, indent + "  ")
    for field in message.field:
        entry = entries.get(field.type_name.rpartition(".")[2])
        if entry is not None:
            word = f"map<{_word(entry.field[0])}, {_word(entry.field[1])}>"
        else:
            word = {True: "repeated ", False: "optional " if field.proto3_optional else ""}[
                field.label == _F.LABEL_REPEATED
            ] + _word(field)
        yield f"{indent}  {word} {field.name} = {field.number};"
    yield f"{indent}}}"


def _word(field: descriptor_pb2.FieldDescriptorProto) -> str:
    if field.type == _F.TYPE_MESSAGE:
        return field.type_name.removeprefix(".") if field.type_name == f".{TIMESTAMP}" else field.type_name.rpartition(".")[2]
    return next(word for _, word, number in _SCALARS if number == field.type)


def _camel(name: str) -> str:
    found = "".join(
        part.capitalize() for part in "".join(letter if letter.isascii() and letter.isalnum() else " " for letter in name).split()
    )
    return found if found[:1].isalpha() else f"M{found}"


def _none(name: str, kind: Any) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"Protobuf has no type for a column: leave it out. column=`{name}` type=`{kind}`")
