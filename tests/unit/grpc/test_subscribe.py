"""Subscribe: every batch once and in order, credit, seeks, errors of single subscriptions, and the end of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from headgate.broker.engine.read import view
from headgate.broker.log.batch import split
from headgate.broker.log.records import iter_records
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.server.grpc.subscribe import Subscriber
from headgate.broker.wire.grpc.headgate.v1 import log_pb2 as pb
from tests.support.waiting import until_async
from tests.unit.grpc.conftest import RawStream, Served, Start, batch

EARLIEST = pb.Position(earliest=True)


def add(
    number: int,
    topic: str = "a",
    partition: int = 0,
    position: pb.Position = EARLIEST,
    generation: int = 0,
    topic_id: bytes = b"",
) -> pb.Subscription:
    return pb.Subscription(
        subscription=number,
        generation=generation,
        topic=topic,
        partition=partition,
        position=position,
        topic_id=topic_id,
    )


def offsets(response: pb.SubscribeResponse) -> list[int]:
    return [record.offset for view in split(memoryview(response.batches)) for record in iter_records(view)]


async def subscribed(served: Served, *subscriptions: pb.Subscription, credit: int = 1 << 20, max_bytes: int = 0) -> RawStream:
    stream = served.stream("Log.Subscribe")
    await stream.write(pb.SubscribeRequest(add=subscriptions, credit_bytes=credit, max_bytes=max_bytes))
    return stream


async def test_what_is_there_and_what_comes(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, batch(b"0", b"1"))
    stream = await subscribed(served, add(7, generation=3))
    start = await stream.read()
    assert (start.subscription, start.generation, start.next_offset, start.high_watermark) == (7, 3, 0, 2)
    assert start.batches == b""
    first = await stream.read()
    assert (offsets(first), first.next_offset, first.subscription, first.generation) == ([0, 1], 2, 7, 3)
    await served.fill("a", 0, batch(b"2"))
    second = await stream.read()
    assert (offsets(second), second.high_watermark) == ([2], 3)
    assert await stream.rest() == []


@pytest.mark.parametrize(
    ("position", "first"),
    [
        (pb.Position(offset=3), 3),
        (pb.Position(latest=True), 6),
        (pb.Position(timestamp_ms=1500), 2),
        (pb.Position(max_timestamp=True), 4),
    ],
)
async def test_places_to_start_from(served: Served, position: pb.Position, first: int) -> None:
    await served.create("a")
    await served.fill("a", 0, *[batch(b"x", b"y", timestamp_ms=1000 * number) for number in (1, 2, 3)])
    stream = await subscribed(served, add(1, position=position))
    assert (await stream.read()).next_offset == first
    await served.fill("a", 0, batch(b"z", timestamp_ms=3000))
    seen: list[int] = []
    while not seen or seen[-1] < 6:
        seen += offsets(await stream.read())
    # The read begins at the batch that contains the offset.
    assert seen == list(range(first // 2 * 2, 7))


async def test_nothing_is_sent_without_credit(served: Served) -> None:
    await served.create("a")
    one = batch(b"x" * 1000)
    await served.fill("a", 0, *[one] * 10)
    stream = await subscribed(served, add(1), credit=0, max_bytes=1)
    assert (await stream.read()).batches == b""
    seen: list[int] = []
    # 1 byte of credit buys one batch; the overdraft must be paid before the next.
    await stream.write(pb.SubscribeRequest(credit_bytes=1))
    seen += offsets(await stream.read())
    await stream.write(pb.SubscribeRequest(credit_bytes=len(one) - 1))
    waiting = asyncio.create_task(stream.read())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await stream.write(pb.SubscribeRequest(credit_bytes=1))
    seen += offsets(await waiting)
    await stream.write(pb.SubscribeRequest(credit_bytes=100 * len(one)))
    while len(seen) < 10:
        seen += offsets(await stream.read())
    assert seen == list(range(10))


async def test_partitions_take_turns(served: Served) -> None:
    await served.create("a")
    for partition in (0, 1):
        await served.fill("a", partition, *[batch(b"x" * 1000)] * 5)
    stream = await subscribed(served, add(0), add(1, partition=1), max_bytes=1)
    order = []
    while len(order) < 10:
        response = await stream.read()
        if response.batches:
            order.append((response.subscription, *offsets(response)))
    assert order == [(number, offset) for offset in range(5) for number in (0, 1)]


async def test_a_seek_drops_what_was_under_way(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *[batch(b"x" * 100)] * 50)
    stream = await subscribed(served, add(1), max_bytes=1)
    while not offsets(await stream.read()):
        pass
    await stream.write(pb.SubscribeRequest(add=[add(1, position=pb.Position(offset=10), generation=1)]))
    responses: list[Any] = []
    while not (responses and responses[-1].generation == 1 and responses[-1].next_offset == 50):
        responses.append(await stream.read())
    new = [response for response in responses if response.generation == 1]
    assert responses[-len(new) :] == new
    assert (new[0].next_offset, new[0].batches) == (10, b"")
    assert [offset for response in new for offset in offsets(response)] == list(range(10, 50))


async def test_remove_and_add_again(served: Served) -> None:
    await served.create("a")
    stream = await subscribed(served, add(1), add(2, partition=1))
    for _ in range(2):
        await stream.read()
    await stream.write(pb.SubscribeRequest(remove=[1, 99]))
    await stream.write(pb.SubscribeRequest(add=[add(3, partition=1)]))
    assert (await stream.read()).subscription == 3
    await served.fill("a", 0, batch(b"x"))
    await served.fill("a", 1, batch(b"y"))
    assert {(await stream.read()).subscription for _ in range(2)} == {2, 3}
    await stream.write(pb.SubscribeRequest(add=[add(1)]))
    assert (await stream.read()).next_offset == 0
    assert offsets(await stream.read()) == [0]


@pytest.mark.parametrize(
    ("subscription", "reason"),
    [
        (add(1, topic="none"), "unknown_topic"),
        (add(1, topic_id=bytes(16)), "unknown_topic"),
        (add(1, partition=2), "unknown_topic"),
        (add(1, position=pb.Position(offset=5)), "offset_out_of_range"),
        (add(1, position=pb.Position(offset=-1)), "offset_out_of_range"),
        (add(1, position=pb.Position()), "invalid_request"),
    ],
)
async def test_a_wrong_subscription_leaves_the_others(served: Served, subscription: pb.Subscription, reason: str) -> None:
    await served.create("a")
    await served.fill("a", 1, batch(b"x"))
    stream = await subscribed(served, subscription, add(2, partition=1))
    wrong = await stream.read()
    assert (wrong.subscription, wrong.error.reason, wrong.error.retriable) == (1, reason, False)
    assert (await stream.read()).subscription == 2
    assert offsets(await stream.read()) == [0]


async def test_records_that_were_deleted_under_a_slow_reader(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *[batch(b"x" * 100)] * 5)
    stream = await subscribed(served, add(1), credit=1, max_bytes=1)
    await stream.read()
    assert offsets(await stream.read()) == [0]
    await served.engine.delete_records(served.engine.partition(served.engine.topic("a"), 0), 3)
    await stream.write(pb.SubscribeRequest(credit_bytes=10_000))
    assert (await stream.read()).error.reason == "offset_out_of_range"


async def test_a_topic_that_is_deleted(served: Served) -> None:
    await served.create("a")
    stream = await subscribed(served, add(1))
    await stream.read()
    log = served.engine.partition(served.engine.topic("a"), 0)
    await served.engine.delete_topic(served.engine.topic("a"))
    assert (await stream.read()).error.reason == "unknown_topic"
    assert not log.waiters.live


@pytest.mark.parametrize(
    "message",
    [
        pb.SubscribeRequest(credit_bytes=(1 << 30) + 1),
        pb.SubscribeRequest(add=[add(number) for number in range(10_001)]),
        b"\xff",
    ],
)
async def test_what_ends_a_stream(served: Served, message: Any) -> None:
    await served.create("a")
    stream = served.stream("Log.Subscribe")
    await stream.write(message)
    assert (await stream.status())[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


async def test_records_that_arrive_during_a_read_behind_a_window(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader waited at a window. The window ends, and while the broker reads behind it a record arrives."""
    await served.create("a")
    log = served.engine.logs["a"][0]
    assert log is not None
    at_window = True
    monkeypatch.setattr(view, "is_waiting", lambda *arguments: at_window)
    stream = await subscribed(served, add(1))
    assert (await stream.read()).next_offset == 0
    await until_async(lambda: log.waiters.at_window)
    at_window = False
    right = ServerState.read
    reads = 0

    async def read(*arguments: Any, **named: Any) -> Any:
        nonlocal reads
        reads += 1
        if reads > 1:
            return await right(*arguments, **named)
        await served.fill("a", 0, batch(b"0"))
        return []

    monkeypatch.setattr(ServerState, "read", read)
    for waiter in list(log.waiters.at_window):
        waiter()
    assert offsets(await stream.read()) == [0]
    assert await stream.rest() == []


