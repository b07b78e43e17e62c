"""Kafka's encoding of the records of internal topics: big-endian fields, and from some version on the flexible one of KIP-482."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeVar

from headgate.broker.runtime.errors import CorruptError, Reason

_STRING_BYTES_MAX = 0x7FFF
_FLEXIBLE_FROM = 4
_Choice = TypeVar("_Choice", bound=IntEnum)
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


class Reader:
    """A cursor in a key or value. Every method raises CorruptError when the bytes end too early."""

    __slots__ = ("_data", "_flexible", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._flexible = False

    def version(self, highest: int, what: str, flexible_from: int = _FLEXIBLE_FROM) -> int:
        version = self.int16()
        if not 0 <= version <= highest:
            raise corrupt(f"is {what} of an unknown version", version)
        self._flexible = version >= flexible_from
        return version

    def take(self, size: int) -> bytes:
        start = self._position
        if size < 0 or size > len(self._data) - start:
            raise corrupt("ends too early", len(self._data))
        self._position = start + size
        return self._data[start : start + size]

    def int16(self) -> int:
        value: int = _I16.unpack(self.take(2))[0]
        return value

    def int8(self) -> int:
        return self.take(1)[0]

    def int32(self) -> int:
        value: int = _I32.unpack(self.take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _I64.unpack(self.take(8))[0]
        return value

    def uvarint(self) -> int:
        result = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
        raise corrupt("has a varint that is too long", result)

    def nullable_text(self) -> str | None:
        size = self.uvarint() - 1 if self._flexible else self.int16()
        if size == -1:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as error:
            raise corrupt("has a string that is not UTF-8", size) from error

    def text(self) -> str:
        value = self.nullable_text()
        if value is None:
            raise corrupt("has null where a string must stand", self._position)
        return value

    def content(self) -> bytes:
        return self.take(self.uvarint() - 1 if self._flexible else self.int32())

    def count(self) -> int:
        """Items of an array. Each takes at least one byte, which bounds the cost of a garbled count."""
        count = self.uvarint() - 1 if self._flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._position:
            raise corrupt("states more items than it has bytes for", count)
        return count

    def nullable_count(self) -> int:
        """As `count`; 0 for null."""
        mark = self._position
        size = self.uvarint() - 1 if self._flexible else self.int32()
        if size < 0:
            return 0
        self._position = mark
        return self.count()

    def choice(self, kind: type[_Choice]) -> _Choice:
        """A number of an enumeration, one byte."""
        number = self.int8()
        try:
            return kind(number)
        except ValueError as error:
            raise corrupt(f"has an unknown {kind.__name__.lower()}", number) from error

    def tags(self) -> list[tuple[int, bytes]]:
        if not self._flexible:
            return []
        count = self.uvarint()
        if count > len(self._data) - self._position:
            raise corrupt("states more tagged fields than it has bytes for", count)
        return [(self.uvarint(), self.take(self.uvarint())) for _ in range(count)]

    def finish(self) -> None:
        if self._position != len(self._data):
            raise corrupt("has bytes after its end", len(self._data) - self._position)


def string(text: str) -> bytes:
    """Strings come from Kafka requests, which have the same limit."""
    data = text.encode()
    assert len(data) <= _STRING_BYTES_MAX, len(data)
    return _I16.pack(len(data)) + data


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def corrupt(what: str, value: int) -> CorruptError:
    """The error for a record that no coordinator wrote."""
    return CorruptError(Reason.CORRUPT_STORE, f"record of an internal topic {what}. value=`{value}`")
