"""Gates on a real broker, seen by foreign consumers while a live producer writes all the time.

Runs: a broker process; an idempotent librdkafka producer; consumers of librdkafka, aiokafka and kafka-python that begin at the
end or at the beginning, before and after gates are opened. History is uploaded as Parquet files and committed by reference.
Compared: every consumer's reads with the history and the acks. History stands before the records that were live when its gate
was opened, each record once, in order. A consumer at the end gets live records at once, and no history. A mismatch means that
history was lost or repeated, that a reader saw a half-filled gate, or that live traffic waited for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, TopicPartition

from headgate.broker.client import Admin, Gate, GateAdmin, GateState, Place
from headgate.broker.client.gate_admin import GATES
from headgate.broker.client.upload import write_extent
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.conftest import BrokerFactory
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.errors import raises
from tests.support.history import check_writer
from tests.support.history_files import FIRST_MS, expected, rows_of, upload
from tests.support.records import Record
from tests.support.waiting import until_async
from tests.support.writers import READERS, ConfluentWriter, Reader

pytestmark = pytest.mark.asyncio(loop_scope="session")  # grpc.aio has one poller for the process

PARTITIONS = 2
PATIENCE_S = 90.0
"""Ends a hang; no test judges by it."""


def address(broker: BrokerProcess) -> str:
    return f"{HOST}:{broker.grpc_port}"


def read_all(broker: BrokerProcess, topic: str, partitions: int = PARTITIONS) -> dict[int, list[tuple[int, bytes]]]:
    """The whole topic, as another client reads it."""
    read = CLIENTS["confluent"].consume(broker.bootstrap, topic, range(partitions))
    return {partition: [(one.offset, one.value or b"") for one in records] for partition, records in read.items()}


def watermarks(broker: BrokerProcess, topic: str, partition: int) -> tuple[int, int]:
    """(first offset, end) from librdkafka."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60, cached=False)  # type: ignore[misc]
        return low, high
    finally:
        consumer.close()


