"""The end of a lead: segments are sealed once all their records are durable and listed in the manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import SealIncarnation
from headgate.broker.cluster.edits.segments import SealSegment
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.producers import encode_states
from headgate.broker.engine.write.checkpoint import PUTS_TOGETHER, Checkpointer
from headgate.broker.engine.write.wal import Wal
from headgate.broker.runtime.errors import FencedError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import in_parallel, outlast, watch

logger = get_logger("engine")

RESIGN_RETRY_S = 0.2
SEAL_TRIES = 10
"""Attempts of a closing broker to seal its segments and its incarnation."""


class Handover:
    """Seals segments of this broker.

    Args:
        durable: waits until all batches appended so far are durable.
    """

    def __init__(
        self, lifecycle: Lifecycle, leads: Leads, wal: Wal, checkpointer: Checkpointer, durable: Callable[[], Awaitable[None]]
    ) -> None:
        self._lifecycle = lifecycle
        self._leads = leads
        self._wal = wal
        self._checkpointer = checkpointer
        self._durable = durable
        self._resigning: set[asyncio.Task[None]] = set()
        self._wanted: set[int] = set()
        """The segments of the next hand-over, which waits for the one under way."""
        self._next: asyncio.Task[None] | None = None
        """The task of that hand-over. None: no hand-over waits."""
        self._turn = asyncio.Lock()

    def stop(self) -> None:
        """Stop the handovers that have begun."""
        for task in self._resigning:
            task.cancel()

    async def resign(self, segment_ids: Iterable[int]) -> None:
        """Hand segments over: refuse new records, make the accepted records durable, list them in the manifest, and seal the
        segments.

        Only the writers of these segments wait meanwhile. One hand-over is under way at a time. All segments that are asked for
        meanwhile go on taking records, and are then handed over together, with one commit: if the store is far away, their writers
        wait for one commit, not for all earlier ones. A begun handover cannot be cancelled, also when the caller ends (the stream
        to the leader that asked for it). The broker tries until it succeeds or until the broker ends.

        Raises FencedError: another broker replaced this one. ClosedError: this broker closes.
        """
        if self._next is None or self._next.done():
            self._wanted = set()
            self._next = task = asyncio.create_task(self._resign(self._wanted), name="resign")
            self._resigning.add(task)
            task.add_done_callback(self._resigning.discard)
            # The partitions of these segments take no records any more. If the task fails, this broker must end, so that another
            # broker leads them.
            watch(task, "handing over", self._lifecycle.fail)
        self._wanted.update(segment_ids)
        await outlast(self._next)

    async def _resign(self, wanted: set[int]) -> None:
        async with self._turn:
            await self._leads.openings.settled()
            self._next = None
            await self._hand_over(wanted)

    async def _hand_over(self, wanted: set[int]) -> None:
        segments = [segment for segment in self._leads.segments() if segment.id in wanted]
        logs = [log for segment in segments for log in self._leads.of_segment(segment)]
        refusal = RetryError(Reason.NOT_LEADER, "the partition is being handed over to another broker")
        for partition in logs:
            partition.refuse(refusal)
        await self._durable()
        await self._wal.roll()
        while self._lifecycle.failed is None:
            try:
                await self._seal(segments)
                return
            except (RetryError, InvalidError) as error:
                # Either the leader does not answer, or a topic was deleted and this broker has not heard of it yet.
                logger.warning("resign_waits", segments=len(segments), error=error.message)
                await asyncio.sleep(RESIGN_RETRY_S)

    async def _seal(self, segments: Iterable[SegmentInfo], *more: Edit) -> None:
        """Seal segments. All their records are durable and in complete chunks."""
        seals: list[Edit] = []
        states: dict[str, list[PartitionLog]] = {}
        origins: set[str] = set()
        for segment in segments:
            if segment.id not in self._lifecycle.manifest.segments.open:
                continue  # the topic was deleted, or an earlier attempt succeeded
            if segment.id in self._leads.openings.damaged:
                # It has no record of its own, and the state of its producers is still the damaged object. The next lead waits for
                # it, too. One edit names one object: a segment with several stays open, and a recovery seals it.
                if len(segment.origins) == 1:
                    self._leads.openings.abandon(segment)
                    seals.append(SealSegment(segment.id, list(segment.base_offsets), segment.origins[0]))
                continue
            logs = self._leads.of_segment(segment)
            assert len(logs) == len(segment.partitions), "a segment is sealed once it is open"
            assert self._checkpointer.lists(logs), "a segment is sealed with all of its chunks"
            key = keys.segment_producers(self._lifecycle.incarnation_id, str(segment.id))
            states[key] = logs
            seals.append(SealSegment(segment.id, [partition.high_watermark for partition in logs], key))
            origins.update(segment.origins)
        await in_parallel(self._write_states, states.items(), PUTS_TOGETHER)
        await self._checkpointer.list_all(*seals, *more)
        await in_parallel(
            self._lifecycle.store.delete, sorted(origins - self._lifecycle.manifest.producers_objects()), PUTS_TOGETHER
        )

    async def _write_states(self, states: tuple[str, list[PartitionLog]]) -> None:
        key, logs = states
        await self._lifecycle.store.put(key, await encode_states(logs))

    async def seal_all(self) -> None:
        """Seal all segments and this incarnation. The WAL must be closed."""
        for attempt in range(SEAL_TRIES):
            await self._leads.openings.settled()
            try:
                segments = self._leads.segments()
                is_whole = not any(segment.id in self._leads.openings.damaged and len(segment.origins) > 1 for segment in segments)
                await self._seal(segments, *([SealIncarnation(self._lifecycle.incarnation_id)] if is_whole else []))
                return
            except FencedError as error:
                # This incarnation is sealed already. Either this broker sealed it, and the answer was lost with a leader that also
                # ended. Or another broker took this one for lost. In both cases all acked records are durable, and the broker that
                # seals lists all of them.
                logger.info("sealed_already", error=error.message)
                return
            except InvalidError as error:
                # Either the leader has given this broker another segment, or a topic was deleted. This broker has not heard of it
                # yet.
                if attempt == SEAL_TRIES - 1:
                    raise
                logger.info("seal_waits", error=error.message)
                await asyncio.sleep(RESIGN_RETRY_S)
