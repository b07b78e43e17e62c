"""Reads of consumers: by offset, by timestamp, from memory, from open chunks, from sealed ones, and across all of them.

Runs: partitions with records in several places. Their chunks have gaps that hold other partitions; their beginnings are
deleted; all codecs occur. Reads run while chunks are listed, folded and removed. Compared: each answer with that of a plain list
of all records. A mismatch means that a consumer gets other records than it requested.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from headgate.broker.engine.base import keys
from headgate.broker.engine.upkeep.chunk_fold import fold
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, Reason, RetryError
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.conftest import MakeMachine
from tests.unit.engine.world import NOW_MS, Incarnation, Machine, fold_by, read_all, read_batches, settings, swept

READABLE = ["memory", "aligned", "put", "local"]


class Model:
    """A partition's records, as a plain list."""

    def __init__(self, broker: Incarnation, topic: str = "t", partition: int = 0) -> None:
        self.broker = broker
        self.topic = topic
        self.partition = partition
        self.records: list[Record] = []

    async def append(self, timestamps: Sequence[int], codec: Codec = Codec.NONE, value: bytes = b"v") -> None:
        log = self.broker.log(self.topic, self.partition)
        records = [Record(0, timestamp, b"k", value) for timestamp in timestamps]
        base = self.broker.engine.append(log, memoryview(bytearray(encode_batch(records, compression=codec)))).base_offset
        await self.broker.engine.durable(10_000)
        append_time = log.config.log_append_time
        now_ms = self.broker.engine.clock.now_ms()
        for at, record in enumerate(records):
            self.records.append(record._replace(offset=base + at, timestamp_ms=now_ms if append_time else record.timestamp_ms))

    def first_at(self, timestamp_ms: int) -> tuple[int, int] | None:
        start = self.broker.log(self.topic, self.partition).log_start
        for record in self.records:
            if record.offset >= start and record.timestamp_ms >= timestamp_ms:
                return record.timestamp_ms, record.offset
        return None

    def greatest(self) -> tuple[int, int] | None:
        start = self.broker.log(self.topic, self.partition).log_start
        found = [(record.timestamp_ms, -record.offset) for record in self.records if record.offset >= start]
        return (max(found)[0], -max(found)[1]) if found else None

    async def check(self) -> None:
        """Every look-up and every read, from memory and from the store."""
        engine, log = self.broker.engine, self.broker.log(self.topic, self.partition)
        readable = [record for record in self.records if record.offset >= log.log_start]
        for _ in range(2):
            for timestamp_ms in sorted({record.timestamp_ms + delta for record in self.records for delta in (-1, 0, 1)}):
                assert await engine.offset_for_timestamp(log, timestamp_ms) == self.first_at(timestamp_ms), timestamp_ms
            assert await engine.max_timestamp(log) == self.greatest()
            for max_bytes in (1, 200, 1 << 30):
                assert await read_all(self.broker, self.topic, self.partition, max_bytes) == readable
            log.tail.clear()


@pytest.mark.parametrize("machine", READABLE, indirect=True)
async def test_look_ups_by_timestamp(machine: Machine) -> None:
    chance = random.Random(7)
    broker = await machine.begin()
    model = Model(broker)
    await model.check()
    for number in range(25):
        codec = list(Codec)[number % len(Codec)]
        await model.append([NOW_MS + chance.randint(-40, 40) for _ in range(chance.randint(1, 4))], codec, bytes(5_000))
    await until_async(lambda: len(broker.log().open.chunks) <= 1)
    await model.check()
    await swept(broker)
    await model.check()
    await machine.crash(broker)
    model.broker = broker = await machine.start()
    await model.check()
    await model.append([NOW_MS + 100, NOW_MS, NOW_MS + 100])
    await model.check()
    for offset in sorted(chance.sample(range(1, broker.log().high_watermark), 12)):
        await broker.engine.delete_records(broker.log(), offset)
        await model.check()
    await broker.engine.delete_records(broker.log(), -1)
    await model.check()


@pytest.mark.parametrize("machine", READABLE, indirect=True)
async def test_append_time_is_what_is_looked_up(machine: Machine) -> None:
    assert isinstance(machine.clock, ManualClock)
    broker = await machine.begin(1, {"message.timestamp.type": "LogAppendTime"})
    model = Model(broker)
    for number in range(8):
        await model.append([1, 2, 3], list(Codec)[number % len(Codec)], bytes(12_000))
        machine.clock.advance(10 if number != 5 else 0)
    await model.check()
    await broker.engine.delete_records(broker.log(), 10)
    await model.check()
    await machine.crash(broker)
    model.broker = await machine.start()
    await model.check()


