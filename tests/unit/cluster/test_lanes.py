"""Which readers of history a lead sends to which lane.

Runs: the rules of `cluster/lanes.py` and, for our own client, of `client/lanes.py`, on a time that the test moves. Compared: who is
sent away, and when again; how many lanes brokers have. A mismatch means that a client is sent away in a loop, that a lane is not
used, or that clients are sent to ports that they cannot reach.
"""

from __future__ import annotations

import pytest

from headgate.broker.client.lanes import REST_S, REST_S_MAX, LaneWays
from headgate.broker.client.lanes import STAY_S as CLIENT_STAY_S
from headgate.broker.cluster.capacity import Reservation
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.lanes import PAUSES_S, STAY_S, Guide, beside, choose, is_far, lane_id, number_beside
from headgate.broker.cluster.objects import LANE, Incarnation
from headgate.broker.runtime.config import Settings
from headgate.broker.server.lanes import own_lanes, settings_of


def lane(broker_id: int, rack: str = "") -> Incarnation:
    return Incarnation(id=str(broker_id), broker_id=broker_id, leader_epoch=0, opened_ms=0, rack=rack, role=LANE)


def file(base: int, end: int, size_bytes: int) -> ParquetExtent:
    return ParquetExtent(0, base, end, 0, "file", size_bytes, 0, 0, 0)


def test_a_client_that_follows_is_sent_once_each_time() -> None:
    guide = Guide()
    assert guide.may_send("p", 0, 0.0)
    assert guide.may_send("p", 100, STAY_S), "it comes back from the lane, and meets history again"
    assert guide.may_send("p", 200, 3 * STAY_S)


@pytest.mark.parametrize("step", [0, 1], ids=["does not go", "does not stay"])
def test_a_client_that_comes_back_at_once_is_served_for_growing_times(step: int) -> None:
    guide, now_s, offset = Guide(), 0.0, 0
    for pause_s in (*PAUSES_S, PAUSES_S[-1]):
        assert guide.may_send("p", offset, now_s)
        now_s += 0.5
        offset += step
        assert not guide.may_send("p", offset, now_s)
        offset += 10  # the lead serves it
        assert not guide.may_send("p", offset, now_s + 0.9 * pause_s)
        now_s += pause_s


def test_partitions_are_judged_apart() -> None:
    guide = Guide()
    assert guide.may_send("p", 0, 0.0) and guide.may_send("q", 0, 0.0)
    assert not guide.may_send("p", 0, 0.1) and not guide.may_send("q", 0, 0.1)


@pytest.mark.parametrize(
    ("extents", "offset", "far"),
    [
        ([file(0, 100, 1000)], 0, True),
        ([file(0, 100, 1000)], 1, False),
        ([file(0, 100, 600), file(100, 200, 400)], 0, True),
        ([file(0, 100, 600), object(), file(100, 200, 400)], 0, False),
        ([file(0, 100, 2000)], 50, True),
        ([], 0, False),
    ],
    ids=["enough", "a row less", "two files", "records in batches between", "half of a file", "none"],
)
def test_history_ahead(extents: list[object], offset: int, far: bool) -> None:
    assert is_far(extents, offset, 1000) is far


def test_the_lane_is_near() -> None:
    own, other, racked = lane(lane_id(7, 0)), lane(lane_id(8, 0)), lane(12, "east")
    there = [racked, own, other]
    assert beside(there, 7) == [own] and not beside(there, 12)
    assert choose(there, "east", 7, 0) is racked
    assert choose(there, "", 7, 3) is own
    assert choose(there, "west", 9, 0) is racked, "any, if there is none in the rack and none beside the lead"
    two = [lane(lane_id(7, 0)), lane(lane_id(7, 1))]
    assert [choose(two, "", 7, number) for number in range(4)] == two * 2


def test_our_own_client_is_never_sent_in_circles() -> None:
    ways = LaneWays()
    assert ways.may_go("p", 0.0) and ways.address("p") is None
    ways.go("p", "lane", 0.0)
    assert ways.address("p") == "lane"
    ways.served("p")
    ways.back("p", CLIENT_STAY_S)
    assert ways.address("p") is None and ways.may_go("p", CLIENT_STAY_S), "it has read there"
    ways.back("p", 7.0)
    assert ways.may_go("p", 7.0), "it is at the lead already"
    ways.go("p", "lane", 10.0)
    ways.served("p")
    ways.back("p", 10.0 + CLIENT_STAY_S / 2)
    assert not ways.may_go("p", 10.0 + REST_S) and ways.may_go("q", 10.0), "the lane was there for a moment"
    for number in range(10):
        now_s = 1000.0 * (number + 1)
        assert ways.may_go("p", now_s)
        ways.go("p", "lane", now_s)
        ways.back("p", now_s + 2 * CLIENT_STAY_S)
        assert not ways.may_go("p", now_s + REST_S), "it waited in vain for a lane out of reach"
    assert not ways.may_go("p", now_s + REST_S_MAX - 1) and ways.may_go("p", now_s + REST_S_MAX + 2 * CLIENT_STAY_S)
    ways.go("p", "lane", now_s)
    ways.served("p")
    ways.back("p", now_s + CLIENT_STAY_S)
    ways.go("p", "lane", now_s)
    ways.back("p", now_s)
    assert ways.may_go("p", now_s + REST_S), "it was of use meanwhile"


def reserved(lanes: int) -> Reservation:
    return Reservation(id=str(lanes), owner="", brokers=1, ttl_ms=1000, lanes=lanes)


def test_brokers_share_the_lanes_that_reservations_ask_for() -> None:
    ids = [3, 5, 9]

    def numbers(own: int, *lanes: int, cores: int = 8) -> list[int]:
        return [number_beside(own, map(reserved, lanes), ids, one, cores) for one in ids]

    assert numbers(1) == numbers(1, 0) == [1, 1, 1]
    assert numbers(1, 4) == [2, 1, 1] and numbers(1, 6, 2) == [2, 2, 2], "the largest one decides, none are added up"
    assert numbers(3, 6) == [3, 3, 3], "they never take away"
    assert numbers(1, 30, cores=2) == [2, 2, 2], "more than cores serve no more"
    assert numbers(0, 30) == [0, 0, 0], "their ports are out of reach"
    assert number_beside(1, [reserved(64)], ids, 7, 8) == 1, "a broker that is not in the cluster yet"


@pytest.mark.parametrize(
    ("values", "own"),
    [
        ({}, 1),
        ({"host": "localhost"}, 1),
        ({"host": "0.0.0.0"}, 0),
        ({"host": "0.0.0.0", "advertised_host": "127.0.0.1"}, 0),
        ({"host": "10.0.0.7"}, 0),
        ({"kafka_listeners": "OUT:PLAINTEXT://10.0.0.7:9093"}, 0),
        ({"kafka_listeners": "OUT:PLAINTEXT://127.0.0.1:9093"}, 1),
        ({"store": "memory:"}, 0),
        ({"broker_id": 1_000_000}, 0),
        ({"host": "0.0.0.0", "history_lanes": 3}, 3),
        ({"history_lanes": 0}, 0),
    ],
    ids=str,
)
def test_lanes_run_by_default_where_every_port_can_be_reached(values: dict[str, str | int], own: int) -> None:
    settings = Settings.from_values(values)
    assert own_lanes(settings) == own
    lane_settings = settings_of(settings, 0, "cluster") if own and settings.broker_id == 1 else settings
    assert Settings.load(lane_settings.arguments(), {}) == lane_settings
