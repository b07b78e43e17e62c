"""The segments of all topics: the open ones, which broker leads which partition, and the newest sealed ones. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from headgate.broker.cluster.segments import SealedSegment, SegmentInfo

CHAIN_SEGMENTS_MAX = 64
"""Sealed segments of one topic that are remembered, beside those without open successors."""


class TopicSegments:
    """The segments of live topics."""

    def __init__(self) -> None:
        self.open: dict[int, SegmentInfo] = {}
        """All and only the open segments, by id."""
        self.sealed: dict[int, SealedSegment] = {}
        """The newest sealed segments, by id, in the order of their sealing."""
        self._chains: dict[uuid.UUID, dict[int, SealedSegment]] = {}
        """The same, by topic, so that the cost of a commit depends only on its topics. Every live topic has a key."""
        self.leads: dict[uuid.UUID, list[SegmentInfo | None]] = {}
        """The open segment of every partition of every live topic; None without one."""
        self.next_id = 0

    def add_topic(self, topic_id: uuid.UUID, partitions: int) -> None:
        self.leads.setdefault(topic_id, [None] * partitions)
        self._chains.setdefault(topic_id, {})

    def grow_topic(self, topic_id: uuid.UUID, partitions: int) -> None:
        """A topic has this number of partitions now."""
        leads = self.leads.get(topic_id)
        if leads is not None:
            leads.extend([None] * (partitions - len(leads)))

    def drop_topic(self, topic_id: uuid.UUID) -> None:
        for key in {segment.id for segment in self.leads.pop(topic_id) if segment is not None}:
            del self.open[key]
        for key in self._chains.pop(topic_id):
            del self.sealed[key]

    def chain(self, topic_id: uuid.UUID) -> Iterable[SealedSegment]:
        """The newest sealed segments of a live topic, in the order of their sealing."""
        return self._chains[topic_id].values()

    def put(self, segment: SegmentInfo) -> None:
        """A segment is open."""
        self.open[segment.id] = segment
        leads = self.leads[segment.topic_id]
        for partition in segment.partitions:
            leads[partition] = segment

    def seal(self, segment_id: int, ends: list[int], producers_key: str | None) -> None:
        """An open segment has ended."""
        segment = self.open.pop(segment_id, None)
        if segment is None:
            return
        leads = self.leads[segment.topic_id]
        for partition in segment.partitions:
            leads[partition] = None
        sealed = SealedSegment(
            id=segment_id,
            topic_id=segment.topic_id,
            first_partition=segment.first_partition,
            end_partition=segment.end_partition,
            incarnation_id=segment.incarnation_id,
            leader_epoch=segment.leader_epoch,
            base_offsets=segment.base_offsets,
            ends=ends,
            producers_key=producers_key,
        )
        self.put_sealed(sealed)

    def put_sealed(self, sealed: SealedSegment) -> None:
        self.sealed[sealed.id] = self._chains[sealed.topic_id][sealed.id] = sealed

    def prune_chain(self, topic_id: uuid.UUID) -> None:
        """Forget the oldest sealed segments of a topic, but those without open successors."""
        chain, leads = self._chains[topic_id], self.leads[topic_id]
        if len(chain) <= CHAIN_SEGMENTS_MAX:
            return
        for key in list(chain)[:-CHAIN_SEGMENTS_MAX]:
            sealed = chain[key]
            if all(leads[sealed.first_partition : sealed.end_partition]):
                del self.sealed[key], chain[key]

    def producers_objects(self) -> set[str]:
        """Keys of all objects with the state of producers that the lead of an open or a next segment may still need."""
        needed = {origin for segment in self.open.values() for origin in segment.origins}
        covered = {topic_id: [lead is not None for lead in leads] for topic_id, leads in self.leads.items()}
        for sealed in reversed(self.sealed.values()):
            row = covered[sealed.topic_id]
            if not all(row[sealed.first_partition : sealed.end_partition]):
                row[sealed.first_partition : sealed.end_partition] = [True] * len(sealed.ends)
                if sealed.producers_key is not None:
                    needed.add(sealed.producers_key)
        return needed

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts the attributes' texts."""
        for segment in self.open.values():
            assert all(self.leads[segment.topic_id][number] is segment for number in segment.partitions)
            assert len(segment.base_offsets) == len(segment.partitions)
            assert segment.id < self.next_id
        for leads in self.leads.values():
            for number, lead in enumerate(leads):
                assert lead is None or (number in lead.partitions and self.open[lead.id] is lead)
        assert not set(self.open) & set(self.sealed)
        assert set(self._chains) == set(self.leads)
        assert {key for chain in self._chains.values() for key in chain} == set(self.sealed)