async def test_the_greatest_timestamp_may_have_been_deleted(make_machine: MakeMachine) -> None:
    machine = make_machine("memory")
    broker = await machine.begin()
    model = Model(broker)
    for timestamps in ([900, 5, 5], [7, 9], [8], [600, 1], [20]):
        await model.append([NOW_MS + one for one in timestamps])
    for offset in range(1, 10):
        await broker.engine.delete_records(broker.log(), offset)
        await model.check()


async def test_a_timestamp_is_found_while_chunks_are_listed(make_machine: MakeMachine) -> None:
    """The rows of an open chunk leave memory between two steps of a look-up."""
    machine = make_machine("memory")
    broker = await machine.begin(settings=settings(wal_checkpoint_interval_ms=3_600_000, wal_checkpoint_chunks=1000))
    model = Model(broker)
    # The first batch has its greatest time in a deleted record, so the look-up continues behind it.
    await model.append([NOW_MS + 50, NOW_MS], value=bytes(30_000))
    for number in range(6):
        await model.append([NOW_MS + number, NOW_MS + 50 - number], value=bytes(30_000))
    log = broker.log()
    await broker.engine.delete_records(log, 1)
    for timestamp_ms in (NOW_MS + 50, NOW_MS + 49):
        for turns in range(6):
            looking = asyncio.ensure_future(broker.engine.offset_for_timestamp(log, timestamp_ms))
            for _ in range(turns):
                await asyncio.sleep(0)
            listing = asyncio.ensure_future(broker.checkpointer.list_all())
            assert await looking == model.first_at(timestamp_ms)
            await listing
            for _ in range(2):
                await model.append([NOW_MS, NOW_MS], value=bytes(30_000))


@pytest.mark.parametrize("machine", READABLE, indirect=True)
async def test_reads_of_any_size_from_any_offset(machine: Machine) -> None:
    broker = await machine.begin(2)
    chance = random.Random(11)
    for number in range(40):
        partition = chance.choice((0, 0, 1))
        values = [b"%d-%d" % (number, at) + bytes(chance.choice((0, 100, 4_000))) for at in range(chance.randint(1, 5))]
        await machine.send(broker, values, "t", partition)
    await until_async(lambda: len(broker.log().open.chunks) <= 1)
    log = broker.log()
    batches = await read_batches(broker)
    sizes = [len(batch) for batch in batches]
    for in_memory in (True, False):
        if not in_memory:
            log.tail.clear()
        for offset in range(log.high_watermark + 1):
            for max_bytes in (0, 1, 500, 5_000, 50_000, 1 << 30):
                slices = await broker.engine.read(log, offset, max_bytes)
                data = b"".join(slices)
                if offset == log.high_watermark:
                    assert data == b""
                    continue
                first = next(at for at, batch in enumerate(batches) if data.startswith(bytes(batch[:61])))
                count = 0
                while sum(sizes[first : first + count]) < len(data):
                    count += 1
                assert data == b"".join(bytes(batch) for batch in batches[first : first + count])
                assert int.from_bytes(batches[first][:8], "big") <= offset
                assert first + 1 == len(batches) or int.from_bytes(batches[first + 1][:8], "big") > offset
                assert len(data) <= max_bytes or count == 1


async def test_offsets_out_of_range_are_said_to_be(machine: Machine) -> None:
    broker = await machine.begin()
    await machine.send(broker, [b"0", b"1", b"2", b"3"])
    await broker.engine.delete_records(broker.log(), 2)
    for offset in (-1, 0, 1, 5, 1 << 40):
        with raises(InvalidError, Reason.OFFSET_OUT_OF_RANGE):
            await broker.engine.read(broker.log(), offset, 100)
    assert await broker.engine.read(broker.log(), 4, 100) == []
    assert [record.value for record in await read_all(broker)] == [b"2", b"3"]


async def test_what_is_not_durable_is_not_read(make_machine: MakeMachine) -> None:
    machine = make_machine("memory")
    broker = await machine.begin()
    await machine.send(broker, [b"durable"])
    broker.store.refused["appender.write"] = RetryError(Reason.STORE_UNAVAILABLE, "not now")
    waiting = machine.send(broker, [b"not yet"])
    log = broker.log()
    await until_async(lambda: broker.engine.stalled is not None)
    assert (log.high_watermark, log.next_offset) == (1, 2)
    assert [record.value for record in await read_all(broker)] == [b"durable"]
    assert broker.engine.read_tail(log, 1, 100) == []
    woken = asyncio.Event()
    log.waiters.add(woken.set)
    broker.store.refused.clear()
    await woken.wait()
    log.waiters.remove(woken.set)
    assert await waiting == 1
    assert [record.value for record in await read_all(broker)] == [b"durable", b"not yet"]


