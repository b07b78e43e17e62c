"""The timers of the state machines, compared with a dictionary of deadlines that is searched in full.

A mismatch means a member that is dropped too early, too late or never.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.coordination.timers import Timers

KEYS = st.integers(0, 4)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("advance"), st.just(0), st.integers(0, 30)),
    ),
    max_size=60,
)


@given(STEPS)
def test_timers_fire_like_a_dictionary_of_deadlines(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    now = 0
    for step, key, value in steps:
        if step == "set":
            timers.set(key, now + value)
            model[key] = now + value
        elif step == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            now += value
            while (due := timers.pop_due(now)) is not None:
                assert model[due] == min(model.values()) <= now, "the earliest comes first"
                del model[due]
            assert all(deadline > now for deadline in model.values())
        assert timers.next_deadline_ms == min(model.values(), default=None)
        assert len(timers) == len(model) and all((key in timers) == (key in model) for key in range(5))


def test_putting_a_deadline_off_does_not_grow_the_heap() -> None:
    timers: Timers[str] = Timers()
    for now in range(10_000):
        timers.set("member", now + 100)
    assert len(timers._heap) == 1


def test_clear_forgets_everything() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1)
    timers.clear()
    assert timers.next_deadline_ms is None and timers.pop_due(10) is None and len(timers) == 0
