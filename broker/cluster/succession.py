"""Which partitions have no lead, and the segments that are to open there. No I/O.

The leader asks before every commit, so that partitions without a lead get one in the same commit: new topics and partitions, and
the successors of sealed segments. The next leader finds the partitions that a dead leader left behind in the same way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from headgate.broker.cluster.edits.brokers import SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import OpenIncarnation
from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic, DeleteTopic, SetPartitions
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.segments import SegmentInfo, Successor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Neighbouring partitions without a lead, and the start of their next segment. `is_new`: they belong to a topic that is
    being created."""

    topic_id: uuid.UUID
    first_partition: int
    base_offsets: list[int]
    origins: list[str | None]
    is_new: bool

    @property
    def end_partition(self) -> int:
        return self.first_partition + len(self.base_offsets)

    def without(self, taken: Set[tuple[uuid.UUID, int]]) -> list[tuple[uuid.UUID, int, int]]:
        """The parts of this gap that are not taken, as (topic id, first partition, end partition)."""
        pieces: list[tuple[uuid.UUID, int, int]] = []
        first: int | None = None
        for number in range(self.first_partition, self.end_partition + 1):
            is_free = number < self.end_partition and (self.topic_id, number) not in taken
            if is_free and first is None:
                first = number
            elif not is_free and first is not None:
                pieces.append((self.topic_id, first, number))
                first = None
        return pieces


class _Row:
    """The partitions of one topic. Each either has a lead, or the start of its next segment is known."""

    __slots__ = ("bases", "covered", "is_new", "origins", "room")

    def __init__(self, partitions: int, room: int, is_new: bool) -> None:
        self.covered = [False] * partitions
        self.room = room
        self.bases = [room] * partitions
        self.origins: list[str | None] = [None] * partitions
        self.is_new = is_new

    def grow(self, partitions: int) -> None:
        more = partitions - len(self.covered)
        self.covered += [False] * more
        self.bases += [self.room] * more
        self.origins += [None] * more

    def seal(self, first_partition: int, ends: Sequence[int], producers_key: str | None) -> None:
        for partition, end in enumerate(ends, first_partition):
            self.covered[partition] = False
            self.bases[partition] = end  # from the manifest, the next lead knows which offsets after it are reserved for gates
            self.origins[partition] = producers_key


def find_gaps(manifest: Manifest, edits: Iterable[Edit], *, everywhere: bool = False) -> list[Gap]:
    """The partitions without a lead after these edits.

    Args:
        edits: not applied yet.
        everywhere: examine all topics, not only those of the edits.
    """
    edits = list(edits)
    rows: dict[uuid.UUID, _Row] = {}
    topics = set(manifest.topics_by_id) if everywhere else _touched(manifest, edits)
    for topic_id in topics & manifest.topics_by_id.keys():
        leads = manifest.segments.leads[topic_id]
        row = rows[topic_id] = _Row(len(leads), manifest.topics_by_id[topic_id].room, False)
        row.covered = [lead is not None for lead in leads]
        for sealed in manifest.segments.chain(topic_id):
            for partition, end in enumerate(sealed.ends, sealed.first_partition):
                if not row.covered[partition]:
                    row.bases[partition] = end
                    row.origins[partition] = sealed.producers_key
    for edit in edits:
        match edit:
            case CreateTopic(topic):
                rows[topic.id] = _Row(topic.partitions, topic.room, True)
            case DeleteTopic(topic_id):
                rows.pop(topic_id, None)
            case SetPartitions(topic_id, partitions) if topic_id in rows:
                rows[topic_id].grow(partitions)
            case SealSegment(segment_id, ends, producers_key):
                segment = manifest.segments.open.get(segment_id)
                if segment is not None and segment.topic_id in rows:
                    rows[segment.topic_id].seal(segment.first_partition, ends, producers_key)
            case OpenSegment(segment) if segment.topic_id in rows:
                for partition in segment.partitions:
                    rows[segment.topic_id].covered[partition] = True
    return [gap for topic_id, row in rows.items() for gap in _gaps_of(topic_id, row)]


def open_successors(manifest: Manifest, edits: Iterable[Edit], gaps: Iterable[Gap], successors: Iterable[Successor]) -> list[Edit]:
    """The edits that open `successors`, each of which lies within one gap."""
    epochs = [manifest.leader_epoch]
    segment_id = manifest.segments.next_id
    for edit in edits:
        if isinstance(edit, OpenIncarnation):
            epochs.append(edit.incarnation.leader_epoch)
        elif isinstance(edit, SetLeader):
            epochs.append(edit.leader_epoch)
        elif isinstance(edit, OpenSegment):
            epochs.append(edit.segment.leader_epoch)
            segment_id = max(segment_id, edit.segment.id + 1)
    epoch = max(epochs) + 1
    by_topic: dict[uuid.UUID, list[Gap]] = {}
    for gap in gaps:
        by_topic.setdefault(gap.topic_id, []).append(gap)
    opened: list[Edit] = []
    for number, successor in enumerate(successors):
        for gap in by_topic[successor.topic_id]:
            if gap.first_partition <= successor.first_partition and successor.end_partition <= gap.end_partition:
                break
        else:
            raise AssertionError("a successor lies within one gap")
        start, end = successor.first_partition - gap.first_partition, successor.end_partition - gap.first_partition
        opened.append(
            OpenSegment(
                SegmentInfo(
                    id=segment_id + number,
                    topic_id=successor.topic_id,
                    first_partition=successor.first_partition,
                    end_partition=successor.end_partition,
                    incarnation_id=successor.incarnation_id,
                    leader_epoch=epoch + number,
                    base_offsets=gap.base_offsets[start:end],
                    origins=sorted({origin for origin in gap.origins[start:end] if origin is not None}),
                )
            )
        )
    return opened


def _touched(manifest: Manifest, edits: Iterable[Edit]) -> set[uuid.UUID]:
    touched: set[uuid.UUID] = set()
    for edit in edits:
        if isinstance(edit, SetPartitions):
            touched.add(edit.topic_id)
        elif isinstance(edit, SealSegment) and edit.segment_id in manifest.segments.open:
            touched.add(manifest.segments.open[edit.segment_id].topic_id)
    return touched


def _gaps_of(topic_id: uuid.UUID, row: _Row) -> Iterable[Gap]:
    first = 0
    total = len(row.covered)
    while first < total:
        if row.covered[first]:
            first += 1
            continue
        end = first
        while end < total and not row.covered[end]:
            end += 1
        yield Gap(
            topic_id=topic_id,
            first_partition=first,
            base_offsets=row.bases[first:end],
            origins=row.origins[first:end],
            is_new=row.is_new,
        )
        first = end
