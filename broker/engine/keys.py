"""Where everything stands in the store, in one place.

::

    cluster/id                            whose store this is, and its format
    cluster/manifest/...                  the journal of the manifest (store/journal.py)
    wal/<incarnation>/<chunk>             a chunk (log/chunk.py); numbers have 20 digits, so that keys sort as numbers do
    wal/<incarnation>/<chunk>.index       its index, where it is not inline
    wal/<incarnation>/<chunk>.fold-<n>-<by>  chunks from <chunk> on that were folded into one, of generation n (fold.py)
    wal/<incarnation>/fence               the incarnation may never ack again
    wal/<incarnation>/producers-<chunk>   producer state after all chunks before <chunk>
    wal/<incarnation>/producers-segment-<id>  ... of a segment when it was sealed; `last` for all of an incarnation that was lost
    cluster/lease/<version>               who leads (control/lease.py)
    topics/<topic id>/data/...            files of history, by reference
"""

from __future__ import annotations

from broker.cluster.manifest import Chunk

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
    return f"{key}.fold-{chunk_listed.generation}-{chunk_listed.folded_by}" if chunk_listed.generation else key


def index_object(incarnation_id: str, chunk_listed: Chunk) -> str:
    """The object in which the index of a listed chunk stands."""
    if chunk_listed.index_inline:
        return chunk_object(incarnation_id, chunk_listed)
    return chunk_index(incarnation_id, chunk_listed.number)


def chunk_index(incarnation_id: str, number: int) -> str:
    return chunk(incarnation_id, number) + ".index"


def fence(incarnation_id: str) -> str:
    return f"{WAL}{incarnation_id}/fence"


def producers(incarnation_id: str, number: int) -> str:
    return f"{WAL}{incarnation_id}/producers-{number:020d}"


def segment_producers(incarnation_id: str, segment_id: int | None) -> str:
    """Of one sealed segment; None: of all segments of an incarnation that was lost."""
    return f"{WAL}{incarnation_id}/producers-segment-{'last' if segment_id is None else segment_id}"
