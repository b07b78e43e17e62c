"""The write path: a batch from a producer gets its offsets, goes to the WAL, and is acked once it is durable.

`append_parsed` is synchronous and cheap. It judges a batch, lets the partition assign its offsets and keep it in memory, and
hands it to the WAL. The batch becomes visible and is acked only after the WAL has reported it as durable (`wal_committed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.log import Appended, PartitionLog, Pending
from headgate.broker.engine.write.checkpoint import Rolled
from headgate.broker.engine.write.replicas import Replicator
from headgate.broker.engine.write.wal import DurableCallback, Wal
from headgate.broker.log.batch import (
    CODEC_MAX,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    TRANSACTIONAL,
    check,
    parse,
)
from headgate.broker.log.check import ANY_TIME, RecordError, SenderTrust, Times, check_all, check_keys, check_sample, records_out_of
from headgate.broker.log.crc import crc32c
from headgate.broker.log.producers import ProducerState
from headgate.broker.log.transactions import marker
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("engine")

STALL_GRACE_S = 5.0
"""Seconds that writers wait for a store that does not answer. After that, the broker refuses new batches with a retriable error."""


class WritePath:
    """Takes batches, and receives the WAL's reports about them. Lives on the loop.

    Args:
        replicator: sends copies of batches to the follower, for topics with `ack=replicated`.
    """

    def __init__(self, lifecycle: Lifecycle, replicator: Replicator) -> None:
        self._lifecycle = lifecycle
        self._clock = lifecycle.clock
        self._replicator = replicator
        self._wal: Wal
        self._rolled: Callable[[Rolled], None]
        self._chunk_logs: dict[int, dict[PartitionLog, None]] = {}
        """The partitions with rows in each chunk that is not complete, in the order of their first rows."""
        self._must_be_durable = False
        """True if a batch that needs the store's confirmation was appended since the last `on_acked`. For such a batch, the
        follower's confirmation is not enough."""
        self.batches_refused = 0
        """Number of batches that were refused because of their records. Batches with a wrong header are not counted."""

    def start(self, wal: Wal, rolled: Callable[[Rolled], None]) -> None:
        """Called before the first append. `rolled`: called with each complete chunk."""
        self._wal = wal
        self._rolled = rolled

    def append(
        self,
        partition: PartitionLog,
        batch: memoryview,
        *,
        now_ms: int | None = None,
        adopt: bytearray | None = None,
        trust: SenderTrust | None = None,
    ) -> Appended:
        """Assign offsets to one batch and send it to the store. See `append_parsed`.

        Args:
            batch: exactly one RecordBatch v2.
            now_ms: the wall clock in ms, if the caller has just read it.
            adopt: the buffer that begins with the batch. It belongs to this request alone, and the broker may keep it instead of
                a copy.
            trust: as for `append_parsed`.
        """
        size = len(batch)
        header = parse(batch, 0, size)
        if now_ms is None:
            now_ms = self._clock.now_ms()
        return Appended._make(self.append_parsed(partition, header, batch, 0, size, now_ms, adopt, trust))

    def append_parsed(
        self,
        partition: PartitionLog,
        header: tuple[int, ...],
        buffer: memoryview,
        position: int,
        size: int,
        now_ms: int,
        adopt: bytearray | None,
        trust: SenderTrust | None,
    ) -> tuple[int, int, int]:
        """Assign offsets to one batch and send it to the store.

        Args:
            header: the batch's header, parsed by `log.batch.parse`.
            buffer: contains the batch: `size` bytes from `position`, and nothing else in these bytes.
            now_ms: the wall clock in ms.
            adopt: the buffer behind the view `buffer`, if it belongs to this request alone. The broker may keep it instead of a
                copy.
            trust: the trust in the batch's sender, if a sample of its records is due (`log/check.py`); else None.

        Returns:
            The fields of `Appended`. They are certain once `on_acked` has called back. Before that the caller must not send
            them.

        Raises:
            InvalidError: the batch is wrong; nothing was changed. RetryError: the batch cannot be stored now.
        """
        wal = self._wal
        if wal.stalled is not None or self._lifecycle.failed is not None or partition.refusal is not None:
            self._refuse(partition)
        config = partition.config
        (
            _, length, _, magic, crc, attributes, last_delta,
            first_ms, timestamp_max, producer_id, producer_epoch, sequence, records,
        ) = header  # fmt: skip
        # Nearly all batches outside transactions pass this test. For the others, `check` raises the exact error, if there is one.
        if not (
            magic == 2
            and length + LENGTH_OVERHEAD_BYTES == size
            and records * 7 + HEADER_BYTES <= size <= config.max_message_bytes
            and crc32c(buffer[position + CRC_START : position + size]) == crc
            and 0 <= attributes <= CODEC_MAX
            and last_delta == records - 1 >= 0
            and (producer_id < 0 or (producer_epoch >= 0 and sequence >= 0))
        ):
            check(header, buffer, position, size, config.max_message_bytes)
        if timestamp_max > now_ms + config.timestamp_after_max_ms or first_ms < now_ms - config.timestamp_before_max_ms:
            self._check_timestamps(partition, header, buffer[position : position + size], now_ms)
        if (trust is not None and trust.due_in <= 0) or config.checks_all:
            self._check_records(partition, header, buffer[position : position + size], now_ms, trust)
        if config.compact and not partition.internal:
            self._check_keys(partition, buffer[position : position + size])
        if producer_id >= 0:
            state = partition.producers_state
            if attributes < TRANSACTIONAL and not state.in_transactions:
                duplicate = state.admit(producer_id, producer_epoch, sequence, records, partition.next_offset, now_ms)
            else:
                duplicate = _admit_in_transaction(state, header, partition.next_offset, now_ms)
            if duplicate is not None:
                self._must_be_durable = True  # the first append may be older than the topic's copies
                return duplicate[0], duplicate[1] if config.log_append_time else -1, partition.log_start
        pending = partition.assign(buffer, position, size, records, timestamp_max, now_ms, adopt)
        wal.append(pending)
        if config.replicated:
            self._replicator.append(partition.stream, pending[1], now_ms)
        else:
            self._must_be_durable = True
        return pending[2], now_ms if config.log_append_time else -1, partition.log_start

    def append_marker(self, partition: PartitionLog, producer_id: int, epoch: int, coordinator_epoch: int, *, commit: bool) -> None:
        """End a producer's transaction in a partition: append its marker. Without an open transaction there is nothing to end, and
        a marker is appended only if it begins an epoch, which fences earlier ones.

        The caller awaits `durable`, also if nothing was appended: an earlier marker may be on its way.

        Raises:
            InvalidError: INVALID_PRODUCER_EPOCH: the producer has a newer epoch here. RetryError: the marker cannot be stored now.
        """
        self._refuse(partition)
        now_ms = self._clock.now_ms()
        state = partition.producers_state
        known = state.epoch_of(producer_id)
        opened = state.transactions.open.get(producer_id)
        if epoch < known:
            raise InvalidError(
                Reason.INVALID_PRODUCER_EPOCH,
                f"marker has an old epoch. producer_id=`{producer_id}` epoch=`{epoch}` current=`{known}`",
            )
        if opened is None and epoch == known:
            state.transactions.end(producer_id, partition.next_offset, commit=commit, end_offset=partition.next_offset)
            return
        batch = marker(producer_id, epoch, coordinator_epoch, commit=commit)
        base_offset = partition.next_offset
        pending = partition.assign(memoryview(batch), 0, len(batch), 1, -1, now_ms, None)
        state.fence(producer_id, epoch, base_offset, now_ms)
        state.transactions.end(producer_id, base_offset, commit=commit, end_offset=partition.next_offset)
        self._wal.append(pending)
        self._must_be_durable = True
        if partition.config.replicated:
            self._replicator.append(partition.stream, pending[1], now_ms)

    def _refuse(self, partition: PartitionLog) -> None:
        if partition.refusal is not None:
            raise partition.refusal
        if self._lifecycle.failed is not None:
            raise RetryError(Reason.NOT_LEADER, f"this broker stopped leading the partition: {self._lifecycle.failed.message}")
        stalled = self._wal.stalled
        if stalled is None:
            return
        if stalled.reason is Reason.STORE_FULL or asyncio.get_running_loop().time() - self._wal.stalled_since > STALL_GRACE_S:
            raise RetryError(stalled.reason, f"records cannot be stored at the moment: {stalled.message}")

    def _check_timestamps(self, partition: PartitionLog, header: tuple[int, ...], batch: memoryview, now_ms: int) -> None:
        if partition.config.log_append_time or self._clock.doubt is not None:
            return  # a clock that may be wrong proves nothing about the producer's
        raise RecordError(
            Reason.INVALID_TIMESTAMP,
            f"record timestamp is out of the topic's range. topic=`{partition.topic.name}` first=`{header[7]}` "
            f"greatest=`{header[8]}` now=`{now_ms}` before_max_ms=`{partition.config.timestamp_before_max_ms}` "
            f"after_max_ms=`{partition.config.timestamp_after_max_ms}`",
            records_out_of(_times(partition.config, now_ms), header, batch),
        )

    def _check_records(
        self, partition: PartitionLog, header: tuple[int, ...], batch: memoryview, now_ms: int, trust: SenderTrust | None
    ) -> None:
        config = partition.config
        if trust is not None and trust.due_in > 0:
            trust = None  # another batch from this sender was the sample
        times = _times(config, now_ms)
        try:
            if config.checks_all:
                check_all(header, batch, ANY_TIME if config.log_append_time else times)
            elif config.checks_samples and trust is not None:
                check_sample(header, batch, ANY_TIME if config.log_append_time else times, trust.records_max)
        except RecordError as error:
            self.batches_refused += 1
            if trust is not None:
                trust.failed()
                if trust.failures > 1:
                    raise  # log one line for each connection: a client may retry endlessly
            logger.warning("batch_refused", topic=partition.topic.name, partition=partition.number, error=error.message)
            raise
        if trust is not None:
            trust.passed(header[12])

    def _check_keys(self, partition: PartitionLog, batch: memoryview) -> None:
        try:
            check_keys(batch)
        except InvalidError as error:
            self.batches_refused += 1
            raise RecordError(
                error.reason,
                f"{error.message} topic=`{partition.topic.name}` partition=`{partition.number}`",
                error.records if isinstance(error, RecordError) else (),
            ) from error

    def on_acked(self, callback: DurableCallback) -> None:
        """Call back, on the loop, once all batches appended since the last call are acked (None) or can never be acked (the
        error).

        A batch is acked when it is durable. If all these batches belong to topics with `ack=replicated`, they are acked when the
        follower has them; such callbacks may overtake other callbacks. The caller must call this in the same turn of the loop as
        the appends, so that no batches of another caller are among them.
        """
        durable, self._must_be_durable = self._must_be_durable, False
        if durable or not self._replicator.counts:
            self._wal.on_durable(callback)
        else:
            self._replicator.on_acked(callback)

    def on_durable(self, callback: DurableCallback) -> None:
        """Call back, on the loop and in order, once all batches appended so far are durable (None) or can never be durable (the
        error)."""
        self._wal.on_durable(callback)

    async def durable(self, timeout_ms: int | None = None) -> None:
        """Wait until all batches appended so far are durable. Raises RetryError(TIMED_OUT), FencedError, ClosedError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def finish(error: HeadgateError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self._wal.on_durable(finish)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await done
        except TimeoutError as error:
            raise RetryError(Reason.TIMED_OUT, f"the store did not answer in time. timeout_ms=`{timeout_ms}`") from error

    def windows_opened(self, logs: Sequence[PartitionLog]) -> None:
        """Called when these logs have new windows. Records before a window may still be on their way to the store.
        Once they are durable, the end of the log moves past the window."""

        def step(error: HeadgateError | None) -> None:
            for partition in logs:
                if error is None and partition.closed is None:
                    partition.step()

        if any(partition.high_watermark < partition.next_offset for partition in logs):
            self._wal.on_durable(step)

    # -- what the WAL reports

    def wal_committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        now_ms = self._clock.now_ms()
        logs = self._chunk_logs.setdefault(chunk_number, {})
        wake: dict[PartitionLog, None] = {}
        for partition, run in groupby(group, itemgetter(0)):
            logs[partition] = None
            if partition.waiters.live:
                wake[partition] = None
            position = partition.committed(run, chunk_number, position, now_ms)
        for partition in wake:
            partition.waiters.wake_live()

    def wal_rolled(
        self, number: int, size_bytes: int, appended_ms: int, sections: dict[PartitionLog, tuple[int, int]] | None
    ) -> None:
        self._rolled(Rolled(number, size_bytes, appended_ms, sections, self._chunk_logs.pop(number, {})))

    def wal_failed(self, error: HeadgateError) -> None:
        self._lifecycle.fail(error)


def _admit_in_transaction(state: ProducerState, header: tuple[int, ...], base_offset: int, now_ms: int) -> tuple[int, int] | None:
    """Judge a batch in a transaction, or one of a partition with open transactions. Returns and raises as `ProducerState.admit` and
    `_check_transaction`."""
    producer_id, epoch, sequence, records = header[9], header[10], header[11], header[12]
    if not state.is_duplicate(producer_id, epoch, sequence, records):
        _check_transaction(state, header)
    duplicate = state.admit(producer_id, epoch, sequence, records, base_offset, now_ms)
    if duplicate is None and header[5] & TRANSACTIONAL:
        state.transactions.begin(producer_id, epoch, base_offset)
    return duplicate


def _check_transaction(state: ProducerState, header: tuple[int, ...]) -> None:
    """Check a batch of an idempotent producer that is not a duplicate against the open transactions.

    Raises:
        RetryError: TRANSACTION_UNVERIFIED. InvalidError: INVALID_PRODUCER_EPOCH; INVALID_TRANSACTION_STATE: a batch outside a
            transaction, though the producer has one open.
    """
    producer_id, epoch = header[9], header[10]
    if header[5] & TRANSACTIONAL:
        known = state.epoch_of(producer_id)
        if epoch < known:
            raise InvalidError(
                Reason.INVALID_PRODUCER_EPOCH,
                f"producer epoch is old. producer_id=`{producer_id}` epoch=`{epoch}` current=`{known}`",
            )
        state.transactions.check(producer_id, epoch)
    elif producer_id in state.transactions.open:
        raise InvalidError(
            Reason.INVALID_TRANSACTION_STATE,
            f"a batch is outside the open transaction of its producer. producer_id=`{producer_id}`",
        )


def _times(config: TopicConfig, now_ms: int) -> Times:
    """The times that records of a topic may have now."""
    return Times(now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms)
