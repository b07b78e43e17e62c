"""Foreign producers and consumers that run in threads while a broker is killed under them, and note all that they are told.

Every library is left to its own retries, with time-outs so long that no record should fail: a record that fails is a finding.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import RecordMetadata
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from kafka import KafkaProducer

from tests.support.clients.confluent import QUICK_RECONNECT
from tests.support.history import Sent, payload

PATIENCE_MS = 300_000
"""How long the libraries may retry one record: longer than any test."""

UNACKED_MAX = 1_000
"""A writer that waits for this many acks does not send more: what a dead broker leaves behind stays small."""

PAUSE_S = 0.002
"""Between two small bursts, so that writers leave the machine's cores to the broker."""

END_S = 10.0
"""How long a client may take to end once nobody waits for what it does."""

BLOCKED_S = 70.0
"""How long a library may block a client where nothing can wake it: kafka-python does for a minute when no broker answers."""


class Running(ABC):
    """Something that runs in its own thread until it is stopped. `error` is why it ended early, if it did."""

    started: ClassVar[set[Running]] = set()
    """All and only those that were started and have not ended."""

    def __init__(self, name: str) -> None:
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    @classmethod
    def end_all(cls) -> None:
        """Whoever still runs ends now, finished or not."""
        running = list(cls.started)
        for one in running:
            one.give_up()
        for one in running:
            one._thread.join(BLOCKED_S)
            assert not one._thread.is_alive(), f"{one._thread.name} cannot be ended"

    def start(self) -> None:
        self.started.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end. `join` waits."""
        self._stopping.set()

    def give_up(self) -> None:
        """Ask it to end whatever is not done."""
        self._given_up.set()
        self.stop()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end. waited_s=`{timeout_s}`{self._state()}"
        if self.error is not None:
            raise AssertionError(f"{self._thread.name} failed") from self.error

    def _state(self) -> str:
        """What it has come to, for whoever finds that it does not end."""
        return ""

    def check(self) -> None:
        """Raise when it has failed already."""
        if self.error is not None:
            raise AssertionError(f"{self._thread.name} failed") from self.error

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  # told by join and check
            self.error = error
        finally:
            self.started.discard(self)

    def _run_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in an event loop of its own; it is cancelled when it is given up."""
        asyncio.run(self._until_given_up(work))

    async def _until_given_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        while not task.done() and not self._given_up.is_set():
            await asyncio.wait((task,), timeout=0.1)
        while not task.done():
            task.cancel()
            # Its own end may wait for a broker that is gone: then that is cancelled too.
            await asyncio.wait((task,), timeout=END_S / 2)
        await task

    @abstractmethod
    def run(self) -> None:
        """The work; ends soon after `_stopping` is set."""


class Writer(Running):
    """Writes numbered records to partitions 0 … n-1 in turn; when stopped, waits until all of them are acked."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, number: int, *, idempotent: bool, codec: str) -> None:
        kind = "idempotent" if idempotent else "plain"
        name = f"{type(self).__name__}-{kind}-{codec}"
        super().__init__(name)
        self.bootstrap, self.topic, self.partitions, self.codec = bootstrap, topic, partitions, codec
        self.sent = Sent(name=name, number=number, idempotent=idempotent)
        self.pause_s = PAUSE_S
        """Between two bursts; may be changed while it runs."""
        self._turn = 0

    def _next(self) -> tuple[int, int, bytes]:
        partition = self._turn % self.partitions
        self._turn += 1
        sequence = self.sent.next_sequence(partition)
        return partition, sequence, payload(self.sent.number, partition, sequence)

    def _unacked(self) -> int:
        return self.sent.sent_count - self.sent.acked_count - len(self.sent.failures)

    def _full(self) -> bool:
        return self._unacked() >= UNACKED_MAX


def _fatal(error: KafkaError) -> None:
    """Have the client's next call raise why it gave up, which it does not say later."""
    if error.fatal():
        raise KafkaException(error)


class ConfluentWriter(Writer):
    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "enable.idempotence": self.sent.idempotent,
                # Without sequence numbers only one request in flight keeps the order over retries.
                "max.in.flight.requests.per.connection": 5 if self.sent.idempotent else 1,
                "compression.type": self.codec,
                "linger.ms": 2,
                "message.timeout.ms": PATIENCE_MS,
                "log_level": 0,
                "error_cb": _fatal,
                **QUICK_RECONNECT,
            }
        )
        while not self._stopping.is_set():
            if not self._full():
                for _ in range(8):
                    self._produce(producer)
            producer.poll(PAUSE_S)  # which returns with the first ack
            if self.pause_s > PAUSE_S:
                self._stopping.wait(self.pause_s)
        while not self._given_up.is_set() and producer.flush(1.0):
            pass

    def _produce(self, producer: Producer) -> None:
        partition, sequence, value = self._next()

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.sent.failed(error)
            else:
                offset = message.offset()
                assert offset is not None
                self.sent.acked(partition, sequence, offset)

        producer.produce(self.topic, value=value, partition=partition, on_delivery=delivered)