def offset_at(broker: BrokerProcess, topic: str, partition: int, timestamp_ms: int) -> int:
    """The first offset at or after a time, from librdkafka; -1: there is none."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        return int(consumer.offsets_for_times([TopicPartition(topic, partition, timestamp_ms)], timeout=60)[0].offset)
    finally:
        consumer.close()


def start_readers(broker: BrokerProcess, topic: str, place: str) -> list[Reader]:
    readers = [reader(broker.bootstrap, topic, PARTITIONS, place) for reader in READERS]  # type: ignore[arg-type]
    for reader in readers:
        reader.start()
    return readers


async def stop(*running: Reader | ConfluentWriter) -> None:
    for one in running:
        one.stop()
    for one in running:
        await asyncio.to_thread(one.join, PATIENCE_S)


async def start_writer(broker: BrokerProcess, topic: str) -> ConfluentWriter:
    writer = ConfluentWriter(broker.bootstrap, topic, PARTITIONS, 0, idempotent=True, codec="lz4")
    writer.pause_s = 0.01
    writer.start()
    await until_async(lambda: writer.sent.acked_count > 50, "the producer writes")
    return writer


async def test_history_comes_before_what_is_live(make_broker: BrokerFactory) -> None:
    broker = make_broker(env={"HEADGATE_WAL_CHECKPOINT_INTERVAL_MS": "300"})
    await asyncio.to_thread(broker.start)
    async with Admin(address(broker)) as admin, GateAdmin(address(broker)) as gates:
        await admin.create_topic("t", PARTITIONS)
        writer = await start_writer(broker, "t")
        at_end = start_readers(broker, "t", "latest")
        await until_async(lambda: all(reader.count for reader in at_end), "consumers at the end are shown live records")

        gate = await gates.open("t", [4000, 3000], gate_id="flood")
        assert gate.state is GateState.OPEN and [one.end_offset - one.base_offset for one in gate.windows] == [4000, 3000]
        before = {one.partition: one.base_offset for one in gate.windows}
        counts = [reader.count for reader in at_end]
        await until_async(
            lambda: all(reader.count > count + 100 for reader, count in zip(at_end, counts, strict=True)), "the end does not wait"
        )
        from_start = start_readers(broker, "t", "earliest")
        later = start_readers(broker, "t", "latest")
        wanted = sum(before.values())
        await until_async(lambda: all(reader.count == wanted for reader in from_start), "they come to the window")
        await until_async(lambda: all(reader.count > 100 for reader in later), "who begins at the end does not see the gate")
        assert all(reader.count == wanted for reader in from_start), "nobody passes an open window"

        refs = await asyncio.to_thread(upload, gate, files=3)
        filled = await gates.fill("t", "flood", refs)
        assert (filled.state, filled.rows, filled.files) == (GateState.FILLED, 7000, 6)
        assert await gates.fill("t", "flood", list(reversed(refs))) == filled
        await stop(writer)
        whole = read_all(broker, "t")
        total = sum(map(len, whole.values()))
        await until_async(lambda: all(reader.count == total for reader in from_start), "they read to the end")
        await stop(*at_end, *from_start, *later)
        history = expected(gate)
        for partition, log in whole.items():
            first = before[partition]
            assert log[first : first + len(history[partition])] == history[partition]
            assert [offset for offset, _ in log] == list(range(len(log)))
            ours = dict(history[partition])
            for reader in from_start:
                assert reader.seen[partition] == log, reader
            for reader in (*at_end, *later):
                shown = reader.seen[partition]
                assert shown == [one for one in log if one[0] >= shown[0][0] and one[0] not in ours], reader
        history_offsets = {partition: {offset for offset, _ in rows} for partition, rows in history.items()}
        live = {partition: [one for one in log if one[0] not in history_offsets[partition]] for partition, log in whole.items()}
        assert check_writer(writer.sent, live) == []


async def test_the_end_of_a_quiet_topic(make_broker: BrokerFactory) -> None:
    """No producer writes while a gate is open. In a topic with live records, a consumer at the end does not notice the gate. In a
    topic that only floods write to, it gets every flood."""
    broker = make_broker()
    await asyncio.to_thread(broker.start)

    def produce() -> None:
        records = [Record(partition=number, key=None, value=b"live", timestamp_ms=FIRST_MS) for number in range(PARTITIONS)]
        CLIENTS["confluent"].produce(broker.bootstrap, "t", records * 3)

    async with Admin(address(broker)) as admin, GateAdmin(address(broker)) as gates:
        await admin.create_topic("t", PARTITIONS)
        await admin.create_topic("floods", PARTITIONS)
        await asyncio.to_thread(produce)
        at_end = start_readers(broker, "t", "earliest")
        await until_async(lambda: all(reader.count == 6 for reader in at_end), "they come to the end")
        first = await gates.open("floods", [40, 30], gate_id="first")
        await gates.fill("floods", "first", await asyncio.to_thread(upload, first))
        followers = start_readers(broker, "floods", "earliest")
        await until_async(lambda: all(reader.count == 70 for reader in followers), "they come to the end")

        gate = await gates.open("t", [40, 30], gate_id="flood")
        await gates.fill("t", "flood", await asyncio.to_thread(upload, gate))
        second = await gates.open("floods", [4, 3], gate_id="second")
        await gates.fill("floods", "second", await asyncio.to_thread(upload, second))
        await asyncio.to_thread(produce)
        whole = await asyncio.to_thread(read_all, broker, "t")
        assert [len(log) for log in whole.values()] == [46, 36]
        live = {partition: [one for one in log if one[1] == b"live"] for partition, log in whole.items()}
        await until_async(lambda: all(reader.seen == live for reader in at_end), "they are shown the live records")
        floods = await asyncio.to_thread(read_all, broker, "floods")
        await until_async(lambda: all(reader.seen == floods for reader in followers), "they are shown both floods")
        await stop(*at_end, *followers)
        assert all(reader.seen == live for reader in at_end), "and nothing else"


async def test_a_topic_is_empty_at_first(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    await asyncio.to_thread(broker.start)
    async with Admin(address(broker)) as admin, GateAdmin(address(broker)) as gates:
        await admin.create_topic("t", PARTITIONS)
        from_start, at_end = start_readers(broker, "t", "earliest"), start_readers(broker, "t", "latest")
        await asyncio.sleep(1.5)  # each asks for its start offset, which the test cannot observe
        gate = await gates.open("t", [500, 0], gate_id="first", ttl_ms=600_000)
        assert [(one.base_offset, one.end_offset) for one in gate.windows] == [(0, 500), (0, 0)]
        assert watermarks(broker, "t", 0) == (0, 500)
        writer = await start_writer(broker, "t")
        await until_async(lambda: all(reader.seen[0] and reader.seen[1] for reader in at_end), "the end does not wait")
        assert all(not reader.seen[0] for reader in from_start)
        # A look-up by time finds present records, and does not wait for later ones.
        assert offset_at(broker, "t", 0, FIRST_MS) == 500
        await gates.fill("t", "first", await asyncio.to_thread(upload, gate, missing=100))
        assert offset_at(broker, "t", 0, FIRST_MS + 250) == 250
        await stop(writer)
        whole = read_all(broker, "t")
        assert [offset for offset, _ in whole[0][:401]] == [*range(400), 500], "rows that did not come are a gap"
        await until_async(lambda: all(reader.seen[0] == whole[0] for reader in from_start), "they step over the gap")
        await stop(*from_start, *at_end)
        for reader in at_end:
            assert reader.seen[0] == whole[0][400:]


async def test_released_and_expired_gates_are_stepped_over(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    await asyncio.to_thread(broker.start)
    async with Admin(address(broker)) as admin, GateAdmin(address(broker)) as gates:
        await admin.create_topic("t", PARTITIONS)
        first = await gates.open("t", [10, 10], gate_id="a")
        writer = await start_writer(broker, "t")
        second = await gates.open("t", [10, 10], gate_id="b")
        await stop(writer)
        from_start = start_readers(broker, "t", "earliest")
        released = await gates.release("t", "a")
        assert released.state is GateState.RELEASED and released.released_by == "asked"
        assert await gates.release("t", "a") == released
        with raises(InvalidError, Reason.GATE_CONFLICT):
            await gates.fill("t", "a", await asyncio.to_thread(upload, first))
        wanted = second.windows[0].base_offset + second.windows[1].base_offset - 20
        await until_async(lambda: all(reader.count == wanted for reader in from_start), "they step over the first")
        await gates.renew("t", "b", 1000)
        async with asyncio.timeout(PATIENCE_S):
            while (found := await gates.describe("t", "b")).state is not GateState.RELEASED:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert found.released_by == "expired"
        assert [(one.id, one.state) for one in await gates.list()] == [("a", GateState.RELEASED), ("b", GateState.RELEASED)]
        live = await asyncio.to_thread(read_all, broker, "t")
        await until_async(lambda: all(reader.seen == live for reader in from_start), "they step over the second")
        await stop(*from_start)
        # The id may be used again; the older gate is listed under another id.
        again = await gates.open("t", [3, 3], gate_id="a")
        assert again.windows[0].base_offset >= second.windows[0].end_offset
        assert sorted(one.id for one in await gates.list("t")) == ["a", "a~1", "b"]
        with pytest.raises(InvalidError, match="another file stands there"):
            await asyncio.to_thread(upload, again)
        await gates.fill("t", "a", await asyncio.to_thread(upload, again, attempt="1"))
        whole = await asyncio.to_thread(read_all, broker, "t")
        from_start = start_readers(broker, "t", "earliest")
        await until_async(lambda: all(reader.seen == whole for reader in from_start), "they read everything")
        assert [one for one in whole[0] if one[0] >= again.windows[0].base_offset] == expected(again)[0]
        await stop(*from_start)


async def test_older_history_goes_in_front(make_broker: BrokerFactory, tmp_path: Path) -> None:
    broker = make_broker()
    await asyncio.to_thread(broker.start)
    async with Admin(address(broker)) as admin, GateAdmin(address(broker)) as gates:
        await admin.create_topic("t", PARTITIONS, {"history.room": "1000"})
        with raises(InvalidError, Reason.INVALID_CONFIG):
            await admin.alter_topic_config("t", {"history.room": "5"})
        assert watermarks(broker, "t", 0) == (1000, 1000)
        writer = await start_writer(broker, "t")
        at_end = start_readers(broker, "t", "latest")
        await until_async(lambda: all(reader.count for reader in at_end), "they read")
        made: list[Gate] = []
        for name, rows in (("newer", [300, 300]), ("older", [700, 0])):
            gate = await gates.open("t", rows, gate_id=name, place=Place.FRONT)
            assert watermarks(broker, "t", 0)[0] == gate.windows[0].base_offset
            await gates.fill("t", name, await asyncio.to_thread(upload, gate))
            made.append(gate)
        assert [one.base_offset for one in made[1].windows] == [0, 700]
        with pytest.raises(InvalidError, match="no room in front"):
            await gates.open("t", [1, 0], gate_id="oldest", place=Place.FRONT)
        await stop(writer)
        whole = read_all(broker, "t")
        assert whole[0][:1000] == expected(made[1])[0] + expected(made[0])[0]
        assert [offset for offset, _ in whole[1][:301]] == list(range(700, 1001))
        await stop(*at_end)
        assert all(reader.seen[0][0][0] >= 1000 for reader in at_end)
        # After a restart everything is unchanged.
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        assert read_all(broker, "t") == whole
        assert await admin.delete_records("t", {0: 650}) == {0: 650}
        assert [offset for offset, _ in read_all(broker, "t")[0][:3]] == [650, 651, 652]


async def test_files_are_appended_where_the_layout_says(make_broker: BrokerFactory) -> None:
    broker = make_broker()
    broker.start()
    async with Admin(address(broker)) as admin, GateAdmin(address(broker)) as gates:
        await admin.create_topic("t", 1)
        place = await gates.layout("t")
        file = await asyncio.to_thread(
            write_extent, place.store_url, f"{place.prefix}partition=0/export.parquet", rows_of("e", 0, 0, 5), 0, 0
        )
        gate = await gates.publish("t", [file], gate_id="e")
    assert read_all(broker, "t", 1) == expected(gate)


async def test_hostile_calls(make_broker: BrokerFactory) -> None:
    """Whatever a call contains, the answer is a status with a reason, never `internal`, and the broker keeps serving."""
    broker = make_broker()
    await asyncio.to_thread(broker.start)
    draw = random.Random(7)
    async with Admin(address(broker)) as admin, GateAdmin(address(broker)) as gates:
        await admin.create_topic("t", PARTITIONS, {"history.room": "10"})
        await gates.open("t", [3, 3], gate_id="g")
        texts = ("", "t", "g", "h", "\u0130", "../..", "x" * 5000, "file:///etc/passwd", "topics/")
        numbers = (0, 1, 2, 3, -1, 7, 1 << 31, 1 << 62, -(1 << 63), (1 << 63) - 1)
        async with grpc.aio.insecure_channel(address(broker)) as channel:
            for _ in range(300):
                method = draw.choice(list(GATES.values()))
                request = method.request()
                _scramble(request, draw, texts, numbers)
                data = request.SerializeToString() if draw.random() < 0.9 else draw.randbytes(draw.randrange(40))
                try:
                    await channel.unary_unary(method.path)(data, timeout=PATIENCE_S)
                except grpc.aio.AioRpcError as error:
                    assert error.code() is not grpc.StatusCode.INTERNAL, (method.name, request, error.details())
                    assert "headgate-reason" in (error.trailing_metadata() or {}), (method.name, error)
        assert (await gates.describe("t", "g")).id == "g"
        assert await asyncio.to_thread(watermarks, broker, "t", 0)


def _scramble(message: Any, draw: random.Random, texts: Sequence[str], numbers: Sequence[int]) -> None:
    """Set fields of a message to invalid values."""
    for field in message.DESCRIPTOR.fields:
        count = draw.randrange(4) if field.is_repeated else draw.randrange(2)
        for _ in range(count):
            if field.message_type is not None:
                _scramble(
                    getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name), draw, texts, numbers
                )
                continue
            value: Any = draw.choice(texts if field.type == field.TYPE_STRING else numbers)
            if field.type in (field.TYPE_UINT32, field.TYPE_ENUM):
                value = abs(value) % (1 << 31)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
