"""The group coordinator on a real engine over a store in memory: its state after restarts, the length of its log, and pauses.

A restart starts a second node on the same store, as after SIGKILL: the first does not seal its log. A mismatch means a
position that is lost, a group that rebalances without need, or members that are expelled because of the broker's own pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headgate.broker.cluster.objects import Incarnation
from headgate.broker.coordination import loading, shortening
from headgate.broker.coordination.effects import shard_of
from headgate.broker.coordination.patient_clock import PatientClock
from headgate.broker.groups.coordinator import TOPIC
from headgate.broker.groups.entry import DeleteReply, RowsReply
from headgate.broker.groups.events import Heartbeat, Join, JoinReply, Leave, Leaving, State, Sync, SyncReply
from headgate.broker.groups.positions import Position
from headgate.broker.groups.shard import Commit
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.memory import MemoryStore
from tests.support import nodes
from tests.support.errors import raises
from tests.support.waiting import begun, until_async
from tests.unit.engine.world import MortalStore

DAY_MS = 86_400_000


class Broker:
    """An engine with its coordinator on a store that outlives both."""

    def __init__(self, **settings: int) -> None:
        self.settings = Settings.from_values({"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 3, **settings})
        self.store = MemoryStore()
        self.clock = ManualClock()
        self.failures: list[HeadgateError] = []
        self._make()

    def _make(self) -> None:
        self._mortal = MortalStore(self.store, self.store.url)
        self.node = nodes.make(self.settings, self._mortal, self.clock, self.failures.append)
        self.engine, self.groups = self.node.engine, self.node.groups

    async def start(self) -> None:
        await self.node.start()
        await self.groups.loaded()

    async def stop(self) -> None:
        await nodes.end(self.node)
        self._make()

    async def kill(self) -> None:
        """End as by a SIGKILL that comes when all records are durable. The next node is made, but not started."""
        await self.engine.durable()
        assert not self.failures
        self._mortal.kill()
        await nodes.bury(self.node)
        self.failures.clear()
        self._make()

    async def crash(self) -> None:
        await self.kill()
        await self.start()

    async def join(self, group: str, member_id: str = "", **fields: object) -> JoinReply:
        event = {
            "token": self.groups.token(),
            "member_id": member_id,
            "fresh_member_id": self.groups.fresh_member_id("client"),
            "protocol_type": "consumer",
            "protocols": (("range", b"x"),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "require_member_id": False,
            **fields,
        }
        return await self.groups.join(group, Join(**event))  # type: ignore[arg-type]

    async def sync(self, group: str, member_id: str, generation: int, assignments: dict[str, bytes]) -> SyncReply:
        event = Sync(token=self.groups.token(), member_id=member_id, generation=generation, assignments=tuple(assignments.items()))
        return await self.groups.sync(group, event)

    async def beat(self, group: str, member_id: str, generation: int) -> Reason | None:
        event = Heartbeat(token=self.groups.token(), member_id=member_id, generation=generation)
        return (await self.groups.heartbeat(group, event)).error

    async def commit(self, group: str, offset: int, partition: int = 0, topic: str = "t", **fields: object) -> RowsReply:
        row = Position(topic=topic, partition=partition, offset=offset, topic_id=self.engine.topic(topic).id)
        return await self.groups.commit(group, Commit(token=self.groups.token(), positions=(row,), **fields))  # type: ignore[arg-type]

    async def member(self, group: str) -> str:
        """A stable group of one."""
        reply = await self.join(group)
        await self.sync(group, reply.member_id, reply.generation, {reply.member_id: b"mine"})
        return reply.member_id


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    await broker.start()
    await broker.engine.create_topic("t", 4, {})
    yield broker
    failures = list(broker.failures)
    await broker.stop()
    assert not failures


async def test_the_topic_is_made_when_the_first_group_needs_it(broker: Broker) -> None:
    assert await broker.beat("g", "m", 1) is Reason.UNKNOWN_MEMBER_ID
    assert broker.groups.positions("g") == [] and broker.groups.find("g") is None
    with pytest.raises(InvalidError):
        broker.engine.topic(TOPIC)
    replies = await asyncio.gather(*(broker.commit(f"g{number}", number) for number in range(20)))
    assert replies == [RowsReply((None,))] * 20
    topic = broker.engine.topic(TOPIC)
    assert (topic.partitions, topic.config["cleanup.policy"]) == (3, "compact")


async def test_until_the_topic_exists_only_the_leader_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may hear late that the topic was created, and that its lead has acked a position. A promise of the leader does not
    change that."""
    groups, manifest = broker.groups, broker.engine.manifest
    leader = Incarnation(id="f" * 32, broker_id=9, leader_epoch=1, opened_ms=0)
    monkeypatch.setitem(manifest.incarnations, leader.id, leader)
    monkeypatch.setattr(manifest, "leader", leader.id)
    broker.engine.proof.extend(broker.engine.clock.monotonic(), 60_000)
    await groups.topic.confirm()
    for ask in (lambda: groups.position("g", "t", 0), lambda: groups.positions("g"), lambda: groups.find("g")):
        with raises(RetryError, Reason.NOT_COORDINATOR):
            ask()
    for request in (broker.beat("g", "m", 1), groups.delete_group("g"), groups.delete_positions("g", [("t", 0)])):
        with raises(RetryError, Reason.NOT_COORDINATOR):
            await request
    assert groups.topic.holder("g") is leader
    assert list(groups.list_groups()) == []

    mine = manifest.incarnations[broker.engine.incarnation_id]
    monkeypatch.setattr(manifest, "leader", mine.id)
    assert groups.topic.holder("g") is mine
    assert groups.position("g", "t", 0) is None and groups.positions("g") == [] and groups.find("g") is None
    assert await broker.beat("g", "m", 1) is Reason.UNKNOWN_MEMBER_ID


