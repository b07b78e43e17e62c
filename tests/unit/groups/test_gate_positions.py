"""A group's position at a gate: does the group continue behind the window, or does it wait for the history?

Pure rules, then a shard with its log. Compared: the position at which a group continues with the order of its commits and of the
gates. A mismatch means that a restart changes what a group reads, or that a group misses history which it had not passed.
"""

from __future__ import annotations

import uuid

import pytest

from headgate.broker.cluster.gates import Gate, GateWindow, Place
from headgate.broker.cluster.gates import State as GateState
from headgate.broker.coordination.effects import Append, Budget, Now
from headgate.broker.groups.events import GroupConfig
from headgate.broker.groups.positions import NEVER, Position, continued
from headgate.broker.groups.records import OffsetValue, decode_offset_value, encode_offset_value
from headgate.broker.groups.shard import Commit, Shard

TOPIC_ID = uuid.UUID(int=7)
OPENED_MS = 1_000


def gate(
    base: int, end: int, *, live: bool = True, state: GateState = "open", opened_ms: int = OPENED_MS, place: Place = "now"
) -> tuple[GateWindow, Gate]:
    window = GateWindow(0, base, end, 5)
    made = Gate(
        id=f"g{base}", topic_id=TOPIC_ID, place=place, windows=[window], ttl_ms=1000, opened_ms=opened_ms, state=state, live=live
    )
    return window, made


def value(offset: int, commit_ms: int = OPENED_MS, known_end: int = 0, since_ms: int = -1) -> OffsetValue:
    return OffsetValue(offset, 3, "", commit_ms, topic_id=TOPIC_ID, known_end=known_end, since_ms=since_ms)


@pytest.mark.parametrize(
    ("position", "windows", "wanted"),
    [
        pytest.param(value(10), [gate(10, 50)], 50, id="it had read everything"),
        pytest.param(value(10), [gate(10, 50, state="filled")], 50, id="it comes back after the fill"),
        pytest.param(value(9), [gate(10, 50)], 9, id="it had not read everything"),
        pytest.param(value(10, OPENED_MS + 1), [gate(10, 50)], 10, id="its coordinator heard late of the gate"),
        pytest.param(value(10, known_end=50), [gate(10, 50)], 10, id="its coordinator's clock is late"),
        pytest.param(value(10, OPENED_MS + 1, 0, OPENED_MS), [gate(10, 50)], 50, id="it committed the same again"),
        pytest.param(value(10), [gate(10, 50, live=False)], 10, id="only floods write to the topic"),
        pytest.param(value(10), [gate(10, 50, live=False, place="front")], 10, id="it waits in front of everything"),
        pytest.param(value(10), [gate(0, 5), gate(10, 50), gate(50, 60), gate(60, 61)], 61, id="days in a row"),
        pytest.param(value(10), [gate(10, 50), gate(51, 60)], 50, id="a live record between two gates"),
        pytest.param(value(10, known_end=50), [gate(10, 50), gate(50, 60)], 10, id="it waits at the first of two"),
        pytest.param(value(50, known_end=50), [gate(10, 50), gate(50, 60)], 60, id="it had read the first of two"),
        pytest.param(value(10), [gate(10, 50, state="released"), gate(50, 60)], 60, id="a released window has nothing to read"),
        pytest.param(value(10), [gate(10, 50, state="released")], 10, id="readers step over a released window by themselves"),
        pytest.param(
            value(10, known_end=50), [gate(10, 50, state="released"), gate(50, 60)], 10, id="it waited when both were open"
        ),
        pytest.param(value(20), [gate(10, 50, state="filled")], 20, id="it reads the history"),
    ],
)
def test_where_a_group_continues(position: OffsetValue, windows: list[tuple[GateWindow, Gate]], wanted: int) -> None:
    found = continued(position, windows)
    assert found.offset == wanted
    assert found.leader_epoch == (3 if wanted == position.offset else 5), "a client validates the offset with its epoch"


class Group:
    """A group without members in a shard whose log keeps every row."""

    def __init__(self) -> None:
        self.shard = Shard(GroupConfig(initial_rebalance_delay_ms=0), Budget(10))
        self.in_flight: list[Append] = []
        self.now_ms = 0

    def commit(self, offset: int, now_ms: int, window_end: int = 0, *, stored: bool = True, retention_ms: int = NEVER) -> None:
        self.now_ms = now_ms
        row = Position("t", 0, offset, topic_id=TOPIC_ID, window_end=window_end)
        event = Commit(token=object(), positions=(row,), retention_ms=retention_ms)
        (effect,) = self.shard.commit("g", event, Now(now_ms, now_ms))
        assert isinstance(effect, Append)
        self.in_flight.append(effect)
        if stored:
            self.store()

    def store(self) -> None:
        for append in self.in_flight:
            for _, data in append.rows:
                assert data is not None
            self.shard.stored(append.ticket, None, Now(self.now_ms, self.now_ms))
        self.in_flight.clear()

    def continues_at(self, *windows: tuple[GateWindow, Gate]) -> int:
        position = self.shard.position("g", "t", 0)
        assert position is not None and decode_offset_value(encode_offset_value(position)) == position
        return continued(position, windows).offset


def test_the_same_position_again_keeps_its_meaning() -> None:
    """Consumers commit their position every few seconds, also while they wait."""
    group = Group()
    group.commit(10, 900)
    group.commit(10, 2000, 50)
    group.commit(10, 3000, 60)
    assert group.continues_at(gate(10, 50), gate(50, 60, opened_ms=1500)) == 60
    waiting = Group()
    waiting.commit(4, 900)
    waiting.commit(10, 2000, 50)
    waiting.commit(10, 3000, 60)
    assert waiting.continues_at(gate(10, 50), gate(50, 60, opened_ms=2500)) == 10


def test_a_group_that_went_back_reads_the_history() -> None:
    group = Group()
    group.commit(10, 900)
    group.commit(0, 2000, 50)
    group.commit(10, 3000, 50)
    assert group.continues_at(gate(10, 50)) == 10
    hasty = Group()
    hasty.commit(10, 900)
    hasty.commit(0, 2000, 50, stored=False)
    hasty.commit(10, 2000, 50)
    assert hasty.continues_at(gate(10, 50)) == 10, "the commit between is still on its way to the log"


def test_a_position_with_an_expiry_is_judged_by_its_time_alone() -> None:
    """Its record has no room for more. In doubt a group waits."""
    group = Group()
    group.commit(10, 900, retention_ms=10_000)
    assert group.continues_at(gate(10, 50)) == 50
    group.commit(10, 2000, 50, retention_ms=10_000)
    assert group.continues_at(gate(10, 50)) == 10


def test_a_position_in_a_topic_made_again_begins_anew() -> None:
    before = value(10)._replace(topic_id=uuid.UUID(int=8))
    again = Position("t", 0, 10, topic_id=TOPIC_ID, window_end=50).value(2000, NEVER, before)
    assert continued(again, [gate(10, 50)]).offset == 10


def test_positions_behind_all_windows_need_no_more_bytes() -> None:
    plain = Position("t", 0, 50, topic_id=TOPIC_ID).value(2000, NEVER)
    assert encode_offset_value(Position("t", 0, 50, topic_id=TOPIC_ID, window_end=50).value(2000, NEVER)) == encode_offset_value(
        plain
    )
