"""Folds to files (`broker/engine/upkeep/file_fold*.py`): live records leave chunks for Parquet, and readers notice nothing.

Runs: folds of one partition and of many, by age and by size; beside folds of chunks, DeleteRecords, retention, skipped records,
gates, and at every point at which a broker can die; records that a file cannot hold; damage. Compared: every record as consumers
see it (offset, time and its type, key, value, headers) before and after, with look-ups by time, and after a restart. A mismatch
means that a fold loses, doubles or changes acked records.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence

import pytest

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.files import FoldToFiles, NoteCompacted
from headgate.broker.cluster.folded_files import ChunkPart, FilePart
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.manifest_format import decode_edits, encode_edits
from headgate.broker.engine.base import keys
from headgate.broker.engine.upkeep import file_fold_work, file_writer
from headgate.broker.log.batch import LOG_APPEND_TIME, parse_header, split
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError
from headgate.broker.testing.faults import Fault
from tests.support.waiting import until_async
from tests.unit.engine.conftest import machine_on
from tests.unit.engine.gate_world import files_for
from tests.unit.engine.world import NOW_MS, Commit, Incarnation, Machine, at_next_commit, fold_by, read_batches, swept

HOUR_MS = 3600 * 1000
AT_ONCE = {"offline.after.bytes": "0", "offline.after.ms": "-1"}
OFF = {"offline.after.bytes": "-1", "offline.after.ms": "-1"}
HEADERS = [(), (("a", b"1"), ("b", None), ("a", b"")), (("ü", b"\x00"),)]


machine = machine_on("memory")


def batch(records: int, start: int = 0, **kind: int) -> bytearray:
    """Records of all shapes. Their times go back now and then."""
    return bytearray(
        encode_batch(
            [
                Record(
                    0,
                    NOW_MS + (start + at) * 7 - 20 * (at % 3),
                    (None, b"", b"key-%d" % (at % 5))[at % 3],
                    (b"value-%d-" % (start + at) + bytes(at % 50), None, b"")[at % 7 // 3],
                    HEADERS[at % 11 % 3],
                )
                for at in range(records)
            ],
            **kind,
        )
    )


async def append(broker: Incarnation, data: bytearray, topic: str = "t", partition: int = 0) -> None:
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker.engine.append(broker.log(topic, partition), memoryview(data))
    broker.engine.on_durable(lambda error: durable.set_result(None))
    await durable


async def append_in_transaction(broker: Incarnation, data: bytearray, producer_id: int, partition: int = 0) -> None:
    """Append a batch whose transaction the coordinator knows."""
    transactions = broker.log("t", partition).producers_state.transactions
    assert transactions.consent(producer_id, 0, transactions.ask(producer_id))
    await append(broker, data, "t", partition)


def in_transaction(first: int, records: int, producer_id: int, sequence: int = 0) -> bytearray:
    made = [Record(0, NOW_MS + first + at, b"k-%d" % (first + at), b"v") for at in range(records)]
    return bytearray(encode_batch(made, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True))


async def end_transaction(broker: Incarnation, producer_id: int, *, commit: bool) -> None:
    broker.engine.append_marker(broker.log(), producer_id, 0, 0, commit=commit)
    await broker.engine.durable()


async def listed(broker: Incarnation) -> None:
    """Complete the open chunk, so that the manifest lists every record."""
    await broker.wal.roll(cut=True)
    await broker.checkpointer.list_all()
    await until_async(lambda: not any(len(log.open) for log in broker.engine.all_logs()))


async def filled(broker: Incarnation, batches: int = 30, start: int = 0) -> None:
    for number in range(start, start + batches):
        await append(broker, batch(40, number * 40))
        if number % 7 == 6:
            await listed(broker)
    await listed(broker)


async def seen(broker: Incarnation, topic: str = "t", partition: int = 0) -> list[tuple[Record, int]]:
    """Every record with its timestamp type, from the store."""
    broker.log(topic, partition).tail.clear()
    found: list[tuple[Record, int]] = []
    start = broker.log(topic, partition).log_start
    for one in await read_batches(broker, topic, partition, max_bytes=2000):
        kind = parse_header(one).attributes & LOG_APPEND_TIME
        found += [(record, kind) for record in iter_records(one) if record.offset >= start]
    return found


async def times(broker: Incarnation) -> list[object]:
    """Answers to look-ups by time."""
    log = broker.log()
    asked = [0, *range(NOW_MS - 50, NOW_MS + 9000, 211), NOW_MS * 2]
    found: list[object] = [await broker.engine.offset_for_timestamp(log, at) for at in asked]
    return [*found, await broker.engine.max_timestamp(log)]


def files(broker: Incarnation, topic: str = "t", partition: int = 0) -> list[ParquetExtent]:
    return broker.engine.manifest.files.of(broker.engine.topic(topic).id, partition)


def chunk_extents(broker: Incarnation, topic: str = "t") -> list[object]:
    topic_id = broker.engine.topic(topic).id
    chunks = [chunk for held in broker.engine.manifest.chunks.values() for chunk in held.values()]
    return [one for chunk in chunks for one in chunk.extents if one.topic_id == topic_id]


async def folded(broker: Incarnation) -> int:
    done = await broker.engine.running.offline.run_once()
    for log in broker.engine.all_logs():
        log.check_invariants()
    broker.engine.manifest.check_invariants()
    return done


@pytest.mark.parametrize("machine", ["memory", "aligned", "put", "local"], indirect=True)
async def test_consumers_see_the_same_records(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_fold_work, "READ_BYTES", 5_000)
    monkeypatch.setattr(file_writer, "FILE_BYTES", 20_000)
    broker = await machine.begin(1, AT_ONCE)
    await filled(broker)
    before, found = await seen(broker), await times(broker)
    assert len(before) == 30 * 40
    assert await folded(broker) > 0
    assert len(files(broker)) >= 3 and not chunk_extents(broker)
    assert await seen(broker) == before and await times(broker) == found
    size = broker.log().size_bytes
    assert size == sum(file.size_bytes for file in files(broker))
    # Live records go on behind the files, and become files themselves.
    await filled(broker, 8, start=30)
    after = await seen(broker)
    assert after[: len(before)] == before and len(after) == 38 * 40
    await swept(broker)
    assert await folded(broker) > 0
    assert await seen(broker) == after
    broker = await machine.restart(broker)
    assert await seen(broker) == after
    assert not chunk_extents(broker)


async def test_time_of_append_is_kept_with_its_type(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {**AT_ONCE, "message.timestamp.type": "LogAppendTime"})
    for number in range(6):
        await append(broker, batch(20, number * 20))
        clock.advance(number % 2)
    await broker.engine.alter_topic_config(broker.engine.topic("t"), {**AT_ONCE, "message.timestamp.type": "CreateTime"})
    await append(broker, batch(20))
    await listed(broker)
    before, found = await seen(broker), await times(broker)
    assert {kind for _, kind in before} == {0, LOG_APPEND_TIME}
    assert await folded(broker) == 1
    assert await seen(broker) == before and await times(broker) == found


async def test_age_decides_and_tail_records_are_taken_along(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {"offline.after.ms": str(HOUR_MS)})
    for _ in range(5):
        await filled(broker, 2)
        clock.advance(HOUR_MS // 5)
    assert await folded(broker) == 0
    clock.advance(3 * HOUR_MS // 10)  # the first records are 1.3 hours old, the last ones half an hour
    assert await folded(broker) == 1
    (file,) = files(broker)
    assert file.base_offset == 0 and 0 < file.end_offset < broker.log().high_watermark
    assert len(chunk_extents(broker)) == 1
    assert await folded(broker) == 0


@pytest.mark.parametrize("config", [OFF, {"offline.after.bytes": "1000000"}])
async def test_records_stay_in_chunks_when_nothing_is_due(machine: Machine, config: dict[str, str]) -> None:
    broker = await machine.begin(1, config)
    await filled(broker)
    assert await folded(broker) == 0 and not files(broker)


async def test_deleted_and_skipped_records_are_left_out(machine: Machine) -> None:
    broker = await machine.begin(1, AT_ONCE)
    await filled(broker)
    await broker.engine.delete_records(broker.log(), 130)
    await broker.engine.skip_records(broker.log(), 400, 479)
    before, found = await seen(broker), await times(broker)
    assert await folded(broker) >= 1
    assert sum(file.rows for file in files(broker)) == len(before) == 30 * 40 - 130 - 80
    assert await seen(broker) == before and await times(broker) == found
    # A consumer at an offset without a record continues behind the gap.
    log = broker.log()
    (first, *_) = [one for part in await broker.engine.read(log, 440, 100) for one in split(part)]
    assert parse_header(first).next_offset > 440
    # The files can be deleted in the middle too, also after a restart.
    await broker.engine.delete_records(log, 900)
    after = [one for one in before if one[0].offset >= 900]
    assert await seen(broker) == after
    broker = await machine.restart(broker)
    assert await seen(broker) == after


async def test_retention_removes_files(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {**AT_ONCE, "retention.ms": str(5 * HOUR_MS)})
    await filled(broker, 5)
    clock.advance(2 * HOUR_MS)
    await filled(broker, 5, start=5)
    assert await folded(broker) >= 1
    assert len(files(broker)) == 2  # a fold never joins records of more than an hour
    clock.advance(4 * HOUR_MS)
    await broker.sweeper.run_once()
    assert broker.log().log_start == 200 and len(broker.log().sealed) == 1
    path = files(broker)[0].path
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert len(files(broker)) == 1
    assert path not in {found.key for found in await broker.store.list("topics/")}
    clock.advance(4 * HOUR_MS)
    await broker.sweeper.run_once()
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert not files(broker) and await seen(broker) == []
    await broker.engine.delete_topic(broker.engine.topic("t"))
    await broker.leader.gates.files.sweep(HOUR_MS)
    assert await broker.store.list("topics/") == []


async def test_an_edit_that_comes_too_late_changes_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await machine.begin(1, AT_ONCE)
    await broker.engine.create_topic("gone", 1, AT_ONCE)
    await append(broker, batch(10), "gone")
    await filled(broker)
    before = await seen(broker)
    offline = broker.engine.running.offline
    (first, second) = [fold async for fold in offline.fold_each()]
    # Meanwhile, chunks are folded, and a topic is deleted.
    fold_by(monkeypatch, 2)
    await broker.sweeper.fold()
    await broker.engine.delete_topic(broker.engine.topic("gone"))
    assert await offline.commit([first, second]) == 0
    assert not files(broker) and await seen(broker) == before
    assert await folded(broker) >= 1
    assert await seen(broker) == before
    # And a fold of chunks that comes too late.
    fold_by(monkeypatch, 32)
    await filled(broker, 8, start=30)
    fold_by(monkeypatch, 2)
    after = await seen(broker)

    refused = []

    async def late(commit: Commit, edits: Sequence[Edit]) -> None:
        assert await folded(broker) >= 1
        try:
            await commit()
        except InvalidError as error:
            refused.append(type(edits[0]).__name__)
            raise error

    at_next_commit(monkeypatch, late)
    await broker.sweeper.fold()
    assert await seen(broker) == after and refused == ["FoldChunks"]
    named = {keys.chunk_object(one, chunk) for one, chunks in broker.engine.manifest.chunks.items() for chunk in chunks.values()}
    stored = {one.key for one in await broker.store.list(keys.WAL)}
    assert {key for key in stored if ".fold-" in key} <= named, "what no edit names is deleted at once"
    await machine.crash(broker)
    assert await seen(await machine.start()) == after


async def test_a_fold_whose_answer_was_lost_keeps_its_chunk(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = await machine.begin(1, AT_ONCE)
    await filled(broker, 8)
    before = await seen(broker)
    fold_by(monkeypatch, 2)

    async def unheard(commit: Commit, _: Sequence[Edit]) -> None:
        await commit()
        raise InvalidError(Reason.CHANGED_MEANWHILE, "the repeated edit is refused")

    at_next_commit(monkeypatch, unheard)
    await broker.sweeper.fold()
    assert await seen(broker) == before
    await machine.crash(broker)
    assert await seen(await machine.start()) == before


async def test_skipping_during_a_fold_refuses_its_edit(machine: Machine) -> None:
    broker = await machine.begin(1, AT_ONCE)
    await filled(broker, 6)
    (edit,) = [fold async for fold in broker.engine.running.offline.fold_each()]
    await broker.engine.skip_records(broker.log(), 40, 79)
    assert await broker.engine.running.offline.commit([edit]) == 0
    assert await folded(broker) == 1
    assert [record.offset for record, _ in await seen(broker)] == [*range(40), *range(80, 240)]


async def test_records_that_a_file_cannot_hold_stay_in_chunks(machine: Machine) -> None:
    broker = await machine.begin(1, {**AT_ONCE, "headgate.check.records": "header"})
    await filled(broker, 4)
    nameless = bytearray(encode_batch([Record(0, NOW_MS, b"k", b"v", (("\udcff", b"1"),))]))
    await append(broker, nameless)
    await listed(broker)
    await append(broker, bytearray(encode_batch([Record(0, -(1 << 60), b"k", b"early")])))
    await listed(broker)
    await filled(broker, 4)
    before = await seen(broker)
    assert await folded(broker) >= 1
    assert len(chunk_extents(broker)) == 2 and len(files(broker)) >= 2
    assert await seen(broker) == before
    assert await folded(broker) == 0
    assert await seen(broker) == before


async def test_a_damaged_chunk_is_not_folded(machine: Machine) -> None:
    broker = await machine.begin(1, AT_ONCE)
    await filled(broker, 3)
    await filled(broker, 3, start=3)
    chunk = broker.log().sealed.refs[0].chunk
    key = f"wal/{broker.engine.incarnation_id}/{chunk.number:020d}"
    data = bytearray(await broker.store.get(key))
    data[-200] ^= 1
    await broker.store.put(key, data)
    assert await folded(broker) == 1
    assert len(chunk_extents(broker)) == 1
    with pytest.raises(CorruptError):
        await seen(broker)
    data[-200] ^= 1
    await broker.store.put(key, data)
    assert len(await seen(broker)) == 240


async def test_a_damaged_file_harms_its_own_offsets_only(machine: Machine) -> None:
    broker = await machine.begin(2, AT_ONCE)
    await filled(broker, 5)
    await append(broker, batch(10), "t", 1)
    await listed(broker)
    assert await folded(broker) == 2
    await filled(broker, 5)
    (file,) = files(broker)
    data = bytearray(await broker.store.get(file.path))
    data[file.size_bytes // 2] ^= 1
    await broker.store.put(file.path, data)
    with pytest.raises(CorruptError):
        await broker.engine.read(broker.log(), 0, 100)
    assert len(await seen(broker, "t", 1)) == 10
    assert await broker.engine.read(broker.log(), file.end_offset, 100)
    # An operator lets readers pass it: the whole file, because its rows are compressed together.
    assert await broker.engine.skip_records(broker.log(), 3, 3) == (0, file.end_offset)
    assert [record.offset for record, _ in await seen(broker)] == list(range(200, 400))


async def test_windows_of_gates_stay_apart_from_files(machine: Machine) -> None:
    broker = await machine.begin(1, AT_ONCE)
    await filled(broker, 4)
    gate = await broker.leader.gates.open("t", "history", "now", [100], 60_000)
    await filled(broker, 4, start=4)
    before = await seen_past(broker)
    assert await folded(broker) >= 1
    assert len(files(broker)) == 2
    assert await seen_past(broker) == before
    await broker.leader.gates.fill("t", "history", await files_for(broker.engine, gate))
    whole = await seen(broker)
    assert [record.offset for record, _ in whole] == list(range(420))
    assert whole[:160] + whole[260:] == before
    await machine.crash(broker)
    assert await seen(await machine.start()) == whole


async def seen_past(broker: Incarnation, window: int = 160, behind: int = 260) -> list[tuple[Record, int]]:
    """Every record in front of the window and behind it."""
    broker.log().tail.clear()
    found = []
    for first, end in ((broker.log().log_start, window), (behind, broker.log().high_watermark)):
        offset = first
        while offset < end:
            for part in await broker.engine.read(broker.log(), offset, 2000):
                for one in split(part):
                    kind = parse_header(one).attributes & LOG_APPEND_TIME
                    found += [(record, kind) for record in iter_records(one)]
                    offset = parse_header(one).next_offset
    return found


async def test_transactions_are_folded_without_what_they_aborted(machine: Machine) -> None:
    broker = await machine.begin(1, AT_ONCE)
    await append(broker, batch(5))
    # Two transactions that overlap, one of them aborted, and a producer that aborts first and commits later.
    for sequence in range(3):
        await append_in_transaction(broker, in_transaction(sequence * 20, 4, 7, sequence * 4), 7)
        await append_in_transaction(broker, in_transaction(sequence * 20 + 10, 4, 8, sequence * 4), 8)
    await end_transaction(broker, 8, commit=False)
    await append_in_transaction(broker, in_transaction(100, 4, 8, 12), 8)
    await end_transaction(broker, 8, commit=True)
    await end_transaction(broker, 7, commit=True)
    await append(broker, batch(5, 5))
    await listed(broker)
    assert len(chunk_extents(broker)) == 1
    # An open transaction holds back the last records.
    await append_in_transaction(broker, in_transaction(200, 4, 9), 9)
    await listed(broker)
    stable = broker.log().stable_end
    log = broker.log()
    before = [one for one in await seen(broker) if one[0].offset < stable]
    gone = {5 + 4 + pair * 8 + at for pair in range(3) for at in range(4)}
    expected = [one for one in before if one[0].offset not in gone]
    assert len(before) - len(expected) == 12 and len(expected) == 10 + 12 + 4
    assert await folded(broker) == 1
    (file,) = files(broker)
    assert (file.base_offset, file.end_offset, file.rows) == (0, stable, len(expected))
    assert [one for one in await seen(broker) if one[0].offset < stable] == expected
    # An extent whose records are all aborted leaves nothing but a range that readers pass.
    await end_transaction(broker, 9, commit=False)
    await listed(broker)
    assert await folded(broker) == 1
    assert not chunk_extents(broker) and len(files(broker)) == 1 and log.windows.cuts == [(stable, log.high_watermark)]
    assert await seen(broker) == expected
    (marker,) = [one for part in await broker.engine.read(log, stable, 100) for one in split(part)]
    assert parse_header(marker).next_offset == log.high_watermark, "a reader at the end is not left behind"
    broker = await machine.restart(broker)
    assert await seen(broker) == expected and broker.log().high_watermark == log.high_watermark
    await append(broker, batch(5))
    assert len(await seen(broker)) == len(expected) + 5


@pytest.mark.parametrize("fault", [Fault.LATE, Fault.AMBIGUOUS, Fault.REFUSED])
async def test_a_file_that_came_late_harms_nobody(machine: Machine, fault: Fault) -> None:
    first = await machine.begin(1, AT_ONCE)
    await filled(first)
    before = await seen(first)
    first.faults.script("put", fault)
    with pytest.raises(RetryError):
        await first.engine.running.offline.run_once()
    second = await machine.start()
    assert await folded(second) >= 1
    await first.faults.land()
    assert await seen(second) == before
    await machine.crash(second)
    assert await seen(await machine.start()) == before


async def deaths_of_folds(machine: Machine, seen_by: Callable[[Incarnation], Awaitable[object]], before: object) -> int:
    """Let a broker's process die at each call of the store in a pass of folds, until a pass ends: another one sees what it saw
    `before`. Returns the number of deaths."""
    deaths = 0
    while True:
        broker = await machine.start()
        broker.store.kill_at_call = broker.store.calls + 1 + deaths
        try:
            done = await broker.engine.running.offline.run_once()
        except Exception:  # noqa: BLE001  # the process is dead
            done = -1
        dead = broker.store.dead
        check = await machine.restart(broker)
        assert await seen_by(check) == before
        check.engine.manifest.check_invariants()
        await machine.crash(check)
        if not dead and done >= 0:
            return deaths
        deaths += 1


async def test_death_at_any_call_loses_nothing(machine: Machine) -> None:
    broker = await machine.begin(2, AT_ONCE)
    await filled(broker, 6)
    await append(broker, batch(10), "t", 1)
    await listed(broker)
    before = [await seen(broker), await seen(broker, "t", 1)]
    await machine.crash(broker)

    async def all_seen(check: Incarnation) -> object:
        return [await seen(check), await seen(check, "t", 1)]

    assert await deaths_of_folds(machine, all_seen, before) > 5


def test_edits_read_back() -> None:
    file = ParquetExtent(0, 0, 5, 1, "p", 10, 3, 1, 2, records=4, appended_ms=9)
    part = FilePart("q", 0, 5, "gate")
    edit = FoldToFiles(uuid.uuid4(), 0, [file], [ChunkPart("i", 1, 5, 9)], [(1, 2)], [part], 7)
    assert edit.parts == [part, ChunkPart("i", 1, 5, 9)]
    noted = NoteCompacted(uuid.uuid4(), 3, [(10, 0), (20, 30)])
    assert decode_edits(encode_edits([edit, noted])) == [edit, noted]
    earlier = encode_edits([FoldToFiles(edit.topic_id, 0, [file], [])]).replace(b',"merged":[],"at_ms":0', b"")
    assert decode_edits(earlier) == [FoldToFiles(edit.topic_id, 0, [file], [])], "an edit of before files were merged"