async def test_a_topic_that_another_broker_has_just_created_makes_the_client_retry(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def create_topic(*_: object) -> None:
        raise InvalidError(Reason.TOPIC_EXISTS, "the leader knows the topic, and this broker does not yet")

    monkeypatch.setattr(broker.engine, "create_topic", create_topic)
    with raises(RetryError, Reason.NOT_COORDINATOR):
        await broker.commit("g", 1)


async def test_a_topic_that_somebody_else_made_does_not_age(broker: Broker) -> None:
    await broker.engine.create_topic(TOPIC, 5, {"retention.ms": "1"})
    assert await broker.commit("g", 1) == RowsReply((None,))
    topic = broker.engine.topic(TOPIC)
    assert (topic.partitions, topic.config["cleanup.policy"], topic.config["retention.ms"]) == (5, "compact", "1")
    await broker.engine.alter_topic_config(topic, {})
    await broker.crash()
    assert broker.engine.topic(TOPIC).config["cleanup.policy"] == "compact"
    assert [value.offset for _, _, value in broker.groups.positions("g")] == [1]


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_a_restart_changes_nothing_for_a_group(broker: Broker, end: str) -> None:
    member = await broker.member("g")
    for partition in range(4):
        assert await broker.commit("g", 10 + partition, partition, member_id=member, generation=1) == RowsReply((None,))
    await broker.commit("simple", 7)
    before = broker.groups.positions("g")
    if end == "crash":
        await broker.crash()
    else:
        await broker.stop()
        await broker.start()
    assert broker.groups.positions("g") == before
    assert [value.offset for _, _, value in broker.groups.positions("simple")] == [7]
    assert {row.group_id: row.state for row in broker.groups.list_groups()} == {"g": State.STABLE, "simple": State.EMPTY}
    assert await broker.beat("g", member, 1) is None
    assert (await broker.sync("g", member, 1, {})).assignment == b"mine"
    assert await broker.commit("g", 99, member_id=member, generation=1) == RowsReply((None,))


async def test_a_consumer_that_was_away_for_thirty_days_goes_on_where_it_stopped(broker: Broker) -> None:
    member = await broker.member("g")
    await broker.commit("g", 42, member_id=member, generation=1)
    await broker.groups.leave("g", Leave(token=broker.groups.token(), members=(Leaving(member_id=member),)))
    broker.clock.jump_wall(30 * DAY_MS)
    await broker.crash()
    broker.clock.jump_wall(-60 * DAY_MS)
    await broker.crash()
    await broker.groups._clean()
    reply = await broker.join("g")
    assert reply.error is None and reply.generation == 3
    assert [(partition, value.offset) for _, partition, value in broker.groups.positions("g")] == [(0, 42)]


async def test_a_jump_of_the_wall_clock_expels_nobody(broker: Broker) -> None:
    member = await broker.member("g")
    broker.clock.jump_wall(3_600_000)
    await asyncio.sleep(0)
    assert await broker.beat("g", member, 1) is None


async def test_sessions_end_by_the_time_that_passes(broker: Broker) -> None:
    member = await broker.member("g")
    for _ in range(20):
        broker.clock.advance(1_000)
        broker.groups._wake()
    assert await broker.beat("g", member, 1) is Reason.UNKNOWN_MEMBER_ID


async def test_a_pause_of_the_broker_expels_nobody(broker: Broker) -> None:
    member = await broker.member("g")
    broker.clock.advance(3_600_000)
    broker.groups._wake()
    assert await broker.beat("g", member, 1) is None


def test_a_patient_clock_leaves_out_pauses_and_nothing_else() -> None:
    clock = ManualClock(1_000)
    patient = PatientClock(clock)
    start = patient.now()
    for _ in range(100):
        clock.advance(700)
        patient.now()
    assert patient.now().timer_ms - start.timer_ms == 70_000
    clock.advance(60_000)
    now = patient.now()
    assert now.timer_ms - start.timer_ms == 70_500 and now.wall_ms == 131_000
    clock.jump_wall(-100_000)
    assert patient.now().timer_ms == now.timer_ms


async def test_loading_is_tried_again_when_the_store_does_not_answer(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LOAD_RETRY_S", 0.01)
    await broker.commit("g", 1)
    await broker.kill()
    read, failures = broker.engine.read, iter(range(3))

    async def flaky(*arguments: object) -> object:
        if next(failures, None) is not None:
            raise RetryError(Reason.STORE_UNAVAILABLE, "no store")
        return await read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.engine, "read", flaky)
    async with asyncio.timeout(90):
        await broker.start()
    assert [value.offset for _, _, value in broker.groups.positions("g")] == [1]
    assert next(failures, None) is None and not broker.failures


async def test_groups_whose_records_are_damaged_wait_and_no_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "DAMAGED_RETRY_S", 0.05)
    for group in ("a", "b"):
        await broker.commit(group, 7)
    assert shard_of("a", 3) != shard_of("b", 3)
    await broker.stop()
    # A batch of group records holds its group's id: flip a bit of it.
    for row in await broker.store.list("wal/"):
        data = await broker.store.get(row.key)
        at = data.find(b"\0\x01a\0\x01t")
        if at >= 0:
            damaged, right = row.key, data
            await broker.store.put(row.key, data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
    await broker.start()
    assert [value.offset for _, _, value in broker.groups.positions("b")] == [7]
    with raises(RetryError, Reason.COORDINATOR_LOADING):
        broker.groups.positions("a")
    (told,) = [record for record in caplog.records if record.message == "groups_damaged"]
    assert told.levelname == "ERROR"
    await broker.store.put(damaged, right)
    await until_async(lambda: all(slot.loaded for slot in broker.groups._slots.values()))
    assert [value.offset for _, _, value in broker.groups.positions("a")] == [7]


async def test_groups_are_loaded_while_the_settings_of_their_topic_cannot_be_changed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person has changed the settings, and the cluster's leader is away: the broker must not end at its start because of that."""
    await broker.commit("g", 1)
    await broker.engine.alter_topic_config(broker.engine.topic(TOPIC), {})
    await broker.kill()

    async def refused(*arguments: object) -> None:
        raise RetryError(Reason.NOT_READY, "no broker leads the cluster")

    with monkeypatch.context() as patched:
        patched.setattr(broker.engine, "alter_topic_config", refused)
        async with asyncio.timeout(90):
            await broker.start()
    assert [value.offset for _, _, value in broker.groups.positions("g")] == [1]
    assert not broker.failures
    await broker.commit("g", 2)
    assert broker.engine.topic(TOPIC).config["cleanup.policy"] == "compact"


async def test_what_somebody_else_wrote_into_the_topic_is_skipped(broker: Broker) -> None:
    from tests.support.batches import batch

    await broker.commit("g", 1)
    partition = broker.engine.partition(broker.engine.topic(TOPIC), shard_of("g", 3))
    for records in ([b"value without a key"], [None], [b"\x00" * 100]):
        broker.engine.append(partition, memoryview(bytearray(batch(records, timestamp_ms=broker.clock.now_ms()))))
    await broker.commit("g", 2)
    await broker.crash()
    assert [value.offset for _, _, value in broker.groups.positions("g")] == [2]


async def test_requests_are_refused_while_groups_are_loaded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.commit("g", 1)
    await broker.kill()
    read, answers = broker.engine.read, asyncio.Event()

    async def slow(*arguments: object) -> object:
        await answers.wait()
        return await read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.engine, "read", slow)
    await broker.node.start()
    for ask in (broker.join("g"), broker.commit("g", 2), broker.beat("g", "m", 1), broker.groups.delete_group("g")):
        with raises(RetryError, Reason.COORDINATOR_LOADING):
            await ask
    for look in (broker.groups.find, broker.groups.positions):
        with pytest.raises(RetryError):
            look("g")
    answers.set()
    await broker.groups.loaded()
    assert len(broker.groups.positions("g")) == 1


