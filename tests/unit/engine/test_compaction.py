"""Compaction (`broker/engine/upkeep/compaction.py`, `compact_work.py`): of each key, the newest record stays.

Runs: writes of few keys with markers of deleted ones, passes at any moment, clocks that move, restarts; passes whose memory is
full, that die at every call, or that read transactions; topics that are also deleted by age. Compared: the newest value of each key
as a reader from the beginning finds it with what was written, and each record with the one that was acked at its offset. A mismatch
means that a compaction loses a value, brings a deleted one back, or changes a record.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.engine.upkeep import compact_work, compaction, file_fold, file_folder
from headgate.broker.engine.upkeep.compaction import Pass, after
from headgate.broker.log.check import RecordError
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import Reason
from tests.unit.engine.conftest import MakeMachine, machine_on
from tests.unit.engine.gate_world import files_for
from tests.unit.engine.test_offline import (
    AT_ONCE,
    HOUR_MS,
    OFF,
    append,
    append_in_transaction,
    chunk_extents,
    deaths_of_folds,
    end_transaction,
    files,
    folded,
    listed,
    seen,
)
from tests.unit.engine.test_tables import agree
from tests.unit.engine.world import NOW_MS, Incarnation, Machine

COMPACT = {**AT_ONCE, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
DAY_MS = 24 * HOUR_MS


machine = machine_on("memory")


async def put(broker: Incarnation, *rows: tuple[bytes, bytes | None]) -> None:
    """Append a batch of keys with their values; None deletes a key."""
    await append(broker, bytearray(encode_batch([Record(0, NOW_MS, key, value) for key, value in rows])))


async def compacted(broker: Incarnation) -> int:
    await listed(broker)
    return await folded(broker)


async def found(broker: Incarnation) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record, _ in await seen(broker)]


async def test_the_newest_record_of_each_key_stays_at_its_offset(make_machine: MakeMachine) -> None:
    machine = make_machine("local")
    broker = await machine.begin(1, COMPACT)
    for number in range(10):
        await put(broker, *[(b"k%d" % (at % 3), b"%d-%d" % (number, at)) for at in range(6)])
        if number == 4:
            await listed(broker)
    assert await compacted(broker) == 1
    expected = [(57, b"k0", b"9-3"), (58, b"k1", b"9-4"), (59, b"k2", b"9-5")]
    assert await found(broker) == expected
    (file,) = files(broker)
    assert (file.base_offset, file.end_offset, file.rows) == (0, 60, 3) and not chunk_extents(broker)
    await agree(broker)
    # The next pass also looks into what is clean.
    await put(broker, (b"k1", b"new"), (b"k9", b"other"))
    assert await compacted(broker) == 1
    expected = [expected[0], expected[2], (60, b"k1", b"new"), (61, b"k9", b"other")]
    assert await found(broker) == expected
    assert await compacted(broker) == 0, "everything is clean"
    await agree(broker)
    # A reader at an offset whose record has left continues behind it.
    log = broker.log()
    assert [one for one in await found(broker) if one[0] >= 58] == expected[1:]
    broker = await machine.restart(broker)
    assert await found(broker) == expected
    assert await compacted(broker) == 0, "the next lead knows what is clean"
    assert broker.log().high_watermark == log.high_watermark == 62


async def test_readers_in_the_middle_of_a_pass_see_the_last_values(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_fold, "RUN_EXTENTS_MAX", 2)
    broker = await machine.begin(1, COMPACT)
    for number in range(8):
        await put(broker, *[(b"k%d" % at, b"%d" % number) for at in range(number + 1)])
        await listed(broker)
    before = await found(broker)
    seen_between = []
    commit = RoutedCatalog.commit

    async def looked_at(catalog: RoutedCatalog, *edits: Edit) -> None:
        await commit(catalog, *edits)
        seen_between.append(await found(broker))

    monkeypatch.setattr(RoutedCatalog, "commit", looked_at)
    assert await compacted(broker) == 4
    monkeypatch.setattr(RoutedCatalog, "commit", commit)
    assert len(seen_between) >= 5, "four folds and the mark"
    last = {key: value for _, key, value in before}
    for records in seen_between:
        assert {key: value for _, key, value in records} == last and set(records) <= set(before)
    assert len(seen_between[-1]) == 8 and len(seen_between[0]) > 8
    assert broker.log().windows.cuts, "runs without a record left are ranges that readers pass"


async def test_markers_of_deleted_keys_stay_for_their_time(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {**COMPACT, "delete.retention.ms": str(HOUR_MS)})
    await put(broker, (b"a", b"1"), (b"b", b"1"))
    assert await compacted(broker) == 1
    await put(broker, (b"a", None), (b"b", b"2"))
    clock.advance(2 * HOUR_MS)
    assert await compacted(broker) == 1
    assert await found(broker) == [(2, b"a", None), (3, b"b", b"2")], "its time begins with the pass that found it"
    clock.advance(HOUR_MS // 2)
    assert await compacted(broker) == 0
    clock.advance(HOUR_MS)
    assert await compacted(broker) == 1
    assert await found(broker) == [(3, b"b", b"2")]
    assert await compacted(broker) == 0
    # The last key goes, too: nothing is left but a range that readers pass, and the log goes on behind it.
    await put(broker, (b"b", None))
    for _ in range(3):
        clock.advance(2 * HOUR_MS)
        await compacted(broker)
    assert await found(broker) == [] and not files(broker) and not chunk_extents(broker)
    broker = await machine.restart(broker)
    assert broker.log().high_watermark == 5 and await found(broker) == []
    await put(broker, (b"c", b"1"))
    assert await found(broker) == [(5, b"c", b"1")]


async def test_settings_say_when_and_what(machine: Machine, clock: ManualClock) -> None:
    config = {**COMPACT, "min.compaction.lag.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "0.5"}
    broker = await machine.begin(1, config)
    await put(broker, *[(b"k%d" % at, Random(at).randbytes(2000)) for at in range(10)], (b"k0", b"newer"))
    clock.advance(HOUR_MS - 1)
    await compacted(broker)
    assert len(await found(broker)) == 11, "no record is as old as min.compaction.lag.ms"
    clock.advance(2)
    assert await compacted(broker) >= 1
    assert len(await found(broker)) == 10
    await put(broker, (b"k1", b"newer"))
    clock.advance(HOUR_MS + 1)
    await compacted(broker)
    assert len(await found(broker)) == 11, "a small part is dirty"
    await broker.engine.alter_topic_config(broker.engine.topic("t"), {**config, "max.compaction.lag.ms": str(2 * HOUR_MS)})
    clock.advance(2 * HOUR_MS)
    assert await compacted(broker) >= 1
    assert len(await found(broker)) == 10, "a record waited for longer than max.compaction.lag.ms"


@pytest.mark.parametrize(
    ("config", "bound"),
    [
        ({"cleanup.policy": "compact", "max.compaction.lag.ms": str(HOUR_MS), "min.cleanable.dirty.ratio": "1"}, 1.25),
        ({"offline.after.ms": str(HOUR_MS)}, 1.75),
        ({"retention.ms": str(HOUR_MS), **OFF}, 1.75),
    ],
)
async def test_ages_hold_for_a_partition_with_few_records(
    make_machine: MakeMachine, clock: ManualClock, config: dict[str, str], bound: float
) -> None:
    """A record now and then keeps the chunk open for days. `bound`: the age, as a multiple of the setting, at which the first
    records are compacted, folded or deleted: an eighth of it is the pause between two passes here."""
    machine = make_machine("local")
    broker = await machine.begin(1, config)
    await put(broker, *[(b"k%d" % (at % 4), b"%d" % at) for at in range(40)])
    for step in range(1, round(bound * 8) + 1):
        clock.advance(HOUR_MS // 8)
        await put(broker, (b"later", b"%d" % step))
        await (broker.sweeper.run_once() if "retention.ms" in config else folded(broker))
    offsets = [offset for offset, _, _ in await found(broker) if offset < 40]
    if "cleanup.policy" in config:
        assert offsets == [36, 37, 38, 39]
    elif "retention.ms" in config:
        assert offsets == []
    else:
        assert files(broker)[0].end_offset >= 40
    assert broker.log().open, "the newest records are young"


async def test_a_lag_is_kept_from_a_topics_creation_on(
    machine: Machine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle broker pauses for half a minute, and a topic with a short lag is created in this pause."""
    monkeypatch.setattr(file_folder, "LOOK_S", 0.01)
    monkeypatch.setattr(file_folder, "PAUSE_S_MIN", 0.01)
    broker = await machine.start()
    folder = broker.engine.running.offline
    folder.start()
    await asyncio.sleep(0.05)
    await broker.engine.create_topic("t", 1, {**COMPACT, "max.compaction.lag.ms": "1"})
    await put(broker, (b"k", b"1"), (b"k", b"2"))
    clock.advance(HOUR_MS)
    async with asyncio.timeout(20):
        while len(await found(broker)) > 1:  # noqa: ASYNC110  # no event tells of a compaction
            await asyncio.sleep(0.05)
    await folder.close()


