"""Decoding of messages with a bound of their elements, in steps.

An element of a list takes two bytes in a message and a hundred in memory: 60 MB of empty rows became 3 GB, and held the caller for
seconds. So the elements of all lists are counted before protobuf sees them, and a message is decoded one part after the other: two
encoded messages behind each other are their merge, so a message may be cut between any two of its fields, and so may a message in
it that is no element of a list.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.steps import Steps
from headgate.broker.wire.grpc.payload import field_end, varint

PART_BYTES = 64 << 10
"""Bytes that protobuf decodes in one step."""
STEP_FIELDS = 256
"""Fields that are counted in one step."""
_LAST_BYTES = bytes(range(0x80))
"""Bytes that end a number of a packed list."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field that has elements, or whose message has.

    `scalar_bytes`: size of one number of a packed list; 0: it varies. `name`: of a message that is no element of a list; empty: it
    is something else.
    """

    is_list: bool
    inside: dict[int, _Field]
    is_scalar: bool
    scalar_bytes: int
    name: str


def decoding(kind: type[M], data: bytes, elements_max: int) -> Steps[M]:
    """Decode a message. A generator for `Turn.run`; its result is the message.

    Raises InvalidError(INVALID_REQUEST): bytes that are no message of that type, or more elements than `elements_max`.
    """
    message = kind()
    try:
        if len(data) > elements_max:  # an element takes at least a byte
            fields = _fields(kind.DESCRIPTOR)
            yield from _counting(data, fields, elements_max)
            yield from _merging(message, data, fields)
        else:
            message.MergeFromString(data)
    except DecodeError as error:
        raise InvalidError(
            Reason.INVALID_REQUEST, f"bytes are not a message of this type. type=`{kind.DESCRIPTOR.full_name}` bytes=`{len(data)}`"
        ) from error
    return message


def _merging(message: Message, data: bytes, fields: dict[int, _Field]) -> Steps[None]:
    """Decode into a message. Each step is a part of at most `PART_BYTES`, or one element of a list."""
    start = position = steps = 0
    while position < len(data):
        steps += 1
        if not steps % STEP_FIELDS:
            yield STEP_FIELDS
        begin = position
        tag, value = varint(data, position)
        position = field_end(data, tag, value, len(data))
        field = fields.get(tag >> 3)
        if field is not None and field.name and tag & 7 == 2 and position - value > PART_BYTES:
            message.MergeFromString(data[start:begin])
            _, value = varint(data, value)
            part: Message = getattr(message, field.name)
            part.SetInParent()
            yield from _merging(part, data[value:position], field.inside)
            start = position
        elif position - start >= PART_BYTES:
            message.MergeFromString(data[start:position])
            start = position
            yield STEP_FIELDS
    message.MergeFromString(data[start:])


def _counting(data: bytes, fields: dict[int, _Field], elements_max: int) -> Steps[None]:
    """Count the elements."""
    found = steps = position = 0
    ends: list[tuple[int, dict[int, _Field]]] = [(len(data), fields)]
    while ends:
        end, fields = ends[-1]
        if position >= end:
            ends.pop()
            continue
        steps += 1
        if not steps % STEP_FIELDS:
            yield STEP_FIELDS
        tag, start = varint(data, position)
        position = field_end(data, tag, start, end)
        field = fields.get(tag >> 3)
        if field is None:
            continue
        if field.is_scalar and tag & 7 == 2:
            _, start = varint(data, start)
            found += _packed(data[start:position], field.scalar_bytes)
        else:
            found += field.is_list
            if field.inside and tag & 7 == 2:
                _, start = varint(data, start)
                ends.append((position, field.inside))
                position = start
        if found > elements_max:
            raise InvalidError(Reason.INVALID_REQUEST, f"message has too many elements. bytes=`{len(data)}` max=`{elements_max}`")


def _packed(data: bytes, scalar_bytes: int) -> int:
    """The numbers in a packed list."""
    return len(data) // scalar_bytes if scalar_bytes else len(data) - len(data.translate(None, _LAST_BYTES))


@lru_cache
def _fields(kind: Descriptor) -> dict[int, _Field]:
    """The fields of a message that have elements, by number."""
    return {field.number: found for field in kind.fields if (found := _field(field)).is_list or found.inside}


def _field(field: FieldDescriptor) -> _Field:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    is_scalar = not is_message and field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    size = {
        FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FIXED64: 8, FieldDescriptor.TYPE_SFIXED64: 8,
        FieldDescriptor.TYPE_FLOAT: 4, FieldDescriptor.TYPE_FIXED32: 4, FieldDescriptor.TYPE_SFIXED32: 4,
    }.get(field.type, 0)  # fmt: skip
    name = field.name if is_message and not field.is_repeated else ""
    return _Field(field.is_repeated, _fields(field.message_type) if is_message else {}, is_scalar, size, name)
