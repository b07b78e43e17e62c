"""Deletion of records: below an offset, or whole batches that consumers cannot read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.topics import SetLogStart, SkipRecords
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.read.reader import StoreReader
from headgate.broker.engine.read.skip import whole_batches
from headgate.broker.runtime.logging import get_logger

logger = get_logger("engine")


class Deletion:
    """Moves the beginnings of logs, and skips batches.

    Args:
        deleted: called after records were deleted.
    """

    def __init__(self, lifecycle: Lifecycle, reader: StoreReader, deleted: Callable[[], None]) -> None:
        self._lifecycle = lifecycle
        self._reader = reader
        self._deleted = deleted

    async def delete_records(self, partition: PartitionLog, before_offset: int) -> int:
        """Delete the records of one partition below `before_offset` (-1: the high watermark). Returns the new first offset.

        Raises as `cut_offset` and `delete_below`.
        """
        await self.delete_below({partition: self.cut_offset(partition, before_offset)})
        return partition.log_start

    def cut_offset(self, partition: PartitionLog, before_offset: int) -> int:
        """The new first offset of a log after its records below `before_offset` (-1: the high watermark) are deleted.

        Raises InvalidError(OFFSET_OUT_OF_RANGE) if that offset is negative or above the high watermark.
        """
        offset = partition.high_watermark if before_offset == -1 else before_offset
        if not 0 <= offset <= partition.high_watermark:
            raise partition.out_of_range(offset)
        return offset

    async def delete_below(self, offsets: Mapping[PartitionLog, int]) -> None:
        """Make records below these offsets permanently unreadable, in one edit. A thousand partitions cost as much as one."""
        starts = {partition: offset for partition, offset in offsets.items() if offset > partition.log_start}
        if starts:
            await self.set_log_starts(starts)
            self._deleted()

    async def set_log_starts(self, starts: Mapping[PartitionLog, int], *, by_age: bool = False) -> None:
        """Move the first readable offsets, durably, in one edit. `by_age`: retention by time asks for it."""
        by_topic: dict[uuid.UUID, dict[int, int]] = {}
        for partition, offset in starts.items():
            by_topic.setdefault(partition.topic.id, {})[partition.number] = offset
        edits: list[Edit] = [SetLogStart(topic_id, offsets, by_age) for topic_id, offsets in by_topic.items()]
        await self._lifecycle.catalog.commit(*edits)

    async def skip_records(
        self, partition: PartitionLog, first_offset: int, last_offset: int, *, validate_only: bool = False
    ) -> tuple[int, int]:
        """Let readers pass the batches with these offsets, permanently. Skipping the same range again has no effect.

        Returns:
            The skipped range. It has only whole batches, so it may be larger than the range asked for. Raises as
            `skip.whole_batches`.
        """
        base_offset, end_offset = await whole_batches(self._reader, partition, first_offset, last_offset)
        if validate_only:
            return base_offset, end_offset
        await self._lifecycle.catalog.commit(SkipRecords(partition.topic.id, partition.number, base_offset, end_offset))
        logger.warning(
            "records_skipped", topic=partition.topic.name, partition=partition.number, first=base_offset, last=end_offset - 1
        )
        self._deleted()
        return base_offset, end_offset
