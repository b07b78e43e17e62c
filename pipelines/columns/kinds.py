"""Spark's types by their names (*kinds*), the Arrow types that are equal to them, and columns of files in these."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.pipelines.iceberg_columns import is_uuid

arrow: Any = pa

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = "headers"
"""The kind of an expression that makes headers. Spark has no type of this name."""
HEADERS_TYPE = arrow.list_(arrow.struct([("key", pa.string()), ("value", pa.binary())]))
KINDS: dict[str, Any] = {
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    HEADERS: HEADERS_TYPE,
    "integer": pa.int32(),
    "long": pa.int64(),
    "short": pa.int16(),
    "string": pa.string(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
"""Spark's types with an equal Arrow type, but for decimals and nested ones: `arrow_type` knows them too."""
INTEGERS = ("byte", "short", "integer", "long")
FLOATS = frozenset(("double", "float"))
"""Java compares and sorts them in another way than Arrow (NaN equals itself, -0.0 equals 0.0), so here they are only printed."""
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_PLAIN_OF = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
DEPTH_MAX = 32
"""Levels of a nested type: each one costs frames of the stack."""
_PARTS = {"array": ("element",), "map": ("key", "value")}
_NESTED = (*_PARTS, "struct")
UUID_CHARS = 36
_HEX = np.frombuffer(b"".join(b"%02x" % number for number in range(256)), np.uint8).reshape(256, 2)
_AT = [place for place in range(UUID_CHARS) if place not in (8, 13, 18, 23)]
"""Places of the hexadecimal digits in the text of a UUID."""


def kind_of(type: Any) -> str:
    """The kind of one of Spark's types, as its JSON has it. A nested kind is its shape, and (name, kind) of what it has inside."""
    if isinstance(type, str):
        return type
    shape = type["type"]
    if shape == "struct":
        inside = [(field["name"], kind_of(field["type"])) for field in type["fields"]]
    else:
        inside = [(part, kind_of(type[f"{part}Type"])) for part in _PARTS.get(shape, ())]
    return nested_kind(shape, inside)


def nested_kind(shape: str, inside: Iterable[tuple[str, str]]) -> str:
    """The kind of a nested type. `inside`: as of `fields_of`."""
    return _kind(shape, [(name, _tree(kind)) for name, kind in inside])


def _kind(shape: str, inside: Any) -> str:
    return f"{shape} {json.dumps(inside)}"


def _tree(kind: str) -> Any:
    """A kind within another one. No text of JSON stands within another: its escapes would double with each level."""
    shape = shape_of(kind)
    return {shape: json.loads(kind[len(shape) :])} if shape else kind


def shape_of(kind: str) -> str:
    """The shape of a nested kind, ``array``, ``map`` or ``struct``; empty for another one."""
    shape, space, _ = kind.partition(" ")
    return shape if space and shape in _NESTED else ""


def fields_of(kind: str) -> list[tuple[str, str]]:
    """(name, kind) of what a nested kind has inside: the fields of a struct, the elements of an array, keys and values of a map.
    Empty for another kind."""
    inside = json.loads(kind.partition(" ")[2]) if shape_of(kind) else []
    return [(name, kind if isinstance(kind, str) else _kind(*next(iter(kind.items())))) for name, kind in inside]


def parts_of_arrow(type: Any) -> tuple[str, list[tuple[str, Any]]]:
    """The shape of a nested Arrow type, and (name, type) of what it has inside, both as the kinds have them; an empty shape for a
    plain type."""
    types: Any = pa.types
    if types.is_struct(type):
        return "struct", [(field.name, field.type) for field in type]
    if types.is_map(type):
        return "map", [("key", type.key_type), ("value", type.item_type)]
    if types.is_list(type) or types.is_large_list(type):
        return "array", [("element", type.value_type)]
    return "", []


def kind_of_arrow(type: Any) -> str | None:
    """The kind whose Arrow type this one is; None if there is none."""
    shape, inside = parts_of_arrow(type)
    if shape:
        found = [(name, kind) for name, one in inside if (kind := kind_of_arrow(one)) is not None]
        return nested_kind(shape, found) if len(found) == len(inside) else None
    if pa.types.is_decimal128(type):
        return f"decimal({type.precision},{type.scale})"
    plain = pa.binary() if pa.types.is_fixed_size_binary(type) else _PLAIN_OF.get(type, type)
    return next((kind for kind, known in KINDS.items() if known == plain and kind != HEADERS), None)


@lru_cache(maxsize=1024)
def arrow_type(kind: str) -> Any:
    """The Arrow type of one of Spark's types. None: it has no equal one."""
    return _arrow_type(kind, DEPTH_MAX)


def _arrow_type(kind: str, depth: int) -> Any:
    decimal = DECIMAL.fullmatch(kind)
    if decimal:
        return pa.decimal128(int(decimal.group(1)), int(decimal.group(2)))
    shape = shape_of(kind)
    if not shape:
        return KINDS.get(kind)
    inside = [(name, _arrow_type(one, depth - 1)) for name, one in fields_of(kind)] if depth else []
    if not inside or None in [kind for _, kind in inside] or len({name.lower() for name, _ in inside}) < len(inside):
        return None
    if shape == "struct":
        return arrow.struct(inside)
    types = [kind for _, kind in inside]
    return pa.list_(types[0]) if shape == "array" else arrow.map_(*types)


def of_kind(column: Any, kind: str) -> Any:
    """The column in the Arrow type of Spark's, UUIDs as text. A column that has no such type keeps its own: the expressions read
    pairs of headers by their fields."""
    wanted = arrow_type(kind)
    if wanted is None or column.type == wanted:
        return column
    return (_uuid_texts(column) if is_uuid(column.type) else column).cast(wanted)


def _uuid_texts(column: Any) -> Any:
    stored = column.storage
    content = b"".join(value or bytes(16) for value in stored.to_pylist()) if stored.null_count else bytes(stored.buffers()[1])
    begin = 0 if stored.null_count else stored.offset * 16
    numbers = np.frombuffer(content, np.uint8, len(stored) * 16, begin)
    text = np.full((len(stored), UUID_CHARS), ord("-"), np.uint8)
    text[:, _AT] = _HEX[numbers].reshape(len(stored), 32)
    places = np.arange(0, (len(stored) + 1) * UUID_CHARS, UUID_CHARS, dtype=np.int32)
    texts = arrow.StringArray.from_buffers(len(stored), arrow.py_buffer(places), arrow.py_buffer(text))
    if not stored.null_count:
        return texts
    return arrow.compute.if_else(stored.is_valid(), texts, None)
