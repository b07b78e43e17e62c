"""Avro's binary encoding of columns (https://avro.apache.org/docs/1.12.0/specification/#binary-encoding).

A schema is what JSON says. `problems` tells before any row is read whether columns fit it; `encode` makes the bytes of all rows of
some columns at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.schemas.avro_names import named_types
from headgate.pipelines.framing.bytes_of_columns import (
    arrow,
    entries,
    filled,
    fixed,
    in_lists,
    misfit,
    numbers,
    of_size,
    pc,
    sized,
    together,
    varints,
    zigzag,
)  # fmt: skip
from headgate.pipelines.names import did_you_mean

DECIMAL_BYTES = 16
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
MILLIS, MICROS = 1000, 1
_TIMES = {
    "timestamp-millis": (True, MILLIS), "timestamp-micros": (True, MICROS),
    "local-timestamp-millis": (False, MILLIS), "local-timestamp-micros": (False, MICROS),
}  # fmt: skip
"""Logical types of times: whether they have a zone, and the microseconds of one."""


class Avro:
    """A schema.

    Args:
        schema: its text.
        references: texts of schemas whose names it uses, those that others use first.

    Raises:
        InvalidError: it is no schema.
    """

    def __init__(self, schema: str, references: Sequence[str] = ()) -> None:
        try:
            self._schema = json.loads(schema)
            self._named = named_types([*map(json.loads, references), self._schema])
            self.fields = [field["name"] for field in self._of(self._schema)["fields"]] if self.is_record else []
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidError(Reason.INVALID_REQUEST, f"the registry's schema is no Avro schema: {error}") from error

    @property
    def is_record(self) -> bool:
        return isinstance(self._of(self._schema), dict) and self._of(self._schema).get("type") == "record"

    def problems(self, columns: Mapping[str, Any]) -> list[str]:
        """Why rows of these columns do not fit. `columns`: Arrow's types by name; of a schema that is no record, one column."""
        if not self.is_record:
            ((name, kind),) = columns.items()
            return list(self._misfits(self._schema, kind, name))
        return list(self._misfits(self._schema, arrow.struct(list(columns.items())), ""))

    def encode(self, columns: Mapping[str, Any]) -> Any:
        """The bytes of each row. Raises InvalidError for a row that does not fit."""
        if not self.is_record:
            ((name, column),) = columns.items()
            return self._encode(self._schema, column, name)
        return self._record(self._of(self._schema), columns, "")

    def _of(self, schema: Any) -> Any:
        """The schema that a name stands for, without wrappers."""
        if isinstance(schema, str) and schema not in PRIMITIVES:
            if schema not in self._named:
                raise InvalidError(
                    Reason.INVALID_REQUEST, f"the registry's schema uses a type that nothing defines. type=`{schema}`"
                )
            return self._named[schema]
        if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            return self._of(schema["type"])
        return schema

    # -- whether columns fit

    def _misfits(self, schema: Any, kind: Any, field: str) -> Iterator[str]:
        schema = self._of(schema)
        if isinstance(schema, list):
            branch = self._branch(schema, kind, field)
            if branch is None:
                yield misfit(field, f"a column of {kind} fits none of {_words(schema)}")
            return
        name, logical = _type_of(schema)
        if name == "record":
            yield from self._record_misfits(schema, kind, field)
        elif name == "array":
            if not pa.types.is_list(kind):
                yield misfit(field, f"a list is wanted, the column is of {kind}")
            else:
                yield from self._misfits(schema["items"], kind.value_type, f"{field}[]")
        elif name == "map":
            if not pa.types.is_map(kind) or not pa.types.is_string(kind.key_type):
                yield misfit(field, f"a map with texts as keys is wanted, the column is of {kind}")
            else:
                yield from self._misfits(schema["values"], kind.item_type, f"{field}[]")
        elif not _fits(schema, name, logical, kind):
            yield misfit(field, f"{_words(schema)} is wanted, the column is of {kind}{_hint(kind)}")

    def _record_misfits(self, schema: Any, kind: Any, field: str) -> Iterator[str]:
        if not pa.types.is_struct(kind):
            yield misfit(field, f"a struct is wanted, the column is of {kind}")
            return
        inside = {field.name: field.type for field in kind}
        for one in schema["fields"]:
            path = f"{field}.{one['name']}" if field else one["name"]
            if one["name"] in inside:
                yield from self._misfits(one["type"], inside[one["name"]], path)
            elif "default" not in one:
                yield misfit(
                    path, f"the source has no such column, and the schema no default for it{did_you_mean(one['name'], inside)}"
                )

    def _branch(self, union: list[Any], kind: Any, field: str) -> int | None:
        """The first branch of a union whose values a column has."""
        for number, branch in enumerate(union):
            if branch != "null" and not list(self._misfits(branch, kind, field)):
                return number
        return None

    # -- bytes

    def _encode(self, schema: Any, column: Any, field: str) -> Any:
        schema = self._of(schema)
        if isinstance(schema, list):
            return self._union(schema, column, field)
        name, logical = _type_of(schema)
        if column.null_count:
            raise InvalidError(Reason.INVALID_RECORD, misfit(field, "a value is missing, and the schema wants one"))
        if name == "record":
            parts = {field.name: part for field, part in zip(column.type, column.flatten(), strict=True)}
            return self._record(schema, parts, field)
        if name == "array":
            items = self._encode(schema["items"], column.flatten(), f"{field}[]")
            return _blocks(column, items)
        if name == "map":
            lists, keys, values = entries(column)
            items = together([sized(filled(keys, b""), signed=True), self._encode(schema["values"], values, f"{field}[]")])
            return _blocks(lists, items)
        return _primitive(schema, name, logical, column, field)

    def _record(self, schema: Any, columns: Mapping[str, Any], field: str) -> Any:
        rows = len(next(iter(columns.values())))
        parts = []
        for one in schema["fields"]:
            path = f"{field}.{one['name']}" if field else one["name"]
            if one["name"] in columns:
                parts.append(self._encode(one["type"], columns[one["name"]], path))
            else:
                parts.append(arrow.scalar(self._default(one["type"], one["default"], path), pa.binary()))
        if all(isinstance(part, pa.Scalar) for part in parts):
            return pa.array([b"".join(part.as_py() for part in parts)] * rows, pa.binary())
        return together(parts)

    def _union(self, union: list[Any], column: Any, field: str) -> Any:
        branch = self._branch(union, column.type, field)
        assert branch is not None, "the columns fit"
        missing = pc.is_null(column)
        if column.null_count and "null" not in union:
            raise InvalidError(Reason.INVALID_RECORD, misfit(field, "a value is missing, and the schema wants one"))
        if not column.null_count:
            return together([arrow.scalar(_number(branch), pa.binary()), self._encode(union[branch], column, field)])
        there = column.drop_null()
        found = together([arrow.scalar(_number(branch), pa.binary()), self._encode(union[branch], there, field)])
        places = np.cumsum(~np.asarray(missing)) - 1
        spread = (
            found.take(pa.array(np.maximum(places, 0))) if len(found) else arrow.repeat(arrow.scalar(b"", pa.binary()), len(column))
        )
        return pc.if_else(missing, arrow.scalar(_number(union.index("null")), pa.binary()), spread)

    def _default(self, schema: Any, value: Any, field: str) -> bytes:
        """The bytes of a field's default."""
        schema = self._of(schema)
        if isinstance(schema, list):
            # A default is of the first branch, by the specification.
            return _number(0) + self._default(schema[0], value, field)
        name, _ = _type_of(schema)
        if name == "null":
            return b""
        if name in ("array", "map") and not value:
            return b"\0"
        if name == "record":
            return b"".join(
                self._default(one["type"], value.get(one["name"], one.get("default")), f"{field}.{one['name']}")
                for one in schema["fields"]
            )
        kinds: dict[str, Any] = {
            "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
            "string": pa.string(), "enum": pa.string(), "bytes": pa.binary(), "fixed": pa.binary(),
        }  # fmt: skip
        if name not in kinds:
            raise InvalidError(Reason.UNSUPPORTED, misfit(field, "the default of a list or map with values is not made"))
        if name in ("bytes", "fixed"):
            value = value.encode("latin-1")
        found = _primitive(schema, name, "", arrow.array([value], kinds[name]), field)
        return bytes(found[0].as_py())