async def test_a_compacted_topic_can_also_lose_old_records(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {**COMPACT, "cleanup.policy": "compact,delete", "retention.ms": str(10 * HOUR_MS)})
    for number in range(12):
        await put(broker, (b"k%d" % (number % 8), b"%d" % number))
        await compacted(broker)
        clock.advance(HOUR_MS)
    assert [value for _, _, value in await found(broker)] == [b"%d" % number for number in range(4, 12)]
    await broker.sweeper.run_once()
    assert [value for _, _, value in await found(broker)] == [b"%d" % number for number in range(4, 12)], "four are half as old"
    clock.advance(6 * HOUR_MS)
    await broker.sweeper.run_once()
    assert {value for _, _, value in await found(broker)} <= {b"%d" % number for number in range(7, 12)}
    clock.advance(20 * HOUR_MS)
    await broker.sweeper.run_once()
    assert await found(broker) == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_records_without_a_key_are_refused(machine: Machine, codec: Codec) -> None:
    broker = await machine.begin(1, {**AT_ONCE, "min.cleanable.dirty.ratio": "0"})
    await append(broker, bytearray(encode_batch([Record(0, NOW_MS, None, b"early")])))
    await broker.engine.alter_topic_config(broker.engine.topic("t"), COMPACT)
    wrong = bytearray(encode_batch([Record(0, NOW_MS, b"k", b"1"), Record(0, NOW_MS, None, b"2")], compression=codec))
    with pytest.raises(RecordError, match="without a key") as refused:
        broker.engine.append(broker.log(), memoryview(wrong))
    assert (refused.value.reason, refused.value.records) == (Reason.INVALID_RECORD, (1,))
    await put(broker, (b"", b"an empty key is a key"), (b"", b"2"))
    assert await compacted(broker) == 1
    assert await found(broker) == [(0, None, b"early"), (2, b"", b"2")], "what was accepted without a key stays"


