"""Reservations, their ends, and the number of brokers that the load needs.

Runs: reservations and load tracking, with times as arguments, so that days pass in no time. Compared: which requests are refused
and with which words, when a reservation ends, and how fast the number follows the load up and down. A mismatch means capacity
that never ends, or a fleet that follows every spike.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cluster.capacity import (
    BROKERS_MAX,
    DOWN_AFTER_MS,
    RESERVATIONS_MAX,
    RESERVED_DOWN_AFTER_MS,
    TTL_MS_MAX,
    UP_AFTER_MS,
    Deadlines,
    LoadDemand,
    Reservation,
    check_reservation,
    desired_brokers,
    opened,
    renewed,
)
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises

MINUTE_MS = 60_000


def reservation(brokers: int = 3, ttl_ms: int = MINUTE_MS, *, id: str = "flood-1", owner: str = "me") -> Reservation:
    return Reservation(id=id, owner=owner, brokers=brokers, ttl_ms=ttl_ms)


def run(demand: LoadDemand, pressures: list[float], start_ms: int) -> list[int]:
    """Feed one measurement per second. Returns the wanted numbers."""
    numbers = []
    for second, pressure in enumerate(pressures):
        demand.observe([pressure], start_ms + second * 1000)
        numbers.append(demand.brokers)
    return numbers


# -- reservations


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (reservation(10_000), "1 to 64 brokers. brokers=`10000`"),
        (reservation(0), "1 to 64 brokers"),
        (reservation(-1), "1 to 64 brokers"),
        (reservation(65), "1 to 64 brokers"),
        (reservation(ttl_ms=999), "from 1 s to 7 days"),
        (reservation(ttl_ms=TTL_MS_MAX + 1), "from 1 s to 7 days"),
        (reservation(id=""), "id has 1 to 100 printable"),
        (reservation(id="x" * 101), "id has 1 to 100 printable"),
        (reservation(id="a\nb"), "id has 1 to 100 printable"),
        (reservation(owner="x" * 201), "owner has 0 to 200 printable"),
    ],
)
def test_what_is_refused(wrong: Reservation, says: str) -> None:
    with raises(InvalidError, Reason.INVALID_REQUEST, says):
        check_reservation(wrong, {})


def test_limits_are_allowed() -> None:
    for fine in (reservation(1), reservation(BROKERS_MAX), reservation(ttl_ms=TTL_MS_MAX), reservation(ttl_ms=1000, owner="")):
        check_reservation(fine, {})


def test_there_are_not_endlessly_many() -> None:
    full = {str(number): reservation(id=str(number)) for number in range(RESERVATIONS_MAX)}
    with pytest.raises(InvalidError, match="too many reservations"):
        opened(reservation(id="one more"), full)
    assert opened(reservation(id="7"), full).renewals == 1


def test_the_same_id_again_is_a_renewal_with_new_numbers() -> None:
    first = opened(reservation(), {})
    again = opened(reservation(5, 2 * MINUTE_MS), {first.id: first})
    assert (again.brokers, again.ttl_ms, again.renewals) == (5, 2 * MINUTE_MS, 1)
    assert renewed(first.id, None, {first.id: again}).ttl_ms == 2 * MINUTE_MS
    assert renewed(first.id, 5000, {first.id: again}).ttl_ms == 5000
    with raises(InvalidError, Reason.NOT_FOUND, "ran out, or was released"):
        renewed("other", None, {first.id: first})


def test_a_reservation_ends_unless_it_is_renewed() -> None:
    deadlines, stored = Deadlines(), {"flood-1": reservation()}
    deadlines.observe(stored, 1000)
    deadlines.observe(stored, 50_000)
    assert deadlines.next_ms() == 61_000 and deadlines.expired(60_999) == []
    stored = {"flood-1": renewed("flood-1", None, stored)}
    deadlines.observe(stored, 60_999)
    assert deadlines.expired(61_000) == [] and deadlines.open(61_000)[0].left_ms == 59_999
    assert deadlines.expired(120_999) == ["flood-1"] and deadlines.open(120_999) == []
    deadlines.observe({}, 121_000)
    assert deadlines.next_ms() is None


def test_a_new_leader_gives_everyone_a_whole_time_again() -> None:
    deadlines = Deadlines()
    deadlines.observe({"flood-1": reservation()}, 10_000_000)
    assert [one.left_ms for one in deadlines.open(10_000_000)] == [MINUTE_MS]


@given(st.lists(st.tuples(st.sampled_from(["open", "renew", "release", "wait"]), st.integers(0, 3), st.integers(1000, 90_000))))
def test_capacity_always_ends(steps: list[tuple[str, int, int]]) -> None:
    stored: dict[str, Reservation] = {}
    deadlines, now_ms = Deadlines(), 0
    for what, number, amount in steps:
        key = str(number)
        if what == "open":
            stored[key] = opened(reservation(id=key, ttl_ms=amount), stored)
        elif what == "renew" and key in stored:
            stored[key] = renewed(key, None, stored)
        elif what == "release":
            stored.pop(key, None)
        else:
            now_ms += amount
        deadlines.observe(stored, now_ms)
        for gone in deadlines.expired(now_ms):
            del stored[gone]
        deadlines.observe(stored, now_ms)
        assert {one.reservation.id for one in deadlines.open(now_ms)} == set(stored)
        assert all(0 < one.left_ms <= one.reservation.ttl_ms for one in deadlines.open(now_ms))
    # No client renews from now on.
    assert set(deadlines.expired(now_ms + 90_000)) == set(stored)


# -- load


def test_up_within_seconds_down_after_minutes() -> None:
    demand = LoadDemand(1, 0)
    up = run(demand, [2.5] * 6, 1000)
    assert up.index(4) == UP_AFTER_MS // 1000 and up[-1] == 4
    down = run(demand, [0.2] * 400, 10_000)
    assert down.index(1) == DOWN_AFTER_MS // 1000


def test_a_spike_asks_for_nothing() -> None:
    assert set(run(LoadDemand(1, 0), ([3.0] * 3 + [0.3]) * 100, 0)) == {1}


def test_a_dip_takes_nothing_away() -> None:
    demand = LoadDemand(4, 0)
    assert set(run(demand, ([0.1] * 290 + [2.4]) * 4, 0)) == {4}


def test_it_goes_down_to_what_the_quiet_minutes_needed_at_most() -> None:
    demand = LoadDemand(8, 0)
    assert run(demand, [0.1] * 100 + [1.2] * 10 + [0.1] * 250, 0)[-1] == 3


def test_a_load_between_the_limits_changes_nothing() -> None:
    # 3 brokers at 0.6 each: not full for 3, and not roomy for 2.
    assert set(run(LoadDemand(3, 0), [1.8] * 1000, 0)) == {3}


def test_a_new_leader_keeps_what_there_is_for_a_while() -> None:
    numbers = run(LoadDemand(5, 0), [0.0] * 301, 0)
    assert set(numbers[:-1]) == {5} and numbers[-1] == 1


def test_a_new_leader_believes_sooner_that_reserved_brokers_are_there_for_the_reservation() -> None:
    seconds = RESERVED_DOWN_AFTER_MS // 1000
    assert run(LoadDemand(3, 0, reserved=3), [0.1] * (seconds + 1), 0) == [3] * seconds + [1]
    assert set(run(LoadDemand(3, 0, reserved=3), [0.1] * 5 + [1.8] + [0.1] * 290, 0)) == {3}, "the load needs them"
    assert set(run(LoadDemand(4, 0, reserved=3), [0.1] * 290, 0)) == {4}, "one is there for another reason"


def test_time_without_measurements_counts_for_nothing() -> None:
    demand = LoadDemand(4, 0)
    demand.observe([0.1], 1000)
    demand.observe([0.1], 1_000_000)
    assert demand.brokers == 4


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(0, 1000))
def test_the_load_never_asks_for_none_or_too_many(pressures: list[float], brokers: int) -> None:
    assert all(1 <= number <= BROKERS_MAX for number in run(LoadDemand(brokers, 0), pressures, 0))


# -- the number


def test_the_largest_claim_decides_and_is_named_first() -> None:
    deadlines, demand = Deadlines(), LoadDemand(2, 0)
    deadlines.observe({"a": reservation(3, id="a", owner="dagster"), "b": reservation(5, id="b", owner="")}, 0)
    desired = desired_brokers(1, deadlines.open(500), demand)
    assert desired.brokers == 5
    assert desired.reasons[0] == "reservation b holds 5 brokers for another 60 s"
    assert desired.reasons[1] == "reservation a of dagster holds 3 brokers for another 60 s"
    assert desired.reasons[2:] == (
        "2 brokers are kept until the load has been low for a while: 0.00 of a broker in use",
        "the minimum is 1 broker",
    )
    demand.observe([0.6, 0.6], 1000)
    assert demand.reason == "the load asks for 2 brokers: 1.20 of a broker in use", "one would have too much of it"
    assert desired_brokers(0, [], LoadDemand(1, 0)).brokers == 1
