"""Rebuilds a lost index: it contains nothing that its chunk does not contain."""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_left

from headgate.broker.cluster.objects import Chunk
from headgate.broker.engine.base import keys
from headgate.broker.log.chunk import ChunkScan, stream_key
from headgate.broker.log.index import ROW_BYTES, BatchIndex
from headgate.broker.runtime.errors import CorruptError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.store.interface import Store

logger = get_logger("mend")

YIELD_ROWS = 1000


async def rebuild_index(store: Store, incarnation_id: str, chunk: Chunk) -> None:
    """Write the index of a listed chunk again, from the groups of the chunk. Only for an index that is not inline.

    Raises:
        InvalidError: NOT_FOUND: the chunk is lost, too. CorruptError: the chunk differs from the manifest. RetryError.
    """
    assert not chunk.index_inline
    data = await store.get_range(keys.chunk_object(incarnation_id, chunk), 0, chunk.size_bytes)
    rows: dict[bytes, BatchIndex] = {}
    scan = ChunkScan(data, uuid.UUID(hex=incarnation_id).bytes, chunk.number, ChunkScan.first_sequence(data))
    for count, frame in enumerate(scan, 1):
        rows.setdefault(frame.stream, BatchIndex()).add(frame.header[0], frame.header[8], frame.position, frame.size_bytes)
        if count % YIELD_ROWS == 0:
            await asyncio.sleep(0)
    sections = bytearray(max(extent.position + extent.length_bytes for extent in chunk.extents))
    done: set[int] = set()
    for extent in chunk.extents:
        # Two extents, on both sides of a window, may share a section. The section begins with the first extent's rows. If that
        # extent is in a file by now, the section has all rows of its partition.
        if extent.position in done:
            continue
        done.add(extent.position)
        index = rows.get(stream_key(extent.topic_id.bytes, extent.partition), BatchIndex())
        is_whole = len(index) * ROW_BYTES == extent.length_bytes
        first = 0 if is_whole else bisect_left(index.offsets, extent.base_offset)
        section = index.encode(first, first + extent.length_bytes // ROW_BYTES)
        if len(section) != extent.length_bytes:
            raise CorruptError(
                Reason.CORRUPT_STORE,
                f"a chunk lacks batches that the manifest lists. key=`{keys.chunk_object(incarnation_id, chunk)}` "
                f"partition=`{extent.partition}` first=`{extent.base_offset}`",
            )
        sections[extent.position : extent.position + extent.length_bytes] = section
    await store.put(keys.index_object(incarnation_id, chunk), sections)
    logger.warning("index_rebuilt", key=keys.index_object(incarnation_id, chunk), batches=sum(map(len, rows.values())))