@pytest.mark.parametrize("machine", READABLE, indirect=True)
async def test_readers_and_writers_while_chunks_come_and_go(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, 4)
    # Memory is so small that almost everything is read from the store at once.
    broker = await machine.begin(settings=settings(wal_chunk_bytes=16_384, tail_bytes=20_000, read_cache_bytes=500))
    log = broker.log()
    writing = True
    seen: list[int] = []

    async def follow() -> None:
        offset = 0
        while writing or offset < log.high_watermark:
            offset = max(offset, log.log_start)
            try:
                slices = await broker.engine.read(log, offset, 3_000)
            except InvalidError as error:
                assert error.reason is Reason.OFFSET_OUT_OF_RANGE
                continue
            for one in slices:
                base = int.from_bytes(one[:8], "big")
                assert base <= offset or offset < log.log_start
                offset = max(offset, base + 1)
                seen.append(base)
            await asyncio.sleep(0)

    reading = asyncio.gather(follow(), follow())
    for number in range(150):
        await machine.send(broker, [bytes(chance_size(number)) + b"%d" % number])
        if number % 50 == 49:
            await broker.engine.delete_records(log, number - 40)
    writing = False
    await reading
    assert log.high_watermark - 1 in seen
    await machine.check(broker, exact=True)


def chance_size(number: int) -> int:
    return (number * 7919) % 4_000


async def test_a_chunk_that_is_not_what_was_written_is_said_to_be(make_machine: MakeMachine) -> None:
    machine = make_machine("put")
    broker = await machine.begin()
    await machine.send(broker, [b"one"])
    await until_async(lambda: len(broker.log().open.chunks) == 0)
    broker.log().tail.clear()
    key = next(row.key for row in await broker.faults.list("wal/") if row.key.endswith("/" + "0" * 20))
    data = await broker.faults.get(key)
    for damaged in (data[:-1], data[:100], data[:124] + b"\xff" * 8 + data[132:]):
        await broker.faults.put(key, damaged)
        broker.engine._reader._cache.clear()
        with pytest.raises(CorruptError):
            await broker.engine.read(broker.log(), 0, 100)
    await broker.faults.delete(key)
    with pytest.raises(HeadgateError) as caught:
        await broker.engine.read(broker.log(), 0, 100)
    assert isinstance(caught.value, RetryError)
    await broker.faults.put(key, data)
    assert [record.value for record in await read_all(broker)] == [b"one"]


async def test_a_chunk_that_somebody_deleted(
    make_machine: MakeMachine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifecycle rule of the bucket, for example, removed the chunk. Its readers get an error, the log has one line, and the
    rest works."""
    fold_by(monkeypatch, 4)
    monkeypatch.setattr("headgate.broker.engine.read.reader.AGAIN_S", 0.001)
    machine = make_machine("put")
    broker = await machine.begin(settings=settings(wal_checkpoint_chunks=1000, wal_checkpoint_interval_ms=3_600_000))
    engine = broker.engine
    for number in range(16):
        await machine.send(broker, [b"%d" % number])
    await broker.store.delete(keys.chunk(engine.incarnation_id, 1))
    await broker.checkpointer.list_all()
    await until_async(lambda: broker.sweeper.chunks_folded == 12)
    broker.log().tail.clear()
    for _ in range(3):
        with pytest.raises(RetryError, match="missing in the store"):
            await engine.read(broker.log(), 1, 1000)
    (told,) = [record for record in caplog.records if record.message == "records_unreadable"]
    assert told.levelname == "ERROR"
    assert await engine.read(broker.log(), 0, 1) and await engine.read(broker.log(), 2, 1)
    assert await machine.send(broker, [b"last"]) == 16


async def test_an_index_that_was_lost_or_damaged_is_made_again(make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    fold_by(monkeypatch, 1000)
    monkeypatch.setattr("headgate.broker.engine.read.reader.AGAIN_S", 0.001)
    machine = make_machine("memory")
    broker = await machine.start(settings(wal_checkpoint_chunks=1000, wal_checkpoint_interval_ms=3_600_000))
    engine, store = broker.engine, broker.faults
    await engine.create_topic("t", 3, {})
    for number in range(60):
        await machine.send(broker, [b"%d" % number + bytes(100 * (number % 50))], partition=number * number % 3)
    await broker.wal.roll()
    await machine.send(broker, [b"last"], partition=2)
    await broker.wal.roll()
    await broker.checkpointer.list_all()
    indexes = {row.key: await store.get(row.key) for row in await store.list("wal/") if row.key.endswith(".index")}
    first, second, *_ = indexes
    await store.delete(first)
    await store.put(second, indexes[second][:-1])
    for partition in range(3):
        broker.log(partition=partition).tail.clear()
    await machine.check(broker, exact=True)
    assert {key: await store.get(key) for key in indexes} == indexes
    await store.delete(first)
    await fold(store, engine.manifest, engine.incarnation_id, list(engine.manifest.chunks[engine.incarnation_id].values()), "test")
    assert await store.get(first) == indexes[first]
