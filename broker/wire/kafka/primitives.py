"""The primitive types of the Kafka protocol, with which the generated messages read and write.

A reader is `(buf, pos) -> (value, new pos)`. The messages themselves read fixed-width fields with `struct`, which raises
`struct.error` at the end of the buffer; indexing raises `IndexError` there. A message's `decode` turns these errors
(`PARSE_ERRORS`) into `DecodeError`, the only error for any invalid bytes. Every reader of a length checks the length here before
it allocates.

"compact" is KIP-482's encoding: an unsigned varint of length + 1, where 0 is null. The older one is an int16 (strings) or int32
(bytes, arrays), where -1 is null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import TypeAlias, TypeVar
from uuid import UUID

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.steps import Steps

Buffer: TypeAlias = bytes | memoryview

ZERO_UUID = UUID(int=0)
"""Kafka's null id."""

PARSE_ERRORS = (struct.error, IndexError, UnicodeDecodeError)

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
ARRAY_ELEMENTS_MAX = 1_000_000
"""Elements of one array, as in Kafka 4.4."""
REQUEST_ELEMENTS_MAX = 100_000
"""Elements of all arrays of one request: by default a broker has no more partitions in total (`partitions_max`). An element
costs up to ten microseconds until it is answered, which the loop spends in slices (`runtime/turns.py`). So the limit bounds the
CPU time of one request to about a second. It bounds work that cannot be cut into slices, like freeing memory, to some
milliseconds."""
STEP_ELEMENTS = 250
"""Elements that a reader or writer handles between two yields, and the most for which it allocates before it has read them. One
step takes less than a millisecond. Kafka 4.4 allocates for at most 1,000."""
TAGS_MAX = 32
"""Tagged fields in one section. No Kafka schema has more than five. Kafka 4.4 accepts 10,000; a step of 250 elements with that
many each would take a second."""
_STRING_BYTES_MAX = 0x7FFF
_UVARINT_MAX = 0xFFFF_FFFF
_UVARINT_SHIFT_MAX = 28

_T = TypeVar("_T")


class DecodeError(InvalidError):
    """The peer's bytes are not the claimed message. The connection cannot be trusted any further."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.INVALID_REQUEST, message)


# -- requirements of the generated code for its caller and the peer


def check_version(message: str, version: int, lowest: int, highest: int) -> None:
    """Raise ValueError, a programmer error, for a version that the message does not have."""
    if not lowest <= version <= highest:
        raise ValueError(f"message has no such version. message=`{message}` version=`{version}`")


def unsupported(message: str, field: str, version: int) -> ValueError:
    """The ValueError, a programmer error, for a `field` with a value that the version cannot carry and must not drop."""
    return ValueError(f"field cannot be sent in this version. message=`{message}` field=`{field}` version=`{version}`")


def malformed(message: str, version: int, error: Exception) -> DecodeError:
    """The DecodeError for one of PARSE_ERRORS."""
    what = "string is not UTF-8" if isinstance(error, UnicodeDecodeError) else "message ends too early"
    return DecodeError(f"{what}. message=`{message}` version=`{version}`")


def wrong_tag_size(tag: int, size: int, read: int) -> DecodeError:
    return DecodeError(f"tagged field has another length than its value. tag=`{tag}` length=`{size}` read=`{read}`")


def present(value: _T | None) -> _T:
    """The value of a field that may be null in other versions only. Raises ValueError, a programmer error."""
    if value is None:
        raise ValueError("null cannot be sent in this version")
    return value


# -- reading


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned 32-bit varint, of at most five bytes."""
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > _UVARINT_SHIFT_MAX:
            raise DecodeError("varint is longer than five bytes")
    if value > _UVARINT_MAX:
        raise DecodeError(f"varint is out of range. value=`{value}`")
    return value, pos


def _slice(buf: Buffer, pos: int, length: int) -> tuple[Buffer, int]:
    end = pos + length
    if length < 0:
        raise DecodeError("field that may not be null is null")
    if end > len(buf):
        raise DecodeError(f"length is beyond the end of the message. length=`{length}` left=`{len(buf) - pos}`")
    return buf[pos:end], end


def read_string(buf: Buffer, pos: int) -> tuple[str, int]:
    data, pos = _slice(buf, pos + 2, _I16.unpack_from(buf, pos)[0])
    return str(data, "utf-8"), pos


def read_compact_string(buf: Buffer, pos: int) -> tuple[str, int]:
    length, pos = read_uvarint(buf, pos)
    data, pos = _slice(buf, pos, length - 1)
    return str(data, "utf-8"), pos


