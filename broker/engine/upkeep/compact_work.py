"""The work of a compaction, in the process that folds: the newest offset of each dirty key, and which records stay."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pyarrow as pa

from headgate.broker.engine.upkeep.file_fold import Compaction, Job, Source
from headgate.broker.log.column_schema import ArrowArray

KEYS_BYTES_MAX = 128 << 20
"""Bytes of the keys of one pass in memory. If more keys are dirty, the next pass takes the others."""
ENTRY_BYTES = 150
"""Bytes of a key's entry besides the key itself: the entry of the table, two objects, the offset."""


class Keys:
    """The newest offset of each key of some dirty records, as the keys are: two keys are never taken for one.

    `end_offset`: only records below it were read.
    """

    def __init__(self, end_offset: int) -> None:
        self.newest: dict[bytes, int] = {}
        self.end_offset = end_offset
        self._bytes = 0

    def add(self, keys: list[bytes | None], offsets: list[int]) -> bool:
        """Add records by offset. False if there is no more room: then `end_offset` is behind the last one."""
        newest = self.newest
        for key, offset in zip(keys, offsets, strict=True):
            if key is not None:
                if key not in newest:
                    self._bytes += len(key) + ENTRY_BYTES
                newest[key] = offset
        if self._bytes <= KEYS_BYTES_MAX or not offsets or offsets[-1] + 1 >= self.end_offset:
            return True
        self.end_offset = offsets[-1] + 1
        return False

    def staying(self, keys: list[bytes | None], offsets: list[int], values: ArrowArray, markers_end: int) -> list[bool]:
        """For each record: True if it stays. A record without a key stays: it cannot be replaced."""
        newest = self.newest
        keep = [key is None or newest.get(key, -1) <= offset for key, offset in zip(keys, offsets, strict=True)]
        if values.null_count and offsets and offsets[0] < markers_end:
            for row in values.is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
                keep[row] = keep[row] and (keys[row] is None or offsets[row] >= markers_end)
        return keep


Rows = Callable[[Source], AsyncIterator[pa.RecordBatch]]
"""Reads a source as rows of a folded file."""


class Compactor:
    """Keeps the keys of the last pass: its jobs come one after the other."""

    def __init__(self) -> None:
        self._known: tuple[tuple[object, ...], Keys] | None = None

    def forget(self) -> None:
        """Free the memory: no job of a pass follows soon."""
        self._known = None

    async def keys(self, job: Job, rows: Rows) -> Keys:
        """The keys of a job's pass. Reads the dirty records if this process has not done so before. Raises what `rows` raises."""
        compaction = job.compaction
        assert compaction is not None
        name = (job.topic_id, job.partition, compaction.number)
        if self._known is None or self._known[0] != name:
            self._known = None
            self._known = name, await self._read(compaction, rows)
        return self._known[1]

    @staticmethod
    async def _read(compaction: Compaction, rows: Rows) -> Keys:
        keys = Keys(compaction.end_offset)
        for source in compaction.dirty:
            async for batch in rows(source):
                if not keys.add(*_keys_of(batch)):
                    return keys
        return keys


def compacted(rows: pa.RecordBatch, keys: Keys, compaction: Compaction) -> pa.RecordBatch:
    """The rows that stay."""
    if not rows.num_rows:
        return rows
    keep = keys.staying(*_keys_of(rows), rows.column("value"), compaction.markers_end)
    return rows if all(keep) else rows.filter(pa.array(keep))


def _keys_of(rows: pa.RecordBatch) -> tuple[list[bytes | None], list[int]]:
    """The keys and offsets of rows."""
    keys: ArrowArray = rows.column("key")
    offsets: ArrowArray = rows.column("offset")
    return keys.to_pylist(), offsets.to_pylist()
