"""Parquet extents as Kafka clients get them: by offset, by time, from good files and from broken ones.

Runs: files of the uploader and of foreign writers (dictionaries, other codecs and pages, times in microseconds, a column
`offset`, extra columns), read from every offset, ahead, together, through a small cache; files that were truncated, changed,
removed. Compared: every answer with that of the plain list of rows, and the amount of fetched and encoded data with the
necessary amount. A mismatch means that a consumer gets other records than the uploaded history, or that a broken file harms more
than its readers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import io
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from crc32c import crc32c
from msgspec.structs import replace

from headgate.broker.client.gate_admin import FileRef
from headgate.broker.client.upload import write_extent
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.read.encoding import Encoders
from headgate.broker.engine.read.history import HistoryReader
from headgate.broker.log.batch import crc_matches, parse_header
from headgate.broker.log.column_schema import HEADERS_TYPE
from headgate.broker.log.compression import Codec
from headgate.broker.log.parquet import write_extent_file
from headgate.broker.log.records import Record, iter_records
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import ClosedError, CorruptError, HeadgateError, InvalidError, Reason
from headgate.broker.store.interface import Store
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from headgate.broker.store.s3 import open_s3
from tests.support.errors import raises
from tests.support.s3_server import S3Server
from tests.support.waiting import until_async

BASE = 1000
ROWS = 3000
EPOCH = 4
T0 = 1_700_000_000_000


def rows(count: int = ROWS, *, with_headers: bool = True) -> list[Record]:
    """Records with times that mostly increase."""
    chance = random.Random(count)
    made = []
    for at in range(count):
        key = chance.choice([None, b"", b"key-%d" % (at % 50)])
        value = chance.choice([None, b"", chance.randbytes(chance.choice((5, 40, 400)))])
        headers = (("trace", b"%d" % at), ("null", None)) if with_headers and at % 10 == 0 else ()
        made.append(Record(BASE + at, T0 + at * 10 - chance.choice((0, 0, 25)), key, value, headers))
    return made


def columns(records: list[Record], *, offsets: bool = False, unit: str = "ms") -> pa.Table:
    kinds: dict[str, Any] = {"ms": pa.timestamp("ms", tz="UTC"), "us": pa.timestamp("us", tz="UTC")}
    scale = {"ms": 1, "us": 1000}[unit]
    data: dict[str, Any] = {"offset": pa.array([record.offset for record in records])} if offsets else {}
    data["timestamp"] = pa.array([record.timestamp_ms * scale for record in records]).cast(kinds[unit])
    data["key"] = pa.array([record.key for record in records], pa.binary())
    data["value"] = pa.array([record.value for record in records], pa.binary())
    items = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
    if any(items):
        data["headers"] = pa.array(items, HEADERS_TYPE)
    return pa.table(data)


class CountedStore(MemoryStore):
    """Counts the reads."""

    def __init__(self) -> None:
        super().__init__(MemoryObjects(ManualClock(0)))
        self.ranges: list[tuple[str, int, int]] = []
        self.gate: asyncio.Event | None = None
        self.error: HeadgateError | None = None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges.append((key, start, length))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return await super().get_range(key, start, length)


@pytest.fixture
def store() -> CountedStore:
    return CountedStore()


MakeReader = Callable[..., HistoryReader]


class KeptEncoders(Encoders):
    """The encoder processes stay when a reader is closed, for those of the next test."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def encoders() -> Iterator[Encoders]:
    kept = KeptEncoders()
    yield kept
    Encoders.close(kept)


@pytest_asyncio.fixture
async def make_reader_of() -> AsyncIterator[MakeReader]:
    """Make readers; all close at the end."""
    made: list[HistoryReader] = []

    def make(store: Store, encoders: Encoders | None, cache_bytes_max: int = 64 << 20, codec: Codec = Codec.NONE) -> HistoryReader:
        reader = HistoryReader(
            lambda path: (store, path), cache_bytes_max=cache_bytes_max, parallel=2, codec=codec, encoders=encoders
        )
        made.append(reader)
        return reader

    yield make
    for reader in made:
        await reader.close()


