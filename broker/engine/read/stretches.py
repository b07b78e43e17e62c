"""Stretches of objects that readers share: each is read from the store once, for all readers that want a part of it.

The batches of one partition lie apart in a chunk. On S3, a request costs as much as the transfer of `Store.read_unit_bytes`, so a
reader reads whole units, gaps included. In the gaps are the batches of other partitions, which the same consumer or another one
reads next. So a stretch stays in memory: the least recently used one leaves first. Readers that want a stretch while it is being
read wait for the same request.

A directory needs none of this: the operating system keeps what was read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from headgate.broker.runtime.errors import ClosedError, Reason
from headgate.broker.runtime.tasks import end_tasks, looked_at, outlast
from headgate.broker.store.interface import Ranges, Store

STRETCH_BYTES_MAX = 8 << 20
"""Largest stretch, in bytes: one chunk of `wal_flush_bytes`. At 100 MB/s its transfer takes less than a tenth of a second."""
READS_MAX = 4
"""Stretches that are read at a time; further reads wait. Together with STRETCH_BYTES_MAX it bounds the bytes under way to 32 MiB,
however many clients read."""
ENTRY_BYTES = 1 << 10
"""Memory of a stretch besides its bytes, about: bounds the number of stretches of small objects."""


class _Stretch:
    """Consecutive units of one object. `data` ends early only where the object ends."""

    __slots__ = ("data", "key", "reading", "start", "units")

    def __init__(self, key: str, units: range, start: int) -> None:
        self.key = key
        self.units = units
        self.start = start
        self.data = memoryview(b"")
        self.reading: asyncio.Task[None]


class Stretches:
    """Reads ranges of objects that never change, through units that all readers share.

    Args:
        store: its `read_unit_bytes` is not 0.
        bytes_max: bytes of stretches in memory between reads.
    """

    def __init__(self, store: Store, bytes_max: int) -> None:
        self._store = store
        self._unit_bytes = store.read_unit_bytes
        self._bytes_max = bytes_max
        self._by_unit: dict[tuple[str, int], _Stretch] = {}
        """All and only the stretches that are kept or being read, by key and number of each of their units."""
        self._kept: OrderedDict[_Stretch, None] = OrderedDict()
        """The stretches that have been read, the least recently used first."""
        self._under_way: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(READS_MAX)
        self._closed = False
        self.kept_bytes = 0
        """Bytes of the stretches in `_kept`, with ENTRY_BYTES for each."""

    async def read(self, key: str, ranges: Ranges) -> bytearray:
        """The bytes of ascending ranges, one behind the other; fewer only if the object ends. Raises the errors of
        `Store.get_range`, and ClosedError."""
        unit_bytes = self._unit_bytes
        wanted = {unit for start, length in ranges for unit in range(start // unit_bytes, -(-(start + length) // unit_bytes))}
        data = bytearray()
        for start, length in ranges:
            end = start + length
            while start < end:
                # One stretch after the other: a waiting reader keeps no stretch but this one in memory.
                stretch = await self._stretch(key, start // unit_bytes, wanted)
                part = stretch.data[start - stretch.start : end - stretch.start]
                if not part:
                    return data
                data += part
                start += len(part)
        return data

    def forget(self, key: str) -> None:
        """Drop the stretches of an object: it was replaced, or what was read is damaged."""
        for stretch in {stretch for stretch in self._by_unit.values() if stretch.key == key}:
            self._drop(stretch)

    async def close(self) -> None:
        """End the requests under way. Their readers fail with ClosedError."""
        self._closed = True
        await end_tasks(self._under_way)
        self._by_unit.clear()
        self._kept.clear()
        self.kept_bytes = 0

    async def _stretch(self, key: str, unit: int, wanted: set[int]) -> _Stretch:
        """The stretch with a unit, and with the wanted units behind it if it is read now."""
        stretch = self._by_unit.get((key, unit))
        if stretch is None:
            if self._closed:
                raise _closed()
            stretch = self._begin(key, unit, wanted)
        elif stretch in self._kept:
            self._kept.move_to_end(stretch)
            return stretch
        try:
            await outlast(stretch.reading)
        except asyncio.CancelledError:
            if stretch.reading.cancelled() and self._closed:
                raise _closed() from None
            raise
        return stretch

    def _begin(self, key: str, unit: int, wanted: set[int]) -> _Stretch:
        end = unit + 1
        while end in wanted and (key, end) not in self._by_unit and (end + 1 - unit) * self._unit_bytes <= STRETCH_BYTES_MAX:
            end += 1
        stretch = _Stretch(key, range(unit, end), unit * self._unit_bytes)
        for one in stretch.units:
            self._by_unit[key, one] = stretch
        stretch.reading = asyncio.get_running_loop().create_task(self._fetch(stretch))
        self._under_way.add(stretch.reading)
        stretch.reading.add_done_callback(self._under_way.discard)
        stretch.reading.add_done_callback(looked_at)
        return stretch

    async def _fetch(self, stretch: _Stretch) -> None:
        try:
            async with self._slots:
                size = len(stretch.units) * self._unit_bytes
                stretch.data = memoryview(await self._store.get_range(stretch.key, stretch.start, size))
        except BaseException:
            self._drop(stretch)
            raise
        # It may have been forgotten meanwhile: then only the readers that already wait receive it.
        if self._by_unit.get((stretch.key, stretch.units.start)) is stretch:
            self._kept[stretch] = None
            self.kept_bytes += len(stretch.data) + ENTRY_BYTES
            while self.kept_bytes > self._bytes_max:
                self._drop(next(iter(self._kept)))

    def _drop(self, stretch: _Stretch) -> None:
        for unit in stretch.units:
            if self._by_unit.get((stretch.key, unit)) is stretch:
                del self._by_unit[stretch.key, unit]
        if stretch in self._kept:
            del self._kept[stretch]
            self.kept_bytes -= len(stretch.data) + ENTRY_BYTES


def _closed() -> ClosedError:
    return ClosedError(Reason.CLOSED, "the reader of the store was closed")
