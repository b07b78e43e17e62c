"""Folds to files the partitions that this broker leads: looks for due records, has them folded, and commits the edits."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Set
from contextlib import suppress

from headgate.broker.cluster.edits.files import FoldToFiles, NoteCompacted
from headgate.broker.cluster.edits.topics import CUTS_MAX
from headgate.broker.cluster.topic_config import LONG_MAX, TopicConfig
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep.adopted_folder import AdoptedFolder
from headgate.broker.engine.upkeep.compaction import Ages, after, dirty_parts, next_run, plan
from headgate.broker.engine.upkeep.file_fold import Compaction, Job, Part, Result, choose, make_job, sources
from headgate.broker.engine.upkeep.file_fold_process import Worker
from headgate.broker.engine.upkeep.merging import choose_files, waits_for_age
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("offline")

LOOK_PARTITIONS = 500
"""Partitions that are looked at in one turn of the loop: less than a millisecond while none is due."""
COMMIT_FOLDS = 64
"""Folds of one commit. The edits of many small partitions then cost one write to the store."""
COMMIT_S = 60.0
"""Time in seconds after which folds are committed: files that nothing names are kept for `FOLD_MS_MAX` only."""
COMMIT_EXTENTS = 4000
"""Replaced extents from which folds are committed: half a megabyte of edits."""
TRIES = 3
"""Times that the process may die of one job, for example without memory, or that its chunk may be missing. Then the records stay in
chunks."""
PAUSE_S_MIN = 2.0
"""Shortest pause between two passes, in seconds, for topics with a lag of less than that. A pass of a compacted topic may write its
partitions anew."""
LOOK_S = 5.0
"""Pause between two looks at the topics' settings, in seconds."""
LAG_SHARE = 0.25
"""Pause between two passes, as a share of the smallest lag of a topic."""
STAY_MAX = 100_000
"""Extents that are remembered because they cannot be folded. Beyond it, all of them are tried again."""


def lag_ms_of(config: TopicConfig) -> int | None:
    """The age in ms at which records must have been folded or compacted. None: only their size counts."""
    lags = [config.offline_after_ms] if config.offline_after_ms >= 0 else []
    if config.compact and config.max_compaction_lag_ms < LONG_MAX:
        lags.append(config.max_compaction_lag_ms)
    return min(lags, default=None)