@pytest.fixture
def make_reader(make_reader_of: MakeReader, store: CountedStore, encoders: Encoders) -> MakeReader:
    return partial(make_reader_of, store, encoders)


def extent_of(data: bytes, records: list[Record], path: str = "topics/t/data/partition=0/g-0-000.parquet") -> ParquetExtent:
    footer = int.from_bytes(data[-8:-4], "little") + 8
    return ParquetExtent(
        partition=0,
        base_offset=records[0].offset,
        end_offset=records[-1].offset + 1,
        leader_epoch=EPOCH,
        path=path,
        size_bytes=len(data),
        footer_crc32c=crc32c(data[-footer:]),
        timestamp_min_ms=min(record.timestamp_ms for record in records),
        timestamp_max_ms=max(record.timestamp_ms for record in records),
    )


async def put(store: CountedStore, records: list[Record], *, group_bytes: int = 20_000, path: str | None = None) -> ParquetExtent:
    """Upload a file as the uploader does, with many row groups."""
    data = bytes(write_extent_file(columns(records), row_group_bytes=group_bytes).data)
    extent = extent_of(data, records) if path is None else extent_of(data, records, path)
    await store.put(extent.path, data)
    return extent


def shown(batches: list[memoryview]) -> list[Record]:
    assert all(crc_matches(batch) for batch in batches)
    assert {parse_header(batch).leader_epoch for batch in batches} <= {EPOCH}
    return [record for batch in batches for record in iter_records(batch)]


async def read_all(reader: HistoryReader, extent: ParquetExtent, max_bytes: int = 1 << 20) -> list[Record]:
    found: list[Record] = []
    offset = extent.base_offset
    while offset < extent.end_offset:
        batches = await reader.read(extent, offset, max_bytes)
        assert len(batches) == 1 or sum(len(batch) for batch in batches) <= max_bytes
        found += [record for record in shown(batches) if record.offset >= offset]
        offset = found[-1].offset + 1
    return found


@pytest.mark.parametrize("codec", list(Codec))
async def test_every_row_from_the_beginning(store: CountedStore, make_reader: MakeReader, codec: Codec) -> None:
    records = rows()
    extent = await put(store, records)
    reader = make_reader(codec=codec)
    assert await read_all(reader, extent) == records
    assert await read_all(reader, extent, max_bytes=1) == records
    assert reader.encoded_rows == ROWS, "every row group was encoded once"


async def test_from_every_offset(store: CountedStore, make_reader: MakeReader) -> None:
    records = rows(500)
    extent = await put(store, records, group_bytes=3000)
    reader = make_reader()
    for offset in range(extent.base_offset, extent.end_offset, 3):
        batches = await reader.read(extent, offset, 1)
        header = parse_header(batches[0])
        assert header.base_offset <= offset < header.next_offset
        assert shown(batches)[0] == records[header.base_offset - BASE]


async def test_what_is_there_is_given_at_once_and_the_next_is_read_ahead(store: CountedStore, make_reader: MakeReader) -> None:
    records = rows()
    extent = await put(store, records)
    reader = make_reader()
    first = shown(await reader.read(extent, BASE, 1 << 30))
    assert first == records[: len(first)]
    assert 0 < len(first) < ROWS, "one row group: nobody waits for more than the first"
    await until_async(lambda: reader.encoded_rows > len(first))
    store.error = InvalidError(Reason.INTERNAL, "nothing is read now")
    ahead = shown(await reader.read(extent, BASE + len(first), 1 << 30))
    assert ahead == records[len(first) : len(first) + len(ahead)]


async def test_the_next_file_is_opened_before_it_is_asked_for(store: CountedStore, make_reader: MakeReader) -> None:
    records = rows(200)
    first = await put(store, records[:100], group_bytes=1 << 20)
    second = await put(store, records[100:], path="topics/t/data/partition=0/g-0-001.parquet")
    reader = make_reader()
    await reader.read(first, BASE, 1 << 20, second)
    await until_async(lambda: second.path in {key for key, _, _ in store.ranges})
    assert shown(await reader.read(second, BASE + 100, 1))[0] == records[100]


