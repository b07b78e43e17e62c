"""Restarts: records that were acked before a crash are there after it, whatever the crash interrupted.

Runs: engines over a medium that outlives them, ended as SIGKILL ends a process (`tests/unit/engine/world.py`), at many moments,
on memory with and without append and alignment, on a directory, and on a real S3 server. Compared: every acked record with the
next engine's reads; offsets, producers' duplicates, leader epochs. A mismatch means that an acked record was lost, came twice or
changed its place.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from headgate.broker.engine.base import keys
from headgate.broker.engine.upkeep.recovery import is_fence, recover
from headgate.broker.log.batch import parse_header
from headgate.broker.log.chunk import CHUNK_HEADER_BYTES
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import CorruptError, FatalError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import ObjectInfo
from headgate.broker.testing.faults import Fault
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import Incarnation, Machine, read_batches, read_values, settings, swept

HOUR_MS = 3600 * 1000


async def test_acked_records_survive_a_crash_and_offsets_go_on(machine: Machine) -> None:
    broker = await machine.begin()
    for number in range(20):
        assert await machine.send(broker, [b"%d-0" % number, b"%d-1" % number]) == 2 * number
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)
    assert await machine.send(broker, [b"after"]) == 40
    await machine.check(broker, exact=True)
    await machine.stop(broker)
    broker = await machine.start()
    await machine.check(broker, exact=True)
    assert broker.log().next_offset == 41


async def test_a_broker_that_was_idle_for_hours_before_its_first_record(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin()
    clock.advance(3 * HOUR_MS)
    await machine.send(broker, [b"late"])
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)


async def test_chunks_that_retention_removed_do_not_hide_the_ones_behind_them(machine: Machine) -> None:
    broker = await machine.begin()
    for number in range(10):
        await machine.send(broker, [b"old-%d" % number, bytes(20_000)])
    log = broker.log()
    await until_async(lambda: len(log.sealed) > 0 and len(log.open.chunks) <= 1)
    await broker.engine.delete_records(log, -1)
    await swept(broker)
    await machine.send(broker, [b"new"])
    broker = await machine.restart(broker)
    await machine.check(broker)
    assert (await read_values(broker))[-1] == b"new"


async def test_several_partitions_and_topics(machine: Machine) -> None:
    broker = await machine.begin(3)
    await broker.engine.create_topic("u", 1, {})
    for number in range(30):
        machine.send(broker, [b"%d" % number], "t", number % 3)
        await machine.send(broker, [b"u%d" % number], "u")
    doomed = await broker.engine.create_topic("doomed", 1, {})
    await machine.send(broker, [b"gone"], "doomed")
    del machine.acked["doomed", 0]
    await broker.engine.delete_topic(doomed)
    await broker.engine.create_topic("doomed", 1, {})
    await broker.engine.create_partitions(broker.engine.topic("u"), 2)
    await machine.send(broker, [b"u-new"], "u", 1)
    broker = await machine.restart(broker)
    await machine.check(broker, exact=True)
    assert await read_values(broker, "doomed") == []


async def scenario(machine: Machine, broker: Incarnation) -> None:
    """Do some of every kind of a broker's work. Raises an error when the process dies."""
    engine = broker.engine
    for name in ("t", "u"):
        if name not in engine.logs:
            await engine.create_topic(name, 2, {})
    for number in range(12):
        waiting = [machine.send(broker, [unique(), unique() + bytes(3_000)], "t", number % 2)]
        waiting.append(machine.send(broker, [unique()], "u"))
        await asyncio.gather(*waiting)
        if number == 6:
            await engine.alter_topic_config(engine.topic("u"), {"retention.ms": str(number)})
            await engine.delete_records(broker.log("t", 0), broker.log("t", 0).high_watermark - 1)
    await engine.close()
    await machine.forget(broker)


_numbers = itertools.count()


def unique() -> bytes:
    return b"%d" % next(_numbers)


