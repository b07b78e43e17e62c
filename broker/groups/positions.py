"""Committed positions of one group, and their rules. No I/O.

The key of a position is (group, topic, partition). It lives until it is replaced, deleted, or its topic is gone. It has no age
limit, unless `offsets.retention.minutes` is set or the committing client asked for an expiry. With a retention, the age counts
from

- the moment when the group became empty, if it ever had members: the group's absence decides;
- the commit, if the group only stores positions, or if its members no longer read that topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

from headgate.broker.groups.records import OffsetKey, OffsetValue
from headgate.broker.runtime.errors import Reason

METADATA_CHARS_MAX = 4096
"""Bound of a client's text beside a position, in characters, as Kafka's `offset.metadata.max.bytes` counts."""

NEVER = -1
"""A retention that never ends."""


class Position(NamedTuple):
    """One row of a commit. `topic_id`: id of the current topic."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: uuid.UUID | None = None

    def check(self) -> Reason | None:
        """The reason why it cannot be stored, or None."""
        return Reason.OFFSET_METADATA_TOO_LARGE if len(self.metadata or "") > METADATA_CHARS_MAX else None

    def value(self, wall_ms: int, retention_ms: int) -> OffsetValue:
        """A stored position. `retention_ms`: the client's wish (OffsetCommit v2-4), or NEVER."""
        if retention_ms >= 0:
            # The only record version with an expiry stores neither of the others. So return now the same value as after a restart.
            return OffsetValue(self.offset, -1, self.metadata or "", wall_ms, wall_ms + retention_ms)
        return OffsetValue(self.offset, self.leader_epoch, self.metadata or "", wall_ms, -1, self.topic_id)


class Positions:
    """All positions of one group."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, OffsetValue]] = {}
        """By topic and partition; no empty inner dictionaries."""

    def __bool__(self) -> bool:
        return bool(self._topics)

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def get(self, topic: str, partition: int) -> OffsetValue | None:
        return self._topics.get(topic, _NOTHING).get(partition)

    def set(self, topic: str, partition: int, value: OffsetValue | None) -> None:
        """Store a position, or delete it."""
        if value is not None:
            self._topics.setdefault(topic, {})[partition] = value
        elif topic in self._topics:
            self._topics[topic].pop(partition, None)
            if not self._topics[topic]:
                del self._topics[topic]

    def items(self) -> Iterator[tuple[str, int, OffsetValue]]:
        """Every position: topic, partition, value."""
        for topic, partitions in self._topics.items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def keys(self, group: str) -> Iterator[OffsetKey]:
        for topic, partitions in self._topics.items():
            for partition in partitions:
                yield OffsetKey(group, topic, partition)


_NOTHING: dict[int, OffsetValue] = {}


def is_expired(value: OffsetValue, since_ms: int, retention_ms: int, wall_ms: int) -> bool:
    """True if a position has expired.

    Args:
        since_ms: start of its age (see above), or -1 for its commit.
        retention_ms: the broker's, or NEVER.
        wall_ms: now.
    """
    if value.expire_ms >= 0:
        return wall_ms >= value.expire_ms
    if retention_ms < 0:
        return False
    return wall_ms - (since_ms if since_ms >= 0 else value.commit_ms) >= retention_ms
