"""The manifest: what the cluster holds, as a state and the edits that change it. No I/O.

The state is the fold of its edits, so what a commit costs depends on what changed, never on how long the history is. Edits and
snapshots are JSON, for a person with `cat` in the store. `engine/catalog.py` writes them through `store/journal.py`.

Theory of operation::

    topic        CreateTopic -> SetPartitions | SetTopicConfig | SetLogStart ... -> DeleteTopic
    incarnation  OpenIncarnation -> AddChunks ... -> SealIncarnation -> RemoveChunks ... -> CloseIncarnation
    chunk        AddChunks (its extents are now known without reading it) -> FoldChunks (part of a larger one)
                 -> RemoveChunks (its object may be swept)

An incarnation that is open here may have chunks that are not listed yet: its unsealed tail, which only recovery may judge, and only
after the incarnation was fenced. Once it is sealed, the list here is all there is; nobody scans it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from broker.runtime.errors import CorruptError, Reason

FORMAT_VERSION = 1
"""Of the snapshots and edits. A broker refuses a newer one."""

NO_TIMESTAMP = -1


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. `config` holds the overrides only; `cluster/topic_config.py` has the defaults."""

    id: uuid.UUID
    name: str
    partitions: int
    config: dict[str, str] = {}
    created_ms: int = 0


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A run of consecutive offsets [base_offset, end_offset) of one partition in one chunk.

    `position` and `length_bytes` say where its rows stand in the chunk's index; `timestamp_max_ms` is the greatest record timestamp
    in it; `data_bytes` the size of its batches.
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
    """One sealed WAL object. `number` counts from 0 within the incarnation; `appended_ms` is when its last group was written.

    `index_inline`: the index stands in the chunk's own object, else in one beside it. A folded chunk (`generation` > 0) replaces
    those from `number` to `last_number`. `made_by` is part of the name of an object that was not written by the incarnation's WAL,
    a folded chunk or a recovered index: no two attempts at it, by whomever, ever write the same object.
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
    """One run of one broker process. `leader_epoch` is the epoch its appends carry; greater than that of any before it.

    `next_chunk`: every chunk below this number was listed, also where it was removed since: the unsealed tail begins here.
    """

    id: str
    broker_id: int
    leader_epoch: int
    opened_ms: int
    next_chunk: int = 0
    sealed: bool = False


class CreateTopic(msgspec.Struct, frozen=True, tag="create_topic"):
    topic: Topic


class DeleteTopic(msgspec.Struct, frozen=True, tag="delete_topic"):
    topic_id: uuid.UUID


class SetPartitions(msgspec.Struct, frozen=True, tag="set_partitions"):
    topic_id: uuid.UUID
    partitions: int


class SetTopicConfig(msgspec.Struct, frozen=True, tag="set_topic_config"):
    topic_id: uuid.UUID
    config: dict[str, str]


class SetLogStart(msgspec.Struct, frozen=True, tag="set_log_start"):
    """Records below these offsets are gone: DeleteRecords or retention. Offsets never go back."""

    topic_id: uuid.UUID
    offsets: dict[int, int]


class OpenIncarnation(msgspec.Struct, frozen=True, tag="open_incarnation"):
    incarnation: Incarnation


class AddChunks(msgspec.Struct, frozen=True, tag="add_chunks"):
    """Chunks sealed since the last edit, and the producer checkpoint that covers all chunks up to and with them."""

    incarnation_id: str
    chunks: list[Chunk]
    producers_key: str | None = None


class SealIncarnation(msgspec.Struct, frozen=True, tag="seal_incarnation"):
    incarnation_id: str


class RemoveChunks(msgspec.Struct, frozen=True, tag="remove_chunks"):
    """No extent in these is needed any more. Their objects may be deleted once this edit is durable."""

    incarnation_id: str
    numbers: list[int]


class FoldChunks(msgspec.Struct, frozen=True, tag="fold_chunks"):
    """These chunks have become one (engine/fold.py). Their objects may be deleted once this edit is durable."""

    incarnation_id: str
    numbers: list[int]
    chunk: Chunk


class CloseIncarnation(msgspec.Struct, frozen=True, tag="close_incarnation"):
    """A sealed incarnation without chunks is forgotten, and its objects may be swept."""

    incarnation_id: str


class ReserveProducerIds(msgspec.Struct, frozen=True, tag="reserve_producer_ids"):
    """Producer ids below `next_id` may have been handed out."""

    next_id: int


Edit = (
    CreateTopic
    | DeleteTopic
    | SetPartitions
    | SetTopicConfig
    | SetLogStart
    | OpenIncarnation
    | AddChunks
    | SealIncarnation
    | RemoveChunks
    | FoldChunks
    | CloseIncarnation
    | ReserveProducerIds
)


class _EditFile(msgspec.Struct, kw_only=True):
    format: int = FORMAT_VERSION
    edits: list[Edit]


class _Snapshot(msgspec.Struct, kw_only=True):
    format: int = FORMAT_VERSION
    topics: list[Topic]
    log_starts: dict[uuid.UUID, dict[int, int]]
    incarnations: list[Incarnation]
    chunks: dict[str, list[Chunk]]
    producers_key: str | None
    next_producer_id: int
    leader_epoch: int


class Manifest:
    """The state: `apply` edits in order. The attributes are for reading."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        """All and only the live topics, by name."""
        self.topics_by_id: dict[uuid.UUID, Topic] = {}
        """The same topics, by id."""
        self.log_starts: dict[uuid.UUID, dict[int, int]] = {}
        """First offset that may be read, where it is not the first ever written. Only of live topics."""
        self.incarnations: dict[str, Incarnation] = {}
        """Incarnations whose chunks may hold records, in the order they were opened."""
        self.chunks: dict[str, dict[int, Chunk]] = {}
        """Sealed chunks by incarnation and number; a key for every incarnation."""
        self.producers_key: str | None = None
        """The newest producer checkpoint: the state after every chunk listed when it was set."""
        self.next_producer_id = 0
        self.leader_epoch = -1
        """The greatest leader epoch ever given to an incarnation."""

    def apply(self, edits: Iterable[Edit]) -> None:
        """Fold edits into the state. Edits about what is gone, or is done already, have no effect."""
        for edit in edits:
            match edit:
                case CreateTopic(topic):
                    if topic.name not in self.topics:
                        self._put_topic(topic)
                case DeleteTopic(topic_id):
                    topic_gone = self.topics_by_id.pop(topic_id, None)
                    if topic_gone is not None:
                        del self.topics[topic_gone.name]
                    self.log_starts.pop(topic_id, None)
                case SetPartitions(topic_id, partitions):
                    self._change_topic(topic_id, partitions=partitions)
                case SetTopicConfig(topic_id, config):
                    self._change_topic(topic_id, config=config)
                case SetLogStart(topic_id, offsets):
                    if topic_id in self.topics_by_id:
                        starts = self.log_starts.setdefault(topic_id, {})
                        for partition, offset in offsets.items():
                            starts[partition] = max(offset, starts.get(partition, 0))
                case OpenIncarnation(incarnation):
                    self.incarnations[incarnation.id] = incarnation
                    self.chunks[incarnation.id] = {}
                    self.leader_epoch = max(self.leader_epoch, incarnation.leader_epoch)
                case AddChunks(incarnation_id, chunks, producers_key):
                    if incarnation_id in self.incarnations:
                        self._add_chunks(incarnation_id, chunks)
                    if producers_key is not None:
                        self.producers_key = producers_key
                case SealIncarnation(incarnation_id):
                    if incarnation_id in self.incarnations:
                        sealed = msgspec.structs.replace(self.incarnations[incarnation_id], sealed=True)
                        self.incarnations[incarnation_id] = sealed
                case RemoveChunks(incarnation_id, numbers):
                    for number in numbers:
                        self.chunks.get(incarnation_id, {}).pop(number, None)
                case FoldChunks(incarnation_id, numbers, chunk):
                    if incarnation_id in self.incarnations:
                        for number in numbers:
                            self.chunks[incarnation_id].pop(number, None)
                        self.chunks[incarnation_id][chunk.number] = chunk
                case CloseIncarnation(incarnation_id):
                    self.incarnations.pop(incarnation_id, None)
                    self.chunks.pop(incarnation_id, None)
                case ReserveProducerIds(next_id):
                    self.next_producer_id = max(self.next_producer_id, next_id)

    def _add_chunks(self, incarnation_id: str, chunks: list[Chunk]) -> None:
        incarnation = self.incarnations[incarnation_id]
        fresh = [chunk for chunk in chunks if chunk.number >= incarnation.next_chunk]
        if fresh:
            self.chunks[incarnation_id].update((chunk.number, chunk) for chunk in fresh)
            next_chunk = max(chunk.last_number for chunk in fresh) + 1
            self.incarnations[incarnation_id] = msgspec.structs.replace(incarnation, next_chunk=next_chunk)

    def _put_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.topics_by_id[topic.id] = topic

    def _change_topic(self, topic_id: uuid.UUID, **changes: object) -> None:
        topic = self.topics_by_id.get(topic_id)
        if topic is not None:
            self._put_topic(msgspec.structs.replace(topic, **changes))

    def log_start(self, topic_id: uuid.UUID, partition: int) -> int:
        return self.log_starts.get(topic_id, _NO_STARTS).get(partition, 0)

    def encode(self) -> bytes:
        """The whole state as a snapshot."""
        return msgspec.json.encode(
            _Snapshot(
                topics=list(self.topics.values()),
                log_starts=self.log_starts,
                incarnations=list(self.incarnations.values()),
                chunks={key: list(chunks.values()) for key, chunks in self.chunks.items()},
                producers_key=self.producers_key,
                next_producer_id=self.next_producer_id,
                leader_epoch=self.leader_epoch,
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
        manifest.producers_key = snapshot.producers_key
        manifest.next_producer_id = snapshot.next_producer_id
        manifest.leader_epoch = snapshot.leader_epoch
        return manifest

    def check_invariants(self) -> None:
        """Raise AssertionError where the state contradicts the attributes' texts."""
        assert {topic.id for topic in self.topics.values()} == set(self.topics_by_id)
        assert all(self.topics[topic.name] is topic for topic in self.topics_by_id.values())
        assert set(self.log_starts) <= set(self.topics_by_id)
        assert set(self.chunks) == set(self.incarnations)
        assert all(incarnation.leader_epoch <= self.leader_epoch for incarnation in self.incarnations.values())
        for key, chunks in self.chunks.items():
            assert all(number == chunk.number <= chunk.last_number for number, chunk in chunks.items())
            assert all(chunk.last_number < self.incarnations[key].next_chunk for chunk in chunks.values())


_NO_STARTS: Mapping[int, int] = {}


def encode_edits(edits: list[Edit]) -> bytes:
    """Edits that take effect together, as one version of the journal."""
    return msgspec.json.encode(_EditFile(edits=edits))


def decode_edits(data: bytes) -> list[Edit]:
    """The edits of one version. Raises CorruptError."""
    return _decode(data, _EditFile, "manifest edit").edits


_File = TypeVar("_File", _EditFile, _Snapshot)


def _decode(data: bytes, kind: type[_File], what: str) -> _File:
    try:
        value = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(Reason.CORRUPT_STORE, f"{what} cannot be read. error=`{error}`") from error
    if value.format > FORMAT_VERSION:
        raise CorruptError(
            Reason.CORRUPT_STORE,
            f"{what} was written by a newer version. format=`{value.format}` known=`{FORMAT_VERSION}`",
        )
    return value
