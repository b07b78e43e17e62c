"""Publish: cumulative acks with the right offsets, errors of single batches, back-pressure, and the end of a stream."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from headgate.broker.log.batch import crc_matches, parse_header
from headgate.broker.runtime.errors import ClosedError, Reason
from headgate.broker.wire.grpc.headgate.v1 import log_pb2 as pb
from tests.support.waiting import until_async
from tests.unit.grpc.conftest import WAIT_S, HeldWal, RawStream, Served, Start, batch


def request(sequence: int, data: bytes, topic: str = "a", partition: int = 0, **options: int) -> pb.PublishRequest:
    message = pb.PublishRequest(sequence=sequence, topic=topic, partition=partition, batch=data)
    if options:
        message.options.CopyFrom(pb.PublishOptions(**options))
    return message


def acked(responses: list[pb.PublishResponse]) -> list[int]:
    """The base offsets of all responses, in the order of the batches; checks that the numbering has no gap."""
    offsets: list[int] = []
    for response in responses:
        offsets += response.base_offsets
        assert response.acked_sequence == len(offsets)
    return offsets


async def publishing(served: Served, **config: str) -> RawStream:
    """A stream of batches, and the topic `a`."""
    await served.create("a", **config)
    return served.stream("Log.Publish")


async def test_offsets_of_two_partitions(served: Served) -> None:
    stream = await publishing(served)
    await stream.write(request(1, batch(b"1", b"2")))
    # Without a topic, the message uses the topic of the previous one.
    await stream.write(request(2, batch(b"3"), topic="", partition=1))
    await stream.write(request(3, batch(b"4"), topic=""))
    assert acked(await stream.rest()) == [0, 0, 2]
    batches = await served.batches("a", 0)
    assert [parse_header(view).base_offset for view in batches] == [0, 2]
    assert all(crc_matches(view) for view in batches)


async def test_acks_come_while_the_stream_is_open(served: Served) -> None:
    stream = await publishing(served)
    for sequence in range(1, 4):
        await stream.write(request(sequence, batch(b"x")))
        response = await stream.read()
        assert (response.acked_sequence, list(response.base_offsets)) == (sequence, [sequence - 1])
    assert await stream.rest() == []


async def test_acks_every_n_batches(served: Served) -> None:
    stream = await publishing(served)
    for sequence in range(1, 8):
        await stream.write(request(sequence, batch(b"x"), ack_batches=3))
    responses = await stream.rest()
    assert acked(responses) == list(range(7))
    # All but the last batch, which the end of the stream sent.
    assert all(len(response.base_offsets) >= 3 for response in responses[:-1])


async def test_acks_every_t_ms(served: Served) -> None:
    stream = await publishing(served)
    await stream.write(request(1, batch(b"x"), ack_batches=1000, ack_interval_ms=1))
    assert (await stream.read()).acked_sequence == 1
    await stream.write(request(2, batch(b"x")))
    assert (await stream.read()).acked_sequence == 2


async def test_a_batch_that_is_refused_leaves_the_stream_alive(served: Served) -> None:
    await served.create("a", max_message_bytes="1000")
    damaged = bytearray(batch(b"x"))
    damaged[-1] ^= 1
    stream = served.stream("Log.Publish")
    for sequence, (data, topic, partition) in enumerate(
        [
            (batch(b"x"), "a", 0),
            (bytes(damaged), "a", 0),
            (b"", "a", 0),
            (b"garbage" * 20, "a", 0),
            (batch(b"x" * 1000), "a", 0),
            (batch(b"x") + batch(b"y"), "a", 0),
            (batch(b"x"), "none", 0),
            (batch(b"x"), "a", 2),
            (batch(b"x"), "a", 2**32 - 1),
            (batch(b"x"), "__consumer_offsets", 0),
            (batch(b"x"), "a", 0),
        ],
        start=1,
    ):
        await stream.write(request(sequence, data, topic, partition))
    responses = await stream.rest()
    assert acked(responses) == [0, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1]
    failures = {failure.sequence: failure.error for response in responses for failure in response.failures}
    assert {sequence: error.reason for sequence, error in failures.items()} == {
        2: "corrupt_message",
        3: "invalid_record",
        4: failures[4].reason,
        5: "message_too_large",
        6: "invalid_record",
        7: "unknown_topic",
        8: "unknown_topic",
        9: "unknown_topic",
        10: "invalid_topic",
    }
    assert failures[4].reason in ("corrupt_message", "unsupported_message_format")
    assert not any(error.retriable for error in failures.values())


async def test_a_batch_sent_twice_is_written_once(served: Served) -> None:
    await served.create("a")
    producer = (await served.call("Log.InitProducer", pb.InitProducerRequest())).producer_id
    other = (await served.call("Log.InitProducer", pb.InitProducerRequest())).producer_id
    assert producer != other
    first = batch(b"1", b"2", producer_id=producer, producer_epoch=0, base_sequence=0)
    second = batch(b"3", producer_id=producer, producer_epoch=0, base_sequence=2)
    stream = served.stream("Log.Publish")
    for sequence, data in enumerate((first, second, first, second), start=1):
        await stream.write(request(sequence, data))
    await stream.write(request(5, batch(b"5", producer_id=producer, producer_epoch=0, base_sequence=9)))
    responses = await stream.rest()
    assert acked(responses) == [0, 2, 0, 2, -1]
    assert [failure.error.reason for response in responses for failure in response.failures] == ["out_of_order_sequence"]
    assert len(await served.batches("a", 0)) == 2


async def test_the_brokers_time_comes_with_the_ack(served: Served) -> None:
    await served.create("a", message_timestamp_type="LogAppendTime")
    await served.create("b")
    stream = served.stream("Log.Publish")
    await stream.write(request(1, batch(b"x"), "a", ack_batches=1000))
    await stream.write(request(2, batch(b"x"), "b"))
    (response,) = await stream.rest()
    given = parse_header((await served.batches("a", 0))[0]).max_timestamp
    assert list(response.append_times_ms) == [given, -1]
    stream = served.stream("Log.Publish")
    await stream.write(request(1, batch(b"x"), "b"))
    assert list((await stream.rest())[0].append_times_ms) == []


async def test_a_deleted_topic_and_its_successor(served: Served) -> None:
    stream = await publishing(served)
    await stream.write(request(1, batch(b"x")))
    assert (await stream.read()).base_offsets == [0]
    await served.engine.delete_topic(served.engine.topic("a"))
    await stream.write(request(2, batch(b"x")))
    assert (await stream.read()).failures[0].error.reason == "unknown_topic"
    await served.create("a")
    await stream.write(request(3, batch(b"x")))
    assert (await stream.read()).base_offsets == [0]


@pytest.mark.parametrize(
    "message",
    [
        request(2, batch(b"x")),
        request(0, batch(b"x")),
        request(2**64 - 1, batch(b"x")),
        b"\xff\xff",
        b"\x7a\xff\xff\xff\xff\x0f",
        request(1, batch(b"x"), ack_interval_ms=10_001),
    ],
)
async def test_what_ends_a_stream(served: Served, message: Any) -> None:
    stream = await publishing(served)
    await stream.write(message)
    code, reason, _ = await stream.status()
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


async def test_what_came_before_a_mistake_is_acked(served: Served) -> None:
    stream = await publishing(served)
    await stream.write(request(1, batch(b"x"), ack_batches=1000))
    await stream.write(request(7, batch(b"x")))
    assert (await stream.read()).acked_sequence == 1
    assert (await stream.status())[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_first_batch_without_bytes(served: Served) -> None:
    stream = await publishing(served)
    await stream.write(request(1, b""))
    response = await stream.read()
    assert [failure.error.reason for failure in response.failures] == ["invalid_record"]
    await stream.write(request(2, batch(b"x")))
    assert list((await stream.read()).base_offsets) == [0]


async def test_a_bug_ends_the_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(*arguments: Any, **more: Any) -> Any:
        raise ZeroDivisionError

    stream = await publishing(served)
    monkeypatch.setattr(served.engine, "append", append)
    await stream.write(request(1, batch(b"x")))
    assert (await stream.status())[0] is grpc.StatusCode.INTERNAL


async def test_an_empty_stream(served: Served) -> None:
    assert await served.stream("Log.Publish").rest() == []


async def test_nothing_is_acked_before_it_is_durable_and_reading_stops(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Served = await start(connection_inflight_bytes_max=64 << 10)
    await served.create("a")
    held = HeldWal(served, monkeypatch)
    stream = served.stream("Log.Publish")
    data = batch(b"x" * 16_000)

    async def send() -> None:
        for sequence in range(1, 101):
            await stream.write(request(sequence, data))

    sending = asyncio.create_task(send())
    await until_async(lambda: len(held.callbacks) == 5)
    await asyncio.sleep(0.05)
    # 4 batches do not fill 64 KiB, the fifth overdraws it, and the server reads no more.
    assert len(held.callbacks) == 5
    log = served.engine.partition(served.engine.topic("a"), 0)
    offsets: list[int] = []
    while len(offsets) < 100:
        assert log.next_offset - len(offsets) <= 5
        held.release()
        response = await stream.read()
        offsets += response.base_offsets
        expected = min(len(offsets) + 5, 100)
        await until_async(lambda expected=expected: log.next_offset == expected)
    assert offsets == list(range(100))
    await sending
    assert await stream.rest() == []
    await until_async(lambda: served.budget.used_bytes == 0)


async def test_acks_come_before_their_number_where_no_more_is_read(start: Start) -> None:
    served: Served = await start(connection_inflight_bytes_max=64 << 10)
    stream = await publishing(served)
    data = batch(b"x" * 16_000)
    async with asyncio.timeout(WAIT_S):
        for sequence in range(1, 101):
            await stream.write(request(sequence, data, ack_batches=1000))
    responses: list[pb.PublishResponse] = []
    while len(acked(responses)) < 95:  # five fill the stream's budget, so the last ones may wait
        responses.append(await stream.read())
    assert acked(responses + await stream.rest()) == list(range(100))


async def test_acks_keep_the_order_of_the_stream(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `ack=replicated` a later batch may be safe before an earlier one of another topic."""
    served: Served = await start()
    await served.create("a")
    held = HeldWal(served, monkeypatch)
    stream = served.stream("Log.Publish")
    for sequence in (1, 2, 3):
        await stream.write(request(sequence, batch(b"x")))
    await until_async(lambda: len(held.callbacks) == 3)
    first, second, third = held.callbacks
    third(None)
    second(None)
    reading = asyncio.create_task(stream.read())
    await asyncio.sleep(0.05)
    assert not reading.done()
    first(None)
    answers = [await reading, *await stream.rest()]
    assert [offset for answer in answers for offset in answer.base_offsets] == [0, 1, 2]


