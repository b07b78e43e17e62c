"""The manifest: the contents of the cluster, as a state and the edits that change it. No I/O.

The state is the fold of its edits. So the cost of a commit depends on the changes, never on the length of the history. Edits and
snapshots are JSON, for a person with `cat` in the store. `engine/catalog.py` writes them through `store/journal.py`.

Theory of operation::

    topic        CreateTopic -> SetPartitions | Reassign | SetTopicConfig | SetLogStart | SkipRecords ... -> DeleteTopic
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
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TypeVar

import msgspec

from headgate.broker.cluster.access import Access, AddAcls, DeleteUser, PutUser, RemoveAcls, User
from headgate.broker.cluster.acl import Acl
from headgate.broker.cluster.capacity import Reservation
from headgate.broker.cluster.file_times import GateTimes
from headgate.broker.cluster.folded_files import ChunkPart, FoldedFiles, FoldToFiles, NoteCompacted
from headgate.broker.cluster.gates import GATES_MAX, Gate, GateWindow, ParquetExtent
from headgate.broker.cluster.quotas import AlterQuotas, QuotaRow, Quotas
from headgate.broker.cluster.ranges import one_covers
from headgate.broker.cluster.reassignment import Reassign, reassigned, settled
from headgate.broker.cluster.segments import SealedSegment, SegmentInfo
from headgate.broker.runtime.errors import CorruptError, Reason

FORMAT_VERSION = 2
"""Format of the snapshots and edits. A broker refuses any other format."""
CHAIN_SEGMENTS_MAX = 64
"""Sealed segments of one topic that are remembered, beside those without open successors."""
DOWNTIMES_MAX = 64
"""Downtimes that are remembered, the newest ones. An older downtime counts as elapsed time again."""

ROOM = "history.room"
"""The topic setting with the number of offsets that are reserved for history in front."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `config` holds the overrides only; `cluster/topic_config.py` has the defaults. `replication_factor` is what Kafka
    clients are shown; the store makes the copies. `replicas` and `targets`: see `cluster/reassignment.py`."""

    id: uuid.UUID
    name: str
    partitions: int
    config: dict[str, str] = {}
    created_ms: int = 0
    replication_factor: int = 1
    replicas: dict[int, list[int]] = {}
    targets: dict[int, list[int]] = {}

    @property
    def room(self) -> int:
        """The offset of the first live record. The offsets below it are reserved for history."""
        return int(self.config.get(ROOM, "0"))


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A run of consecutive offsets [base_offset, end_offset) of one partition in one chunk.

    `position` and `length_bytes`: place of its rows in the chunk's index, in bytes. `timestamp_max_ms`: the greatest record
    timestamp in it. `data_bytes`: size of its batches.
    """

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    timestamp_max_ms: int
    data_bytes: int
    position: int
    length_bytes: int


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed WAL object. `number` counts from 0 within the incarnation. `appended_ms`: the wall-clock time of its last
    group.

    `index_inline`: the index is in the chunk's own object, else in a separate one. A folded chunk (`generation` > 0) replaces
    the chunks from `number` to `last_number`. `made_by` is part of the name of an object that the incarnation's WAL did not
    write: a folded chunk or a recovered index. No two attempts, by any broker, ever write the same object.
    """

    number: int
    last_number: int
    generation: int = 0
    made_by: str = ""
    size_bytes: int
    appended_ms: int
    index_inline: bool
    extents: list[Extent]


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one broker process. Epochs of incarnations and segments come from one counter; no two are equal.

    `next_chunk`: every chunk below this number was listed, also if it was removed since. The unsealed tail begins here. Other
    brokers and clients connect to `host` and the ports; "" and 0 if unknown. `listeners`: name and ``host:port`` of each
    further Kafka port.
    """

    id: str
    broker_id: int
    leader_epoch: int
    opened_ms: int
    next_chunk: int = 0
    sealed: bool = False
    host: str = ""
    kafka_port: int = 0
    grpc_port: int = 0
    http_port: int = 0
    rack: str = ""
    grpc_mtls_port: int = 0
    listeners: tuple[tuple[str, str], ...] = ()

    @property
    def peer_port(self) -> int:
        """The gRPC port for other brokers."""
        return self.grpc_mtls_port or self.grpc_port

    def kafka_address(self, listener: str) -> tuple[str, int]:
        """(host, port) of the Kafka listener with this name, or of the first one if the broker has no such listener."""
        for name, address in self.listeners:
            if name == listener:
                host, _, port = address.rpartition(":")
                return host, int(port)
        return self.host, self.kafka_port


class Follower(msgspec.Struct, frozen=True, kw_only=True):
    """The broker with copies of an incarnation's acked records that may not be in the store yet. `stream`: see
    `engine/write/replicas.py`."""

    incarnation_id: str
    host: str
    grpc_port: int
    stream: int


class NoteDowntime(msgspec.Struct, frozen=True, tag="note_downtime"):
    """No broker is known to have run between these two times, in ms. Records did not age then (`cluster/downtime.py`)."""

    since_ms: int
    until_ms: int


class CreateTopic(msgspec.Struct, frozen=True, tag="create_topic"):
    topic: Topic


class DeleteTopic(msgspec.Struct, frozen=True, tag="delete_topic"):
    topic_id: uuid.UUID


class SetPartitions(msgspec.Struct, frozen=True, tag="set_partitions"):
    topic_id: uuid.UUID
    partitions: int