def read_nullable_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    length = _I16.unpack_from(buf, pos)[0]
    if length < 0:
        return None, pos + 2
    data, pos = _slice(buf, pos + 2, length)
    return str(data, "utf-8"), pos


def read_compact_nullable_string(buf: Buffer, pos: int) -> tuple[str | None, int]:
    length, pos = read_uvarint(buf, pos)
    if length == 0:
        return None, pos
    data, pos = _slice(buf, pos, length - 1)
    return str(data, "utf-8"), pos


def read_bytes(buf: Buffer, pos: int) -> tuple[bytes, int]:
    """A copy, so that an object that keeps it does not keep the whole request."""
    data, pos = _slice(buf, pos + 4, _I32.unpack_from(buf, pos)[0])
    return bytes(data), pos


def read_compact_bytes(buf: Buffer, pos: int) -> tuple[bytes, int]:
    length, pos = read_uvarint(buf, pos)
    data, pos = _slice(buf, pos, length - 1)
    return bytes(data), pos


def read_nullable_bytes(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
    records, pos = read_nullable_records(buf, pos)
    return None if records is None else bytes(records), pos


def read_compact_nullable_bytes(buf: Buffer, pos: int) -> tuple[bytes | None, int]:
    records, pos = read_compact_nullable_records(buf, pos)
    return None if records is None else bytes(records), pos


def read_nullable_records(buf: Buffer, pos: int) -> tuple[Buffer | None, int]:
    """A slice of `buf`; no copy if `buf` is a memoryview."""
    length = _I32.unpack_from(buf, pos)[0]
    if length < 0:
        return None, pos + 4
    return _slice(buf, pos + 4, length)


def read_compact_nullable_records(buf: Buffer, pos: int) -> tuple[Buffer | None, int]:
    """A slice of `buf`; no copy if `buf` is a memoryview."""
    length, pos = read_uvarint(buf, pos)
    if length == 0:
        return None, pos
    return _slice(buf, pos, length - 1)


def read_uuid(buf: Buffer, pos: int) -> tuple[UUID, int]:
    data, pos = _slice(buf, pos, 16)
    return UUID(bytes=bytes(data)), pos


def _check_count(buf: Buffer, pos: int, count: int, size_min: int) -> None:
    if count * size_min > len(buf) - pos:
        raise DecodeError(f"array has more elements than the message has room for. count=`{count}` left=`{len(buf) - pos}`")
    if count > ARRAY_ELEMENTS_MAX:
        raise DecodeError(f"array has too many elements. count=`{count}` max=`{ARRAY_ELEMENTS_MAX}`")


def read_count(buf: Buffer, pos: int, size_min: int) -> tuple[int, int]:
    """The number of elements of an array; each has at least `size_min` (>= 1) bytes."""
    count = _I32.unpack_from(buf, pos)[0]
    if count < 0:
        raise DecodeError("array that may not be null is null")
    _check_count(buf, pos + 4, count, size_min)
    return count, pos + 4


def read_nullable_count(buf: Buffer, pos: int, size_min: int) -> tuple[int, int]:
    """The number of elements of a nullable array, read like `read_count`; -1 is null."""
    count = _I32.unpack_from(buf, pos)[0]
    _check_count(buf, pos + 4, count, size_min)
    return max(count, -1), pos + 4


def read_compact_count(buf: Buffer, pos: int, size_min: int) -> tuple[int, int]:
    """The number of elements of a compact array, read like `read_count`."""
    count, pos = read_uvarint(buf, pos)
    if count == 0:
        raise DecodeError("array that may not be null is null")
    _check_count(buf, pos, count - 1, size_min)
    return count - 1, pos


def read_compact_nullable_count(buf: Buffer, pos: int, size_min: int) -> tuple[int, int]:
    """The number of elements of a nullable compact array, read like `read_count`; -1 is null."""
    count, pos = read_uvarint(buf, pos)
    _check_count(buf, pos, count - 1, size_min)
    return count - 1, pos


def steps(length: int) -> Iterator[int]:
    """The elements of an array in steps: yields the number of elements of each step. `length` -1 is null and has none."""
    while length > STEP_ELEMENTS:
        yield STEP_ELEMENTS
        length -= STEP_ELEMENTS
    if length > 0:
        yield length


def bounded(steps: Steps[_T]) -> Steps[_T]:
    """The steps of an array within a request, for at most REQUEST_ELEMENTS_MAX elements. Raises DecodeError above."""
    elements = 0
    while True:
        try:
            elements += next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result
        if elements > REQUEST_ELEMENTS_MAX:
            raise DecodeError(f"request has too many elements. elements=`{elements}` max=`{REQUEST_ELEMENTS_MAX}`")
        yield 0


_ARRAYS: dict[type, tuple[str, ...]] = {}


def _arrays(kind: type) -> tuple[str, ...]:
    """The fields of a generated message, or of a part of one, that are arrays."""
    found = _ARRAYS.get(kind)
    if found is None:
        named = fields(kind) if is_dataclass(kind) else ()
        found = _ARRAYS[kind] = tuple(member.name for member in named if str(member.type).startswith("list["))
    return found


def dispose(message: object) -> Steps[None]:
    """Take a message apart in steps. Freeing a hundred thousand objects at once takes tens of milliseconds."""
    for name in _arrays(type(message)):
        items = getattr(message, name) or []
        while items:
            some = items[-STEP_ELEMENTS:]
            del items[-STEP_ELEMENTS:]
            yield len(some)
            if _arrays(type(some[0])):
                for one in some:
                    yield from dispose(one)


def read_int32s(buf: Buffer, pos: int, count: int) -> tuple[list[int], int]:
    return list(struct.unpack_from(f">{count}i", buf, pos)), pos + 4 * count


def read_int64s(buf: Buffer, pos: int, count: int) -> tuple[list[int], int]:
    return list(struct.unpack_from(f">{count}q", buf, pos)), pos + 8 * count


def read_tag(buf: Buffer, pos: int) -> tuple[int, int, int]:
    """The head of a tagged field: its tag, the length of its value (which lies within `buf`), and the value's position."""
    tag, pos = read_uvarint(buf, pos)
    size, pos = read_uvarint(buf, pos)
    if size > len(buf) - pos:
        raise DecodeError(f"tagged field is beyond the end of the message. tag=`{tag}` length=`{size}` left=`{len(buf) - pos}`")
    return tag, size, pos


def read_tag_count(buf: Buffer, pos: int) -> tuple[int, int]:
    """The number of tagged fields in a section."""
    count, pos = read_uvarint(buf, pos)
    if count > TAGS_MAX:
        raise DecodeError(f"message has too many tagged fields in one place. fields=`{count}` max=`{TAGS_MAX}`")
    return count, pos


def skip_tags(buf: Buffer, pos: int) -> int:
    """The position behind a section of tagged fields if no tag is known."""
    if buf[pos] == 0:
        return pos + 1
    count, pos = read_tag_count(buf, pos)
    for _ in range(count):
        _, size, pos = read_tag(buf, pos)
        pos += size
    return pos


# -- writing


def write_uvarint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _encode(value: str) -> bytes:
    data = value.encode()
    if len(data) > _STRING_BYTES_MAX:  # Java clients refuse longer strings in the compact encoding, too
        raise ValueError(f"string is too long. length=`{len(data)}` max=`{_STRING_BYTES_MAX}`")
    return data


def write_string(out: bytearray, value: str) -> None:
    data = _encode(value)
    out += _I16.pack(len(data))
    out += data


def write_compact_string(out: bytearray, value: str) -> None:
    data = _encode(value)
    write_uvarint(out, len(data) + 1)
    out += data


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        write_string(out, value)


def write_compact_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(out, value)


def write_bytes(out: bytearray, value: Buffer) -> None:
    out += _I32.pack(len(value))
    out += value


def write_compact_bytes(out: bytearray, value: Buffer) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def write_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        write_bytes(out, value)


def write_compact_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_bytes(out, value)


def write_count(out: bytearray, count: int) -> None:
    """The head of an array of `count` elements; -1 is null."""
    out += _I32.pack(count)


def write_compact_count(out: bytearray, count: int) -> None:
    """The head of an array of `count` elements; -1 is null."""
    write_uvarint(out, count + 1)


def portions(items: list[_T]) -> Iterator[list[_T]]:
    """The elements of an array in the portions of single steps."""
    if len(items) <= STEP_ELEMENTS:
        if items:
            yield items
        return
    for at in range(0, len(items), STEP_ELEMENTS):
        yield items[at : at + STEP_ELEMENTS]


def write_int32s(out: bytearray, values: list[int]) -> None:
    out += struct.pack(f">{len(values)}i", *values)


def write_int64s(out: bytearray, values: list[int]) -> None:
    out += struct.pack(f">{len(values)}q", *values)


def write_tag(out: bytearray, tag: int, value: bytearray) -> None:
    write_uvarint(out, tag)
    write_uvarint(out, len(value))
    out += value