async def test_one_streams_batches_never_fill_the_brokers_budget_for_ever(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Served = await start()
    served.budget.limit_bytes = 40_000
    await served.create("a")
    held = HeldWal(served, monkeypatch)
    streams = [served.stream("Log.Publish") for _ in range(4)]
    for stream in streams:
        await stream.write(request(1, batch(b"x" * 16_000)))
        await stream.write(request(2, batch(b"x" * 16_000)))
    await until_async(lambda: len(held.callbacks) >= 2)
    acks = 0
    while acks < 8:
        await until_async(lambda: held.callbacks or served.budget.used_bytes == 0)
        acks += len(held.callbacks)
        held.release()
        await asyncio.sleep(0.001)
    for stream in streams:
        assert sorted(acked(await stream.rest()))[0] >= 0
    await until_async(lambda: served.budget.used_bytes == 0)


async def test_a_client_that_does_not_read_its_acks_costs_nothing(start: Start) -> None:
    served: Served = await start(frame_timeout_ms=100)
    stream = await publishing(served)

    async def send() -> None:
        # Each is refused, with an answer of the largest allowed size: that fills the flow control window of the answers.
        number = 0
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                number += 1
                await stream.write(request(number, b"?" * 5000, topic="t" * 5000))

    sending = asyncio.create_task(send())
    budget = served.budget
    await until_async(lambda: budget.used_bytes > 0)
    # The budget goes up and down; once the stream was given up it stays at 0.
    quiet = 0
    while quiet < 200:
        await asyncio.sleep(0.001)
        quiet = quiet + 1 if budget.used_bytes == 0 else 0
    # The server serves others meanwhile, and the stream ends once its client reads.
    assert acked(await publish_one(served)) == [0]
    code, _, _ = await stream.status()
    # grpc itself returns INTERNAL if its write was cut off before it had read the status.
    assert code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL)
    await sending


