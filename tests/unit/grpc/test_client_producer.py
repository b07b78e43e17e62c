"""The client's Producer against a real server: acked records are in the log once, in order, in the partition that Kafka's client
picks."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from kafka.partitioner.default import murmur2

from headgate.broker.client import Admin, Delivery, Producer
from headgate.broker.client.sender import Batch
from headgate.broker.client.sequencing import IN_FLIGHT_MAX
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.log.batch import CODEC_MASK, parse_header
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import ClosedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.server.grpc.publish import Publisher
from tests.support.waiting import until_async
from tests.unit.grpc.conftest import HeldWal, Served, Start, reason_of


async def records(served: Served, topic: str, partition: int) -> list[Record]:
    return [record for view in await served.batches(topic, partition) for record in iter_records(view)]


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_shape_of_record(served: Served, codec: Codec) -> None:
    await served.create("a", 1)
    shapes: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]] = [
        (None, None, (), 0),
        (b"", b"", (("", b""),), 1),
        (b"key", b"value" * 1000, (("h", b"1"), ("h", None), ("ü", b"\xff")), 1_700_000_000_000),
        (b"\x00" * 300, None, (), 5),
    ]
    async with Producer(served.address, compression=codec.name.lower()) as producer:
        futures = [
            await producer.send("a", value, key=key, headers=headers, timestamp_ms=timestamp)
            for key, value, headers, timestamp in shapes
        ]
        await producer.flush()
        assert [await future for future in futures] == [Delivery("a", 0, offset, shape[3]) for offset, shape in enumerate(shapes)]
    assert await records(served, "a", 0) == [
        Record(offset, timestamp, key, value, headers) for offset, (key, value, headers, timestamp) in enumerate(shapes)
    ]
    assert {parse_header(view).attributes & CODEC_MASK for view in await served.batches("a", 0)} == {codec}


async def test_keys_go_where_kafkas_client_puts_them(served: Served) -> None:
    await served.create("a", 7)
    keys = [b"key-%d" % number for number in range(200)]
    async with Producer(served.address) as producer:
        futures = [await producer.send("a", b"v", key=key) for key in keys]
        await producer.flush()
        found = [(await future).partition for future in futures]
    assert found == [(murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]


async def test_without_keys_batches_take_turns(served: Served) -> None:
    await served.create("a", 3)
    async with Producer(served.address, batch_bytes=2000) as producer:
        futures = [await producer.send("a", b"x" * 100) for _ in range(600)]
        await producer.flush()
        found = [(await future).partition for future in futures]
    assert {found.count(partition) // 100 for partition in range(3)} <= {1, 2}
    # The partitions change in runs: each batch is filled before the next partition's turn.
    assert sum(left != right for left, right in pairwise(found)) < 60


async def test_order_and_batching(served: Served) -> None:
    await served.create("a", 1)
    async with Producer(served.address, batch_bytes=1000) as producer:
        for number in range(500):
            await producer.send("a", b"%d" % number)
    assert [record.value for record in await records(served, "a", 0)] == [b"%d" % number for number in range(500)]
    sizes = [len(view) for view in await served.batches("a", 0)]
    assert max(sizes) <= 1000 + 61
    headers = [parse_header(view) for view in await served.batches("a", 0)]
    assert len({header.producer_id for header in headers}) == 1
    assert [header.base_sequence for header in headers] == [header.base_offset for header in headers]


async def test_linger_gathers_and_flush_does_not_wait_for_it(served: Served) -> None:
    await served.create("a", 1)
    async with Producer(served.address, linger_ms=60_000) as producer:
        futures = [await producer.send("a", b"x") for _ in range(10)]
        await asyncio.sleep(0.02)
        assert not any(future.done() for future in futures)
        await producer.flush()
        assert all(future.done() for future in futures)
    assert len(await served.batches("a", 0)) == 1


async def test_timestamps(served: Served) -> None:
    await served.create("a", 1)
    await served.create("b", 1, message_timestamp_type="LogAppendTime")
    clock = ManualClock()
    async with Producer(served.address, clock=clock) as producer:
        first = await producer.send_and_wait("a", b"x")
        clock.advance(5)
        second = await producer.send_and_wait("a", b"x")
        third = await producer.send_and_wait("b", b"x", timestamp_ms=1)
    assert (first.timestamp_ms, second.timestamp_ms) == (clock.now_ms() - 5, clock.now_ms())
    assert third.timestamp_ms == (await records(served, "b", 0))[0].timestamp_ms > clock.now_ms()


async def test_send_waits_while_the_buffer_is_full(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.create("a", 1)
    held = HeldWal(served, monkeypatch)
    async with Producer(served.address, buffer_bytes=10_000, batch_bytes=2000, linger_ms=0) as producer:
        sent = 0

        async def send() -> None:
            nonlocal sent
            for number in range(100):
                await producer.send("a", b"%3d" % number + bytes(500))
                sent += 1

        sending = asyncio.create_task(send())
        await until_async(lambda: held.callbacks and sent >= 10)
        await asyncio.sleep(0.05)
        assert sent <= 13
        while not sending.done():
            held.release()
            await asyncio.sleep(0.001)
        monkeypatch.undo()
        held.release()
    assert [(record.value or b"")[:3] for record in await records(served, "a", 0)] == [b"%3d" % number for number in range(100)]


async def test_a_send_that_is_cancelled_hands_nothing_over(served: Served) -> None:
    await served.create("a", 1)
    sent = [b"first"]
    async with Producer(served.address, batch_bytes=1, buffer_bytes=1000) as producer:
        # From here on the topic is known: a `send` that runs for two turns of the loop hands its record over.
        await producer.send_and_wait("a", b"first")
        for number in range(50):
            value = b"%d" % number
            sending = asyncio.create_task(producer.send("a", value))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sent.append(value)
    assert 1 < len(sent) < 50
    assert [record.value for record in await records(served, "a", 0)] == sent


async def test_many_tasks_share_a_producer(served: Served) -> None:
    await served.create("a", 2)
    async with Producer(served.address, buffer_bytes=5000, batch_bytes=1000) as producer:

        async def send(task: int) -> None:
            for number in range(50):
                await producer.send("a", b"%d" % number, key=b"%d" % task)

        await asyncio.gather(*(send(task) for task in range(10)))
    found = [record for partition in (0, 1) for record in await records(served, "a", partition)]
    for task in range(10):
        assert [record.value for record in found if record.key == b"%d" % task] == [b"%d" % number for number in range(50)]


async def test_wrong_records(served: Served) -> None:
    await served.create("a", 2)
    async with Producer(served.address) as producer:
        assert await reason_of(producer.send("none", b"x")) is Reason.UNKNOWN_TOPIC
        assert await reason_of(producer.send("a", b"x", partition=2)) is Reason.UNKNOWN_TOPIC
        assert await reason_of(producer.send("a", bytes(65 << 20))) is Reason.MESSAGE_TOO_LARGE
        wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            (("a", "text"), {}),
            (("a", b"x"), {"key": "text"}),
            (("a", b"x"), {"partition": -1}),
            (("a", b"x"), {"partition": "0"}),
            (("a", b"x"), {"timestamp_ms": -1}),
            (("a", b"x"), {"timestamp_ms": 1.5}),
            (("a", b"x"), {"headers": [("h", "text")]}),
            (("a", b"x"), {"headers": [(b"h", b"x")]}),
            (("a", b"x"), {"headers": ["h"]}),
            (("a", b"x"), {"headers": [("\ud800", b"x")]}),
            (("a", b"x"), {"partition": True}),
            ((b"a", b"x"), {}),
        ]
        for positional, named in wrong:
            assert await reason_of(producer.send(*positional, **named)) is Reason.INVALID_REQUEST
        await producer.send_and_wait("a", b"x")


async def test_a_bug_fails_what_waits_and_what_comes_after(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(*arguments: Any) -> bytes:
        raise ZeroDivisionError

    await served.create("a")
    async with Producer(served.address) as producer:
        monkeypatch.setattr(Batch, "encode", encode)
        for _ in range(2):
            with pytest.raises(HeadgateError, match="ZeroDivisionError"):
                await producer.send_and_wait("a", b"x")


@pytest.mark.parametrize("setting", ["linger_ms", "batch_bytes", "buffer_bytes", "delivery_timeout_ms"])
def test_wrong_settings(setting: str) -> None:
    with pytest.raises(InvalidError, match=setting):
        Producer("localhost:1", **{setting: -1})
    with pytest.raises(InvalidError, match="brotli"):
        Producer("localhost:1", compression="brotli")


async def test_a_record_that_is_too_large_fails_alone(served: Served) -> None:
    await served.create("a", 1, max_message_bytes="1000")
    async with Producer(served.address) as producer:
        futures = [await producer.send("a", bytes(size)) for size in (10, 5000, 20, 2000, 30)]
        with pytest.raises(InvalidError) as caught:
            await producer.flush()
        assert caught.value.reason is Reason.MESSAGE_TOO_LARGE
        await producer.flush()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert [getattr(outcome, "offset", None) for outcome in outcomes] == [0, None, 1, None, 2]


async def test_an_error_that_was_seen_is_not_raised_again(served: Served) -> None:
    await served.create("a", 1, max_message_bytes="1000")
    async with Producer(served.address) as producer:
        assert await reason_of(producer.send_and_wait("a", bytes(5000))) is Reason.MESSAGE_TOO_LARGE
        future = await producer.send("a", bytes(5000))
        await asyncio.wait([future])
        await producer.flush()
        future.exception()


async def test_records_that_the_broker_refuses_do_not_stop_those_behind_them(served: Served) -> None:
    await served.create("a", 1, message_timestamp_after_max_ms="1000")
    async with Producer(served.address, batch_bytes=1) as producer:
        futures = []
        for number in range(40):
            timestamp = 2**50 if number % 7 == 3 else 1000
            futures.append(await producer.send("a", b"%d" % number, timestamp_ms=timestamp))
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
    good = [number for number in range(40) if number % 7 != 3]
    assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Delivery)] == good
    assert [record.value for record in await records(served, "a", 0)] == [b"%d" % number for number in good]
    assert {outcome.reason for outcome in outcomes if isinstance(outcome, InvalidError)} == {Reason.INVALID_TIMESTAMP}


async def test_a_broker_that_has_not_heard_of_a_new_topic(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, leads = await start(broker_id=1), await start(broker_id=2)
    other = Incarnation(
        id=leads.engine.incarnation_id, broker_id=2, leader_epoch=1, opened_ms=0, host="127.0.0.1", grpc_port=leads.port
    )
    monkeypatch.setattr(asked.engine, "brokers", lambda: [other])
    await leads.create("a", 1)
    async with Producer(asked.address) as producer:
        assert (await producer.send_and_wait("a", b"x")).offset == 0
        assert await reason_of(producer.send("b", b"x")) is Reason.UNKNOWN_TOPIC
        await leads.stop()
        assert await reason_of(producer.send("b", b"x")) is Reason.UNKNOWN_TOPIC
        await leads.start()


async def test_a_lead_that_has_not_heard_of_a_new_topic(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0

    def partition(publisher: Publisher, topic: str, number: int) -> PartitionLog:
        nonlocal refused
        refused += 1
        monkeypatch.undo()
        raise InvalidError(Reason.UNKNOWN_TOPIC, "topic does not exist")

    await served.create("a", 1)
    monkeypatch.setattr(Publisher, "_partition", partition)
    async with Producer(served.address) as producer:
        assert (await producer.send_and_wait("a", b"x")).offset == 0
    assert refused == 1


async def test_a_deleted_topic_fails_its_records(served: Served) -> None:
    await served.create("a", 1)
    async with Producer(served.address) as producer:
        await producer.send_and_wait("a", b"x")
        await served.engine.delete_topic(served.engine.topic("a"))
        assert await reason_of(producer.send_and_wait("a", b"x")) is Reason.UNKNOWN_TOPIC


async def test_a_topic_that_is_made_again_with_fewer_partitions(served: Served) -> None:
    await served.create("a", 8)
    keys = [b"%d" % number for number in range(20)]
    async with Producer(served.address) as producer:
        await asyncio.gather(*[producer.send_and_wait("a", b"x", key=key) for key in keys])
        await served.engine.delete_topic(served.engine.topic("a"))
        await served.create("a", 1)
        # Some go to partitions that no longer exist; from their errors the producer learns the new topic.
        await asyncio.gather(*[producer.send_and_wait("a", b"y", key=key) for key in keys], return_exceptions=True)
        await asyncio.gather(*[producer.send_and_wait("a", b"z", key=key) for key in keys])
    assert [record.key for record in await records(served, "a", 0) if record.value == b"z"] == keys


async def test_new_partitions_are_found(served: Served) -> None:
    await served.create("a", 1)
    async with Producer(served.address) as producer:
        await producer.send_and_wait("a", b"x")
        await served.engine.create_partitions(served.engine.topic("a"), 3)
        assert (await producer.send_and_wait("a", b"x", partition=2)).partition == 2


async def test_a_broker_that_restarts(start: Start) -> None:
    served: Served = await start()
    await served.create("a", 2)
    async with Producer(served.address, batch_bytes=500, linger_ms=1) as producer:
        futures: list[asyncio.Future[Delivery]] = []

        async def send() -> None:
            for number in range(2000):
                futures.append(await producer.send("a", b"%d" % number, key=b"%d" % (number % 5)))
                if number % 50 == 0:
                    await asyncio.sleep(0.001)

        sending = asyncio.create_task(send())
        for _ in range(3):
            await asyncio.sleep(0.02)
            await served.stop(grace_s=0)
            await served.start()
        await sending
        await producer.flush()
        deliveries = [await future for future in futures]
    found = {partition: await records(served, "a", partition) for partition in (0, 1)}
    assert sum(map(len, found.values())) == 2000
    for number, delivery in enumerate(deliveries):
        assert found[delivery.partition][delivery.offset].value == b"%d" % number
    for key in range(5):
        mine = [int(record.value or b"") for rows in found.values() for record in rows if record.key == b"%d" % key]
        assert mine == list(range(key, 2000, 5))


async def test_a_store_that_refuses_for_a_while(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.create("a", 1)
    append = served.engine.append
    refusals = iter([True, False, True, True, False, False, True] + [False] * 1000)

    def sometimes(*arguments: Any, **named: Any) -> Any:
        if next(refusals):
            raise RetryError(Reason.STORE_UNAVAILABLE, "not now")
        return append(*arguments, **named)

    monkeypatch.setattr(served.engine, "append", sometimes)
    async with Producer(served.address, batch_bytes=1) as producer:
        for number in range(30):
            await producer.send("a", b"%d" % number)
    assert [record.value for record in await records(served, "a", 0)] == [b"%d" % number for number in range(30)]


async def test_no_more_is_in_flight_than_the_broker_remembers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.create("a", 1)
    async with Producer(served.address, batch_bytes=1) as producer:
        await producer.send_and_wait("a", b"first")
        held = HeldWal(served, monkeypatch)
        for number in range(20):
            await producer.send("a", b"%d" % number)
        await until_async(lambda: len(held.callbacks) >= IN_FLIGHT_MAX)
        await asyncio.sleep(0.02)
        assert len(held.callbacks) == IN_FLIGHT_MAX
        monkeypatch.undo()
        held.release()


async def test_records_fail_when_their_time_is_over(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.create("a", 1)
    held = HeldWal(served, monkeypatch)
    async with Producer(served.address, delivery_timeout_ms=100) as producer:
        with pytest.raises(RetryError) as caught:
            await producer.send_and_wait("a", b"x")
        assert caught.value.reason is Reason.TIMED_OUT
        assert "delivery_timeout_ms=`100`" in caught.value.message
        monkeypatch.undo()
        held.release()


async def test_records_fail_when_nobody_answers(served: Served) -> None:
    await served.create("a", 1)
    async with Producer(served.address, delivery_timeout_ms=400) as producer:
        with suppress(RetryError):  # a busy machine may ack later than that
            await producer.send_and_wait("a", b"x")
        await served.stop()
        future = await producer.send("a", b"y")
        with pytest.raises(RetryError, match="not acked in time"):
            await future
    await served.start()


async def test_close_sends_what_waits_and_ends_it(served: Served) -> None:
    await served.create("a", 1)
    producer = Producer(served.address, linger_ms=60_000)
    future = await producer.send("a", b"x")
    await producer.close()
    assert future.done() and (await future).offset == 0
    with pytest.raises(ClosedError):
        await producer.send("a", b"y")
    await producer.close()


async def test_an_error_of_the_caller_does_not_wait(served: Served) -> None:
    await served.create("a", 1)
    future: asyncio.Future[Delivery] | None = None
    with pytest.raises(ZeroDivisionError):
        async with Producer(served.address, linger_ms=60_000) as producer:
            future = await producer.send("a", b"x")
            raise ZeroDivisionError
    assert future is not None
    with pytest.raises(ClosedError):
        await future


async def test_a_producer_that_never_sent(served: Served) -> None:
    async with Producer(served.address) as producer:
        await producer.flush()


async def test_a_client_says_that_it_belongs_to_another_loop(served: Served) -> None:
    """The client raises at once, instead of waiting for ever for answers that arrive in the other loop."""
    await served.create("a", 1)
    async with Producer(served.address) as producer, Admin(served.address) as admin:
        await producer.send_and_wait("a", b"here")
        await admin.list_topics()
        for elsewhere in (producer.send("a", b"there"), admin.list_topics()):
            with pytest.raises(InvalidError, match="the client belongs to another event loop"):
                await asyncio.to_thread(asyncio.run, elsewhere)
    assert [record.value for record in await records(served, "a", 0)] == [b"here"]


async def test_a_forgotten_producer_warns_of_what_it_did_not_send(served: Served) -> None:
    await served.create("a", 1)
    script = (
        "import asyncio, sys\n"
        "from headgate.broker.client import Producer\n"
        "async def forget():\n"
        "    forgotten, done = Producer(sys.argv[1], linger_ms=60_000), Producer(sys.argv[1])\n"
        "    await done.send_and_wait('a', b'acked')\n"
        "    await forgotten.send('a', b'lost')\n"
        "asyncio.run(forget())\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "always", "-c", script, served.address, stderr=asyncio.subprocess.PIPE
    )
    _, said = await child.communicate()
    assert said.decode().count("ResourceWarning: producer was never closed, and records that were not acked may be lost.") == 1
