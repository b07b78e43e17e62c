"""The client's Admin against a real server: values in, values out, errors with their reasons, and unreachable brokers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from google.protobuf.message import Message

from headgate.broker.client import Admin, GateAdmin, OffsetAndTimestamp, Timestamp, TopicPartition
from headgate.broker.client.cluster import Link
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.wire.grpc.methods import Method
from headgate.pipelines.floods.standing import topic_of
from tests.support.errors import raises
from tests.unit.grpc.conftest import Served, batch, reason_of


async def test_the_life_of_a_topic(served: Served) -> None:
    async with Admin(served.address) as admin:
        made = await admin.create_topic("a", 3, {"retention.ms": "5"})
        assert await admin.list_topics() == [made]
        await admin.create_topic("b")
        await admin.create_topic("c", 1, validate_only=True)
        assert [(topic.name, topic.partitions) for topic in await admin.list_topics()] == [("a", 3), ("b", 2)]
        await served.fill("a", 1, batch(b"x", b"y", timestamp_ms=7), batch(b"z", timestamp_ms=9))

        about = await admin.describe_topic("a")
        assert about.topic == made
        assert [part.high_watermark for part in about.partitions] == [0, 3, 0]
        assert {entry.name: entry.value for entry in about.config if not entry.is_default} == {"retention.ms": "5"}

        await admin.alter_topic_config("a", {"retention.bytes": "99"}, ["retention.ms"])
        about = await admin.describe_topic("a")
        assert {entry.name: entry.value for entry in about.config if not entry.is_default} == {"retention.bytes": "99"}

        await admin.create_partitions("a", 4)
        assert len((await admin.describe_topic("a")).partitions) == 4

        one = TopicPartition("a", 1)
        other = TopicPartition("b", 0)
        assert await admin.offsets({one: "latest", other: "earliest"}) == {
            one: OffsetAndTimestamp(3, None),
            other: OffsetAndTimestamp(0, None),
        }
        assert await admin.offsets({one: Timestamp(8)}) == {one: OffsetAndTimestamp(2, 9)}
        assert await admin.offsets({one: 1}) == {one: OffsetAndTimestamp(1, None)}
        assert await admin.offsets({}) == {}
        await served.fill("b", 0, batch(b"x", timestamp_ms=-1))
        assert await admin.offsets({other: Timestamp(-9)}) == {other: OffsetAndTimestamp(0, -1)}, "before 1970, and there"
        assert await admin.offsets({other: Timestamp(0)}) == {other: OffsetAndTimestamp(1, None)}

        assert await admin.delete_records("a", {1: 2, 0: None}) == {1: 2, 0: 0}
        await admin.delete_topic("b")
        assert [topic.name for topic in await admin.list_topics()] == ["a"]


async def test_status(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, batch(b"x"))
    async with Admin(served.address) as admin:
        status = await admin.status()
        assert status.cluster_id == served.engine.cluster_id
        assert [broker.grpc_port for broker in status.brokers] == [served.port]
        assert [(topic.name, topic.records, topic.bytes_in_per_second) for topic in status.topics] == [("a", 1, None)]
        assert (await admin.status(rate_window_ms=1)).topics[0].records_in_per_second == 0.0


async def test_records_are_counted_without_the_offsets_of_released_gates(served: Served) -> None:
    await served.create("a")
    async with Admin(served.address) as admin, GateAdmin(served.address) as gates:

        async def counted() -> tuple[int, ...]:
            (row,) = (await admin.status()).topics
            about = await admin.describe_topic("a")
            standing = topic_of(about, await gates.list("a"))
            assert standing is not None
            return row.records, sum(part.records for part in about.partitions), standing.live, about.partitions[0].high_watermark

        await served.fill("a", 0, batch(b"x"))
        await gates.open("a", [10, 0], gate_id="g")
        await served.fill("a", 0, batch(b"y", b"z"))
        assert await counted() == (3, 3, 3, 13), "an open gate has no records yet"
        await gates.release("a", "g")
        assert await counted() == (3, 3, 3, 13)
        log = served.engine.partition(served.engine.topic("a"), 0)
        log.hold("refused", 7, term=0)
        log.drop_holds("refused")
        await served.fill("a", 0, batch(b"w"))
        assert await counted() == (4, 4, 4, 21), "offsets that were held for a gate that was refused"
        await admin.delete_records("a", {0: 12})
        assert await counted() == (2, 2, 2, 21)


async def test_wrong_requests(served: Served) -> None:
    await served.create("a")
    async with Admin(served.address) as admin:
        assert await reason_of(admin.create_topic("a")) is Reason.TOPIC_EXISTS
        assert await reason_of(admin.create_topic("a b")) is Reason.INVALID_TOPIC
        assert await reason_of(admin.create_topic("b", 0)) is Reason.INVALID_PARTITIONS
        assert await reason_of(admin.create_topic("b", -1)) is Reason.INVALID_PARTITIONS
        assert await reason_of(admin.create_topic("b", 2**40)) is Reason.INVALID_PARTITIONS
        assert await reason_of(admin.create_partitions("a", -1)) is Reason.INVALID_PARTITIONS
        assert await reason_of(admin.describe_topic("b")) is Reason.UNKNOWN_TOPIC
        assert await reason_of(admin.delete_topic("b")) is Reason.UNKNOWN_TOPIC
        assert await reason_of(admin.alter_topic_config("a", {"x": "y"})) is Reason.INVALID_CONFIG
        assert await reason_of(admin.delete_records("a", {0: 9})) is Reason.OFFSET_OUT_OF_RANGE
        assert await reason_of(admin.offsets({TopicPartition("b", 0): "latest"})) is Reason.UNKNOWN_TOPIC
        assert await reason_of(admin.offsets({TopicPartition("a", 2): "latest"})) is Reason.UNKNOWN_TOPIC
        assert await reason_of(admin.offsets({TopicPartition("a", 0): 1})) is Reason.OFFSET_OUT_OF_RANGE
        for start in ("middle", None, True, 2**63, Timestamp(2**63), Timestamp(1.5)):  # type: ignore[arg-type]
            assert await reason_of(admin.offsets({TopicPartition("a", 0): start})) is Reason.INVALID_REQUEST  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "address", ["", " , ", "localhost", "localhost:", ":9095", "localhost:port", "localhost:0", "localhost:65536"]
)
def test_addresses_that_are_none(address: str) -> None:
    with raises(InvalidError, Reason.INVALID_REQUEST):
        Admin(address)


async def test_closed_under_a_call(served: Served) -> None:
    await served.create("a")
    admin = Admin(served.address)
    asking = [
        asyncio.create_task(admin.status(rate_window_ms=10_000)),
        asyncio.create_task(admin.offsets({TopicPartition("a", 0): "latest"})),
    ]
    await asyncio.sleep(0)
    await admin.close()
    for task in asking:
        assert await reason_of(task) is Reason.CLOSED
    assert await reason_of(admin.list_topics()) is Reason.CLOSED


async def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        async with Admin(address, timeout_ms=300) as admin:
            for call in (admin.list_topics(), admin.create_topic("a")):
                with pytest.raises(RetryError) as caught:
                    await call
                assert caught.value.reason in (Reason.NOT_READY, Reason.TIMED_OUT)
                assert address in caught.value.message


async def test_a_server_that_speaks_something_else() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Admin(f"127.0.0.1:{port}", timeout_ms=300) as admin:
        with pytest.raises(RetryError) as caught:
            await admin.list_topics()
        assert str(port) in caught.value.message


@pytest.mark.parametrize("partitions", [3, 1])
async def test_an_answer_that_is_lost(served: Served, monkeypatch: pytest.MonkeyPatch, partitions: int) -> None:
    """The existing topic may be the result of the lost call, or a topic of another client with that name."""

    async def lose(link: Link, method: Method, request: Message, timeout_s: float) -> Any:
        monkeypatch.undo()
        await served.create("a", partitions)
        raise RetryError(Reason.CLOSED, "the connection broke")

    async with Admin(served.address) as admin:
        monkeypatch.setattr(Link, "call", lose)
        if partitions == 3:
            assert (await admin.create_topic("a", 3)).partitions == 3
        else:
            assert await reason_of(admin.create_topic("a", 3)) is Reason.TOPIC_EXISTS


async def test_a_broker_that_comes_later(served: Served) -> None:
    await served.create("a")
    await served.stop()
    async with Admin(served.address) as admin:
        listing = asyncio.create_task(admin.list_topics())
        making = asyncio.create_task(admin.create_topic("b"))
        await asyncio.sleep(0.05)
        await served.start()
        assert (await listing)[0].name == "a"
        assert (await making).name == "b"


async def test_a_host_that_is_not_known_has_seen_nothing(served: Served) -> None:
    """An address that does not resolve cannot have executed the call: an existing topic was not made by this call."""
    await served.create("a")
    async with Admin(f"no..host:1,{served.address}") as admin:
        assert await reason_of(admin.create_topic("a")) is Reason.TOPIC_EXISTS
    async with Admin("no..host:1", timeout_ms=50) as admin:
        assert await reason_of(admin.list_topics()) is Reason.NOT_READY


async def test_the_second_address_serves_when_the_first_does_not(served: Served) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with Admin(f"127.0.0.1:{bound.getsockname()[1]}, {served.address}") as admin:
            assert await admin.list_topics() == []
            assert (await admin.create_topic("a")).name == "a"
