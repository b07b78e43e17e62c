"""Records that a producer sends while its broker starts: it knows the topic from before, and sends as soon as the port is open.

Runs: a connection of the Kafka listener, which receives requests before and after the engine is there. Compared: the order in
the log, and of the answers, with the order of sending. A mismatch means that a restart of a broker reorders the records of a
producer that does not wait for each answer.
"""

from __future__ import annotations

import asyncio

import pytest
from headgate.broker.testing.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headgate.broker.testing.messages.request_header import RequestHeader

from headgate.broker.log.batch import split
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.clock import Clock
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.net.ports import address, listen
from tests.support.batches import batch
from tests.unit.kafka_api.conftest import NOW_MS, Kafka

VERSION = 12
HOST = "127.0.0.1"


def request(number: int, acks: int) -> bytes:
    data = PartitionProduceData(index=0, records=batch([b"%d" % number], timestamp_ms=NOW_MS))
    body = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    head = RequestHeader(request_api_key=0, request_api_version=VERSION, correlation_id=number)
    frame = head.encode(2) + body.encode(VERSION)
    return len(frame).to_bytes(4, "big") + frame


@pytest.mark.parametrize("acks", [-1, 0])
async def test_requests_of_before_and_after_keep_their_order(kafka: Kafka, acks: int) -> None:
    await kafka.engine.create_topic("t", 1, {})
    server = KafkaServer(kafka.settings, Clock(), (HOST, 1))
    listener = listen(HOST, 0, "kafka_port")
    await server.start(listener)
    reader, writer = await asyncio.open_connection(*address(listener))
    try:
        async with asyncio.timeout(60):
            writer.write(b"".join(request(number, acks) for number in range(3)))
            while not server.connections or len(next(iter(server.connections)).session.slots) < 3:  # noqa: ASYNC110  # it has no event
                await asyncio.sleep(0)
            (door,) = server.connections
            server.serve(kafka.engine, kafka.groups, kafka.node.transaction_calls)
            # This runs in the same turn in which the engine came: the connection has the socket's bytes up to then.
            late = request(3, acks)
            door.get_buffer(-1)[: len(late)] = late
            door.buffer_updated(len(late))
            writer.write(request(4, -1))
            answers = []
            for number in range(5) if acks else [4]:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                message, _ = ProduceResponse.decode(frame, 5, VERSION)
                row = message.responses[0].partition_responses[0]
                assert row.error_code == 0
                answers.append((int.from_bytes(frame[:4], "big"), row.base_offset))
                assert answers[-1] == (number, number)
        log = kafka.engine.partition(kafka.engine.topic("t"), 0)
        parts = [one for part in await kafka.engine.read(log, 0, 1 << 20) for one in split(part)]
        values = [record.value for part in parts for record in iter_records(part)]
        assert values == [b"%d" % number for number in range(5)]
    finally:
        writer.close()
        await server.close()
