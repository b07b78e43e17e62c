"""Edits of the manifest by a serving broker: topics, partitions, settings, log starts, chunks.

Runs: the engine's admin calls with a store that loses answers, with callers that are cancelled, and concurrently. Compared: the
engine's topics with the manifest, before and after a restart. A mismatch means a topic that is listed but takes no records, one
that comes back after its deletion, or a broker that must be restarted to take another edit.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from headgate.broker.cluster.edits.incarnations import AddChunks, OpenIncarnation, SetFollower
from headgate.broker.cluster.edits.segments import SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import FORMAT_VERSION, decode_edits, decode_snapshot, encode_snapshot
from headgate.broker.cluster.objects import Follower, Topic
from headgate.broker.cluster.objects import Incarnation as Opened
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.catalog import LocalCatalog
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import Buffer
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.testing.faults import Fault
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Incarnation, Machine, MortalStore, fold_by, read_values, settings, swept

TRIES = 3
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.broker.engine.base.catalog.COMMIT_TRIES", TRIES)


@pytest.fixture
def machine(make_machine: MakeMachine) -> Machine:
    return make_machine("memory")


def check_agreement(broker: Incarnation) -> None:
    """Check that the engine serves the manifest's topics."""
    engine, manifest = broker.engine, broker.engine.manifest
    manifest.check_invariants()
    assert set(engine.logs) == set(manifest.topics)
    assert set(engine.logs_by_id) == set(manifest.topics_by_id)
    for name, topic in manifest.topics.items():
        logs = engine.logs[name]
        assert logs is engine.logs_by_id[topic.id]
        assert [log.number for log in logs] == list(range(topic.partitions))
        for log in logs:
            assert log.topic == topic
            assert log.config.retention_ms == int(topic.config.get("retention.ms", 604_800_000))
            assert log.log_start == manifest.readable.log_start(topic.id, log.number)
            assert log.closed is None
            log.check_invariants()


async def check_restart(machine: Machine, broker: Incarnation) -> Incarnation:
    """Check that the manifest in the store is the one in memory, and that the next incarnation serves the same."""
    check_agreement(broker)
    expected = broker.engine.manifest.topics
    broker = await machine.restart(broker)
    assert broker.engine.manifest.topics == expected
    check_agreement(broker)
    return broker


async def test_the_life_of_a_topic(machine: Machine) -> None:
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("t", 2, {"retention.ms": "1000"})
    other = await engine.create_topic("other", None, {})
    assert other.partitions == 1
    assert engine.topic("t") == engine.topic_by_id(topic.id) == topic
    topic = await engine.create_partitions(topic, 5)
    assert topic.partitions == 5
    topic = await engine.alter_topic_config(topic, {"retention.ms": "2000"})
    topic = await engine.alter_topic_config(topic, lambda topic: {**topic.config, "max.message.bytes": "100"})
    assert topic.config == {"retention.ms": "2000", "max.message.bytes": "100"}
    broker = await check_restart(machine, broker)
    await broker.engine.delete_topic(topic)
    with pytest.raises(InvalidError):
        broker.engine.topic("t")
    again = await broker.engine.create_topic("t", 1, {})
    assert again.id != topic.id
    broker = await check_restart(machine, broker)
    assert {topic.name for topic in broker.engine.topics()} == {"t", "other"}


