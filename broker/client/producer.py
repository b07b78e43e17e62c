"""Writes records: batched, compressed, idempotent."""

from __future__ import annotations

import asyncio
import random
import uuid
import warnings
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headgate.broker.client.cluster import Cluster, OnOutage, TopicView
from headgate.broker.client.sender import RECORD_MEMORY_BYTES, Batch, DeliveryFuture, Queue, Sender
from headgate.broker.client.types import DEFAULT_CLUSTER, Delivery, TopicPartition
from headgate.broker.log.batch import HEADER_BYTES
from headgate.broker.log.compression import Codec
from headgate.broker.log.partitioner import partition_for_key
from headgate.broker.log.records import Headers, Record, encoded_bytes_max, is_header_name
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.broker.client.gate_admin import Gate

RECORD_BYTES_MAX = 64 << 20
"""Bound of a batch's size: no topic allows a larger batch."""
FAILURES_KEPT = 1000
"""Failed records that `flush` remembers; it raises the error of the first one."""


class Producer:
    """Writes records. An async context manager; any number of tasks may call `send`.

    Records of one partition are written in the order of `send`, each exactly once, through reconnects and restarts of the
    broker: batches carry a producer id and sequence numbers, and are sent again until the broker has acked them or
    `delivery_timeout_ms` is over. A producer that is never closed loses its unacked records when its event loop ends, with a
    ResourceWarning.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        compression: none, gzip, snappy, lz4 or zstd.
        linger_ms: longest time that a batch waits for more records.
        batch_bytes: a batch of this size (before compression) is sent at once; a larger record is a batch of its own.
        buffer_bytes: bound of unacked records, by their size in memory; `send` waits above it.
        delivery_timeout_ms: a record that is not acked by then fails with RetryError(TIMED_OUT); it may still have been written.
        clock: source of timestamps.
        on_outage: called with the last error when no broker answers any more, and with None when one answers again; the producer
            keeps trying in between. It must not raise.
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
        clock: Clock | None = None,
        on_outage: OnOutage | None = None,
    ) -> None:
        self._closed = False
        self._used_bytes = 0
        for name, value, low in (
            ("linger_ms", linger_ms, 0),
            ("batch_bytes", batch_bytes, 1),
            ("buffer_bytes", buffer_bytes, 1),
            ("delivery_timeout_ms", delivery_timeout_ms, 1),
        ):
            if value < low:
                raise InvalidError(Reason.INVALID_CONFIG, f"value is too small. {name}=`{value}` min=`{low}`")
        self._address = cluster
        self._cluster = Cluster(cluster, timeout_ms=min(delivery_timeout_ms, 30_000), on_outage=on_outage)
        self._codec = Codec.named(compression)
        self._linger_s = linger_ms / 1000
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._clock = clock or Clock()
        self._sender: Sender | None = None
        self._owes_turn = False
        """A batch is full, and waits for the event loop to send it."""
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self._failures: deque[tuple[DeliveryFuture, HeadgateError]] = deque(maxlen=FAILURES_KEPT)
        self._sticky: dict[str, tuple[int, Batch | None]] = {}
        """The place of the next record without a key, by topic: the partition, and the open batch."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            # The caller's own error takes precedence over unsent records.
            await self._end()

    def __del__(self) -> None:
        if self._used_bytes and not self._closed:
            warnings.warn(
                f"producer was never closed, and records that were not acked may be lost. cluster=`{self._address}`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

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
        """Accept a record; waits while the buffer is full. A cancelled call has accepted nothing.

        Args:
            key: decides the partition as Kafka's Java client does; without a key, batches go to the partitions in turn.
            timestamp_ms: default: now.
            partition: overrules the key.

        Returns:
            A future with the record's place, or with the HeadgateError that prevented the write. It may be ignored: `flush` and
            `close` raise the first error that no caller has seen.

        Raises:
            InvalidError: UNKNOWN_TOPIC, INVALID_REQUEST (types, partition), MESSAGE_TOO_LARGE. RetryError: no broker answered
            about the topic. ClosedError. HeadgateError(INTERNAL): the producer failed, create a new one.
        """
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        record = Record(0, timestamp_ms, key, value, tuple(headers) if headers else ())
        _check(topic, record, partition)
        size = encoded_bytes_max(key, value, record.headers)
        if size > RECORD_BYTES_MAX:
            raise InvalidError(Reason.MESSAGE_TOO_LARGE, f"record is too large. bytes=`{size}` max=`{RECORD_BYTES_MAX}`")
        if self._owes_turn:
            # A caller that sends without ever waiting must still let batches leave.
            self._owes_turn = False
            await asyncio.sleep(0)
        if self._turn.locked() or self._used_bytes + size + RECORD_MEMORY_BYTES > self._buffer_bytes:
            await self._wait_for_room(size + RECORD_MEMORY_BYTES)
        view = self._cluster.known_topic(topic) or await self._cluster.topic(topic)
        if partition is not None and partition >= len(view.leaders):
            view = await self._cluster.topic(topic, refresh=True)
        if self._closed:
            raise ClosedError(Reason.CLOSED, "the producer is closed")
        return self._append(view, record, partition, size)

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
        return await (await self.send(topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition))

    async def publish_table(self, topic: str, rows: pa.Table | pa.RecordBatch, *, publish_id: str | None = None) -> Gate:
        """Append a table at the end of a topic by reference: Parquet files go to the cluster's store, not through a broker.

        All rows become visible at once, in the order of the table within each partition, behind all acked records. Records of
        earlier `send` calls are not awaited.

        Args:
            rows: columns `timestamp`, `key`, `value`, perhaps `headers`, as in `headgate.broker.log.history_columns.SCHEMA`;
                perhaps `partition`, else the key decides. Rows without a key are spread evenly.
            publish_id: the table's name in the topic, up to 100 letters, digits, ``.``, ``_`` and ``-``. Publishing the same
                rows under it again adds nothing and answers as the first time. Default: a new id, which makes only this call
                safe against lost answers.

        Returns:
            The gate of the rows: `windows` has their offsets.

        Raises:
            InvalidError: UNKNOWN_TOPIC; INVALID_REQUEST: an illegal id; INVALID_RECORD, INVALID_TIMESTAMP (wrong columns or
            times, no rows); GATE_CONFLICT: other rows under the same id. RetryError: store or cluster did not answer in time.
        """
        from headgate.broker.client.publish import publish_table

        if publish_id is None:
            publish_id = uuid.uuid4().hex
        return await publish_table(self._address, topic, rows, publish_id=publish_id, timeout_ms=self._delivery_timeout_ms)

    async def flush(self) -> None:
        """Send all records now and wait until they are acked. Raises the first error since the last `flush` that no caller has
        seen."""
        sender = self._sender
        if sender is not None:
            waiting = []
            for queue in sender.queues.values():
                if queue.open is not None:
                    sender.due(queue, queue.open)
                waiting += [batch.done for batch in queue.batches()]
            for done in waiting:
                await outlast(done)
        unseen = [error for future, error in self._failures if not future.noticed]
        self._failures.clear()
        if unseen:
            raise unseen[0]

    async def close(self) -> None:
        """`flush`, then close the connections. Raises the error of `flush`."""
        self._closed = True
        try:
            await self.flush()
        finally:
            await self._end()

    async def _end(self) -> None:
        self._closed = True
        self._room.set()
        if self._sender is not None:
            await self._sender.close()
        await self._cluster.close()

    async def _wait_for_room(self, memory_bytes: int) -> None:
        # One caller waits at the gate, the others in the lock's queue: first come, first served.
        async with self._turn:
            while self._used_bytes and self._used_bytes + memory_bytes > self._buffer_bytes and not self._closed:
                self._room.clear()
                await self._room.wait()

    def _release(self, size: int) -> None:
        self._used_bytes -= size
        self._room.set()

    def _on_failed(self, future: DeliveryFuture, error: HeadgateError) -> None:
        if len(self._failures) < FAILURES_KEPT:
            self._failures.append((future, error))

    def _append(self, view: TopicView, record: Record, partition: int | None, size: int) -> DeliveryFuture:
        """Put a record into its partition's open batch. Returns its future."""
        sender = self._sender
        loop = asyncio.get_running_loop()
        if sender is None:
            sender = self._sender = Sender(
                self._cluster,
                self._codec,
                delivery_timeout_ms=self._delivery_timeout_ms,
                release=self._release,
                failed=self._on_failed,
            )
        sticky = partition is None and record.key is None
        if partition is None:
            partition = (
                self._sticky_partition(sender, view) if record.key is None else partition_for_key(record.key, len(view.leaders))
            )
        queue = self._queue(sender, view, partition)
        full = self._make_room(sender, queue, size)
        if full and sticky:
            partition = (partition + 1) % len(view.leaders)
            queue = self._queue(sender, view, partition)
            self._make_room(sender, queue, size)
        batch = queue.open
        if batch is None:
            batch = queue.open = Batch(loop.time() + self._delivery_timeout_ms / 1000, loop.create_future())
            batch.timer = loop.call_later(self._linger_s, sender.due, queue, batch)
        if sticky:
            self._sticky[view.name] = (partition, batch)
        future = DeliveryFuture(loop=loop)
        batch.records.append(record)
        batch.futures.append(future)
        batch.size_bytes += size
        self._used_bytes += size + RECORD_MEMORY_BYTES
        self._owes_turn = self._owes_turn or full
        return future

    def _queue(self, sender: Sender, view: TopicView, partition: int) -> Queue:
        try:
            link = self._cluster.leader(view, partition)
        except RetryError:
            # While the lead changes, any broker tells the new lead.
            link = self._cluster.any_broker()
        return sender.queue(TopicPartition(view.name, partition), link, view.batch_bytes_max)

    def _make_room(self, sender: Sender, queue: Queue, size: int) -> bool:
        """Close the open batch if a record of `size` would make it too large. Returns True if it did."""
        batch_bytes_max = min(self._batch_bytes, queue.batch_bytes_max - HEADER_BYTES)
        if queue.open is None or queue.open.size_bytes + size <= batch_bytes_max:
            return False
        queue.close_open()
        sender.schedule(queue)
        return True

    def _sticky_partition(self, sender: Sender, view: TopicView) -> int:
        """The partition of the open batch for records without a key; the next partition once that batch is closed."""
        last, batch = self._sticky.get(view.name, (random.randrange(len(view.leaders)), None))
        queue: Queue | None = sender.queues.get(TopicPartition(view.name, last))
        if batch is not None and queue is not None and queue.open is batch:
            return last
        return (last + 1) % len(view.leaders)


def _check(topic: str, record: Record, partition: int | None) -> None:
    """Raise InvalidError(INVALID_REQUEST) for a value that is not a record."""
    _, timestamp_ms, key, value, headers = record
    if not isinstance(topic, str):
        raise _wrong("topic", "a str", topic)
    if not (value is None or isinstance(value, bytes)):
        raise _wrong("value", "bytes or None", value)
    if not (key is None or isinstance(key, bytes)):
        raise _wrong("key", "bytes or None", key)
    if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms < 2**62:
        raise _wrong("timestamp_ms", "milliseconds since 1970", timestamp_ms)
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool) or partition < 0):
        raise _wrong("partition", "a number from 0", partition)
    if headers and not _are_headers(headers):
        raise _wrong("headers", "pairs of str and bytes or None", headers)


def _are_headers(headers: Headers) -> bool:
    return all(
        isinstance(header, tuple)
        and len(header) == 2
        and isinstance(header[0], str)
        and is_header_name(header[0])
        and (header[1] is None or isinstance(header[1], bytes))
        for header in headers
    )


def _wrong(name: str, expected: str, value: object) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"expected {expected}. {name}=`{str(value)[:100]}` type=`{type(value).__name__}`")
