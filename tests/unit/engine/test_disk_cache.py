"""The cache of encoded history on disk: late readers get from it what was encoded for earlier ones, and never anything else.

Runs: readers of history with a memory cache that holds nothing, over a cache on disk that is whole, damaged, full, too small, or
whose writes fail. A mismatch means that consumers get wrong records, that history is encoded for each reader, or that a disk fills.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from headgate.broker.engine.read.disk_cache import FILES, PAUSE_S, DiskCache, Place
from headgate.broker.engine.read.history import HistoryReader
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises
from tests.support.waiting import until_async
from tests.unit.engine.test_history import CountedStore, put, read_all, rows

MakeReader = Callable[[DiskCache], HistoryReader]


@pytest.fixture
def store() -> CountedStore:
    return CountedStore()


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"), FILES << 20)


@pytest_asyncio.fixture
async def make_reader(store: CountedStore) -> AsyncIterator[MakeReader]:
    made: list[HistoryReader] = []

    def make(disk: DiskCache) -> HistoryReader:
        made.append(HistoryReader(lambda path: (store, path), cache_bytes_max=1, parallel=1, disk=disk))
        return made[-1]

    yield make
    for reader in made:
        await reader.close()


def batches(number: int, size: int = 1000) -> list[memoryview]:
    return [memoryview(bytes([number + at]) * size) for at in range(3)]


def written(disk: DiskCache, number: int, size: int = 1000) -> Place:
    place = disk.write(batches(number, size))
    assert place is not None
    return place


async def test_a_late_reader_is_served_from_disk(store: CountedStore, make_reader: MakeReader, disk: DiskCache) -> None:
    records = rows()
    extent = await put(store, records)
    first = make_reader(disk)
    assert await read_all(first, extent) == records
    await until_async(lambda: not first.disk.unwritten)
    encoded, late = first.encoded_rows, make_reader(disk)
    assert encoded >= len(records)
    assert await read_all(late, extent) == records
    assert await read_all(late, extent, max_bytes=1) == records
    assert late.encoded_rows == 0
    assert late.disk.hits > 1
    assert disk.size_bytes > 0


async def test_a_group_that_is_read_in_many_fetches_is_written_once(
    store: CountedStore, make_reader: MakeReader, tmp_path: Path
) -> None:
    """Also while the disk is slow, when each fetch encodes the group again, because memory has no room for it."""
    slow, fetches = threading.Event(), 6

    class SlowDisk(DiskCache):
        def write(self, batches: Sequence[memoryview]) -> Place | None:
            slow.wait()
            return super().write(batches)

    disk = SlowDisk(str(tmp_path), FILES << 24)
    extent = await put(store, rows(), group_bytes=1 << 30)
    reader = make_reader(disk)
    for at in range(fetches):
        await reader.read(extent, extent.base_offset + at, 1)
    slow.set()
    await until_async(lambda: not reader.disk.unwritten)
    (place,) = disk.places.values()
    assert disk.size_bytes == sum(place.sizes)
    assert reader.encoded_rows == fetches * len(rows())


async def test_what_is_damaged_is_encoded_again(
    store: CountedStore, make_reader: MakeReader, disk: DiskCache, caplog: pytest.LogCaptureFixture
) -> None:
    records = rows()
    extent = await put(store, records)
    first = make_reader(disk)
    await read_all(first, extent)
    await until_async(lambda: not first.disk.unwritten)
    places = list(disk.places.values())
    flipped, cut = places[0], places[-1]
    byte = os.pread(flipped.file.descriptor, 1, flipped.position + 9)
    os.pwrite(flipped.file.descriptor, bytes([byte[0] ^ 1]), flipped.position + 9)
    os.truncate(cut.file.descriptor, cut.position + 1)
    late = make_reader(disk)
    assert await read_all(late, extent) == records
    assert 0 < late.encoded_rows < len(records), "only what was damaged"
    assert [record.getMessage() for record in caplog.records].count("history_cache_damaged") >= 2
    await until_async(lambda: not late.disk.unwritten)
    latest = make_reader(disk)
    assert await read_all(latest, extent) == records
    assert latest.encoded_rows == 0


async def test_a_disk_that_is_full_gets_its_space_back_and_is_left_alone_for_a_time(
    store: CountedStore, make_reader: MakeReader, disk: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk.keep("before", written(disk, 1))
    tries: list[int] = []

    def full(descriptor: int, data: memoryview, position: int) -> int:
        tries.append(position)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    records = rows()
    extent = await put(store, records)
    reader = make_reader(disk)
    assert await read_all(reader, extent) == records
    await until_async(lambda: not reader.disk.unwritten)
    assert disk.size_bytes == 0
    assert "before" not in disk
    assert await read_all(reader, extent) == records
    assert len(tries) == 1, "none for a minute, and not those that waited already"
    assert [record.getMessage() for record in caplog.records].count("history_cache_unwritten") == 1


def test_a_group_that_is_written_while_a_full_disk_is_emptied_is_not_kept(disk: DiskCache) -> None:
    """Otherwise its file would stay, and all files after it, however many."""
    late = written(disk, 0)
    disk.failed(OSError(errno.ENOSPC, "No space left on device"), 0.0)
    disk.keep("late", late)
    assert disk.write(batches(1)) is None, "it waited"
    assert not disk.takes(1, PAUSE_S - 1)
    assert disk.takes(1, PAUSE_S)
    disk.keep("late", late)
    assert "late" not in disk
    size = 300 << 10  # three of them fill a file
    for number in range(2 * FILES):
        disk.keep(number, written(disk, number, size))
    assert [number for number in range(2 * FILES) if number in disk] == list(range(FILES, 2 * FILES))


def test_the_oldest_groups_go_first(disk: DiskCache) -> None:
    size = 300 << 10  # three of them fill a file
    for number in range(FILES + 4):
        disk.keep(number, written(disk, number, size))
        assert disk.size_bytes <= FILES << 20
    assert [number for number in range(FILES + 4) if number in disk] == list(range(4, FILES + 4))
    for number in range(4, FILES + 4):
        place = disk.find(number)
        assert place is not None
        assert disk.read(place) == batches(number, size)
    assert not disk.takes((1 << 20) + 1, 0.0), "larger than a file"


def test_a_group_that_is_dropped_can_be_read_to_its_end(disk: DiskCache) -> None:
    place = written(disk, 1, 300 << 10)
    disk.keep(0, place)
    for number in range(1, FILES + 2):
        disk.keep(number, written(disk, number, 300 << 10))
    assert 0 not in disk
    assert disk.read(place) == batches(1, 300 << 10)


def test_memory_is_used_again_and_never_under_a_reader(disk: DiskCache) -> None:
    places = [written(disk, number, 300 << 10) for number in (1, 2)]
    first = disk.read(places[0])
    assert first is not None
    kept, address = first[2][10:], np.frombuffer(first[0], np.uint8).ctypes.data
    assert disk.read(places[1]) == batches(2, 300 << 10)
    assert kept == batches(1, 300 << 10)[2][10:]
    del first, kept
    again = disk.read(places[1])
    assert again is not None
    used = {np.frombuffer(again[0], np.uint8).ctypes.data}
    other = disk.read(places[0])
    assert other is not None
    used.add(np.frombuffer(other[0], np.uint8).ctypes.data)
    assert address in used


def test_no_file_is_left_and_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    made = DiskCache(str(tmp_path / "a" / "cache"), FILES << 20)
    made.keep(0, written(made, 0))
    assert list((tmp_path / "a" / "cache").iterdir()) == []
    assert (tmp_path / "a" / "cache").stat().st_mode & 0o777 == 0o700
    del made
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with raises(InvalidError, Reason.INVALID_CONFIG, "history_cache_dir="):
        DiskCache(str(tmp_path / "file" / "cache"), 1 << 30)
