"""Clients that consume, transform and produce in transactions, and the check of what they did.

A transactor reads numbered records of a topic, writes each once to another topic, and commits its positions in the same
transaction. Some transactions it aborts on purpose and does again. Some it leaves open and starts again under the same
transactional id, as a client that was killed; the abandoned producer is a *zombie*, which then tries to commit. A reader of
committed records must find each number once and in order, and none of the records that zombies or aborted transactions wrote.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import threading
from abc import ABC, abstractmethod
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

TIMEOUT_S = 60.0
TRANSACTION_MS = 30_000
DELIVERY_MS = 900_000
"""Longest time for the delivery of a record: longer than any outage."""
ABORTED = b"!"
"""Prefix of values in transactions that must not be seen."""
BATCH = 20


class Source:
    """Writes numbered records."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": DELIVERY_MS,
                "log_level": 0,
            }
        )
        self._topic = topic
        self.written: list[list[bytes]] = [[] for _ in range(partitions)]

    def produce(self, count: int) -> None:
        """Hand more records to the producer: `count` for each partition."""
        for _ in range(count):
            for number, values in enumerate(self.written):
                value = b"%d-%d" % (number, len(values))
                values.append(value)
                self._producer.produce(self._topic, value, partition=number)

    def flush(self) -> None:
        """Wait until all of them are acknowledged."""
        assert self._producer.flush(2 * TIMEOUT_S) == 0

    def write(self, count: int) -> None:
        self.produce(count)
        self.flush()


class Transactor(ABC):
    """One client, in a thread of its own, until `stop`. `done` is the number of committed transactions."""

    def __init__(self, bootstrap: str, source: str, target: str, name: str, seed: int) -> None:
        self.bootstrap, self.source, self.target, self.name = bootstrap, source, target, name
        self.draw = random.Random(f"{seed}-{name}")
        self.done = self.aborted = self.abandoned = self.restarts = 0
        self.fenced: list[str] = []
        """Errors that zombies got."""
        self.wrong: list[str] = []
        """What no client may see."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * TIMEOUT_S)  # its transaction may take one
        assert not self._thread.is_alive(), f"{self.name} hangs"
        assert not self.wrong, self.wrong

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def _run(self) -> None:
        while not self.stopping:
            try:
                self.work()
            except (KafkaException, AioError) as error:
                if "UNKNOWN_SERVER_ERROR" in str(error):
                    self.wrong.append(str(error))
                self.restarts += 1
            except BaseException as error:
                self.wrong.append(f"{self.name} ended: {error!r}")
                raise

    @abstractmethod
    def work(self) -> None:
        """Work until `stopping` or an error."""

    def choose(self) -> str:
        """The fate of the next transaction."""
        return self.draw.choices(("commit", "abort", "abandon"), (8, 1, 1))[0]


class ConfluentTransactor(Transactor):
    """librdkafka. Each transaction has a new producer: 2.16 hangs in `send_offsets_to_transaction`, beyond its time-out, if the
    broker that it remembers as the group's coordinator has left the cluster."""

    def _producer(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": self.name,
                "transaction.timeout.ms": TRANSACTION_MS,
                "linger.ms": 1,
                "log_level": 0,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def work(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
                "log_level": 0,
            }
        )
        consumer.subscribe([self.source])
        try:
            while not self.stopping:
                messages = [one for one in consumer.consume(BATCH, 0.5) if not one.error()]
                if not messages:
                    continue
                fate = self.choose()
                producer = self._producer()
                producer.begin_transaction()
                self._write(producer, messages, b"" if fate == "commit" else ABORTED)
                producer.flush(TIMEOUT_S)
                if fate == "abandon":
                    self._producer()
                    self.abandoned += 1
                    self._revive(producer, consumer, messages)
                    fate = "rewind"
                elif fate == "commit":
                    ends = _ends(messages)
                    producer.send_offsets_to_transaction(ends, consumer.consumer_group_metadata(), TIMEOUT_S)
                    producer.commit_transaction(TIMEOUT_S)
                    self.done += 1
                else:
                    producer.abort_transaction(TIMEOUT_S)
                    self.aborted += 1
                if fate != "commit":
                    for place in _begins(messages):
                        consumer.seek(place)
        finally:
            consumer.close()

    def _write(self, producer: Producer, messages: list[Message], prefix: bytes) -> None:
        for one in messages:
            value = one.value()
            assert value is not None
            producer.produce(self.target, prefix + value, partition=one.partition())

    def _revive(self, zombie: Producer, consumer: Consumer, messages: list[Message]) -> None:
        """Let a replaced producer write and commit. It must fail."""
        try:
            self._write(zombie, messages, ABORTED)
            zombie.send_offsets_to_transaction(_ends(messages), consumer.consumer_group_metadata(), TIMEOUT_S)
            zombie.commit_transaction(TIMEOUT_S)
        except KafkaException as error:
            self.fenced.append(error.args[0].name())
            return
        self.wrong.append("a zombie committed")


