"""Writes records: batched, compressed, idempotent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from broker.client.types import DEFAULT_CLUSTER, Delivery


class Producer:
    """Writes records. An async context manager; `send` may be called from any number of tasks.

    Records of one partition are written in the order of `send`, each exactly once, through reconnects and restarts of the broker:
    batches carry a producer id and sequence numbers, and are sent again until the broker has acked them or `delivery_timeout_ms`
    is over.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        compression: none, gzip, snappy, lz4 or zstd.
        linger_ms: how long a batch waits for more records.
        batch_bytes: a batch of this size (before compression) is sent at once; a larger record goes alone.
        buffer_bytes: records that wait to be acked; `send` waits while there are more.
        delivery_timeout_ms: a record that is not acked by then fails with RetryError(TIMED_OUT).
    """

    def __init__(
        self,
        cluster: str = DEFAULT_CLUSTER,
        *,
        compression: str = "none",
        linger_ms: int = 5,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 32 << 20,
        delivery_timeout_ms: int = 120_000,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> asyncio.Future[Delivery]:
        """Hand over a record; waits while the buffer is full.

        Args:
            key: decides the partition as Kafka's Java client does; without one, batches take turns.
            timestamp_ms: default: now.
            partition: this one instead.

        Returns:
            A future: where the record was written, or why it was not (HeadgateError). It need not be looked at: `flush` and `close`
            raise the first error of a record whose future nobody awaited.

        Raises:
            InvalidError: UNKNOWN_TOPIC, INVALID_REQUEST (types, partition), MESSAGE_TOO_LARGE. ClosedError.
        """
        raise NotImplementedError

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """`send`, then wait until the record is durable."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Send everything now and wait until all of it is acked. Raises the first error since the last `flush`."""
        raise NotImplementedError

    async def close(self) -> None:
        """`flush`, then give back the connections. Raises what `flush` raises."""
        raise NotImplementedError
