"""The I/O under a producer: batches of records, and one Publish stream per broker that carries them.

`sequencing.PartitionQueue` decides which batches may be sent and what an answer means; this module sends, receives and waits. A
partition belongs to the stream of its lead. When a stream breaks, its in-flight batches return to their queues, the leads are
looked up, and sending continues there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Self

from headgate.broker.client.backoff import Backoff
from headgate.broker.client.cluster import LOG, Cluster, Link, Stream
from headgate.broker.client.errors import from_message
from headgate.broker.client.sequencing import PartitionQueue
from headgate.broker.client.types import Delivery, TopicPartition
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.headgate.v1 import log_pb2

RECORD_MEMORY_BYTES = 256
"""Memory of a waiting record beside its bytes: its objects and its future."""
WATCH_S = 0.25
"""Pause between two checks for expired batches."""
SILENCE_S = 3.0
"""Time without an ack, in seconds, after which other brokers are asked about a broker: it may hang, and others may lead in its
place."""


class DeliveryFuture(asyncio.Future[Delivery]):
    """The future of one record. Knows whether the caller has looked at it."""

    noticed = False

    def fail(self, error: HeadgateError) -> None:
        """Set the error. asyncio's own warning about unseen errors is off, because `Producer.flush` raises them."""
        super().set_exception(error)
        super().exception()

    def __await__(self) -> Generator[Any, None, Delivery]:
        self.noticed = True
        return super().__await__()

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        self.noticed = True
        super().add_done_callback(fn, context=context)

    def exception(self) -> BaseException | None:
        self.noticed = True
        return super().exception()

    def result(self) -> Delivery:
        self.noticed = True
        return super().result()


class Batch:
    """Records of one partition in one batch. See `sequencing.Numbered`."""

    __slots__ = (
        "ambiguous",
        "deadline_s",
        "done",
        "due",
        "encoded",
        "encoded_as",
        "futures",
        "over",
        "producer_id",
        "records",
        "sequence",
        "size_bytes",
        "timer",
    )

    def __init__(self, deadline_s: float, done: asyncio.Future[None]) -> None:
        self.records: list[Record] = []
        self.futures: list[DeliveryFuture] = []
        self.size_bytes = 0
        self.deadline_s = deadline_s
        self.due = False
        """True when the batch need not wait for more records."""
        self.timer: asyncio.TimerHandle | None = None
        self.done = done
        """True once its records received their result."""
        self.encoded = b""
        self.encoded_as = (-1, -1)
        """(producer id, sequence) inside `encoded`."""
        self.producer_id = -1
        self.sequence = -1
        self.ambiguous = False
        self.over = False

    @property
    def count(self) -> int:
        return len(self.records)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the producer's buffer that the batch occupies."""
        return self.size_bytes + RECORD_MEMORY_BYTES * len(self.records)

    def encode(self, codec: Codec) -> bytes:
        """The RecordBatch with the batch's current number."""
        if self.encoded_as != (self.producer_id, self.sequence):
            self.encoded = encode_batch(
                self.records,
                compression=codec,
                producer_id=self.producer_id,
                producer_epoch=0,
                base_sequence=self.sequence,
            )
            self.encoded_as = (self.producer_id, self.sequence)
        return self.encoded


class Queue(PartitionQueue[Batch]):
    """A partition's batches, with the one that still accepts records."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__()
        self.partition = partition
        self.open: Batch | None = None
        self.stream: PublishStream | None = None
        self.scheduled = False
        """True while the queue is in its stream's list of queues to check."""
        self.backoff = Backoff()
        self.producer_id_used = -1
        self.paused = False
        """True after the broker asked the client to slow down."""
        self.batch_bytes_max = 0
        """The topic's `max.message.bytes`."""

    def batches(self) -> list[Batch]:
        """All undecided batches, in order."""
        return [*self, *(() if self.open is None else (self.open,))]

    def close_open(self) -> None:
        """The open batch accepts no more records."""
        if self.open is not None:
            if self.open.timer is not None:
                self.open.timer.cancel()
            self.waiting.append(self.open)
            self.open = None

    def next(self, now_s: float) -> Batch | None:
        """The next batch to send now, or None. The open batch is closed as late as possible, so that it can grow."""
        if self.paused:
            return None
        if not self.waiting and self.open is not None and self.open.due and self.can_take(now_s):
            self.close_open()
        return self.take(now_s)


