"""Reads of history over gRPC that wait for live records hold none of the memory for answers.

Runs: reads of a lead's file as a gRPC call makes them, while another reader has the turn. Compared: the bytes that count for the
client while they wait. A mismatch means that calls which only wait keep all others of their client, or of all clients, out.
"""

from __future__ import annotations

import asyncio
from itertools import count

from headgate.broker.log.records import iter_records
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.server.grpc.shares import Share
from tests.support.waiting import begun
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_lanes import append, flood
from tests.unit.control.test_one_cluster import create

READ_BYTES = 1 << 20


async def test_a_read_that_waits_for_its_turn_holds_no_memory(make_world: MakeWorld) -> None:
    world = await make_world(1)
    await create(world, "t", 1)
    await flood(world, "g", [3])
    await append(world, b"after")
    lead = world.leader
    state, live_first = ServerState(lead.engine, lead.settings), lead.engine.live_first
    share, partition = Share(state.budget, "client"), lead.engine.partition(lead.engine.topic("t"), 0)

    async def read() -> list[int]:
        slices = await state.read(partition, 0, READ_BYTES, share, follows_lanes=False)
        assert isinstance(slices, list)
        return [record.offset for part in slices for record in iter_records(part)]

    windows = count(1)
    live_first.acks = lambda: (1000 * next(windows), 1.0)  # a producer writes in each window, so the limit stays
    live_first.bytes_per_s = 1e9
    async with asyncio.timeout(60):
        async with live_first.turn(READ_BYTES):
            reads = [await begun(read()) for _ in range(20)]
            assert state.budget.used_bytes == 0 and not any(one.done() for one in reads)
            share.take(state.budget.limit_bytes)  # answers that the client does not take
        async with live_first.turn(READ_BYTES, reader=1):
            assert not any(one.done() for one in reads), "they wait for the client, and let others take their turns"
        share.give(state.budget.limit_bytes)
        assert await asyncio.gather(*reads) == [[0, 1, 2]] * 20
    assert state.budget.used_bytes == 0
