"""Stretches of objects that readers share (`engine/read/stretches.py`).

Runs: readers of an object in memory, one after the other and at once, beyond its end, with failures, cancelled readers and a full
cache. Compared: the bytes with those of the object, the number of requests, and the bytes in memory with their limit. A
mismatch means that readers get wrong bytes, wait for ever, or fill the memory.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from headgate.broker.engine.read.stretches import ENTRY_BYTES, READS_MAX, STRETCH_BYTES_MAX, Stretches
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import ClosedError, InvalidError, Reason, RetryError
from headgate.broker.store.memory import READ_UNIT_BYTES, MemoryStore
from headgate.broker.store.wrappers import MeteredStore
from headgate.broker.testing.faults import Fault, FaultStore
from tests.support.errors import raises

UNIT = READ_UNIT_BYTES
DATA = random.Random(7).randbytes(20 * UNIT + 100)


class World:
    """Stretches over an object `a`, with a store that counts and fails."""

    def __init__(self, bytes_max: int = 1 << 20, data: bytes = DATA) -> None:
        self.data = data
        self.memory = MemoryStore(append=False)
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = self.under_way_max = 0
        self.faults = FaultStore(self.memory, sleep=self._wait)
        self.store = MeteredStore(self.faults, Clock())
        self.stretches = Stretches(self.store, bytes_max)

    async def _wait(self, _seconds: float) -> None:
        self.under_way += 1
        self.under_way_max = max(self.under_way, self.under_way_max)
        await self.gate.wait()
        self.under_way -= 1

    async def put(self) -> World:
        await self.memory.put("a", self.data)
        return self

    @property
    def requests(self) -> int:
        return self.store.counts["get_range"].calls

    def hold(self, count: int = 1) -> None:
        """The next requests wait until `gate` is set."""
        self.gate.clear()
        self.faults.script("get_range", *[Fault.DELAYED] * count)

    async def check(self, *ranges: tuple[int, int]) -> None:
        assert await self.stretches.read("a", ranges) == b"".join(self.data[start : start + length] for start, length in ranges)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_readers_of_other_parts_of_a_stretch_make_no_request() -> None:
    world = await World().put()
    await world.check((10, 20), (UNIT * 3, 5), (UNIT * 4 - 1, 3))
    requests = world.requests
    assert requests == 2, "units without a wanted byte are not read"
    await world.check((0, 1), (UNIT - 1, 1), (UNIT * 3 + 1, 2 * UNIT - 1))
    assert world.requests == requests
    await world.check((0, 6 * UNIT))
    assert world.requests == requests + 2, "only the missing units are read"


@pytest.mark.parametrize("seed", range(20))
async def test_any_ranges(seed: int) -> None:
    """Also beyond the object's end, with a cache that keeps only some stretches."""
    chance = random.Random(seed)
    bytes_max = chance.choice((0, 3 * UNIT, 12 * UNIT))
    world = await World(bytes_max, DATA[: chance.choice((0, 5, UNIT, len(DATA)))]).put()

    async def read() -> None:
        for _ in range(10):
            cuts = sorted(chance.choices(range(len(DATA) + UNIT), k=2 * chance.randrange(1, 6)))
            await world.check(*[(begin, end - begin) for begin, end in zip(cuts[::2], cuts[1::2], strict=True)])

    await asyncio.gather(*[read() for _ in range(5)])
    assert world.stretches.kept_bytes <= bytes_max


async def test_readers_at_once_share_a_request() -> None:
    world = await World().put()
    world.hold()
    readers = [asyncio.create_task(world.check((at, 9))) for at in (0, 50, 100)]
    await settle()
    assert world.requests == 1
    readers[0].cancel()  # the reader that began the request
    await settle()
    world.gate.set()
    await asyncio.gather(*readers[1:])
    assert world.requests == 1 and readers[0].cancelled()


async def test_a_failure_reaches_all_readers_and_is_not_kept() -> None:
    world = await World().put()
    world.faults.script("get_range", Fault.REFUSED)
    answers = await asyncio.gather(*[world.stretches.read("a", [(0, 9)]) for _ in range(3)], return_exceptions=True)
    assert [type(one) for one in answers] == [RetryError] * 3 and world.requests == 1
    await world.check((0, 9))
    with raises(InvalidError, Reason.NOT_FOUND):
        await world.stretches.read("b", [(0, 9)])


async def test_memory_has_limits() -> None:
    """The least recently used stretch leaves, and few stretches are read at a time."""
    world = await World(bytes_max=3 * (UNIT + ENTRY_BYTES)).put()
    for unit in (0, 2, 4, 0, 6):
        await world.check((unit * UNIT, 1))
    assert world.stretches.kept_bytes == 3 * (UNIT + ENTRY_BYTES)
    requests = world.requests
    await world.check((0, 1))
    await world.check((4 * UNIT, 1))
    assert world.requests == requests
    await world.check((2 * UNIT, 1))
    assert world.requests == requests + 1
    world.stretches.forget("a")
    assert world.stretches.kept_bytes == 0
    world.hold(10)
    readers = [asyncio.create_task(world.check((unit * UNIT, 1))) for unit in range(0, 20, 2)]
    await settle()
    assert world.under_way == READS_MAX
    world.gate.set()
    await asyncio.gather(*readers)
    assert world.under_way_max == READS_MAX


async def test_a_stretch_has_a_largest_size() -> None:
    world = await World(bytes_max=1 << 30, data=bytes(STRETCH_BYTES_MAX + UNIT)).put()
    await world.check((0, STRETCH_BYTES_MAX + UNIT))
    assert world.requests == 2


async def test_what_is_forgotten_is_read_again() -> None:
    world = await World().put()
    await world.check((0, 9))
    world.data = b"other" * 10
    await world.put()
    world.stretches.forget("a")
    await world.check((0, 9))
    world.stretches.forget("a")
    # Also if it is forgotten while it is read.
    world.hold()
    reader = asyncio.create_task(world.stretches.read("a", [(0, 9)]))
    await settle()
    world.stretches.forget("a")
    world.data = b"third" * 10
    await world.put()
    world.gate.set()
    await reader
    await world.check((0, 9))


async def test_readers_at_the_end_of_the_broker_fail() -> None:
    world = await World().put()
    await world.check((0, 9))
    world.hold()
    reader = asyncio.create_task(world.stretches.read("a", [(5 * UNIT, 9)]))
    await settle()
    await world.stretches.close()
    with pytest.raises(ClosedError):
        await reader
    with pytest.raises(ClosedError):
        await world.stretches.read("a", [(0, 9)])
    assert world.stretches.kept_bytes == 0
