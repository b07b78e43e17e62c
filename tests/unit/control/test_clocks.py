"""Brokers of one cluster on machines with clocks that differ, jump, or are wrong when the brokers start.

Runs: brokers with wall clocks that the test moves; retention runs when the test calls it. Compared: which brokers doubt their
clock, their time, and the records that retention removes. A mismatch means that a wrong clock deletes records, or that no one
learns of it.
"""

from __future__ import annotations

from headgate.broker.control.lease_register import LeaseRegister
from headgate.broker.runtime.clock import Clock
from headgate.broker.store.memory import MemoryStore
from headgate.broker.wire.grpc.headgate.v1 import admin_pb2
from tests.support.waiting import until_async
from tests.unit.control.conftest import MakeWorld
from tests.unit.control.test_one_cluster import create, fill
from tests.unit.control.world import Broker, World

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def doubts(broker: Broker) -> set[str]:
    return set(broker.engine.clock._differences)


async def retention_looks(world: World) -> None:
    for broker in world.brokers:
        if broker.running:
            await broker.engine.running.sweeper.run_once()


def starts(world: World, topic: str) -> set[int]:
    return {
        log.log_start for broker in world.brokers if broker.running for log in broker.engine.all_logs() if log.topic.name == topic
    }


async def test_a_clock_that_jumps_stops_retention_at_its_own_broker_only(make_world: MakeWorld) -> None:
    world = await make_world(3)
    await create(world, "t", 6, retention_ms=str(HOUR_MS))
    first, second, third = world.brokers
    for jump_ms in (2 * DAY_MS, -30 * DAY_MS):
        for one in (first, second):
            one.clock.jump_ms = jump_ms
            await until_async(lambda one=one: doubts(one) == {"system"})
            assert doubts(third) == set()
            response = await third.call("Admin.Status", admin_pb2.StatusRequest())
            told = {broker.id: broker.clock_doubt for broker in response.brokers}
            assert "the machine's clock" in told[one.number]
            assert all(not text for number, text in told.items() if number != one.number)
            for partition in range(6):
                await fill(world, "t", partition, 1)
            one.clock.jump_ms = 0
            await until_async(lambda one=one: doubts(one) == set())


async def test_nothing_is_deleted_by_a_broker_in_doubt(make_world: MakeWorld) -> None:
    world = await make_world(2)
    await create(world, "t", 4, retention_ms=str(HOUR_MS))
    for partition in range(4):
        await fill(world, "t", partition, 3)
    for jump_ms in (2 * DAY_MS, 30 * DAY_MS, -30 * DAY_MS, 0):
        for broker in world.brokers:
            broker.clock.jump_ms = jump_ms
            await retention_looks(world)
            assert starts(world, "t") == {0}


async def test_a_broker_that_starts_with_a_wrong_clock_takes_the_leader_s_time(make_world: MakeWorld) -> None:
    world = await make_world(3)
    first, second, third = world.brokers
    for jump_ms in (30 * DAY_MS, -30 * DAY_MS):
        await third.crash()
        third.clock.jump_ms = jump_ms
        await third.start()
        assert abs(third.engine.clock.now_ms() - first.engine.clock.now_ms()) < HOUR_MS
        await until_async(lambda: doubts(third) == {"system"})
        assert doubts(first) == doubts(second) == set()
    third.clock.jump_ms = 0
    await until_async(lambda: doubts(third) == set())


async def test_a_leader_that_differs_from_most_brokers_is_in_doubt(make_world: MakeWorld) -> None:
    world = await make_world(3)
    first, second, third = world.brokers
    second.clock.jump_ms = third.clock.jump_ms = 2 * DAY_MS
    await until_async(lambda: doubts(first) == {"brokers"})
    third.clock.jump_ms = 0
    await until_async(lambda: doubts(first) == doubts(third) == set())
    assert doubts(second) == {"system"}


async def test_a_cluster_that_starts_with_a_wrong_clock_deletes_nothing(make_world: MakeWorld) -> None:
    world = await make_world(2)
    await create(world, "t", 4, retention_ms=str(HOUR_MS))
    for partition in range(4):
        await fill(world, "t", partition, 3)
    for jump_ms in (2 * DAY_MS, 32 * DAY_MS, -30 * DAY_MS, 0):
        for broker in world.brokers:
            await broker.crash()
        for broker in world.brokers:
            broker.clock.jump_ms = jump_ms
            await broker.start()
        await until_async(lambda: len(starts(world, "t")) == 1)
        await retention_looks(world)
        assert starts(world, "t") == {0}


async def test_the_lease_tells_how_long_no_broker_ran(make_world: MakeWorld) -> None:
    world = await make_world(1)
    (broker,) = world.brokers
    for end in (broker.stop, broker.crash):
        await end()
        _, lease = await LeaseRegister(MemoryStore(world.objects), Clock()).read()
        assert lease is not None
        assert abs(lease.at_ms - broker.engine.clock.now_ms()) < HOUR_MS
        before = list(broker.engine.manifest.downtimes)
        broker.clock.jump_ms += DAY_MS
        await broker.start()
        *rest, (since_ms, until_ms) = broker.engine.manifest.downtimes
        assert rest == before and since_ms == lease.at_ms and abs(until_ms - since_ms - DAY_MS) < HOUR_MS


async def test_a_store_with_a_clock_of_its_own_judges_the_leader(make_world: MakeWorld) -> None:
    world = await make_world(1, append=False, cluster_lease_ttl_ms=1000)
    (broker,) = world.brokers
    await until_async(lambda: broker.participant._register.ahead_ms == 0)
    await broker.crash()
    broker.clock.jump_ms = 30 * DAY_MS
    await broker.start()
    await until_async(lambda: doubts(broker) == {"store"})
    await broker.crash()
    broker.clock.jump_ms = 0
    later = Clock().now_ms() + DAY_MS
    world.objects._clock = _At(later)
    broker.clock.jump_ms = DAY_MS
    noted = list(broker.engine.manifest.downtimes)
    await broker.start()
    assert doubts(broker) == set()
    assert broker.engine.manifest.downtimes == noted, "the store proves that the time has passed"


class _At(Clock):
    def __init__(self, at_ms: int) -> None:
        self._shift_ms = at_ms - Clock().now_ms()

    def now_ms(self) -> int:
        return super().now_ms() + self._shift_ms
