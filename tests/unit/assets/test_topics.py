"""Sensors on topics: which runs start for what is seen, and when none does; a mistake starts a run twice, or never.

Compared: run keys, tags and cursors of consecutive looks with hand-made states of a topic.
"""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest

from headgate.assets.topics import FilledGates, Lag, NewRecords, TopicsResource, decide, offsets_of, topic_sensor
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError


def looks(trigger: Any, *states: Any) -> list[list[dg.RunRequest]]:
    """The runs of consecutive looks."""
    cursor, found = None, []
    for state in states:
        requests, cursor = decide("clicks", trigger, cursor, state)
        cursor = json.loads(json.dumps(cursor))
        found.append(requests)
    return found


def test_new_records_start_a_run_with_their_range() -> None:
    first, second, third, fourth = looks(
        NewRecords(at_least=10), {"0": 5, "1": 0}, {"0": 9, "1": 5}, {"0": 9, "1": 8}, {"0": 9, "1": 8}
    )
    assert (first, second, fourth) == ([], [], []), "the first look is where to begin; nine records are not ten"
    (run,) = third
    assert offsets_of(run.tags) == ({0: 5, 1: 0}, {0: 9, 1: 8}), "with the nine that were there before"


def test_the_same_state_has_the_same_run_key() -> None:
    before, now = {"0": 1}, {"0": 4}
    one, again = (decide("clicks", NewRecords(), before, now)[0][0].run_key for _ in range(2))
    other = decide("clicks", NewRecords(), before, {"0": 5})[0][0].run_key
    assert one == again and one != other


def test_a_topic_that_was_made_again_begins_again() -> None:
    assert looks(NewRecords(), {"0": 50}, {"0": 3}, {"0": 4}) == [
        [],
        [],
        [decide("clicks", NewRecords(), {"0": 3}, {"0": 4})[0][0]],
    ]


def test_a_lag_starts_one_run_until_it_was_low_again() -> None:
    runs = looks(Lag(group="billing", above=100), [50, 1], [120, 1], [300, 1], [60, 9], [200, 9], [40, 20], [101, 20])
    assert [len(one) for one in runs] == [0, 1, 0, 0, 0, 0, 1]
    assert runs[1][0].tags["headgate/lag"] == "120"


def test_each_filled_gate_starts_one_run() -> None:
    runs = looks(FilledGates(), ["clicks.1"], ["clicks.1", "clicks.2", "clicks.3"], ["clicks.1", "clicks.2", "clicks.3"], [])
    assert [[one.tags["headgate/gate"] for one in each] for each in runs] == [[], ["clicks.2", "clicks.3"], [], []]


def test_many_gates_come_over_several_looks() -> None:
    gates = [f"clicks.{number:03}" for number in range(150)]
    runs = looks(FilledGates(), [], gates, gates)
    assert [len(one) for one in runs] == [0, 100, 50]
    assert len({one.run_key for each in runs for one in each}) == 150


class _Topics(TopicsResource):
    """A topic that grows by three records with each look."""

    def ends(self, topic: str) -> dict[int, int]:
        if topic == "gone":
            raise RetryError(Reason.CLOSED, "no broker listens there")
        SEEN.append(topic)
        return {0: 3 * len(SEEN)}


SEEN: list[str] = []


@dg.job
def follow_up() -> None: ...


def test_a_sensor_keeps_its_cursor() -> None:
    SEEN.clear()
    sensor = topic_sensor("web.clicks", NewRecords(), target=follow_up)
    assert sensor.name == "web_clicks_records"
    cursor = None
    keys = []
    for _ in range(3):
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_sensor_context(instance=instance, cursor=cursor, resources={"topics": _Topics()})
            done = sensor.evaluate_tick(context)
            cursor = done.cursor
            keys += [one.run_key for one in done.run_requests or ()]
    assert json.loads(str(cursor)) == {"0": 9} and len(set(keys)) == 2


def test_a_cluster_that_does_not_answer_is_a_reason_to_skip() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        sensor = topic_sensor("gone", NewRecords(), target=follow_up, name="any")
        context = dg.build_sensor_context(instance=instance, resources={"topics": _Topics()})
        assert sensor.evaluate_tick(context).skip_message == "no broker listens there"


def test_a_run_of_another_origin_has_no_range() -> None:
    with pytest.raises(InvalidError, match="not started by a sensor"):
        offsets_of({})
