"""Committed positions of one group, and the rules about them. No I/O.

A position is keyed by (group, topic, partition). It lives until it is replaced, deleted, or its topic is gone; never by age, unless
`offsets.retention.minutes` says so or the client that committed it asked for an expiry. With a retention, age counts from

- the moment when the group became empty, if it ever had members: a group that is away is judged by its absence;
- the commit, if the group only stores positions, or if its members are there but do not read that topic any more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

from broker.log.group_records import OffsetKey, OffsetValue
from broker.runtime.errors import Reason

METADATA_CHARS_MAX = 4096
"""Of the text that a client may keep beside a position; Kafka's `offset.metadata.max.bytes` counts characters too."""

NEVER = -1
"""A retention that never ends."""


class Position(NamedTuple):
    """One row of a commit. `topic_id`: the topic as it is now."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: uuid.UUID | None = None

    def check(self) -> Reason | None:
        """Why it cannot be stored, or None."""
        return Reason.OFFSET_METADATA_TOO_LARGE if len(self.metadata or "") > METADATA_CHARS_MAX else None

    def value(self, wall_ms: int, retention_ms: int) -> OffsetValue:
        """What is stored. `retention_ms`: how long the client wants it kept (OffsetCommit v2-4), or NEVER."""
        if retention_ms >= 0:
            # The only version of the record that has an expiry has neither of the others: show now what a restart would show.
            return OffsetValue(self.offset, -1, self.metadata or "", wall_ms, wall_ms + retention_ms)
        return OffsetValue(self.offset, self.leader_epoch, self.metadata or "", wall_ms, -1, self.topic_id)


class Offsets:
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
        """Store a position, or forget it."""
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
    """Whether a position's time is over.

    Args:
        since_ms: when its age began (see above), or -1 for its commit.
        retention_ms: the broker's, or NEVER.
        wall_ms: now.
    """
    if value.expire_ms >= 0:
        return wall_ms >= value.expire_ms
    if retention_ms < 0:
        return False
    return wall_ms - (since_ms if since_ms >= 0 else value.commit_ms) >= retention_ms