async def test_aborted_records_replace_nothing(machine: Machine) -> None:
    broker = await machine.begin(1, COMPACT)
    await put(broker, (b"a", b"1"), (b"b", b"1"))

    def batch(producer_id: int, value: bytes) -> bytearray:
        rows = [Record(0, NOW_MS, key, value) for key in (b"a", b"b")]
        return bytearray(encode_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True))

    await append_in_transaction(broker, batch(7, b"aborted"), 7)
    await end_transaction(broker, 7, commit=False)
    assert await compacted(broker) == 1
    assert await found(broker) == [(0, b"a", b"1"), (1, b"b", b"1")]
    await append_in_transaction(broker, batch(8, b"2"), 8)
    await listed(broker)
    assert await compacted(broker) == 0, "the transaction is open"
    await end_transaction(broker, 8, commit=True)
    assert await compacted(broker) == 1
    assert [value for _, _, value in await found(broker)] == [b"2", b"2"]


async def test_history_stays_as_it_was_committed(machine: Machine, clock: ManualClock) -> None:
    broker = await machine.begin(1, {**COMPACT, "history.room": "100", "delete.retention.ms": str(HOUR_MS)})
    await put(broker, (b"k", b"1"), (b"k", b"2"))
    gate = await broker.leader.gates.open("t", "old", "front", [5], 60_000)
    await broker.leader.gates.fill("t", "old", await files_for(broker.engine, gate))
    await put(broker, (b"k", None))
    for _ in range(3):
        await compacted(broker)
        clock.advance(2 * HOUR_MS)
    records = await found(broker)
    assert [offset for offset, _, _ in records] == [95, 96, 97, 98, 99, 102]
    assert records[-1] == (102, b"k", None), "without the marker, the key would be back with a value of the history"