async def test_a_client_that_goes_away_leaves_nothing(served: Served) -> None:
    await served.create("a")
    stream = await subscribed(served, add(1))
    await stream.read()
    log = served.engine.partition(served.engine.topic("a"), 0)
    assert log.waiters.live
    stream.call.cancel()
    await until_async(lambda: not log.waiters.live)
    await until_async(lambda: served.budget.used_bytes == 0)


class SilentCall:
    """A client that sends one message and then none."""

    def __init__(self, first: pb.SubscribeRequest) -> None:
        self._first = [first.SerializeToString()]
        self.written = asyncio.Event()

    async def read(self) -> Any:
        if not self._first:
            await asyncio.Event().wait()
        return self._first.pop()

    async def write(self, message: bytes) -> None:
        self.written.set()


async def test_a_call_that_is_cancelled_while_it_ends(served: Served) -> None:
    """gRPC does so if the client disconnects: first the stream ends, then the call is cancelled."""
    await served.create("a")
    log = served.engine.partition(served.engine.topic("a"), 0)
    call = SilentCall(pb.SubscribeRequest(add=[add(1)], credit_bytes=1 << 20))
    running = asyncio.create_task(Subscriber(served.server._server_state, call).run())
    await call.written.wait()
    await until_async(lambda: log.waiters.live)
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait((running,))
    assert not log.waiters.live


