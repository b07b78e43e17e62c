"""Fetch from memory, and the readers that count as being at the end of a log.

Runs: an engine and requests for it, without a socket. Compared: the readers that may pass a new window with the readers that had
all records. A mismatch means that a consumer on its way through the log misses the history before the live records.
"""

from __future__ import annotations

import pytest
from headgate.broker.testing.messages.fetch import FetchPartition, FetchRequest, FetchTopic

from headgate.broker.server.kafka import fetch
from tests.unit.kafka_api.conftest import Kafka

VERSION = 12
READER = 1
HOUR_MS = 3_600_000


def take(kafka: Kafka, offset: int, max_bytes: int) -> int:
    """Collect the records of one partition. Returns their number of bytes."""
    rows = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)]
    asked = FetchRequest(max_bytes=1 << 20, session_epoch=-1, topics=[FetchTopic(topic="t", partitions=rows)])
    request, portions = fetch.parse(kafka.engine, memoryview(asked.encode(VERSION)), 0, VERSION)
    total, failed, cold = fetch.collect(kafka.engine, request, next(iter(portions)), 0, 1 << 20, READER)
    assert not failed and not cold
    return total


@pytest.mark.parametrize("is_all", [True, False])
async def test_only_a_fetch_that_has_all_records_is_at_the_end(kafka: Kafka, is_all: bool) -> None:
    """The next batch may have no room in an answer that has some bytes left."""
    await kafka.engine.create_topic("t", 1, {})
    for _ in range(3):
        await kafka.append("t", [b"value"])
    log = kafka.engine.partition(kafka.engine.topic("t"), 0)
    size = take(kafka, 0, 1 << 20) // 3
    log.readers.asked_start(READER)
    assert take(kafka, 0, 3 * size if is_all else 3 * size - 1) == (3 if is_all else 2) * size
    leader = kafka.node.participant.leader
    assert leader is not None
    await leader.gates.open("t", "g", "now", [10], HOUR_MS)
    await kafka.append("t", [b"live"])
    assert bool(await kafka.engine.read(log, 3, 1 << 20, READER)) == is_all
