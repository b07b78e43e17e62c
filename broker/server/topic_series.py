"""Traffic and size of topics for /metrics, with a bound on the number of series.

Prometheus, and its operators, want few series. The first `TOPICS_MAX` topics with traffic have series of their own, and idle ones
too while there is room. All others together are one topic, `OTHER`. A topic that once has its own series keeps it until it is
deleted. No counter ever falls: what a topic counted before it got its own series stays in `OTHER`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headgate.broker.engine.engine import Engine
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.runtime.metrics import Labels
from headgate.broker.runtime.steps import Steps, finish

TOPICS_MAX = 1000
"""Topics with series of their own, at one broker."""
OTHER = "(other)"
"""The name of all other topics together. No topic has this name: topics' names have no brackets."""
PARTITIONS_PER_STEP = 200


class Counted(NamedTuple):
    """Of one topic at this broker: counters since its start, then what it has now."""

    in_bytes: int = 0
    out_bytes: int = 0
    in_records: int = 0
    size_bytes: int = 0
    partitions: int = 0

    def plus(self, other: Counted) -> Counted:
        return Counted(*(left + right for left, right in zip(self, other, strict=True)))

    def since(self, before: Counted) -> Counted:
        """The counters' growth, and what there is now."""
        return Counted(
            max(self.in_bytes - before.in_bytes, 0),
            max(self.out_bytes - before.out_bytes, 0),
            max(self.in_records - before.in_records, 0),
            self.size_bytes,
            self.partitions,
        )


NOTHING = Counted()


class TopicCounts:
    """Traffic of topics on this broker since its start, including partitions that it no longer leads. It never falls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: dict[uuid.UUID, tuple[int, int, int]] = {}
        """Partitions that other brokers lead now: bytes in, bytes out, offsets given."""
        self._first: dict[PartitionLog, int] = {}
        """For every partition that this broker leads, the end offset at the time when it took over the lead."""
        for partition in engine.all_logs():
            self._watch(partition)
        engine.leads.watch(self._watch)

    def _watch(self, partition: PartitionLog) -> None:
        if partition.closed is None:
            self._first[partition] = partition.high_watermark
            return
        counted = self._count(partition)
        self._first.pop(partition, None)
        topic_id = partition.topic.id
        if topic_id in self._engine.manifest.topics_by_id:
            before = self._before.get(topic_id, (0, 0, 0))
            self._before[topic_id] = before[0] + counted[0], before[1] + counted[1], before[2] + counted[2]
            if len(self._before) > len(self._engine.manifest.topics):
                # Some topics were deleted while other brokers led all of their partitions.
                self._before = {key: counted for key, counted in self._before.items() if key in self._engine.manifest.topics_by_id}
        else:
            self._before.pop(topic_id, None)

    def _count(self, partition: PartitionLog) -> tuple[int, int, int]:
        given = partition.high_watermark - self._first.get(partition, partition.high_watermark)
        return partition.traffic.bytes_in, partition.traffic.bytes_out, given

    def read(self, which: int) -> dict[Labels, float]:
        """By topic: 0 bytes in, 1 bytes out, 2 offsets given."""
        return {(name,): counted[which] for (name, _), counted in finish(self.read_all()).items()}

    def read_all(self) -> Steps[dict[tuple[str, uuid.UUID], Counted]]:
        """All topics, by name and id, in steps: there may be a hundred thousand partitions."""
        found: dict[tuple[str, uuid.UUID], Counted] = {}
        done, due = 0, PARTITIONS_PER_STEP
        for name, logs in list(self._engine.logs.items()):
            topic = self._engine.manifest.topics.get(name)
            if topic is None:
                continue
            in_bytes, out_bytes, in_records = self._before.get(topic.id, (0, 0, 0))
            size_bytes = 0
            for partition in logs:
                done += 1
                if partition is not None:
                    counted = self._count(partition)
                    in_bytes += counted[0]
                    out_bytes += counted[1]
                    in_records += counted[2]
                    size_bytes += partition.size_bytes
            found[name, topic.id] = Counted(in_bytes, out_bytes, in_records, size_bytes, len(logs))
            done += 1
            if done >= due:
                yield PARTITIONS_PER_STEP
                due = done + PARTITIONS_PER_STEP
        return found


@dataclass(slots=True)
class _Own:
    """A topic with its own series: its id, and what it had counted before."""

    topic_id: uuid.UUID
    before: Counted


class TopicSeries:
    """The bounded series. `update` takes new counts; `read` gives one column of them."""

    def __init__(self, topics_max: int = TOPICS_MAX) -> None:
        self._topics_max = topics_max
        self._own: dict[str, _Own] = {}
        self._seen: dict[uuid.UUID, Counted] = {}
        """The last counts of topics without their own series."""
        self._other = NOTHING
        """What these topics, and those before them, have counted."""
        self._shown: dict[Labels, Counted] = {}

    def update(self, rows: Mapping[tuple[str, uuid.UUID], Counted]) -> Steps[None]:
        """Take the counts of all topics."""
        self._own = {name: own for name, own in self._own.items() if (name, own.topic_id) in rows}
        yield len(self._own)
        busy: list[tuple[str, uuid.UUID]] = []
        idle: list[tuple[str, uuid.UUID]] = []
        for number, (key, row) in enumerate(rows.items()):
            if number % PARTITIONS_PER_STEP == 0:
                yield PARTITIONS_PER_STEP
            if key[0] not in self._own:
                (busy if any(row[:3]) else idle).append(key)
        waiting = busy + idle
        free = self._topics_max - len(self._own)
        for name, topic_id in waiting[:free]:
            self._own[name] = _Own(topic_id, self._seen.get(topic_id, NOTHING))
        yield len(self._own)
        shown: dict[Labels, Counted] = {(name,): rows[name, own.topic_id].since(own.before) for name, own in self._own.items()}
        seen: dict[uuid.UUID, Counted] = {}
        grown, now = self._other, NOTHING
        for number, key in enumerate(waiting[free:]):
            if number % PARTITIONS_PER_STEP == 0:
                yield PARTITIONS_PER_STEP
            seen[key[1]] = row = rows[key]
            since = row.since(self._seen.get(key[1], NOTHING))
            grown = grown.plus(since._replace(size_bytes=0, partitions=0))
            now = now.plus(NOTHING._replace(size_bytes=row.size_bytes, partitions=row.partitions))
        self._seen, self._other = seen, grown
        if seen or any(grown):
            shown[OTHER,] = grown._replace(size_bytes=now.size_bytes, partitions=now.partitions)
        self._shown = shown

    def read(self, which: int) -> dict[Labels, float]:
        """One column of `Counted`, by topic."""
        return {labels: row[which] for labels, row in self._shown.items()}