async def test_readers_of_the_same_rows_share_the_work(store: CountedStore, make_reader: MakeReader) -> None:
    records = rows()
    extent = await put(store, records, group_bytes=1 << 30)
    reader = make_reader()
    answers = await asyncio.gather(*(reader.read(extent, BASE + at, 1 << 30) for at in range(20)))
    assert all(shown(answer) == records for answer in answers)
    assert reader.encoded_rows == ROWS
    assert len({(key, start) for key, start, _ in store.ranges}) == len(store.ranges), "nothing is fetched twice"


@pytest.mark.parametrize(("count", "value_bytes", "read"), [(800_000, 3_000, 40_000), (600, 5_000_000, 8)])
async def test_a_row_group_that_holds_far_more_than_its_bytes_say(
    store: CountedStore, make_reader: MakeReader, count: int, value_bytes: int, read: int
) -> None:
    """Parquet writers store a repeated value once: gigabytes of rows in 5 MB. The memory for their batches is bounded."""
    value = random.Random(1).randbytes(value_bytes)
    times = pa.array(range(T0, T0 + count), pa.timestamp("ms", tz="UTC"))
    values = pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()).fill_null(0), pa.array([value]))
    made = io.BytesIO()
    pq.write_table(pa.table({"timestamp": times, "key": pa.nulls(count, pa.binary()), "value": values}), made)
    data = made.getvalue()
    assert len(data) < 10 << 20 and pq.read_metadata(made).num_row_groups == 1
    ends = [Record(BASE, T0, None, value), Record(BASE + count - 1, T0 + count - 1, None, value)]
    extent = extent_of(data, ends)
    await store.put(extent.path, data)
    reader = make_reader(cache_bytes_max=32 << 20)
    # The test reads through several parts, and from a place within one that no reader has read before.
    for at in (BASE, BASE + read // 2 + 1):
        end = at + read
        while at < end:
            found = shown(await reader.read(extent, at, 1 << 20))
            assert next(record for record in found if record.offset >= at) == Record(at, T0 + at - BASE, None, value)
            assert {record.value for record in found} == {value}
            at = found[-1].offset + 1
            assert reader.cache.size_bytes <= 32 << 20
    assert reader.cache.dropped_in_use == 0
    assert reader.encoded_bytes / reader.misses <= 16 << 20, "none takes more than half of the cache"


async def test_readers_of_a_row_group_in_parts(
    store: CountedStore, make_reader: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.broker.engine.read.history.PART_BYTES_MIN", 50_000)
    count = 15_000
    records = rows(count)
    extent = await put(store, records, group_bytes=1 << 30)
    reader = make_reader(cache_bytes_max=100_000)
    assert await read_all(reader, extent) == records
    assert reader.misses > 2, "parts"
    for offset in (BASE + count - 1, BASE + 1, BASE + 9000, BASE + 5000, BASE):
        found = shown(await reader.read(extent, offset, 1))
        assert offset in {record.offset for record in found}
        assert found == records[found[0].offset - BASE : found[-1].offset - BASE + 1]
    fresh = make_reader(cache_bytes_max=1 << 20)
    answers = await asyncio.gather(*(fresh.read(extent, BASE + at, 1 << 20) for at in range(0, count, 500)))
    for at, answer in zip(range(0, count, 500), answers, strict=True):
        found = shown(answer)
        assert found[0].offset <= BASE + at <= found[-1].offset
        assert found == records[found[0].offset - BASE : found[-1].offset - BASE + 1]


async def test_who_goes_away_does_not_take_it_from_others(store: CountedStore, make_reader: MakeReader) -> None:
    records = rows(300)
    extent = await put(store, records, group_bytes=1 << 30)
    reader = make_reader()
    store.gate = asyncio.Event()
    impatient = asyncio.create_task(reader.read(extent, BASE, 1 << 20))
    patient = asyncio.create_task(reader.read(extent, BASE, 1 << 20))
    await until_async(lambda: bool(store.ranges))
    impatient.cancel()
    store.gate.set()
    assert shown(await patient) == records
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_the_cache_is_bounded(store: CountedStore, make_reader: MakeReader) -> None:
    records = rows()
    extent = await put(store, records)
    reader = make_reader(cache_bytes_max=100_000)
    for _ in range(2):
        assert await read_all(reader, extent) == records
        assert 0 < reader.cache.size_bytes <= 100_000
    assert reader.encoded_rows > ROWS, "it does not all fit"
    nothing_kept = make_reader(cache_bytes_max=0)
    assert await read_all(nothing_kept, extent) == records
    assert nothing_kept.cache.size_bytes == 0


async def test_many_readers_of_a_small_cache(
    store: CountedStore, make_reader: MakeReader, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers read partitions in turns, a batch at a time: the cache drops no row group because of the next partition's read."""
    records = [Record(BASE + at, at, None, bytes(1000)) for at in range(12_000)]
    paths = [f"topics/t/data/partition={number}/g-0-000.parquet" for number in range(4)]
    extents = [await put(store, records, group_bytes=3 << 20, path=path) for path in paths]

    async def read_in_turns(reader: HistoryReader) -> None:
        offsets = dict.fromkeys(paths, BASE)
        while offsets:
            for extent in [one for one in extents if one.path in offsets]:
                (data,) = await reader.read(extent, offsets[extent.path], 1)
                header = parse_header(data)
                offsets[extent.path] = header.base_offset + header.last_offset_delta + 1
                if offsets[extent.path] == extent.end_offset:
                    del offsets[extent.path]

    roomy = make_reader()
    await read_in_turns(roomy)
    groups = roomy.misses
    assert groups == 4 * len(paths)
    group_bytes = roomy.encoded_bytes // groups
    enough = make_reader(cache_bytes_max=group_bytes * 5)
    await read_in_turns(enough)
    # Made ahead in vain: before it was known how many readers come, and if the room was estimated too large.
    assert groups <= enough.misses < 2 * groups, "few row groups are encoded twice"
    assert enough.cache.dropped_in_use == 0
    assert not [record for record in caplog.records if record.message == "history_cache_small"]
    too_small = make_reader(cache_bytes_max=group_bytes * 2)
    await read_in_turns(too_small)
    assert too_small.misses > groups
    assert too_small.cache.dropped_in_use > 0
    (told,) = [record for record in caplog.records if record.message == "history_cache_small"]
    assert told.levelname == "WARNING"


async def test_what_was_made_ahead_replaces_nothing_that_is_read(store: CountedStore, make_reader: MakeReader) -> None:
    """The store answers late: another reader has taken the room for which the row group was begun."""
    records = [Record(BASE + at, at, None, bytes(1000)) for at in range(6_000)]
    first, second = [
        await put(store, records, group_bytes=2 << 20, path=f"topics/t/data/partition={number}/g-0-000.parquet")
        for number in range(2)
    ]
    reader = make_reader(cache_bytes_max=5 << 20)
    for extent in (first, second):
        await reader.check(extent)
    (data,) = await reader.read(first, BASE, 1)
    rows_of_one, gate, requests = reader.encoded_rows, asyncio.Event(), len(store.ranges)
    store.gate = gate
    await until_async(lambda: len(store.ranges) > requests)
    store.gate = None
    await reader.read(second, BASE, 1)
    gate.set()
    await until_async(lambda: reader.encoded_rows == 3 * rows_of_one)
    await reader.read(first, parse_header(data).next_offset, 1)
    await reader.read(second, parse_header(data).next_offset, 1)
    assert (reader.misses, reader.cache.dropped_in_use) == (3, 0)


async def test_a_file_at_two_places(store: CountedStore, make_reader: MakeReader) -> None:
    """Offsets come from the reference, so that the cached batches of one place do not serve another."""
    records = rows(50)
    extent = await put(store, records)
    moved = replace(extent, base_offset=7, end_offset=57)
    reader = make_reader()
    assert [record.offset for record in await read_all(reader, extent)] == list(range(BASE, BASE + 50))
    assert [record.offset for record in await read_all(reader, moved)] == list(range(7, 57))


async def test_a_file_that_was_replaced_and_committed_again(store: CountedStore, make_reader: MakeReader) -> None:
    """Stands for a file of an export that keeps its name: in a topic that was deleted and created again, everything else may be
    equal."""
    records = rows(50)
    other = [Record(one.offset, one.timestamp_ms, one.key, b"another %d" % one.offset, ()) for one in records]
    reader = make_reader()
    first = await put(store, records)
    assert await read_all(reader, first) == records
    again = await put(store, other, group_bytes=1000)
    assert again.path == first.path
    assert await read_all(reader, again) == other


async def test_by_time(store: CountedStore, make_reader: MakeReader) -> None:
    records = rows()
    extent = await put(store, records)
    reader = make_reader()
    for timestamp in (0, T0 - 30, T0, T0 + 5, T0 + 14_995, T0 + 29_000, T0 + 29_990, T0 + 30_000, 1 << 53):
        for offset in (BASE, BASE + 1, BASE + 1499, BASE + 2999):
            expected = next(
                ((one.timestamp_ms, one.offset) for one in records if one.offset >= offset and one.timestamp_ms >= timestamp), None
            )
            assert await reader.first_at(extent, timestamp, offset) == expected
    for offset in (0, BASE, BASE + 1, BASE + 1500, BASE + 2998, BASE + 2999):
        assert await reader.greatest(extent, offset) == max(one.timestamp_ms for one in records if one.offset >= offset)


async def test_a_look_up_by_time_reads_one_row_group(store: CountedStore, make_reader: MakeReader) -> None:
    extent = await put(store, rows())
    reader = make_reader()
    await reader.first_at(extent, T0 + 15_000, BASE)
    assert len(store.ranges) == 3, "the footer, one byte behind the end, one row group"


async def test_a_look_up_by_time_reads_times_alone(store: CountedStore, make_reader: MakeReader) -> None:
    """The row group has many megabytes, and hundreds of consumers look up times in it."""
    records = [Record(BASE + at, T0 + at, None, random.Random(at).randbytes(10_000)) for at in range(100)]
    extent = await put(store, records, group_bytes=1 << 30)
    reader = make_reader()
    await reader.check(extent)
    store.ranges.clear()
    assert await reader.first_at(extent, T0 + 50, BASE) == (T0 + 50, BASE + 50)
    assert await reader.greatest(extent, BASE + 50) == T0 + 99
    assert sum(length for _, _, length in store.ranges) < 10_000, "not the values"


@pytest.mark.parametrize("timestamp_ms", [-315_619_200_000, -1, 0, 7_258_118_400_000])
async def test_times_of_other_centuries(store: CountedStore, make_reader: MakeReader, timestamp_ms: int) -> None:
    records = [Record(BASE + at, timestamp_ms + at, None, b"x") for at in range(5)]
    extent = await put(store, records)
    reader = make_reader()
    assert await read_all(reader, extent) == records
    assert await reader.first_at(extent, timestamp_ms + 2, BASE) == (timestamp_ms + 2, BASE + 2)


async def test_one_row_larger_than_any_batch(store: CountedStore, make_reader: MakeReader) -> None:
    records = [
        Record(BASE, T0, b"a", b"1"),
        Record(BASE + 1, T0, b"b", random.Random(1).randbytes(5 << 20)),
        Record(BASE + 2, T0, b"c", b"3"),
    ]
    extent = await put(store, records, group_bytes=4 << 20)
    assert await read_all(make_reader(), extent) == records


def foreign(records: list[Record], *, unit: str = "ms", offsets: bool = False, **options: Any) -> bytes:
    """Write a file as some other program does."""
    table = columns(records, unit=unit, offsets=offsets)
    table = table.append_column("note", pa.array(["not ours"] * len(records)))
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "snappy", "row_group_size": 64},
        {"compression": "gzip", "use_dictionary": ["key"], "row_group_size": 100},
        {"compression": "none", "data_page_version": "2.0", "data_page_size": 500},
        {"compression": "lz4", "unit": "us", "write_statistics": False, "row_group_size": 77},
        {"offsets": True, "unit": "us", "store_schema": False, "row_group_size": 50},
        {"write_page_index": True, "write_page_checksum": True, "row_group_size": 99},
    ],
    ids=str,
)
async def test_files_of_other_writers(store: CountedStore, make_reader: MakeReader, options: dict[str, Any]) -> None:
    records = rows(300)
    data = foreign(records, **options)
    extent = extent_of(data, records)
    await store.put(extent.path, data)
    reader = make_reader()
    assert await read_all(reader, extent) == records
    at = records[123]
    assert await reader.first_at(extent, at.timestamp_ms, at.offset) == (at.timestamp_ms, at.offset)
    assert await reader.greatest(extent, BASE + 10) == max(one.timestamp_ms for one in records[10:])


