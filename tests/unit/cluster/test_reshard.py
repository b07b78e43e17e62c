"""The planner on load traces, against a simulated cluster that executes its orders (`tests/support/load_world.py`).

Traces are generated (steady, ramp, spike, one hot partition, day and night, brokers that come and go, another leader) and
recorded (`RECORDED`: a broker under librdkafka). Compared: the orders, their times, and the brokers' pressures afterwards; the
simulated cluster itself checks every order. A mismatch means that the cluster would swing, make writers wait without a gain, or
leave a broker overloaded beside an idle one.
"""

from __future__ import annotations

import math

import pytest

from headgate.broker.cluster.segments import OrderKind
from headgate.broker.runtime.errors import InvalidError
from tests.support.load_world import World, kinds, spread

# MB/s written to a broker, second by second: an idempotent librdkafka producer of 1000-byte records on a busy machine. The producer
# paused at second 20 for 5 s.
RECORDED = (
    0.0, 0.0, 4.0, 79.0, 38.4, 84.0, 99.0, 298.0, 465.9, 85.4, 44.0, 41.0, 122.0, 94.0, 222.8, 167.0, 33.0, 129.0, 15.1, 40.7,
    0.4, 0.0, 0.0, 0.0, 0.0, 63.0, 54.0, 184.7, 155.2, 41.0, 12.0, 7.0, 2.0, 51.0, 45.0, 51.0, 24.0, 33.0, 29.0, 46.0,
)  # fmt: skip


def world(*broker_ids: int, seconds: int = 6) -> World:
    """Brokers that have run for a while."""
    made = World()
    for broker_id in broker_ids:
        made.join(broker_id)
    made.run(seconds)
    return made


def hot(*partitions: int, share: float, rest: float = 0.001, start: int = 0, end: int = 10**9):  # type: ignore[no-untyped-def]
    return lambda second, partition: share if partition in partitions and start <= second < end else rest


# -- placement


def test_a_new_topic_is_divided_among_brokers_that_have_little_to_do() -> None:
    cluster = world(1, 2, 3)
    cluster.create(9, lambda second, partition: 0.0)
    assert [len(info.partitions) for info in cluster.segments.values()] == [3, 3, 3]
    assert len({info.incarnation_id for info in cluster.segments.values()}) == 3
    assert cluster.run(200) == []


def test_a_new_topic_avoids_a_busy_broker() -> None:
    cluster = world(1, 2, 3)
    busy = cluster.create(1, hot(0, share=0.6))
    cluster.run(30)
    (lead,) = [info.incarnation_id for info in cluster.segments.values() if info.topic_id == busy]
    cluster.create(6, lambda second, partition: 0.0)
    new = [info for info in cluster.segments.values() if info.topic_id != busy]
    assert len(new) == 2 and lead not in {info.incarnation_id for info in new}


def test_cpu_counts_where_bytes_say_nothing() -> None:
    cluster = World()
    cluster.join(1, cpu_base=0.8)
    cluster.join(2)
    cluster.run(6)
    cluster.create(1, lambda second, partition: 0.0)
    assert [info.incarnation_id[:4] for info in cluster.segments.values()] == ["0002"]


def test_many_idle_topics_are_spread_by_number_not_by_the_noise_of_cpus() -> None:
    cluster = World(jitter=lambda second, broker_id: 0.03 * broker_id)
    for broker_id in (1, 2, 3):
        cluster.join(broker_id)
    cluster.run(6)
    for _ in range(30):
        cluster.create(1, lambda second, partition: 0.0)
    led = [info.incarnation_id for info in cluster.segments.values()]
    assert sorted(led.count(one) for one in set(led)) == [10, 10, 10]


def test_what_is_lost_goes_where_it_weighs_least() -> None:
    cluster = world(1, 2, 3)
    cluster.create(3, lambda second, partition: (0.5, 0.1, 0.2)[partition])
    cluster.run(30)
    busiest = max(cluster.pressures().items(), key=lambda item: item[1])[0]
    cluster.kill(busiest)
    cluster.check_covered()
    assert sorted(round(one, 3) for one in cluster.pressures().values()) == [0.2, 0.6]


