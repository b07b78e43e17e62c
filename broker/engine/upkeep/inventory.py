"""The contents of a store, judged by the manifest: which objects are needed, which wait, and which the sweeps delete. No I/O.

Every object is needed by the manifest, or belongs to work in progress, or is left over. `needs` says what the manifest refers to,
with the records that are lost if the object is. `judge` says what an object is good for. `expiring` says which records retention
would delete at a moment; it is the same rule that brokers apply (`expired_end`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headgate.broker.cluster.gates import ParquetExtent, gate_of, is_url, topic_of
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Extent
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.base import keys
from headgate.broker.engine.upkeep.recovery import is_fence
from headgate.broker.log.recipe import owner_of
from headgate.broker.store.interface import ObjectInfo


class Kind(StrEnum):
    """The kind of an object. The values are the words in the output of `headgate store`."""

    CLUSTER = "cluster"
    """Identity, manifest and lease."""
    CHUNK = "chunk"
    INDEX = "index"
    PRODUCERS = "producers"
    FENCE = "fence"
    HISTORY = "history"
    FOLDED = "folded"
    """Parquet files that folds made: of live records, and of history."""
    TABLE = "table"
    """Iceberg metadata of a topic."""
    FOREIGN = "foreign"
    """Not Headgate's."""


class Standing(StrEnum):
    """What an object is good for."""

    NEEDED = "needed"
    """The manifest refers to it, or brokers find it without the manifest."""
    IN_PROGRESS = "in progress"
    """A running broker or an open gate may still commit it."""
    LEFT_OVER = "left over"
    """No manifest will ever refer to it. The sweeps delete it."""


