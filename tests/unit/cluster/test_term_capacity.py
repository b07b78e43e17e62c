"""Reservations in the leader's hands: durability, expiry, and the next leader's knowledge of them.

Runs: `LeaderCapacity` over a real journal in memory, with a clock that the test moves; leaders that follow one another on one
store. Compared: the answers with the rules at the top of `cluster/capacity.py`. A mismatch means that capacity ends too early,
or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from headgate.broker.cluster.capacity import RESERVED_DOWN_AFTER_MS, Reservation
from headgate.broker.cluster.edits.brokers import PutReservation, ReleaseReservation, SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_snapshot, encode_snapshot
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.cluster.segments import BrokerLoad
from headgate.broker.control.leader_capacity import LeaderCapacity
from headgate.broker.control.leader_journal import not_leader
from headgate.broker.engine.base.catalog import DeposedError, LocalCatalog
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from tests.support.errors import raises
from tests.support.waiting import begun

TTL_MS = 60_000


class PaperLeader:
    """A leader without segments. `loads`: its members; `awaited`: True while it does not know them yet."""

    def __init__(self, store: MemoryStore, clock: ManualClock, *, brokers: int = 1, brokers_max: int = 64) -> None:
        self.clock = clock
        self.planner = LoadPlanner()
        self.catalog = LocalCatalog(store, "leader", applied=self.applied)
        self.awaited = False
        self.members = [BrokerLoad(incarnation_id=str(number), broker_id=number) for number in range(brokers)]
        self.tasks: list[asyncio.Task[None]] = []
        settings = Settings(capacity_brokers_min=1, capacity_brokers_max=brokers_max)
        self.capacity = LeaderCapacity(self, self, settings, clock, self.keep)

    async def begin(self, epoch: int = 0) -> PaperLeader:
        await self.catalog.load()
        await self.catalog.commit(SetLeader("leader", epoch))
        self.capacity.follow()
        self.tick()
        return self

    def tick(self) -> None:
        self.capacity.tick(self.clock.monotonic())

    async def settle(self) -> None:
        """Let pending work finish, and judge again."""
        self.tick()
        await asyncio.gather(*self.tasks)
        self.tick()

    def applied(self, edits: Sequence[Edit]) -> None:
        self.capacity.applied(edits)

    @property
    def manifest(self) -> Manifest:
        return self.catalog.manifest

    def loads(self) -> list[BrokerLoad]:
        return self.members

    def awaits_members(self) -> bool:
        return self.awaited

    async def commit_made(self, make: Callable[[Manifest], Sequence[Edit]]) -> None:
        try:
            await self.catalog.commit_made(make)
        except DeposedError as error:
            raise not_leader() from error

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work(), name=name))
        return self.tasks[-1]

    def told(self) -> tuple[int, list[str]]:
        """(desired brokers, ids of open reservations)."""
        return self.capacity.desired().brokers, [one.reservation.id for one in self.capacity.reservations()]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(MemoryObjects(clock))


def asks(brokers: int, reservation_id: str = "r", ttl_ms: int = TTL_MS) -> Reservation:
    return Reservation(id=reservation_id, owner="o", brokers=brokers, ttl_ms=ttl_ms)


async def test_open_renew_release(store: MemoryStore, clock: ManualClock) -> None:
    leader = await PaperLeader(store, clock).begin()
    assert leader.told() == (1, [])
    opened = await leader.capacity.open(asks(3))
    assert opened.left_ms == TTL_MS and leader.told() == (3, ["r"])
    await leader.capacity.open(asks(2, "s"))
    assert leader.told() == (3, ["r", "s"])
    clock.advance(TTL_MS - 1)
    renewed = await leader.capacity.renew("r", None)
    assert renewed.left_ms == TTL_MS and renewed.reservation.renewals == 1
    assert await leader.capacity.release("s") and not await leader.capacity.release("s")
    assert leader.told() == (3, ["r"])
    assert await leader.capacity.release("r")
    assert leader.told() == (1, [])
    with raises(InvalidError, Reason.NOT_FOUND):
        await leader.capacity.renew("r", None)


async def test_it_ends_by_itself_on_the_monotonic_clock_alone(store: MemoryStore, clock: ManualClock) -> None:
    leader = await PaperLeader(store, clock).begin()
    await leader.capacity.open(asks(5))
    clock.jump_wall(3_600_000)
    clock.advance(TTL_MS - 1)
    clock.jump_wall(-7_200_000)
    await leader.settle()
    assert leader.told() == (5, ["r"])
    clock.advance(1)
    await leader.settle()
    assert leader.told() == (1, []) and leader.manifest.reservations == {}


async def test_a_renewal_that_comes_before_the_end_is_durable_wins(store: MemoryStore, clock: ManualClock) -> None:
    leader = await PaperLeader(store, clock).begin()
    await leader.capacity.open(asks(5))
    clock.advance(TTL_MS)
    # Both commits wait for their turn; the renewal comes first.
    renewing = await begun(leader.capacity.renew("r", None))
    await leader.settle()
    await renewing
    await leader.settle()
    assert leader.told() == (5, ["r"])


async def test_one_whose_time_is_over_is_not_open_though_it_is_still_stored(store: MemoryStore, clock: ManualClock) -> None:
    leader = await PaperLeader(store, clock).begin()
    await leader.capacity.open(asks(5))
    clock.advance(TTL_MS)
    assert leader.told() == (1, []) and list(leader.manifest.reservations) == ["r"]
    assert not await leader.capacity.release("r") and leader.manifest.reservations == {}


async def test_the_next_leader_gives_each_all_its_time(store: MemoryStore, clock: ManualClock) -> None:
    leader = await PaperLeader(store, clock, brokers=3).begin()
    await leader.capacity.open(asks(4))
    clock.advance(TTL_MS - 1)
    other = PaperLeader(store, clock, brokers=3)
    other.awaited = True
    await other.begin(1)
    # A number that the leader gives before it knows its members would make fleets stop some of them.
    with raises(RetryError, Reason.NOT_READY):
        other.capacity.desired()
    assert [one.left_ms for one in other.capacity.reservations()] == [TTL_MS]
    other.awaited = False
    clock.advance(TTL_MS - 1)
    await other.settle()
    assert other.told() == (4, ["r"])
    clock.advance(1)
    await other.settle()
    # The leader knows no load yet, so the present brokers stay for now.
    assert other.told() == (3, [])
    # The earlier leader notices that it was replaced, and refers callers to another broker.
    with raises(RetryError, Reason.NOT_LEADER):
        await leader.capacity.open(asks(2, "late"))


async def test_a_leader_that_is_new_in_the_middle_of_a_reservation(store: MemoryStore, clock: ManualClock) -> None:
    """Brokers that serve only the reservation leave soon after its end."""
    leader = await PaperLeader(store, clock).begin()
    await leader.capacity.open(asks(3))
    other = await PaperLeader(store, clock, brokers=3).begin(1)
    for _ in range(RESERVED_DOWN_AFTER_MS // 1000 - 1):
        clock.advance(1000)
        other.tick()
    assert await other.capacity.release("r")
    assert other.told() == (3, []), "nothing is known of the load yet"
    clock.advance(1000)
    other.tick()
    assert other.told() == (1, [])


async def test_limits_are_said(store: MemoryStore, clock: ManualClock) -> None:
    leader = await PaperLeader(store, clock, brokers_max=3).begin()
    with pytest.raises(InvalidError, match=r"a reservation is for 1 to 3 brokers\. brokers=`10000`"):
        await leader.capacity.open(asks(10_000))
    assert leader.manifest.reservations == {}
    await leader.catalog.commit(PutReservation(asks(9)))
    leader.tick()
    desired = leader.capacity.desired()
    assert desired.brokers == 3 and desired.reasons[0] == "the cluster may have at most 3 brokers"


async def test_those_that_drain_are_not_counted(store: MemoryStore, clock: ManualClock) -> None:
    leader = await PaperLeader(store, clock, brokers=2).begin()
    assert leader.capacity.live_brokers() == 2
    leader.members[1] = BrokerLoad(incarnation_id="1", broker_id=1, draining=True)
    assert leader.capacity.live_brokers() == 1


def test_a_snapshot_has_them() -> None:
    manifest = Manifest()
    manifest.apply([PutReservation(asks(3)), PutReservation(asks(2, "s")), ReleaseReservation("s"), ReleaseReservation("none")])
    assert decode_snapshot(encode_snapshot(manifest)).reservations == {"r": asks(3)}
