"""A lane in a cluster: it leads nothing, sees what leads see, and sends readers back where it has nothing.

Runs: brokers and a lane in one process, and fetches at the lead and at the lane, without sockets. Compared: the answers of both for
the same offsets, while gates are opened, filled and released, records and topics are deleted, and leads change. A mismatch means
that a lane leads something, shows what the lead does not show, skips or hides a record, or keeps a reader that it cannot serve.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from headgate.broker.testing.messages.fetch import FetchPartition, FetchRequest, FetchTopic

from headgate.broker.cluster.capacity import Reservation
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.lanes import LANE_IDS, Guide
from headgate.broker.cluster.manifest_format import encode_snapshot
from headgate.broker.control import member
from headgate.broker.engine.engine import Engine
from headgate.broker.engine.read import lane as lane_module
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server import lanes
from headgate.broker.server.grpc.errors import MovedError
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.server.grpc.shares import Share
from headgate.broker.server.kafka import fetch
from headgate.broker.server.kafka.produce import UNKNOWN_TOPIC_OR_PARTITION as UNKNOWN_TOPIC
from headgate.broker.wire.kafka.fetch import NO_REPLICA
from tests.support.batches import batch
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create
from tests.unit.control.world import Broker, World
from tests.unit.engine.gate_world import files_for, value_of

VERSION = 12
LANE_ID = 1_000_001
HOUR_MS = 3_600_000


class Got(NamedTuple):
    """A partition of an answer."""

    code: int
    preferred: int
    values: list[bytes | None]


BACK = Got(0, 1, [])
"""What a lane answers when broker 1 has what is asked for."""


async def ask(
    engine: Engine, offset: int, *, partition: int = 0, guide: Guide | None = None, epoch: int = -1, rack: str = ""
) -> Got:
    """Fetch from one partition of the topic `t`."""
    row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch)
    asked = FetchRequest(max_bytes=1 << 20, session_epoch=-1, rack_id=rack, topics=[FetchTopic(topic="t", partitions=[row])])
    request, portions = fetch.parse(engine, memoryview(asked.encode(VERSION)), 0, VERSION)
    request.portions += portions
    total, _, cold = fetch.collect(engine, request, request.portions[0], 0, 1 << 20, 1)
    if guide is not None:
        cold = fetch.send_away(engine, request, cold, guide)
    await fetch.collect_cold(engine, engine.turns.begin(), cold, total, 1 << 20, 1, committed=False)
    (wanted,) = fetch.wanted_of(request.portions[0])
    values = [one.value for part in wanted.slices for one in iter_records(part) if one.offset >= offset]
    return Got(wanted.code, wanted.preferred, [None if one is None else bytes(one) for one in values])


async def with_lane(make_world: MakeWorld, brokers: int = 1, lane_id: int = LANE_ID, **values: Any) -> tuple[World, Broker]:
    world = await make_world(brokers, history_lane_bytes=1, **values)
    lane = Broker(world.objects, lane_id, {"history_lane_bytes": 1, **values, "role": "lane"})
    await lane.start()
    world.brokers.append(lane)
    await until_async(lambda: all(one.engine.lanes() for one in world.brokers))
    return world, lane


async def flood(world: World, gate_id: str, rows: list[int], *, missing: int = 0) -> None:
    """Open a gate and fill it."""
    leader = world.leader.participant.leader
    assert leader is not None
    gate = await leader.gates.open("t", gate_id, "now", rows, HOUR_MS)
    await leader.gates.fill("t", gate_id, await files_for(world.leader.engine, gate, missing=missing))


async def append(world: World, *values: bytes, partition: int = 0) -> None:
    engine = world.lead("t", partition).engine
    log = engine.partition(engine.topic("t"), partition)
    engine.append(log, batch(list(values), timestamp_ms=engine.clock.now_ms()))
    await engine.durable()


async def followed(world: World, lane: Broker) -> None:
    """The lane has the leader's manifest."""
    await until_async(lambda: encode_snapshot(lane.engine.manifest) == encode_snapshot(world.leader.engine.manifest))