def spoiled() -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    records = rows(400)
    good = bytes(write_extent_file(columns(records), row_group_bytes=5000).data)
    footer = int.from_bytes(good[-8:-4], "little") + 8
    middle = (len(good) - footer) // 2
    yield "cut off", good[:-1], {}
    yield "cut in the middle", good[: len(good) // 2], {}
    yield "empty", b"", {}
    yield "longer", good + b"x", {}
    yield "other magic", good[:-1] + b"2", {"footer_crc32c": None}
    yield "footer too long", good[:-8] + b"\xff\xff\xff\x7fPAR1", {}
    yield "another footer", good[: 20 - footer] + bytes([good[20 - footer] ^ 1]) + good[21 - footer :], {}
    yield "not a footer", good[:-footer] + bytes(footer - 8) + good[-8:], {"footer_crc32c": None}
    yield "a byte of the rows", good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :], {}
    yield "zeros for rows", bytes(len(good) - footer) + good[-footer:], {}
    yield "fewer rows than stated", good, {"end_offset": BASE + 401}
    yield "more rows than stated", good, {"end_offset": BASE + 399}


@pytest.mark.parametrize(("data", "changes"), [pytest.param(*case[1:], id=case[0]) for case in spoiled()])
async def test_broken_files(store: CountedStore, make_reader: MakeReader, data: bytes, changes: dict[str, Any]) -> None:
    records = rows(400)
    good = bytes(write_extent_file(columns(records), row_group_bytes=5000).data)
    if changes.get("footer_crc32c", 0) is None:
        changes = {"footer_crc32c": crc32c(data[-(int.from_bytes(good[-8:-4], "little") + 8) :])}
    extent = replace(extent_of(good, records), **changes)
    await store.put(extent.path, data)
    reader = make_reader()
    for _ in range(2):
        with pytest.raises(CorruptError) as raised:
            await read_all(reader, extent)
        assert raised.value.reason is Reason.CORRUPT_STORE
        assert extent.path in raised.value.message


