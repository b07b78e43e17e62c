"""What the manifest looks like in the store: snapshots of the state, and edits. Both are JSON, for a person with `cat`. No I/O.

`engine/base/catalog.py` writes them through `store/journal.py`.
"""

from __future__ import annotations

import pkgutil
import uuid
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, TypeVar, Union

import msgspec

from headgate.broker.cluster import edits as edits_folder
from headgate.broker.cluster.access import Access, User
from headgate.broker.cluster.acl import Acl
from headgate.broker.cluster.capacity import Reservation
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.folded_files import FoldedFiles
from headgate.broker.cluster.gates import Gate, ParquetExtent
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk, Follower, Incarnation, Topic
from headgate.broker.cluster.quotas import QuotaRow, Quotas
from headgate.broker.cluster.readable import Readable
from headgate.broker.cluster.segments import SealedSegment, SegmentInfo
from headgate.broker.runtime.errors import CorruptError, Reason

FORMAT_VERSION = 2
"""Format of the snapshots and edits. A broker refuses any other format."""


def _every_edit() -> tuple[type[Edit], ...]:
    for module in pkgutil.iter_modules(edits_folder.__path__):
        import_module(f"{edits_folder.__name__}.{module.name}")
    return tuple(sorted(Edit.__subclasses__(), key=lambda edit: edit.__name__))


if TYPE_CHECKING:
    StoredEdit: TypeAlias = Edit
else:
    StoredEdit = Union[_every_edit()]  # noqa: UP007  # the classes are known when the module is loaded
"""Every edit that a journal may have: those of the files in `edits/`."""


class _EditFile(msgspec.Struct, kw_only=True):
    format: int = FORMAT_VERSION
    edits: list[StoredEdit]


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


def encode_edits(edits: Sequence[Edit]) -> bytes:
    """Edits that take effect together: one version of the journal."""
    return msgspec.json.encode({"format": FORMAT_VERSION, "edits": edits})


def decode_edits(data: bytes) -> list[Edit]:
    """The edits of one version. Raises CorruptError."""
    return list(_decode(data, _EditFile, "manifest edit").edits)


def encode_snapshot(manifest: Manifest) -> bytes:
    """The whole state as a snapshot."""
    return msgspec.json.encode(
        _Snapshot(
            topics=list(manifest.topics.values()),
            log_starts=manifest.readable.log_starts,
            incarnations=list(manifest.incarnations.values()),
            chunks={key: list(chunks.values()) for key, chunks in manifest.chunks.items()},
            producers_keys=manifest.producers_keys,
            segments=list(manifest.segments.open.values()),
            sealed_segments=list(manifest.segments.sealed.values()),
            next_segment_id=manifest.segments.next_id,
            commits=manifest.commits,
            leader=manifest.leader,
            term_epoch=manifest.term_epoch,
            leader_epoch=manifest.leader_epoch,
            reservations=list(manifest.reservations.values()),
            gates=list(manifest.gates.all()),
            cuts=manifest.readable.cuts,
            condemned=list(manifest.condemned),
            followers=manifest.followers,
            downtimes=manifest.downtimes,
            files=manifest.files.by_topic,
            superseded=manifest.superseded,
            compacted=manifest.compacted,
            users=list(manifest.access.users.values()),
            acls=list(manifest.access.acls.all),
            quotas=manifest.quotas.rows(),
            broker_configs=manifest.broker_configs,
        )
    )


def decode_snapshot(data: bytes) -> Manifest:
    """The state of a snapshot. Raises CorruptError."""
    snapshot = _decode(data, _Snapshot, "manifest snapshot")
    manifest = Manifest()
    for topic in snapshot.topics:
        manifest.put_topic(topic)
    manifest.readable = Readable(manifest.topics_by_id, snapshot.log_starts, snapshot.cuts)
    manifest.incarnations = {incarnation.id: incarnation for incarnation in snapshot.incarnations}
    manifest.chunks = {key: {chunk.number: chunk for chunk in chunks} for key, chunks in snapshot.chunks.items()}
    manifest.producers_keys = snapshot.producers_keys
    for segment in snapshot.segments:
        manifest.segments.put(segment)
    for sealed in snapshot.sealed_segments:
        manifest.segments.put_sealed(sealed)
    manifest.segments.next_id = snapshot.next_segment_id
    manifest.commits = snapshot.commits
    manifest.leader = snapshot.leader
    manifest.term_epoch = snapshot.term_epoch
    manifest.leader_epoch = snapshot.leader_epoch
    manifest.reservations = {reservation.id: reservation for reservation in snapshot.reservations}
    for gate in snapshot.gates:
        manifest.gates.put(gate)
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
