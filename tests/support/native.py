"""Headgate's own Python client as writer and reader of a history, in addition to the foreign ones of `writers.py`."""

from __future__ import annotations

import asyncio

from headgate.broker.client import Admin, Consumer, Delivery, GroupAdmin, Producer
from tests.support.writers import PATIENCE_MS, Reader, Running, Writer


class NativeWriter(Writer):
    """Writes with Headgate's Python client. `bootstrap`: addresses of gRPC ports."""

    def run(self) -> None:
        self._run_loop(self._run())

    async def _run(self) -> None:
        async with Producer(self.bootstrap, compression=self.codec, linger_ms=2, delivery_timeout_ms=PATIENCE_MS) as producer:
            waiting: set[asyncio.Task[None]] = set()
            while not self._stopping.is_set():
                if not self._full():
                    for _ in range(4):
                        partition, sequence, value = self._next()
                        future = await producer.send(self.topic, value, partition=partition)
                        task = asyncio.create_task(self._note(partition, sequence, future))
                        waiting.add(task)
                        task.add_done_callback(waiting.discard)
                await asyncio.sleep(self.pause_s)
            await producer.flush()
            await asyncio.gather(*waiting)

    async def _note(self, partition: int, sequence: int, future: asyncio.Future[Delivery]) -> None:
        try:
            self.sent.acked(partition, sequence, (await future).offset)
        except Exception as error:  # noqa: BLE001  # every error of a record is judged
            self.sent.failed(error)


class NativeReader(Reader):
    """Reads with Headgate's Python client. `bootstrap`: addresses of gRPC ports. An error of the iteration ends it and fails the
    test."""

    def run(self) -> None:
        self._run_loop(self._run())

    async def _run(self) -> None:
        async with Consumer(self.bootstrap) as consumer:
            await consumer.assign_topic(self.topic, start=self.place)
            while not self._stopping.is_set() or self._behind():
                for record in await consumer.poll(timeout_ms=100):
                    self.seen[record.partition].append((record.offset, record.value or b""))


class NativeAdmin(Running):
    """Queries and changes state that spans all brokers, through one broker's port after the other.

    Args:
        addresses: of gRPC ports. The client gets all of them, with another one first in each turn.
    """

    def __init__(self, addresses: list[str], topic: str) -> None:
        super().__init__("NativeAdmin")
        self.addresses, self.topic = addresses, topic
        self.turns = 0
        self.incomplete = 0
        """Answers in which a partition had no leader that answered."""

    def run(self) -> None:
        self._run_loop(self._run())

    async def _run(self) -> None:
        while not self._stopping.is_set():
            first = self.turns % len(self.addresses)
            given = ",".join([*self.addresses[first:], *self.addresses[:first]])
            async with Admin(given) as admin, GroupAdmin(given) as groups:
                name = f"made-{self.turns}"
                made = await admin.create_topic(name, 2)
                assert (made.name, made.partitions) == (name, 2)
                await admin.create_partitions(name, 3)
                about = await admin.describe_topic(self.topic)
                self.incomplete += any(part.high_watermark < 0 for part in about.partitions)
                assert (await admin.status()).topics
                await groups.list_groups()
                await admin.delete_topic(name)
            self.turns += 1
            await asyncio.sleep(0.05)
