"""The requests of gRPC methods with the most elements that their rules admit, made from the .proto files: one for each list."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from headgate.broker.runtime.config import Settings
from headgate.broker.server.access import grpc_rules
from headgate.broker.server.grpc import subscribe
from headgate.broker.server.grpc.handlers import MESSAGE_ELEMENTS_MAX
from headgate.broker.wire.grpc.headgate.v1 import (
    access_pb2,
    admin_pb2,
    capacity_pb2,
    control_pb2,
    externalscaler_pb2,
    gates_pb2,
    groups_pb2,
    kafka_pb2,
    log_pb2,
)
from headgate.broker.wire.grpc.methods import Method, methods

FILES = (access_pb2, admin_pb2, capacity_pb2, control_pb2, externalscaler_pb2, gates_pb2, groups_pb2, kafka_pb2, log_pb2)
METHODS = {
    method.short: method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in methods(service).values()
}
LARGEST = "Control/AddToTransaction"
"""The method whose requests are as large as they may be: a million elements, as brokers may send to one another."""
QUICK_ELEMENTS = 100_000
"""Most elements of the other methods' requests: the same code decodes them."""
LENGTH = 2
FIXED = {
    FieldDescriptor.TYPE_DOUBLE: (1, 8),
    FieldDescriptor.TYPE_FIXED64: (1, 8),
    FieldDescriptor.TYPE_SFIXED64: (1, 8),
    FieldDescriptor.TYPE_FLOAT: (5, 4),
    FieldDescriptor.TYPE_FIXED32: (5, 4),
    FieldDescriptor.TYPE_SFIXED32: (5, 4),
}
"""Wire type and size."""
WITH_LENGTH = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)

Path = tuple[FieldDescriptor, ...]


def elements_max(method: Method) -> int:
    """Most elements of one message; up to `QUICK_ELEMENTS` but for `LARGEST`."""
    streams = {"Log/Subscribe": subscribe.ELEMENTS_MAX} | dict.fromkeys(
        ("Log/Publish", "Control/Join", "Control/Replicate", "Control/Surrender"), MESSAGE_ELEMENTS_MAX
    )
    most = streams.get(method.short, grpc_rules.METHODS[method.short].elements_max)
    return most if method.short == LARGEST else min(QUICK_ELEMENTS, most)


def costly(method: Method, more: int = 0) -> Iterator[tuple[str, bytes]]:
    """(the list's name, a request with as many elements in that list as the method admits, and `more`)."""
    bytes_max = grpc_rules.METHODS[method.short].bytes_max or Settings().frame_bytes_max
    for path in _lists(method.request.DESCRIPTOR):
        outside = sum(field.is_repeated for field in path[:-1])
        element = _element(path[-1])
        data = element * min(elements_max(method) - outside + more, bytes_max // len(element) - 16)
        for field in reversed(path[:-1]):
            data = _tag(field, LENGTH) + _varint(len(data)) + data
        yield ".".join(field.name for field in path), data


def _lists(message: Descriptor, path: Path = (), outside: tuple[Descriptor, ...] = ()) -> Iterator[Path]:
    for field in message.fields:
        if field.is_repeated:
            yield (*path, field)
        if field.message_type is not None and field.message_type not in outside:
            yield from _lists(field.message_type, (*path, field), (*outside, message))


def _element(field: FieldDescriptor) -> bytes:
    """The smallest element of a list."""
    if field.type in WITH_LENGTH:
        return _tag(field, LENGTH) + b"\0"
    wire, size = FIXED.get(field.type, (0, 1))
    return _tag(field, wire) + bytes(size)


def _tag(field: FieldDescriptor, wire: int) -> bytes:
    return _varint(field.number << 3 | wire)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