async def test_a_lane_leads_nothing_and_is_no_broker(make_world: MakeWorld) -> None:
    world, lane = await with_lane(make_world, 2)
    await world.brokers[0].engine.create_topic("t", 8, {})
    await until_async(lambda: sum(len(one.leads().get("t", ())) for one in world.brokers) == 8)
    assert not lane.leads().get("t") and all(one.leads().get("t") for one in world.brokers[:2])
    leader = world.leader.participant.leader
    assert leader is not None
    for one in world.brokers:
        assert [broker.broker_id for broker in one.engine.brokers()] == [1, 2]
        assert [broker.broker_id for broker in one.engine.lanes()] == [LANE_ID]
    assert {load.broker_id for load in leader.term.loads()} == {1, 2} and leader.term.takers() == 2
    assert leader.capacity.live_brokers() == 2
    await until_async(lambda: "t" in lane.engine.logs)
    with pytest.raises(HeadgateError, match="does not lead"):
        lane.engine.partition(lane.engine.topic("t"), 0)
    await lane.stop()
    await until_async(lambda: not world.leader.engine.lanes())


async def test_history_is_at_the_lane_and_the_rest_at_the_lead(make_world: MakeWorld) -> None:
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    await append(world, b"before")
    await flood(world, "g", [3])
    await append(world, b"after")
    await followed(world, lane)
    lead, guide = world.leader.engine, Guide()
    assert await ask(lead, 0, guide=guide) == Got(0, NO_REPLICA, [b"before"]), "records in memory are no history"
    assert await ask(lead, 1, guide=guide) == Got(0, LANE_ID, [])
    history = [value_of("g", 0, row) for row in range(3)]
    assert await ask(lane.engine, 1) == Got(0, NO_REPLICA, history)
    assert await ask(lane.engine, 2, epoch=77) == Got(0, NO_REPLICA, history[1:]), "files are the same under every lead"
    assert await ask(lane.engine, 4) == BACK
    assert await ask(lead, 4, guide=guide) == Got(0, NO_REPLICA, [b"after"])
    for offset in (0, 5, 99):  # not listed, the end, beyond it
        assert await ask(lane.engine, offset) == BACK
    assert await ask(lane.engine, 0, partition=7) == Got(UNKNOWN_TOPIC, NO_REPLICA, [])


async def test_who_asks_again_is_served_by_the_lead(make_world: MakeWorld) -> None:
    world, _ = await with_lane(make_world)
    await create(world, "t", 1)
    await flood(world, "g", [3])
    lead, guide = world.leader.engine, Guide()
    history = [value_of("g", 0, row) for row in range(3)]
    assert (await ask(lead, 0, guide=guide)).preferred == LANE_ID
    assert await ask(lead, 0, guide=guide) == Got(0, NO_REPLICA, history)
    assert await ask(lead, 1, guide=guide) == Got(0, NO_REPLICA, history[1:])


async def test_gates_and_deletions(make_world: MakeWorld) -> None:
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    lead, leader = world.leader.engine, world.leader.participant.leader
    assert leader is not None
    await flood(world, "a", [4], missing=1)
    await leader.gates.open("t", "b", "now", [4], HOUR_MS)
    await flood(world, "c", [4])
    await followed(world, lane)
    assert (await ask(lane.engine, 0)).values == [value_of("a", 0, row) for row in range(3)]
    for offset in (3, 4, 7):  # the gap and the open gate behind it
        assert await ask(lane.engine, offset) == BACK
    await leader.gates.release("t", "b")
    await followed(world, lane)
    assert (await ask(lane.engine, 3)).values == [value_of("c", 0, row) for row in range(4)], "the gap and the released gate"
    await lead.delete_records(lead.partition(lead.topic("t"), 0), 10)
    await followed(world, lane)
    assert await ask(lane.engine, 9) == BACK, "the lead says that the offset is out of range"
    assert (await ask(lane.engine, 10)).values == [value_of("c", 0, row) for row in range(2, 4)]
    await lead.delete_topic(lead.topic("t"))
    await followed(world, lane)
    assert (await ask(lane.engine, 10)).code == UNKNOWN_TOPIC