@lru_cache(16)
def avro(schema: str, references: tuple[str, ...] = ()) -> Avro:
    """The schema, parsed once in each process. Raises as `Avro`."""
    return Avro(schema, references)


def _type_of(schema: Any) -> tuple[str, str]:
    """(type, logical type) of a schema that is no union."""
    return (schema, "") if isinstance(schema, str) else (schema["type"], schema.get("logicalType", ""))


def _words(schema: Any) -> str:
    if isinstance(schema, list):
        return ", ".join(map(_words, schema))
    name, logical = _type_of(schema)
    return f"{name} ({logical})" if logical else name


def _hint(kind: Any) -> str:
    return ": a time needs the logical type timestamp-micros or timestamp-millis" if pa.types.is_timestamp(kind) else ""


def _fits(schema: Any, name: str, logical: str, kind: Any) -> bool:
    types = pa.types
    if logical in _TIMES and name == "long":
        return bool(types.is_timestamp(kind) and (kind.tz is not None) is _TIMES[logical][0])
    if logical == "date" and name == "int":
        return bool(types.is_date32(kind))
    if logical == "decimal" and name in ("bytes", "fixed"):
        is_same = types.is_decimal128(kind) and kind.scale == schema.get("scale", 0) and kind.precision <= schema["precision"]
        return bool(is_same and (name == "bytes" or schema["size"] <= DECIMAL_BYTES))
    if name in ("int", "long"):
        return bool(types.is_signed_integer(kind) and kind.bit_width <= (32 if name == "int" else 64))
    if name == "double":
        return bool(types.is_floating(kind) or (types.is_signed_integer(kind) and kind.bit_width <= 32))
    return bool(_KINDS[name](kind))


