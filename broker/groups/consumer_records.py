"""The records of consumer groups (KIP-848) in `__consumer_offsets`, in Kafka's own schemas. No I/O.

A group has a record with its epoch (kind 3) and one with the epoch of its target (6). Each member has one with what it said about
itself (5), one with its target (7), and one with what it holds (8). All values have version 0, in the flexible encoding.
"""

from __future__ import annotations

import struct
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from typing import NamedTuple

from headgate.broker.coordination.encoding import Reader, string, uvarint
from headgate.broker.groups.assignors import Partition
from headgate.broker.groups.consumer_member import Classic, Holding, Identity, Progress


class Kind(IntEnum):
    """The kinds of records, with Kafka's numbers."""

    GROUP = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    HOLDING = 8


OF_MEMBER = frozenset((Kind.MEMBER, Kind.TARGET, Kind.HOLDING))
_KINDS = frozenset(Kind)
_VERSION = b"\0\0"
_NO_TAGS = b"\0"
_CLASSIC_TAG = 0
_I32 = struct.Struct(">i").pack
_HOLDING = struct.Struct(">iib").pack


class ConsumerKey(NamedTuple):
    """The subject of a record. `member` is empty for those of the group."""

    kind: Kind
    group: str
    member: str = ""


def encode_consumer_key(key: ConsumerKey) -> bytes:
    return key.kind.to_bytes(2, "big") + string(key.group) + (string(key.member) if key.kind in OF_MEMBER else b"")


def decode_consumer_key(data: bytes) -> ConsumerKey | None:
    """The subject of a record; None for other kinds. Raises CorruptError."""
    if len(data) < 2 or data[0] or data[1] not in _KINDS:
        return None
    reader = Reader(data)
    kind = Kind(reader.int16())
    key = ConsumerKey(kind, reader.text(), reader.text() if kind in OF_MEMBER else "")
    reader.finish()
    return key


def encode_epoch(epoch: int) -> bytes:
    """The value of kinds GROUP and TARGET_EPOCH."""
    return _VERSION + _I32(epoch) + _NO_TAGS


def decode_epoch(data: bytes) -> int:
    """Raises CorruptError."""
    reader = _reader(data, "an epoch of a group")
    epoch = reader.int32()
    _end(reader)
    return epoch


def encode_identity(value: Identity) -> bytes:
    return b"".join(
        (
            _VERSION,
            _text(value.instance_id),
            _text(value.rack_id),
            _text(value.client_id),
            _text(value.client_host),
            uvarint(len(value.topics) + 1),
            *(_text(name) for name in sorted(value.topics)),
            _text(value.pattern),
            _I32(value.rebalance_timeout_ms),
            _text(value.assignor),
            _NO_TAGS if value.classic is None else _classic(value.classic),
        )
    )


def decode_identity(member_id: str, data: bytes) -> Identity:
    """Raises CorruptError."""
    reader = _reader(data, "a member of a consumer group")
    value = Identity(
        member_id=member_id,
        instance_id=reader.nullable_text(),
        rack_id=reader.nullable_text(),
        client_id=reader.text(),
        client_host=reader.text(),
        topics=frozenset(reader.text() for _ in range(reader.nullable_count())),
        pattern=reader.nullable_text(),
        rebalance_timeout_ms=reader.int32(),
        assignor=reader.nullable_text(),
    )
    tags = dict(reader.tags())
    reader.finish()
    return replace(value, classic=_read_classic(tags[_CLASSIC_TAG])) if _CLASSIC_TAG in tags else value


def _classic(value: Classic) -> bytes:
    """The tagged field with what JoinGroup says more."""
    rows = [_text(name) + uvarint(len(data) + 1) + data + _NO_TAGS for name, data in value.protocols]
    content = _I32(value.session_timeout_ms) + uvarint(len(rows) + 1) + b"".join(rows) + _NO_TAGS
    return uvarint(1) + uvarint(_CLASSIC_TAG) + uvarint(len(content)) + content


def _read_classic(data: bytes) -> Classic:
    reader = _reader(_VERSION + data, "a classic member of a consumer group")
    session_timeout_ms, protocols = reader.int32(), []
    for _ in range(reader.nullable_count()):
        protocols.append((reader.text(), reader.content()))
        reader.tags()
    _end(reader)
    return Classic(session_timeout_ms, tuple(protocols))


def encode_target(partitions: Iterable[Partition]) -> bytes:
    return _VERSION + _partitions(partitions) + _NO_TAGS


def decode_target(data: bytes) -> frozenset[Partition]:
    """Raises CorruptError."""
    reader = _reader(data, "a target of a consumer group")
    found = _read_partitions(reader)
    _end(reader)
    return found


def encode_holding(value: Holding) -> bytes:
    head = _VERSION + _HOLDING(value.epoch, value.epoch_before, value.progress)
    return head + _partitions(value.assigned) + _partitions(value.revoking) + _NO_TAGS


def decode_holding(data: bytes) -> Holding:
    """Raises CorruptError."""
    reader = _reader(data, "an assignment of a consumer group")
    value = Holding(
        epoch=reader.int32(),
        epoch_before=reader.int32(),
        progress=reader.choice(Progress),
        assigned=_read_partitions(reader),
        revoking=_read_partitions(reader),
    )
    _end(reader)
    return value


def _reader(data: bytes, what: str) -> Reader:
    reader = Reader(data)
    reader.version(0, what, flexible_from=0)
    return reader


def _end(reader: Reader) -> None:
    reader.tags()
    reader.finish()


def _text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return uvarint(len(data) + 1) + data


def _partitions(partitions: Iterable[Partition]) -> bytes:
    topics: dict[uuid.UUID, list[int]] = defaultdict(list)
    for topic, number in sorted(partitions):
        topics[topic].append(number)
    rows = [
        topic.bytes + uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers) + _NO_TAGS
        for topic, numbers in topics.items()
    ]
    return uvarint(len(rows) + 1) + b"".join(rows)


def _read_partitions(reader: Reader) -> frozenset[Partition]:
    found: set[Partition] = set()
    for _ in range(reader.nullable_count()):
        topic = uuid.UUID(bytes=reader.take(16))
        found.update((topic, reader.int32()) for _ in range(reader.nullable_count()))
        reader.tags()
    return frozenset(found)