SMALL = settings(wal_chunk_bytes=8_192, wal_checkpoint_interval_ms=1, wal_checkpoint_chunks=1)


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("medium", ["inline", "memory", "aligned", "put"])
async def test_a_crash_before_any_call_of_the_store(make_machine: MakeMachine, medium: str, part: int) -> None:
    """The process dies before its first call of the store, then before its second, and so on, until it survives the scenario."""
    kill_at_call = part + 1
    while True:
        machine = make_machine(medium)
        broker: Incarnation | None = None
        lived = False
        try:
            broker = await machine.start(SMALL, kill_at_call=kill_at_call)
            await scenario(machine, broker)
            lived = True
        except HeadgateError:
            await machine.close()
        successor = await machine.start(SMALL)
        await machine.check(successor)
        await check_objects(successor)
        if "t" in successor.engine.logs:
            await machine.send(successor, [unique()], "t")
            await machine.check(successor)
        await machine.close()
        if lived:
            break
        # The scenario makes hundreds of calls: a run of the tests tries only some of them.
        kill_at_call += 4 if kill_at_call < 60 else 12
    assert kill_at_call > 40, "the scenario is shorter than it was: fewer moments are tried"


async def test_chunks_are_listed_many_at_a_time(make_machine: MakeMachine) -> None:
    """The second listing costs as little as the first: a listing is three requests, each as expensive as that of the chunk."""
    machine = make_machine("put")
    broker = await machine.begin(settings=settings(wal_checkpoint_interval_ms=3_600_000, wal_checkpoint_chunks=5))
    before = len(await broker.store.list(f"{keys.MANIFEST}/edit/"))
    for _ in range(20):
        await machine.send(broker, [unique()])
    await until_async(lambda: len(broker.engine.manifest.chunks[broker.engine.incarnation_id]) >= 15)
    assert len(await broker.store.list(f"{keys.MANIFEST}/edit/")) - before <= 4