class SetTopicConfig(msgspec.Struct, frozen=True, tag="set_topic_config"):
    """The overrides of a topic.

    `was`: the overrides from which the author made them. If the topic has others by now, the edit is refused. None: no such
    check.
    """

    topic_id: uuid.UUID
    config: dict[str, str]
    was: dict[str, str] | None = None


class SetBrokerConfig(msgspec.Struct, frozen=True, tag="set_broker_config"):
    """The settings that clients gave a broker, or all brokers (`broker` ""). Every value is valid.

    `was`: the settings from which the author made them. If there are others by now, the edit is refused.
    """

    broker: str
    config: dict[str, str]
    was: dict[str, str]


class SetLogStart(msgspec.Struct, frozen=True, tag="set_log_start"):
    """Records below these offsets are deleted, by DeleteRecords or retention. Offsets never go back.

    `by_age`: retention made this edit. It must not pass a gate that its author did not know.
    """

    topic_id: uuid.UUID
    offsets: dict[int, int]
    by_age: bool = False


class SkipRecords(msgspec.Struct, frozen=True, tag="skip_records"):
    """Readers pass the offsets in [base_offset, end_offset) of a partition for ever. Both are boundaries of batches."""

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    end_offset: int


class OpenIncarnation(msgspec.Struct, frozen=True, tag="open_incarnation"):
    incarnation: Incarnation


class AddChunks(msgspec.Struct, frozen=True, tag="add_chunks"):
    """Chunks completed since the last edit, and the producer checkpoint that covers all chunks up to the last of them."""

    incarnation_id: str
    chunks: list[Chunk]
    producers_key: str | None = None


class SetFollower(msgspec.Struct, frozen=True, tag="set_follower"):
    """From now on, records that this follower has count as acked. A broker that recovers the incarnation must ask the follower."""

    incarnation_id: str
    follower: Follower


class SealIncarnation(msgspec.Struct, frozen=True, tag="seal_incarnation"):
    incarnation_id: str


class RemoveChunks(msgspec.Struct, frozen=True, tag="remove_chunks"):
    """No extent in these chunks is needed any more. Their objects may be deleted once this edit is durable."""

    incarnation_id: str
    numbers: list[int]


class FoldChunks(msgspec.Struct, frozen=True, tag="fold_chunks"):
    """These chunks were folded into one (engine/upkeep/fold.py). Their objects may be deleted once this edit is durable."""

    incarnation_id: str
    numbers: list[int]
    chunk: Chunk


class CloseIncarnation(msgspec.Struct, frozen=True, tag="close_incarnation"):
    """Forget a sealed incarnation without chunks. Its objects may be swept."""

    incarnation_id: str


class OpenSegment(msgspec.Struct, frozen=True, tag="open_segment"):
    """A broker leads these partitions from now on. Before, none of them has an open segment."""

    segment: SegmentInfo


class SealSegment(msgspec.Struct, frozen=True, tag="seal_segment"):
    """The segment has ended. `ends`: the offset after its last record, per partition in order. `producers_key`: an object with
    the state of its producers at these offsets."""

    segment_id: int
    ends: list[int]
    producers_key: str | None = None


class SetLeader(msgspec.Struct, frozen=True, tag="set_leader"):
    """This incarnation leads the cluster: it writes the journal. `leader_epoch` is the epoch of its term, greater than any epoch
    before."""

    incarnation_id: str
    leader_epoch: int


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    """The other edits of this version are commit `number` of an incarnation. The same commit has no effect a second time."""

    incarnation_id: str
    number: int


class PutReservation(msgspec.Struct, frozen=True, tag="put_reservation"):
    """A reservation is open, with its full time left. It replaces the one with its id."""

    reservation: Reservation


class ReleaseReservation(msgspec.Struct, frozen=True, tag="release_reservation"):
    """A reservation has ended: it was released, or its time has run out."""

    reservation_id: str


class OpenGate(msgspec.Struct, frozen=True, tag="open_gate"):
    """Reserved offsets for history. `segments`: for each partition in order, the segment of the lead that reserved the window;
    [] for a gate at the front, which needs no lead. A gate that is filled in the same step has its extents, and the state
    `filled`."""

    gate: Gate
    segments: list[int] = []


class FillGate(msgspec.Struct, frozen=True, tag="fill_gate"):
    """The files of all partitions of a gate, at once."""

    topic_id: uuid.UUID
    gate_id: str
    extents: list[ParquetExtent]
    digest: str
    filled_ms: int


class RenewGate(msgspec.Struct, frozen=True, tag="renew_gate"):
    """The time-to-live of an open gate starts again."""

    topic_id: uuid.UUID
    gate_id: str
    ttl_ms: int


class ReleaseGate(msgspec.Struct, frozen=True, tag="release_gate"):
    """An open gate was released. `why`: `asked` or `expired`."""

    topic_id: uuid.UUID
    gate_id: str
    why: str


class TrimGates(msgspec.Struct, frozen=True, tag="trim_gates"):
    """Forget files that are no longer readable, of gates and of folds. They are then no longer named."""

    topic_id: uuid.UUID


class CondemnFiles(msgspec.Struct, frozen=True, tag="condemn_files"):
    """Nothing names these objects, and nothing may from now on: they are about to be deleted."""

    paths: list[str]