class AiokafkaWriter(Writer):
    def run(self) -> None:
        self._run_loop(self._run())

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=self.sent.idempotent,
            compression_type=None if self.codec == "none" else self.codec,
            linger_ms=2,
            request_timeout_ms=PATIENCE_MS,
            retry_backoff_ms=20,
        )
        waiting: set[asyncio.Task[None]] = set()
        try:
            await _start(producer)
            while not self._stopping.is_set():
                if not self._full():
                    for _ in range(4):
                        partition, sequence, value = self._next()
                        future = await producer.send(self.topic, value=value, partition=partition)
                        task = asyncio.create_task(self._note(partition, sequence, future))
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
                await asyncio.sleep(self.pause_s)
            await producer.flush()
            await asyncio.gather(*waiting)
        finally:
            await producer.stop()

    async def _note(self, partition: int, sequence: int, future: Awaitable[RecordMetadata]) -> None:
        try:
            self.sent.acked(partition, sequence, (await future).offset)
        except Exception as error:  # noqa: BLE001  # whatever a record failed with is judged
            self.sent.failed(error)


async def _start(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    """Unlike those of the other libraries, aiokafka's clients do not wait for the first broker that answers."""
    while True:
        try:
            await client.start()
        except KafkaConnectionError:
            await asyncio.sleep(0.02)
        else:
            return


class KafkaPythonWriter(Writer):
    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=self.sent.idempotent,
            max_in_flight_requests_per_connection=5 if self.sent.idempotent else 1,
            compression_type=None if self.codec == "none" else self.codec,
            linger_ms=2,
            delivery_timeout_ms=PATIENCE_MS,
            retry_backoff_ms=20,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=200,
        )
        try:
            while not self._stopping.is_set():
                if not self._full():
                    for _ in range(4):
                        self._send(producer)
                time.sleep(self.pause_s)
            while self._unacked() and not self._given_up.is_set():
                time.sleep(PAUSE_S)
        finally:
            producer.close(timeout=END_S / 2)

    def _send(self, producer: KafkaProducer) -> None:
        partition, sequence, value = self._next()
        future = producer.send(self.topic, value=value, partition=partition)
        future.add_callback(lambda answer: self.sent.acked(partition, sequence, answer.offset))
        future.add_errback(self.sent.failed)


class Reader(Running):
    """Reads a topic from its beginning, always waiting for more, until it is stopped or has read up to `ends`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(type(self).__name__)
        self.bootstrap, self.topic = bootstrap, topic
        self.seen: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(partitions)}
        self.ends: dict[int, int] = {}

    def finish(self, last_offsets: dict[int, int], timeout_s: float) -> None:
        """Read up to these offsets, then end."""
        self.ends = last_offsets
        self.stop()
        self.join(timeout_s)

    def _last(self, partition: int) -> int:
        """The last offset that it was shown; -1: none."""
        records = self.seen[partition]
        return records[-1][0] if records else -1

    def _behind(self) -> bool:
        return not self._given_up.is_set() and any(self._last(partition) < end for partition, end in self.ends.items())

    def _state(self) -> str:
        return f" read=`{ {partition: self._last(partition) for partition in self.seen} }` ends=`{self.ends}`"

    @property
    def count(self) -> int:
        return sum(len(records) for records in self.seen.values())


class ConfluentReader(Reader):
    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                # An offset that the broker once showed and no longer has is an error, not a reason to start again.
                "auto.offset.reset": "error",
                "check.crcs": True,
                "log_level": 0,
                **QUICK_RECONNECT,
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, partition, OFFSET_BEGINNING) for partition in self.seen])
            while not self._stopping.is_set() or self._behind():
                for message in consumer.consume(500, 0.1):
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            # The broker is down now and then; librdkafka says so and goes on.
            if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT) or error.retriable():
                return
            raise KafkaException(error)
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None and offset is not None and isinstance(value, bytes)
        self.seen[partition].append((offset, value))


class AiokafkaReader(Reader):
    def run(self) -> None:
        self._run_loop(self._run())

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="none",
            retry_backoff_ms=20,
            request_timeout_ms=10_000,
        )
        assigned = [AiokafkaPartition(self.topic, partition) for partition in self.seen]
        try:
            await _start(consumer)
            consumer.assign(assigned)
            for part in assigned:
                consumer.seek(part, 0)
            while not self._stopping.is_set() or self._behind():
                for part, messages in (await consumer.getmany(timeout_ms=100)).items():
                    self.seen[part.partition].extend((message.offset, message.value) for message in messages)
        finally:
            await consumer.stop()