_KINDS: dict[str, Any] = {
    "boolean": pa.types.is_boolean, "string": pa.types.is_string, "enum": pa.types.is_string, "bytes": pa.types.is_binary,
    "fixed": pa.types.is_binary, "float": pa.types.is_float32, "null": pa.types.is_null,
}  # fmt: skip


def _primitive(schema: Any, name: str, logical: str, column: Any, field: str) -> Any:
    """The bytes of values without parts, none of them null."""
    if logical in _TIMES:
        return zigzag(numbers(column) // _TIMES[logical][1])
    if logical == "decimal":
        return _decimals(column, schema["size"] if name == "fixed" else None, field)
    if name in ("int", "long"):
        return zigzag(numbers(column))
    if name == "boolean":
        return of_size(np.asarray(column.cast(pa.uint8())).reshape(-1, 1))
    if name in ("float", "double"):
        return fixed(np.asarray(column.cast(pa.float32() if name == "float" else pa.float64())))
    if name in ("string", "bytes"):
        return sized(filled(column, b""), signed=True)
    if name == "null":
        return pa.array([b""] * len(column), pa.binary())
    if name == "enum":
        places = pc.index_in(column, value_set=pa.array(schema["symbols"], pa.string()))
        if places.null_count:
            wrong = column.filter(places.is_null())[0].as_py()
            raise InvalidError(Reason.INVALID_RECORD, misfit(field, f"the schema has no such symbol: {wrong[:100]}"))
        return zigzag(np.asarray(places))
    assert name == "fixed", "the columns fit"
    lengths = np.asarray(pc.binary_length(column))
    if (lengths != schema["size"]).any():
        wrong = int(lengths[lengths != schema["size"]][0])
        raise InvalidError(Reason.INVALID_RECORD, misfit(field, f"a value has {wrong} bytes, the schema wants {schema['size']}"))
    return filled(column, b"")


def _decimals(column: Any, size: int | None, field: str) -> Any:
    """Unscaled values as big-endian two's complement, of this size; None: as short as can be, with their length before them."""
    data = np.frombuffer(column.buffers()[1], np.uint8)[: DECIMAL_BYTES * (column.offset + len(column))]
    rows = data.reshape(-1, DECIMAL_BYTES)[column.offset :, ::-1]
    sign = np.where(rows[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    # A byte can go if it is the sign alone, and the byte behind it has the same sign.
    spare = (rows[:, :-1] == sign) & ((rows[:, 1:] & 0x80) == (sign & 0x80))
    drop = np.cumprod(spare, axis=1).sum(axis=1)
    if size is not None:
        if (DECIMAL_BYTES - drop > size).any():
            raise InvalidError(Reason.INVALID_RECORD, misfit(field, f"a number needs more than {size} bytes"))
        return of_size(np.ascontiguousarray(rows[:, DECIMAL_BYTES - size :]))
    lengths = (DECIMAL_BYTES - drop).astype(np.int32)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    kept = np.arange(DECIMAL_BYTES) >= drop[:, None]
    content = arrow.Array.from_buffers(pa.binary(), len(rows), [None, arrow.py_buffer(offsets), arrow.py_buffer(rows[kept])])
    return sized(content, signed=True)


def _blocks(lists: Any, items: Any) -> Any:
    """Lists as one block each, and the end."""
    counts = np.asarray(lists.value_lengths().fill_null(0))
    joined = together([zigzag(counts), in_lists(lists, items), arrow.scalar(b"\0", pa.binary())])
    return pc.if_else(pa.array(counts == 0), arrow.scalar(b"\0", pa.binary()), joined)


def _number(value: int) -> bytes:
    return bytes(varints(np.array([value << 1]))[0].as_py())


# -- a schema of columns


def of_column(name: str, kind: Any) -> Any:
    """The schema of one column's values, none of them missing. Raises InvalidError for a type that Avro has not."""
    return _derived(kind, name)


def derived(columns: Mapping[str, Any], name: str) -> str:
    """The schema of rows with these columns, all of which may be missing. `name`: of the record. Raises InvalidError for a type
    or a name that Avro has not."""
    return json.dumps(
        {"type": "record", "name": _name(name), "fields": [_field(name, kind, name) for name, kind in columns.items()]}
    )


def _field(name: str, kind: Any, path: str) -> dict[str, Any]:
    if not _is_name(name):
        raise InvalidError(Reason.INVALID_REQUEST, f"Avro has no such name for a field: rename the column. column=`{path}`")
    return {"name": name, "type": ["null", _derived(kind, path)], "default": None}


def _derived(kind: Any, path: str) -> Any:
    types = pa.types
    for matches, name in (
        (types.is_boolean, "boolean"), (types.is_string, "string"), (types.is_binary, "bytes"), (types.is_float32, "float"),
        (types.is_float64, "double"), (types.is_int64, "long"), (types.is_signed_integer, "int"),
    ):  # fmt: skip
        if matches(kind):
            return name
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz is not None else "local-timestamp-micros"}
    if types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_list(kind):
        return {"type": "array", "items": ["null", _derived(kind.value_type, path)]}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _derived(kind.item_type, path)]}
    if types.is_struct(kind):
        fields = [_field(field.name, field.type, f"{path}.{field.name}") for field in kind]
        return {"type": "record", "name": _name(path), "fields": fields}
    raise InvalidError(Reason.INVALID_REQUEST, f"Avro has no type for a column. column=`{path}` type=`{kind}`")


def _is_name(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _name(text: str) -> str:
    found = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in text)
    return found if _is_name(found) else f"_{found}"
