"""The records of `__consumer_offsets`, in Kafka's own schemas, so that Kafka's tools read them and Kafka's records can be read.

A key begins with its kind (int16): 0 and 1 a committed offset, 2 the metadata of a classic group, 1000 an offset in a transaction
without an outcome (only Headgate has these); other kinds belong to group protocols that are not served and are skipped. A value
begins with its version (int16); null deletes the key. Fields are big-endian, strings have an int16 length and bytes an int32
length; from version 4 on the "flexible" encoding of KIP-482 holds (varint lengths, tagged fields). Written are OffsetCommitValue
v4, which alone can name the topic's id (Kafka 4.1), or v1 where a client asked for an expiry; and GroupMetadataValue v3.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import NamedTuple

from headgate.broker.coordination.encoding import Reader, corrupt, string, uvarint

OFFSET_KEY = 1
GROUP_KEY = 2
PENDING_KEY = 1000
"""Far above Kafka's kinds. Its tools skip it."""

_KEY_OFFSET_LEGACY = 0
_OFFSET_VERSION_EXPIRES = 1
_OFFSET_VERSION = 4
_OFFSET_VERSION_MAX = 4
_GROUP_VERSION = 3
_GROUP_VERSION_MAX = 4
_TAG_TOPIC_ID = 0
_TAG_WINDOWS = 4847
"""Not Kafka's: two int64 of `OffsetValue`, `known_end` and `since_ms`. Readers of Kafka's schema skip a tag that they do not
know. The number is far above those that Kafka gives."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_WINDOWS = struct.Struct(">qq")
_OFFSET_HEAD_OLD = struct.Struct(">hq")
_OFFSET_HEAD = struct.Struct(">hqi")
_OFFSET_PLAIN = struct.Struct(">hqiBqBBB16s")
"""A whole value of the current version, without text and with a topic id: the form of nearly all of them."""


class OffsetKey(NamedTuple):
    """Which position: of this group in this partition."""

    group: str
    topic: str
    partition: int


class PendingKey(NamedTuple):
    """Which position in a transaction without an outcome: of this producer, for this group in this partition."""

    group: str
    topic: str
    partition: int
    producer_id: int


class OffsetValue(NamedTuple):
    """A committed position. Times are ms since the epoch; -1 for none.

    `topic_id` identifies the topic at the time of the commit: a topic that was deleted and created again under its name is
    another one.

    `known_end` is the end of the partition's last window that the coordinator knew at the commit, if the position is before it;
    else 0. `since_ms` is the time from which on the position was the same, or -1 for `commit_ms`. `positions.continued` judges
    by both.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    topic_id: uuid.UUID | None = None
    known_end: int = 0
    since_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberMetadata:
    """A stored member. `subscription`: its metadata for the chosen protocol; `assignment`: the leader's assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A stored group: stable if it has members, else empty. `state_ms`: start of that state, ms since the epoch, or -1."""

    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberMetadata, ...] = ()


def encode_offset_key(key: OffsetKey) -> bytes:
    return offset_key_prefix(key.group, key.topic) + encode_partition(key.partition)


def offset_key_prefix(group: str, topic: str) -> bytes:
    """The common beginning of a group's keys in a topic; `encode_partition` makes the rest."""
    return b"\x00\x01" + string(group) + string(topic)


encode_partition = _I32.pack


def encode_group_key(group: str) -> bytes:
    return b"\x00\x02" + string(group)


def encode_pending_key(key: PendingKey) -> bytes:
    return _I16.pack(PENDING_KEY) + string(key.group) + string(key.topic) + _I32.pack(key.partition) + _I64.pack(key.producer_id)


def encode_pending_value(epoch: int, value: OffsetValue) -> bytes:
    return _I16.pack(epoch) + encode_offset_value(value)


def decode_pending_value(data: bytes) -> tuple[int, OffsetValue]:
    """(epoch of the producer, the position). Raises CorruptError."""
    return Reader(data).int16(), decode_offset_value(data[2:])


def decode_key(data: bytes) -> OffsetKey | PendingKey | str | None:
    """The subject of a record: a position, one in a transaction, a group (its id), or None for an unknown kind. Raises
    CorruptError."""
    reader = Reader(data)
    kind = reader.int16()
    key: OffsetKey | PendingKey | str
    if kind in (_KEY_OFFSET_LEGACY, OFFSET_KEY):
        key = OffsetKey(reader.text(), reader.text(), reader.int32())
    elif kind == PENDING_KEY:
        key = PendingKey(reader.text(), reader.text(), reader.int32(), reader.int64())
    elif kind == GROUP_KEY:
        key = reader.text()
    else:
        return None
    reader.finish()
    return key


