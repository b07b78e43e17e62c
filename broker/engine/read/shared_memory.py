"""Memory that an encoder process fills and its broker reads, so that batches are not copied through their socket.

The process owns *regions*: files in memory, which both ends map once. It writes the batches of an answer to regions that are free;
the answer says where they lie. A region is free again when the broker has dropped the last view of it, and has said so with a
later request. So the same pages are used again and again: new ones cost as much as what is written to them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import uuid
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from headgate.broker.log.batch import parse_header

SMALL_BYTES = 1 << 20
"""A run below this size is copied out of its region: one that is kept holds the whole region, which may have as much before it."""
STEP_BYTES = 4 << 20
"""Regions grow by steps of this size, because each step is mapped anew at both ends."""
FREE_BYTES_MAX = 64 << 20
"""Bytes of free regions that a process keeps: a unit of adopted files fills about 32 MiB."""
REGIONS_MAX = 250
"""Regions of an answer. Linux sends at most 253 descriptors in a message."""
HELD_MAX = 64
"""Regions of a process that a broker holds: each takes a descriptor. Further runs are copied out."""


class Run(msgspec.Struct, array_like=True, frozen=True):
    """Batches of consecutive offsets, one behind the other, from a position in a region on. `sizes`: of each in bytes."""

    region: int
    start: int
    sizes: list[int]


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """Where the batches of a request are.

    Args:
        sent: regions that are new or have grown. Their descriptors come in this order.
        closed: regions that are no longer used.
    """

    runs: list[Run]
    sent: list[int]
    closed: list[int]


class _Region:
    """A region at the end that writes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.descriptor = _memory_file()
        self.size_bytes = 0
        self.used = 0
        self.touched = 0
        """Bytes that have pages."""
        self.told_bytes = 0
        """The size that the other end knows."""
        self._map: mmap.mmap | None = None

    def write(self, data: memoryview) -> None:
        end = self.used + len(data)
        if self._map is None or end > self.size_bytes:
            self._map = self._grown(end)
        self._map[self.used : end] = data
        self.used = end
        self.touched = max(self.touched, end)

    def _grown(self, needed: int) -> mmap.mmap:
        size = -(-needed // STEP_BYTES) * STEP_BYTES
        os.ftruncate(self.descriptor, size)
        if self._map is not None:
            self._map.close()
        self.size_bytes = size
        return mmap.mmap(self.descriptor, size)

    def trim(self) -> None:
        """Give back the pages behind what is used."""
        begin = -(-self.used // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._map is not None and self.touched > begin and hasattr(mmap, "MADV_REMOVE"):
            self._map.madvise(mmap.MADV_REMOVE, begin, self.size_bytes - begin)
            self.touched = begin

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self.descriptor)


class Writer:
    """The regions at the end that writes."""

    def __init__(self) -> None:
        self.unused: list[_Region] = []
        self.used: dict[int, _Region] = {}
        self._closed: list[int] = []
        self._made = 0

    def free(self, numbers: Iterable[int]) -> None:
        """The other end has no views of these regions any more."""
        for number in numbers:
            region = self.used.pop(number)
            if region.touched + sum(buffer.touched for buffer in self.unused) <= FREE_BYTES_MAX:
                region.used = 0
                self.unused.append(region)
            else:
                region.close()
                self._closed.append(number)

    def write(self, batches: Iterable[memoryview]) -> tuple[Answer, list[int]]:
        """Write the batches. Returns where they are, and the descriptors to send with that. Raises as `batches`."""
        taken: list[_Region] = []
        try:
            runs = list(self._runs(batches, taken))
        except BaseException:
            self.free(buffer.number for buffer in taken)
            raise
        sent = [buffer for buffer in taken if buffer.told_bytes != buffer.size_bytes]
        for buffer in taken:
            buffer.trim()
            buffer.told_bytes = buffer.size_bytes
        closed, self._closed = self._closed, []
        return Answer(runs, [one.number for one in sent], closed), [one.descriptor for one in sent]

    def _runs(self, batches: Iterable[memoryview], taken: list[_Region]) -> Iterator[Run]:
        run: Run | None = None
        next_offset = 0
        for batch in batches:
            header = parse_header(batch)
            if run is None or header.base_offset != next_offset:
                if run is not None:
                    yield run
                if not taken or (taken[-1].used >= SMALL_BYTES and len(taken) < REGIONS_MAX):
                    taken.append(self._take())
                run = Run(taken[-1].number, taken[-1].used, [])
            taken[-1].write(batch)
            run.sizes.append(len(batch))
            next_offset = header.next_offset
            # The next batch is made in the same memory.
            del batch
        if run is not None:
            yield run

    def _take(self) -> _Region:
        if self.unused:
            region = self.unused.pop()
        else:
            region = _Region(self._made)
            self._made += 1
        self.used[region.number] = region
        return region


class Reader:
    """The regions of one process at the end that reads. `read` and `freed` are called by one thread at a time; views may be
    dropped by any."""

    def __init__(self) -> None:
        self.maps: dict[int, mmap.mmap] = {}
        self._held: set[int] = set()
        self._freed: deque[int] = deque()

    def freed(self) -> list[int]:
        """The regions of which all views were dropped since the last call."""
        return [self._freed.popleft() for _ in range(len(self._freed))]

    def read(self, answer: Answer, descriptors: Sequence[int]) -> list[memoryview]:
        """The batches, read-only."""
        import numpy as np

        try:
            for number, descriptor in zip(answer.sent, descriptors, strict=True):
                self.maps[number] = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        for number in answer.closed:
            del self.maps[number]
        found: list[memoryview] = []
        regions = {run.region: np.frombuffer(self.maps[run.region], np.uint8) for run in answer.runs}
        for number, region in regions.items():
            # Every view of the region refers to this array.
            weakref.finalize(region, self._drop, number).atexit = False
        for run in answer.runs:
            size = sum(run.sizes)
            part = regions[run.region][run.start : run.start + size]
            holds = run.region in self._held or (size >= SMALL_BYTES and len(self._held) < HELD_MAX)
            if holds:
                self._held.add(run.region)
            view = (part if holds else part.copy()).data.toreadonly()
            at = 0
            for length in run.sizes:
                found.append(view[at : at + length])
                at += length
        return found

    def _drop(self, number: int) -> None:
        self._held.discard(number)
        self._freed.append(number)


def new_memory(size_bytes: int) -> Any:
    """An array of bytes. From numpy, because a bytearray would first be filled with zeros."""
    import numpy as np

    return np.empty(size_bytes, np.uint8)


def unnamed_file(directory: str) -> int:
    """The descriptor of a new file that has no name. It ends when its last descriptor is closed. Raises OSError."""
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # not every file system has such files
            return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    path = os.path.join(directory, f".{uuid.uuid4().hex}")
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return descriptor


def _memory_file() -> int:
    """The descriptor of a new file that is only in memory, where the system has such files."""
    if not hasattr(os, "memfd_create"):
        return unnamed_file(os.environ.get("TMPDIR", "/tmp"))
    descriptor = os.memfd_create("headgate-history", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    # A region that became smaller would end whoever reads behind its end.
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor
