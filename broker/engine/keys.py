"""Where everything stands in the store, in one place.

::

    cluster/id                            whose store this is, and its format
    cluster/manifest/...                  the journal of the manifest (store/journal.py)
    wal/<incarnation>/<chunk>             a chunk (log/chunk.py); numbers have 20 digits, so that keys sort as numbers do
    wal/<incarnation>/<chunk>.index       its index, where it is not inline
    wal/<incarnation>/fence               the incarnation may never ack again
    wal/<incarnation>/producers-<chunk>   producer state after all chunks before <chunk>
    topics/<topic id>/data/...            files of history, by reference
"""

from __future__ import annotations

CLUSTER_ID = "cluster/id"
MANIFEST = "cluster/manifest"
WAL = "wal/"


def wal_prefix(incarnation_id: str) -> str:
    return f"{WAL}{incarnation_id}/"


def chunk(incarnation_id: str, number: int) -> str:
    return f"{WAL}{incarnation_id}/{number:020d}"


def chunk_index(incarnation_id: str, number: int) -> str:
    return chunk(incarnation_id, number) + ".index"


def fence(incarnation_id: str) -> str:
    return f"{WAL}{incarnation_id}/fence"


def producers(incarnation_id: str, number: int) -> str:
    return f"{WAL}{incarnation_id}/producers-{number:020d}"