class AiokafkaTransactor(Transactor):
    """aiokafka."""

    def work(self) -> None:
        asyncio.run(self._work())

    async def _producer(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            transactional_id=self.name,
            transaction_timeout_ms=TRANSACTION_MS,
            request_timeout_ms=10_000,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await producer.start()
        except BaseException:
            await asyncio.gather(producer.stop(), return_exceptions=True)
            raise
        return producer

    async def _work(self) -> None:
        try:
            producer = await self._producer()
        except TimeoutError as error:
            raise AioError(f"no producer id within {TIMEOUT_S} s") from error
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.name,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            request_timeout_ms=10_000,
        )
        try:
            await consumer.start()
            consumer.subscribe([self.source])
            while not self.stopping:
                found = await consumer.getmany(timeout_ms=500, max_records=BATCH)
                if not found:
                    continue
                fate = "abort" if self.choose() == "abort" else "commit"
                async with asyncio.timeout(TIMEOUT_S):
                    await producer.begin_transaction()
                    sent = [
                        await producer.send(
                            self.target, (b"" if fate == "commit" else ABORTED) + one.value, partition=place.partition
                        )
                        for place, records in found.items()
                        for one in records
                    ]
                    await asyncio.gather(*sent)
                    if fate == "commit":
                        ends = {place: records[-1].offset + 1 for place, records in found.items()}
                        await producer.send_offsets_to_transaction(ends, self.name)
                        await producer.commit_transaction()
                        self.done += 1
                        continue
                    await producer.abort_transaction()
                    self.aborted += 1
                for place, records in found.items():
                    consumer.seek(AioPartition(place.topic, place.partition), records[0].offset)
        except TimeoutError as error:
            raise AioError(f"no answer within {TIMEOUT_S} s") from error
        finally:
            await asyncio.gather(consumer.stop(), producer.stop(), return_exceptions=True)


class ProcessTransactor(Transactor):
    """A client in a process of its own, which is killed now and then: Java (`transactors_java/`), franz-go (`transactors_go/`).

    Args:
        command: takes bootstrap servers, source, target, name and seed as further arguments. It prints ``commit`` or ``abort``
            for each transaction, and ends when its input ends.
        kill_every: committed transactions between two SIGKILLs.
    """

    def __init__(
        self, command: list[str], bootstrap: str, source: str, target: str, name: str, seed: int, kill_every: int = 40
    ) -> None:
        super().__init__(bootstrap, source, target, name, seed)
        self._command, self._kill_every = command, kill_every
        self.notes: list[str] = []
        """Other lines of the process, such as errors."""

    def work(self) -> None:
        seed = str(self.draw.randrange(1 << 30))
        process = subprocess.Popen(
            [*self._command, self.bootstrap, self.source, self.target, self.name, seed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        end = threading.Thread(target=self._end, args=(process,), daemon=True)
        end.start()
        left = self._kill_every
        for line in process.stdout:
            if line.startswith("commit"):
                self.done += 1
                left -= 1
            elif line.startswith("abort"):
                self.aborted += 1
            else:
                self.notes.append(line.strip())
                self.restarts += 1
                if "UNKNOWN_SERVER_ERROR" in line:
                    self.wrong.append(line)
            if left == 0:
                self.abandoned += 1
                process.kill()
                break
        process.kill() if not self.stopping else process.wait(TIMEOUT_S)
        process.wait(TIMEOUT_S)
        process.stdout.close()

    def _end(self, process: subprocess.Popen[str]) -> None:
        """End the process when the transactor stops."""
        while process.poll() is None and not self._stopping.wait(0.2):
            pass
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()


def _ends(messages: list[Message]) -> list[TopicPartition]:
    ends: dict[int, TopicPartition] = {}
    for one in messages:
        ends[one.partition()] = TopicPartition(one.topic(), one.partition(), one.offset() + 1)
    return list(ends.values())


def _begins(messages: list[Message]) -> list[TopicPartition]:
    begins: dict[int, TopicPartition] = {}
    for one in reversed(messages):
        begins[one.partition()] = TopicPartition(one.topic(), one.partition(), one.offset())
    return list(begins.values())


def committed(bootstrap: str, topic: str, partitions: int) -> list[list[bytes]]:
    """The values of a topic that a librdkafka reader of committed records finds, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    values: list[list[bytes]] = [[] for _ in range(partitions)]
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    at_end: set[int] = set()
    while len(at_end) < partitions:
        one = consumer.poll(TIMEOUT_S)
        assert one is not None, f"the reader hangs. topic={topic} at_end={at_end}"
        error = one.error()
        if error is None:
            value = one.value()
            assert value is not None
            values[one.partition()].append(value)
            at_end.discard(one.partition())
        elif error.name() == "_PARTITION_EOF":
            at_end.add(one.partition())
        else:
            assert error.retriable(), error
    consumer.close()
    return values