@pytest.mark.parametrize("machine", ["inline", "aligned", "put"], indirect=True)
async def test_crashes_of_the_one_that_recovers(machine: Machine) -> None:
    """A broker with an unlisted tail dies. So does the next one, before its first call, and so on, until one survives."""
    broker = await machine.begin(
        2, settings=settings(wal_chunk_bytes=8_192, wal_checkpoint_interval_ms=3_600_000, wal_checkpoint_chunks=1000)
    )
    for number in range(12):
        await machine.send(broker, [unique(), unique() + bytes(3_000)], "t", number % 2)
    await machine.crash(broker)
    kill_at_call = 1
    while True:
        try:
            broker = await machine.start(SMALL, kill_at_call=kill_at_call)
            break
        except HeadgateError:
            # Behind its start a broker also deletes objects of its predecessors, the more of them the more have died.
            kill_at_call += max(1, kill_at_call // 20)
    assert kill_at_call > 10
    await machine.close()
    for _ in range(3):
        broker = await machine.start(SMALL)
        await machine.check(broker, exact=True)
        await check_objects(broker)
        await machine.send(broker, [unique()], "t")
        await machine.crash(broker)


async def everything(broker: Incarnation) -> list[ObjectInfo]:
    """The keys of all WALs."""
    found: list[ObjectInfo] = []
    while page := await broker.faults.list("wal/", found[-1].key if found else ""):
        found += page
    return found


async def check_objects(broker: Incarnation) -> None:
    """Every object that the manifest names exists. Sealed incarnations leave only fences and producer state behind."""
    manifest = broker.engine.manifest
    await until_async(lambda: not broker.sweeper._unswept)
    found = await everything(broker)
    there = {info.key for info in found}
    named = set()
    for incarnation_id, chunks in manifest.chunks.items():
        for chunk in chunks.values():
            named |= {keys.chunk_object(incarnation_id, chunk), keys.index_object(incarnation_id, chunk)}
    assert (named | manifest.producers_objects()) <= there
    own = keys.wal_prefix(broker.engine.incarnation_id)
    for info in found:
        name = info.key.rsplit("/", 1)[1]
        if info.key not in named and not info.key.startswith(own) and not name.startswith("producers-"):
            assert is_fence(info), f"an object that nobody needs is left. key=`{info.key}`"


async def test_an_incarnation_that_was_fenced_stays_fenced(machine: Machine) -> None:
    broker = await machine.begin()
    await machine.send(broker, [b"one"])
    successor = await machine.restart(broker)
    await successor.engine.delete_records(successor.log(), -1)
    await swept(successor)
    assert broker.engine.incarnation_id not in successor.engine.manifest.incarnations
    await machine.stop(successor)
    left = await successor.faults.list(keys.wal_prefix(broker.engine.incarnation_id))
    assert left
    assert all(is_fence(info) for info in left)


async def test_a_producer_is_known_after_a_restart(machine: Machine) -> None:
    """The checks cover listed and unlisted batches, in the checkpoint and behind it."""
    broker = await machine.begin(2, settings=settings(wal_chunk_bytes=8_192))
    sequence = 0
    for _round in range(4):
        offsets: dict[int, int] = {}
        for _ in range(8):
            offsets[sequence] = await machine.send(broker, [unique(), unique() + bytes(1_500)], producer=(7, 3, sequence))
            await machine.send(broker, [unique() + bytes(500)], partition=1)
            sequence += 2
        log = broker.log()
        if _round == 1:
            await until_async(lambda log=log: len(log.open.chunks) <= 1)
        broker = await machine.restart(broker, settings(wal_chunk_bytes=8_192))
        end = broker.log().next_offset
        for again, offset in list(offsets.items())[-5:]:
            assert await machine.send(broker, machine.values(offset, 2), producer=(7, 3, again)) == offset
        assert broker.log().next_offset == end
        with raises(InvalidError, Reason.OUT_OF_ORDER_SEQUENCE):
            machine.send(broker, [b"gap"], producer=(7, 3, sequence + 1))
        with raises(InvalidError, Reason.INVALID_PRODUCER_EPOCH):
            machine.send(broker, [b"old"], producer=(7, 2, 0))
        await machine.check(broker, exact=True)
    offset = await machine.send(broker, [b"new epoch"], producer=(7, 4, 0))
    await machine.stop(broker)
    broker = await machine.start()
    assert await machine.send(broker, [b"new epoch"], producer=(7, 4, 0)) == offset
    await machine.check(broker, exact=True)


async def test_a_batch_that_was_lost_with_its_broker_is_no_duplicate(make_machine: MakeMachine) -> None:
    machine = make_machine("memory")
    broker = await machine.begin()
    await machine.send(broker, [b"0"], producer=(7, 0, 0))
    broker.store.refused["appender.write"] = RetryError(Reason.STORE_UNAVAILABLE, "not now")
    for sequence in (1, 2, 3):
        machine.send(broker, [b"%d" % sequence], producer=(7, 0, sequence))
    await broker.checkpointer.list_all()
    await machine.crash(broker)
    machine.sent["t", 0] = [b"0"]
    broker = await machine.start()
    for sequence in (1, 2, 3):
        assert await machine.send(broker, [b"%d" % sequence], producer=(7, 0, sequence)) == sequence
    await machine.check(broker, exact=True)


async def test_leader_epochs_tell_where_each_broker_began(machine: Machine) -> None:
    broker = await machine.begin(2)
    ends: dict[int, int] = {}
    for round_ in range(5):
        log = broker.log()
        epoch = log.leader_epoch
        assert epoch > broker.engine.leader_epoch, "segments and incarnations share one counter"
        if round_ != 2:  # this epoch has no records
            await machine.send(broker, [unique(), unique()])
            await machine.send(broker, [unique() + bytes(70_000)])
        ends[epoch] = log.high_watermark
        assert broker.engine.epoch_end(log, epoch) == (epoch, log.high_watermark)
        assert broker.engine.epoch_end(log, epoch + 1) == (-1, -1)
        assert broker.engine.epoch_end(log, -1) == (-1, -1)
        if round_ % 2:
            await machine.crash(broker)
        else:
            await machine.stop(broker)
        broker = await machine.start()
        assert broker.engine.leader_epoch > epoch
        log = broker.log()
        before = dict(zip(ends, [0, *ends.values()], strict=False))
        written = [known for known, end in ends.items() if end > before[known]]
        for known, end in ends.items():
            there = max(one for one in written if one <= known)
            assert broker.engine.epoch_end(log, known) == (there, end), (known, ends)
        header = parse_header((await read_batches(broker))[-1])
        assert header.leader_epoch == max(written)
    # A reader of the last record of an epoch continues after the deletion of its records at its offset.
    first = min(ends)
    await broker.engine.delete_records(log, ends[first])
    broker = await machine.restart(broker)
    assert broker.engine.epoch_end(broker.log(), first) in ((first, ends[first]), (0, ends[first]))


@pytest.mark.parametrize("medium", ["memory", "aligned"])
async def test_a_torn_last_write_is_cut(make_machine: MakeMachine, medium: str) -> None:
    for size in (10, 5_000, 100_000):
        machine = make_machine(medium)
        broker = await machine.begin()
        for number in range(3):
            await machine.send(broker, [b"acked-%d" % number])
        broker.faults.script("appender.write", *[Fault.TORN] * 1000)
        waiting = machine.send(broker, [bytes(size) + b"torn"])
        await until_async(lambda: broker.engine.stalled is not None)  # noqa: B023
        await machine.crash(broker)
        assert waiting.exception() is not None
        broker = await machine.start()
        await machine.check(broker, exact=True)
        assert await machine.send(broker, [b"in its place"]) == 3
        await machine.crash(broker)
        await machine.check(await machine.start(), exact=True)


@pytest.mark.parametrize("machine", ["memory", "aligned", "local"], indirect=True)
async def test_records_that_were_stored_but_not_acked_may_come_back_whole(machine: Machine) -> None:
    broker = await machine.begin()
    await machine.send(broker, [b"acked"], producer=(7, 0, 0))
    broker.store.refused["appender.exists"] = RetryError(Reason.STORE_UNAVAILABLE, "not now")
    machine.send(broker, [b"stored", b"too"], producer=(7, 0, 1))
    await until_async(lambda: broker.engine.stalled is not None)
    broker = await machine.restart(broker)
    assert await read_values(broker) == [b"acked", b"stored", b"too"]
    # The producer got no ack, and sends them again.
    assert await machine.send(broker, [b"stored", b"too"], producer=(7, 0, 1)) == 1
    await machine.check(broker, exact=True)


async def crashed(machine: Machine, records: int = 1) -> tuple[Incarnation, str, bytes]:
    """A broker that was killed after this many acks, each record in a group of its own; its first chunk's key and bytes. On files,
    the next chunk has been made."""
    broker = await machine.begin()
    for number in range(records):
        await machine.send(broker, [b"record-%d" % number])
    appender = broker.faults.appender
    assert appender is not None
    await until_async(lambda: appender.exists(keys.chunk(broker.engine.incarnation_id, 1)))
    await machine.crash(broker)
    key = keys.chunk(broker.engine.incarnation_id, 0)
    return broker, key, await broker.faults.get(key)


async def test_damage_in_the_middle_of_the_wal_is_not_passed_over(make_machine: MakeMachine) -> None:
    machine = make_machine("memory")
    broker, key, data = await crashed(machine, 5)
    await broker.faults.put(key, data.replace(b"record-2", b"secord-2"))
    with pytest.raises(CorruptError) as caught:
        await machine.start()
    assert "chunk=`0`" in caught.value.message and f"key=`{key}`" in caught.value.message
    await broker.faults.put(key, data)
    await machine.check(await machine.start(), exact=True)


async def test_a_file_of_the_wal_that_somebody_cut_does_not_pass_for_a_torn_end(make_machine: MakeMachine) -> None:
    """A broker that dies while it writes leaves zeros behind its written bytes, never a shorter file."""
    machine = make_machine("local")
    broker, key, data = await crashed(machine, 3)
    within = data.index(b"record-2")
    torn = data[:within] + bytes(len(data) - within)
    for cut in (data[:within], torn[:-1]):
        await broker.faults.put(key, cut)
        with pytest.raises(CorruptError, match="the WAL ends within a group, and its file was longer"):
            await machine.start()
    await broker.faults.put(key, data)
    await machine.check(await machine.start(), exact=True)


async def test_a_torn_end_is_cut(make_machine: MakeMachine) -> None:
    machine = make_machine("local")
    broker, key, data = await crashed(machine, 3)
    within = data.index(b"record-2")
    await broker.faults.put(key, data[:within] + bytes(len(data) - within))
    assert await read_values(await machine.start()) == [b"record-0", b"record-1"]


async def test_a_chunk_that_vanished_from_the_middle_of_the_wal_is_not_passed_over(make_machine: MakeMachine) -> None:
    """This holds for files only. In a bucket the first missing chunk is the end, even if later puts succeeded."""
    machine = make_machine("local")
    broker, key, data = await crashed(machine)
    behind = keys.chunk(broker.engine.incarnation_id, 1)
    await broker.faults.delete(key)
    await broker.faults.put(behind, bytes(len(data)))
    with pytest.raises(CorruptError) as caught:
        await machine.start()
    assert caught.value.message == f"the WAL lacks a chunk: the medium lost acked data. key=`{key}` next=`{behind}`"
    await broker.faults.put(key, data)
    await machine.check(await machine.start(), exact=True)


async def test_a_chunk_that_reads_as_zeros_is_not_taken_for_the_end(make_machine: MakeMachine) -> None:
    """A chunk's file is created when the previous chunk has a group. If the previous chunk is empty, its acked groups are lost."""
    machine = make_machine("local")
    broker, key, data = await crashed(machine)
    behind = keys.chunk(broker.engine.incarnation_id, 1)
    for empty in (bytes(len(data)), b""):
        await broker.faults.put(key, empty)
        with pytest.raises(CorruptError) as caught:
            await machine.start()
        assert caught.value.message == f"the WAL lacks a chunk: the medium lost acked data. key=`{key}` next=`{behind}`"
    await broker.faults.put(key, data)
    await machine.check(await machine.start(), exact=True)


@pytest.mark.parametrize(
    "left", [".fold-{made_by}", ".index-{made_by}", ".fold-copy", ".index-1", ".bak", ".index.bak", "0", "-readme"]
)
async def test_what_is_not_of_the_log_does_not_pass_for_a_chunk(make_machine: MakeMachine, left: str) -> None:
    """A recovery stores the copies of a follower as the last chunk, and may die before the manifest names it. Other objects are
    foreign: copies and notes of an operator, or of a tool."""
    machine = make_machine("local")
    broker, _, _ = await crashed(machine)
    behind = keys.chunk(broker.engine.incarnation_id, 1)
    await broker.faults.delete(behind)
    made_by = keys.maker(broker.engine.leader_epoch + 1, "f" * 32)
    await broker.faults.put(behind + left.format(made_by=made_by), b"copies")
    await machine.check(await machine.start(), exact=True)


async def test_a_chunk_whose_first_block_was_lost_is_told_of(make_machine: MakeMachine) -> None:
    """The chunk looks like one without any write, except for the groups behind its header."""
    machine = make_machine("local")
    broker, key, data = await crashed(machine)
    await broker.faults.put(key, bytes(CHUNK_HEADER_BYTES) + data[CHUNK_HEADER_BYTES:])
    lost = broker.engine.manifest.incarnations[broker.engine.incarnation_id]
    recovered = await recover(broker.faults, broker.engine.manifest, [lost], "a-person")
    assert recovered.damage == [f"chunk={key} chunk header is missing, and a group follows. next=`{CHUNK_HEADER_BYTES}`"]


async def test_s3_crashes(s3_machine: Machine) -> None:
    machine = s3_machine
    for round_ in range(4):
        broker = await machine.start(settings(wal_checkpoint_chunks=3))
        if round_ == 0:
            await broker.engine.create_topic("t", 2, {})
        await machine.check(broker)
        waiting = [machine.send(broker, [unique(), unique() + bytes(5_000)], partition=number % 2) for number in range(10)]
        await waiting[5]
        for _ in range(3):
            await machine.send(broker, [unique()], producer=(7, round_, _))
        broker = await machine.restart(broker)
    await machine.check(broker)
    await check_objects(broker)
    await machine.stop(broker)


async def test_a_store_of_a_cluster_that_must_be_there(machine: Machine) -> None:
    """The store belongs to the intended cluster, or the broker creates nothing in it."""
    with pytest.raises(FatalError, match="the store is empty, and is not made anew"):
        await machine.start(settings(cluster_id="red"))
    assert await machine._open_store().list("cluster/") == []
    broker = await machine.start()
    cluster_id = broker.engine.cluster_id
    await machine.stop(broker)
    with pytest.raises(FatalError, match=f"belongs to another cluster.* found=`{cluster_id}` expected=`red`"):
        await machine.start(settings(cluster_id="red"))
    assert (await machine.start(settings(cluster_id=cluster_id))).engine.cluster_id == cluster_id
