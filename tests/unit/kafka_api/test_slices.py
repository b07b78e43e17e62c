"""Changes that fall between two slices of one request: between a look and a wait, or between two appends.

Runs: the Kafka listener on a real engine. A store read, or a pause, lets another client act in the middle of a request. Compared:
the request's answer with the answer that no pause would give. A mismatch means that a reader waits beside its records, or that an
ack comes before the records are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from headgate.broker.testing.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from headgate.broker.testing.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headgate.broker.testing.messages.request_header import RequestHeader

from headgate.broker.log.batch import parse_header
from headgate.broker.runtime import turns
from headgate.broker.runtime.clock import Clock
from headgate.broker.server.kafka.fetch import Poll
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.net.ports import address, listen
from tests.support.batches import batch
from tests.unit.kafka_api.conftest import NOW_MS, Kafka

VERSION = 12
HOST = "127.0.0.1"
PATIENCE_S = 60


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Any) -> None:
        head = RequestHeader(request_api_key=message.API_KEY, request_api_version=VERSION, correlation_id=1)
        frame = head.encode(2) + message.encode(VERSION)
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    async def answer(self, kind: Any) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            return kind.decode(await self._reader.readexactly(size), 5, VERSION)[0]


@asynccontextmanager
async def client_of(kafka: Kafka) -> AsyncIterator[Client]:
    server = KafkaServer(kafka.settings, Clock(), (HOST, 1))
    listener = listen(HOST, 0, "kafka_port")
    await server.start(listener)
    server.serve(kafka.engine, kafka.groups, kafka.node.transaction_calls)
    reader, writer = await asyncio.open_connection(*address(listener))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        await server.close()


async def test_records_that_arrive_during_a_read_of_the_store_end_the_wait(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetch has looked at partition 0, and reads partition 1 from the store, when partition 0 gets a record."""
    await kafka.engine.create_topic("t", 2, {})
    logs = kafka.engine.logs["t"]
    reads = 0

    async def read(*arguments: Any) -> list[memoryview]:
        nonlocal reads
        reads += 1
        if reads == 1:
            assert logs[0] is not None
            kafka.engine.append(logs[0], memoryview(bytearray(batch([b"x"], timestamp_ms=NOW_MS))))
            await kafka.engine.durable()
        return []

    waits: list[float] = []
    wait = Poll.wait

    async def note_wait(self: Poll, timeout_s: float) -> None:
        waits.append(timeout_s)
        await wait(self, timeout_s)

    monkeypatch.setattr(kafka.engine, "read", read)
    monkeypatch.setattr(Poll, "wait", note_wait)
    async with client_of(kafka) as client:
        rows = [
            FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1000) for number, offset in ((0, 0), (1, 7))
        ]
        topics = [FetchTopic(topic="t", partitions=rows)]
        client.send(FetchRequest(max_wait_ms=1 << 30, min_bytes=1, max_bytes=1000, topics=topics))
        answer = await client.answer(FetchResponse)
    assert reads, "the request waited for the store"
    assert not waits, "the record was there before the wait"
    row = answer.responses[0].partitions[0]
    assert parse_header(row.records).base_offset == 0


async def test_a_request_in_slices_waits_for_the_store_if_a_part_of_it_must(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client's request lies between two slices. It must not take over the duty to wait for the store: the follower's
    confirmation is enough for replicated topics only."""
    monkeypatch.setattr(turns, "SLICE_S", -1.0)
    engine = kafka.engine
    await engine.create_topic("durable", 200, {})
    await engine.create_topic("replicated", 200, {"ack": "replicated"})
    confirmed: list[Any] = []
    right = turns.Turns.next

    def of_another_client(error: object) -> None: ...

    async def others_first(self: turns.Turns) -> None:
        engine.on_acked(of_another_client)
        await right(self)

    def confirm(callback: Any) -> None:
        confirmed.append(callback)
        callback(None)

    monkeypatch.setattr(turns.Turns, "next", others_first)
    monkeypatch.setattr(engine.replicator, "counts", True)
    monkeypatch.setattr(engine.replicator, "append", lambda *arguments: None)
    monkeypatch.setattr(engine.replicator, "on_acked", confirm)
    async with client_of(kafka) as client:
        rows = [PartitionProduceData(index=number, records=batch([b"x"], timestamp_ms=NOW_MS)) for number in range(200)]
        topics = [TopicProduceData(name=name, partition_data=rows) for name in ("durable", "replicated")]
        client.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=topics))
        answer = await client.answer(ProduceResponse)
    assert [row.error_code for topic in answer.responses for row in topic.partition_responses] == [0] * 400
    assert of_another_client in confirmed, "the request was appended in slices"
    assert set(confirmed) == {of_another_client}