def encode_offset_value(value: OffsetValue) -> bytes:
    if value.expire_ms >= 0:
        # Only version 1 has an expiry; it has neither the leader epoch nor the topic's id.
        head = _OFFSET_HEAD_OLD.pack(_OFFSET_VERSION_EXPIRES, value.offset)
        return head + string(value.metadata) + _I64.pack(value.commit_ms) + _I64.pack(value.expire_ms)
    windows = value.known_end or value.since_ms >= 0
    if not value.metadata and value.topic_id is not None and not windows:
        return _OFFSET_PLAIN.pack(
            _OFFSET_VERSION, value.offset, value.leader_epoch, 1, value.commit_ms, 1, _TAG_TOPIC_ID, 16, value.topic_id.bytes
        )
    text = value.metadata.encode()
    head = _OFFSET_HEAD.pack(_OFFSET_VERSION, value.offset, value.leader_epoch)
    tags = [] if value.topic_id is None else [(_TAG_TOPIC_ID, value.topic_id.bytes)]
    if windows:
        tags.append((_TAG_WINDOWS, _WINDOWS.pack(value.known_end, value.since_ms)))
    tail = b"".join([uvarint(len(tags)), *(uvarint(tag) + uvarint(len(content)) + content for tag, content in tags)])
    return head + uvarint(len(text) + 1) + text + _I64.pack(value.commit_ms) + tail


def decode_offset_value(data: bytes) -> OffsetValue:
    """Raises CorruptError."""
    reader = Reader(data)
    version = reader.version(_OFFSET_VERSION_MAX, "committed offset")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.text()
    commit_ms = reader.int64()
    expire_ms = reader.int64() if version == 1 else -1
    topic_id = None
    known_end, since_ms = 0, -1
    for tag, content in reader.tags():
        if tag == _TAG_TOPIC_ID:
            if len(content) != 16:
                raise corrupt("has a topic id of another length", len(content))
            topic_id = uuid.UUID(bytes=content)
        elif tag == _TAG_WINDOWS:
            if len(content) != _WINDOWS.size:
                raise corrupt("has a note about windows of another length", len(content))
            known_end, since_ms = _WINDOWS.unpack(content)
    reader.finish()
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id, known_end, since_ms)


def encode_group_value(value: GroupMetadata) -> bytes:
    out = bytearray(_I16.pack(_GROUP_VERSION))
    out += string(value.protocol_type or "")
    out += _I32.pack(value.generation)
    out += _nullable(value.protocol)
    out += _nullable(value.leader)
    out += _I64.pack(value.state_ms)
    out += _I32.pack(len(value.members))
    for member in value.members:
        out += string(member.member_id)
        out += _nullable(member.instance_id)
        out += string(member.client_id)
        out += string(member.client_host)
        out += _I32.pack(member.rebalance_timeout_ms)
        out += _I32.pack(member.session_timeout_ms)
        for content in (member.subscription, member.assignment):
            out += _I32.pack(len(content))
            out += content
    return bytes(out)


def decode_group_value(data: bytes) -> GroupMetadata:
    """Raises CorruptError."""
    reader = Reader(data)
    version = reader.version(_GROUP_VERSION_MAX, "group metadata")
    protocol_type = reader.text()
    generation = reader.int32()
    protocol = reader.nullable_text()
    leader = reader.nullable_text()
    state_ms = reader.int64() if version >= 2 else -1
    members = []
    for _ in range(reader.count()):
        member_id = reader.text()
        instance_id = reader.nullable_text() if version >= 3 else None
        client_id, client_host = reader.text(), reader.text()
        rebalance_timeout_ms = reader.int32() if version >= 1 else -1
        session_timeout_ms = reader.int32()
        members.append(
            MemberMetadata(
                member_id=member_id,
                instance_id=instance_id,
                client_id=client_id,
                client_host=client_host,
                rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms == -1 else rebalance_timeout_ms,
                session_timeout_ms=session_timeout_ms,
                subscription=reader.content(),
                assignment=reader.content(),
            )
        )
        reader.tags()
    reader.tags()
    reader.finish()
    return GroupMetadata(
        protocol_type=protocol_type or None,
        generation=generation,
        protocol=protocol,
        leader=leader,
        state_ms=state_ms,
        members=tuple(members),
    )


def _nullable(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else string(text)