def bad_tables() -> Iterator[tuple[str, pa.Table]]:
    records = rows(10, with_headers=False)
    good = columns(records, offsets=True)
    yield "no value", good.drop(["value"])
    yield "times are text", good.set_column(1, "timestamp", pa.array(["x"] * 10))
    yield "keys are numbers", good.set_column(2, "key", pa.array(range(10)))
    yield "headers are text", good.append_column("headers", pa.array(["x"] * 10))
    yield "not sorted", good.take(list(range(9, -1, -1)))
    yield "gaps", good.set_column(0, "offset", pa.array(range(BASE, BASE + 20, 2)))
    yield "null times", good.set_column(1, "timestamp", pa.array([None] * 10, pa.timestamp("ms")))
    yield "times beyond all years", good.set_column(1, "timestamp", pa.array([1 << 60] * 10))


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in bad_tables()])
async def test_files_with_other_contents(store: CountedStore, make_reader: MakeReader, table: pa.Table) -> None:
    """A file that the fill of the gate should have refused causes an error on reading, and nothing worse."""
    out = io.BytesIO()
    pq.write_table(table, out)
    extent = extent_of(out.getvalue(), rows(10, with_headers=False))
    await store.put(extent.path, out.getvalue())
    with pytest.raises(CorruptError):
        await make_reader().read(extent, BASE, 1)


