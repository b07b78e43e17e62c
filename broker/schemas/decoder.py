"""Messages in a schema registry's frame as JSON, for people who look at them.

Values that JSON has not become text: bytes as Latin-1, as Avro's own JSON has them; times in ISO 8601. A message that does not fit
its schema stays as it is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from google.protobuf import json_format, message_factory
from google.protobuf.message import DecodeError

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.schemas.avro_names import named_types
from headgate.broker.schemas.protobuf_files import messages_of
from headgate.broker.schemas.registry import TYPES, Registry, Schema

MAGIC = b"\0"
HEAD_BYTES = 5
SCHEMAS_MAX = 1000
"""Schemas in memory; a topic has a few."""
ITEMS_MAX = 1_000_000
"""Values of one message: items of some types take no bytes, so a few bytes may claim any number of them."""
DEPTH_MAX = 64
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Reader = Callable[[bytes], Any]
"""The value of a message, as JSON has it. Raises one of `_MISFITS` for bytes that do not fit."""
_MISFITS = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, struct.error, DecodeError,
    json_format.Error,
)  # fmt: skip
"""What parsers raise for a text that is no schema, and for bytes that are no message of theirs."""


class Decoder:
    """Decodes messages of a registry's schemas, which it fetches once each."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._reader = lru_cache(SCHEMAS_MAX)(self._new_reader)

    @classmethod
    def of(cls, url: str) -> Decoder:
        """The decoder of a registry with this URL. Raises InvalidError for another text."""
        return cls(Registry(url))

    def text(self, message: bytes | None) -> bytes | None:
        """The message as JSON; the message itself if it has no frame, or does not fit its schema.

        Raises RetryError, FatalError of the registry.
        """
        if message is None or len(message) < HEAD_BYTES or message[:1] != MAGIC:
            return message
        read = self._reader(int.from_bytes(message[1:HEAD_BYTES], "big"))
        if read is None:
            return message
        try:
            return json.dumps(read(message[HEAD_BYTES:]), ensure_ascii=False, separators=(",", ":")).encode()
        except _MISFITS:
            return message

    def shown(self, message: bytes | None) -> str | None:
        """The message as the text of its JSON, any other text as it is, and None for other bytes. Raises as `text`."""
        found = self.text(message)
        try:
            return None if found is None else found.decode()
        except UnicodeDecodeError:
            return None

    def _new_reader(self, number: int) -> Reader | None:
        """None without such a schema."""
        try:
            schema = self._registry.by_id(number)
        except InvalidError as error:
            if error.reason in (Reason.NOT_FOUND, Reason.UNSUPPORTED, Reason.INVALID_REQUEST):
                return None
            raise
        try:
            return {TYPES["avro"]: _avro, TYPES["protobuf"]: _protobuf}.get(schema.type, _json)(schema)
        except _MISFITS:
            return None


def _json(_: Schema) -> Reader:
    return json.loads


# -- Protobuf


def _protobuf(schema: Schema) -> Reader:
    messages = messages_of(schema.text, schema.references)

    def read(data: bytes) -> Any:
        cursor = _Cursor(data)
        indexes = [cursor.long() for _ in range(cursor.items(cursor.long()))] or [0]
        message = messages[indexes[0]]
        for index in indexes[1:]:
            message = message.nested_types[index]
        found = message_factory.GetMessageClass(message).FromString(data[cursor.at :])
        return json_format.MessageToDict(found, preserving_proto_field_name=True)

    return read


# -- Avro


class _Cursor:
    """A place in a message."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at, self._left = data, 0, ITEMS_MAX

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._data):
            raise ValueError("the message ends early")
        found = self._data[self.at : self.at + size]
        self.at += size
        return found

    def long(self) -> int:
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a varint is too long")

    def items(self, count: int) -> int:
        """So many items follow. Raises ValueError if a message has too many."""
        self._left -= count
        if count < 0 or self._left < 0:
            raise ValueError("too many items")
        return count

    def block(self) -> int:
        """The number of items of the next block; 0 at the end."""
        count = self.long()
        if count < 0:
            count = -count
            self.long()  # bytes of the block
        return self.items(count)


def _avro(schema: Schema) -> Reader:
    parsed = json.loads(schema.text)
    named = named_types([*(json.loads(text) for _, text in schema.references), parsed])

    def read(data: bytes) -> Any:
        cursor = _Cursor(data)
        found = _value(parsed, named, cursor, 0)
        if cursor.at < len(data):
            raise ValueError("bytes are left")
        return found

    return read


def _value(schema: Any, named: Mapping[str, Any], cursor: _Cursor, depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise ValueError("the message is too deep")
    if isinstance(schema, str) and schema in named:
        schema = named[schema]
    if isinstance(schema, list):
        return _value(schema[cursor.long()], named, cursor, depth + 1)
    kind, logical = (schema, "") if isinstance(schema, str) else (schema["type"], schema.get("logicalType", ""))
    if not isinstance(kind, str):
        return _value(kind, named, cursor, depth + 1)
    if kind == "record":
        return {field["name"]: _value(field["type"], named, cursor, depth + 1) for field in schema["fields"]}
    if kind in ("array", "map"):
        pairs: dict[str, Any] = {}
        items: list[Any] = []
        while count := cursor.block():
            for _ in range(count):
                if kind == "map":
                    name = cursor.take(cursor.long()).decode()
                    pairs[name] = _value(schema["values"], named, cursor, depth + 1)
                else:
                    items.append(_value(schema["items"], named, cursor, depth + 1))
        return pairs if kind == "map" else items
    if kind == "enum":
        return schema["symbols"][cursor.long()]
    return _formed(_READ[kind](cursor) if kind != "fixed" else cursor.take(schema["size"]), logical, schema)


_READ: dict[str, Callable[[_Cursor], Any]] = {
    "null": lambda _: None,
    "boolean": lambda cursor: cursor.take(1) != b"\0",
    "int": _Cursor.long,
    "long": _Cursor.long,
    "float": lambda cursor: struct.unpack("<f", cursor.take(4))[0],
    "double": lambda cursor: struct.unpack("<d", cursor.take(8))[0],
    "bytes": lambda cursor: cursor.take(cursor.long()),
    "string": lambda cursor: cursor.take(cursor.long()).decode(),
}


def _formed(value: Any, logical: str, schema: Any) -> Any:
    """A value without parts as JSON has it."""
    if logical == "decimal":
        return str(Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-schema.get("scale", 0)))
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if logical == "date":
        return str(date(1970, 1, 1) + timedelta(days=value))
    unit = {"millis": "milliseconds", "micros": "microseconds"}.get(logical.rpartition("-")[2])
    if unit is not None and "timestamp" in logical:
        text = (EPOCH + timedelta(**{unit: value})).isoformat(timespec=unit)
        return text.removesuffix("+00:00") + ("" if logical.startswith("local") else "Z")
    return value
