"""Retention: finds the records that are too old or too many, and the chunks that are no longer needed.

The age of a record counts from its append, not from the record's own timestamp. Otherwise history would be deleted on arrival.
Retention removes whole extents of complete chunks. If it must remove records of an incomplete chunk, it completes that chunk
early. A chunk's object is deleted when each of its extents is below its partition's log start, or belongs to a deleted topic.

Age is elapsed time: the clock follows no jump (`runtime/clock.py`), and time in which no broker is known to have run does not
count (`cluster/downtime.py`). While the clock is in doubt, no record is removed by age; retention by size continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeAlias

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import CloseIncarnation, RemoveChunks
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Chunk
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep.chunk_fold import Found, choose, fold, sparse
from headgate.broker.engine.upkeep.deletion import Deletion
from headgate.broker.engine.upkeep.inventory import Row, expired_end
from headgate.broker.engine.upkeep.recovery import is_fence, sweep_leftovers
from headgate.broker.engine.write.checkpoint import UPKEEP_TOGETHER, Checkpointer
from headgate.broker.engine.write.wal import Wal
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import in_parallel

logger = get_logger("retention")

SWEEP_S = 2.0
"""Longest time, in seconds, that a closing broker deletes its leftovers. The next leader deletes the rest."""
REPORTS_MAX = 100
"""Unreadable batches of one fold that the log names. `headgate topic check` finds all of them."""
REST = 20
"""Pause after a sweep, as a multiple of the duration of the scan over all partitions. When thousands of topics are deleted one
after another, sweeps without this pause would use the whole loop."""


Cutoff: TypeAlias = Callable[[int], int | None]
"""The type of `Lifecycle.cutoff_ms`: from an age in ms to an append time in ms, or None."""


def expired_offset(partition: PartitionLog, cutoff: Cutoff) -> int:
    """The new log start of a partition."""
    waiting = partition.windows.first_waiting()
    return expired_end(
        partition.log_start,
        (
            Row(extent.end_offset, extent.data_bytes, ref.appended_ms)
            for extent, ref in zip(partition.sealed.extents, partition.sealed.refs, strict=True)
        ),
        partition.config,
        partition.size_bytes,
        _before_ms(partition, cutoff),
        None if waiting is None else waiting.base_offset,
    ).end_offset


def _before_ms(partition: PartitionLog, cutoff: Cutoff) -> int | None:
    """The append time in ms before which records are too old. None: no record is too old."""
    return cutoff(partition.config.retention_ms) if partition.config.retention_ms >= 0 else None


def waits_for_listing(partition: PartitionLog, cutoff: Cutoff) -> bool:
    """True if retention will remove unlisted records: at once when they are listed (by age), or when more records follow them
    (by size). Also if they span half of the age: a chunk goes when its newest record is old, and a few records a day would keep the
    oldest ones in an open chunk for ever."""
    config = partition.config
    if not config.delete or not partition.open:
        return False
    waiting = partition.windows.first_waiting()
    first_open = partition.open.first_offset
    if waiting is not None and first_open is not None and first_open >= waiting.base_offset:
        return False  # the window before them waits for history
    before_ms = _before_ms(partition, cutoff)
    too_old = before_ms is not None and partition.open.is_late(before_ms, config.retention_ms // 2)
    return too_old or 0 <= config.retention_bytes <= partition.open.size_bytes


def sweep_edits(manifest: Manifest, own_incarnation: str) -> list[Edit]:
    """Edits that remove unneeded chunks, and sealed incarnations without chunks, from the manifest. Only the leader makes them."""
    edits: list[Edit] = []
    if manifest.leader not in ("", own_incarnation):
        return edits
    for incarnation_id, chunks in manifest.chunks.items():
        unneeded = [number for number, chunk in chunks.items() if not manifest.needs(chunk)]
        if unneeded:
            edits.append(RemoveChunks(incarnation_id, unneeded))
        sealed = manifest.incarnations[incarnation_id].sealed and incarnation_id != own_incarnation
        if sealed and len(unneeded) == len(chunks):
            edits.append(CloseIncarnation(incarnation_id))
    return edits


class Sweeper:
    """Runs retention every `retention_check_interval_ms`, and soon after a deletion. Also folds chunks when there are enough of
    them."""

    def __init__(self, lifecycle: Lifecycle, leads: Leads, deletion: Deletion, wal: Wal, checkpointer: Checkpointer) -> None:
        self._lifecycle = lifecycle
        self._leads = leads
        self._deletion = deletion
        self._wal = wal
        self._checkpointer = checkpointer
        self._epoch = lifecycle.manifest.incarnations[lifecycle.incarnation_id].leader_epoch
        self._wake = asyncio.Event()
        self._rest_s = 0.0
        self._end = asyncio.Event()
        self._folds = 0
        self._left: set[tuple[str, int]] = set()
        """Chunks that a fold could not read, together with the others of that fold: (incarnation, number)."""
        self._turn = asyncio.Lock()
        """Held by a sweep or a fold: two of them at once would remove the same chunks."""
        self._step = asyncio.Lock()
        """Held by a step that `close` does not cancel: a part of it alone would leave objects that no later sweep finds."""
        self._task: asyncio.Task[None] | None = None
        self.chunks_removed = 0
        self.chunks_folded = 0
        self.batches_unreadable = 0
        """Number of batches that consumers cannot read. Folds find them."""
        self._unswept: list[str] = []
        """Sealed incarnations that may have leftovers in the store."""

    def start(self) -> None:
        self.sweep_sealed()
        self._task = asyncio.create_task(self._run(), name="sweeper")

    def sweep_sealed(self) -> None:
        """Soon delete the leftovers of sealed incarnations. This runs in turn with folding, so that it deletes no new object of
        a fold."""
        incarnations = self._lifecycle.manifest.incarnations
        self._unswept = (
            [key for key, incarnation in incarnations.items() if incarnation.sealed] if self._lifecycle.leads_cluster else []
        )
        self._wake.set()

    def wake(self) -> None:
        """Run soon, because records or topics were deleted."""
        self._wake.set()

    def chunks_listed(self) -> None:
        """Run soon if there are chunks to fold."""
        if choose(self._lifecycle.manifest, self._lifecycle.incarnation_id, self._left) is not None:
            self._wake.set()

    async def close(self) -> None:
        """End the sweep or the fold under way. What it leaves over is swept once this incarnation is sealed, or by the next leader.
        Otherwise the end of a broker would wait for each object of a fold, which a store that is far away answers seconds later."""
        self._end.set()
        async with self._step:
            if self._task is not None:
                self._task.cancel()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def sweep_own(self) -> None:
        """Delete the leftovers of this incarnation, if it is sealed. Only the leader does it: another leader may be folding these
        chunks already, and only that broker knows which objects it has just made."""
        if not self._lifecycle.leads_cluster:
            return
        try:
            async with asyncio.timeout(SWEEP_S):
                await sweep_leftovers(self._lifecycle.store, self._lifecycle.manifest, self._lifecycle.incarnation_id)
        except (TimeoutError, RetryError) as error:
            logger.info("leftovers_kept", error=str(error) or f"more than {SWEEP_S:g} s of work")

    @property
    def _closing(self) -> bool:
        return self._end.is_set()

    async def _run(self) -> None:
        interval_s = self._lifecycle.settings.retention_check_interval_ms / 1000
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()
            if self._rest_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._rest_s):
                        await self._end.wait()
            if self._closing:
                return
            self._wake.clear()
            try:
                await self.run_once()
                await self.fold()
                while self._unswept and self._lifecycle.leads_cluster and not self._closing:
                    await sweep_leftovers(self._lifecycle.store, self._lifecycle.manifest, self._unswept[-1])
                    self._unswept.pop()
            except HeadgateError as error:
                logger.warning("retention_failed", error=error.message)
            except MemoryError:
                raise  # it ends the broker
            except Exception as error:  # the sweeper continues: otherwise the store would grow for ever, without a visible reason
                logger.exception("retention_failed", error)

    async def run_once(self) -> None:
        """Move log starts, forget expired producers, and delete unneeded chunks and incarnations."""
        async with self._turn:
            await self._sweep()

    async def _sweep(self) -> None:
        lifecycle = self._lifecycle
        lifecycle.clock.check()
        await self._list_expired()
        starts: dict[PartitionLog, int] = {}
        begun_s = lifecycle.clock.monotonic()
        silent_before_ms = lifecycle.cutoff_ms(lifecycle.settings.producer_id_expiration_ms)
        for partition in self._leads.all():
            if silent_before_ms is not None:
                partition.producers_state.expire(silent_before_ms)
            start = expired_offset(partition, lifecycle.cutoff_ms)
            if start > partition.log_start:
                starts[partition] = start
        self._rest_s = REST * (lifecycle.clock.monotonic() - begun_s)
        if starts:
            await self._deletion.set_log_starts(starts, by_age=True)
        edits = sweep_edits(lifecycle.manifest, lifecycle.incarnation_id)
        if not edits:
            return
        listed = {incarnation_id: dict(chunks) for incarnation_id, chunks in lifecycle.manifest.chunks.items()}
        async with self._step:
            await self._lifecycle.catalog.commit(*edits)
            for edit in edits:
                if isinstance(edit, CloseIncarnation):
                    await self._delete_incarnation(edit.incarnation_id)
        for edit in edits:
            if isinstance(edit, RemoveChunks):
                incarnation_id = edit.incarnation_id
                await self._delete_chunks(incarnation_id, [listed[incarnation_id][number] for number in edit.numbers])
                logger.info("chunks_removed", incarnation=incarnation_id, chunks=len(edit.numbers))

    async def _list_expired(self) -> None:
        """List records that retention wants to remove but that are not listed yet. A chunk with few writes stays open for long."""
        await self.list_open(
            [partition for partition in self._leads.all() if waits_for_listing(partition, self._lifecycle.cutoff_ms)]
        )

    async def list_open(self, waiting: Collection[PartitionLog]) -> None:
        """List the newest records of these partitions. The open chunk, which may have some of them, is completed early."""
        lifecycle = self._lifecycle
        if not waiting or self._closing or lifecycle.failed is not None or (lifecycle.ready and self._wal.stalled is not None):
            return
        if not self._checkpointer.lists(waiting):
            # Without the cut, the unused rest of the file would stay on the disk until the next write, although the file is
            # deleted.
            await self._wal.roll(cut=True)
        if not self._closing:
            await self._checkpointer.list_all()

    @property
    def _maker_epoch(self) -> int:
        """The leader epoch for objects that this broker makes in the WAL of other incarnations (`keys.maker`), or in its own
        WAL."""
        manifest = self._lifecycle.manifest
        return manifest.term_epoch if manifest.leader == self._lifecycle.incarnation_id else self._epoch

    async def fold(self) -> None:
        """Fold chunks until there are not enough to fold."""
        async with self._turn:
            await self._fold()

    async def _fold(self) -> None:
        lifecycle = self._lifecycle
        await self._lifecycle.catalog.settle()
        while not self._closing and (chosen := choose(lifecycle.manifest, lifecycle.incarnation_id, self._left)) is not None:
            await self._replace(*chosen)
        for incarnation_id, chunk in sparse(lifecycle.manifest, lifecycle.incarnation_id, self._left):
            listed = lifecycle.manifest.chunks.get(incarnation_id, {}).get(chunk.number)
            # Between two folds, the incarnation or the lead may have changed hands: then the next pass looks again.
            if self._closing or listed is not chunk:
                return
            await self._replace(incarnation_id, [chunk])

    async def _replace(self, incarnation_id: str, chunks: list[Chunk]) -> None:
        """Fold these chunks into one and delete them. Leaves them out of later folds if one is missing or damaged."""
        lifecycle = self._lifecycle
        self._folds += 1
        made_by = keys.maker(self._maker_epoch, lifecycle.incarnation_id, self._folds)
        try:
            folded, key, parts, found = await fold(lifecycle.store, lifecycle.manifest, incarnation_id, chunks, made_by)
        except (InvalidError, CorruptError) as error:
            # Other chunks are still folded.
            self._left.update((incarnation_id, chunk.number) for chunk in chunks)
            logger.error("chunks_not_folded", incarnation=incarnation_id, chunks=len(chunks), error=error.message)
            return
        try:
            async with self._step:
                await lifecycle.store.put(key, parts)
                await lifecycle.catalog.commit(folded)
        except InvalidError as error:
            # Records of these chunks were moved to files meanwhile. The next pass folds what is left in them.
            logger.info("fold_too_late", incarnation=incarnation_id, chunks=len(chunks), error=error.message)
            await lifecycle.catalog.settle()
            listed = lifecycle.manifest.chunks.get(incarnation_id, {}).values()
            if not any(chunk.made_by == made_by for chunk in listed):  # a lost answer to a commit was repeated
                await lifecycle.store.delete(key)
            return
        await self._delete_chunks(incarnation_id, chunks)
        self.chunks_folded += len(chunks)
        self._report(found)

    def _report(self, found: list[Found]) -> None:
        """Log batches that consumers cannot read. They were acked, so only an operator may skip them."""
        self.batches_unreadable += len(found)
        for damage in found[:REPORTS_MAX]:
            topic = self._lifecycle.manifest.topics_by_id.get(damage.topic_id)
            if topic is not None:
                logger.error(
                    "batch_unreadable",
                    topic=topic.name,
                    partition=damage.partition,
                    first=damage.base_offset,
                    last=damage.end_offset - 1,
                    error=damage.why,
                )

    async def _delete_chunks(self, incarnation_id: str, chunks: list[Chunk]) -> None:
        objects = [keys.chunk_object(incarnation_id, chunk) for chunk in chunks]
        objects += [keys.index_object(incarnation_id, chunk) for chunk in chunks if not chunk.index_inline]
        await in_parallel(self._lifecycle.store.delete, objects, UPKEEP_TOGETHER)
        self.chunks_removed += len(chunks)

    async def _delete_incarnation(self, incarnation_id: str) -> None:
        """Delete all objects of an incarnation except its fences: if the dead broker continues to run, it must still find them."""
        kept = self._lifecycle.manifest.producers_objects()
        last = ""
        while objects := await self._lifecycle.store.list(keys.wal_prefix(incarnation_id), last):
            unneeded = [found.key for found in objects if not is_fence(found) and found.key not in kept]
            await in_parallel(self._lifecycle.store.delete, unneeded, UPKEEP_TOGETHER)
            last = objects[-1].key
