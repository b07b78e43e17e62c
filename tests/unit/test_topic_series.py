"""Series of topics on /metrics: their number is bounded, and no counter falls, whatever topics come, go and grow.

A mismatch means that ten thousand topics flood Prometheus, or that it takes a fall for a restart and shows wrong rates.
"""

from __future__ import annotations

import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.runtime.steps import finish
from headgate.broker.server.topic_series import OTHER, Counted, TopicSeries

LIMIT = 3
IDS = {f"t{number}": uuid.UUID(int=number + 1) for number in range(8)}


def rows(counts: dict[str, int]) -> dict[tuple[str, uuid.UUID], Counted]:
    return {(name, IDS[name]): Counted(one, 2 * one, 3 * one, 10, 1) for name, one in counts.items()}


def test_the_busy_topics_have_their_own_series() -> None:
    series = TopicSeries(LIMIT)
    finish(series.update(rows({"t0": 0, "t1": 0, "t2": 0, "t3": 5, "t4": 6})))
    assert series.read(0) == {("t3",): 5, ("t4",): 6, ("t0",): 0, (OTHER,): 0}
    assert series.read(3)[OTHER,] == 20 and series.read(4)[OTHER,] == 2
    finish(series.update(rows({"t0": 0, "t1": 9, "t2": 1, "t3": 5, "t4": 7})))
    assert series.read(0) == {("t3",): 5, ("t4",): 7, ("t0",): 0, (OTHER,): 10}
    # t4 was deleted: its place goes to the busiest kind of the others, which counts from there.
    finish(series.update(rows({"t0": 0, "t1": 11, "t2": 1, "t3": 5})))
    assert series.read(0) == {("t3",): 5, ("t0",): 0, ("t1",): 2, (OTHER,): 10}
    finish(series.update(rows({"t0": 0})))
    assert series.read(0) == {("t0",): 0, (OTHER,): 10}, "what deleted topics counted stays"


def test_few_topics_have_no_others() -> None:
    series = TopicSeries(LIMIT)
    finish(series.update(rows({"t0": 1, "t1": 2})))
    assert series.read(2) == {("t0",): 3, ("t1",): 6}


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(IDS)), st.integers(0, 5)), max_size=12))
def test_no_counter_falls(steps: list[dict[str, int]]) -> None:
    """Each step names the topics that exist, and by how much each of them grew."""
    series = TopicSeries(LIMIT)
    total: dict[str, int] = {}
    before: dict[tuple[str, ...], float] = {}
    grown = 0
    for step in steps:
        grown += sum(step.values())
        total = {name: total.get(name, 0) + more for name, more in step.items()}
        finish(series.update(rows(total)))
        now = series.read(0)
        assert len(now) <= LIMIT + 1
        assert all(now[labels] >= value for labels, value in before.items() if labels in now and labels != (OTHER,))
        assert now.get((OTHER,), 0) >= before.get((OTHER,), 0)
        assert sum(now.values()) <= grown
        before = now
