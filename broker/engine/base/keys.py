"""The names of all objects in the store, in one place.

::

    cluster/id                               the id of the cluster that owns the store, and the store's format
    cluster/secret                           a secret that the brokers share (identity.py)
    cluster/manifest/...                     the journal of the manifest (store/journal.py)
    wal/<incarnation>/<chunk>                a chunk (log/chunk.py); numbers have 20 digits, so that keys sort as numbers do
    wal/<incarnation>/<chunk>.index          its index, if it is not inline; with -<maker> if a recovery made it
    wal/<incarnation>/<chunk>.fold-<maker>   chunks from <chunk> on, folded into one (chunk_fold.py)
    wal/<incarnation>/fence                  the incarnation may never ack again
    wal/<incarnation>/producers-<chunk>      producer state after all chunks before <chunk>
    wal/<incarnation>/producers-segment-<id>            producer state of a segment when it was sealed
    wal/<incarnation>/producers-segment-last-<maker>    producer state of all segments of a lost incarnation
    cluster/lease/<version>                  the cluster's leader (control/lease_register.py)
    topics/<topic id>/data/...               files of history, by reference
    topics/<topic id>/data/partition=<n>/offset=<offset>-<maker>.parquet    folded files (upkeep/file_fold.py)
    topics/<topic id>/data/adopted/<name>.recipe    how adopted rows become records (log/recipe.py)
    topics/<topic id>/data/adopted/<name>.recipe-<n>.parquet    the files that it names
    topics/<topic id>/metadata/<version>.metadata.json    the topic as an Iceberg table (control/leader_tables.py)
    topics/<topic id>/manifests/...          manifests and manifest lists of the table
"""

from __future__ import annotations

import re
import uuid

from headgate.broker.cluster.gates import data_prefix
from headgate.broker.cluster.objects import Chunk

CLUSTER_ID = "cluster/id"
SECRET = "cluster/secret"
MANIFEST = "cluster/manifest"
LEASE = "cluster/lease/"
WAL = "wal/"
MADE_BY_OWNER = -1
"""`made_in` of what an incarnation makes in its own WAL."""


_PART_OF_CHUNK = re.compile(r"[0-9]{20}(?:\.index|(?:\.index|\.fold)-([0-9]{1,19})-.+)?")
"""Names of a chunk, its index and its folds in a WAL, with the leader epoch of their maker."""
_TABLE_METADATA = re.compile(r"([0-9]{20})\.metadata\.json")
_FOLDED = re.compile(r"offset=[0-9]{20}-[0-9]{1,19}-(.+)-[0-9]+a?\.parquet")
"""Names of folded files, with the incarnation in `maker`."""
_PRODUCERS = "producers-"


def wal_prefix(incarnation_id: str) -> str:
    return f"{WAL}{incarnation_id}/"


def chunk(incarnation_id: str, number: int) -> str:
    return f"{WAL}{incarnation_id}/{number:020d}"


def chunk_object(incarnation_id: str, chunk_listed: Chunk) -> str:
    """The object of a chunk that the manifest lists."""
    key = chunk(incarnation_id, chunk_listed.number)
    return f"{key}.fold-{chunk_listed.made_by}" if chunk_listed.generation else key


def index_object(incarnation_id: str, chunk_listed: Chunk) -> str:
    """The object that contains the index of a listed chunk."""
    if chunk_listed.index_inline:
        return chunk_object(incarnation_id, chunk_listed)
    return chunk_index(incarnation_id, chunk_listed.number, chunk_listed.made_by)


def chunk_index(incarnation_id: str, number: int, made_by: str = "") -> str:
    return chunk(incarnation_id, number) + (f".index-{made_by}" if made_by else ".index")


def maker(leader_epoch: int, incarnation_id: str, attempt: int = 0) -> str:
    """A name for objects that a broker makes in another broker's WAL. It is unique to the attempt, and contains the leader
    epoch."""
    return f"{leader_epoch}-{incarnation_id}-{attempt}"


def made_in(key: str) -> int | None:
    """The leader epoch of the broker that made an index or a fold. `MADE_BY_OWNER`: the WAL's own incarnation made it. None:
    the key is no part of a chunk."""
    found = _PART_OF_CHUNK.fullmatch(key.rsplit("/", 1)[1])
    if found is None:
        return None
    return int(found[1]) if found[1] else MADE_BY_OWNER


def is_of_wal(key: str) -> bool:
    """True if a broker may have made an object of this key in a WAL. False for a foreign object there."""
    name = key.rsplit("/", 1)[1]
    return name == "fence" or name.startswith(_PRODUCERS) or made_in(key) is not None


def folded_file(topic_id: uuid.UUID, partition: int, name: str) -> str:
    """The key of a folded file. No id of a gate has a `=`, so the name is never taken for that of a gate's file."""
    return f"{data_prefix(topic_id)}partition={partition}/{name}"


def is_folded(key: str) -> bool:
    """True for a file below a topic's prefix that a fold made."""
    return key.rsplit("/", 1)[1].startswith("offset=")


def folded_by(key: str) -> str | None:
    """The incarnation that made a folded file; None for any other key."""
    found = _FOLDED.fullmatch(key.rsplit("/", 1)[1])
    return None if found is None else found[1]


def topic_prefix(topic_id: uuid.UUID) -> str:
    """The prefix of everything that belongs to a topic, without the slash at its end."""
    return f"topics/{topic_id.hex}"


def metadata_prefix(topic_id: uuid.UUID) -> str:
    return f"{topic_prefix(topic_id)}/metadata/"


def manifests_prefix(topic_id: uuid.UUID) -> str:
    return f"{topic_prefix(topic_id)}/manifests/"


def table_metadata(topic_id: uuid.UUID, version: int) -> str:
    """The metadata file of a version of a topic's table."""
    return f"{metadata_prefix(topic_id)}{version:020d}.metadata.json"


def version_of(key: str) -> int | None:
    """The version of a metadata file of a table. None: the key is that of another object."""
    found = _TABLE_METADATA.fullmatch(key.rsplit("/", 1)[1])
    return None if found is None else int(found[1])


def table_manifest(topic_id: uuid.UUID, name: str) -> str:
    return f"{manifests_prefix(topic_id)}{name}"


def is_of_table(key: str) -> bool:
    """True for objects that describe a topic as a table. They have no records."""
    return key.split("/", 3)[2:3] in (["metadata"], ["manifests"])


def fence(incarnation_id: str) -> str:
    return f"{WAL}{incarnation_id}/fence"


def producers(incarnation_id: str, number: int) -> str:
    return f"{WAL}{incarnation_id}/{_PRODUCERS}{number:020d}"


def segment_producers(incarnation_id: str, name: str) -> str:
    """The key of producer state: of one sealed segment, or of all segments of a lost incarnation."""
    return f"{WAL}{incarnation_id}/{_PRODUCERS}segment-{name}"