async def test_a_topic_that_is_made_again_has_no_positions(broker: Broker) -> None:
    await broker.commit("g", 5)
    await broker.engine.create_topic("kept", 1, {})
    await broker.commit("g", 6, topic="kept")
    await broker.engine.delete_topic(broker.engine.topic("t"))
    assert broker.groups.position("g", "t", 0) is None
    await broker.engine.create_topic("t", 4, {})
    assert broker.groups.position("g", "t", 0) is None
    await broker.groups._clean()
    await broker.engine.durable(10_000)
    await asyncio.sleep(0)
    await broker.crash()
    assert [(topic, value.offset) for topic, _, value in broker.groups.positions("g")] == [("kept", 6)]
    await broker.commit("g", 1)
    assert [value.offset for _, _, value in broker.groups.positions("g")] == [6, 1]


async def test_the_log_of_positions_stays_short(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortening, "SNAPSHOT_ROWS_MIN", 100)
    monkeypatch.setattr(shortening, "CUT_INTERVAL_S", 0.0)
    member = await broker.member("g")
    await broker.commit("old", 1)
    partition = broker.engine.partition(broker.engine.topic(TOPIC), shard_of("g", 3))
    for offset in range(1_000):
        await broker.commit("g", offset, offset % 4, member_id=member, generation=1)
        broker.clock.advance(10)
        if offset % 100 == 99:
            broker.groups._wake()
            await asyncio.sleep(0.01)
    assert partition.next_offset > 1_000
    await until_async(lambda: partition.next_offset - partition.log_start < 400)
    before = broker.groups.positions("g")
    await broker.crash()
    assert broker.groups.positions("g") == before and len(before) == 4
    assert [value.offset for _, _, value in broker.groups.positions("old")] == [1]
    assert await broker.beat("g", member, 1) is None


