"""Fetch, ListOffsets and InitProducer: whole batches, limits, the long poll, places in the log, and every wrong request."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from headgate.broker.log.batch import parse_header, split
from headgate.broker.log.records import iter_records
from headgate.broker.wire.grpc.headgate.v1 import log_pb2 as pb
from tests.support.waiting import until_async
from tests.unit.grpc.conftest import Served, Start, batch, refused, status_of

BATCHES = [batch(b"0", b"1", b"2", timestamp_ms=1000), batch(b"3", timestamp_ms=3000), batch(b"4", b"5", timestamp_ms=2000)]


async def fetch(served: Served, **fields: object) -> pb.FetchResponse:
    request = pb.FetchRequest(topic="a", **fields)  # type: ignore[arg-type]
    response: pb.FetchResponse = await served.call("Log.Fetch", request)
    return response


def offsets(response: pb.FetchResponse) -> list[int]:
    return [record.offset for view in split(memoryview(response.batches)) for record in iter_records(view)]


async def test_whole_batches_from_the_one_with_the_offset(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *BATCHES)
    assert offsets(await fetch(served, offset=0)) == [0, 1, 2, 3, 4, 5]
    assert offsets(await fetch(served, offset=2)) == [0, 1, 2, 3, 4, 5]
    assert offsets(await fetch(served, offset=3)) == [3, 4, 5]
    end = await fetch(served, offset=6)
    assert (end.batches, end.high_watermark, end.log_start) == (b"", 6, 0)
    assert (await fetch(served, offset=0, partition=1)).high_watermark == 0


async def test_at_least_one_batch_then_at_most_max_bytes(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *BATCHES)
    assert offsets(await fetch(served, offset=0, max_bytes=1)) == [0, 1, 2]
    two = len(BATCHES[0]) + len(BATCHES[1])
    assert offsets(await fetch(served, offset=0, max_bytes=two)) == [0, 1, 2, 3]
    assert offsets(await fetch(served, offset=0, max_bytes=two + 1)) == [0, 1, 2, 3]


async def test_the_brokers_own_limit_holds(start: Start) -> None:
    served: Served = await start(fetch_bytes_max=64 << 10)
    await served.create("a")
    await served.fill("a", 0, *[batch(b"x" * 30_000)] * 5)
    assert offsets(await fetch(served, offset=0)) == [0, 1]
    assert offsets(await fetch(served, offset=0, max_bytes=2**32 - 1)) == [0, 1]


async def test_a_batch_of_a_megabyte(served: Served) -> None:
    await served.create("a")
    big = batch(b"x" * 1_000_000)
    await served.fill("a", 0, big)
    response = await fetch(served, offset=0)
    assert len(response.batches) == len(big)
    assert parse_header(response.batches).base_offset == 0
    await until_async(lambda: served.budget.used_bytes == 0)


async def test_the_long_poll_ends_with_a_record(served: Served) -> None:
    await served.create("a")
    waiting = asyncio.create_task(fetch(served, offset=0, max_wait_ms=20_000))
    log = served.engine.partition(served.engine.topic("a"), 0)
    await until_async(lambda: log.waiters.live)
    await served.fill("a", 0, BATCHES[0])
    assert offsets(await waiting) == [0, 1, 2]
    assert not log.waiters.live


async def test_the_long_poll_waits_for_min_bytes(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, BATCHES[1])
    waiting = asyncio.create_task(fetch(served, offset=0, max_wait_ms=20_000, min_bytes=len(BATCHES[1]) + 1))
    log = served.engine.partition(served.engine.topic("a"), 0)
    await until_async(lambda: log.waiters.live)
    await served.fill("a", 0, BATCHES[2])
    assert offsets(await waiting) == [0, 1, 2]


async def test_the_long_poll_ends_with_its_time(served: Served) -> None:
    await served.create("a")
    assert offsets(await fetch(served, offset=0, max_wait_ms=1)) == []
    await served.fill("a", 0, BATCHES[1])
    # The existing records are given, although they are fewer bytes than requested.
    assert offsets(await fetch(served, offset=0, max_wait_ms=1, min_bytes=10_000)) == [0]


async def test_the_long_poll_ends_with_its_topic_and_with_the_broker(served: Served) -> None:
    await served.create("a")
    await served.create("b")
    first = asyncio.create_task(fetch(served, offset=0, max_wait_ms=20_000))
    second = asyncio.create_task(served.call("Log.Fetch", pb.FetchRequest(topic="b", max_wait_ms=20_000)))
    logs = [served.engine.partition(served.engine.topic(name), 0) for name in ("a", "b")]
    await until_async(lambda: all(log.waiters.live for log in logs))
    await served.engine.delete_topic(served.engine.topic("a"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await first
    assert status_of(caught.value)[:2] == (grpc.StatusCode.NOT_FOUND, "unknown_topic")
    await served.server.close(5)
    assert (await second).batches == b""


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        (pb.FetchRequest(topic="none"), grpc.StatusCode.NOT_FOUND, "unknown_topic"),
        (pb.FetchRequest(), grpc.StatusCode.NOT_FOUND, "unknown_topic"),
        (pb.FetchRequest(topic="a", partition=2), grpc.StatusCode.NOT_FOUND, "unknown_topic"),
        (pb.FetchRequest(topic="a", partition=2**32 - 1), grpc.StatusCode.NOT_FOUND, "unknown_topic"),
        (pb.FetchRequest(topic="a", offset=7), grpc.StatusCode.OUT_OF_RANGE, "offset_out_of_range"),
        (pb.FetchRequest(topic="a", offset=-1), grpc.StatusCode.OUT_OF_RANGE, "offset_out_of_range"),
        (pb.FetchRequest(topic="a", offset=-(2**63)), grpc.StatusCode.OUT_OF_RANGE, "offset_out_of_range"),
        (b"\x08", grpc.StatusCode.INVALID_ARGUMENT, "invalid_request"),
    ],
)
async def test_wrong_fetches(served: Served, message: object, code: grpc.StatusCode, reason: str) -> None:
    await served.create("a")
    await served.fill("a", 0, *BATCHES)
    assert (await refused(served.call("Log.Fetch", message)))[:2] == (code, reason)
    await until_async(lambda: served.budget.used_bytes == 0)


async def test_records_from_the_store_after_a_restart(start: Start) -> None:
    served: Served = await start()
    await served.create("a")
    await served.fill("a", 0, *BATCHES)
    await served.stop()
    await served.start()
    assert offsets(await fetch(served, offset=1)) == [0, 1, 2, 3, 4, 5]
    assert offsets(await fetch(served, offset=1, max_wait_ms=20_000)) == [0, 1, 2, 3, 4, 5]


async def test_places_in_the_log(served: Served) -> None:
    await served.create("a")
    await served.fill("a", 0, *BATCHES)
    log = served.engine.partition(served.engine.topic("a"), 0)
    await served.engine.delete_records(log, 1)
    positions = [
        pb.Position(earliest=True),
        pb.Position(latest=True),
        pb.Position(offset=4),
        pb.Position(timestamp_ms=0),
        pb.Position(timestamp_ms=1500),
        pb.Position(timestamp_ms=3001),
        pb.Position(max_timestamp=True),
        pb.Position(offset=7),
        pb.Position(offset=0),
        pb.Position(),
    ]
    queries = [pb.ListOffsetsRequest.Query(position=position) for position in positions]
    queries.append(pb.ListOffsetsRequest.Query(partition=1, position=pb.Position(max_timestamp=True)))
    queries.append(pb.ListOffsetsRequest.Query(partition=2, position=pb.Position(latest=True)))
    response = await served.call("Log.ListOffsets", pb.ListOffsetsRequest(topic="a", queries=queries))
    assert [
        (row.partition, row.offset, row.timestamp_ms if row.HasField("timestamp_ms") else None, row.error.reason)
        for row in response.results
    ] == [
        (0, 1, None, ""),
        (0, 6, None, ""),
        (0, 4, None, ""),
        (0, 1, 1000, ""),
        (0, 3, 3000, ""),
        (0, 6, None, ""),
        (0, 3, 3000, ""),
        (0, -1, None, "offset_out_of_range"),
        (0, -1, None, "offset_out_of_range"),
        (0, -1, None, "invalid_request"),
        (1, 0, None, ""),
        (2, -1, None, "unknown_topic"),
    ]
    assert response.results[0].leader_epoch == log.leader_epoch


async def test_wrong_listings(served: Served) -> None:
    await served.create("a")
    assert (await refused(served.call("Log.ListOffsets", pb.ListOffsetsRequest(topic="b"))))[:2] == (
        grpc.StatusCode.NOT_FOUND,
        "unknown_topic",
    )
    many = pb.ListOffsetsRequest(topic="a", queries=[pb.ListOffsetsRequest.Query()] * 10_001)
    assert (await refused(served.call("Log.ListOffsets", many)))[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
