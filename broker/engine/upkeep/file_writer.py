"""Writes the folded files of one partition to the store."""

from __future__ import annotations

import uuid

import msgspec
import pyarrow as pa

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.base import keys
from headgate.broker.log.folded_file import FoldedEncoder
from headgate.broker.store.interface import Store

FILE_BYTES = 64 << 20
"""Encoded bytes from which a file is complete."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What all files of a fold of one partition have in common; see `Job` and `ParquetExtent`."""

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    history: bool
    oldest_ms: int
    maker: str


class FileWriter:
    """Writes records to as many files as they need. The files together cover the offsets of what they replace.

    Args:
        base_offset: the first offset of the first file.
    """

    def __init__(self, store: Store, origin: Origin, base_offset: int) -> None:
        self._store = store
        self._origin = origin
        self._encoder = FoldedEncoder(origin.partition)
        self._files: list[ParquetExtent] = []
        self._base_offset = base_offset
        self._end_offset = base_offset
        self._appended_ms = 0

    @property
    def held_bytes(self) -> int:
        """Bytes in memory of the file that is not complete."""
        return self._encoder.held_bytes if self._encoder.rows else 0

    async def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of a folded file."""
        self._encoder.add(rows)
        if self._encoder.held_bytes >= FILE_BYTES:
            await self.complete()

    def reached(self, end_offset: int, appended_ms: int) -> None:
        """All records below an offset were added; the newest of them was appended at that wall-clock time in ms."""
        self._end_offset = max(self._end_offset, end_offset)
        self._appended_ms = max(self._appended_ms, appended_ms)

    async def finish(self) -> list[ParquetExtent]:
        """The files. [] if no record is left."""
        if self._encoder.rows:
            await self.complete()
        elif self._files and self._end_offset > self._base_offset:
            # The last offsets have no record: they belong to the last file.
            self._files[-1] = msgspec.structs.replace(self._files[-1], end_offset=self._end_offset)
        return self._files

    async def complete(self) -> None:
        """Write the file with the rows so far, at least one."""
        origin, written = self._origin, self._encoder.finish()
        name = f"offset={self._base_offset:020d}-{origin.maker}.parquet"
        path = keys.folded_file(origin.topic_id, origin.partition, name)
        await self._store.put(path, memoryview(written.data))
        self._files.append(
            ParquetExtent(
                partition=origin.partition,
                base_offset=self._base_offset,
                end_offset=self._end_offset,
                leader_epoch=origin.leader_epoch,
                path=path,
                size_bytes=len(written.data),
                footer_crc32c=written.footer_crc32c,
                timestamp_min_ms=written.timestamp_min_ms,
                timestamp_max_ms=written.timestamp_max_ms,
                records=written.rows,
                appended_ms=self._appended_ms,
                history=origin.history,
                oldest_ms=origin.oldest_ms,
            )
        )
        self._encoder = FoldedEncoder(origin.partition)
        self._base_offset = self._end_offset