async def test_a_file_that_vanished(store: CountedStore, make_reader: MakeReader) -> None:
    extent = await put(store, rows(10))
    await store.delete(extent.path)
    reader = make_reader()
    with raises(InvalidError, Reason.NOT_FOUND):
        await reader.read(extent, BASE, 1)
    await put(store, rows(10))
    assert await read_all(reader, extent) == rows(10), "an error is not kept"


async def test_who_reads_no_more_needs_no_processes(store: CountedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    encoders = Encoders()
    extent = await put(store, rows(100))
    reader = HistoryReader(lambda path: (store, path), cache_bytes_max=0, parallel=1, encoders=encoders)
    assert encoders.pids == []
    reader.warm()
    await until_async(lambda: bool(encoders.pids))
    assert await read_all(reader, extent) == rows(100)
    assert len(encoders.pids) == 1
    monkeypatch.setattr("headgate.broker.engine.read.history.IDLE_S", 0.05)
    for _ in range(2):
        assert await read_all(reader, extent) == rows(100)
        await until_async(lambda: encoders.pids == [])
    await reader.close()


async def test_closing_ends_reads(store: CountedStore, make_reader: MakeReader) -> None:
    extent = await put(store, rows(10))
    reader = make_reader()
    store.gate = asyncio.Event()
    reading = asyncio.create_task(reader.read(extent, BASE, 1))
    await until_async(lambda: bool(store.ranges))
    await reader.close()
    with pytest.raises(ClosedError):
        await reading
    with pytest.raises(ClosedError):
        await reader.read(extent, BASE, 1)


async def test_closing_interrupts_work(store: CountedStore, caplog: pytest.LogCaptureFixture) -> None:
    extent = await put(store, rows(10))
    encoders = Encoders()
    reader = HistoryReader(lambda path: (store, path), cache_bytes_max=0, parallel=1, encoders=encoders)
    await reader.read(extent, BASE, 1)
    (pid,) = encoders.pids
    os.kill(pid, signal.SIGSTOP)
    reading = asyncio.create_task(reader.read(extent, BASE, 1))
    await until_async(lambda: bool(encoders._busy))
    gc.collect()  # objects of other tests raise their own warnings
    caplog.clear()
    await reader.close()
    with pytest.raises(ClosedError):
        await reading
    gc.collect()
    assert caplog.records == [], "it was wanted"


async def test_a_bucket(s3_server: S3Server) -> None:
    """Rows go from the uploader's thread into S3, and from there into batches."""
    records = rows(300)
    url = s3_server.url(s3_server.bucket(), "some/prefix")

    def upload() -> FileRef:
        return write_extent(url, "topics/t/data/partition=0/g-0-000.parquet", columns(records), 0, BASE)

    ref = await asyncio.to_thread(upload)
    store = open_s3(url)
    try:
        extent = extent_of(await store.get(ref.path), records, ref.path)
        assert all(getattr(extent, one.name) == getattr(ref, one.name) for one in dataclasses.fields(ref))
        reader = HistoryReader(lambda path: (store, path), cache_bytes_max=1 << 20, parallel=1)
        assert await read_all(reader, extent) == records
        await reader.close()
    finally:
        await store.close()


@pytest.mark.parametrize("url", ["memory:", "null:"])
def test_a_store_that_only_the_broker_has(url: str) -> None:
    with pytest.raises(InvalidError, match="only the broker itself"):
        write_extent(url, "a/b.parquet", columns(rows(1)), 0, 0)
