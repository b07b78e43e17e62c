"""Replays the partitions of a coordinator's topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic

from headgate.broker.coordination.slot import ShardT, Slot
from headgate.broker.log.batch import split
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

logger = get_logger(__name__)

READ_BYTES = 1 << 20
LOADS_MAX = 16
"""Partitions that are read at the same time. From S3, each read takes some tens of milliseconds."""
DAMAGED_RETRY_S = 10.0
"""Pause, in seconds, before a partition with unreadable records is loaded again. An operator may restore the records."""
LOAD_RETRY_S = 0.5
"""Pause, in seconds, before groups are loaded again after the store did not answer."""
SLICE_ROWS = 500
"""Rows that the coordinator replays or writes again before it yields to other work."""


class Loading(Generic[ShardT]):
    """Rebuilds shards from their logs.

    Args:
        name: of the coordinator, in logs. record_name: of one record of its topic, in logs.
        make_shard: returns an empty shard.
        begin: called with a slot whose shard is complete.
    """

    def __init__(
        self, engine: Engine, name: str, record_name: str, make_shard: Callable[[], ShardT], begin: Callable[[Slot[ShardT]], None]
    ) -> None:
        self._engine = engine
        self._name = name
        self._record_name = record_name
        self._make_shard = make_shard
        self._begin = begin
        self._room = asyncio.Semaphore(LOADS_MAX)

    async def load(self, slot: Slot[ShardT]) -> None:
        """Replay a partition until that succeeds or until this broker loses the lead, and begin to serve it."""
        try:
            await self._load_until_done(slot)
        finally:
            slot.settled.set()

    async def _load_until_done(self, slot: Slot[ShardT]) -> None:
        reported = ""
        while slot.log.closed is None:
            slot.shard = self._make_shard()
            try:
                rows = await self._replay(slot)
            except RetryError as error:
                logger.warning(f"{self._name}_load_waits", partition=slot.log.number, error=error.message)
                slot.shard.unload(Reason.NOT_COORDINATOR)
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            except (CorruptError, InvalidError) as error:
                # The ids of this partition wait for an operator. Without the damaged records they would lose state.
                if error.message != reported:
                    reported = error.message
                    logger.error(f"{self._name}_damaged", topic=slot.log.topic.name, partition=slot.log.number, error=error.message)
                slot.shard.unload(Reason.NOT_COORDINATOR)
                slot.settled.set()
                await asyncio.sleep(DAMAGED_RETRY_S)
                continue
            slot.loading = None
            self._begin(slot)
            logger.debug(f"{self._name}_partition_loaded", partition=slot.log.number, records=rows)
            return

    async def _replay(self, slot: Slot[ShardT]) -> int:
        """Rebuild a shard from its partition. Returns the number of records read."""
        partition = slot.log
        offset, rows = partition.log_start, 0
        while offset < partition.high_watermark:
            async with self._room:
                views = await self._engine.read(partition, offset, READ_BYTES)
            if not views:
                break
            for view in views:
                # A copy, because the memory of a read may be reused while other work runs.
                for batch in split(memoryview(bytes(view))):
                    for record in iter_records(batch):
                        if record.offset >= offset:
                            self._replay_record(slot, record)
                            offset = record.offset + 1
                            rows += 1
                            if rows % SLICE_ROWS == 0:
                                await asyncio.sleep(0)
        return rows

    def _replay_record(self, slot: Slot[ShardT], record: Record) -> None:
        try:
            if record.key is not None:
                slot.shard.replay(record.key, record.value)
        except CorruptError as error:
            # A coordinator did not write this record. Skipping it loses no state of the broker. A failure would make all ids of
            # the partition unavailable.
            logger.warning(f"{self._record_name}_skipped", partition=slot.log.number, offset=record.offset, error=error.message)
