"""Foreign producers and consumers that run in threads while a broker is killed, and record all their answers.

Every library relies on its own retries, with timeouts so long that no record should fail: a record that fails is a finding.
"""

from __future__ import annotations

import asyncio
import faulthandler
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine
from typing import Any, ClassVar, Literal
from weakref import WeakSet

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import RecordMetadata
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.errors import UnknownBrokerIdError

from tests.support.clients.confluent import QUICK_RECONNECT
from tests.support.history import Sent, payload

Place = Literal["earliest", "latest"]

PATIENCE_MS = 300_000
"""Time for which the libraries may retry one record: longer than any test."""

UNACKED_MAX = 1_000
"""A writer with this many unacked records sends no more. This bounds the backlog of a dead broker."""

PAUSE_S = 0.002
"""Pause between two small bursts, so that writers leave the machine's cores to the broker."""

END_S = 10.0
"""Longest time that a client may take to end after it was given up."""

BLOCKED_S = 70.0
"""Longest time that a library may block a client without a way to wake it: kafka-python does so for a minute when no broker
answers."""


class _Loop(asyncio.SelectorEventLoop):
    """Knows the connections that were made on it. A client whose close was cancelled leaves them open, and their end would be a
    warning in whichever test runs when they are collected."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: WeakSet[asyncio.Transport] = WeakSet()

    @staticmethod
    def running() -> _Loop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, _Loop)
        return loop

    async def create_connection(self, *arguments: Any, **named: Any) -> Any:
        made = await super().create_connection(*arguments, **named)
        self.transports.add(made[0])
        return made


def _stacks() -> str:
    """What each thread does now."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read().decode()


class Running(ABC):
    """A client in its own thread that runs until it is stopped. `error` is the reason of an early end, or None."""

    started: ClassVar[set[Running]] = set()
    """All and only the instances that were started and have not ended."""

    def __init__(self, name: str) -> None:
        self.error: BaseException | None = None
        self._stopping = threading.Event()
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    @classmethod
    def end_all(cls) -> None:
        """End all running instances now, finished or not."""
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
        """Ask it to end without finishing its work."""
        self._given_up.set()
        self.stop()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end. waited_s=`{timeout_s}`{self._state()}\n{_stacks()}"
        if self.error is not None:
            raise AssertionError(f"{self._thread.name} failed") from self.error

    def _state(self) -> str:
        """The state of the work, for the message of a timeout."""
        return ""

    def check(self) -> None:
        """Raise if it has already failed."""
        if self.error is not None:
            raise AssertionError(f"{self._thread.name} failed") from self.error

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001  # join and check raise it
            self.error = error
        finally:
            self.started.discard(self)

    def _run_loop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a new event loop; `give_up` cancels it."""
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._until_given_up(work))

    async def _until_given_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        while not task.done() and not self._given_up.is_set():
            await asyncio.wait((task,), timeout=0.1)
        while not task.done():
            task.cancel()
            # The client's close may wait for a broker that has ended: then the close is cancelled too.
            await asyncio.wait((task,), timeout=END_S / 2)
        for transport in _Loop.running().transports:
            transport.abort()
        await asyncio.sleep(0)
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
        """Pause between two bursts; may be changed while it runs."""
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
    """Make the client's next call raise the reason of a fatal error; librdkafka does not give it later."""
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
            producer.poll(PAUSE_S)  # poll returns with the first ack
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
        except Exception as error:  # noqa: BLE001  # every error of a record is judged
            self.sent.failed(error)


async def _start(client: AIOKafkaProducer | AIOKafkaConsumer) -> None:
    """Retry the start: unlike other libraries, aiokafka's clients do not wait for the first broker that answers."""
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
    """Reads a topic from a place, always waiting for more, until it is stopped or has read up to `ends`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, place: Place = "earliest") -> None:
        super().__init__(f"{type(self).__name__}-{place}")
        self.bootstrap, self.topic, self.place = bootstrap, topic, place
        self.seen: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(partitions)}
        """By partition: (offset, value) in the order of reading."""
        self.ends: dict[int, int] = {}

    def finish(self, last_offsets: dict[int, int], timeout_s: float) -> None:
        """Read up to these offsets, then end."""
        self.ends = last_offsets
        self.stop()
        self.join(timeout_s)

    def _last(self, partition: int) -> int:
        """The last offset that it read; -1: none."""
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
                # If the broker loses an offset that it showed before, that is an error, not a reason to restart at the beginning.
                "auto.offset.reset": "error",
                "check.crcs": True,
                "log_level": 0,
                **QUICK_RECONNECT,
            }
        )
        try:
            start = OFFSET_BEGINNING if self.place == "earliest" else OFFSET_END
            consumer.assign([TopicPartition(self.topic, partition, start) for partition in self.seen])
            while not self._stopping.is_set() or self._behind():
                for message in consumer.consume(500, 0.1):
                    self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            # The broker is down now and then; librdkafka reports this and continues.
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
            await (consumer.seek_to_beginning if self.place == "earliest" else consumer.seek_to_end)(*assigned)
            while not self._stopping.is_set() or self._behind():
                for part, messages in (await consumer.getmany(timeout_ms=100)).items():
                    self.seen[part.partition].extend((message.offset, message.value) for message in messages)
        finally:
            await consumer.stop()


class KafkaPythonReader(Reader):
    def run(self) -> None:
        consumer: Any = KafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, auto_offset_reset="none", retry_backoff_ms=20
        )
        assigned = [PythonPartition(self.topic, partition) for partition in self.seen]
        try:
            consumer.assign(assigned)
            (consumer.seek_to_beginning if self.place == "earliest" else consumer.seek_to_end)(*assigned)
            while not self._stopping.is_set() or self._behind():
                try:
                    found = consumer.poll(timeout_ms=100)
                except UnknownBrokerIdError:
                    continue  # kafka-python 3.0.12 raises it once when a broker has gone that it still believes to lead
                for part, messages in found.items():
                    self.seen[part.partition].extend((message.offset, message.value) for message in messages)
        finally:
            consumer.close()


READERS = (ConfluentReader, AiokafkaReader, KafkaPythonReader)
