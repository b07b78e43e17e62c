"""The leader's rules for edits, of its own and of other brokers, and its answer to an incarnation that was replaced. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence

from headgate.broker.cluster.access import AddAcls, DeleteUser, PutUser, RemoveAcls
from headgate.broker.cluster.capacity import check_reservation
from headgate.broker.cluster.folded_files import ChunkPart, FilePart, FoldToFiles
from headgate.broker.cluster.gates import OPEN_GATES_MAX, Gate, ParquetExtent
from headgate.broker.cluster.manifest import (
    AddChunks,
    CondemnFiles,
    CreateTopic,
    DeleteTopic,
    Edit,
    Extent,
    FillGate,
    FoldChunks,
    Manifest,
    OpenGate,
    OpenIncarnation,
    PutReservation,
    ReleaseGate,
    RemoveChunks,
    RenewGate,
    SealIncarnation,
    SealSegment,
    SetBrokerConfig,
    SetFollower,
    SetLogStart,
    SetPartitions,
    SetTopicConfig,
    SkipRecords,
    Topic,
)
from headgate.broker.cluster.quotas import AlterQuotas
from headgate.broker.cluster.reassignment import Reassign
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason, RetryError

CUTS_MAX = 1000
"""Largest number of ranges of one partition that readers pass. Every read that begins below the last range checks all of them."""


def taken_over(manifest: Manifest, incarnation_id: str, broker_id: int) -> FencedError:
    """The error that tells a running incarnation why it was replaced."""
    for other in manifest.incarnations.values():
        if other.broker_id == broker_id and other.id != incarnation_id and not other.sealed:
            # The broker was not restarted, because it still runs. For example, two machines use one store with the default
            # settings.
            return FencedError(
                Reason.FENCED,
                "another process runs as this broker: give each broker of a store its own --broker-id. "
                f"broker_id=`{broker_id}` address=`{other.host}:{other.kafka_port}`",
            )
    return FencedError(Reason.FENCED, "another broker took over from this one")


def check(manifest: Manifest, edit: Edit, by: str) -> None:
    """Check that the leader accepts an edit. An accepted edit has the effect that its author expects.

    Args:
        by: the incarnation that asks for it.

    Raises:
        FencedError: that incarnation was replaced, or the edit is about a segment or chunks of a replaced incarnation: it must
            stop.
        InvalidError: the edit does not fit the state (any more).
    """
    asking = manifest.incarnations.get(by)
    if asking is not None and asking.sealed:
        raise FencedError(Reason.FENCED, f"another broker took over from this one. incarnation=`{by}`")
    match edit:
        case CreateTopic(topic):
            if topic.name in manifest.topics:
                raise InvalidError(Reason.TOPIC_EXISTS, f"topic exists already. topic=`{topic.name}`")
        case DeleteTopic(topic_id):
            _check_topic(manifest, topic_id)
        case SetTopicConfig(topic_id, _, was):
            topic = _check_topic(manifest, topic_id)
            if was is not None and was != topic.config:
                raise InvalidError(
                    Reason.CHANGED_MEANWHILE, f"another client changed the topic's settings meanwhile. topic=`{topic.name}`"
                )
        case SetPartitions(topic_id, partitions):
            topic = _check_topic(manifest, topic_id)
            if partitions <= topic.partitions:
                raise InvalidError(
                    Reason.INVALID_PARTITIONS,
                    f"a topic's number of partitions can only grow. topic=`{topic.name}` has=`{topic.partitions}` "
                    f"asked=`{partitions}`",
                )
        case SetBrokerConfig(broker, _, was):
            if was != manifest.broker_configs.get(broker, {}):
                raise InvalidError(
                    Reason.CHANGED_MEANWHILE, f"another client changed the broker's settings meanwhile. broker=`{broker}`"
                )
        case Reassign(topic_id, _):
            topic = _check_topic(manifest, topic_id)
            if any(not 0 <= number < topic.partitions for number in edit.replicas):
                raise InvalidError(Reason.UNKNOWN_TOPIC, f"partition does not exist. topic=`{topic.name}`")
        case AddChunks(incarnation_id, _, _) | SetFollower(incarnation_id, _) | SealIncarnation(incarnation_id):
            incarnation = manifest.incarnations.get(incarnation_id)
            if incarnation is None or incarnation.sealed:
                raise FencedError(Reason.FENCED, f"incarnation is sealed. incarnation=`{incarnation_id}`")
        case OpenIncarnation(incarnation):
            if incarnation.id in manifest.incarnations:
                raise FencedError(Reason.FENCED, f"incarnation was opened before. incarnation=`{incarnation.id}`")
        case FoldChunks(incarnation_id, numbers, _) | RemoveChunks(incarnation_id, numbers):
            if not manifest.chunks.get(incarnation_id, {}).keys() >= set(numbers):
                raise InvalidError(
                    Reason.INVALID_REQUEST, f"chunks are gone. incarnation=`{incarnation_id}` numbers=`{numbers[0]}..{numbers[-1]}`"
                )
            # Another broker may have folded these chunks meanwhile. Then the chunk with this number is not the one that the author
            # saw.
            listed = manifest.chunks[incarnation_id]
            if isinstance(edit, RemoveChunks) and any(manifest.needs(listed[number]) for number in numbers):
                raise InvalidError(Reason.INVALID_REQUEST, f"a chunk is needed. incarnation=`{incarnation_id}` numbers=`{numbers}`")
            if isinstance(edit, FoldChunks):
                for one in edit.chunk.extents:
                    if manifest.files.overlap(one.topic_id, one.partition, one.base_offset, one.end_offset):
                        raise InvalidError(
                            Reason.CHANGED_MEANWHILE,
                            f"records are in files by now. incarnation=`{incarnation_id}` partition=`{one.partition}` "
                            f"base=`{one.base_offset}`",
                        )
        case FoldToFiles():
            _check_fold_to_files(manifest, edit)
        case SealSegment(segment_id, ends, _):
            segment = manifest.segments.get(segment_id)
            if segment is None:
                raise InvalidError(Reason.INVALID_REQUEST, f"segment is not open. segment=`{segment_id}`")
            assert len(ends) == len(segment.partitions), "one end for each partition"
        case PutReservation(reservation):
            check_reservation(reservation, manifest.reservations)
        case SetLogStart(topic_id, offsets, True):
            for gate in manifest.gates.get(topic_id, {}).values():
                if gate.state == "open" and any(
                    offsets.get(one.partition, 0) > one.base_offset for one in gate.windows if one.rows
                ):
                    raise RetryError(Reason.NOT_READY, f"retention must not pass an open gate. gate=`{gate.id}`")
        case SkipRecords(topic_id, partition, base_offset, end_offset):
            _check_skip(manifest, topic_id, partition, base_offset, end_offset)
        case OpenGate(gate, segments):
            _check_open_gate(manifest, gate, segments)
        case FillGate(topic_id, gate_id, extents, _, _):
            gate = _check_gate(manifest, topic_id, gate_id)
            if gate.state != "open":
                raise InvalidError(Reason.GATE_CONFLICT, f"the gate is not open any more. gate=`{gate_id}` state=`{gate.state}`")
            _check_paths(manifest, extents)
        case RenewGate(topic_id, gate_id, _) | ReleaseGate(topic_id, gate_id, _):
            gate = _check_gate(manifest, topic_id, gate_id)
            if gate.state != "open":
                raise InvalidError(Reason.GATE_CONFLICT, f"the gate is not open any more. gate=`{gate_id}` state=`{gate.state}`")
        case PutUser() | DeleteUser() | AddAcls() | RemoveAcls():
            manifest.access.check(edit)
        case AlterQuotas():
            manifest.quotas.check(edit)
        case CondemnFiles(paths):
            condemned = set(paths)
            for gates in manifest.gates.values():
                for gate in gates.values():
                    if any(one.path in condemned for one in gate.extents):
                        raise InvalidError(Reason.GATE_CONFLICT, f"a file is in use. gate=`{gate.id}`")
            for _, file in manifest.files.all():
                if file.path in condemned:
                    raise InvalidError(Reason.GATE_CONFLICT, f"a file is in use. path=`{file.path}`")


def _check_fold_to_files(manifest: Manifest, edit: FoldToFiles) -> None:
    """Refuse the edit unless every extent that it replaces is as its author saw it, and its files cover exactly those."""
    topic = _check_topic(manifest, edit.topic_id)
    where = f"topic=`{topic.name}` partition=`{edit.partition}`"
    parts = edit.parts
    assert parts, "a fold moves records"
    _check_paths(manifest, edit.files)
    first = position = parts[0].base_offset
    for part in parts:
        if part.base_offset != position or not _is_there(manifest, edit, part):
            raise InvalidError(Reason.CHANGED_MEANWHILE, f"records are in other objects by now. {where} base=`{part.base_offset}`")
        position = part.end_offset
    covered = edit.files[0].base_offset if edit.files else first
    assert covered == first or not manifest.is_readable(edit.topic_id, edit.partition, first, covered), "the rest is deleted"
    for one in edit.files:
        assert one.folded and one.partition == edit.partition and one.base_offset == covered, "files follow each other"
        covered = one.end_offset
    assert covered == position or not edit.files, "files have the offsets of what they replace"
    cuts = manifest.cuts.get(edit.topic_id, {}).get(edit.partition, [])
    if not edit.files:
        _check_cuts(topic, edit.partition, cuts)
    if [(low, high) for low, high in cuts if low < position and high > first] != edit.cuts:
        raise InvalidError(Reason.CHANGED_MEANWHILE, f"an operator skipped records meanwhile. {where}")


def _is_there(manifest: Manifest, edit: FoldToFiles, part: ChunkPart | FilePart) -> bool:
    """True if an extent is where the author of the edit saw it."""
    if isinstance(part, FilePart):
        gate = manifest.gates.get(edit.topic_id, {}).get(part.gate_id)
        found: Iterable[Extent | ParquetExtent] = [one for one in (() if gate is None else gate.extents) if one.path == part.path]
        if not part.gate_id:
            one = manifest.files.find(edit.topic_id, edit.partition, part.path, part.base_offset)
            found = [] if one is None else [one]
    else:
        chunk = manifest.chunks.get(part.incarnation_id, {}).get(part.number)
        found = [one for one in (() if chunk is None else chunk.extents) if one.topic_id == edit.topic_id]
    return any(
        (one.partition, one.base_offset, one.end_offset) == (edit.partition, part.base_offset, part.end_offset) for one in found
    )


def _check_open_gate(manifest: Manifest, gate: Gate, segments: list[int]) -> None:
    topic = _check_topic(manifest, gate.topic_id)
    gates = manifest.gates.get(gate.topic_id, {})
    before = gates.get(gate.id)
    if before is not None and before.state != "released":
        raise InvalidError(Reason.GATE_CONFLICT, f"the gate is there already. gate=`{gate.id}` state=`{before.state}`")
    if sum(one.state == "open" for one in gates.values()) >= OPEN_GATES_MAX:
        raise InvalidError(
            Reason.GATE_CONFLICT, f"too many gates are open. topic=`{topic.name}` open=`{OPEN_GATES_MAX}` max=`{OPEN_GATES_MAX}`"
        )
    _check_paths(manifest, gate.extents)
    if len(gate.windows) != topic.partitions:
        raise RetryError(Reason.NOT_READY, f"the topic got more partitions meanwhile. topic=`{topic.name}`")
    leads = manifest.leads[gate.topic_id]
    for window in gate.windows:
        if gate.place == "front":
            if window.rows and window.end_offset > manifest.front(gate.topic_id, window.partition):
                raise RetryError(Reason.NOT_READY, f"another gate was opened in front meanwhile. gate=`{gate.id}`")
        else:
            lead = leads[window.partition]
            if lead is None or lead.id != segments[window.partition]:
                raise RetryError(
                    Reason.NOT_LEADER, f"the partition got another lead meanwhile. gate=`{gate.id}` partition=`{window.partition}`"
                )
            assert window.base_offset >= manifest.window_end(gate.topic_id, window.partition), "leads begin behind all windows"


def _check_skip(manifest: Manifest, topic_id: uuid.UUID, partition: int, base_offset: int, end_offset: int) -> None:
    topic = _check_topic(manifest, topic_id)
    assert 0 <= base_offset < end_offset, "a range has an offset"
    for window, gate in manifest.windows(topic_id, partition):
        if base_offset < window.end_offset and window.base_offset < end_offset:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"records of a gate cannot be skipped. topic=`{topic.name}` partition=`{partition}` gate=`{gate.id}` "
                f"first=`{window.base_offset}` end=`{window.end_offset}`",
            )
    _check_cuts(topic, partition, manifest.cuts.get(topic_id, {}).get(partition, ()))


def _check_cuts(topic: Topic, partition: int, cuts: Sequence[tuple[int, int]]) -> None:
    if len(cuts) >= CUTS_MAX:
        raise InvalidError(
            Reason.INVALID_REQUEST,
            "too many ranges of the partition have no record: delete the records below them. "
            f"topic=`{topic.name}` partition=`{partition}` max=`{CUTS_MAX}`",
        )


def _check_gate(manifest: Manifest, topic_id: uuid.UUID, gate_id: str) -> Gate:
    topic = _check_topic(manifest, topic_id)
    gate = manifest.gates.get(topic_id, {}).get(gate_id)
    if gate is None:
        raise InvalidError(Reason.UNKNOWN_GATE, f"the topic has no such gate. topic=`{topic.name}` gate=`{gate_id}`")
    return gate


def _check_paths(manifest: Manifest, extents: Iterable[ParquetExtent]) -> None:
    for one in extents:
        if one.path in manifest.condemned:
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"the file was unused for too long and is being deleted. path=`{one.path}`",
            )


def check_together(manifest: Manifest, edits: Iterable[Edit]) -> None:
    """Check that edits that are valid one by one are also valid together. Raises InvalidError.

    An incarnation must be sealed together with all of its segments, also with those that it got a moment ago. Otherwise a
    segment would stay open, and no broker would find a new lead for it.
    """
    edits = list(edits)
    over = {edit.incarnation_id for edit in edits if isinstance(edit, SealIncarnation)}
    if over:
        sealed = {edit.segment_id for edit in edits if isinstance(edit, SealSegment)}
        left = [key for key, segment in manifest.segments.items() if segment.incarnation_id in over and key not in sealed]
        if left:
            raise InvalidError(Reason.INVALID_REQUEST, f"the incarnation has other segments by now. segments=`{left}`")


def _check_topic(manifest: Manifest, topic_id: uuid.UUID) -> Topic:
    topic = manifest.topics_by_id.get(topic_id)
    if topic is None:
        raise InvalidError(Reason.UNKNOWN_TOPIC_ID, f"no topic has this id. topic_id=`{topic_id}`")
    return topic