def test_without_brokers_nothing_is_placed_and_draining_ones_are_the_last_resort() -> None:
    cluster = world(1)
    assert cluster.planner.place([(next(iter([cluster.create(2, hot(share=0.0))])), 0, 2)], {}, []) == []
    (broker,) = cluster.brokers.values()
    broker.draining = True
    topic_id = cluster.create(4, lambda second, partition: 0.0)
    assert [info.incarnation_id[:4] for info in cluster.segments.values() if info.topic_id == topic_id] == ["0001"]
    assert cluster.run(30) == []


# -- traces


def test_steady_load_below_the_limits_is_left_alone() -> None:
    cluster = world(1, 2, 3)
    cluster.create(12, lambda second, partition: 0.01 + 0.002 * (partition % 3))
    assert cluster.run(3600) == []


def test_a_ramp_is_split_once_it_is_too_much_and_merged_when_it_is_over() -> None:
    cluster = world(1, 2)
    cluster.create(
        8, lambda second, partition: (0.12 * min(max(second - 20, 0) / 60, 1.0) if second < 300 else 0.0) * (partition < 4)
    )
    up = cluster.run(294)
    assert kinds(up) == ["split"] and spread(cluster.pressures()) < 0.1
    down = cluster.run(600)
    assert set(kinds(down)) == {"merge"} and len(cluster.segments) == 2
    cluster.check_covered()
    assert all("above 0.25 of a broker" in one.order.why for one in up)


def test_a_spike_of_two_seconds_moves_nothing() -> None:
    cluster = world(1, 2)
    cluster.create(8, lambda second, partition: 0.3 if second % 60 in (0, 1) and partition == 2 else 0.005)
    assert cluster.run(900) == []


def test_one_hot_partition_is_singled_out_and_then_left_alone() -> None:
    cluster = world(1, 2, 3)
    topic_id = cluster.create(12, hot(5, share=0.6, rest=0.02))
    orders = cluster.run(120)
    assert 1 <= len(orders) <= 3
    (alone,) = [info for info in cluster.segments.values() if 5 in info.partitions]
    assert list(alone.partitions) == [5] and alone.topic_id == topic_id
    assert cluster.pressures()[alone.incarnation_id] == pytest.approx(0.6)
    assert cluster.run(1800) == []


def test_a_topic_of_one_partition_is_never_split() -> None:
    cluster = world(1, 2)
    cluster.create(1, hot(0, share=0.9))
    assert cluster.run(600) == []


def test_day_and_night() -> None:
    cluster = world(1, 2, 3)
    day_s = 3600
    cluster.create(
        16, lambda second, partition: 0.06 * (1 + math.sin(2 * math.pi * second / day_s)) * (1 if partition < 6 else 0.1)
    )
    first = cluster.run(2 * day_s)
    later = cluster.run(4 * day_s)
    assert 1 <= len(first) <= 8
    assert len(later) <= 6 * 4, [one.order.why for one in later]
    cluster.check_covered()


