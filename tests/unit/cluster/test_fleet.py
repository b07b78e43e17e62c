"""The local fleet's decisions: which brokers are started, drained and started again, and when.

Runs: `Fleet` by hand, then by Hypothesis with any order of requests, deaths and time. Compared: actions with the rules at the top
of `cluster/fleet.py`. A mismatch means that `headgate up` leaves brokers behind, stops one that clients know, or hammers one that
dies.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cluster.fleet import PAUSE_MS_MAX, PAUSE_MS_MIN, SERVED_MS, STABLE_MS, Drain, Fleet, Start


def served(fleet: Fleet, now_ms: int) -> None:
    for number, slot in fleet.slots.items():
        if slot.phase == "starting":
            fleet.served(number, now_ms)


def test_it_starts_with_the_minimum_and_says_each_thing_once() -> None:
    fleet = Fleet(2, 8)
    assert fleet.decide(0) == [Start(0), Start(1)]
    assert fleet.decide(0) == [] and fleet.next_ms() is None
    served(fleet, 300)
    assert fleet.serving == [0, 1]


def test_it_follows_what_is_asked_for_within_its_limits() -> None:
    fleet = Fleet(1, 3)
    fleet.decide(0)
    served(fleet, 0)
    fleet.want(5)
    assert fleet.wanted == 3 and fleet.decide(1) == [Start(1), Start(2)]
    served(fleet, 2)
    fleet.want(0)
    assert fleet.wanted == 1
    # The lowest slots stay: clients know the first address.
    assert fleet.decide(3) == [Drain(1), Drain(2)] and fleet.serving == [0]
    assert fleet.ended(2, 4) is None and fleet.ended(1, 5) is None
    assert list(fleet.slots) == [0] and fleet.decide(6) == []


def test_a_drain_is_not_waited_for() -> None:
    fleet = Fleet(1, 8)
    fleet.want(2)
    fleet.decide(0)
    served(fleet, 0)
    fleet.want(1)
    assert fleet.decide(1) == [Drain(1)]
    fleet.want(2)
    assert fleet.decide(2) == [Start(2)]
    assert fleet.ended(1, 3) is None
    fleet.want(3)
    assert fleet.decide(4) == [Start(1)]


def test_one_that_dies_starts_again_after_pauses_that_double() -> None:
    fleet = Fleet(1, 1)
    fleet.decide(0)
    now_ms, pauses = 0, []
    for _ in range(10):
        pause_ms = fleet.ended(0, now_ms)
        assert pause_ms is not None
        pauses.append(pause_ms)
        assert fleet.decide(now_ms + pause_ms - 1) == [] and fleet.next_ms() == now_ms + pause_ms
        now_ms += pause_ms
        assert fleet.decide(now_ms) == [Start(0, again=True)]
    assert pauses[:4] == [PAUSE_MS_MIN, 2 * PAUSE_MS_MIN, 4 * PAUSE_MS_MIN, 8 * PAUSE_MS_MIN] and pauses[-1] == PAUSE_MS_MAX
    fleet.served(0, now_ms)
    assert fleet.ended(0, now_ms + SERVED_MS - 1) == PAUSE_MS_MAX
    fleet.decide(now_ms + SERVED_MS + PAUSE_MS_MAX)
    fleet.served(0, 100_000)
    assert fleet.ended(0, 100_000 + STABLE_MS) == PAUSE_MS_MIN


def test_the_clients_of_one_that_served_wait_no_longer_than_it_served() -> None:
    fleet, now_ms, pauses = Fleet(1, 1), 0, []
    for served_ms in (100, 100, 100, 100, 100, 1000, 3000, 100):
        assert len(fleet.decide(now_ms)) == 1
        fleet.served(0, now_ms)
        now_ms += served_ms
        pause_ms = fleet.ended(0, now_ms)
        assert pause_ms is not None
        pauses.append(pause_ms)
        now_ms += pause_ms
    assert pauses == [100, 200, 400, 800, 1600, 500, 1500, 10_000]


def test_one_that_waits_and_is_not_wanted_any_more_is_forgotten() -> None:
    fleet = Fleet(1, 2)
    fleet.want(2)
    fleet.decide(0)
    served(fleet, 0)
    fleet.ended(1, 1)
    fleet.want(1)
    assert fleet.decide(2) == [] and list(fleet.slots) == [0]


def test_at_the_end_one_goes_last() -> None:
    fleet = Fleet(3, 3)
    fleet.decide(0)
    served(fleet, 0)
    fleet.ended(0, 1)
    fleet.stop()
    assert fleet.decide(2) == [Drain(2)], "the first one is dead, so the second takes over from the third"
    assert fleet.decide(3) == []
    fleet.ended(2, 4)
    assert fleet.decide(5) == [Drain(1)]
    fleet.ended(1, 6)
    assert fleet.decide(7) == [] and not fleet.slots


def test_at_the_end_nobody_waits_for_one_that_never_served() -> None:
    fleet = Fleet(2, 2)
    fleet.decide(0)
    fleet.stop()
    assert fleet.decide(1) == [Drain(0), Drain(1)]


EVENTS = st.lists(
    st.tuples(st.sampled_from(("want", "serve", "die", "time")), st.integers(0, 12), st.integers(0, 20_000)), max_size=60
)


@given(EVENTS, st.integers(1, 3), st.integers(0, 5))
def test_whatever_happens_so_many_run_as_are_asked_for(events: list[tuple[str, int, int]], least: int, more: int) -> None:
    fleet, now_ms, running = Fleet(least, least + more), 0, set[int]()

    def act() -> None:
        for action in fleet.decide(now_ms):
            if isinstance(action, Start):
                assert action.slot not in running, "two brokers at one place"
                running.add(action.slot)
            else:
                assert action.slot in running, "nobody is there to drain"

    act()
    for kind, value, elapsed_ms in events:
        now_ms += elapsed_ms
        busy = sorted(running)
        if kind == "want":
            fleet.want(value)
        elif kind == "serve" and busy:
            fleet.served(busy[value % len(busy)], now_ms)
        elif kind == "die" and busy:
            number = busy[value % len(busy)]
            running.discard(number)
            fleet.ended(number, now_ms)
        act()
        staying = [number for number, slot in fleet.slots.items() if slot.phase != "draining"]
        assert len(staying) == fleet.wanted and least <= fleet.wanted <= least + more
        waiting = {number for number, slot in fleet.slots.items() if slot.phase == "waiting"}
        assert running == fleet.slots.keys() - waiting
        assert not waiting or fleet.next_ms() is not None
    # After some time without events, exactly the wanted brokers run.
    now_ms += PAUSE_MS_MAX
    act()
    for number in [number for number, slot in fleet.slots.items() if slot.phase == "draining"]:
        running.discard(number)
        fleet.ended(number, now_ms)
    act()
    assert len(running) == fleet.wanted and fleet.next_ms() is None
