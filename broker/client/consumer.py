"""Reads records of given partitions, from given places. Consumer groups use the Kafka port."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Self

from headgate.broker.client.cluster import ClusterClient, OnOutage
from headgate.broker.client.errors import unreadable
from headgate.broker.client.prefetcher import Assigned, Chunk, Prefetcher
from headgate.broker.client.types import DEFAULT_CLUSTER, ConsumerRecord, Start, TopicPartition
from headgate.broker.log.batch import crc_matches, parse_header, split
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason


class Consumer(ClusterClient):
    """Reads records in offset order per partition. An async context manager and an endless async iterator, for one task.

    ::

        async with Consumer("127.0.0.1:9095") as consumer:
            await consumer.assign_topic("clicks", start="earliest")
            async for record in consumer:
                ...

    The consumer waits for a broker that goes away, and continues at the next record.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        prefetch_bytes: bound of batches that wait to be read, of all partitions.
        check_crcs: check each batch against its CRC-32C.
        timeout_ms: longest wait of calls other than reading: offsets and topics.
        on_outage: called with the last error when no broker answers any more, and with None when one answers again; the consumer
            keeps trying in between. It must not raise.
    """

    def __init__(
        self,
        cluster: str = DEFAULT_CLUSTER,
        *,
        prefetch_bytes: int = 16 << 20,
        check_crcs: bool = True,
        timeout_ms: int = 30_000,
        on_outage: OnOutage | None = None,
    ) -> None:
        if prefetch_bytes < 1:
            raise InvalidError(Reason.INVALID_CONFIG, f"value is too small. prefetch_bytes=`{prefetch_bytes}` min=`1`")
        super().__init__(cluster, timeout_ms=timeout_ms, on_outage=on_outage)
        self._prefetcher = Prefetcher(self._cluster, prefetch_bytes)
        self._check_crcs = check_crcs
        self._closed = False
        self._chunk: Chunk | None = None
        self._batches: deque[memoryview] = deque()
        """Batches of `_chunk` that are not decoded yet."""
        self._records: deque[ConsumerRecord] = deque()
        """Records of the previous batch that the caller has not received yet."""
        self._error: HeadgateError | None = None
        """The error that the next call raises."""

    async def close(self) -> None:
        self._closed = True
        self._prefetcher.arrived.set()
        await self._prefetcher.close()
        await super().close()

    # -- the assignment

    async def assign(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Read these partitions from these places, instead of the earlier assignment.

        Raises:
            InvalidError: UNKNOWN_TOPIC; OFFSET_OUT_OF_RANGE for an offset that is not in the log.
        """
        offsets = await self.offsets(starts)
        self._let_go()
        await self._prefetcher.assign(offsets)

    async def assign_topic(self, topic: str, partitions: Iterable[int] | None = None, *, start: Start = "earliest") -> None:
        """`assign` for some or (None) all partitions of one topic, all from the same place."""
        found = await self.partitions(topic) if partitions is None else partitions
        await self.assign({TopicPartition(topic, number): start for number in found})

    async def partitions(self, topic: str) -> range:
        """The current partitions of a topic. Raises InvalidError(UNKNOWN_TOPIC), RetryError."""
        return range(len((await self._cluster.topic(topic, refresh=True)).leaders))

    def assignment(self) -> set[TopicPartition]:
        """The assignment, with paused partitions."""
        return set(self._prefetcher.assigned)

    async def seek(self, partition: TopicPartition, start: Start) -> None:
        """Continue from another place of an assigned partition. Raises InvalidError as `assign` does."""
        assigned = self._assigned(partition)
        offset = (await self.offsets({partition: start}))[partition]
        self._let_go_of(assigned)
        self._prefetcher.seek(assigned, offset)

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that iteration will return, or a lower one when a gap lies between."""
        return self._assigned(partition).position

    def high_watermark(self, partition: TopicPartition) -> int:
        """The partition's end in the broker's last answer; -1 before that. `position` reaches it when all records are read."""
        return self._assigned(partition).high_watermark

    async def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`; positions stay."""
        for partition in partitions:
            assigned = self._assigned(partition)
            self._let_go_of(assigned)
            self._prefetcher.pause(assigned)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""
        for partition in partitions:
            self._prefetcher.resume(self._assigned(partition))

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """Turn places into offsets, of any partitions."""
        return {partition: found.offset for partition, found in (await self._cluster.offsets(starts)).items()}

    def _assigned(self, partition: TopicPartition) -> Assigned:
        assigned = self._prefetcher.assigned.get(partition)
        if assigned is None:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"partition is not assigned. topic=`{partition.topic}` partition=`{partition.partition}`",
            )
        return assigned

    # -- records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record of any partition. Never ends by itself.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE (retention overtook the reader: `seek`), UNKNOWN_TOPIC (deleted), CORRUPT_MESSAGE.
            The other partitions stay readable. ClosedError.
        """
        await self._some_record()
        return self._give()

    async def poll(self, *, timeout_ms: int = 1000, records_max: int = 10_000) -> list[ConsumerRecord]:
        """The available records, at least one if one arrives within `timeout_ms`, else []. Raises as iteration does."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._some_record()
        except TimeoutError:
            return []
        records = [self._give()]
        while len(records) < records_max:
            if self._records:
                records.append(self._give())
                continue
            try:
                if not self._decode():
                    break
            except HeadgateError as error:
                # Earlier records are returned first.
                self._error = error
                break
        return records

    async def _some_record(self) -> None:
        """Wait until `_records` is not empty."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        while not self._records:
            if not self._decode():
                if self._closed:
                    raise ClosedError(Reason.CLOSED, "the consumer is closed")
                self._cluster.own_loop()
                self._prefetcher.arrived.clear()
                await self._prefetcher.arrived.wait()

    def _give(self) -> ConsumerRecord:
        record = self._records.popleft()
        assert self._chunk is not None
        self._chunk.assigned.position = record.offset + 1
        if not self._records and not self._batches:
            self._finish_chunk()
        return record

    def _decode(self) -> bool:
        """Decode one more batch into `_records`, which may stay empty. False when no batch is there."""
        if not self._batches:
            if not self._prefetcher.chunks:
                return False
            new = self._prefetcher.chunks.popleft()
            if not new.valid:
                new.give_back()
                return True
            if new.error is not None:
                raise new.error
            self._chunk = new
            self._batches.extend(split(new.batches))
        assert self._chunk is not None
        assigned = self._chunk.assigned
        try:
            batch = self._batches.popleft()
            self._records.extend(self._read(assigned, batch))
        except HeadgateError as error:
            header = parse_header(batch)
            self._let_go()
            self._prefetcher.give_up(assigned)
            raise unreadable(error, *assigned.partition, header.base_offset, header.next_offset - 1) from error
        if not self._records and not self._batches:
            self._finish_chunk()
        return True

    def _read(self, assigned: Assigned, batch: memoryview) -> list[ConsumerRecord]:
        topic, partition = assigned.partition
        header = parse_header(batch)
        if self._check_crcs and not crc_matches(batch):
            raise InvalidError(
                Reason.CORRUPT_MESSAGE, f"record batch does not match its CRC-32C. base_offset=`{header.base_offset}`"
            )
        first = assigned.position
        return [ConsumerRecord(topic, partition, *record) for record in iter_records(batch) if record.offset >= first]

    def _finish_chunk(self) -> None:
        """The caller has received the whole chunk: offsets up to its end are done, also those without a record."""
        chunk, self._chunk = self._chunk, None
        assert chunk is not None
        if chunk.valid:
            chunk.assigned.position = max(chunk.assigned.position, chunk.next_offset)
        chunk.give_back()

    def _let_go(self) -> None:
        """Drop the decoded records."""
        if self._chunk is not None:
            self._chunk.give_back()
            self._chunk = None
        self._batches.clear()
        self._records.clear()

    def _let_go_of(self, assigned: Assigned) -> None:
        if self._chunk is not None and self._chunk.assigned is assigned:
            self._let_go()
