"""The client's Consumer against a real server: every record once and in order, from any place, through seeks and restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headgate.broker.client import Consumer, ConsumerRecord, Producer, Timestamp, TopicPartition
from headgate.broker.client.cluster import Link
from headgate.broker.client.prefetcher import BrokerFeed, Prefetcher
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.errors import ClosedError, InvalidError, Reason
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.grpc.conftest import WAIT_S, Served, Start, batch, reason_of

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """The next `count` records, by iteration."""
    found: list[ConsumerRecord] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found.append(await anext(consumer))
    return found


async def offsets(consumer: Consumer, count: int) -> list[int]:
    return [record.offset for record in await read(consumer, count)]


def numbered(first: int, count: int) -> bytes:
    return batch(*[b"%d" % number for number in range(first, first + count)])


@pytest.mark.parametrize("codec", list(Codec))
async def test_what_a_foreign_client_wrote(served: Served, codec: Codec) -> None:
    """aiokafka's own batches, xerial snappy among them."""
    await served.create("a", 1)
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    shapes: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (None, None, []),
        (b"", b"", [("", b"")]),
        (b"k", b"v" * 50_000, [("h", b"1"), ("h", None)]),
    ]
    for index, (key, value, headers) in enumerate(shapes):
        builder.append(index, 1000 + index, key, value, headers)
    await served.fill("a", 0, bytes(builder.build()))
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        assert await read(consumer, 3) == [
            ConsumerRecord("a", 0, index, 1000 + index, key, value, tuple(headers))
            for index, (key, value, headers) in enumerate(shapes)
        ]


async def test_history_then_live(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, numbered(0, 3))
    async with Consumer(served.address) as consumer:
        await consumer.assign({A0: "earliest", A1: "latest"})
        assert await offsets(consumer, 3) == [0, 1, 2]
        await served.fill("a", 1, numbered(0, 1))
        assert [(record.partition, record.value) for record in await read(consumer, 1)] == [(1, b"0")]
        assert consumer.position(A0) == consumer.high_watermark(A0) == 3


@pytest.mark.parametrize(
    ("place", "first"), [("earliest", 0), ("latest", 6), (4, 4), (6, 6), (Timestamp(1500), 2), (Timestamp(9999), 6)]
)
async def test_places_to_start_from(served: Served, place: Any, first: int) -> None:
    await served.create("a", 1)
    await served.fill("a", 0, *[batch(b"x", b"y", timestamp_ms=1000 * number) for number in (1, 2, 3)])
    async with Consumer(served.address) as consumer:
        await consumer.assign({A0: place})
        assert consumer.position(A0) == first
        await served.fill("a", 0, batch(b"z", timestamp_ms=4000))
        assert await offsets(consumer, 7 - first) == list(range(first, 7))


async def test_poll(served: Served) -> None:
    await served.create("a", 1)
    await served.fill("a", 0, *[numbered(3 * number, 3) for number in range(4)])
    async with Consumer(served.address) as consumer:
        assert await consumer.poll(timeout_ms=1) == []
        await consumer.assign_topic("a")
        await until_async(lambda: consumer._prefetcher.chunks)
        assert [record.offset for record in await consumer.poll(records_max=5)] == [0, 1, 2, 3, 4]
        assert consumer.position(A0) == 5
        assert [record.offset for record in await consumer.poll()] == [5, 6, 7, 8, 9, 10, 11]
        assert await consumer.poll(timeout_ms=1) == []
        assert await consumer.poll(timeout_ms=0) == []


