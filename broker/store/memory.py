"""A store in memory, for tests: stricter than S3 and than a file system, so that code that works on it works on both.

It copies its inputs and outputs, refuses all input that any other store refuses, gives other tasks a turn at every call (which
exposes code that relies on two calls being one step), and knows when it was closed. With `alignment_bytes` its append files
refuse all that O_DIRECT refuses. Several stores over one `MemoryObjects` are several processes over one directory.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import ClosedError, InvalidError, Reason
from headgate.broker.store.interface import Appender, AppendFile, Buffer, ObjectInfo, Ranges
from headgate.broker.store.keys import check_key, check_listing, check_range, check_ranges, key_conflict, not_found, views

READ_UNIT_BYTES = 4 << 10
"""Unit of reads, in bytes, of a store without append. It is small, so that tests reach the borders of units."""


class MemoryObjects:
    """The medium. Thread-safe. Outlives the stores over it, as a disk outlives processes."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.lock = threading.Lock()
        self._clock = clock if clock is not None else Clock()
        self._objects: dict[str, tuple[bytearray, int]] = {}
        self._keys: list[str] = []
        """All and only the keys of `_objects`, in byte order."""

    def find(self, key: str) -> bytearray | None:
        """The object itself, not a copy. Hold the lock."""
        entry = self._objects.get(key)
        return None if entry is None else entry[0]

    def write(self, key: str, data: bytearray) -> None:
        """Create or replace. Hold the lock. Raises InvalidError if the key is the directory of another, or the reverse."""
        if key not in self._objects:
            below = bisect_left(self._keys, key + "/")
            if below < len(self._keys) and self._keys[below].startswith(key + "/"):
                raise key_conflict(key)
            slash = key.find("/")
            while slash >= 0:
                if key[:slash] in self._objects:
                    raise key_conflict(key)
                slash = key.find("/", slash + 1)
            insort(self._keys, key)
        self._objects[key] = (data, self._clock.now_ms())

    def remove(self, key: str) -> None:
        """Hold the lock."""
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def listing(self, prefix: str, start_after: str, limit: int) -> list[ObjectInfo]:
        """Hold the lock."""
        found: list[ObjectInfo] = []
        at = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        while at < len(self._keys) and len(found) < limit and self._keys[at].startswith(prefix):
            data, modified_ms = self._objects[self._keys[at]]
            found.append(ObjectInfo(self._keys[at], len(data), modified_ms))
            at += 1
        return found


class MemoryStore:
    """A store in memory; the module's text lists the differences to real stores.

    Args:
        objects: the medium, shared with other stores; by default its own.
        append: True gives the store an `appender`, which a directory has and S3 has not.
        alignment_bytes: alignment of its append files.
    """

    def __init__(self, objects: MemoryObjects | None = None, *, append: bool = True, alignment_bytes: int = 1) -> None:
        self._objects = objects if objects is not None else MemoryObjects()
        self._appender = _MemoryAppender(self._objects, alignment_bytes) if append else None
        self._closed = False

    @property
    def url(self) -> str:
        return "memory:"

    @property
    def appender(self) -> Appender | None:
        return self._appender

    @property
    def read_unit_bytes(self) -> int:
        return 0 if self._appender is not None else READ_UNIT_BYTES

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        check_key(key)
        await self._turn()
        with self._objects.lock:
            if self._objects.find(key) is not None:
                return False
            self._objects.write(key, bytearray().join(views(data)))
            return True

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        check_key(key)
        await self._turn()
        with self._objects.lock:
            self._objects.write(key, bytearray().join(views(data)))

    async def get(self, key: str) -> bytes:
        check_key(key)
        await self._turn()
        with self._objects.lock:
            return bytes(self._find(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        await self._turn()
        with self._objects.lock:
            return bytes(self._find(key)[start : start + length])

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        check_key(key)
        check_ranges(ranges)
        await self._turn()
        with self._objects.lock:
            data = self._find(key)
            return b"".join([data[start : start + length] for start, length in ranges])

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        check_listing(prefix, start_after, limit)
        await self._turn()
        with self._objects.lock:
            return self._objects.listing(prefix, start_after, limit)

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._turn()
        with self._objects.lock:
            self._objects.remove(key)

    async def close(self) -> None:
        self._closed = True

    def _find(self, key: str) -> bytearray:
        data = self._objects.find(key)
        if data is None:
            raise not_found(key)
        return data

    async def _turn(self) -> None:
        if self._closed:
            raise ClosedError(Reason.CLOSED, f"the store was closed. url=`{self.url}`")
        await asyncio.sleep(0)


class _MemoryAppender:
    def __init__(self, objects: MemoryObjects, alignment_bytes: int) -> None:
        self._objects = objects
        self._alignment_bytes = alignment_bytes

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        check_key(key)
        assert size_bytes >= 0, size_bytes
        size_bytes += -size_bytes % self._alignment_bytes
        with self._objects.lock:
            if self._objects.find(key) is not None:
                raise InvalidError(Reason.INVALID_REQUEST, f"the file to be created exists. key=`{key}`")
            self._objects.write(key, bytearray(size_bytes))
        return _MemoryAppendFile(self._objects, key, self._alignment_bytes)

    def exists(self, key: str) -> bool:
        check_key(key)
        with self._objects.lock:
            return self._objects.find(key) is not None


class _MemoryAppendFile:
    """Stricter than a file: it refuses unaligned data, and writes after `truncate` or `close`."""

    def __init__(self, objects: MemoryObjects, key: str, alignment_bytes: int) -> None:
        self._objects = objects
        self._alignment_bytes = alignment_bytes
        data = objects.find(key)
        assert data is not None
        self._data = data
        self._sealed = False
        self._closed = False

    @property
    def alignment_bytes(self) -> int:
        return self._alignment_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        assert not self._sealed and not self._closed, "written to after it was sealed or closed"
        assert position >= 0 and position % self._alignment_bytes == 0, position
        assert self._alignment_bytes == 1 or (len(buffers) == 1 and len(buffers[0]) % self._alignment_bytes == 0)
        with self._objects.lock:
            data = self._data
            if position > len(data):
                data.extend(bytes(position - len(data)))
            for buffer in buffers:
                end = position + len(buffer)
                data[position:end] = buffer
                position = end

    def truncate(self, size_bytes: int) -> None:
        assert not self._closed
        with self._objects.lock:
            assert 0 <= size_bytes <= len(self._data), size_bytes
            del self._data[size_bytes:]
        self._sealed = True

    def close(self) -> None:
        self._closed = True
