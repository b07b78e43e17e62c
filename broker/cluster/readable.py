"""Which offsets of a partition readers may read: those from its log start on, without the ranges that they pass. No I/O."""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.ranges import one_covers

Cuts = dict[uuid.UUID, dict[int, list[tuple[int, int]]]]
"""Ranges of offsets by topic and partition, each partition's by offset."""


class Readable:
    """The log starts of partitions, and the ranges above them that readers pass."""

    def __init__(
        self,
        topics: Mapping[uuid.UUID, Topic],
        log_starts: dict[uuid.UUID, dict[int, int]] | None = None,
        cuts: Cuts | None = None,
    ) -> None:
        self._topics = topics
        self.log_starts: dict[uuid.UUID, dict[int, int]] = {} if log_starts is None else log_starts
        """First readable offset, if it is not the first one ever written. Only of live topics."""
        self.cuts: Cuts = {} if cuts is None else cuts
        """Ranges above the log start that readers pass: deleted before a gate opened in front, skipped, or without a record."""

    def log_start(self, topic_id: uuid.UUID, partition: int) -> int:
        """The first readable offset, or the offset of the first record to come."""
        start = self.log_starts.get(topic_id, _NO_STARTS).get(partition)
        if start is None:
            topic = self._topics.get(topic_id)
            return 0 if topic is None else topic.room
        return start

    def cuts_of(self, topic_id: uuid.UUID, partition: int) -> list[tuple[int, int]]:
        """The ranges of a partition, by offset."""
        return self.cuts.get(topic_id, _NO_CUTS).get(partition, [])

    def first(self, topic_id: uuid.UUID, partition: int, offset: int) -> int:
        """The first offset from `offset` on that may have a readable record."""
        return first_readable(offset, self.log_start(topic_id, partition), self.cuts_of(topic_id, partition))

    def has(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> bool:
        """True if a range of offsets may have a readable record."""
        if topic_id not in self._topics or end_offset <= self.log_start(topic_id, partition):
            return False
        cuts = self.cuts.get(topic_id)
        return cuts is None or not one_covers(cuts.get(partition, ()), base_offset, end_offset)

    def without(self, topic_id: uuid.UUID, files: list[ParquetExtent]) -> Iterator[ParquetExtent]:
        """The files without a readable record, of files by partition and offset. The cost follows their number."""
        first = 0
        while first < len(files):
            partition = files[first].partition
            stop = bisect_right(files, partition, lo=first, key=lambda file: file.partition)
            readable = bisect_right(files, self.log_start(topic_id, partition), lo=first, hi=stop, key=lambda file: file.end_offset)
            yield from files[first:readable]
            for low, high in self.cuts_of(topic_id, partition):
                start = bisect_left(files, low, lo=readable, hi=stop, key=lambda file: file.base_offset)
                yield from files[start : bisect_right(files, high, lo=start, hi=stop, key=lambda file: file.end_offset)]
            first = stop

    def raise_starts(self, topic_id: uuid.UUID, offsets: Mapping[int, int]) -> None:
        """Delete the records below these offsets. A log start never goes back."""
        starts = self.log_starts.setdefault(topic_id, {})
        for partition, offset in offsets.items():
            starts[partition] = max(offset, self.log_start(topic_id, partition))
        self.prune(topic_id)

    def open_front(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> None:
        """Make a window in front of the log start readable. The deleted records between them stay deleted."""
        start = self.log_start(topic_id, partition)
        if end_offset < start:
            self._cut(topic_id, partition, end_offset, start)
        self.log_starts.setdefault(topic_id, {})[partition] = base_offset

    def cut(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> None:
        """Add a range that readers pass."""
        self._cut(topic_id, partition, base_offset, end_offset)
        self.prune(topic_id)

    def _cut(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> None:
        """Add a range. Ranges that touch are merged, so there are as few ranges as holes."""
        ranges = self.cuts.setdefault(topic_id, {}).setdefault(partition, [])
        touching = [range_ for range_ in ranges if range_[0] <= end_offset and base_offset <= range_[1]]
        apart = [range_ for range_ in ranges if range_ not in touching]
        merged = min([base_offset, *(low for low, _ in touching)]), max([end_offset, *(high for _, high in touching)])
        self.cuts[topic_id][partition] = sorted([*apart, merged])

    def prune(self, topic_id: uuid.UUID) -> None:
        """Forget the ranges of a topic below its log starts."""
        cuts = self.cuts.get(topic_id)
        if cuts is None:
            return
        for partition, ranges in list(cuts.items()):
            start = self.log_start(topic_id, partition)
            cuts[partition] = [range_ for range_ in ranges if range_[1] > start]
            if not cuts[partition]:
                del cuts[partition]
        if not cuts:
            del self.cuts[topic_id]

    def drop_topic(self, topic_id: uuid.UUID) -> None:
        self.log_starts.pop(topic_id, None)
        self.cuts.pop(topic_id, None)

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts the attributes' texts."""
        assert set(self.log_starts) <= set(self._topics) and set(self.cuts) <= set(self._topics)


def first_readable(offset: int, log_start: int, cuts: Iterable[tuple[int, int]]) -> int:
    """The first offset from `offset` on that is not deleted. `cuts`: by offset."""
    offset = max(offset, log_start)
    for low, high in cuts:
        if low <= offset < high:
            offset = high
    return offset


_NO_STARTS: Mapping[int, int] = {}
_NO_CUTS: Mapping[int, list[tuple[int, int]]] = {}