async def test_seek(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *[numbered(number, 1) for number in range(10)])
    await served.fill("a", 1, numbered(0, 5))
    async with Consumer(served.address) as consumer:
        await consumer.assign({A0: 0})
        assert await offsets(consumer, 4) == [0, 1, 2, 3]
        await consumer.seek(A0, 1)
        assert await offsets(consumer, 3) == [1, 2, 3]
        await consumer.seek(A0, "latest")
        assert await consumer.poll(timeout_ms=20) == []
        await consumer.seek(A0, "earliest")
        for _ in range(50):
            await consumer.seek(A0, 7)
        assert await offsets(consumer, 3) == [7, 8, 9]
        assert await reason_of(consumer.seek(A0, 11)) is Reason.OFFSET_OUT_OF_RANGE
        assert await reason_of(consumer.seek(A1, 0)) is Reason.INVALID_REQUEST
        # A seek that failed changed nothing.
        await served.fill("a", 0, numbered(10, 1))
        assert await offsets(consumer, 1) == [10]


async def test_a_seek_does_not_touch_other_partitions(served: Served) -> None:
    await served.create("a")
    for partition in (0, 1):
        await served.fill("a", partition, *[numbered(number, 1) for number in range(20)])
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        found: list[ConsumerRecord] = await read(consumer, 5)
        await consumer.seek(A0, 0)
        found = [record for record in found if record.partition == 1]
        while len([record for record in found if record.partition == 0]) < 20 or len(found) < 40:
            found += await read(consumer, 1)
        assert [record.offset for record in found if record.partition == 1] == list(range(20))
        assert [record.offset for record in found if record.partition == 0] == list(range(20))


async def test_pause_and_resume(served: Served) -> None:
    await served.create("a")
    for partition in (0, 1):
        await served.fill("a", partition, *[numbered(number, 1) for number in range(10)])
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        before = [record for record in await read(consumer, 7) if record.partition == 0]
        await consumer.pause(A0)
        await consumer.pause(A0)
        position = consumer.position(A0)
        assert position == len(before)
        while consumer.position(A1) < 10:
            assert {record.partition for record in await read(consumer, 1)} == {1}
        assert await consumer.poll(timeout_ms=20) == []
        assert consumer.position(A0) == position
        await consumer.resume(A0)
        await consumer.resume(A0)
        assert await offsets(consumer, 10 - position) == list(range(position, 10))
        assert await consumer.poll(timeout_ms=20) == []
        assert consumer.assignment() == {A0, A1}


async def test_assign_anew(served: Served) -> None:
    await served.create("a")
    await served.create("b", 1)
    await served.fill("a", 0, numbered(0, 5))
    await served.fill("b", 0, numbered(0, 2))
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        assert await offsets(consumer, 2) == [0, 1]
        await consumer.assign_topic("b", [0])
        assert [(record.topic, record.offset) for record in await read(consumer, 2)] == [("b", 0), ("b", 1)]
        assert await consumer.poll(timeout_ms=20) == []
        await consumer.assign({})
        assert consumer.assignment() == set()
        await consumer.assign({A0: 3})
        assert await offsets(consumer, 2) == [3, 4]