async def test_records_that_are_not_listed_yet_are_never_skipped(make_world: MakeWorld) -> None:
    """A lane knows a filled gate before it knows the live records in front of it. One that starts now must not pass them either."""
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    await flood(world, "a", [2])
    await append(world, b"live")
    await flood(world, "b", [2])
    for _ in range(2):
        await followed(world, lane)
        assert (await ask(lane.engine, 1)).values == [value_of("a", 0, 1)]
        assert await ask(lane.engine, 2) == BACK
        assert (await ask(lane.engine, 3)).values == [value_of("b", 0, row) for row in range(2)]
        await lane.stop()
        await lane.start()


async def test_a_failover_of_the_lead(make_world: MakeWorld) -> None:
    world, lane = await with_lane(make_world, 2)
    await world.brokers[0].engine.create_topic("t", 2, {})
    await until_async(lambda: sum(len(one.leads().get("t", ())) for one in world.brokers) == 2)
    await flood(world, "g", [3, 3])
    await append(world, b"live")
    await append(world, b"live", partition=1)
    victim = next(one for one in world.brokers if one is not world.leader and one is not lane)
    partition = victim.leads()["t"][0]
    await victim.crash()
    await until_async(lambda: partition in world.leader.leads()["t"])
    await followed(world, lane)
    for number in range(2):
        history = [value_of("g", number, row) for row in range(3)]
        assert (await ask(lane.engine, 0, partition=number)).values == history
        assert (await ask(lane.engine, 3, partition=number)) == Got(0, world.leader.number, [])


