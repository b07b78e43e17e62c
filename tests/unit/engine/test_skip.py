"""Batches that consumers cannot read: found when chunks are folded, and skipped for ever (`broker/engine/read/skip.py`).

Runs: an engine over every kind of store; poison among good batches, in memory, in open chunks, listed and folded; skips before
and after a fold; crashes. Compared: the readable records, and the manifest. A mismatch means that a reader stops at a skipped
batch, gets it nevertheless, misses a good record, or that a fold drops or hides a batch.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import pytest

from headgate.broker.cluster.edits.topics import CUTS_MAX, CreateTopic, SetLogStart, SkipRecords
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.manifest_format import decode_snapshot, encode_snapshot
from headgate.broker.cluster.objects import Topic
from headgate.broker.engine.read import lookup
from headgate.broker.log.batch import CONTROL, parse_header
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.batches import batch, patched
from tests.support.errors import raises
from tests.support.poison import GOOD, POISON, zstd_bomb
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine, machine_on
from tests.unit.engine.test_fold import FANOUT, fill, forget_memory
from tests.unit.engine.world import Incarnation, Machine, fold_by, read_batches, swept

machine = machine_on("memory")


@pytest.fixture(autouse=True)
def small_fans(monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, FANOUT)


def poison(broker: Incarnation, name: str = "noise", partition: int = 0) -> tuple[int, int]:
    """Append it; returns its first and last offset. The engine trusts callers that name no source."""
    data = bytearray(POISON[name])
    base = broker.engine.append(broker.log("t", partition), memoryview(data)).base_offset
    return base, base + parse_header(data).last_offset_delta


async def offsets(broker: Incarnation, partition: int = 0) -> list[int]:
    """The offsets of all records that a reader gets: markers give none."""
    headers = [parse_header(batch) for batch in await read_batches(broker, "t", partition)]
    return [offset for one in headers if not one.attributes & CONTROL for offset in range(one.base_offset, one.next_offset)]


async def check(broker: Incarnation, gone: list[tuple[int, int]], partition: int = 0) -> None:
    log = broker.log("t", partition)
    wanted = [offset for offset in range(log.high_watermark) if not any(first <= offset <= last for first, last in gone)]
    assert await offsets(broker, partition) == wanted
    log.check_invariants()
    broker.engine.manifest.check_invariants()
    assert encode_snapshot(broker.engine.manifest) == encode_snapshot(decode_snapshot(encode_snapshot(broker.engine.manifest)))


@pytest.mark.parametrize(("medium", "when"), [("memory", "in memory"), ("put", "folded"), ("local", "folded")])
async def test_what_is_skipped_is_never_shown_again(make_machine: MakeMachine, medium: str, when: str) -> None:
    machine = make_machine(medium)
    broker = await machine.begin(3)
    gone = []
    await fill(machine, broker, 6)
    gone.append(poison(broker))
    await fill(machine, broker, 6, start=1000)
    gone.append(poison(broker, "not-gzip"))
    gone.append(poison(broker, "cut-off"))
    await fill(machine, broker, 6, start=2000)
    gone.append(poison(broker, "zeros"))
    await broker.engine.durable()
    if when == "folded":
        await swept(broker)
        forget_memory(broker)
    log = broker.log()
    size = log.size_bytes
    for first, last in gone:
        assert await broker.engine.skip_records(log, first, first, validate_only=True) == (first, last + 1)
        assert await broker.engine.skip_records(log, first, first) == (first, last + 1)
        # The same request again, as from a client that lost the answer.
        low, end = await broker.engine.skip_records(log, first, last)
        assert low <= first and last < end
    assert 0 <= log.size_bytes <= size
    await check(broker, gone)
    forget_memory(broker)
    await check(broker, gone)
    await fill(machine, broker, 20, start=3000)
    await swept(broker)
    await until_async(lambda: broker.sweeper.chunks_folded >= FANOUT)
    forget_memory(broker)
    await check(broker, gone)
    broker = await machine.restart(broker)
    await check(broker, gone)
    await swept(broker)
    await check(broker, gone)
    assert [await offsets(broker, number) for number in (1, 2)] == [list(range(broker.log("t", 1).high_watermark))] * 2


async def test_a_fold_reports_what_it_moves(machine: Machine) -> None:
    broker = await machine.begin(3)
    first = [poison(broker, name)[0] for name in ("noise", "not-lz4", "two-as-one")]
    skipped = poison(broker)
    await broker.engine.durable()
    await broker.engine.skip_records(broker.log(), *skipped)
    await fill(machine, broker, 20)
    await swept(broker)
    await until_async(lambda: broker.sweeper.chunks_folded >= 2 * FANOUT)
    assert broker.engine.batches_unreadable == len(first), "each is reported once, and none that is skipped"
    forget_memory(broker)
    await check(broker, [skipped])
    log = broker.log()
    checked = await broker.engine.find_unreadable(log, 0, log.high_watermark - 1)
    assert [one.base_offset for one in checked.found] == first
    assert (checked.base_offset, checked.next_offset) == (0, log.high_watermark)


async def test_a_look_is_bounded_and_goes_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.broker.engine.read.skip.FOUND_MAX", 2)
    broker = await machine.begin()
    log = broker.log()
    first = [poison(broker)[0] for _ in range(5)]
    await broker.engine.durable()
    found, offset, calls = [], 0, 0
    monkeypatch.setattr("headgate.broker.engine.read.skip.READ_BYTES", 1)
    while offset < log.high_watermark:
        checked = await broker.engine.find_unreadable(log, offset, log.high_watermark - 1)
        found += [one.base_offset for one in checked.found]
        offset, calls = checked.next_offset, calls + 1
    assert found == first
    assert calls == 3


async def test_a_look_finds_large_batches_that_consumers_cannot_read(machine: Machine) -> None:
    broker = await machine.begin()
    large = encode_batch([Record(0, 1, b"k", bytes(3 << 20))], compression=Codec.ZSTD)
    for data in (large, zstd_bomb(257, stated=False), POISON["gzip-bomb"], large):
        broker.engine.append(broker.log(), memoryview(bytearray(data)))
    await broker.engine.durable()
    checked = await broker.engine.find_unreadable(broker.log(), 0, broker.log().high_watermark - 1)
    whys = {one.base_offset: one.why for one in checked.found}
    assert list(whys) == [1, 4], "the first expands too far, the second has no records"
    assert "larger after decompression" in whys[1]


async def test_what_cannot_be_skipped(make_machine: MakeMachine) -> None:
    machine: Machine = make_machine("memory")
    broker = await machine.begin()
    log = broker.log()
    broker.engine.append(log, memoryview(bytearray(GOOD)))
    await broker.engine.durable()
    for first, last in ((-1, 0), (0, 3), (3, 3), (2, 1)):
        with raises(InvalidError, Reason.OFFSET_OUT_OF_RANGE):
            await broker.engine.skip_records(log, first, last)
    assert await offsets(broker) == [0, 1, 2]


TOPIC = Topic(id=uuid.UUID(int=1), name="t", partitions=2)


def test_ranges_that_touch_are_one() -> None:
    manifest = Manifest()
    manifest.apply([CreateTopic(TOPIC)])
    for low, high in ((10, 20), (40, 50), (20, 25), (30, 31), (22, 35), (12, 13)):
        manifest.apply([SkipRecords(TOPIC.id, 1, low, high)])
    assert manifest.readable.cuts == {TOPIC.id: {1: [(10, 35), (40, 50)]}}
    manifest.apply([SetLogStart(TOPIC.id, {1: 35})])
    assert manifest.readable.cuts == {TOPIC.id: {1: [(40, 50)]}}
    manifest.apply([SetLogStart(TOPIC.id, {1: 60}), SkipRecords(TOPIC.id, 1, 40, 50)])
    assert manifest.readable.cuts == {}


def test_the_number_of_ranges_is_bounded() -> None:
    from headgate.broker.cluster.admission import check as admit

    manifest = Manifest()
    manifest.apply([CreateTopic(TOPIC), *(SkipRecords(TOPIC.id, 0, 2 * at, 2 * at + 1) for at in range(CUTS_MAX))])
    with pytest.raises(InvalidError, match="too many ranges"):
        admit(manifest, SkipRecords(TOPIC.id, 0, 5 * CUTS_MAX, 5 * CUTS_MAX + 1), "")
    admit(manifest, SkipRecords(TOPIC.id, 1, 0, 1), "")


MAX_TIMESTAMP_AT = 35
GOOD_MS = parse_header(GOOD).max_timestamp
LATE_MS = GOOD_MS + 1_000


@pytest.mark.parametrize("machine", ["memory", "put", "local"], indirect=True)
@pytest.mark.parametrize("name", ["noise", "not-gzip", "cut-off", "bytes-behind"])
async def test_look_ups_by_time_end_at_poison_and_step_over_what_is_skipped(machine: Machine, name: str) -> None:
    """The poison has the greatest timestamps of the log, in the middle of it."""
    broker = await machine.begin()
    log = broker.log()
    for number in range(3):
        broker.engine.append(log, memoryview(bytearray(batch([b"early"], timestamp_ms=GOOD_MS + number))))
    data = bytearray(patched(POISON[name], MAX_TIMESTAMP_AT, struct.pack(">q", LATE_MS)))
    bad = broker.engine.append(log, memoryview(data)).base_offset
    two = encode_batch([Record(0, GOOD_MS + time, None, b"v") for time in (9, 8)])
    last = broker.engine.append(log, memoryview(bytearray(two))).base_offset
    await broker.engine.durable()
    for place in ("in memory", "listed"):
        for look_up in (broker.engine.max_timestamp(log), broker.engine.offset_for_timestamp(log, GOOD_MS + 5)):
            with raises(InvalidError, Reason.CORRUPT_MESSAGE, f"cannot be read.*headgate topic skip.*base_offset=`{bad}`"):
                await look_up
        assert await broker.engine.offset_for_timestamp(log, GOOD_MS + 1) == (GOOD_MS + 1, 1), "what is before it is found"
        if place == "in memory":
            await swept(broker)
            forget_memory(broker)
    await broker.engine.skip_records(log, bad, bad)
    for crashed in (False, True):
        if crashed:
            broker = await machine.restart(broker)
            log = broker.log()
        assert await broker.engine.offset_for_timestamp(log, GOOD_MS + 5) == (GOOD_MS + 9, last)
        assert await broker.engine.offset_for_timestamp(log, LATE_MS) is None
        assert await broker.engine.max_timestamp(log) == (GOOD_MS + 9, last)
    await broker.engine.delete_records(log, last + 1)
    assert await broker.engine.max_timestamp(log) == (GOOD_MS + 8, last + 1)


@pytest.mark.parametrize("readable", [True, False], ids=["read in a thread", "not opened"])
async def test_a_look_up_by_time_decompresses_a_bounded_part(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """Some hundred bytes that expand to 2 MiB stand for some kB that expand to GBs."""
    asked: list[int] = []

    def bounded(data: memoryview, *, decompressed_bytes_max: int) -> Iterator[Record]:
        asked.append(decompressed_bytes_max)
        return iter_records(data, decompressed_bytes_max=decompressed_bytes_max)

    monkeypatch.setattr("headgate.broker.engine.read.lookup.iter_records", bounded)
    if not readable:
        monkeypatch.setattr(lookup, "BYTES_MAX", 1 << 20)
    broker = await machine.begin(1, {"headgate.check.records": "header"})
    log = broker.log()
    large = encode_batch([Record(0, GOOD_MS + time, None, bytes(1 << 20)) for time in (1, 5, 3)], compression=Codec.ZSTD)
    assert len(large) < 1000
    broker.engine.append(log, memoryview(bytearray(large)))
    await broker.engine.durable()
    wanted = (GOOD_MS + 5, 1) if readable else (GOOD_MS + 5, 0)
    assert await broker.engine.offset_for_timestamp(log, GOOD_MS + 2) == wanted
    assert await broker.engine.max_timestamp(log) == wanted
    await broker.engine.delete_records(log, 1)
    assert await broker.engine.max_timestamp(log) == (GOOD_MS + 5, 1), "readers see a part of the batch"
    assert set(asked) == {lookup.IN_TURN_BYTES_MAX, lookup.BYTES_MAX}


async def test_the_greatest_timestamp_beside_skipped_batches_that_are_not_listed(machine: Machine) -> None:
    broker = await machine.begin()
    log = broker.log()
    times = [5, 9, 3, 9, 7, 1]
    for time in times:
        broker.engine.append(log, memoryview(bytearray(batch([b"v"], timestamp_ms=GOOD_MS + time))))
    await broker.engine.durable()
    left = dict(enumerate(times))
    for offset in (1, 3, 4, 0, 2):
        await broker.engine.skip_records(log, offset, offset)
        del left[offset]
        greatest = max(left.values())
        wanted = next(at for at, time in left.items() if time == greatest)
        assert await broker.engine.max_timestamp(log) == (GOOD_MS + greatest, wanted)
    await broker.engine.skip_records(log, 5, 5)
    assert await broker.engine.max_timestamp(log) is None