class ForgetFiles(msgspec.Struct, frozen=True, tag="forget_files"):
    """Condemned objects were deleted."""

    paths: list[str]


Edit = (
    PutUser
    | DeleteUser
    | AddAcls
    | RemoveAcls
    | AlterQuotas
    | CreateTopic
    | DeleteTopic
    | SetPartitions
    | Reassign
    | SetTopicConfig
    | SetBrokerConfig
    | SetLogStart
    | SkipRecords
    | OpenIncarnation
    | AddChunks
    | SetFollower
    | SealIncarnation
    | RemoveChunks
    | FoldChunks
    | FoldToFiles
    | NoteCompacted
    | CloseIncarnation
    | OpenSegment
    | SealSegment
    | SetLeader
    | Committed
    | PutReservation
    | ReleaseReservation
    | OpenGate
    | FillGate
    | RenewGate
    | ReleaseGate
    | TrimGates
    | CondemnFiles
    | ForgetFiles
    | NoteDowntime
)


class _EditFile(msgspec.Struct, kw_only=True):
    format: int = FORMAT_VERSION
    edits: list[Edit]


class _Format(msgspec.Struct):
    format: int


class _Snapshot(msgspec.Struct, kw_only=True):
    format: int = FORMAT_VERSION
    topics: list[Topic]
    log_starts: dict[uuid.UUID, dict[int, int]]
    incarnations: list[Incarnation]
    chunks: dict[str, list[Chunk]]
    producers_keys: dict[str, str]
    segments: list[SegmentInfo]
    sealed_segments: list[SealedSegment]
    next_segment_id: int
    commits: dict[str, int]
    leader: str
    term_epoch: int
    leader_epoch: int
    reservations: list[Reservation] = []
    gates: list[Gate] = []
    cuts: dict[uuid.UUID, dict[int, list[tuple[int, int]]]] = {}
    condemned: list[str] = []
    followers: dict[str, Follower] = {}
    downtimes: list[tuple[int, int]] = []
    files: dict[uuid.UUID, dict[int, list[ParquetExtent]]] = {}
    superseded: dict[str, int] = {}
    compacted: dict[uuid.UUID, dict[int, list[tuple[int, int]]]] = {}
    users: list[User] = []
    acls: list[Acl] = []
    quotas: list[QuotaRow] = []
    broker_configs: dict[str, dict[str, str]] = {}


