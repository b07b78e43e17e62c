"""Where everything stands in the store, in one place.

::

    cluster/id                            whose store this is, and its format
    cluster/manifest/...                  the journal of the manifest (store/journal.py)
    wal/<incarnation>/<chunk>             a chunk (log/chunk.py); numbers have 20 digits, so that keys sort as numbers do
    wal/<incarnation>/<chunk>.index       its index, where it is not inline; with -<who> where recovery made it
    wal/<incarnation>/<chunk>.fold-<who>  chunks from <chunk> on that were folded into one (fold.py)
    wal/<incarnation>/fence               the incarnation may never ack again
    wal/<incarnation>/producers-<chunk>   producer state after all chunks before <chunk>
    wal/<incarnation>/producers-segment-<id>  ... of a segment when it was sealed; `last-<who>`: of all of a lost incarnation
    cluster/lease/<version>               who leads (control/lease.py)
    topics/<topic id>/data/...            files of history, by reference
"""

from __future__ import annotations

from headgate.broker.cluster.manifest import Chunk

CLUSTER_ID = "cluster/id"
MANIFEST = "cluster/manifest"
LEASE = "cluster/lease/"
WAL = "wal/"


def wal_prefix(incarnation_id: str) -> str:
    return f"{WAL}{incarnation_id}/"


def chunk(incarnation_id: str, number: int) -> str:
    return f"{WAL}{incarnation_id}/{number:020d}"


def chunk_object(incarnation_id: str, chunk_listed: Chunk) -> str:
    """The object of a chunk that the manifest lists."""
    key = chunk(incarnation_id, chunk_listed.number)
    return f"{key}.fold-{chunk_listed.made_by}" if chunk_listed.generation else key


def index_object(incarnation_id: str, chunk_listed: Chunk) -> str:
    """The object in which the index of a listed chunk stands."""
    if chunk_listed.index_inline:
        return chunk_object(incarnation_id, chunk_listed)
    return chunk_index(incarnation_id, chunk_listed.number, chunk_listed.made_by)


def chunk_index(incarnation_id: str, number: int, made_by: str = "") -> str:
    return chunk(incarnation_id, number) + (f".index-{made_by}" if made_by else ".index")


def maker(leader_epoch: int, incarnation_id: str, attempt: int = 0) -> str:
    """A name for what a broker makes in the WAL of another: unique to the attempt, and it tells how old it is."""
    return f"{leader_epoch}-{incarnation_id}-{attempt}"


def made_in(key: str) -> int | None:
    """The leader epoch of who made an index or a fold; -1: the WAL's own incarnation; None: the key is no part of a chunk."""
    number, _, kind = key.rsplit("/", 1)[1].partition(".")
    if not number.isdigit():
        return None
    epoch = kind.partition("-")[2].partition("-")[0]
    return int(epoch) if epoch else -1


def fence(incarnation_id: str) -> str:
    return f"{WAL}{incarnation_id}/fence"


def producers(incarnation_id: str, number: int) -> str:
    return f"{WAL}{incarnation_id}/producers-{number:020d}"


def segment_producers(incarnation_id: str, name: str) -> str:
    """Of one sealed segment, or of all segments of an incarnation that was lost."""
    return f"{WAL}{incarnation_id}/producers-segment-{name}"
