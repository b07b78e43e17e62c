"""The read path: records from memory or the store, and answers about the ends of a log."""

from __future__ import annotations

from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.base.proof import LeadProof
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.windows import NOBODY
from headgate.broker.engine.read import lookup, skip
from headgate.broker.engine.read.reader import StoreReader
from headgate.broker.engine.read.view import Reach, see
from headgate.broker.runtime.errors import Reason, RetryError


class ReadPath:
    """Reads of consumers.

    Args:
        reader: reads what is no longer in memory.
        proof: proves that no other broker leads this broker's partitions.
    """

    def __init__(self, lifecycle: Lifecycle, reader: StoreReader, proof: LeadProof) -> None:
        self._lifecycle = lifecycle
        self._reader = reader
        self._proof = proof

    def read_tail(self, partition: PartitionLog, offset: int, max_bytes: int, reader: int = NOBODY) -> list[memoryview] | None:
        """Read whole batches from memory, up to the high watermark. Returns [] at its end, and None if `offset` is not in
        memory.

        Also returns [] before a window that waits for history, unless `reader` may pass the window (`partition/windows.py`).
        """
        return see(partition, offset, max_bytes, reader)[0]

    async def read(
        self, partition: PartitionLog, offset: int, max_bytes: int, reader: int = NOBODY, reached: Reach | None = None
    ) -> list[memoryview]:
        """Read whole batches, from memory or store. The first batch contains `offset`, or follows it if `offset` is in a gap.

        Returns at least one batch, and further ones up to `max_bytes`. Returns [] at the high watermark, and in the cases of
        `read_tail`.

        Args:
            reached: what `see` answered shortly before, if the records are in a file: no second look is needed.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE. RetryError: the store does not answer.
        """
        if reached is None:
            await self.check_range(partition, offset)
            slices, reached = see(partition, offset, max_bytes, reader)
            if slices is not None:
                return slices
        return await self._reader.read(partition, reached[0], max_bytes, reached)

    async def check_range(self, partition: PartitionLog, offset: int) -> None:
        """Check that an offset can be read, or is the next one to be written.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE. RetryError: this broker cannot tell, because another broker may lead the partition
                by now.
        """
        if offset > partition.high_watermark:
            # The reader may have read further at the partition's next lead. If this broker answered that the log ends below
            # `offset`, the reader would start again or skip to the end. So this check does not trust even a promise; it looks into
            # the store.
            await self._proof.look()
            self._lifecycle.check()
            self._check_lead(partition)
        # Offsets that this lead has given away are not beyond its end: a group may continue behind a gate that opens this moment.
        if not partition.log_start <= offset <= partition.next_offset:
            raise partition.out_of_range(offset)

    async def confirm(self, partition: PartitionLog | None = None) -> None:
        """Make sure that no broker had taken over from this one when the caller's request arrived; see `LeadProof`.

        Callers await this before they answer with an end: a high watermark, a committed position, or the end of an epoch.

        Args:
            partition: also check that this partition is not being handed over. Its next lead may ack already, and this broker
                hears of that later.

        Raises RetryError(NOT_LEADER).
        """
        await self._proof.confirm()
        self._lifecycle.check()
        if partition is not None:
            self._check_lead(partition)

    def _check_lead(self, partition: PartitionLog) -> None:
        if partition.refusal is not None:
            raise RetryError(
                Reason.NOT_LEADER,
                f"another broker leads the partition by now. topic=`{partition.topic.name}` partition=`{partition.number}`",
            )

    async def offset_for_timestamp(self, partition: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record, in offset order, at or after `timestamp_ms`. None if there is no such
        record."""
        return await lookup.offset_for_timestamp(self._reader, partition, timestamp_ms)

    async def max_timestamp(self, partition: PartitionLog) -> tuple[int, int] | None:
        """(timestamp in ms, offset) of the first record with the greatest timestamp (KIP-734). None if the log has no record."""
        return await lookup.max_timestamp(self._reader, partition)

    def epoch_end(self, partition: PartitionLog, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) for an OffsetForLeaderEpoch answer (KIP-101); (-1, -1) if the epoch is negative, or newer
        than this partition's. Await `confirm` first."""
        if leader_epoch == partition.leader_epoch:
            return leader_epoch, partition.high_watermark
        if not 0 <= leader_epoch < partition.leader_epoch:
            return -1, -1
        return partition.epochs.end_of(leader_epoch, partition.high_watermark)

    async def find_unreadable(self, partition: PartitionLog, first_offset: int, last_offset: int) -> skip.Checked:
        """Batches that consumers cannot read. See `skip.find_unreadable`."""
        return await skip.find_unreadable(self._reader, partition, first_offset, last_offset)