async def test_a_client_that_gives_credit_and_does_not_read(start: Start) -> None:
    served: Served = await start(frame_timeout_ms=100)
    await served.create("a")
    await served.fill("a", 0, *[batch(b"x" * 900_000)] * 20)
    stream = await subscribed(served, add(1), credit=1 << 30)
    log = served.engine.partition(served.engine.topic("a"), 0)
    await until_async(lambda: log.waiters.live)
    await until_async(lambda: not log.waiters.live)
    assert (await stream.status())[:2] == (grpc.StatusCode.DEADLINE_EXCEEDED, "timed_out")
    await until_async(lambda: served.budget.used_bytes == 0)


async def test_the_server_stops(served: Served) -> None:
    await served.create("a")
    stream = await subscribed(served, add(1))
    await stream.read()
    await served.server.close(5)
    assert (await stream.status())[:2] == (grpc.StatusCode.UNAVAILABLE, "closed")


async def test_a_reader_behind_many_batches_in_the_store(start: Start) -> None:
    served: Served = await start()
    await served.create("a")
    for _ in range(5):
        await served.fill("a", 0, *[batch(b"x" * 500, b"y")] * 20)
    await served.stop()
    await served.start()
    stream = await subscribed(served, add(1), max_bytes=3000)
    seen: list[int] = []
    while len(seen) < 200:
        seen += offsets(await stream.read())
    assert seen == list(range(200))


async def test_live_records_do_not_wait_for_the_history_of_other_partitions(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two partitions of a stream read history, which has to wait for live records; a third one has such records."""
    await served.create("a", 3)
    for number in (0, 1):
        await served.fill("a", number, batch(b"old"))
    right, may_read, reading = ServerState.read, asyncio.Event(), 0

    async def read(state: ServerState, partition: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal reading
        if partition.number < 2:
            reading += 1
            await may_read.wait()
        return await right(state, partition, *arguments, **named)

    tail = served.engine.read_tail
    monkeypatch.setattr(ServerState, "read", read)
    monkeypatch.setattr(served.engine, "read_tail", lambda log, *rest: None if log.number < 2 else tail(log, *rest))
    served.engine.live_first.bytes_per_s = 1.0
    served.engine.live_first.served(1000)
    stream = await subscribed(served, *[add(number, partition=number) for number in range(3)])
    assert {(await stream.read()).subscription for _ in range(3)} == {0, 1, 2}
    for value in (b"1", b"2"):
        await served.fill("a", 2, batch(value))
        response = await stream.read()
        assert response.subscription == 2 and response.batches
    assert reading == 1, "one read of history at a time"
    may_read.set()
    assert {(response.subscription, *offsets(response)) for response in [await stream.read(), await stream.read()]} == {
        (0, 0),
        (1, 0),
    }
    assert await stream.rest() == []


async def test_a_partition_that_joins_a_stream_does_not_wait_for_the_history_of_the_first(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.create("a", 2)
    for number in range(2):
        await served.fill("a", number, batch(b"old"))
    tail, began = served.engine.read_tail, asyncio.Event()
    right = ServerState.read

    async def read(state: ServerState, partition: Any, *arguments: Any, **named: Any) -> Any:
        if partition.number == 0:
            began.set()
            await asyncio.Event().wait()
        return await right(state, partition, *arguments, **named)

    monkeypatch.setattr(ServerState, "read", read)
    monkeypatch.setattr(served.engine, "read_tail", lambda log, *rest: None if log.number == 0 else tail(log, *rest))
    served.engine.live_first.bytes_per_s = 1.0
    served.engine.live_first.served(1000)
    stream = await subscribed(served, add(0))
    await stream.read()
    await asyncio.wait_for(began.wait(), 30)
    await stream.write(pb.SubscribeRequest(add=[add(1, partition=1)]))
    assert (await stream.read()).subscription == 1
    assert offsets(await stream.read()) == [0]


async def test_a_read_of_history_that_waits_ends_with_its_subscription(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await served.create("a", 3)
    began, ended = asyncio.Event(), asyncio.Event()

    async def read(*_arguments: Any, **_named: Any) -> Any:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(ServerState, "read", read)
    monkeypatch.setattr(served.engine, "read_tail", lambda *_: None)
    served.engine.live_first.bytes_per_s = 1.0
    served.engine.live_first.served(1000)
    stream = await subscribed(served, add(0), add(1, partition=1))
    for _ in range(2):
        await stream.read()
    await asyncio.wait_for(began.wait(), 30)
    await stream.write(pb.SubscribeRequest(remove=[0, 1]))
    await asyncio.wait_for(ended.wait(), 30)
    stream.call.cancel()