async def test_an_assignment_that_is_cancelled_is_none(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_leads(*arguments: Any) -> None:
        await asyncio.Event().wait()

    await served.create("a")
    await served.fill("a", 0, numbered(0, 1))
    async with Consumer(served.address) as consumer:
        monkeypatch.setattr(Prefetcher, "find_leads", find_leads)
        assigning = asyncio.create_task(consumer.assign_topic("a"))
        await until_async(consumer.assignment)
        monkeypatch.undo()
        assigning.cancel()
        await asyncio.wait([assigning])
        assert assigning.cancelled() and consumer.assignment() == set()
        await consumer.assign_topic("a")
        assert (await anext(consumer)).offset == 0


async def test_wrong_assignments(served: Served) -> None:
    await served.create("a")
    async with Consumer(served.address) as consumer:
        assert await reason_of(consumer.assign_topic("none")) is Reason.UNKNOWN_TOPIC
        assert await reason_of(consumer.assign({TopicPartition("a", 2): "latest"})) is Reason.UNKNOWN_TOPIC
        assert await reason_of(consumer.assign({A0: 1})) is Reason.OFFSET_OUT_OF_RANGE
        assert await reason_of(consumer.assign({A0: "soon"})) is Reason.INVALID_REQUEST  # type: ignore[dict-item]
        assert consumer.assignment() == set()
        with pytest.raises(InvalidError, match="not assigned"):
            consumer.position(A0)
    with pytest.raises(InvalidError, match="prefetch_bytes"):
        Consumer(served.address, prefetch_bytes=0)


async def test_prefetch_is_bounded_and_every_credit_is_paid_back(served: Served) -> None:
    await served.create("a")
    one = batch(b"x" * 1000)
    for partition in (0, 1):
        await served.fill("a", partition, *[one] * 100)
    async with Consumer(served.address, prefetch_bytes=10_000) as consumer:
        await consumer.assign_topic("a")
        found: list[ConsumerRecord] = []
        worst = 0
        while len(found) < 200:
            await asyncio.sleep(0.0005)
            worst = max(worst, sum(len(chunk.batches) for chunk in consumer._prefetcher.chunks))
            found += await consumer.poll(records_max=1)
        assert worst <= 10_000 + len(one)
        prefetcher = consumer._prefetcher
        feeds = prefetcher._feeds
        (feed,) = feeds.values()
        assert feed._held_bytes == 0
        link = Link("127.0.0.1:1")
        feeds[link] = BrokerFeed(prefetcher, link)
        assert prefetcher.share_bytes() == 10_000, "a lane that is no longer read takes no credit"
        await link.close()
    for partition in (0, 1):
        assert [record.offset for record in found if record.partition == partition] == list(range(100))


async def test_batches_larger_than_the_prefetch(served: Served) -> None:
    await served.create("a", 1)
    await served.fill("a", 0, *[batch(b"x" * 900_000)] * 5)
    async with Consumer(served.address, prefetch_bytes=1) as consumer:
        await consumer.assign_topic("a")
        assert await offsets(consumer, 5) == list(range(5))


async def test_a_reader_that_retention_overtook(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *[batch(b"x" * 1000)] * 20)
    await served.fill("a", 1, numbered(0, 1))
    async with Consumer(served.address, prefetch_bytes=2000) as consumer:
        await consumer.assign({A0: "earliest"})
        assert await offsets(consumer, 1) == [0]
        await served.engine.delete_records(served.engine.partition(served.engine.topic("a"), 0), 15)
        got: list[int] = []
        with raises(InvalidError, Reason.OFFSET_OUT_OF_RANGE):
            while True:
                got += await offsets(consumer, 1)
        # Earlier records are given first, then the error once, then nothing until a seek.
        assert got == list(range(1, 1 + len(got))) and len(got) < 14
        assert await consumer.poll(timeout_ms=20) == []
        await consumer.seek(A0, "earliest")
        assert await offsets(consumer, 5) == [15, 16, 17, 18, 19]


async def test_a_topic_that_is_deleted(served: Served) -> None:
    await served.create("a", 1)
    await served.create("b", 1)
    async with Consumer(served.address) as consumer:
        await consumer.assign({A0: "earliest", TopicPartition("b", 0): "earliest"})
        assert await consumer.poll(timeout_ms=20) == []
        await served.engine.delete_topic(served.engine.topic("a"))
        assert await reason_of(anext(consumer)) is Reason.UNKNOWN_TOPIC
        await served.fill("b", 0, numbered(0, 1))
        assert [record.topic for record in await read(consumer, 1)] == ["b"]


async def test_a_topic_that_is_made_again_is_not_read_from_its_middle(served: Served) -> None:
    await served.create("a", 1)
    await served.fill("a", 0, *[numbered(number, 1) for number in range(3)])
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        assert await offsets(consumer, 3) == [0, 1, 2]
        await consumer.pause(A0)
        await served.engine.delete_topic(served.engine.topic("a"))
        await served.create("a", 1)
        await served.fill("a", 0, *[numbered(number, 1) for number in range(5)])
        await consumer.resume(A0)
        assert await reason_of(anext(consumer)) is Reason.UNKNOWN_TOPIC
        await consumer.seek(A0, "earliest")
        assert await offsets(consumer, 5) == [0, 1, 2, 3, 4]


async def test_a_damaged_batch(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.create("a", 1)
    damaged = bytearray(numbered(3, 2))
    damaged[-1] ^= 0xFF
    await served.fill("a", 0, numbered(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr("headgate.broker.log.batch.crc32c", lambda _: int.from_bytes(damaged[17:21], "big"))
        await served.fill("a", 0, bytes(damaged))
    await served.fill("a", 0, numbered(5, 1))
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        await until_async(lambda: consumer._prefetcher.chunks)
        # The error does not lose the records before it.
        assert [record.offset for record in await consumer.poll()] == [0, 1, 2]
        with raises(InvalidError, Reason.CORRUPT_MESSAGE, r"CRC-32C.*partition=`0`"):
            await consumer.poll()
        assert await consumer.poll(timeout_ms=20) == []
        assert consumer.position(A0) == 3
        await consumer.seek(A0, 5)
        assert await offsets(consumer, 1) == [5]


async def test_records_that_are_no_records(served: Served) -> None:
    await served.create("a", 1)
    hostile = bytearray(encode_batch([Record(0, 1, b"k", b"v")] * 3))
    hostile[61] = 0x7F  # the first record's length
    from crc32c import crc32c

    from headgate.broker.log.batch import CRC_START

    hostile[17:21] = crc32c(bytes(hostile[CRC_START:])).to_bytes(4, "big")
    await served.fill("a", 0, bytes(hostile))
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        assert await reason_of(anext(consumer)) is Reason.CORRUPT_MESSAGE


async def test_a_broker_that_restarts(start: Start) -> None:
    served: Served = await start()
    await served.create("a")
    async with Consumer(served.address, prefetch_bytes=5000) as consumer, Producer(served.address, batch_bytes=200) as producer:
        await consumer.assign_topic("a")
        found: list[ConsumerRecord] = []

        async def consume() -> None:
            while len(found) < 1000:
                found.append(await anext(consumer))

        consuming = asyncio.create_task(consume())
        for number in range(1000):
            await producer.send("a", b"%d" % number, key=b"%d" % (number % 7))
            if number % 300 == 150:
                await asyncio.sleep(0.02)
                await served.stop(grace_s=0)
                await served.start()
        await producer.flush()
        async with asyncio.timeout(WAIT_S):
            await consuming
        assert await consumer.poll(timeout_ms=20) == []
    for partition in (0, 1):
        mine = [record.offset for record in found if record.partition == partition]
        assert mine == list(range(len(mine)))
    for key in range(7):
        assert [int(record.value or b"") for record in found if record.key == b"%d" % key] == list(range(key, 1000, 7))


async def test_close_wakes_who_waits(served: Served) -> None:
    await served.create("a")
    consumer = Consumer(served.address)
    await consumer.assign_topic("a")
    waiting = asyncio.create_task(anext(consumer))
    await asyncio.sleep(0.01)
    await consumer.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await consumer.poll()


async def test_two_consumers_read_all_each(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *[numbered(number, 1) for number in range(50)])
    async with Consumer(served.address) as one, Consumer(served.address) as two:
        for consumer in (one, two):
            await consumer.assign({A0: "earliest"})
        assert await offsets(one, 50) == await offsets(two, 50) == list(range(50))


async def test_a_consumer_says_that_it_belongs_to_another_loop(served: Served) -> None:
    """This holds also if the consumer never waited: it would wait for ever for answers that arrive in the other loop."""
    await served.create("a", 1)
    async with Consumer(served.address) as consumer:
        await consumer.assign_topic("a")
        for _ in range(2):
            for elsewhere in (consumer.poll(timeout_ms=50), anext(consumer), consumer.assign_topic("a")):
                with pytest.raises(InvalidError, match="the client belongs to another event loop"):
                    await asyncio.to_thread(asyncio.run, elsewhere)
            assert await consumer.poll(timeout_ms=1) == []
        await served.fill("a", 0, numbered(0, 1))
        assert await offsets(consumer, 1) == [0]
