"""Reads records of given partitions, from given places. Groups are the Kafka listener's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from broker.client.types import DEFAULT_CLUSTER, ConsumerRecord, Start, TopicPartition


class Consumer:
    """Reads records in offset order per partition. An async context manager and an endless async iterator; used by one task.

    ::

        async with Consumer("127.0.0.1:9095") as consumer:
            await consumer.assign_topic("clicks", start="earliest")
            async for record in consumer:
                ...

    A broker that goes away is waited for; reading goes on at the next record.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        prefetch_bytes: batches that wait to be read, of all partitions.
        check_crcs: check each batch against its CRC-32C.
        timeout_ms: longest wait for what is not reading: finding out offsets and topics.
    """

    def __init__(
        self,
        cluster: str = DEFAULT_CLUSTER,
        *,
        prefetch_bytes: int = 16 << 20,
        check_crcs: bool = True,
        timeout_ms: int = 30_000,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def assign(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Read these partitions from these places, instead of what was assigned before.

        Raises:
            InvalidError: UNKNOWN_TOPIC; OFFSET_OUT_OF_RANGE for an offset that is not in the log.
        """
        raise NotImplementedError

    async def assign_topic(self, topic: str, partitions: Iterable[int] | None = None, *, start: Start = "earliest") -> None:
        """`assign` for some or (None) all partitions of one topic, all from the same place."""
        raise NotImplementedError

    def assignment(self) -> set[TopicPartition]:
        """What is read, paused or not."""
        raise NotImplementedError

    def __aiter__(self) -> Self:
        raise NotImplementedError

    async def __anext__(self) -> ConsumerRecord:
        """The next record of any partition. Never ends by itself.

        Raises:
            InvalidError: OFFSET_OUT_OF_RANGE (retention overtook the reader: `seek`), UNKNOWN_TOPIC (deleted), CORRUPT_MESSAGE.
        """
        raise NotImplementedError

    async def poll(self, *, timeout_ms: int = 1000, records_max: int = 10_000) -> list[ConsumerRecord]:
        """What is there, at least one record if one comes within `timeout_ms`, else []. Raises as iteration does."""
        raise NotImplementedError

    async def seek(self, partition: TopicPartition, start: Start) -> None:
        """Go on from another place of an assigned partition."""
        raise NotImplementedError

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that iteration will give, or a lower one where a gap lies between."""
        raise NotImplementedError

    def high_watermark(self, partition: TopicPartition) -> int:
        """The partition's end as last heard from the broker; -1 before that. `position` reaches it when all is read."""
        raise NotImplementedError

    async def pause(self, *partitions: TopicPartition) -> None:
        """Give no records of these until `resume`; positions stay."""
        raise NotImplementedError

    async def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`."""
        raise NotImplementedError

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """Turn places into offsets, of any partitions."""
        raise NotImplementedError

    async def close(self) -> None:
        """Give back the connections."""
        raise NotImplementedError
