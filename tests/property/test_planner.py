"""The planner under traffic that Hypothesis generates, while brokers come, go and are drained.

Runs: a simulated cluster that executes every order and checks it. Successors cover exactly the sealed partitions, and no segment
is in two orders. No writer waits twice within the cool-down, except for drains and losses. Compared here: every partition always
has one leader; under a steady load the orders end, and no new ones come; every split and move brings its two brokers closer by
at least the load that it moves. A counterexample means a cluster that swings for ever, or a partition without a leader.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.broker.cluster.load_history import Targets
from headgate.broker.cluster.segments import BrokerLoad, Order, OrderKind, PartitionLoad
from tests.support.examples import examples
from tests.support.load_world import World

SLOW = settings(deadline=None, max_examples=examples(5), suppress_health_check=[HealthCheck.too_slow])
SHARES = st.one_of(st.just(0.0), st.floats(0.0001, 0.02), st.floats(0.02, 0.3), st.floats(0.3, 0.9))
TOPICS = st.lists(st.lists(SHARES, min_size=1, max_size=12), min_size=1, max_size=5)
CONVERGED_S = 600
"""After this time of steady load, in seconds, the planner gives no orders any more."""


def steady(shares: list[float]) -> Callable[[int, int], float]:
    return lambda second, partition: shares[partition]


class Gains(World):
    """Also checks the gain of each order, under a steady load, because averages equal the true load then."""

    def execute(self, order: Order) -> None:
        infos = [self.segments[segment_id] for segment_id in order.seal]
        before = self.pressures()
        moved = sum(
            self.share(one.topic_id, number)
            for one in order.open
            for number in range(one.first_partition, one.end_partition)
            if one.incarnation_id != infos[0].incarnation_id
        )
        super().execute(order)
        if order.kind in (OrderKind.SPLIT, OrderKind.MOVE):
            source = infos[0].incarnation_id
            (target, *others) = {one.incarnation_id for one in order.open} - {source}
            if not others and moved > 0.01:
                after = self.pressures()
                gained = abs(before[source] - before[target]) - abs(after[source] - after[target])
                assert gained >= moved * 0.75, (gained, moved, order.why)


@SLOW
@given(brokers=st.integers(1, 5), topics=TOPICS)
def test_a_steady_load_comes_to_rest(brokers: int, topics: list[list[float]]) -> None:
    world = Gains(cpu_per_share=0.0)
    for broker_id in range(brokers):
        world.join(broker_id)
    world.run(6)
    for shares in topics:
        world.create(len(shares), steady(shares))
    world.run(CONVERGED_S)
    assert world.run(400) == []
    world.check_covered()


@SLOW
@given(first=TOPICS, brokers=st.integers(1, 3), joining=st.integers(1, 3), jitter=st.integers(0, 1000))
def test_it_comes_to_rest_after_brokers_joined_whatever_their_cpus_tremble(
    first: list[list[float]], brokers: int, joining: int, jitter: int
) -> None:
    world = World(jitter=lambda second, broker_id: ((second * 31 + broker_id * 17 + jitter) % 11) / 200)
    for broker_id in range(brokers):
        world.join(broker_id)
    world.run(6)
    for shares in first:
        world.create(len(shares), steady(shares))
    world.run(60)
    for broker_id in range(joining):
        world.join(100 + broker_id)
    world.run(CONVERGED_S)
    world.check_covered()
    assert len(world.run(400)) <= 1


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, 40)),
        st.tuples(st.just("join"), st.integers(1, 2)),
        st.tuples(st.just("kill"), st.integers(0, 9)),
        st.tuples(st.just("drain"), st.integers(0, 9)),
        st.tuples(st.just("leader"), st.just(0)),
        st.tuples(st.just("load"), st.integers(0, 1 << 30)),
        st.tuples(st.just("create"), st.integers(1, 9)),
    ),
    max_size=25,
)


@SLOW
@given(events=EVENTS)
def test_whatever_happens_every_partition_has_one_lead(events: list[tuple[str, int]]) -> None:
    world = World()
    seed = [0]

    def traffic(second: int, partition: int) -> float:
        return ((seed[0] >> (partition % 24)) & 7) * 0.06

    next_id = 3
    for broker_id in (1, 2):
        world.join(broker_id)
    world.run(6)
    world.create(8, traffic)
    for what, number in events:
        names = sorted(world.brokers)
        staying = [name for name in names if not world.brokers[name].draining]
        match what:
            case "run":
                world.run(number)
            case "join":
                for _ in range(number):
                    world.join(next_id)
                    next_id += 1
            case "kill" if len(staying) > 1:
                world.kill(staying[number % len(staying)])
            case "drain" if len(staying) > 1:
                leaving = staying[number % len(staying)]
                world.brokers[leaving].draining = True
                world.run(1)
                assert not [info for info in world.segments.values() if info.incarnation_id == leaving]
            case "leader":
                world.new_leader()
            case "load":
                seed[0] = number
            case "create":
                world.create(number, traffic)
        world.check_covered()
    world.run(30)
    world.check_covered()


@SLOW
@given(
    loads=st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e9), st.floats(0, 64)), min_size=1, max_size=4),
    ranges=st.lists(st.integers(1, 40), max_size=6),
    divide=st.booleans(),
)
def test_placement_covers_exactly_what_is_asked(
    loads: list[tuple[float, float, float, float]], ranges: list[int], divide: bool
) -> None:
    planner = World(Targets()).planner
    brokers = [
        BrokerLoad(incarnation_id=str(index), broker_id=index, cpu_share=cpu, draining=index == 0)
        for index, (_, _, _, cpu) in enumerate(loads)
    ]
    for bytes_in, bytes_out, requests, _ in loads:
        assert planner.history.cost(PartitionLoad(bytes_in_per_s=bytes_in, bytes_out_per_s=bytes_out, requests_per_s=requests)) >= 0
    planner.observe(brokers, 5)
    asked = [(uuid.UUID(int=index), 3, 3 + count) for index, count in enumerate(ranges)]
    placed = planner.place(asked, {}, brokers, divide=divide)
    places = [(one.topic_id, number) for one in placed for number in range(one.first_partition, one.end_partition)]
    assert sorted(places) == sorted((topic_id, number) for topic_id, first, end in asked for number in range(first, end))
    assert {one.incarnation_id for one in placed} <= {broker.incarnation_id for broker in brokers if not broker.draining} or len(
        brokers
    ) == 1
    if not divide:
        assert len(placed) == len(asked)