class FileFolder:
    """Folds records to files every `offline_check_interval_ms`, while there are some to fold.

    Args:
        folded: called after records have left chunks, some of which may be unneeded now.
        list_open: lists the newest records of partitions; see `Sweeper.list_open`.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        leads: Leads,
        worker: Worker,
        folded: Callable[[], None],
        list_open: Callable[[Collection[PartitionLog]], Awaitable[None]],
    ) -> None:
        self._lifecycle = lifecycle
        self._leads = leads
        self._worker = worker
        self._folded = folded
        self._list_open = list_open
        self._stay: dict[tuple[uuid.UUID, int], set[int]] = {}
        """Base offsets of extents that cannot be folded, by topic and partition."""
        self._stay_count = 0
        self._failures: dict[tuple[uuid.UUID, int, int], int] = {}
        """Jobs of which the process died, or whose chunk was missing, and how often: by topic, partition and first offset."""
        self._later: set[tuple[uuid.UUID, int, int]] = set()
        """Jobs that are not tried again in this pass."""
        self._starts: dict[PartitionLog, int] = {}
        """The log starts of partitions with files, as of this pass."""
        self._starts_before: dict[PartitionLog, int] = {}
        """The same, as of the pass before."""
        self._settled: dict[PartitionLog, tuple[int, int, int, bool, bool]] = {}
        """Partitions without files to fold, and what was looked at (`_due_files`)."""
        self._attempts = 0
        self._epoch = lifecycle.manifest.incarnations[lifecycle.incarnation_id].leader_epoch
        self.adopted = AdoptedFolder(lifecycle, leads, worker, self.commit, self._epoch)
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()
        self.records_folded = 0
        self.files_written = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="offline-folder")

    async def close(self) -> None:
        """End the fold under way; its files are left over."""
        self._end.set()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._worker.rest()

    async def _run(self) -> None:
        spent_s = 0.0
        while not self._end.is_set():
            await self._pause(spent_s)
            began_s = self._lifecycle.clock.monotonic()
            try:
                if not await self.run_once():
                    await self._worker.rest()
            except HeadgateError as error:
                logger.warning("fold_to_files_failed", error=error.message)
            except MemoryError:
                raise  # it ends the broker
            except Exception as error:  # records stay in chunks, which is safe; ending the broker would not help
                logger.exception("fold_to_files_failed", error)
            spent_s = self._lifecycle.clock.monotonic() - began_s

    async def _pause(self, spent_s: float) -> None:
        """Wait for the next pass. A topic that is created or changed meanwhile may shorten it."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not self._end.is_set():
            now_s, until_s = loop.time(), began_s + self._pause_s(spent_s)
            if now_s >= until_s:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until_s, now_s + LOOK_S)):
                    await self._end.wait()

    def _pause_s(self, spent_s: float) -> float:
        """The pause before the next pass, in seconds: less than the setting's if a topic wants its records folded or compacted
        sooner, but as long as the last pass took."""
        interval_s = self._lifecycle.settings.offline_check_interval_ms / 1000
        lags = (lag_ms_of(log.config) for log in self._leads.all() if not log.internal)
        soonest_s = min((lag_ms for lag_ms in lags if lag_ms is not None), default=LONG_MAX) / 1000
        return min(interval_s, max(PAUSE_S_MIN, soonest_s * LAG_SHARE, spent_s))

    async def run_once(self) -> int:
        """Fold everything that is due. Returns the number of folds that were committed.

        Raises RetryError: the store or the leader does not answer, or the process died.
        """
        done = 0
        self._later.clear()
        self._settled = {log: seen for log, seen in self._settled.items() if log.closed is None}
        self._starts_before = self._starts
        self._starts = {log: log.log_start for log in self._leads.all() if log.windows.files_end}
        await self._list_open([log for log in self._leads.all() if self._waits_for_listing(log)])
        for log in [log for log in self._leads.all() if log.config.compact and not log.internal]:
            done += await self._compact(log)
        while True:
            committed = 0
            ready: list[FoldToFiles] = []
            begun_s = self._lifecycle.clock.monotonic()
            async for fold in self.fold_each():
                ready.append(fold)
                late = self._lifecycle.clock.monotonic() - begun_s > COMMIT_S
                if late or len(ready) == COMMIT_FOLDS or sum(len(file.parts) for file in ready) >= COMMIT_EXTENTS:
                    committed += await self.commit(ready)
                    ready, begun_s = [], self._lifecycle.clock.monotonic()
            committed += await self.commit(ready)
            if not committed and not self._end.is_set():
                # One recipe at a time: it takes seconds, and other records that are due by then come first.
                committed = await self.adopted.fold_next()
            done += committed
            if not committed or self._end.is_set():
                return done

    def _waits_for_listing(self, log: PartitionLog) -> bool:
        """True if unlisted records are due, or will be late: a chunk with few writes stays open for long, and only complete chunks
        are folded. A fold is due when the newest record of a chunk is old, so no chunk may span more than half of that age."""
        config = log.config
        if not log.open or log.internal:
            return False
        if 0 <= config.offline_after_bytes < log.open.size_bytes:
            return True
        before_ms = self._lifecycle.cutoff_ms(config.offline_after_ms) if config.offline_after_ms >= 0 else None
        if before_ms is not None and log.open.is_late(before_ms, config.offline_after_ms // 2):
            return True
        half_ms = self._lifecycle.cutoff_ms(config.max_compaction_lag_ms // 2) if config.compact else None
        return half_ms is not None and log.open.oldest_ms < half_ms

    async def fold_each(self) -> AsyncIterator[FoldToFiles]:
        """The next fold of each partition that has one due. The files are written; the caller commits the edits."""
        for number, log in enumerate(list(self._leads.all())):
            if number % LOOK_PARTITIONS == LOOK_PARTITIONS - 1:
                await asyncio.sleep(0)
            while not self._end.is_set() and (job := self._due(log)) is not None:
                edit = await self._fold(job)
                if edit is not None:
                    yield edit
                    break

    def _due(self, log: PartitionLog) -> Job | None:
        config = log.config
        if log.internal or log.closed is not None or (config.offline_after_ms < 0 and config.offline_after_bytes < 0):
            return None
        lifecycle, after_ms = self._lifecycle, config.offline_after_ms
        old_ms = lifecycle.cutoff_ms(after_ms) if after_ms >= 0 else None
        stay: Set[int] = self._stay.get((log.topic.id, log.number), frozenset())
        parts = choose(
            log.sealed.extents,
            log.sealed.refs,
            stay,
            stable_end=log.stable_end,
            after_bytes=config.offline_after_bytes,
            old_ms=old_ms,
            young_ms=lifecycle.cutoff_ms(after_ms // 2) if after_ms >= 0 else None,
        )
        parts = parts or self._due_files(log, stay, old_ms)
        if not parts or (log.topic.id, log.number, parts[0][0].base_offset) in self._later:
            return None
        self._attempts += 1
        return make_job(log, parts, keys.maker(self._epoch, lifecycle.incarnation_id, self._attempts))

    def _due_files(self, log: PartitionLog, stay: Set[int], old_ms: int | None) -> list[Part]:
        """Files that are folded again. A partition with thousands of files is only looked at after a change."""
        at_rest = self._starts_before.get(log) == log.log_start
        view = (log.sealed.changes, log.log_start, len(log.windows.cuts), at_rest, log.config.folds_history)
        if self._settled.get(log) == view:
            return []
        found = choose_files(log, stay, at_rest=at_rest, old_ms=old_ms)
        if not found and not waits_for_age(log):
            self._settled[log] = view
        return found

    async def _compact(self, log: PartitionLog) -> int:
        """Compact a partition, if that is due. Returns the number of folds that were committed."""
        lifecycle, config = self._lifecycle, log.config
        stay: Set[int] = self._stay.get((log.topic.id, log.number), frozenset())
        marks = lifecycle.manifest.compacted.get(log.topic.id, {}).get(log.number, [])
        ages = Ages(
            young_ms=lifecycle.cutoff_ms(config.min_compaction_lag_ms),
            late_ms=lifecycle.cutoff_ms(config.max_compaction_lag_ms // 2),
            old_ms=lifecycle.cutoff_ms(config.offline_after_ms) if config.offline_after_ms >= 0 else None,
            cleaned_ms=lifecycle.cutoff_ms(config.delete_retention_ms),
        )
        due = plan(log, marks, stay, ages)
        if due is None:
            return 0
        self._attempts += 1
        compaction = Compaction(
            number=self._attempts,
            dirty=sources(dirty_parts(log, due, stay)),
            end_offset=due.end,
            aborted=list(log.producers_state.transactions.aborted(due.dirty, due.end)),
            markers_end=due.markers_end,
        )
        done, offset, end = 0, log.log_start, due.end
        while not self._end.is_set() and log.closed is None and (parts := next_run(log, offset, end, stay)):
            self._attempts += 1
            job = make_job(log, parts, keys.maker(self._epoch, lifecycle.incarnation_id, self._attempts), compaction)
            result = await self._work(job)
            if result is None:
                return done  # the next pass begins again
            offset, end = parts[-1][0].end_offset, min(end, result.keys_end)
            if not result.unchanged:
                if not await self.commit([job.edit(result.files, lifecycle.clock.now_ms())]):
                    return done
                done += 1
        if not self._end.is_set() and log.closed is None:
            noted = after(marks, due, end, lifecycle.clock.now_ms(), config)
            await lifecycle.catalog.commit(NoteCompacted(log.topic.id, log.number, noted))
            logger.info("partition_compacted", topic=log.topic.name, partition=log.number, end=end, folds=done)
        return done

    async def _fold(self, job: Job) -> FoldToFiles | None:
        """Have a job done. None if its records cannot be folded now."""
        result = await self._work(job)
        return None if result is None else job.edit(result.files, self._lifecycle.clock.now_ms())

    async def _work(self, job: Job) -> Result | None:
        """Have a job done. None if its records cannot be folded: then they are not tried again, or later.

        Raises RetryError: the store does not answer, or the process died.
        """
        first = job.parts[0].extent.base_offset
        key = (job.topic_id, job.partition, first)
        try:
            result = await self._worker.fold(job)
        except RetryError as error:
            if not self._failed_often(key):
                raise
            result = Result(refused=error.message, refused_base=first)
        if result.retry:
            raise RetryError(Reason.STORE_UNAVAILABLE, result.retry)
        if result.missing and not self._failed_often(key):
            # Another broker has probably folded or removed the chunk, and its edit has not reached this broker yet.
            self._later.add(key)
            return None
        self._failures.pop(key, None)
        if result.refused:
            self._keep(job, [result.refused_base], result.refused)
            return None
        cuts = self._lifecycle.manifest.readable.cuts_of(job.topic_id, job.partition)
        if not result.files and not result.unchanged and len(cuts) >= CUTS_MAX:
            self._keep(
                job, [part.extent.base_offset for part in job.parts], "no record is left, but there are too many such ranges"
            )
            return None
        return result

    def _failed_often(self, key: tuple[uuid.UUID, int, int]) -> bool:
        """Count a failure of a job. True if it will not be tried again."""
        self._failures[key] = self._failures.get(key, 0) + 1
        return self._failures[key] >= TRIES

    def _keep(self, job: Job, bases: list[int], why: str) -> None:
        """Leave extents in their chunks."""
        topic = self._lifecycle.manifest.topics_by_id.get(job.topic_id)
        if self._stay_count >= STAY_MAX:
            self._stay, self._stay_count = {}, 0
        self._stay.setdefault((job.topic_id, job.partition), set()).update(bases)
        self._stay_count += len(bases)
        if topic is not None:
            logger.warning(
                "records_stay_in_chunks", topic=topic.name, partition=job.partition, first=bases[0], extents=len(bases), reason=why
            )

    async def commit(self, folds: list[FoldToFiles]) -> int:
        """Commit folds together, or one by one if one of them comes too late. Returns the number of those in effect."""
        if not folds:
            return 0
        try:
            await self._lifecycle.catalog.commit(*folds)
        except InvalidError as error:
            if len(folds) == 1:
                # The extents were folded, moved or deleted meanwhile. The files are left over, and swept.
                logger.info("fold_to_files_too_late", partition=folds[0].partition, error=error.message)
                return 0
            return sum([await self.commit([fold]) for fold in folds])
        self.files_written += sum(len(fold.files) for fold in folds)
        self.records_folded += sum(file.rows for fold in folds for file in fold.files)
        self._folded()
        return len(folds)
