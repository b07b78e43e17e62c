"""The parts that the hand-written messages, Produce and Fetch, have in common: topics of a request, and leads in a response.

A response names the current lead of a partition beside NOT_LEADER_OR_FOLLOWER (KIP-951), so a client continues without a metadata
request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from headgate.broker.wire.kafka.primitives import (
    REQUEST_ELEMENTS_MAX,
    Buffer,
    DecodeError,
    read_uvarint,
    write_compact_count,
    write_compact_nullable_string,
    write_compact_string,
    write_tag,
    write_uvarint,
)

TOPIC_IDS = 13
"""First version of Produce, and of Fetch, with topic ids in the place of names."""

_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i")
_LEAD = struct.Struct(">BBBiiB").pack
_LEAD_BYTES = 9
"""Size of a lead: broker id, leader epoch, no tagged fields."""


class Node(NamedTuple):
    """The address of a broker. `rack` is None if the broker has none."""

    broker_id: int
    host: str
    port: int
    rack: str | None


def read_topic_key(frame: Buffer, position: int, version: int, flexible: bool) -> tuple[bytes, int]:
    """(name or id of a topic, next position). Raises DecodeError, IndexError or struct.error."""
    if version >= TOPIC_IDS:
        size = 16
    elif flexible:
        size, position = read_uvarint(frame, position)
        size -= 1
    else:
        (size,) = _I16(frame, position)
        position += 2
    end = position + size
    if size < 0 or end > len(frame):
        raise DecodeError(f"topic does not fit into the request. size=`{size}` left=`{len(frame) - position}`")
    return bytes(frame[position:end]), end


def write_topic_key(out: bytearray, key: bytes, version: int, flexible: bool) -> None:
    """Write a topic's name or id."""
    if version < TOPIC_IDS:
        if flexible:
            write_uvarint(out, len(key) + 1)
        else:
            out += len(key).to_bytes(2, "big")
    out += key


def write_array_head(out: bytearray, count: int, flexible: bool) -> None:
    """Write the length of an array."""
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _I32.pack(count)


def check_elements(api: str, count: int) -> None:
    """Raise DecodeError if a request has too many elements."""
    if count > REQUEST_ELEMENTS_MAX:
        raise DecodeError(f"request has too many elements. api=`{api}` elements=`{count}` max=`{REQUEST_ELEMENTS_MAX}`")


def lead_tags(tag: int, lead: tuple[int, int]) -> bytes:
    """A partition's tagged fields: its lead, as (broker id, leader epoch), under the API's tag."""
    return _LEAD(1, tag, _LEAD_BYTES, *lead, 0)


def node_tags(nodes: Iterable[Node]) -> bytes:
    """A response's tagged fields: the addresses of the leads that it names."""
    body = bytearray()
    all_nodes = list(nodes)
    write_compact_count(body, len(all_nodes))
    for node in all_nodes:
        body += _I32.pack(node.broker_id)
        write_compact_string(body, node.host)
        body += _I32.pack(node.port)
        write_compact_nullable_string(body, node.rack)
        body.append(0)
    out = bytearray(b"\x01")
    write_tag(out, 0, body)
    return bytes(out)
