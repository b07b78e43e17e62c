"""Records of `__transaction_state`: keys and values, encoded and decoded. No I/O.

The schemas are Kafka's (TransactionLogKey v0, TransactionLogValue v0 and v1), so its tools can read the topic. Written is v1. A key
begins with its version (int16), then the transactional id. A value without bytes deletes the id.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

from headgate.broker.coordination.encoding import Reader, string, uvarint

Partition: TypeAlias = tuple[str, int]
"""Topic and number of a partition."""

NO_ID = -1
NO_EPOCH = -1
NO_TIME = -1
EPOCH_MAX = 32767
"""The greatest int16. Markers may have it, producers may not: it fences a producer whose last epoch was one less."""

_KEY_VERSION = b"\0\0"
_VALUE_VERSION = 1
_VALUE_VERSION_MAX = 1
_HEAD = struct.Struct(">hqhib")
_TIMES = struct.Struct(">qq")
_PREVIOUS, _NEXT, _VERSION = 0, 1, 2
"""Tags of the optional fields."""


class State(IntEnum):
    """The state of a transactional id, with Kafka's numbers. A prepared transaction has an outcome; its markers are being
    written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def is_prepared(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def shown(self) -> str:
        """Kafka's name: ``PrepareCommit``."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The value of a record: a transactional id and its last transaction. Times are ms since the epoch.

    `partitions` are those of an ongoing or prepared transaction. `previous_id` is the producer id before the last change of it,
    `next_id` the one after a prepared transaction that used up the epochs. `version` is 2 if the client uses KIP-890's protocol.
    `last_epoch` is not stored: the epoch before the last bump that a client asked for, whose retry gets the same answer.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[Partition] = frozenset()
    update_ms: int
    start_ms: int = NO_TIME
    previous_id: int = NO_ID
    next_id: int = NO_ID
    version: int = 0
    last_epoch: int = NO_EPOCH

    def changed(self, wall_ms: int, **changes: object) -> Transaction:
        """A copy with changes, updated now."""
        return replace(self, update_ms=wall_ms, **changes)  # type: ignore[arg-type]  # the names and types are the fields'


def by_topic(partitions: frozenset[Partition] | set[Partition]) -> dict[str, list[int]]:
    """The numbers of partitions by topic, both in order."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


def encode_key(transactional_id: str) -> bytes:
    return _KEY_VERSION + string(transactional_id)


def decode_key(data: bytes) -> str | None:
    """The transactional id of a key; None for an unknown version. Raises CorruptError."""
    reader = Reader(data)
    if reader.int16() != 0:
        return None
    transactional_id = reader.text()
    reader.finish()
    return transactional_id


def encode_value(value: Transaction) -> bytes:
    out = bytearray(_HEAD.pack(_VALUE_VERSION, value.producer_id, value.epoch, value.timeout_ms, value.state))
    topics = by_topic(value.partitions)
    out += uvarint(len(topics) + 1)
    for topic, numbers in topics.items():
        name = topic.encode()
        out += uvarint(len(name) + 1) + name
        out += uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers) + b"\0"
    out += _TIMES.pack(value.update_ms, value.start_ms)
    tags = []
    if value.previous_id != NO_ID:
        tags.append(b"\x00\x08" + value.previous_id.to_bytes(8, "big", signed=True))
    if value.next_id != NO_ID:
        tags.append(b"\x01\x08" + value.next_id.to_bytes(8, "big", signed=True))
    if value.version:
        tags.append(b"\x02\x02" + value.version.to_bytes(2, "big"))
    out.append(len(tags))
    return bytes(out) + b"".join(tags)


def decode_value(data: bytes) -> Transaction:
    """Raises CorruptError."""
    reader = Reader(data)
    reader.version(_VALUE_VERSION_MAX, "a transaction", flexible_from=1)
    producer_id, epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = reader.choice(State)
    partitions: set[Partition] = set()
    for _ in range(reader.nullable_count()):
        topic = reader.text()
        partitions.update((topic, reader.int32()) for _ in range(reader.count()))
        reader.tags()
    update_ms, start_ms = reader.int64(), reader.int64()
    numbers = {tag: int.from_bytes(content, "big", signed=True) for tag, content in reader.tags()}
    reader.finish()
    return Transaction(
        producer_id=producer_id,
        epoch=epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        update_ms=update_ms,
        start_ms=start_ms,
        previous_id=numbers.get(_PREVIOUS, NO_ID),
        next_id=numbers.get(_NEXT, NO_ID),
        version=numbers.get(_VERSION, 0),
    )