async def publish_one(served: Served) -> list[pb.PublishResponse]:
    stream = served.stream("Log.Publish")
    await stream.write(request(1, batch(b"x")))
    return await stream.rest()


async def test_a_failed_store_fails_the_batches_and_not_the_stream(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.create("a")
    held = HeldWal(served, monkeypatch)
    stream = served.stream("Log.Publish")
    await stream.write(request(1, batch(b"x")))
    await stream.write(request(2, batch(b"x")))
    await until_async(lambda: len(held.callbacks) == 2)
    held.release(ClosedError(Reason.CLOSED, "the log is closed"))
    responses = [await stream.read()]
    while responses[-1].acked_sequence < 2:
        responses.append(await stream.read())
    failures = [failure for response in responses for failure in response.failures]
    assert acked(responses) == [-1, -1]
    assert [(failure.sequence, failure.error.reason, failure.error.retriable) for failure in failures] == [
        (1, "closed", True),
        (2, "closed", True),
    ]


async def test_the_server_stops(served: Served) -> None:
    stream = await publishing(served)
    await stream.write(request(1, batch(b"x"), ack_batches=1000))
    log = served.engine.partition(served.engine.topic("a"), 0)
    await until_async(lambda: log.next_offset == 1)
    closing = asyncio.create_task(served.server.close(WAIT_S))
    # Written batches are acked before the end.
    assert (await stream.read()).acked_sequence == 1
    code, reason, _ = await stream.status()
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "closed")
    await closing


async def test_a_client_that_goes_away(served: Served) -> None:
    stream = await publishing(served)
    await stream.write(request(1, batch(b"x"), ack_batches=1000))
    log = served.engine.partition(served.engine.topic("a"), 0)
    await until_async(lambda: log.next_offset == 1)
    stream.call.cancel()
    await until_async(lambda: served.budget.used_bytes == 0)
    await served.engine.durable()
    assert log.high_watermark == 1


async def test_many_streams_at_once(served: Served) -> None:
    await served.create("a")

    async def publish(partition: int) -> list[int]:
        stream: RawStream = served.stream("Log.Publish")
        for sequence in range(1, 21):
            await stream.write(request(sequence, batch(b"x", b"y"), partition=partition))
        return acked(await stream.rest())

    found = await asyncio.gather(*(publish(number % 2) for number in range(20)))
    for partition in (0, 1):
        offsets = sorted(offset for row in found[partition::2] for offset in row)
        assert offsets == list(range(0, 400, 2))
    assert all(row == sorted(row) for row in found)
