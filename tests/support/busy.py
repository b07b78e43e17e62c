"""A cluster at work, for tests and pictures of the page.

Producers on several topics, groups with and without lag, a reservation, and a flood whose driver is played step by step."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import pyarrow as pa
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headgate.broker.client.gate_admin import FloodReport, Gate, GateAdmin
from headgate.broker.client.upload import Uploader

VALUE = b"x" * 400
ENV = {
    # So that a test's traffic is enough for a split.
    "HEADGATE_CLUSTER_BROKER_BYTES_PER_SECOND": "8388608",
    "HEADGATE_CLUSTER_SPLIT_AFTER_MS": "2000",
    "HEADGATE_CLUSTER_COOLDOWN_MS": "3000",
}


class Traffic:
    """Producers at steady rates, from one thread. A context manager.

    Args:
        rates: records per second, by topic.
    """

    def __init__(self, bootstrap: str, rates: Mapping[str, float]) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 0})
        self._rates = rates
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush(30)

    def _run(self) -> None:
        due = dict.fromkeys(self._rates, 0.0)
        number, last = 0, time.monotonic()
        while not self._over.wait(0.05):
            now = time.monotonic()
            for topic, rate in self._rates.items():
                due[topic] += rate * min(now - last, 0.5)
                while due[topic] >= 1:
                    due[topic] -= 1
                    number += 1
                    # Most records of a busy topic have keys of a few partitions, as in life.
                    self._producer.produce(topic, VALUE, key=b"user-%d" % (number * number % 97))
            self._producer.poll(0)
            last = now


def make_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Create topics and wait until they exist."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, count, 1) for name, count in partitions.items()]).values():
        future.result(60)


def read_some(bootstrap: str, group: str, topic: str, records: int) -> Consumer:
    """A consumer of a group that has read and committed some records, and stays a member while it is polled."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    seen = 0
    until = time.monotonic() + 60
    while seen < records and time.monotonic() < until:
        seen += len(consumer.consume(min(records - seen, 500), timeout=1.0))
    consumer.commit(asynchronous=False)
    return consumer


class PlayedFlood:
    """A flood whose driver is a test: it opens a gate, uploads files and reports, as Spark's driver does."""

    def __init__(self, cluster: str, topic: str, flood_id: str, rows: list[int]) -> None:
        self._cluster = cluster
        self._topic = topic
        self._id = flood_id
        self._rows = rows
        self._refs: list[object] = []
        self.gate: Gate

    async def open(self) -> None:
        async with GateAdmin(self._cluster) as admin:
            self.gate = await admin.open(self._topic, self._rows, gate_id=self._id, ttl_ms=600_000, owner="spark-nightly")

    async def upload(self, partitions: int) -> None:
        """Upload the files of the first partitions that lack one."""
        windows = self.gate.windows[len(self._refs) :][:partitions]

        def work() -> None:
            with Uploader(self.gate.store_url) as uploader:
                for one in windows:
                    count = one.end_offset - one.base_offset
                    table = pa.table(
                        {"timestamp": [1_700_000_000_000 + n for n in range(count)], "key": [b"k"] * count, "value": [b"v"] * count}
                    )
                    key = f"{self.gate.prefix}partition={one.partition}/{self._id}-0-000.parquet"
                    self._refs.append(uploader.write(key, table, one.partition, one.base_offset))

        await asyncio.to_thread(work)

    async def report(self, phase: str, share: float = 0.0, message: str = "") -> None:
        """Report a share of the planned rows as done in this phase."""
        total = sum(self._rows)
        report = FloodReport(topic=self._topic, flood_id=self._id, phase=phase)
        async with GateAdmin(self._cluster) as admin:
            await admin.report_flood(report.with_progress(phase, round(total * share), total, message))

    async def fill(self) -> None:
        async with GateAdmin(self._cluster) as admin:
            await admin.fill(self._topic, self._id, self._refs)
