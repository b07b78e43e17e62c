"""Committed positions of one group, and their rules. No I/O.

The key of a position is (group, topic, partition). It lives until it is replaced, deleted, or its topic is gone. It has no age
limit, unless `offsets.retention.minutes` is set or the committing client asked for an expiry. With a retention, the age counts
from

- the moment when the group became empty, if it ever had members: the group's absence decides;
- the commit, if the group only stores positions, or if its members no longer read that topic.

Gates. A position that is a window's first offset has two meanings. The group had read everything when the gate opened: in a topic
with live records (`Gate.live`), it continues behind the window, and does not see the history. Or the group came to the window
later, on its way through the log: it waits, and reads the history. The commit tells which: in the first case it was made before
the gate opened. The same position, committed again, keeps the time of its first commit. Two clocks agree on "before": the
coordinator did not know the window yet (`known_end`), and the commit's wall-clock time is not later than the gate's. A coordinator
that learns late of a gate, and a clock that is wrong, are then not enough to make a group miss history.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from headgate.broker.cluster.gates import Gate, GateWindow
from headgate.broker.groups.records import OffsetKey, OffsetValue
from headgate.broker.runtime.errors import Reason

METADATA_CHARS_MAX = 4096
"""Bound of a client's text beside a position, in characters, as Kafka's `offset.metadata.max.bytes` counts."""

NEVER = -1
"""A retention that never ends."""


class Position(NamedTuple):
    """One row of a commit. `topic_id`: id of the current topic. `window_end`: the end of the partition's last window, or 0."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = None
    topic_id: uuid.UUID | None = None
    window_end: int = 0

    def check(self) -> Reason | None:
        """The reason why it cannot be stored, or None."""
        return Reason.OFFSET_METADATA_TOO_LARGE if len(self.metadata or "") > METADATA_CHARS_MAX else None

    def value(self, wall_ms: int, retention_ms: int, before: OffsetValue | None = None) -> OffsetValue:
        """A stored position.

        Args:
            retention_ms: the client's wish (OffsetCommit v2-4), or NEVER.
            before: the group's position until now.
        """
        if retention_ms >= 0:
            # The only record version with an expiry stores neither of the others. So return now the same value as after a restart.
            return OffsetValue(self.offset, -1, self.metadata or "", wall_ms, wall_ms + retention_ms)
        known_end, since_ms = 0, -1
        if self.window_end > self.offset:
            known_end = self.window_end
            if before is not None and (before.offset, before.topic_id) == (self.offset, self.topic_id):
                known_end, since_ms = before.known_end, _since_ms(before)
        return OffsetValue(self.offset, self.leader_epoch, self.metadata or "", wall_ms, -1, self.topic_id, known_end, since_ms)


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


def continued(value: OffsetValue, windows: Iterable[tuple[GateWindow, Gate]]) -> OffsetValue:
    """The position at which a group continues: `value`, or behind the windows at which the group had read everything.

    Args:
        windows: of the partition, by offset.
    """
    offset, last = value.offset, None
    for window, gate in windows:
        if window.base_offset != offset:
            continue
        if window.end_offset <= value.known_end:
            break
        if gate.state != "released":
            if not gate.live or _since_ms(value) > gate.opened_ms:
                break
            last = window
        offset = window.end_offset
    if last is None:
        return value
    # Clients ask where this epoch ends, and take a smaller end for a log that was cut (KIP-320).
    return value._replace(offset=last.end_offset, leader_epoch=last.leader_epoch)


def _since_ms(value: OffsetValue) -> int:
    return value.commit_ms if value.since_ms < 0 else value.since_ms


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
