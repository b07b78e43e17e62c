"""Keeps the log of a coordinator's partition short.

When the log has many more rows than live keys, the live rows are appended again, and all rows before them are cut off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from headgate.broker.coordination.effects import ROWS_PER_APPEND_MAX, Row
from headgate.broker.coordination.slot import Slot
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.logging import get_logger

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog

logger = get_logger(__name__)

SNAPSHOT_ROWS_MIN = 2_000
"""Fewest rows of a partition for which a snapshot is worth its cost. 50 partitions of this length replay in about a second."""
CUT_INTERVAL_S = 10.0
"""Pause, in seconds, between two manifest edits that cut off rows that snapshots have replaced."""
SLICE_ROWS = 500
"""Rows that are written again before other work of the loop runs."""


class Shortening:
    """Snapshots and cuts of the partitions of one internal topic.

    Args:
        name: of the coordinator, in logs.
        write: appends rows to a partition. Raises HeadgateError.
        spawn: starts a task whose failure ends the broker.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        write: Callable[[PartitionLog, list[Row]], None],
        spawn: Callable[[Coroutine[object, object, None], str], asyncio.Task[None]],
    ) -> None:
        self._engine = engine
        self._name = name
        self._write = write
        self._spawn = spawn
        self._cuts: dict[PartitionLog, int] = {}
        """Where the rows of a snapshot begin, for partitions whose older rows are not cut off yet."""
        self._cutting: asyncio.Task[None] | None = None
        self._cut_at_s = 0.0

    def consider(self, slot: Slot[Any]) -> None:
        """Called after an append. Starts a snapshot if the log has become long enough."""
        if slot.shard.rows_appended < slot.snapshot_rows or slot.snapshotting is not None:
            return
        slot.snapshot_rows = max(SNAPSHOT_ROWS_MIN, 2 * slot.shard.live_count())
        if slot.shard.rows_appended >= slot.snapshot_rows:
            slot.snapshotting = self._spawn(self._snapshot(slot), f"{self._name}-snapshot")

    def cut_if_due(self, at_s: float) -> None:
        """Called from time to time, in seconds of the loop's clock. Starts one edit for all partitions with new snapshots."""
        if self._cuts and at_s >= self._cut_at_s and self._cutting is None:
            self._cut_at_s = at_s + CUT_INTERVAL_S
            self._cutting = self._spawn(self._cut(), f"{self._name}-cut")

    def forget(self, partition: PartitionLog) -> None:
        """Called when this broker loses the lead of a partition."""
        self._cuts.pop(partition, None)

    def tasks(self) -> Iterator[asyncio.Task[None]]:
        """The cut under way. The tasks of snapshots are in the slots."""
        if self._cutting is not None:
            yield self._cutting

    async def _snapshot(self, slot: Slot[Any]) -> None:
        first_offset = slot.log.next_offset
        rows_written = 0
        try:
            for rows in slot.shard.snapshot():
                for start in range(0, len(rows), ROWS_PER_APPEND_MAX):
                    self._write(slot.log, rows[start : start + ROWS_PER_APPEND_MAX])
                if (rows_written + len(rows)) // SLICE_ROWS > rows_written // SLICE_ROWS:
                    await asyncio.sleep(0)
                rows_written += len(rows)
            await self._engine.durable()
            self._cuts[slot.log] = first_offset
            logger.debug(f"{self._name}_snapshot", partition=slot.log.number, rows=rows_written, first_offset=first_offset)
        except HeadgateError as error:
            # Nothing was cut, so no record is lost. Further rows start the next attempt.
            slot.snapshot_rows = slot.shard.rows_appended + SNAPSHOT_ROWS_MIN
            logger.warning(f"{self._name}_snapshot_failed", partition=slot.log.number, error=error.message)
        finally:
            slot.snapshotting = None

    async def _cut(self) -> None:
        """Cut off the rows that snapshots have replaced, of all partitions in one edit."""
        cuts, self._cuts = self._cuts, {}
        try:
            await self._engine.set_log_starts(cuts)
        except HeadgateError as error:
            for partition, offset in cuts.items():
                self._cuts.setdefault(partition, offset)
            logger.warning(f"{self._name}_cut_failed", error=error.message)
        finally:
            self._cutting = None
