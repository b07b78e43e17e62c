"""Many members of many groups on one broker, beside other work, and more members than the limits allow.

Runs: 600 members with a heartbeat per second while librdkafka writes as fast as it can; a group of 50; ten thousand clients that
ask to join one group. Compared: expelled members (none allowed), generations (the minimum), and Kafka's error codes beyond the
limits. A mismatch means that load alone makes groups rebalance, or that unknown clients can fill a broker's memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from confluent_kafka import Producer

from headgate.broker.wire.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.group_load import MEMBER_ID_REQUIRED, Member, connect, settled_groups

GROUPS, SIZE = 200, 3
BEAT_S = 1.0
FLOOD_S = 6.0
GROUP_MAX_SIZE_REACHED = 81


class Flood:
    """Writes until it is told to stop."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._stop = threading.Event()
        self._bootstrap = broker.bootstrap
        self.records = 0
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "batch.size": 1 << 20, "linger.ms": 5})
        value = bytes(1000)
        while not self._stop.is_set():
            try:
                for _ in range(1000):
                    producer.produce("flood", value)
                self.records += 1000
            except BufferError:
                producer.poll(0.05)
        producer.purge()
        producer.flush(10)


async def test_nobody_is_expelled_beside_a_flood(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    members = await settled_groups(broker.kafka_port, GROUPS, SIZE)
    for member in members:
        member.generations.clear()
    stop = asyncio.Event()
    with Flood(broker) as flood:
        tasks = [asyncio.create_task(member.beat(BEAT_S, stop)) for member in members]
        await asyncio.sleep(FLOOD_S)
        stop.set()
        await asyncio.gather(*tasks)
    assert flood.records > 0 and sum(member.beats for member in members) >= len(members)
    assert not [member.errors for member in members if member.errors], "members were expelled"
    assert not [member.generations for member in members if member.generations], "groups rebalanced"
    for member in members:
        member.close()
    broker.check_alive()


async def test_one_more_member_costs_fifty_one_generation(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    members = await settled_groups(broker.kafka_port, 1, 50)
    (generation,) = {member.generation for member in members}
    late = Member(broker.kafka_port, members[0].group)
    stop = asyncio.Event()
    tasks = [asyncio.create_task(member.beat(0.1, stop)) for member in members]
    async with asyncio.timeout(60):
        await late.join()
    stop.set()
    await asyncio.gather(*tasks)
    assert {member.generation for member in [*members, late]} == {generation + 1}
    for member in [*members, late]:
        member.close()


async def test_ten_thousand_strangers_get_kafkas_error(make_broker: BrokerFactory) -> None:
    broker = make_broker(env={"HEADGATE_GROUP_MAX_SIZE": "500"})
    broker.start()
    request = JoinGroupRequest(
        group_id="crowd",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    connections = [await connect(broker.kafka_port) for _ in range(10)]

    async def crowd(number: int) -> list[int]:
        return [(await connections[number].call(request, 5, JoinGroupResponse)).error_code for _ in range(1000)]

    async with asyncio.timeout(60):
        codes = Counter(code for one in await asyncio.gather(*map(crowd, range(10))) for code in one)
    assert codes == {MEMBER_ID_REQUIRED: 500, GROUP_MAX_SIZE_REACHED: 9500}
    other = Member(broker.kafka_port, "another group")
    await other.join()
    other.close()
    for connection in connections:
        connection.close()
    broker.check_alive()