def test_a_hot_spot_that_wanders_makes_writers_wait_ever_more_seldom() -> None:
    cluster = world(1, 2)
    cluster.create(8, lambda second, partition: 0.5 if (second // 45) % 8 == partition else 0.01)
    hours = [len(cluster.run(3600)) for _ in range(2)]
    assert hours[1] <= 60, hours


def test_a_recorded_load_is_split_once() -> None:
    cluster = world(1, 2)
    scale = cluster.targets.broker_bytes_per_s
    cluster.create(4, lambda second, partition: RECORDED[second % len(RECORDED)] * 1e6 / scale if partition < 2 else 0.0)
    orders = cluster.run(1200)
    assert kinds(orders) == ["split"]
    assert spread(cluster.pressures()) < 0.05


def test_noise_of_cpus_moves_nothing() -> None:
    cluster = World(jitter=lambda second, broker_id: 0.15 * math.sin(second * (1.7 + broker_id)) + 0.05 * ((second * 7919) % 3))
    for broker_id in (1, 2, 3):
        cluster.join(broker_id)
    cluster.run(6)
    cluster.create(12, lambda second, partition: 0.05)
    assert cluster.run(1800) == []


# -- brokers come and go, leaders change


def test_brokers_that_join_a_busy_one_serve_within_three_seconds() -> None:
    cluster = world(1)
    cluster.create(9, lambda second, partition: 0.1)
    cluster.run(5)
    joined = {cluster.join(2), cluster.join(3)}
    cluster.run(3)
    assert joined <= {info.incarnation_id for info in cluster.segments.values()}
    assert spread(cluster.pressures()) <= 0.1 + 1e-9
    assert cluster.run(1800) == []


def test_idle_topics_are_shared_with_brokers_that_join() -> None:
    cluster = world(1)
    cluster.create(8, lambda second, partition: 0.0)
    cluster.create(4, lambda second, partition: 0.0)
    cluster.run(5)
    cluster.join(2), cluster.join(3)
    assert kinds(cluster.run(3)) == ["split", "move"]
    led = [len(info.partitions) for info in cluster.segments.values()]
    assert led == [4, 4, 4] and len({info.incarnation_id for info in cluster.segments.values()}) == 3
    assert cluster.run(1800) == []


def test_a_drain_takes_everything_at_once_and_evenly() -> None:
    cluster = world(1, 2, 3)
    for _ in range(4):
        cluster.create(3, lambda second, partition: 0.03)
    cluster.run(20)
    leaving = next(iter(cluster.brokers))
    cluster.brokers[leaving].draining = True
    (done,) = cluster.run(1)
    assert done.order.kind is OrderKind.DRAIN and len(done.order.seal) == 4 and "broker 1 is to go" in done.order.why
    assert not [info for info in cluster.segments.values() if info.incarnation_id == leaving]
    left = {one: pressure for one, pressure in cluster.pressures().items() if one != leaving}
    assert spread(left) < 0.01
    cluster.kill(leaving)
    assert cluster.run(600) == []


@pytest.mark.parametrize("room", [0, 1])
def test_no_more_than_the_room_is_moved_at_a_time_except_by_a_drain(room: int) -> None:
    cluster = world(1, 2)
    for _ in range(10):
        cluster.create(1, lambda second, partition: 0.03)
    cluster.run(20)
    cluster.planner.room = room
    cluster.join(3)
    found = cluster.run(20)
    assert len(found) == len({done.second for done in found}) and bool(found) is bool(room), "the newcomer gets one at a time"
    leaving = next(iter(cluster.brokers))
    cluster.brokers[leaving].draining = True
    assert OrderKind.DRAIN in kinds(cluster.run(1))
    assert not [info for info in cluster.segments.values() if info.incarnation_id == leaving]


def test_a_rolling_restart_ends_even() -> None:
    cluster = world(1, 2, 3)
    cluster.create(12, lambda second, partition: 0.05)
    cluster.run(20)
    for incarnation_id in list(cluster.brokers):
        cluster.brokers[incarnation_id].draining = True
        cluster.run(2)
        broker_id = cluster.brokers[incarnation_id].broker_id
        cluster.kill(incarnation_id)
        cluster.run(3)
        cluster.join(broker_id)
        cluster.run(20)
    cluster.run(60)
    cluster.check_covered()
    assert all(cluster.pressures().values()) and spread(cluster.pressures()) <= cluster.targets.uneven_share
    assert cluster.run(1800) == []


def test_a_new_leader_watches_first_and_then_goes_on() -> None:
    cluster = world(1, 2)
    cluster.create(8, hot(0, 1, 2, 3, share=0.1, start=24))
    cluster.run(20)
    began = cluster.second
    for _ in range(3):
        cluster.run(2)
        cluster.new_leader()
    orders = cluster.run(60)
    assert kinds(orders) == ["split"]
    assert orders[0].second - began >= cluster.targets.warm_up_ms // 1000


def test_a_new_leader_that_first_places_what_was_lost_makes_nobody_wait_twice() -> None:
    cluster = world(1)
    cluster.create(8, lambda second, partition: 0.05)
    lost = next(iter(cluster.brokers))
    cluster.join(2)
    cluster.new_leader()
    cluster.kill(lost)
    # Now the planner sees the successor of the lost segment, and still knows no time of its take-over.
    cluster.create(1, lambda second, partition: 0.0)
    cluster.join(3)
    # The simulated cluster refuses an order that makes a writer wait which has just waited for the take-over.
    cluster.run(60)
    assert spread(cluster.pressures()) < 0.1


def test_a_leader_that_stood_still_does_not_take_the_pause_for_a_duration() -> None:
    cluster = world(1, 2)
    cluster.create(8, hot(0, 1, 2, 3, share=0.1, start=20))
    cluster.run(16)
    cluster.second += 300
    assert cluster.run(2) == []
    assert kinds(cluster.run(20)) == ["split"]


def test_traffic_that_no_other_broker_can_take_is_not_split() -> None:
    cluster = world(1, 2)
    cluster.create(8, lambda second, partition: 0.12)
    assert cluster.run(600) == []


# -- the planner's knowledge


def test_pressures_and_loads_follow_the_traffic() -> None:
    cluster = world(1, 2)
    cluster.create(8, hot(0, 1, 2, 3, share=0.05, rest=0.01))
    cluster.run(20)
    measured = cluster.planner.pressures(cluster.segments, cluster.loads())
    assert measured == pytest.approx(cluster.pressures(), rel=0.01)
    loads = [cluster.planner.load(segment_id) for segment_id in cluster.segments]
    assert [load.bytes_in_per_s for load in loads] == pytest.approx(
        [cluster.weight(info) * cluster.targets.broker_bytes_per_s / 2 for info in cluster.segments.values()], rel=0.01
    )
    assert cluster.planner.load(12345).requests_per_s == 0


# -- by hand


def test_by_hand() -> None:
    cluster = world(1, 2)
    cluster.create(8, lambda second, partition: 0.01)
    cluster.run(5)
    planner, loads = cluster.planner, cluster.loads()
    split = planner.order_split(cluster.segments, loads, 1)
    assert [(one.first_partition, one.end_partition) for one in split.open] == [(0, 2), (2, 4)] and "by hand" in split.why
    cluster.check((split,))
    at = planner.order_split(cluster.segments, loads, 1, 3, 1)
    assert [(one.first_partition, one.end_partition, one.incarnation_id[:4]) for one in at.open] == [(0, 3, "0001"), (3, 4, "0001")]
    move = planner.order_move(cluster.segments, loads, 1)
    assert [one.incarnation_id[:4] for one in move.open] == ["0002"]
    cluster.check((move,))
    merge = planner.order_merge(cluster.segments, loads, 1, 2)
    cluster.check((merge,))
    assert [(one.first_partition, one.end_partition) for one in merge.open] == [(0, 8)]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda planner, *given: planner.order_split(*given, 99), "no open segment"),
        (lambda planner, *given: planner.order_split(*given, 1, 4), "from 1 to 3"),
        (lambda planner, *given: planner.order_split(*given, 1, 0), "from 1 to 3"),
        (lambda planner, *given: planner.order_split(*given, 1, 2, 77), "no live broker"),
        (lambda planner, *given: planner.order_split(*given, 3), "one partition"),
        (lambda planner, *given: planner.order_merge(*given, 2, 1), "not neighbours"),
        (lambda planner, *given: planner.order_merge(*given, 1, 3), "not neighbours"),
        (lambda planner, *given: planner.order_move(*given, 1, 1), "led by that broker already"),
    ],
)
def test_senseless_orders_by_hand_are_refused(ask, says) -> None:  # type: ignore[no-untyped-def]
    cluster = world(1, 2)
    cluster.create(8, lambda second, partition: 0.01)
    cluster.create(1, lambda second, partition: 0.01)
    with pytest.raises(InvalidError, match=says):
        ask(cluster.planner, cluster.segments, cluster.loads())


def test_a_single_broker_has_nowhere_to_move_to() -> None:
    cluster = world(1)
    cluster.create(8, lambda second, partition: 0.3)
    assert cluster.run(120) == []
    with pytest.raises(InvalidError, match="no other broker"):
        cluster.planner.order_move(cluster.segments, cluster.loads(), 1)
