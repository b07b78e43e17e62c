"""The manifest: the contents of the cluster, as a state that edits change. No I/O.

The state is the fold of its edits. So the cost of a commit depends on the changes, never on the length of the history.
`cluster/edits/` has the edits, `manifest_format.py` what they and snapshots of the state look like in the store.

Theory of operation::

    topic        CreateTopic -> SetPartitions | SetTopicConfig | SetLogStart | SkipRecords ... -> DeleteTopic
    incarnation  OpenIncarnation -> AddChunks | SetFollower ... -> SealIncarnation -> RemoveChunks ... -> CloseIncarnation
    segment      OpenSegment -> SealSegment, at the latest together with its incarnation; its successors open with or after it
    chunk        AddChunks (its extents are now known without reading it) -> FoldChunks (part of a larger one)
                 -> FoldToFiles (some of its extents are in Parquet files; see folded_files.py)
                 -> RemoveChunks (its object may be swept)
    gate         OpenGate -> RenewGate ... -> FillGate (-> TrimGates) | ReleaseGate; see gates.py
    user         PutUser -> PutUser (another password) ... -> DeleteUser; rules: AddAcls -> RemoveAcls; see access.py
    quota        AlterQuotas; see quotas.py
    broker       SetBrokerConfig ...
    file         CondemnFiles (nothing names it, and nothing may from now on) -> its object is deleted -> ForgetFiles

An open incarnation may have chunks that are not listed yet: its unsealed tail. Only a recovery may decide about the tail, and
only after the incarnation was fenced. Once the incarnation is sealed, its list is complete, and no broker scans it again. The
same holds for the partitions of a segment: when it is sealed, all its acked records are listed.

One broker, the leader, writes the journal. `admission.py` has the rules for the edits that it accepts, from itself and from
others.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Protocol

import msgspec

from headgate.broker.cluster.access import Access
from headgate.broker.cluster.capacity import Reservation
from headgate.broker.cluster.folded_files import FoldedFiles
from headgate.broker.cluster.gates import Gate, ParquetExtent
from headgate.broker.cluster.objects import Chunk, Follower, Incarnation, Topic
from headgate.broker.cluster.quotas import Quotas
from headgate.broker.cluster.readable import Readable
from headgate.broker.cluster.topic_gates import TopicGates
from headgate.broker.cluster.topic_segments import TopicSegments
from headgate.broker.log.recipe import RECIPE


class Applicable(Protocol):
    """An edit, as far as the state knows it (`cluster/edits/edit.py`)."""

    def apply(self, state: Manifest) -> None: ...


class Manifest:
    """The state. Edits change it, in order. The attributes are for reading."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        """All and only the live topics, by name."""
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        """The same topics, by id."""
        self.readable = Readable(self.topics_by_id)
        self.segments = TopicSegments()
        self.gates = TopicGates()
        self.incarnations: dict[str, Incarnation] = {}
        """Incarnations with chunks that may hold records, in the order of their opening."""
        self.chunks: dict[str, dict[int, Chunk]] = {}
        """Sealed chunks by incarnation and number. Every incarnation has a key."""
        self.followers: dict[str, Follower] = {}
        """The follower of an open incarnation, if it has one."""
        self.producers_keys: dict[str, str] = {}
        """The newest producer checkpoint of an incarnation. It covers all its partitions, after every chunk listed at that time."""
        self.files = FoldedFiles()
        self.compacted: dict[uuid.UUID, dict[int, list[tuple[int, int]]]] = {}
        """How far partitions are compacted, and since when (`NoteCompacted`). Only of live topics."""
        self.superseded: dict[str, int] = {}
        """Files whose place other files have taken, and the wall-clock time in ms of that. Readers may still read them. A recipe is
        here from its first fold on, while other partitions or pieces of it may still be named."""
        self.condemned: dict[str, None] = {}
        """Files that nothing may name: they are being deleted."""
        self.downtimes: list[tuple[int, int]] = []
        """(since, until) in ms of the newest times in which no broker is known to have run, in the order of their noting."""
        self.access = Access()
        """Users, and what they may do."""
        self.quotas = Quotas()
        """How much clients may use."""
        self.broker_configs: dict[str, dict[str, str]] = {}
        """Settings that clients gave brokers, by broker id, or "" for all brokers. None of them is empty."""
        self.commits: dict[str, int] = {}
        """The number of the newest commit, for incarnations that commit through the leader."""
        self.reservations: dict[str, Reservation] = {}
        """All and only the open reservations of brokers, by id. Only the leader knows when they end."""
        self.leader = ""
        """The incarnation that leads the cluster, or the last one that did."""
        self.term_epoch = -1
        """The leader epoch of that term."""
        self.leader_epoch = -1
        """The greatest leader epoch ever given to an incarnation, a segment or a term."""

    def apply(self, edits: Iterable[Applicable]) -> None:
        """Fold edits into the state."""
        for edit in edits:
            edit.apply(self)

    def put_topic(self, topic: Topic) -> None:
        """Add a topic, or replace the one with its id."""
        self.topics[topic.name] = topic
        self.topics_by_id[topic.id] = topic
        self.segments.add_topic(topic.id, topic.partitions)

    def change_topic(self, topic_id: uuid.UUID, **changes: object) -> None:
        """Change fields of a topic, if it is there."""
        topic = self.topics_by_id.get(topic_id)
        if topic is not None:
            self.put_topic(msgspec.structs.replace(topic, **changes))

    def drop_topic(self, topic_id: uuid.UUID) -> None:
        """Forget a topic and all that belongs to it, but its chunks."""
        topic = self.topics_by_id.pop(topic_id, None)
        if topic is not None:
            del self.topics[topic.name]
            self.segments.drop_topic(topic_id)
        self.readable.drop_topic(topic_id)
        self.gates.drop_topic(topic_id)
        self.files.drop_topic(topic_id)
        self.compacted.pop(topic_id, None)

    def saw_epoch(self, leader_epoch: int) -> None:
        """An incarnation, a segment or a term has this leader epoch."""
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    def front(self, topic_id: uuid.UUID, partition: int) -> int:
        """The end of the next gate at the front: the beginning of the first window there, or the first possible live offset."""
        first = self.gates.front(topic_id, partition)
        return self.topics_by_id[topic_id].room if first is None else first

    def unreadable_folds(self, topic_id: uuid.UUID) -> list[ParquetExtent]:
        """The folded files of a topic that have no readable record."""
        by_partition = self.files.by_topic.get(topic_id, {}).values()
        return [extent for files in by_partition for extent in self.readable.without(topic_id, files)]

    def unreadable_files(self, topic_id: uuid.UUID) -> list[ParquetExtent]:
        """The files of a topic, of gates and of folds, that have no readable record."""
        found = self.unreadable_folds(topic_id)
        for gate in self.gates.of(topic_id).values():
            found += self.readable.without(topic_id, gate.extents)
        return found

    def files_of(self, gate: Gate) -> list[ParquetExtent]:
        """The files that have the records of a gate. A folded file may have those of its neighbours, too."""
        folded: list[ParquetExtent] = []
        if gate.state == "filled":
            for window in gate.windows:
                folded += self.files.within(gate.topic_id, window.partition, window.base_offset, window.end_offset)
        return (
            sorted([*gate.extents, *folded], key=lambda extent: (extent.partition, extent.base_offset))
            if folded
            else list(gate.extents)
        )

    def has_files(self, topic_id: uuid.UUID) -> bool:
        """True if a topic has records in files: of gates, or folded ones."""
        return bool(self.files.by_topic.get(topic_id)) or any(gate.extents for gate in self.gates.of(topic_id).values())

    def named_files(self) -> set[str]:
        """The paths of all files of gates and of folds."""
        named = {extent.path for gate in self.gates.all() for extent in gate.extents}
        named.update(extent.path for _, extent in self.files.all())
        return named

    def needs(self, chunk: Chunk) -> bool:
        """True if a chunk has a record that may still be read."""
        return any(
            self.readable.has(extent.topic_id, extent.partition, extent.base_offset, extent.end_offset) for extent in chunk.extents
        )

    def producers_objects(self) -> set[str]:
        """Keys of all objects with producers' state that a lead may still need."""
        return self.segments.producers_objects() | set(self.producers_keys.values())

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts the attributes' texts."""
        assert {topic.id for topic in self.topics.values()} == set(self.topics_by_id)
        assert all(self.topics[topic.name] is topic for topic in self.topics_by_id.values())
        partitions = {topic.id: topic.partitions for topic in self.topics.values()}
        self.readable.check_invariants()
        self.segments.check_invariants()
        self.gates.check_invariants(partitions)
        self.files.check_invariants()
        assert {topic_id: len(leads) for topic_id, leads in self.segments.leads.items()} == partitions
        self._check_brokers()
        self._check_places()

    def _check_brokers(self) -> None:
        assert set(self.producers_keys) <= set(self.incarnations) and set(self.commits) <= set(self.incarnations)
        assert all(incarnation.leader_epoch <= self.leader_epoch for incarnation in self.incarnations.values())
        assert all(not self.incarnations[key].sealed for key in self.followers)
        for segment in self.segments.open.values():
            assert segment.leader_epoch <= self.leader_epoch
            assert not self.incarnations[segment.incarnation_id].sealed
        assert set(self.chunks) == set(self.incarnations)
        for key, chunks in self.chunks.items():
            assert all(number == chunk.number <= chunk.last_number for number, chunk in chunks.items())
            assert all(chunk.last_number < self.incarnations[key].next_chunk for chunk in chunks.values())

    def _check_places(self) -> None:
        """An offset is in one place, and a file that is being deleted has no name."""
        assert set(self.files.by_topic) <= set(self.topics_by_id)
        named = self.named_files()
        assert not self.condemned.keys() & named
        assert not {path for path in self.superseded if not path.endswith(RECIPE)} & named
        for topic_id, file in self.files.all():
            for window, gate in self.gates.windows(topic_id, file.partition):
                assert (
                    (file.history and gate.state == "filled")
                    or file.end_offset <= window.base_offset
                    or window.end_offset <= file.base_offset
                ), "a window is in a file"
        for chunks in self.chunks.values():
            for part in (part for chunk in chunks.values() for part in chunk.extents):
                assert not self.files.overlap(part.topic_id, part.partition, part.base_offset, part.end_offset)