async def test_what_the_log_does_not_take_is_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.commit("g", 1)
    error = RetryError(Reason.STORE_UNAVAILABLE, "no store")

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(broker.engine, "append", refuse)
    assert await broker.commit("g", 2) == RowsReply((Reason.COORDINATOR_NOT_AVAILABLE,))
    reply = await broker.join("h")
    assert (await broker.sync("h", reply.member_id, 1, {})).error is Reason.COORDINATOR_NOT_AVAILABLE
    assert await broker.groups.delete_group("g") == DeleteReply(Reason.COORDINATOR_NOT_AVAILABLE)
    error = RetryError(Reason.NOT_LEADER, "another leads")
    assert await broker.commit("g", 2) == RowsReply((Reason.NOT_COORDINATOR,))
    monkeypatch.undo()
    assert [value.offset for _, _, value in broker.groups.positions("g")] == [1]
    assert await broker.commit("g", 3) == RowsReply((None,))


async def test_an_assignment_that_is_too_large_for_a_record_is_refused(broker: Broker) -> None:
    reply = await broker.join("g")
    answer = await broker.sync("g", reply.member_id, 1, {reply.member_id: b"x" * (17 << 20)})
    assert answer.error is Reason.MESSAGE_TOO_LARGE
    assert (await broker.join("g", reply.member_id)).generation == 2


async def test_whoever_waits_is_told_when_the_broker_closes(broker: Broker) -> None:
    member = await broker.member("g")
    waiting = await begun(broker.join("g"))
    assert not waiting.done() and await broker.beat("g", member, 1) is Reason.REBALANCE_IN_PROGRESS
    commit = await begun(broker.commit("g", 5, member_id=member, generation=1))
    await broker.stop()
    assert (await waiting).error is Reason.NOT_COORDINATOR
    assert await commit == RowsReply((None,)), "the log was flushed, so the position is durable"
    with pytest.raises(RetryError):
        await broker.join("g")
    await broker.start()
    assert [value.offset for _, _, value in broker.groups.positions("g")] == [5]


async def test_a_client_that_goes_away_while_it_waits_harms_nobody(broker: Broker) -> None:
    member = await broker.member("g")
    waiting = await begun(broker.join("g"))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await broker.join("g", member)).generation == 2


async def test_committed_positions_are_those_of_topics_that_are_there(broker: Broker) -> None:
    await broker.commit("g", 30, 1)
    await broker.commit("g", 500, 0)
    assert sorted(broker.groups.committed()) == [("g", "t", 0, 500), ("g", "t", 1, 30)]
    await broker.engine.delete_topic(broker.engine.topic("t"))
    assert list(broker.groups.committed()) == []
