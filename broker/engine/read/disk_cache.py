"""Encoded row groups on the broker's own disk: what one reader of history has paid for serves late ones at the price of a log.

Groups lie one behind the other in a few files, in the order in which they were made; the oldest file goes first. The files have no
names: they end with the broker, whatever ends it, and nobody else can shorten one under a reader. No promise hangs on them. What
cannot be written is not kept, and what is not as it was written is encoded again.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from headgate.broker.engine.read.history_cache import EncodedGroup, group_of
from headgate.broker.engine.read.shared_memory import unnamed_file
from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import outlast
from headgate.broker.store.read_buffers import ReadBuffers

logger = get_logger("history")

Run: TypeAlias = Callable[[Callable[[], Any], Executor | None], asyncio.Future[Any]]

FILES = 16
"""Files of a full cache. One of them is dropped at a time."""
BUFFER_BYTES = 32 << 20
"""Largest group that is read into memory which was used before. Groups have about 8 MiB, and only what they fill becomes memory."""
BUFFERS_MAX = 4
"""Such pieces of memory that are kept."""
UNWRITTEN_MAX = 8
"""Groups that wait for the disk, whose memory is outside of the bound of the cache in memory: about 8 MiB each."""
PAUSE_S = 60.0
"""Seconds without writes after one that failed."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class _File:
    """A file without a name, which is closed when nobody refers to it."""

    def __init__(self, directory: str) -> None:
        self.descriptor = unnamed_file(directory)
        self.size_bytes = 0
        weakref.finalize(self, os.close, self.descriptor).atexit = False


class Place(NamedTuple):
    """Where the batches of a group are. `crc`: CRC-32C of all of them."""

    file: _File
    position: int
    sizes: tuple[int, ...]
    crc: int


class DiskCache:
    """Groups under any keys. `read` and `write` block, and run in threads, one `write` at a time; all else is for the loop.

    Args:
        directory: for the files; made if it does not exist.
        bytes_max: bytes of all files together.

    Raises:
        InvalidError(INVALID_CONFIG): no file can be made there.
    """

    def __init__(self, directory: str, bytes_max: int) -> None:
        self._directory = directory
        self._file_bytes = bytes_max // FILES
        self.places: OrderedDict[Hashable, Place] = OrderedDict()
        self._files: list[_File] | None = []
        """None: a write failed. The thread that writes sets it, so that groups that wait behind the failed one are not written."""
        self._buffers = ReadBuffers(BUFFER_BYTES, BUFFERS_MAX)
        self._resumes_s = math.inf
        """When writes begin again after one that failed."""
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            _File(directory)
        except OSError as error:
            raise InvalidError(
                Reason.INVALID_CONFIG,
                f"no file can be written to the cache of history: {error.strerror}. history_cache_dir=`{directory}`",
            ) from error

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files or ())

    def __contains__(self, key: Hashable) -> bool:
        return key in self.places

    def find(self, key: Hashable) -> Place | None:
        return self.places.get(key)

    def takes(self, size_bytes: int, now_s: float) -> bool:
        """True if a group of this size can be written now."""
        if self._files is None and now_s >= self._resumes_s:
            self._files, self._resumes_s = [], math.inf
        return size_bytes <= self._file_bytes and self._files is not None

    def write(self, batches: Sequence[memoryview]) -> Place | None:
        """Write a group. None: a write before it failed. Raises OSError."""
        files = self._files
        if files is None:
            return None
        try:
            if not files or files[-1].size_bytes + sum(map(len, batches)) > self._file_bytes:
                files.append(_File(self._directory))
            return self._append(files[-1], batches)
        except OSError:
            self._files = None
            raise

    @staticmethod
    def _append(file: _File, batches: Sequence[memoryview]) -> Place:
        position, crc = file.size_bytes, 0
        for batch in batches:
            crc = crc32c(batch, crc)
            at = 0
            while at < len(batch):
                at += os.pwrite(file.descriptor, batch[at:], file.size_bytes + at)
            file.size_bytes += len(batch)
        return Place(file, position, tuple(map(len, batches)), crc)

    def keep(self, key: Hashable, place: Place) -> None:
        """A group was written. Groups of files that are too many are dropped."""
        files = self._files
        if files is None or place.file not in files:
            return  # written while the cache gave its space back
        self.places[key] = place
        while len(files) > FILES:
            oldest = files.pop(0)
            # Groups stand in the order of their files.
            while self.places and next(iter(self.places.values())).file is oldest:
                self.places.popitem(last=False)

    def failed(self, error: OSError, now_s: float) -> None:
        """A write failed. The disk gets all of its space back, and nothing is written for a time."""
        self._files, self._resumes_s = None, now_s + PAUSE_S
        self.places.clear()
        hint = "its files were dropped; set a lower history_cache_dir_bytes" if error.errno in _FULL else "look at the disk"
        logger.warning("history_cache_unwritten", directory=self._directory, error=error.strerror, hint=hint)

    def read(self, place: Place) -> list[memoryview] | None:
        """The batches of a group; None if they are not as they were written."""
        data = self._buffers.take(sum(place.sizes))
        at = 0
        try:
            while at < len(data):
                count = os.preadv(place.file.descriptor, [data[at:]], place.position + at)
                if not count:
                    return None
                at += count
        except OSError:
            return None
        if crc32c(data) != place.crc:
            return None
        found, at = [], 0
        for size in place.sizes:
            found.append(data[at : at + size].toreadonly())
            at += size
        return found

    def damaged(self, key: Hashable) -> None:
        """What was read is not what was written."""
        self.places.pop(key, None)
        logger.warning("history_cache_damaged", directory=self._directory, hint="look at the disk; history is encoded again")


class DiskSide:
    """The loop's side of a cache on disk.

    Args:
        run: runs a call in a thread: one of its own choice, or of a pool.
        writing: the thread that writes.
    """

    def __init__(self, cache: DiskCache, run: Run, writing: Executor) -> None:
        self.cache = cache
        self._run = run
        self._writing = writing
        self.unwritten: set[Hashable] = set()
        """Groups that wait for the disk."""
        self.hits = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self.cache

    async def get(self, key: Hashable) -> EncodedGroup | None:
        """A group that was encoded before. None: it is not there as it was written."""
        place = self.cache.find(key)
        if place is None:
            return None
        batches = await outlast(self._run(partial(self.cache.read, place), None))
        if batches is None:
            self.cache.damaged(key)
            return None
        self.hits += 1
        return group_of(batches)

    def put(self, key: Hashable, group: EncodedGroup, now_s: float) -> None:
        """Write a group behind the reader's back, unless it is there or on its way. Those that come faster than the disk takes them
        are not written."""
        if key in self.cache or key in self.unwritten or len(self.unwritten) == UNWRITTEN_MAX:
            return
        if not self.cache.takes(group.size_bytes, now_s):
            return

        def written(done: asyncio.Future[Place | None]) -> None:
            self.unwritten.remove(key)
            if done.cancelled():
                return
            error = done.exception()
            if isinstance(error, OSError):
                self.cache.failed(error, asyncio.get_running_loop().time())
            elif (place := done.result()) is not None:
                self.cache.keep(key, place)

        self.unwritten.add(key)
        self._run(partial(self.cache.write, group.batches), self._writing).add_done_callback(written)

    def shutdown(self) -> None:
        self._writing.shutdown()