async def test_wrong_edits_change_nothing(machine: Machine) -> None:
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("some.topic", 2, {})
    before = encode_snapshot(engine.manifest)
    calls: list[tuple[Reason, Callable[[], Awaitable[object]]]] = [
        (Reason.TOPIC_EXISTS, lambda: engine.create_topic("some.topic", 2, {})),
        (Reason.INVALID_TOPIC, lambda: engine.create_topic("some_topic", 2, {})),
        (Reason.INVALID_TOPIC, lambda: engine.create_topic("", 2, {})),
        (Reason.INVALID_PARTITIONS, lambda: engine.create_topic("n", 0, {})),
        (Reason.INVALID_PARTITIONS, lambda: engine.create_topic("n", 10_001, {})),
        (Reason.INVALID_CONFIG, lambda: engine.create_topic("n", 1, {"retention.ms": "soon"})),
        (Reason.INVALID_CONFIG, lambda: engine.alter_topic_config(topic, {"no.such.key": "1"})),
        (Reason.INVALID_PARTITIONS, lambda: engine.create_partitions(topic, 2)),
        (Reason.INVALID_PARTITIONS, lambda: engine.create_partitions(topic, 1)),
        (Reason.OFFSET_OUT_OF_RANGE, lambda: engine.delete_records(broker.log("some.topic"), 1)),
        (Reason.OFFSET_OUT_OF_RANGE, lambda: engine.delete_records(broker.log("some.topic"), -2)),
    ]
    for reason, call in calls:
        with raises(InvalidError, reason):
            await call()
    await engine.create_topic("n", 1, {}, validate_only=True)
    await engine.create_partitions(topic, 3, validate_only=True)
    await engine.alter_topic_config(topic, {"retention.ms": "1"}, validate_only=True)
    assert encode_snapshot(engine.manifest) == before
    check_agreement(broker)


async def test_two_who_create_the_same_topic(machine: Machine) -> None:
    broker = await machine.start()
    outcomes = await asyncio.gather(*(broker.engine.create_topic("t", n, {}) for n in (1, 2, 3)), return_exceptions=True)
    assert sorted(isinstance(outcome, InvalidError) for outcome in outcomes) == [False, True, True]
    await check_restart(machine, broker)


async def test_who_deletes_an_old_topic_does_not_harm_the_new_one_of_that_name(machine: Machine) -> None:
    broker = await machine.start()
    old = await broker.engine.create_topic("t", 1, {})
    await broker.engine.delete_topic(old)
    await broker.engine.create_topic("t", 1, {})
    with raises(InvalidError, Reason.UNKNOWN_TOPIC_ID):
        await broker.engine.delete_topic(old)
    check_agreement(broker)
    await machine.send(broker, [b"one"])
    broker = await check_restart(machine, broker)
    await machine.check(broker, exact=True)


@pytest.mark.parametrize("turns", range(8))
async def test_a_caller_that_goes_away_leaves_nothing_half_done(machine: Machine, turns: int) -> None:
    broker = await machine.start()
    engine = broker.engine
    topic = await engine.create_topic("t", 1, {})
    gone = await engine.create_topic("gone", 1, {})
    await machine.send(broker, [b"one", b"two"])
    calls: list[Awaitable[object]] = [
        engine.create_topic("new", 3, {}),
        engine.create_partitions(topic, 4),
        engine.alter_topic_config(topic, {"retention.ms": "5"}),
        engine.delete_records(broker.log(), 1),
        engine.delete_topic(gone),
        engine.allocate_producer_id(),
    ]
    for call in calls:
        task = asyncio.ensure_future(call)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    last = await engine.create_topic("last", 1, {})
    await engine.create_partitions(last, 2)
    check_agreement(broker)
    if "new" in engine.logs:
        await machine.send(broker, [b"to new"], "new", 2)
    broker = await check_restart(machine, broker)
    await machine.check(broker, exact=True)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.AMBIGUOUS, Fault.LATE, Fault.FULL])
