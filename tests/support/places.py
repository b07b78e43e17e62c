"""Consumers that begin at a named place, in three libraries and our own client. Each records every message while it runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.errors import UnknownBrokerIdError

from headgate.broker.client import Consumer as HeadgateConsumer
from tests.support.clients.confluent import QUICK_RECONNECT
from tests.support.writers import Running

Place = Literal["earliest", "latest"]


class PlacedReader(Running):
    """Reads all partitions of a topic from a place until it is stopped. `seen`: (offset, value) in the order of reading."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, place: Place) -> None:
        super().__init__(f"{type(self).__name__}-{place}")
        self.bootstrap, self.topic, self.place = bootstrap, topic, place
        self.seen: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(partitions)}

    @property
    def count(self) -> int:
        return sum(len(records) for records in self.seen.values())


class ConfluentPlaced(PlacedReader):
    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "log_level": 0,
                **QUICK_RECONNECT,
            }
        )
        start = OFFSET_BEGINNING if self.place == "earliest" else OFFSET_END
        try:
            consumer.assign([TopicPartition(self.topic, partition, start) for partition in self.seen])
            while not self._stopping.is_set():
                for message in consumer.consume(500, 0.1):
                    error = message.error()
                    if error is None:
                        partition, offset, value = message.partition(), message.offset(), message.value()
                        assert partition is not None and offset is not None and isinstance(value, bytes)
                        self.seen[partition].append((offset, value))
                    elif error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT) and not error.retriable():
                        raise KafkaException(error)
        finally:
            consumer.close()


class AiokafkaPlaced(PlacedReader):
    def run(self) -> None:
        self._run_loop(self._run())

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, auto_offset_reset="none", retry_backoff_ms=20
        )
        assigned = [AiokafkaPartition(self.topic, partition) for partition in self.seen]
        await consumer.start()
        try:
            consumer.assign(assigned)
            await (consumer.seek_to_beginning if self.place == "earliest" else consumer.seek_to_end)(*assigned)
            while not self._stopping.is_set():
                for part, messages in (await consumer.getmany(timeout_ms=100)).items():
                    self.seen[part.partition].extend((message.offset, message.value) for message in messages)
        finally:
            await consumer.stop()


class PythonPlaced(PlacedReader):
    def run(self) -> None:
        consumer: Any = KafkaConsumer(
            bootstrap_servers=self.bootstrap, enable_auto_commit=False, auto_offset_reset="none", retry_backoff_ms=20
        )
        assigned = [PythonPartition(self.topic, partition) for partition in self.seen]
        try:
            consumer.assign(assigned)
            (consumer.seek_to_beginning if self.place == "earliest" else consumer.seek_to_end)(*assigned)
            while not self._stopping.is_set():
                try:
                    found = consumer.poll(timeout_ms=100)
                except UnknownBrokerIdError:
                    continue  # kafka-python 3.0.12 raises it once when a broker has gone that it still believes to lead
                for part, messages in found.items():
                    self.seen[part.partition].extend((message.offset, message.value) for message in messages)
        finally:
            consumer.close()


class HeadgatePlaced(PlacedReader):
    """Over gRPC: `bootstrap` has gRPC addresses."""

    def run(self) -> None:
        self._run_loop(self._run())

    async def _run(self) -> None:
        async with HeadgateConsumer(self.bootstrap) as consumer:
            await consumer.assign_topic(self.topic, start=self.place)
            while not self._stopping.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        async for record in consumer:
                            self.seen[record.partition].append((record.offset, record.value))
                            if self._stopping.is_set():
                                break


READERS = (ConfluentPlaced, AiokafkaPlaced, PythonPlaced)