class Manifest:
    """The state. `apply` changes it by edits, in order. The attributes are for reading."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        """All and only the live topics, by name."""
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        """The same topics, by id."""
        self.reassigning: dict[uuid.UUID, None] = {}
        """All and only the topics with reassignments in progress."""
        self.placed: dict[uuid.UUID, None] = {}
        """All and only the topics with partitions whose replicas a client chose, and that got them."""
        self.log_starts: dict[uuid.UUID, dict[int, int]] = {}
        """First readable offset, if it is not the first one ever written. Only of live topics."""
        self.incarnations: dict[str, Incarnation] = {}
        """Incarnations with chunks that may hold records, in the order of their opening."""
        self.chunks: dict[str, dict[int, Chunk]] = {}
        """Sealed chunks by incarnation and number. Every incarnation has a key."""
        self.followers: dict[str, Follower] = {}
        """The follower of an open incarnation, if it has one."""
        self.producers_keys: dict[str, str] = {}
        """The newest producer checkpoint of an incarnation. It covers all its partitions, after every chunk listed at that time."""
        self.segments: dict[int, SegmentInfo] = {}
        """All and only the open segments, by id."""
        self.sealed_segments: dict[int, SealedSegment] = {}
        """The newest sealed segments of live topics, by id, in the order of their sealing."""
        self._chains: dict[uuid.UUID, dict[int, SealedSegment]] = {}
        """The same, by topic, so that the cost of a commit depends only on its topics. Every live topic has a key."""
        self.leads: dict[uuid.UUID, list[SegmentInfo | None]] = {}
        """The open segment of every partition of every live topic; None without one."""
        self.gates: dict[uuid.UUID, dict[str, Gate]] = {}
        """Gates by topic and id, in the order of their opening. Only live topics that have gates."""
        self.gate_times = GateTimes()
        self._window_ends: dict[uuid.UUID, list[int]] = {}
        """The end of each partition's last window that is not at the front, for commits of positions. Only topics with gates."""
        self.cuts: dict[uuid.UUID, dict[int, list[tuple[int, int]]]] = {}
        """Ranges above the log start that readers pass: deleted before a gate opened in front, skipped, or without a record."""
        self.files = FoldedFiles()
        self.compacted: dict[uuid.UUID, dict[int, list[tuple[int, int]]]] = {}
        """How far partitions are compacted, and since when (`NoteCompacted`). Only of live topics."""
        self.superseded: dict[str, int] = {}
        """Files whose place other files have taken, and the wall-clock time in ms of that. Readers may still read them."""
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
        self.next_segment_id = 0
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

    def apply(self, edits: Iterable[Edit]) -> None:
        """Fold edits into the state. An edit about a deleted object, or one that was applied before, has no effect."""
        for edit in edits:
            match edit:
                case CreateTopic(topic):
                    if topic.name not in self.topics:
                        self._put_topic(topic)
                case DeleteTopic(topic_id):
                    topic_gone = self.topics_by_id.pop(topic_id, None)
                    if topic_gone is not None:
                        del self.topics[topic_gone.name]
                        self._drop_segments(topic_id)
                    self.reassigning.pop(topic_id, None)
                    self.placed.pop(topic_id, None)
                    self.log_starts.pop(topic_id, None)
                    self.gates.pop(topic_id, None)
                    self.gate_times.changed(topic_id)
                    self.files.drop_topic(topic_id)
                    self.compacted.pop(topic_id, None)
                    self._window_ends.pop(topic_id, None)
                    self.cuts.pop(topic_id, None)
                case SetPartitions(topic_id, partitions):
                    self._change_topic(topic_id, partitions=partitions)
                    leads = self.leads.get(topic_id)
                    if leads is not None:
                        leads.extend([None] * (partitions - len(leads)))
                case Reassign(topic_id, _):
                    if topic_id in self.topics_by_id:
                        self._change_topic(topic_id, targets=reassigned(self.topics_by_id[topic_id].targets, edit))
                        self._settle(topic_id)
                case SetTopicConfig(topic_id, config, _):
                    self._change_topic(topic_id, config=config)
                case SetLogStart(topic_id, offsets, _):
                    if topic_id in self.topics_by_id:
                        starts = self.log_starts.setdefault(topic_id, {})
                        for partition, offset in offsets.items():
                            starts[partition] = max(offset, self.log_start(topic_id, partition))
                        self._prune_cuts(topic_id)
                case SkipRecords(topic_id, partition, base_offset, end_offset):
                    if topic_id in self.topics_by_id:
                        self._cut_out(topic_id, partition, base_offset, end_offset)
                        self._prune_cuts(topic_id)
                case OpenIncarnation(incarnation):
                    self.incarnations[incarnation.id] = incarnation
                    self.chunks[incarnation.id] = {}
                    self.leader_epoch = max(self.leader_epoch, incarnation.leader_epoch)
                case AddChunks(incarnation_id, chunks, producers_key):
                    if incarnation_id in self.incarnations:
                        self._add_chunks(incarnation_id, chunks)
                        if producers_key is not None:
                            self.producers_keys[incarnation_id] = producers_key
                case SealIncarnation(incarnation_id):
                    if incarnation_id in self.incarnations:
                        sealed = msgspec.structs.replace(self.incarnations[incarnation_id], sealed=True)
                        self.incarnations[incarnation_id] = sealed
                        self.followers.pop(incarnation_id, None)
                case SetFollower(incarnation_id, follower):
                    if incarnation_id in self.incarnations:
                        self.followers[incarnation_id] = follower
                case RemoveChunks(incarnation_id, numbers):
                    for number in numbers:
                        self.chunks.get(incarnation_id, {}).pop(number, None)
                case FoldChunks(incarnation_id, numbers, chunk):
                    if incarnation_id in self.incarnations:
                        for number in numbers:
                            self.chunks[incarnation_id].pop(number, None)
                        self.chunks[incarnation_id][chunk.number] = chunk
                case NoteCompacted(topic_id, partition, marks):
                    if topic_id in self.topics_by_id:
                        self.compacted.setdefault(topic_id, {})[partition] = marks
                case FoldToFiles():
                    if edit.topic_id in self.topics_by_id:
                        self._fold_to_files(edit)
                case CloseIncarnation(incarnation_id):
                    self.incarnations.pop(incarnation_id, None)
                    self.chunks.pop(incarnation_id, None)
                    self.producers_keys.pop(incarnation_id, None)
                    self.commits.pop(incarnation_id, None)
                case OpenSegment(segment):
                    if segment.topic_id in self.topics_by_id:
                        self._put_segment(segment)
                        self._prune_chain(segment.topic_id)
                        self._settle(segment.topic_id)
                    self.next_segment_id = max(self.next_segment_id, segment.id + 1)
                    self.leader_epoch = max(self.leader_epoch, segment.leader_epoch)
                case SealSegment(segment_id, ends, producers_key):
                    self._seal_segment(segment_id, ends, producers_key)
                case SetLeader(incarnation_id, leader_epoch):
                    self.leader, self.term_epoch = incarnation_id, leader_epoch
                    self.leader_epoch = max(self.leader_epoch, leader_epoch)
                case Committed(incarnation_id, number):
                    if incarnation_id in self.incarnations:
                        self.commits[incarnation_id] = max(number, self.commits.get(incarnation_id, -1))
                case PutReservation(reservation):
                    self.reservations[reservation.id] = reservation
                case ReleaseReservation(reservation_id):
                    self.reservations.pop(reservation_id, None)
                case OpenGate(gate, _):
                    if gate.topic_id in self.topics_by_id:
                        self._put_gate(gate)
                case FillGate(topic_id, gate_id, extents, digest, filled_ms):
                    self._change_gate(
                        topic_id,
                        gate_id,
                        state="filled",
                        extents=extents,
                        digest=digest,
                        filled_ms=filled_ms,
                        rows=sum(one.rows for one in extents),
                        size_bytes=sum(one.size_bytes for one in extents),
                        files=len(extents),
                    )
                case RenewGate(topic_id, gate_id, ttl_ms):
                    known = self.gates.get(topic_id, {}).get(gate_id)
                    if known is not None:
                        self._change_gate(topic_id, gate_id, ttl_ms=ttl_ms, renewals=known.renewals + 1)
                case ReleaseGate(topic_id, gate_id, why):
                    self._change_gate(topic_id, gate_id, state="released", released_by=why)
                case TrimGates(topic_id):
                    self._trim_gates(topic_id)
                case CondemnFiles(paths):
                    self.condemned.update(dict.fromkeys(paths))
                case ForgetFiles(paths):
                    for path in paths:
                        self.condemned.pop(path, None)
                        self.superseded.pop(path, None)
                case PutUser() | DeleteUser() | AddAcls() | RemoveAcls():
                    self.access.apply(edit)
                case AlterQuotas():
                    self.quotas.apply(edit)
                case SetBrokerConfig(broker, config, _):
                    self.broker_configs.pop(broker, None)
                    if config:
                        self.broker_configs[broker] = config
                case NoteDowntime(since_ms, until_ms):
                    self.downtimes = [*self.downtimes, (since_ms, until_ms)][-DOWNTIMES_MAX:]

    def _add_chunks(self, incarnation_id: str, chunks: list[Chunk]) -> None:
        incarnation = self.incarnations[incarnation_id]
        fresh = [chunk for chunk in chunks if chunk.number >= incarnation.next_chunk]
        if fresh:
            self.chunks[incarnation_id].update((chunk.number, chunk) for chunk in fresh)
            next_chunk = max(chunk.last_number for chunk in fresh) + 1
            self.incarnations[incarnation_id] = msgspec.structs.replace(incarnation, next_chunk=next_chunk)

    def _fold_to_files(self, edit: FoldToFiles) -> None:
        topic_id, partition, parts = edit.topic_id, edit.partition, edit.parts
        self._drop_parts(topic_id, partition, edit.replaced)
        self.files.remove(topic_id, partition, edit.merged)
        for gate_id in {part.gate_id for part in edit.merged if part.gate_id}:
            gate = self.gates.get(topic_id, _NO_GATES).get(gate_id)
            if gate is not None:
                gone = {(part.path, part.base_offset) for part in edit.merged}
                self._change_gate(
                    topic_id, gate_id, extents=[one for one in gate.extents if (one.path, one.base_offset) not in gone]
                )
        self.superseded.update((part.path, edit.at_ms) for part in edit.merged)
        if edit.files:
            self.files.add(topic_id, partition, edit.files)
        else:
            self._cut_out(topic_id, partition, parts[0].base_offset, parts[-1].end_offset)
            self._prune_cuts(topic_id)

    def _drop_parts(self, topic_id: uuid.UUID, partition: int, parts: list[ChunkPart]) -> None:
        """Remove extents of one partition from chunks."""
        bases: dict[tuple[str, int], set[int]] = {}
        for part in parts:
            bases.setdefault((part.incarnation_id, part.number), set()).add(part.base_offset)
        for (incarnation_id, number), gone in bases.items():
            chunk = self.chunks.get(incarnation_id, {}).get(number)
            if chunk is not None:
                kept = [
                    one
                    for one in chunk.extents
                    if one.topic_id != topic_id or one.partition != partition or one.base_offset not in gone
                ]
                self.chunks[incarnation_id][number] = msgspec.structs.replace(chunk, extents=kept)

    def _put_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.id] = topic
        for index, known in ((self.reassigning, topic.targets), (self.placed, topic.replicas)):
            if known:
                index[topic.id] = None
            else:
                index.pop(topic.id, None)
        self.leads.setdefault(topic.id, [None] * topic.partitions)
        self._chains.setdefault(topic.id, {})

    def _settle(self, topic_id: uuid.UUID) -> None:
        """End the reassignments of a topic that are done."""
        if topic_id in self.reassigning:
            topic = self.topics_by_id[topic_id]
            targets, replicas = settled(topic.targets, topic.replicas, lambda number: self.lead_id(topic_id, number))
            if targets != topic.targets:
                self._change_topic(topic_id, targets=targets, replicas=replicas)

    def lead_id(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """The id of the broker that leads a partition of a live topic; None: no broker leads it at the moment."""
        segment = self.leads[topic_id][partition]
        return None if segment is None else self.incarnations[segment.incarnation_id].broker_id

    def _put_segment(self, segment: SegmentInfo) -> None:
        self.segments[segment.id] = segment
        leads = self.leads[segment.topic_id]
        for partition in segment.partitions:
            leads[partition] = segment

    def _seal_segment(self, segment_id: int, ends: list[int], producers_key: str | None) -> None:
        segment = self.segments.pop(segment_id, None)
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
        self._put_sealed(sealed)

    def _drop_segments(self, topic_id: uuid.UUID) -> None:
        for key in {segment.id for segment in self.leads.pop(topic_id) if segment is not None}:
            del self.segments[key]
        for key in self._chains.pop(topic_id):
            del self.sealed_segments[key]

    def _put_sealed(self, sealed: SealedSegment) -> None:
        self.sealed_segments[sealed.id] = self._chains[sealed.topic_id][sealed.id] = sealed

    def chain(self, topic_id: uuid.UUID) -> Iterable[SealedSegment]:
        """The newest sealed segments of a live topic, in the order of their sealing."""
        return self._chains[topic_id].values()

    def _prune_chain(self, topic_id: uuid.UUID) -> None:
        chain, leads = self._chains[topic_id], self.leads[topic_id]
        if len(chain) <= CHAIN_SEGMENTS_MAX:
            return
        for key in list(chain)[:-CHAIN_SEGMENTS_MAX]:
            sealed = chain[key]
            if all(leads[sealed.first_partition : sealed.end_partition]):
                del self.sealed_segments[key], chain[key]

    def _change_topic(self, topic_id: uuid.UUID, **changes: object) -> None:
        topic = self.topics_by_id.get(topic_id)
        if topic is not None:
            self._put_topic(msgspec.structs.replace(topic, **changes))

    def _put_gate(self, gate: Gate) -> None:
        gates = self.gates.setdefault(gate.topic_id, {})
        self.gate_times.changed(gate.topic_id)
        before = gates.pop(gate.id, None)
        if before is not None:
            number = next(number for number in range(1, GATES_MAX + 2) if f"{gate.id}~{number}" not in gates)
            gates[f"{gate.id}~{number}"] = msgspec.structs.replace(before, id=f"{gate.id}~{number}")
        gates[gate.id] = gate
        if len(gates) > GATES_MAX:
            oldest = next((key for key, one in gates.items() if one.state != "open" and not self.files_of(one)), None)
            if oldest is not None:
                del gates[oldest]
        self._note_windows(gate)
        if gate.place == "front":
            starts = self.log_starts.setdefault(gate.topic_id, {})
            for window in gate.windows:
                if window.rows:
                    start = self.log_start(gate.topic_id, window.partition)
                    if window.end_offset < start:
                        self._cut_out(gate.topic_id, window.partition, window.end_offset, start)
                    starts[window.partition] = window.base_offset
            self._prune_cuts(gate.topic_id)

    def _note_windows(self, gate: Gate) -> None:
        if gate.place != "front":
            ends = self._window_ends.setdefault(gate.topic_id, [])
            ends.extend([0] * (len(gate.windows) - len(ends)))
            for partition, window in enumerate(gate.windows):
                ends[partition] = max(ends[partition], window.end_offset)

    def _change_gate(self, topic_id: uuid.UUID, gate_id: str, **changes: object) -> None:
        gates = self.gates.get(topic_id, {})
        gate = gates.get(gate_id)
        if gate is not None:
            gates[gate_id] = msgspec.structs.replace(gate, **changes)
            if "extents" in changes:
                self.gate_times.changed(topic_id)

    def _cut_out(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> None:
        """Add a deleted range. Ranges that touch are merged, so there are as few ranges as holes."""
        ranges = self.cuts.setdefault(topic_id, {}).setdefault(partition, [])
        touching = [one for one in ranges if one[0] <= end_offset and base_offset <= one[1]]
        apart = [one for one in ranges if one not in touching]
        merged = min([base_offset, *(low for low, _ in touching)]), max([end_offset, *(high for _, high in touching)])
        self.cuts[topic_id][partition] = sorted([*apart, merged])

    def _prune_cuts(self, topic_id: uuid.UUID) -> None:
        cuts = self.cuts.get(topic_id)
        if cuts is None:
            return
        for partition, ranges in list(cuts.items()):
            start = self.log_start(topic_id, partition)
            cuts[partition] = [one for one in ranges if one[1] > start]
            if not cuts[partition]:
                del cuts[partition]
        if not cuts:
            del self.cuts[topic_id]

    def _trim_gates(self, topic_id: uuid.UUID) -> None:
        gates = self.gates.get(topic_id, {})
        for gate_id, gate in gates.items():
            gone = set(map(id, self._unreadable(topic_id, gate.extents)))
            if gone:
                gates[gate_id] = msgspec.structs.replace(gate, extents=[one for one in gate.extents if id(one) not in gone])
                self.gate_times.changed(topic_id)
        self.files.trim(topic_id, self._unreadable_folds(topic_id))

    def unreadable_files(self, topic_id: uuid.UUID) -> list[ParquetExtent]:
        """The files of a topic, of gates and of folds, that have no readable record."""
        found = self._unreadable_folds(topic_id)
        for gate in self.gates.get(topic_id, _NO_GATES).values():
            found += self._unreadable(topic_id, gate.extents)
        return found

    def _unreadable_folds(self, topic_id: uuid.UUID) -> list[ParquetExtent]:
        by_partition = self.files.by_topic.get(topic_id, {}).values()
        return [one for files in by_partition for one in self._unreadable(topic_id, files)]

    def _unreadable(self, topic_id: uuid.UUID, files: list[ParquetExtent]) -> Iterator[ParquetExtent]:
        """Those without a readable record, of files by partition and offset. The cost follows their number."""
        first = 0
        while first < len(files):
            partition = files[first].partition
            stop = bisect_right(files, partition, lo=first, key=lambda one: one.partition)
            readable = bisect_right(files, self.log_start(topic_id, partition), lo=first, hi=stop, key=lambda one: one.end_offset)
            yield from files[first:readable]
            for low, high in self.cuts.get(topic_id, {}).get(partition, ()):
                start = bisect_left(files, low, lo=readable, hi=stop, key=lambda one: one.base_offset)
                yield from files[start : bisect_right(files, high, lo=start, hi=stop, key=lambda one: one.end_offset)]
            first = stop

    def files_of(self, gate: Gate) -> list[ParquetExtent]:
        """The files that have the records of a gate. A folded file may have those of its neighbours, too."""
        folded: list[ParquetExtent] = []
        if gate.state == "filled":
            for window in gate.windows:
                folded += self.files.within(gate.topic_id, window.partition, window.base_offset, window.end_offset)
        return sorted([*gate.extents, *folded], key=lambda one: (one.partition, one.base_offset)) if folded else list(gate.extents)

    def named_files(self) -> set[str]:
        """The paths of all files of gates and of folds."""
        named = {one.path for gates in self.gates.values() for gate in gates.values() for one in gate.extents}
        named.update(one.path for _, one in self.files.all())
        return named

    def log_start(self, topic_id: uuid.UUID, partition: int) -> int:
        """The first readable offset, or the offset of the first record to come."""
        start = self.log_starts.get(topic_id, _NO_STARTS).get(partition)
        if start is None:
            topic = self.topics_by_id.get(topic_id)
            return 0 if topic is None else topic.room
        return start

    def window_end(self, topic_id: uuid.UUID, partition: int) -> int:
        """The end of the last window of a partition that is not at the front. Live records never begin before it."""
        ends = self._window_ends.get(topic_id, _NO_ENDS)
        return ends[partition] if partition < len(ends) else 0

    def front(self, topic_id: uuid.UUID, partition: int) -> int:
        """The end of the next gate at the front: the beginning of the first window there, or the first possible live offset."""
        bases = (
            gate.windows[partition].base_offset
            for gate in self.gates.get(topic_id, _NO_GATES).values()
            if gate.place == "front" and partition < len(gate.windows) and gate.windows[partition].rows
        )
        return min(bases, default=self.topics_by_id[topic_id].room)

    def windows(self, topic_id: uuid.UUID, partition: int) -> list[tuple[GateWindow, Gate]]:
        """The windows of a partition that are not empty, by offset."""
        found = [
            (gate.windows[partition], gate)
            for gate in self.gates.get(topic_id, _NO_GATES).values()
            if partition < len(gate.windows) and gate.windows[partition].rows
        ]
        return sorted(found, key=lambda one: one[0].base_offset)

    def needs(self, chunk: Chunk) -> bool:
        """True if a chunk has a record that may still be read."""
        return any(self.is_readable(one.topic_id, one.partition, one.base_offset, one.end_offset) for one in chunk.extents)

    def first_readable(self, topic_id: uuid.UUID, partition: int, offset: int) -> int:
        """The first offset from `offset` on that may have a readable record."""
        return first_readable(offset, self.log_start(topic_id, partition), self.cuts.get(topic_id, {}).get(partition, ()))

    def is_readable(self, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> bool:
        """True if a range of offsets may have a readable record."""
        if topic_id not in self.topics_by_id or end_offset <= self.log_start(topic_id, partition):
            return False
        cuts = self.cuts.get(topic_id)
        return cuts is None or not one_covers(cuts.get(partition, ()), base_offset, end_offset)

    def producers_objects(self) -> set[str]:
        """Keys of all objects with producers' state that a lead may still need."""
        needed = {origin for segment in self.segments.values() for origin in segment.origins}
        needed.update(self.producers_keys.values())
        covered = {topic_id: [lead is not None for lead in leads] for topic_id, leads in self.leads.items()}
        for sealed in reversed(self.sealed_segments.values()):
            row = covered[sealed.topic_id]
            if not all(row[sealed.first_partition : sealed.end_partition]):
                row[sealed.first_partition : sealed.end_partition] = [True] * len(sealed.ends)
                if sealed.producers_key is not None:
                    needed.add(sealed.producers_key)
        return needed

    def encode(self) -> bytes:
        """The whole state as a snapshot."""
        return msgspec.json.encode(
            _Snapshot(
                topics=list(self.topics.values()),
                log_starts=self.log_starts,
                incarnations=list(self.incarnations.values()),
                chunks={key: list(chunks.values()) for key, chunks in self.chunks.items()},
                producers_keys=self.producers_keys,
                segments=list(self.segments.values()),
                sealed_segments=list(self.sealed_segments.values()),
                next_segment_id=self.next_segment_id,
                commits=self.commits,
                leader=self.leader,
                term_epoch=self.term_epoch,
                leader_epoch=self.leader_epoch,
                reservations=list(self.reservations.values()),
                gates=[gate for gates in self.gates.values() for gate in gates.values()],
                cuts=self.cuts,
                condemned=list(self.condemned),
                followers=self.followers,
                downtimes=self.downtimes,
                files=self.files.by_topic,
                superseded=self.superseded,
                compacted=self.compacted,
                users=list(self.access.users.values()),
                acls=list(self.access.acls.all),
                quotas=self.quotas.rows(),
                broker_configs=self.broker_configs,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The state of a snapshot. Raises CorruptError."""
        snapshot = _decode(data, _Snapshot, "manifest snapshot")
        manifest = cls()
        for topic in snapshot.topics:
            manifest._put_topic(topic)
        manifest.log_starts = snapshot.log_starts
        manifest.incarnations = {incarnation.id: incarnation for incarnation in snapshot.incarnations}
        manifest.chunks = {key: {chunk.number: chunk for chunk in chunks} for key, chunks in snapshot.chunks.items()}
        manifest.producers_keys = snapshot.producers_keys
        for segment in snapshot.segments:
            manifest._put_segment(segment)
        for sealed in snapshot.sealed_segments:
            manifest._put_sealed(sealed)
        manifest.next_segment_id = snapshot.next_segment_id
        manifest.commits = snapshot.commits
        manifest.leader = snapshot.leader
        manifest.term_epoch = snapshot.term_epoch
        manifest.leader_epoch = snapshot.leader_epoch
        manifest.reservations = {reservation.id: reservation for reservation in snapshot.reservations}
        for gate in snapshot.gates:
            manifest.gates.setdefault(gate.topic_id, {})[gate.id] = gate
            manifest._note_windows(gate)
        manifest.cuts = snapshot.cuts
        manifest.condemned = dict.fromkeys(snapshot.condemned)
        manifest.followers = snapshot.followers
        manifest.downtimes = snapshot.downtimes
        manifest.files = FoldedFiles(snapshot.files)
        manifest.superseded = snapshot.superseded
        manifest.compacted = snapshot.compacted
        manifest.access = Access(snapshot.users, snapshot.acls)
        manifest.quotas = Quotas(snapshot.quotas)
        manifest.broker_configs = snapshot.broker_configs
        return manifest

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts the attributes' texts."""
        assert {topic.id for topic in self.topics.values()} == set(self.topics_by_id)
        assert all(self.topics[topic.name] is topic for topic in self.topics_by_id.values())
        assert set(self.reassigning) == {topic.id for topic in self.topics.values() if topic.targets}
        assert set(self.placed) == {topic.id for topic in self.topics.values() if topic.replicas}
        assert set(self.log_starts) <= set(self.topics_by_id)
        assert set(self.chunks) == set(self.incarnations)
        assert all(incarnation.leader_epoch <= self.leader_epoch for incarnation in self.incarnations.values())
        assert set(self.leads) == set(self.topics_by_id)
        assert set(self.producers_keys) <= set(self.incarnations)
        assert set(self.commits) <= set(self.incarnations)
        assert all(not self.incarnations[key].sealed for key in self.followers)
        for topic in self.topics.values():
            leads = self.leads[topic.id]
            assert len(leads) == topic.partitions
            for number, segment in enumerate(leads):
                assert segment is None or (number in segment.partitions and self.segments[segment.id] is segment)
        for segment in self.segments.values():
            assert all(self.leads[segment.topic_id][number] is segment for number in segment.partitions)
            assert len(segment.base_offsets) == len(segment.partitions)
            assert segment.leader_epoch <= self.leader_epoch and segment.id < self.next_segment_id
            assert segment.incarnation_id in self.incarnations
            assert not self.incarnations[segment.incarnation_id].sealed
        assert not set(self.segments) & set(self.sealed_segments)
        assert set(self._chains) == set(self.topics_by_id)
        assert {key for chain in self._chains.values() for key in chain} == set(self.sealed_segments)
        assert set(self.gates) <= set(self.topics_by_id) and set(self.cuts) <= set(self.topics_by_id)
        for topic_id, gates in self.gates.items():
            assert gates and all(key == gate.id and gate.topic_id == topic_id for key, gate in gates.items())
            for number in range(self.topics_by_id[topic_id].partitions):
                windows = self.windows(topic_id, number)
                for (one, _), (other, _) in pairwise(windows):
                    assert one.end_offset <= other.base_offset, "windows overlap"
            for gate in gates.values():
                assert not self.condemned.keys() & {extent.path for extent in gate.extents}
                for extent in gate.extents:
                    window = gate.windows[extent.partition]
                    assert window.base_offset <= extent.base_offset < extent.end_offset <= window.end_offset
        self.files.check_invariants()
        assert set(self.files.by_topic) <= set(self.topics_by_id)
        assert not self.condemned.keys() & {one.path for _, one in self.files.all()}
        assert not self.superseded.keys() & self.named_files()
        for topic_id, file in self.files.all():
            for window, gate in self.windows(topic_id, file.partition):
                assert (
                    (file.history and gate.state == "filled")
                    or file.end_offset <= window.base_offset
                    or window.end_offset <= file.base_offset
                ), "a window is in a file"
        for chunks in self.chunks.values():
            for part in (part for chunk in chunks.values() for part in chunk.extents):
                assert not self.files.overlap(part.topic_id, part.partition, part.base_offset, part.end_offset)
        for key, chunks in self.chunks.items():
            assert all(number == chunk.number <= chunk.last_number for number, chunk in chunks.items())
            assert all(chunk.last_number < self.incarnations[key].next_chunk for chunk in chunks.values())


def first_readable(offset: int, log_start: int, cuts: Iterable[tuple[int, int]]) -> int:
    """The first offset from `offset` on that is not deleted. `cuts`: by offset."""
    offset = max(offset, log_start)
    for low, high in cuts:
        if low <= offset < high:
            offset = high
    return offset


_NO_STARTS: Mapping[int, int] = {}
_NO_GATES: Mapping[str, Gate] = {}
_NO_ENDS: list[int] = []


def encode_edits(edits: list[Edit]) -> bytes:
    """Edits that take effect together: one version of the journal."""
    return msgspec.json.encode(_EditFile(edits=edits))


def decode_edits(data: bytes) -> list[Edit]:
    """The edits of one version. Raises CorruptError."""
    return _decode(data, _EditFile, "manifest edit").edits


_File = TypeVar("_File", _EditFile, _Snapshot)


def _decode(data: bytes, kind: type[_File], what: str) -> _File:
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version != FORMAT_VERSION:
            age = "a newer" if version > FORMAT_VERSION else "an older"
            raise CorruptError(
                Reason.CORRUPT_STORE, f"{what} was written by {age} version. format=`{version}` known=`{FORMAT_VERSION}`"
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(Reason.CORRUPT_STORE, f"{what} cannot be read. error=`{error}`") from error
