"""Messages with one big `bytes` field, without a copy through protobuf: 2.6 times less CPU for a fetch of 1 MB.

Protobuf's encoding allows it: fields may come in any order, and two encoded messages behind each other are their merge. So a
message is encoded without its payload, and the payload follows as one more field. On reading, the payload is cut out before
protobuf sees the rest. The bytes are those of any other protobuf library. By convention the field has the number 15, the last
number with a tag of one byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from google.protobuf.message import Message

from headgate.broker.runtime.errors import InvalidError, Reason

Buffer: TypeAlias = bytes | bytearray | memoryview

FIELD = 15
_TAG = FIELD << 3 | 2
_VARINT_BYTES_MAX = 10
FIELDS_MAX = 1000
"""Most fields of a message with a payload, which has up to ten. Python steps over each one: millions would hold the caller."""


def join(message: Message, payload: Sequence[Buffer]) -> bytes:
    """`message`, with field 15 unset, encoded with the concatenation of `payload` as field 15."""
    size = sum(map(len, payload))
    head = message.SerializeToString()
    if size == 0:
        return head
    prefix = bytearray((_TAG,))
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return b"".join((head, prefix, *payload))


def split(data: bytes) -> tuple[bytes, memoryview]:
    """(the encoded message without field 15, the content of field 15; empty if it is not set).

    Raises InvalidError(INVALID_REQUEST) for bytes that are no message, or have more than FIELDS_MAX fields.
    """
    position, end = 0, len(data)
    payload = memoryview(b"")
    rest: list[bytes] = []
    kept = fields = 0
    while position < end:
        fields += 1
        if fields > FIELDS_MAX:
            raise _malformed("has too many fields", end)
        start = position
        tag, content = varint(data, position)
        position = field_end(data, tag, content, end)
        if tag == _TAG:
            length, content = varint(data, content)
            payload = memoryview(data)[content : content + length]
            rest.append(data[kept:start])
            kept = position
    rest.append(data[kept:])
    return b"".join(rest), payload


def field_end(data: bytes, tag: int, position: int, end: int) -> int:
    """The end of a field whose content begins at `position`, within a message that ends at `end`.

    Raises InvalidError(INVALID_REQUEST).
    """
    match tag & 7:
        case 0:
            _, position = varint(data, position)
        case 1:
            position += 8
        case 5:
            position += 4
        case 2:
            length, position = varint(data, position)
            position += length
        case _:
            raise _malformed("has a field of an unknown wire type", len(data))
    if position > end:
        raise _malformed("has a field that is cut off", len(data))
    return position


def varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of variable length, and the position behind it. Raises InvalidError(INVALID_REQUEST)."""
    value = shift = 0
    for _ in range(_VARINT_BYTES_MAX):
        if position >= len(data):
            raise _malformed("has a number that is cut off", len(data))
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _malformed("has a number that is too long", len(data))


def _malformed(what: str, size_bytes: int) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"message {what}. bytes=`{size_bytes}`")
