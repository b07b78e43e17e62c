"""A store that does not answer for some files harms the readers of those files alone.

Runs: readers of history over a store whose reads of some files hang, and the room for row groups by itself with reads that end,
fail or are cancelled while they are slow. Compared: what readers of other files get, and the number of row groups in memory with
its bound. A mismatch means that one slow bucket stops all history of a broker, or that it fills its memory.
"""

from __future__ import annotations

import asyncio

import pytest

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.read.history import HistoryReader
from headgate.broker.engine.read.room import SLOW_MAX, Room
from headgate.broker.log.recipe import encode_recipe
from headgate.broker.runtime.clock import ManualClock
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.store.memory import MemoryObjects, MemoryStore
from tests.support.adopted import adopted
from tests.support.waiting import until_async
from tests.unit.engine.test_history import put, read_all, rows, shown

PLACES = 2


class HangingStore(MemoryStore):
    """Reads of some keys wait for `answers`."""

    def __init__(self) -> None:
        super().__init__(MemoryObjects(ManualClock(0)))
        self.hanging: set[str] = set()
        self.waiting: list[str] = []
        self.answers = asyncio.Event()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if key in self.hanging:
            self.waiting.append(key)
            await self.answers.wait()
        return await super().get_range(key, start, length)


async def adopt(store: HangingStore) -> list[ParquetExtent]:
    source = adopted(300)
    for file, data in zip(source.recipe.files, source.files, strict=True):
        await store.put(file.path, data)
    await store.put(source.path, encode_recipe(source.recipe))
    store.hanging |= {file.path for file in source.recipe.files}
    return list(source.extents().values())


async def test_reads_that_hang_do_not_hold_up_other_files() -> None:
    store, records = HangingStore(), rows(300)
    paths = [f"topics/t/data/partition=0/g-0-{number:03d}.parquet" for number in range(PLACES + 2)]
    extents = [await put(store, records, path=path) for path in paths]
    reader = HistoryReader(lambda path: (store, path), cache_bytes_max=64 << 20, parallel=PLACES - 1)
    for extent in extents:
        await reader.check(extent)
    store.hanging = {extent.path for extent in extents[1:]}
    reads = [asyncio.create_task(reader.read(extent, extent.base_offset, 1 << 20)) for extent in extents[1:]]
    adopting = [asyncio.create_task(reader.read(extent, extent.base_offset, 1 << 20)) for extent in await adopt(store)]
    await until_async(lambda: len(store.waiting) >= PLACES)
    assert await read_all(reader, extents[0]) == records
    assert not any(read.done() for read in (*reads, *adopting))
    store.answers.set()
    for read in reads:
        found = shown(await read)
        assert found == records[: len(found)]
    assert all(await asyncio.gather(*adopting))
    await reader.close()


async def test_slow_reads_are_bounded() -> None:
    room, answers = Room(PLACES, slow_s=0.0), asyncio.Event()
    reading = 0

    async def read() -> None:
        nonlocal reading
        reading += 1
        await answers.wait()

    async def group() -> None:
        nonlocal reading
        async with room.place() as place:
            await place.read(read())
            reading -= 1

    groups = [asyncio.create_task(group()) for _ in range(3 * SLOW_MAX)]
    await until_async(lambda: reading == SLOW_MAX + PLACES)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert reading == SLOW_MAX + PLACES
    assert room.is_full
    answers.set()
    await asyncio.gather(*groups)
    assert reading == 0


async def take_all(room: Room) -> None:
    """Take every place of a room at the same time, and none above."""
    async with asyncio.timeout(60):
        for _ in range(PLACES):
            await room.take()
    assert room.is_full
    for _ in range(PLACES):
        room.leave()


async def test_a_place_is_given_back_once_however_a_slow_read_ends() -> None:
    room, reading, answers = Room(PLACES, slow_s=0.0), asyncio.Event(), asyncio.Event()

    async def read() -> None:
        reading.set()
        await answers.wait()
        raise RetryError(Reason.OVERLOADED, "the store does not answer")

    async def group() -> None:
        async with room.place() as place:
            await place.read(read())

    async def beside() -> asyncio.Task[None]:
        """A slow read, while other row groups have all places."""
        reading.clear()
        answers.clear()
        slow = asyncio.create_task(group())
        await reading.wait()
        for _ in range(PLACES):
            await room.take()
        return slow

    for is_cancelled in (False, True):
        for is_answered in (False, True):
            slow = await beside()
            if is_answered:
                answers.set()
                for _ in range(100):  # it waits for its place
                    await asyncio.sleep(0)
            if is_cancelled:
                slow.cancel()
            for _ in range(PLACES):
                room.leave()
            answers.set()
            with pytest.raises(asyncio.CancelledError if is_cancelled else RetryError):
                await slow
            await take_all(room)