async def test_a_lane_that_hears_no_leader_sends_readers_back(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    await flood(world, "g", [3])
    await followed(world, lane)
    assert (await ask(lane.engine, 0)).values
    monkeypatch.setattr(lane_module, "STALE_S", -1.0)
    assert await ask(lane.engine, 0) == BACK


async def test_a_lane_that_cannot_read_sends_readers_back(make_world: MakeWorld) -> None:
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    await flood(world, "g", [3])
    await followed(world, lane)
    lane.store.kill()
    assert await ask(lane.engine, 0) == BACK


async def test_a_lane_with_an_old_manifest_serves_what_it_knows_and_no_more(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    await flood(world, "a", [3])
    await followed(world, lane)
    monkeypatch.setattr(member, "decode_edits", lambda _: [])  # only the lane follows a leader here
    await append(world, b"live")
    await flood(world, "b", [3])
    lead = world.leader.engine
    await lead.delete_records(lead.partition(lead.topic("t"), 0), 2)
    history = [value_of("a", 0, row) for row in range(3)]
    assert await ask(lane.engine, 0) == Got(0, NO_REPLICA, history), "what the lead had a moment ago"
    assert (await ask(lane.engine, 2)).values == (await ask(lead, 2)).values == history[2:]
    for offset in (3, 4, 6, 7):
        assert await ask(lane.engine, offset) == BACK


async def test_a_lane_sends_readers_of_a_deleted_file_back(make_world: MakeWorld) -> None:
    """The lead has deleted the file, and the lane has not heard of it yet."""
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    await flood(world, "g", [3])
    await followed(world, lane)
    state = ServerState(lane.engine, lane.settings)
    log = state.readable(lane.engine.topic("t"), 0)
    extent = log.sealed.extents[0]
    assert isinstance(extent, ParquetExtent)
    await world.leader.engine.store.delete(extent.path)
    assert await ask(lane.engine, 0) == BACK
    with pytest.raises(MovedError) as caught:
        await state.read(log, 0, 1000, Share(state.budget, "client"), follows_lanes=True)
    assert caught.value.leader == world.leader.address and not state.budget.used_bytes


async def test_a_lane_whose_cache_on_disk_is_damaged(make_world: MakeWorld, tmp_path: Path) -> None:
    directory = str(tmp_path / "cache")
    world, lane = await with_lane(make_world, history_cache_dir=directory, history_cache_bytes=0)
    await create(world, "t", 1)
    await flood(world, "g", [3])
    await followed(world, lane)
    history = Got(0, NO_REPLICA, [value_of("g", 0, row) for row in range(3)])

    def damage(how: Callable[[int, int], object]) -> int:
        """Change the files of the cache, which have no names. Returns their bytes before."""
        size = 0
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith(directory):
                    size += (bytes_there := os.fstat(descriptor).st_size)
                    how(descriptor, bytes_there)
        return size

    def flip(descriptor: int, size: int) -> None:
        os.pwrite(descriptor, bytes([os.pread(descriptor, 1, size // 2)[0] ^ 1]), size // 2)

    def cut(descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size // 2)

    for how in (flip, cut):
        for _ in range(2):
            assert await ask(lane.engine, 0) == history
            await until_async(lambda: damage(lambda *_: None))
        assert damage(how)
        assert await ask(lane.engine, 0) == history


async def test_two_lanes_during_a_change_of_plan(make_world: MakeWorld) -> None:
    """A reader that was sent to the one lane stays there while new readers are sent to the other one; both have the same."""
    world, first = await with_lane(make_world)
    await create(world, "t", 2)
    await flood(world, "g", [3, 3])
    lead, guide = world.leader.engine, Guide()
    assert [(await ask(lead, 0, partition=one, guide=guide)).preferred for one in range(2)] == [LANE_ID, LANE_ID]
    second = Broker(world.objects, LANE_ID + LANE_IDS, {"history_lane_bytes": 1, "role": "lane"})
    await second.start()
    world.brokers.append(second)
    await until_async(lambda: len(lead.lanes()) == 2)
    for one in (first, second):
        await followed(world, one)
    assert {(await ask(lead, 0, partition=one, guide=Guide())).preferred for one in range(2)} == {first.number, second.number}
    for number in range(2):
        history = [value_of("g", number, row) for row in range(3)]
        for offset in range(3):
            for one in (first, second):
                assert await ask(one.engine, offset, partition=number) == Got(0, NO_REPLICA, history[offset:])
    assert second.engine.lane is not None
    second.engine.lane.is_leaving = True
    await until_async(lambda: second.engine.lead(lead.topic("t").id, 1) is not None)
    assert await ask(second.engine, 1, partition=1) == BACK, "also for a client that still asks the lane"
    guide = Guide()
    sent = [(await ask(lead, 1, partition=1, guide=guide)).preferred for _ in range(4)]
    assert sent == [second.number, NO_REPLICA, NO_REPLICA, NO_REPLICA], "the lead serves who comes back at once"


@pytest.mark.parametrize("rack", ["", "west"])
async def test_a_rack_without_a_lane_is_served_by_another_one(make_world: MakeWorld, rack: str) -> None:
    world, lane = await with_lane(make_world, rack="east")
    await create(world, "t", 1)
    await flood(world, "g", [3])
    await followed(world, lane)
    assert (await ask(world.leader.engine, 0, guide=Guide(), rack=rack)).preferred == LANE_ID
    assert (await ask(lane.engine, 0, rack=rack)).values


async def test_a_lane_goes_when_no_reservation_asks_for_it(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "UPKEEP_S", 0.01)
    monkeypatch.setattr(lanes, "SPARE_IDLE_S", 0.0)
    monkeypatch.setattr(lanes, "LEAVE_S", 0.0)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    world, lane = await with_lane(make_world, lane_id=LANE_ID + LANE_IDS, history_lanes=1)
    leader = world.leader.participant.leader
    assert leader is not None
    await leader.capacity.open(Reservation(id="flood", owner="", brokers=1, ttl_ms=HOUR_MS, lanes=2))
    await followed(world, lane)
    idle = asyncio.Event()
    assert lane.engine.lane is not None
    upkeep = lanes.LaneUpkeep(lane.engine, lane.engine.lane, pytest.fail, idle.set)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(idle.wait(), 0.2)
    await leader.capacity.release("flood")
    await idle.wait()
    await upkeep.close()


async def test_a_lane_that_was_lost_is_replaced(make_world: MakeWorld) -> None:
    world, lane = await with_lane(make_world)
    await create(world, "t", 1)
    await flood(world, "g", [3])
    await lane.crash()
    await until_async(lambda: not world.leader.engine.lanes())
    assert (await ask(world.leader.engine, 0, guide=Guide())).values, "without a lane the lead serves"
    await lane.start()
    await followed(world, lane)
    assert (await ask(lane.engine, 0)).values