async def test_a_short_outage_is_not_noticed(machine: Machine, fault: Fault) -> None:
    broker = await machine.start()
    for number in range(3):
        broker.faults.script("put_if_absent", *[fault] * (TRIES - 1))
        topic = await broker.engine.create_topic(f"t{number}", 1, {})
        broker.faults.script("put_if_absent", fault)
        await broker.engine.create_partitions(topic, 2)
        broker.faults.script("put_if_absent", fault)
        await broker.engine.alter_topic_config(topic, {"retention.ms": "77"})
    await broker.faults.land()
    broker = await check_restart(machine, broker)
    assert len(broker.engine.topics()) == 3


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.AMBIGUOUS, Fault.LATE, Fault.FULL])
async def test_an_edit_that_gave_up_is_decided_before_the_next(
    machine: Machine, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the calls of this test change the manifest.
    broker = await machine.start(settings(wal_checkpoint_chunks=1_000, wal_checkpoint_interval_ms=HOUR_MS))
    engine = broker.engine
    topic = await engine.create_topic("t", 1, {})
    doomed = await engine.create_topic("doomed", 1, {})
    await machine.send(broker, [b"one", b"two"])
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: engine.create_topic("new", 1, {}),
        lambda: engine.create_partitions(topic, 3),
        lambda: engine.alter_topic_config(topic, {"retention.ms": "77"}),
        lambda: engine.delete_topic(doomed),
        lambda: engine.delete_records(broker.log(), 1),
    ]
    for number, call in enumerate(calls):
        broker.faults.script("put_if_absent", *[fault] * TRIES)
        with monkeypatch.context() as patched, pytest.raises(RetryError):
            patched.setattr("headgate.broker.control.routed_catalog.COMMIT_TIMEOUT_S", 0)
            await call()
        # The next request works. The same request works again, or reports that it was already executed.
        await engine.create_topic(f"other-{number}", 1, {})
        check_agreement(broker)
        with suppress(InvalidError):
            await call()
        check_agreement(broker)
    assert broker.log().log_start == 1
    assert "new" in engine.logs
    assert "doomed" not in engine.logs
    await machine.send(broker, [b"to new"], "new")
    await machine.send(broker, [b"to a new partition"], "t", 2)
    broker = await check_restart(machine, broker)
    await machine.check(broker, exact=True)