async def test_memory_is_bounded_and_further_passes_do_the_rest(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_work, "KEYS_BYTES_MAX", 40 * compact_work.ENTRY_BYTES)
    broker = await machine.begin(1, COMPACT)
    for number in range(12):
        await put(broker, *[(b"key-%d" % (at % 60), b"%d" % number) for at in range(number * 20, number * 20 + 30)])
    written = {key: value for _, key, value in await found(broker)}
    await listed(broker)
    for _ in range(40):
        await folded(broker)
    records = await found(broker)
    assert {key: value for _, key, value in records} == written and len(records) == len(written) == 60


async def test_death_at_any_call_of_a_pass_loses_no_value(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_fold, "RUN_EXTENTS_MAX", 2)
    broker = await machine.begin(1, COMPACT)
    for number in range(5):
        await put(broker, *[(b"k%d" % at, b"%d" % number) for at in range(4 - number // 2)])
        await listed(broker)
    before = await found(broker)
    last = {key: value for _, key, value in before}
    await machine.crash(broker)
    records = before

    async def last_values(check: Incarnation) -> dict[bytes | None, bytes | None]:
        nonlocal records
        records = await found(check)
        assert set(records) <= set(before)
        return {key: value for _, key, value in records}

    assert await deaths_of_folds(machine, last_values, last) > 5
    assert len(records) == len(last)


@pytest.mark.parametrize("seed", range(4))
async def test_any_life_keeps_the_last_values(machine: Machine, clock: ManualClock, seed: int) -> None:
    random = Random(seed)
    broker = await machine.begin(1, {**COMPACT, "delete.retention.ms": str(HOUR_MS)})
    written: list[tuple[int, bytes, bytes | None]] = []
    marked: dict[int, int] = {}
    for step in range(60):
        what = random.random()
        if what < 0.55:
            rows = [
                (b"k%d" % random.randrange(8), None if random.random() < 0.3 else b"%d-%d" % (step, at))
                for at in range(random.randint(1, 6))
            ]
            await put(broker, *rows)
            for key, value in rows:
                marked[len(written)] = clock.now_ms()
                written.append((len(written), key, value))
        elif what < 0.8:
            await compacted(broker)
        elif what < 0.92:
            clock.advance(random.randint(1, 2 * HOUR_MS))
        else:
            broker = await machine.restart(broker)
        records = await found(broker)
        assert set(records) <= set(written)
        last = {key: (offset, value) for offset, key, value in written}
        now = {key: (offset, value) for offset, key, value in records}
        for key, (offset, value) in last.items():
            if value is not None or clock.now_ms() - marked[offset] < HOUR_MS:
                assert now[key] == (offset, value)
            else:
                assert now.get(key, (0, None))[1] is None, "a deleted key is back"
    for _ in range(4):
        clock.advance(2 * HOUR_MS)
        await compacted(broker)
    assert sorted(await found(broker)) == sorted((at, key, value) for key, (at, value) in last.items() if value is not None)


def test_marks_are_few_and_only_delay() -> None:
    config = TopicConfig.parse({"delete.retention.ms": str(DAY_MS)})
    marks: compaction.Marks = []
    for minute in range(3000):
        now_ms = NOW_MS + minute * 60_000
        cleaned_ms = now_ms - DAY_MS
        markers_end = max((end for end, at_ms in marks if at_ms and at_ms < cleaned_ms), default=0)
        marks = after(marks, Pass(marks[-1][0] if marks else 0, minute + 1, markers_end), minute + 1, now_ms, config)
        assert marks[-1] == (minute + 1, now_ms) and len(marks) <= compaction.MARKS_MAX + 3
        # Nothing leaves before it has been clean for a day, and nothing stays for much longer.
        if minute > 2000:
            assert (
                minute - 1440 - 1440 // compaction.MARKS_MAX - 2
                <= max(end for end, at_ms in marks if not at_ms)
                <= minute - 1440 + 1
            )
    assert after([(5, 0), (9, NOW_MS)], Pass(9, 9, 9), 9, NOW_MS + 1, config) == [(9, 0)]
