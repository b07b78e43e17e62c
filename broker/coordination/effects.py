"""What a shard and its driver exchange: the time, rows of the log, and effects. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Row: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of a record. A record without a value deletes the key."""

ROWS_PER_APPEND_MAX = 1_000
"""Rows in one batch that the shard writes without a request. It bounds the size of a batch."""


class Now(NamedTuple):
    """Both times, in ms. `timer_ms` never goes back and is for time-outs. `wall_ms` is the wall-clock time, for stored values."""

    timer_ms: int
    wall_ms: int


@dataclass(slots=True)
class Budget:
    """The number of ids that all shards of a broker hold, such as groups, and its bound."""

    ids_max: int
    ids: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the request of this token. Each token is answered once."""

    token: object
    response: object


@dataclass(frozen=True, slots=True)
class Append:
    """Append these rows to the partition, in order, then report `stored(ticket)`."""

    ticket: int
    rows: list[Row]


Effect: TypeAlias = Answer | Append


def shard_of(group_id: str, shards: int) -> int:
    """The partition of an internal topic that holds a group or a transactional id: the absolute of Java's `String.hashCode`,
    as in Kafka."""
    code = 0
    data = group_id.encode("utf-16-be")
    for index in range(0, len(data), 2):
        code = (31 * code + (data[index] << 8 | data[index + 1])) & 0xFFFF_FFFF
    if code >= 1 << 31:
        code = (1 << 32) - code
    # The absolute of Java's smallest int would not fit into an int; Kafka takes 0.
    return (0 if code == 1 << 31 else code) % shards