@pytest.mark.parametrize("medium", ["memory", "aligned", "put"])
async def test_chunks_whose_listing_gave_up_are_listed_once(
    make_machine: MakeMachine, medium: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold_by(monkeypatch, 3)
    machine = make_machine(medium)
    broker = await machine.begin()
    log = broker.log()
    for round_ in range(4):
        for number in range(12):
            await machine.send(broker, [b"%d-%d" % (round_, number), bytes(9_000) + b"%d-%d" % (round_, number)])
            if number == 3 and medium != "put":
                broker.faults.script("put_if_absent", *[Fault.AMBIGUOUS] * TRIES)
            await asyncio.sleep(0)
        # Another edit comes in between, and the sweeper folds the chunks that it finds.
        with suppress(RetryError):
            await broker.engine.create_topic(f"other-{round_}", 1, {})
        await swept(broker)
        check_agreement(broker)
        log.tail.clear()
        await machine.check(broker, exact=True)
    await until_async(lambda: len(log.open.chunks) <= 1)
    await swept(broker)
    assert any(chunk.generation for chunk in broker.engine.manifest.chunks[broker.engine.incarnation_id].values())
    broker = await check_restart(machine, broker)
    await machine.check(broker, exact=True)


async def test_producer_ids_are_never_given_twice(machine: Machine) -> None:
    given: list[int] = []
    for _ in range(4):
        broker = await machine.start()
        given += await asyncio.gather(*(broker.engine.allocate_producer_id() for _ in range(1500)))
        await machine.crash(broker)
    assert len(set(given)) == len(given)


async def test_who_loses_the_race_for_an_edit_stops(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await machine.begin()
    await machine.send(broker, [b"one"])
    put = broker.faults.put_if_absent

    async def late(key: str, data: Buffer | Sequence[Buffer]) -> bool:
        if key.startswith(keys.MANIFEST):
            await machine.start()
        return await put(key, data)

    monkeypatch.setattr(broker.faults, "put_if_absent", late)
    with pytest.raises(HeadgateError):
        await broker.engine.create_topic("new", 1, {})
    assert broker.failures
    with raises(RetryError, Reason.NOT_LEADER):
        machine.send(broker, [b"two"])


async def test_two_catalogs_over_one_store() -> None:
    objects = MemoryObjects()
    first, second = LocalCatalog(MemoryStore(objects), "a" * 32), LocalCatalog(MemoryStore(objects), "b" * 32)
    topics = [CreateTopic(Topic(id=uuid.uuid4(), name=name, partitions=1)) for name in "abc"]
    await first.load()
    await second.load()
    await first.commit(topics[0])
    with pytest.raises(FencedError):
        await second.commit(topics[1])
    await second.load()
    assert set(second.manifest.topics) == {"a"}
    await second.commit(topics[1])
    with pytest.raises(FencedError):
        await first.commit(topics[2])


async def test_a_manifest_of_many_edits_is_loaded_from_its_snapshot(machine: Machine) -> None:
    broker = await machine.begin()
    for number in range(300):
        topic = await broker.engine.create_topic(f"topic-{number}-" + "x" * 200, 1, {"retention.ms": "77"})
        if number % 3 == 0:
            await broker.engine.delete_topic(topic)
    snapshots = await broker.store.list("cluster/manifest/snapshot/")
    assert snapshots
    reloaded = LocalCatalog(broker.faults, "c" * 32)
    await reloaded.load()
    assert encode_snapshot(reloaded.manifest) == encode_snapshot(broker.engine.manifest)
    broker = await check_restart(machine, broker)
    assert await read_values(broker) == []


async def test_commits_of_several_brokers_that_wait_are_one_version() -> None:
    """While the store does not answer, four brokers ask. What touches different things goes together; an edit that no longer fits
    is refused alone; an edit of the same things, and one that is checked against the state before it, is a version of its own."""
    brokers = [Opened(id=name, broker_id=number, leader_epoch=number, opened_ms=0) for number, name in enumerate("abcd")]
    follower = Follower(incarnation_id="f", host="h", grpc_port=1, stream=1)
    store = MortalStore(MemoryStore(MemoryObjects()))
    catalog = LocalCatalog(store, "a")
    await catalog.load()
    await catalog.commit(*map(OpenIncarnation, brokers))
    answers = store.held["put_if_absent"] = threading.Event()
    asked = [
        ("a", CreateTopic(Topic(id=uuid.UUID(int=1), name="t", partitions=1))),
        ("b", SetFollower("b", follower)),
        ("c", AddChunks("c", [])),
        ("d", SealSegment(7, [])),
        ("b", AddChunks("b", [])),
        ("c", SetFollower("c", follower)),
        ("a", CreateTopic(Topic(id=uuid.UUID(int=2), name="u", partitions=1))),
    ]
    commits = [asyncio.create_task(catalog.commit_for(by, [edit])) for by, edit in asked]
    for _ in range(5):
        await asyncio.sleep(0)
    answers.set()
    results = await asyncio.gather(*commits, return_exceptions=True)
    assert [type(one) for one in results] == [type(None)] * 3 + [InvalidError] + [type(None)] * 3
    found = catalog.since(1)
    assert found is not None
    written = [decode_edits(data) for _, data in found]
    assert written == [[asked[0][1]], [asked[1][1], asked[2][1]], [asked[4][1], asked[5][1]], [asked[6][1]]]


def test_what_clients_chose_in_earlier_builds_has_no_effect() -> None:
    """Replicas by partition (`reassign`), which stand in journals and snapshots of stores."""
    topic = Topic(id=uuid.uuid4(), name="a", partitions=1)
    manifest = Manifest()
    manifest.apply([CreateTopic(topic)])
    reassign = f'{{"type":"reassign","topic_id":"{topic.id}","replicas":{{"0":[2,1]}}}}'
    manifest.apply(decode_edits(f'{{"format":{FORMAT_VERSION},"edits":[{reassign}]}}'.encode()))
    snapshot = encode_snapshot(manifest)
    older = snapshot.replace(b'"name":"a"', b'"name":"a","replicas":{"0":[2,1]},"targets":{"0":[3]}')
    assert older != snapshot and encode_snapshot(decode_snapshot(older)) == snapshot
    assert manifest.topics == {"a": topic}
