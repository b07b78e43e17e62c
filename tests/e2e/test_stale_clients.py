"""Clients that do not notice by themselves that a partition has a new leader.

Runs: three real brokers; an aiokafka consumer that knows a partition's leader, and fetches nothing; the partition is moved; then
the consumer asks the previous leader for the partition's beginning. Compared: the records that it gets. A mismatch means that
such a consumer stands still until its metadata are five minutes old.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from tests.compat.topics import create_topic
from tests.conftest import BrokerFactory
from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST
from tests.support.cluster import PATIENT, Brokers
from tests.support.waiting import until
from tests.support.wire import RawConnection

HANG_S = 60.0
Order = control_pb2.ReshardRequest


def test_who_looks_for_offsets_at_a_former_lead_comes_to_the_lead(make_broker: BrokerFactory, tmp_path: Path) -> None:
    brokers = Brokers(make_broker, tmp_path / "store", env=PATIENT)
    brokers.start()
    create_topic(brokers.bootstrap, "t", 1)
    home = brokers.leads("t")[0]
    with RawConnection(HOST, brokers.all[home - 1].kafka_port) as connection:
        part = {"index": 0, "records": batch([b"first"])}
        data = {"name": "t", "partition_data": (part,)}
        oracle.call(connection, oracle.PRODUCE, 11, {"acks": -1, "timeout": 30_000, "topic_data": (data,)})

    def move() -> None:
        (segment,) = brokers.segments("t")
        brokers.control("Reshard", Order(move=Order.Move(segment_id=segment.id, broker_id=home % 3 + 1)))
        until(lambda: brokers.leads("t")[0] == home % 3 + 1, "another broker leads")

    async def read() -> bytes | None:
        consumer = AIOKafkaConsumer(bootstrap_servers=brokers.bootstrap, enable_auto_commit=False, auto_offset_reset="none")
        partition = TopicPartition("t", 0)
        async with asyncio.timeout(HANG_S), consumer:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            consumer.pause(partition)
            await consumer.getmany(partition, timeout_ms=1000)  # answers under way arrive
            await asyncio.to_thread(move)
            await consumer.seek_to_beginning(partition)
            consumer.resume(partition)
            return (await consumer.getone()).value  # type: ignore[no-any-return]

    assert asyncio.run(read()) == b"first"
