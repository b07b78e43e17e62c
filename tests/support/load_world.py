"""A simulated cluster for the planner: brokers, segments, and traffic by partition as a function of time. One step is one
second.

It executes orders as the leader does, at once, and checks each of them:

- The successors of an order cover exactly the sealed partitions.
- No segment is in two orders.
- No writer waits twice within the cool-down.
- An order moves no more load than it gains.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from headgate.broker.cluster.load_history import FAST, SLOW, Targets
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.cluster.segments import BrokerLoad, Order, OrderKind, PartitionLoad, SegmentInfo, SegmentLoad, Successor
from headgate.broker.runtime.steps import finish

Traffic = Callable[[int, int], float]
"""(second, partition) -> share of a broker that the partition takes."""


@dataclass
class Paper:
    """One broker."""

    broker_id: int
    draining: bool = False
    cpu_base: float = 0.0


@dataclass
class Done:
    """An order, and the second in which the planner gave it."""

    second: int
    order: Order


@dataclass
class World:
    """The simulated cluster. `cpu_per_share`: CPU that a share of 1 takes. `jitter`: (second, broker id) -> noise added to the
    CPU."""

    targets: Targets = field(default_factory=Targets)
    cpu_per_share: float = 0.7
    jitter: Callable[[int, int], float] = lambda second, broker_id: 0.0

    def __post_init__(self) -> None:
        self.planner = LoadPlanner(self.targets)
        self.second = 0
        self.brokers: dict[str, Paper] = {}
        self.segments: dict[int, SegmentInfo] = {}
        self.traffic: dict[uuid.UUID, Traffic] = {}
        self.partitions: dict[uuid.UUID, int] = {}
        self.done: list[Done] = []
        self.paused: dict[tuple[uuid.UUID, int], int] = {}
        """By partition: the second in which its writers last had to wait."""
        self._next = 1
        self._epoch = 0

    # -- events from outside

    def join(self, broker_id: int, cpu_base: float = 0.0) -> str:
        incarnation_id = f"{broker_id:04}-{self.second:08}"
        self.brokers[incarnation_id] = Paper(broker_id, cpu_base=cpu_base)
        return incarnation_id

    def kill(self, incarnation_id: str) -> None:
        """A broker is lost, and others take over its segments."""
        del self.brokers[incarnation_id]
        lost = [info for info in self.segments.values() if info.incarnation_id == incarnation_id]
        for info in lost:
            del self.segments[info.id]
        ranges = [(info.topic_id, info.first_partition, info.end_partition) for info in lost]
        for successor in self.planner.place(ranges, self.segments, self.loads()):
            self.open(successor, began=True)
            for partition in range(successor.first_partition, successor.end_partition):
                self.paused[successor.topic_id, partition] = self.second

    def create(self, partitions: int, traffic: Traffic) -> uuid.UUID:
        topic_id = uuid.UUID(int=len(self.traffic) + 1)
        self.traffic[topic_id], self.partitions[topic_id] = traffic, partitions
        placed = self.planner.place([(topic_id, 0, partitions)], self.segments, self.loads(), divide=True)
        assert covered(placed) == {(topic_id, partition) for partition in range(partitions)}
        for successor in placed:
            self.open(successor, began=False)
        return topic_id

    def open(self, successor: Successor, *, began: bool) -> None:
        self._epoch += 1
        count = successor.end_partition - successor.first_partition
        self.segments[self._next] = SegmentInfo(
            id=self._next,
            topic_id=successor.topic_id,
            first_partition=successor.first_partition,
            end_partition=successor.end_partition,
            incarnation_id=successor.incarnation_id,
            leader_epoch=self._epoch,
            base_offsets=[int(began)] * count,
        )
        self._next += 1

    def new_leader(self) -> None:
        """Another broker becomes leader: the planner starts without any measurements."""
        self.planner = LoadPlanner(self.targets)

    # -- the leader's work

    def run(self, seconds: int) -> list[Done]:
        """Let time pass. Returns the orders of this time."""
        before = len(self.done)
        for _ in range(seconds):
            self.second += 1
            loads = self.loads()
            self.planner.observe(loads, self.now_ms)
            plan = finish(self.planner.plan(dict(self.segments), loads, self.now_ms))
            self.check(plan.orders)
            if plan.orders or self.second % 10 == 0:
                self.check_totals()
            for order in plan.orders:
                self.execute(order)
        return self.done[before:]

    @property
    def now_ms(self) -> int:
        return 1_000_000 + self.second * 1000

    def share(self, topic_id: uuid.UUID, partition: int) -> float:
        return self.traffic[topic_id](self.second, partition)

    def weight(self, info: SegmentInfo) -> float:
        return sum(self.share(info.topic_id, partition) for partition in info.partitions)

    def pressures(self) -> dict[str, float]:
        """Shares by broker, without the noise."""
        found = dict.fromkeys(self.brokers, 0.0)
        for info in self.segments.values():
            if info.incarnation_id in found:
                found[info.incarnation_id] += self.weight(info)
        return found

    def loads(self) -> list[BrokerLoad]:
        scale = self.targets.broker_bytes_per_s
        loads = []
        for incarnation_id, broker in self.brokers.items():
            segments, total = [], 0.0
            for info in self.segments.values():
                if info.incarnation_id == incarnation_id:
                    shares = {number: self.share(info.topic_id, number) for number in info.partitions}
                    total += sum(shares.values())
                    rates = {
                        number: PartitionLoad(
                            bytes_in_per_s=share * scale / 2,
                            bytes_out_per_s=share * scale / 4,
                            requests_per_s=share * scale / 4 / self.targets.request_bytes,
                        )
                        for number, share in shares.items()
                        if share > 0
                    }
                    segments.append(SegmentLoad(segment_id=info.id, partitions=rates))
            cpu = broker.cpu_base + min(total * self.cpu_per_share, 1.0) + self.jitter(self.second, broker.broker_id)
            loads.append(
                BrokerLoad(
                    incarnation_id=incarnation_id,
                    broker_id=broker.broker_id,
                    draining=broker.draining,
                    cpu_share=min(max(cpu, 0.0), 1.0),
                    segments=tuple(segments),
                )
            )
        return loads

    def execute(self, order: Order) -> None:
        for segment_id in order.seal:
            info = self.segments.pop(segment_id)
            for partition in info.partitions:
                self.paused[info.topic_id, partition] = self.second
        for successor in order.open:
            self.open(successor, began=True)
        self.done.append(Done(self.second, order))

    # -- invariants of every plan

    def check(self, orders: tuple[Order, ...]) -> None:
        sealed = [segment_id for order in orders for segment_id in order.seal]
        assert len(sealed) == len(set(sealed)), "a segment is in two orders"
        assert sum(len(order.seal) for order in orders if order.kind is not OrderKind.DRAIN) <= 2 * self.targets.orders_max
        for order in orders:
            assert order.seal and order.open and order.why == " ".join(order.why.split())
            infos = [self.segments[segment_id] for segment_id in order.seal]
            before = {(info.topic_id, partition): info.incarnation_id for info in infos for partition in info.partitions}
            assert covered(order.open) == set(before), "the successors cover something else than what was sealed"
            assert all(not self.brokers[one.incarnation_id].draining for one in order.open), "a draining broker is given something"
            if order.kind is OrderKind.DRAIN:
                assert {self.brokers[info.incarnation_id].draining for info in infos} == {True}
                continue
            for place in before:
                waited = self.second - self.paused.get(place, -1_000_000)
                assert waited * 1000 >= self.targets.cooldown_ms, f"{place} has to wait again after {waited} s: {order.why}"
            if order.kind is OrderKind.MERGE:
                (one,) = order.open
                assert len(infos) == 2 and one.incarnation_id in {info.incarnation_id for info in infos}
            else:
                assert len(infos) == 1
                assert any(one.incarnation_id != infos[0].incarnation_id for one in order.open), "nothing is moved"
            if order.kind is OrderKind.MOVE:
                assert len(order.open) == 1

    def check_totals(self) -> None:
        """The planner's running sums are those of its live segments."""
        history = self.planner.history
        live = history.live()
        for which in (FAST, SLOW):
            costs: dict[str, float] = {}
            for one in live:
                costs[one.info.incarnation_id] = costs.get(one.info.incarnation_id, 0.0) + history.segment_cost(one, which)
            totals = history.totals(which)
            assert {key: cost for key, cost in totals.costs.items() if cost} == pytest.approx(costs)
            assert totals.segments == len(live) and totals.partitions == sum(len(one.info.partitions) for one in live)

    def check_covered(self) -> None:
        """Every partition has exactly one leader, a live broker."""
        places = [(info.topic_id, partition) for info in self.segments.values() for partition in info.partitions]
        assert sorted(places) == sorted((topic, number) for topic, count in self.partitions.items() for number in range(count))
        assert all(info.incarnation_id in self.brokers for info in self.segments.values())


def covered(successors: object) -> set[tuple[uuid.UUID, int]]:
    """The partitions of successors. Raises AssertionError if one is in two of them."""
    assert isinstance(successors, list | tuple)
    places = [(one.topic_id, number) for one in successors for number in range(one.first_partition, one.end_partition)]
    assert len(places) == len(set(places)), "two successors share a partition"
    assert all(one.first_partition < one.end_partition for one in successors)
    return set(places)


def kinds(done: list[Done]) -> list[str]:
    return [one.order.kind.value for one in done]


def spread(pressures: Mapping[str, float]) -> float:
    return max(pressures.values()) - min(pressures.values())
