"""Consumer groups of real clients at gates, with restarts of members and of the broker while the gates are open.

Runs: a broker process; groups of librdkafka, aiokafka, kafka-python and the Java client whose members are processes; two gates in
a row; live records. Compared: the offsets that each group processed. A group that had read everything when the gates opened
processes the live records at once, and never the history, wherever it was restarted. A group that had not reads history, then live
records. A mismatch means that a redeploy changes what a group reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headgate.broker.client import Admin, Gate, GateAdmin
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.confluent import Confluent
from tests.support.group_members.process import PYTHON_CLIENTS, Group
from tests.support.history_files import upload
from tests.support.records import Record

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio has one poller for the process

PARTITIONS = 2


def produce(broker: BrokerProcess, each: int) -> None:
    Confluent().produce(
        broker.bootstrap,
        "t",
        [Record(partition=number % PARTITIONS, key=None, value=b"live") for number in range(each * PARTITIONS)],
    )


def commit_again(broker: BrokerProcess, group: str) -> list[int]:
    """The committed positions, committed once more by a consumer that assigns its partitions itself."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        committed = consumer.committed([TopicPartition("t", number) for number in range(PARTITIONS)], 60)
        consumer.commit(offsets=committed, asynchronous=False)
        return [one.offset for one in committed]
    finally:
        consumer.close()


async def test_a_redeploy_does_not_change_what_a_group_reads(make_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = make_broker()
    await asyncio.to_thread(broker.start)

    def make(name: str) -> Group:
        return Group(broker.bootstrap, name, "t", tmp_path)

    async def read(*groups: Group, wanted: Callable[[int], set[int]]) -> None:
        for group in groups:
            await asyncio.to_thread(
                group.wait,
                f"{group.name} reads what it should",
                lambda group=group: all(group.processed()[number] == wanted(number) for number in range(PARTITIONS)),
            )

    async def stop(*groups: Group) -> None:
        for group in groups:
            await asyncio.to_thread(group.stop_all)

    async with Admin(f"{HOST}:{broker.grpc_port}") as admin, GateAdmin(f"{HOST}:{broker.grpc_port}") as gates:
        await admin.create_topic("t", PARTITIONS)
        await asyncio.to_thread(produce, broker, 20)
        at_end = {client: make(client) for client in PYTHON_CLIENTS}
        asleep, idle = make("asleep"), make("idle")
        for group in (*at_end.values(), asleep, idle):
            group.start(group.name if group.name in PYTHON_CLIENTS else "confluent")
        await read(*at_end.values(), asleep, idle, wanted=lambda _: set(range(20)))
        await stop(*at_end.values(), asleep, idle)

        made: list[Gate] = [await gates.open("t", rows, gate_id=name) for name, rows in (("a", [40, 30]), ("b", [5, 5]))]
        ends = [one.end_offset for one in made[1].windows]
        assert ends == [65, 55]
        for client, group in at_end.items():
            group.start(client)
        await asyncio.to_thread(at_end["confluent"].wait_shared, PARTITIONS)
        assert await asyncio.to_thread(commit_again, broker, "idle") == ends
        late = make("late")
        late.start("confluent")
        await read(late, wanted=lambda _: set(range(20)))
        await stop(late)
        assert await asyncio.to_thread(commit_again, broker, "late") == [20, 20]

        await asyncio.to_thread(produce, broker, 5)
        await read(*at_end.values(), wanted=lambda number: {*range(20), *range(ends[number], ends[number] + 5)})
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        assert await asyncio.to_thread(commit_again, broker, "late") == [20, 20], "it still waits, at any coordinator"
        late.start("confluent")
        await asyncio.to_thread(late.wait_shared, PARTITIONS)
        for gate in made:
            await gates.fill("t", gate.id, await asyncio.to_thread(upload, gate))
        await read(late, wanted=lambda number: set(range(ends[number] + 5)))

        await stop(*at_end.values())
        await asyncio.to_thread(produce, broker, 5)
        for client, group in at_end.items():
            group.start(client)
        for group in (asleep, idle):
            group.start("confluent")
        await read(*at_end.values(), asleep, idle, wanted=lambda number: {*range(20), *range(ends[number], ends[number] + 10)})
        await read(late, wanted=lambda number: set(range(ends[number] + 10)))
        await stop(*at_end.values(), asleep, idle, late)
    for group in (*at_end.values(), asleep, idle, late):
        group.check()


@pytest.mark.kafka_server
async def test_a_redeploy_of_java_consumers(make_broker: BrokerFactory, tmp_path: Path) -> None:
    """A group at the end and one that had read nothing, both restarted while the gate is open."""
    broker = make_broker()
    await asyncio.to_thread(broker.start)
    at_end, late = (Group(broker.bootstrap, name, "t", tmp_path) for name in ("at_end", "late"))

    async def read(group: Group, wanted: set[int]) -> None:
        def has_read() -> bool:
            return all(group.processed()[number] == wanted for number in range(PARTITIONS))

        await asyncio.to_thread(group.wait, f"{group.name} reads what it should", has_read)

    async with Admin(f"{HOST}:{broker.grpc_port}") as admin, GateAdmin(f"{HOST}:{broker.grpc_port}") as gates:
        await admin.create_topic("t", PARTITIONS)
        await asyncio.to_thread(produce, broker, 20)
        member = at_end.start("java")
        await read(at_end, set(range(20)))

        def has_committed() -> bool:
            positions = {number: offset for one in member.of("committed") for number, offset in one["offsets"].items()}
            return positions == {str(number): 20 for number in range(PARTITIONS)}

        await asyncio.to_thread(at_end.wait, "the group's positions are at the end", has_committed)
        gate = await gates.open("t", [30] * PARTITIONS, gate_id="a")
        await asyncio.to_thread(at_end.stop_all)
        for group in (at_end, late):
            group.start("java")
        await read(late, set(range(20)))
        await asyncio.to_thread(produce, broker, 5)
        live = set(range(50, 55))
        await read(at_end, set(range(20)) | live)
        await asyncio.to_thread(late.stop_all)
        late.start("java")
        await asyncio.to_thread(late.wait_shared, PARTITIONS)
        await gates.fill("t", gate.id, await asyncio.to_thread(upload, gate))
        await read(late, set(range(55)))
        await asyncio.to_thread(at_end.stop_all)
        at_end.start("java")
        await asyncio.to_thread(produce, broker, 5)
        await read(at_end, set(range(20)) | set(range(50, 60)))
        await read(late, set(range(60)))
    for group in (at_end, late):
        await asyncio.to_thread(group.stop_all)
        group.check()