class Records(NamedTuple):
    """Consecutive offsets [first_offset, end_offset) of one partition."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Need:
    """An object or a foreign file that the manifest refers to.

    `size_bytes`: least size of the object. `records`: those that nobody can read without it, by partition and offset. A chunk has
    its `incarnation_id` and `chunk`, a file of history its `extents`.
    """

    kind: Kind
    size_bytes: int = 0
    records: tuple[Records, ...] = ()
    incarnation_id: str = ""
    chunk: Chunk | None = None
    extents: tuple[tuple[uuid.UUID, ParquetExtent], ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """An object with its kind and standing. `topic`: the topic whose history it has, or empty."""

    found: ObjectInfo
    kind: Kind
    standing: Standing
    why: str
    topic: str = ""


def needs(manifest: Manifest) -> dict[str, Need]:
    """What the manifest refers to: keys in the store, and URLs of foreign files."""
    found: dict[str, Need] = {}
    for incarnation_id, chunks in manifest.chunks.items():
        for chunk in chunks.values():
            records = tuple(_readable(manifest, chunk.extents))
            need = Need(Kind.CHUNK, chunk.size_bytes, records, incarnation_id, chunk)
            found[keys.chunk_object(incarnation_id, chunk)] = need
            if not chunk.index_inline:
                size = max((extent.position + extent.length_bytes for extent in chunk.extents), default=0)
                found[keys.index_object(incarnation_id, chunk)] = Need(Kind.INDEX, size, records, incarnation_id, chunk)
    for key in manifest.producers_objects():
        found[key] = Need(Kind.PRODUCERS)
    files: dict[str, list[tuple[uuid.UUID, ParquetExtent]]] = {}
    for topic_id, gates in manifest.gates.by_topic.items():
        for gate in gates.values():
            for extent in gate.extents:
                files.setdefault(extent.path, []).append((topic_id, extent))
    for topic_id, extent in manifest.files.all():
        files.setdefault(extent.path, []).append((topic_id, extent))
    for path, extents in files.items():
        records = tuple(stored for topic_id, extent in extents for stored in _readable_file(manifest, topic_id, extent))
        kind = Kind.FOLDED if extents[0][1].folded else Kind.HISTORY
        found[path] = Need(kind, max(stored.size_bytes for _, stored in extents), records, extents=tuple(extents))
    return found


def _readable(manifest: Manifest, extents: Sequence[Extent]) -> Iterator[Records]:
    for file in sorted(extents, key=lambda extent: (extent.partition, extent.base_offset)):
        if manifest.readable.has(file.topic_id, file.partition, file.base_offset, file.end_offset):
            first = max(file.base_offset, manifest.readable.log_start(file.topic_id, file.partition))
            yield Records(manifest.topics_by_id[file.topic_id].name, file.partition, first, file.end_offset)


def _readable_file(manifest: Manifest, topic_id: uuid.UUID, stored: ParquetExtent) -> Iterator[Records]:
    if manifest.readable.has(topic_id, stored.partition, stored.base_offset, stored.end_offset):
        first = max(stored.base_offset, manifest.readable.log_start(topic_id, stored.partition))
        yield Records(manifest.topics_by_id[topic_id].name, stored.partition, first, stored.end_offset)


def judge(found: ObjectInfo, manifest: Manifest, needed: Mapping[str, Need], oldest_ms: int) -> Judged:
    """The kind and standing of an object.

    Args:
        needed: `needs` of the manifest.
        oldest_ms: a file that is older, and that nothing names, is left over.
    """
    owner = found.key if found.key in needed else owner_of(found.key)
    need = needed.get(owner)
    if need is not None:
        topics = {record.topic for record in need.records} if need.extents else set()
        why = "the manifest refers to it" if owner == found.key else "an adopted file, to whose recipe the manifest refers"
        return Judged(found, need.kind, Standing.NEEDED, why, topics.pop() if len(topics) == 1 else "")
    if found.key.startswith("cluster/"):
        return Judged(found, Kind.CLUSTER, Standing.NEEDED, "the cluster's own state")
    if found.key.startswith(keys.WAL) and found.key.count("/") == 2:
        return _judge_wal(found, manifest)
    topic_id = topic_of(found.key)
    if topic_id is not None:
        return _judge_history(found, manifest, topic_id, oldest_ms)
    return Judged(found, Kind.FOREIGN, Standing.NEEDED, "not an object of Headgate")


def _judge_wal(found: ObjectInfo, manifest: Manifest) -> Judged:
    _, incarnation_id, name = found.key.split("/")
    incarnation = manifest.incarnations.get(incarnation_id)
    if is_fence(found):
        return Judged(found, Kind.FENCE, Standing.NEEDED, "it stops a broker that was replaced")
    kind = Kind.PRODUCERS if name.startswith("producers-") else Kind.INDEX if ".index" in name else Kind.CHUNK
    if incarnation is None:
        return Judged(found, kind, Standing.LEFT_OVER, "its log was closed")
    made_in = keys.made_in(found.key)
    if made_in is not None and made_in > manifest.leader_epoch:
        return Judged(found, kind, Standing.IN_PROGRESS, "a newer leader made it")
    if incarnation.sealed:
        return Judged(found, kind, Standing.LEFT_OVER, "its log is sealed without it")
    if kind is not Kind.PRODUCERS and int(name.partition(".")[0]) < incarnation.next_chunk and ".fold" not in name:
        return Judged(found, kind, Standing.LEFT_OVER, "a fold or retention removed it")
    return Judged(found, kind, Standing.IN_PROGRESS, f"broker {incarnation.broker_id} writes this log")


def _judge_history(found: ObjectInfo, manifest: Manifest, topic_id: uuid.UUID, oldest_ms: int) -> Judged:
    topic = manifest.topics_by_id.get(topic_id)
    kind = Kind.FOLDED if keys.is_folded(found.key) else Kind.HISTORY
    if topic is None:
        return Judged(found, kind, Standing.LEFT_OVER, "its topic was deleted")
    if keys.is_of_table(found.key):
        return Judged(found, Kind.TABLE, Standing.NEEDED, "it describes the topic as a table", topic.name)
    gates = manifest.gates.of(topic_id).values()
    gate_id = gate_of(found.key, [gate.id for gate in gates if gate.state == "open"])
    if gate_id is not None:
        return Judged(found, Kind.HISTORY, Standing.IN_PROGRESS, f"uploaded for the open gate {gate_id}", topic.name)
    if found.key in manifest.condemned:
        return Judged(found, kind, Standing.LEFT_OVER, "it is being deleted", topic.name)
    replaced_ms = manifest.superseded.get(owner_of(found.key))
    if replaced_ms is not None and replaced_ms > oldest_ms:
        return Judged(found, kind, Standing.IN_PROGRESS, "a fold replaced it, and readers may still read it", topic.name)
    if found.modified_ms > oldest_ms:
        return Judged(found, kind, Standing.IN_PROGRESS, "nothing names it yet, and it is new", topic.name)
    maker = manifest.incarnations.get(keys.folded_by(found.key) or "")
    if replaced_ms is None and maker is not None and not maker.sealed:
        return Judged(found, kind, Standing.IN_PROGRESS, f"broker {maker.broker_id} made it, and may still commit it", topic.name)
    return Judged(found, kind, Standing.LEFT_OVER, "nothing names it", topic.name)


# -- usage


@dataclass(slots=True)
class Use:
    """Objects and their bytes."""

    objects: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int, objects: int = 1) -> None:
        self.objects += objects
        self.size_bytes += size_bytes


@dataclass(slots=True)
class TopicUse:
    """A topic's share of the store. Chunks hold records of many topics, so `live_bytes` counts batches, not objects. `folded`:
    files that folds made; `history`: files as they filled gates."""

    live_bytes: int = 0
    folded: Use = field(default_factory=Use)
    history: Use = field(default_factory=Use)


def topic_use(manifest: Manifest) -> dict[str, TopicUse]:
    """The readable bytes of each topic, by name: of live records that chunks list, and of files."""
    found = {name: TopicUse() for name in manifest.topics}
    for chunks in manifest.chunks.values():
        for chunk in chunks.values():
            for extent in chunk.extents:
                if manifest.readable.has(extent.topic_id, extent.partition, extent.base_offset, extent.end_offset):
                    found[manifest.topics_by_id[extent.topic_id].name].live_bytes += extent.data_bytes
    for path, need in needs(manifest).items():
        if need.extents and not is_url(path) and need.records:
            use = found[need.records[0].topic]
            adopted = sum(extent.adopted_bytes for _, extent in need.extents)
            (use.folded if need.kind is Kind.FOLDED else use.history).add(adopted or need.size_bytes)
    return found


# -- retention


class Row(NamedTuple):
    """An extent, as retention sees it: end offset, bytes, and the wall-clock time in ms at which it was appended."""

    end_offset: int
    size_bytes: int
    appended_ms: int


class Expired(NamedTuple):
    """A new log start, and the first reason for it: `age`, `size`, or empty if no record goes."""

    end_offset: int
    why: str


def expired_end(
    start: int, rows: Iterable[Row], config: TopicConfig, size_bytes: int, before_ms: int | None, waiting_offset: int | None
) -> Expired:
    """The log start after retention: the end of the last extent that is older than `retention.ms` or beyond `retention.bytes`.

    Args:
        start: the log start now.
        rows: complete extents from there on, by offset. Only the first ones are asked for.
        size_bytes: of all records of the partition.
        before_ms: records appended before it are too old. None: no record is too old.
        waiting_offset: begin of the first window that waits for history. Nothing behind it goes.
    """
    why = ""
    if not config.delete:
        return Expired(start, why)
    for row in rows:
        too_old = before_ms is not None and row.appended_ms < before_ms
        too_many = config.retention_bytes >= 0 and size_bytes - row.size_bytes >= config.retention_bytes
        if not too_old and not too_many:
            break
        if waiting_offset is not None and row.end_offset > waiting_offset:
            break
        why = why or ("age" if too_old else "size")
        start = row.end_offset
        size_bytes -= row.size_bytes
    return Expired(start, why)


class Expiring(NamedTuple):
    """Records that retention would delete."""

    records: Records
    size_bytes: int
    why: str


def expiring(manifest: Manifest, cutoff: Callable[[int], int | None]) -> Iterator[Expiring]:
    """The records that retention would delete now, of those that the manifest lists: the newest records of running brokers are not
    among them.

    Args:
        cutoff: from an age in ms to the append time before which records are older.
    """
    rows = _rows(manifest)
    for topic in manifest.topics.values():
        config = TopicConfig.parse(topic.config)
        before_ms = cutoff(config.retention_ms) if config.retention_ms >= 0 else None
        for partition in range(topic.partitions):
            mine = sorted(rows.get((topic.id, partition), ()))
            start = manifest.readable.log_start(topic.id, partition)
            waiting = [window.base_offset for window, gate in manifest.gates.windows(topic.id, partition) if gate.state == "open"]
            size_bytes = sum(row.size_bytes for row in mine)
            gone = expired_end(start, mine, config, size_bytes, before_ms, min(waiting, default=None))
            if gone.why:
                left = sum(row.size_bytes for row in mine if row.end_offset > gone.end_offset)
                why = f"older than retention.ms={config.retention_ms}"
                if gone.why == "size":
                    why = f"beyond retention.bytes={config.retention_bytes}"
                yield Expiring(Records(topic.name, partition, start, gone.end_offset), size_bytes - left, why)


def _rows(manifest: Manifest) -> dict[tuple[uuid.UUID, int], list[Row]]:
    rows: dict[tuple[uuid.UUID, int], list[Row]] = {}
    for chunks in manifest.chunks.values():
        for chunk in chunks.values():
            for extent in chunk.extents:
                if manifest.readable.has(extent.topic_id, extent.partition, extent.base_offset, extent.end_offset):
                    key = (extent.topic_id, extent.partition)
                    rows.setdefault(key, []).append(Row(extent.end_offset, extent.data_bytes, chunk.appended_ms))
    for topic_id, gates in manifest.gates.by_topic.items():
        for gate in gates.values():
            for file in gate.extents:
                if manifest.readable.has(topic_id, file.partition, file.base_offset, file.end_offset):
                    row = Row(file.end_offset, file.data_bytes, gate.filled_ms)
                    rows.setdefault((topic_id, file.partition), []).append(row)
    for topic_id, file in manifest.files.all():
        if manifest.readable.has(topic_id, file.partition, file.base_offset, file.end_offset):
            rows.setdefault((topic_id, file.partition), []).append(Row(file.end_offset, file.data_bytes, file.appended_ms))
    return rows