class Sender:
    """The streams of one producer.

    Args:
        release: called with the bytes of each decided batch.
        failed: called with each failed record's future, and the error.
    """

    def __init__(
        self,
        cluster: Cluster,
        codec: Codec,
        *,
        delivery_timeout_ms: int,
        release: Callable[[int], None],
        failed: Callable[[DeliveryFuture, HeadgateError], None],
    ) -> None:
        self.cluster = cluster
        self.codec = codec
        self.queues: dict[TopicPartition, Queue] = {}
        self._failure: HeadgateError | None = None
        """The error of a bug, after which nothing is sent."""
        self._delivery_timeout_ms = delivery_timeout_ms
        self._release = release
        self._failed = failed
        self._streams: dict[Link, PublishStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._producer_id = -1
        self._loop = asyncio.get_running_loop()
        self._spawn(self._watch(), "producer-watch")

    async def close(self) -> None:
        """End the streams; unacked records fail."""
        self._closed = True
        await end_tasks(self._tasks)
        for queue in self.queues.values():
            for batch in queue.batches():
                self.fail(batch, ClosedError(Reason.CLOSED, "the producer was closed before the record was acked"))

    def queue(self, partition: TopicPartition, link: Link, batch_bytes_max: int) -> Queue:
        """The queue of a partition; a new queue goes to the stream of `link`. Raises HeadgateError after a bug."""
        if self._failure is not None:
            raise self._failure
        queue = self.queues.get(partition)
        if queue is None:
            queue = self.queues[partition] = Queue(partition)
        if queue.stream is None:
            queue.stream = self.stream(link)
        queue.batch_bytes_max = batch_bytes_max
        return queue

    def stream(self, link: Link) -> PublishStream:
        """The stream to a broker."""
        stream = self._streams.get(link)
        if stream is None:
            stream = self._streams[link] = PublishStream(self, link)
            self._spawn(stream.run(), f"publish {link.address}")
        return stream

    def schedule(self, queue: Queue) -> None:
        """Check whether the queue has a batch to send."""
        if queue.stream is not None and not queue.scheduled and not self._closed:
            queue.scheduled = True
            queue.stream.runnable.append(queue)
            queue.stream.wake.set()

    def due(self, queue: Queue, batch: Batch) -> None:
        """The open batch has waited for its full linger time."""
        batch.due = True
        self.schedule(queue)

    # -- how batches end

    def deliver(self, queue: Queue, batch: Batch, base_offset: int, append_time_ms: int) -> None:
        if batch.over:
            return
        batch.over = True
        topic, partition = queue.partition
        for index, (record, future) in enumerate(zip(batch.records, batch.futures, strict=True)):
            if not future.done():
                timestamp_ms = record.timestamp_ms if append_time_ms < 0 else append_time_ms
                future.set_result(Delivery(topic, partition, base_offset + index, timestamp_ms))
        self._end(batch)

    def fail(self, batch: Batch, error: HeadgateError) -> None:
        if batch.over:
            return
        batch.over = True
        for future in batch.futures:
            if not future.done():
                future.fail(error)
                self._failed(future, error)
        self._end(batch)

    def _end(self, batch: Batch) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        batch.done.set_result(None)
        self._release(batch.memory_bytes)

    async def _watch(self) -> None:
        """Fail expired batches."""
        while True:
            await asyncio.sleep(WATCH_S)
            now = self._loop.time()
            for queue in self.queues.values():
                late = [batch for batch in queue.batches() if batch.deadline_s < now and not batch.over]
                for batch in late:
                    self.fail(batch, self._too_late(queue))
                if late:
                    if queue.open is not None and queue.open.over:
                        queue.open = None
                    queue.drop_over()
                    self.schedule(queue)
            for stream in self._streams.values():
                if stream.is_silent(now):
                    self._spawn(self._look_for(stream), "publish-look")

    async def _look_for(self, stream: PublishStream) -> None:
        """A broker is silent. If others lead its partitions now, no ack of it is expected any more."""
        for topic, queues in stream.waiting_for().items():
            try:
                view = await self.cluster.topic(topic, refresh=True)
                moved = any(self.cluster.leader(view, queue.partition.partition) is not stream.link for queue in queues)
            except HeadgateError:
                continue  # no broker has newer metadata
            if moved:
                stream.break_off()
                return

    def _too_late(self, queue: Queue) -> RetryError:
        topic, partition = queue.partition
        cause = queue.stream.error if queue.stream is not None else None
        return RetryError(
            Reason.TIMED_OUT,
            f"record was not acked in time. topic=`{topic}` partition=`{partition}` "
            f"delivery_timeout_ms=`{self._delivery_timeout_ms}` cause=`{'none' if cause is None else cause.message}`",
        )

    # -- leads of partitions

    def retry(self, queue: Queue, error: HeadgateError) -> None:
        """A batch came back: check the queue again after a pause, at the lead of that moment."""
        if not queue.paused and not self._closed:
            queue.paused = True
            moved = error.reason in (Reason.NOT_LEADER, Reason.UNKNOWN_TOPIC, Reason.FENCED, Reason.CLOSED)
            self._spawn(self._pause(queue, queue.backoff.pause_s(), moved), "publish-pause")

    async def _pause(self, queue: Queue, pause_s: float, moved: bool) -> None:
        await asyncio.sleep(pause_s)
        queue.paused = False
        if moved:
            await self.find_leads([queue])
        self.schedule(queue)

    async def producer_id(self, queue: Queue) -> int:
        """A producer id that this queue has not used: all queues share one until one of them needs a new one."""
        if self._producer_id < 0 or queue.producer_id_used == self._producer_id:
            response: log_pb2.InitProducerResponse = await self.cluster.call(
                LOG["InitProducer"], log_pb2.InitProducerRequest(), retry=True
            )
            self._producer_id = response.producer_id
        queue.producer_id_used = self._producer_id
        return self._producer_id

    async def find_leads(self, queues: list[Queue]) -> None:
        """Find the leads of these partitions, and schedule the queues there. Queues whose partition is gone fail."""
        for topic in {queue.partition.topic for queue in queues}:
            mine = [queue for queue in queues if queue.partition.topic == topic]
            try:
                view = await self.cluster.topic(topic, refresh=True)
            except RetryError:
                continue  # their current stream retries and calls this method again
            except InvalidError as error:
                self._give_up(mine, error)
                continue
            for queue in mine:
                try:
                    link = self.cluster.leader(view, queue.partition.partition)
                except RetryError:
                    continue
                except InvalidError as error:
                    self._give_up([queue], error)
                    continue
                if not queue.in_flight:
                    queue.stream = self.stream(link)
        for queue in queues:
            self.schedule(queue)

    def _give_up(self, queues: list[Queue], error: InvalidError) -> None:
        """These partitions no longer exist."""
        for queue in queues:
            for batch in queue.batches():
                self.fail(batch, error)
            queue.open = None
            queue.drop_over()

    def _spawn(self, coroutine: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        # The error must reach every waiting caller.
        self._failure = HeadgateError(Reason.INTERNAL, f"the producer failed: {type(error).__name__}: {error}")
        for queue in self.queues.values():
            for batch in queue.batches():
                self.fail(batch, self._failure)


class PublishStream:
    """The way to one broker, over any number of successive streams."""

    def __init__(self, sender: Sender, link: Link) -> None:
        self.runnable: deque[Queue] = deque()
        self.wake = asyncio.Event()
        self.error: HeadgateError | None = None
        """The error of the last stream, or None since the broker answered."""
        self.link = link
        self._sender = sender
        self._heard_s = 0.0
        """Time of the broker's last ack, or of the first wait after it."""
        self._stream: Stream | None = None
        self._backoff = Backoff()
        self._sent: deque[tuple[int, Queue, Batch]] = deque()
        """In-flight batches of the current stream: (sequence on the stream, queue, batch)."""

    def is_silent(self, now_s: float) -> bool:
        """True when the broker sent no ack for `SILENCE_S`; once in that time."""
        if not self._sent or now_s - self._heard_s < SILENCE_S:
            return False
        self._heard_s = now_s
        return True

    def waiting_for(self) -> dict[str, list[Queue]]:
        """The in-flight batches, by topic."""
        found: dict[str, list[Queue]] = {}
        for queue in {id(queue): queue for _, queue, _ in self._sent}.values():
            found.setdefault(queue.partition.topic, []).append(queue)
        return found

    def break_off(self) -> None:
        """End the current stream; its in-flight batches are sent again."""
        if self._stream is not None:
            self._stream.cancel()

    async def run(self) -> None:
        """Send batches until cancelled."""
        while True:
            while not self.runnable:
                self.wake.clear()
                await self.wake.wait()
            try:
                await self._serve()
            except HeadgateError as error:
                self.error = error
            lost = {id(queue): queue for _, queue, _ in self._sent}
            self._sent.clear()
            for queue in lost.values():
                queue.lost()
            await asyncio.sleep(self._backoff.pause_s())
            left = list(self.runnable)
            self.runnable.clear()
            for queue in left:
                queue.scheduled = False
                if queue.stream is not self:
                    self._sender.schedule(queue)
            await self._sender.find_leads(
                [queue for queue in self._sender.queues.values() if queue.stream is self and queue.batches()]
            )

    async def _serve(self) -> None:
        """Run one stream until it breaks. Raises HeadgateError."""
        stream = self._stream = self.link.stream(LOG["Publish"])
        listening = asyncio.create_task(self._listen(stream), name=f"acks {self.link.address}")
        listening.add_done_callback(lambda _: self.wake.set())
        try:
            await self._send(stream, listening)
        finally:
            stream.cancel()
            await end_tasks((listening,))

    async def _send(self, stream: Stream, listening: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        number, topic = 0, ""
        while True:
            if listening.done():
                await listening
            if not self.runnable:
                self.wake.clear()
                await self.wake.wait()
                continue
            queue = self.runnable.popleft()
            queue.scheduled = False
            if queue.stream is not self:
                self._sender.schedule(queue)
                continue
            if queue.producer_id < 0:
                queue.identify(await self._sender.producer_id(queue))
            batch = queue.next(loop.time())
            if batch is None:
                continue
            self._sender.schedule(queue)
            encoded = batch.encode(self._sender.codec)
            if len(encoded) > queue.batch_bytes_max:
                self._refused(
                    queue,
                    batch,
                    InvalidError(
                        Reason.MESSAGE_TOO_LARGE,
                        f"record is larger than the topic takes. topic=`{queue.partition.topic}` batch_bytes=`{len(encoded)}` "
                        f"max.message.bytes=`{queue.batch_bytes_max}`",
                    ),
                )
                continue
            number += 1
            request = log_pb2.PublishRequest(sequence=number, partition=queue.partition.partition)
            if queue.partition.topic != topic:
                request.topic = topic = queue.partition.topic
            if not self._sent:
                self._heard_s = loop.time()
            self._sent.append((number, queue, batch))
            await stream.write(payload.join(request, (encoded,)))

    async def _listen(self, stream: Stream) -> None:
        while (data := await stream.read()) is not None:
            self._on_acks(log_pb2.PublishResponse.FromString(data))
            self._backoff.reset()
            self.error = None
        raise RetryError(Reason.CLOSED, f"broker ended the stream. address=`{self.link.address}`")

    def _on_acks(self, response: log_pb2.PublishResponse) -> None:
        now = self._heard_s = asyncio.get_running_loop().time()
        failures = {failure.sequence: failure.error for failure in response.failures}
        times = response.append_times_ms
        count = len(response.base_offsets)
        if count > len(self._sent) or (count and self._sent[count - 1][0] != response.acked_sequence):
            raise RetryError(Reason.INTERNAL, f"broker acked what was not sent. acked_sequence=`{response.acked_sequence}`")
        for index, base_offset in enumerate(response.base_offsets):
            number, queue, batch = self._sent.popleft()
            if number in failures:
                self._refused(queue, batch, from_message(failures[number]))
                continue
            queue.delivered(batch, now)
            queue.backoff.reset()
            self._sender.deliver(queue, batch, base_offset, times[index] if times else -1)
            self._sender.schedule(queue)

    def _refused(self, queue: Queue, batch: Batch, error: HeadgateError) -> None:
        if error.reason is Reason.UNKNOWN_TOPIC:
            # The topic was deleted, or the lead does not know it yet: `find_leads` asks all brokers.
            error = RetryError(error.reason, error.message)
        if queue.refused(batch, error):
            self._sender.fail(batch, error)
        if queue.recovering:
            return
        if isinstance(error, RetryError):
            self._sender.retry(queue, error)
        else:
            self._sender.schedule(queue)
