"""Writes groups into chunks on a store with append: the blocking half of the WAL, for one thread.

Groups follow each other without padding. Within a group the batches of a partition stand together (`layout.py`). With O_DIRECT, a
write must begin and end on a block boundary. So when a group continues the last block of the previous group, the writer writes
that block again, with the same bytes in front. A torn block therefore never damages acked records.

After every write the writer looks for the fence. The broker that fences this incarnation first creates the marker and then reads
the chunks. So if it did not read a group, the writer finds the marker after the write of this group, and does not report the
group.
"""

from __future__ import annotations

import mmap
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from headgate.broker.engine.base import keys
from headgate.broker.engine.partition.log import Pending
from headgate.broker.engine.write.layout import by_partition
from headgate.broker.log.chunk import (
    CHUNK_HEADER_BYTES,
    FLAG_SYNCED,
    GROUP_HEADER_BYTES,
    STREAM_KEY_BYTES,
    chunk_header,
    group_header,
)
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import ClosedError, FatalError, FencedError, HeadgateError, Reason, RetryError
from headgate.broker.runtime.threads import Pool
from headgate.broker.store.interface import Appender, AppendFile

_T = TypeVar("_T")

GROUP_BYTES_MAX = 16 << 20
"""Largest size, in bytes, of one commit; only a single larger batch may exceed it. It bounds the staging buffer, and the time
that the first batch of a commit waits."""
FIRST_CHUNK_BYTES = 4 << 20
"""Size, in bytes, of an incarnation's first chunk. It is small, so that a start does not wait for the disk to write zeros, and a
close does not wait for the disk to free them. Freeing may take a millisecond for each MiB, and meanwhile no write becomes
durable."""
FILLED_GROUP_BYTES_MAX = 64 << 10
"""Largest average group, in bytes, for which the next chunk is filled with zeros. The zeros cost the disk as much as the groups
themselves, and save little for a large group."""
CHUNK_GROWTH = 4
"""Factor by which the next prepared chunk is larger, each time that a chunk was filled completely."""
RETRY_MS_MIN = 20
RETRY_MS_MAX = 1000


@dataclass(slots=True)
class _Cut:
    """The file of a complete chunk, and its written size in bytes."""

    file: AppendFile
    size_bytes: int

    def cut(self) -> None:
        """Free the unused rest of the file. If that fails, only disk space is lost, because readers know the size."""
        with suppress(HeadgateError):
            self.file.truncate(self.size_bytes)
        self.file.close()


class GroupWriter:
    """Chunks of one incarnation. Call `open`, then `write` any number of times, then `seal`, then `release`.

    Args:
        synced: every write is durable when it returns (`wal.fsync=always`). Then the writer prepares files in advance, and fills
            them
            with zeros while groups are small: a small synchronous write into a block that was never written takes twice as long.
        chunk_bytes: a chunk is complete when it has this size. The first chunks of an incarnation are smaller.
        chunk_ms: a chunk is also complete this many ms after the write of its first group, so that retention can delete it.
    """

    def __init__(
        self,
        *,
        appender: Appender,
        incarnation_id: str,
        synced: bool,
        chunk_bytes: int,
        chunk_ms: int,
        clock: Clock,
    ) -> None:
        self._appender = appender
        self._incarnation_id = incarnation_id
        self._incarnation = uuid.UUID(hex=incarnation_id).bytes
        self._fence_key = keys.fence(incarnation_id)
        self._synced = synced
        self._chunk_bytes = chunk_bytes
        self._chunk_ms = chunk_ms
        self._clock = clock
        self.on_group: Callable[[list[Pending], int, int], object] = lambda group, number, position: None
        """Called when a group is durable: (batches, chunk number, position of the first batch)."""
        self.on_rolled: Callable[[int, int, int], object] = lambda number, size, appended_ms: None
        """Called when a chunk is complete: (number, size in bytes, wall-clock time of its last group in ms)."""
        self.on_stalled: Callable[[HeadgateError], object] = lambda error: None
        """Called when an operation failed and will be repeated."""
        self.on_resumed: Callable[[], object] = lambda: None
        """Called when the repeated operation has succeeded."""
        self.give_up = threading.Event()
        """Set by another thread: stop repeating failed operations."""
        self._file: AppendFile | None = None
        self._alignment = 1
        self._number = -1
        self._position = 0
        self._limit = 0
        self._begun_ms = 0
        self._appended_ms = 0
        self._sequence = 0
        self._groups = 0
        """Number of groups in this chunk."""
        self._filled = True
        """True if the next chunk's file is to be filled with zeros."""
        self._staging: memoryview | None = None
        """Write buffer for O_DIRECT, page-aligned. It begins with the file's bytes from the last block boundary on."""
        self._first_bytes = self._next_bytes = min(FIRST_CHUNK_BYTES, chunk_bytes) if synced else 0
        self._prepared: tuple[AppendFile, int] | None = None
        """The next chunk's file, and its prepared size in bytes."""
        self._preparer: Pool | None = None
        """The thread that prepares files. None until `open`, and if no files are prepared."""
        self._preparing: Future[None] | None = None
        self._uncut: _Cut | None = None
        """The previous chunk, until data is written to the present one."""

    def open(self) -> None:
        """Begin the first chunk. Raises FatalError, ClosedError."""
        if self._synced:
            self._preparer = Pool(1, "wal-prepare")
        self._begin()

    def write(self, queue: list[Pending]) -> None:
        """Make batches durable, in one or more groups. Raises FencedError, FatalError, ClosedError."""
        ends = list(accumulate([len(pending[1]) + STREAM_KEY_BYTES for pending in queue]))
        start = before = 0
        while start < len(queue):
            end = max(bisect_right(ends, before + GROUP_BYTES_MAX, start), start + 1)
            group = queue if end - start == len(queue) else queue[start:end]
            self._write_group(by_partition(group), ends[end - 1] - before)
            start, before = end, ends[end - 1]

    def _write_group(self, group: list[Pending], body_bytes: int) -> None:
        """Write one group. `body_bytes`: size of its batches and their stream keys."""
        now_ms = self._clock.now_ms()
        if self._position >= self._limit:
            self._roll(min(self._next_bytes * CHUNK_GROWTH, self._chunk_bytes))
        elif self._position > CHUNK_HEADER_BYTES and now_ms - self._begun_ms >= self._chunk_ms:
            self._roll(self._first_bytes)
        self._appended_ms = now_ms
        is_first = self._position == CHUNK_HEADER_BYTES
        if is_first:
            # The next group always goes into the empty chunk, however old the chunk is: recovery takes the first empty chunk for
            # the WAL's end.
            self._begun_ms = now_ms
        file = self._file
        assert file is not None
        streams = [pending[0].stream for pending in group]
        batches = [pending[1] for pending in group]
        data_at = GROUP_HEADER_BYTES + STREAM_KEY_BYTES * len(group)
        size = GROUP_HEADER_BYTES + body_bytes
        header = group_header(self._incarnation, self._sequence, now_ms, size, streams)
        position = self._position
        if self._alignment == 1:
            self._retry(lambda: file.write(position, [header, *batches]))
        else:
            before = position % self._alignment
            staged = self._stage(before, header, batches, size)
            self._retry(lambda: file.write(position - before, [staged]))
            self._keep_last_block(before + size)
        self._check_fence()
        self._position = position + size
        self._sequence += 1
        self._groups += 1
        self.on_group(group, self._number, position + data_at)
        if is_first and self._synced:
            self._begin_prepare()

    def _stage(self, before: int, header: bytes, batches: list[memoryview], size: int) -> memoryview:
        """Lay the group out as whole blocks. Its first block begins with `before` bytes of the previous group."""
        end = before + size
        padded = -(-end // self._alignment) * self._alignment
        view = self._staging
        if view is None or padded > len(view):
            view = memoryview(mmap.mmap(-1, max(padded, GROUP_BYTES_MAX + 2 * mmap.PAGESIZE)))
            if self._staging is not None:
                view[:before] = self._staging[:before]
            self._staging = view
        at = before + len(header)
        view[before:at] = header
        for batch in batches:
            next_at = at + len(batch)
            view[at:next_at] = batch
            at = next_at
        view[end:padded] = bytes(padded - end)
        return view[:padded]

    def _keep_last_block(self, end: int) -> None:
        assert self._staging is not None
        keep = end % self._alignment
        self._staging[:keep] = self._staging[end - keep : end]

    def _check_fence(self) -> None:
        if self._retry(lambda: self._appender.exists(self._fence_key)):
            raise self._fenced()

    def _is_fenced(self) -> bool:
        """True if there is a fence, as far as the store answers."""
        with suppress(HeadgateError):
            return self._appender.exists(self._fence_key)
        return False

    def _fenced(self) -> FencedError:
        return FencedError(Reason.FENCED, f"another broker took over this incarnation's WAL. incarnation=`{self._incarnation_id}`")

    def _retry(self, call: Callable[[], _T]) -> _T:
        pause_ms = RETRY_MS_MIN
        stalled = False
        while True:
            try:
                result = call()
                if stalled:
                    self.on_resumed()
                return result
            except RetryError as error:
                stalled = True
                self.on_stalled(error)
                if self.give_up.wait(pause_ms / 1000):
                    raise ClosedError(error.reason, f"records that were not acked could not be written: {error.message}") from error
                pause_ms = min(pause_ms * 2, RETRY_MS_MAX)
            except FatalError as error:
                # The log of a broker that was stopped for long may be gone: another broker took over, and folded it.
                if self._is_fenced():
                    raise self._fenced() from error
                raise

    def roll(self) -> None:
        """Complete the chunk if it has a group, and begin the next one. Raises FencedError, FatalError, ClosedError."""
        if self._position > CHUNK_HEADER_BYTES:
            # The caller may soon ask for another roll. So the file that is prepared now must be ready by then, and is small.
            self._roll(self._first_bytes)

    def cut(self) -> None:
        """Free the rest of the previous chunk's file now. Otherwise it is freed after the next write, which may never happen."""
        before, self._uncut = self._uncut, None
        if before is not None:
            before.cut()

    def seal(self) -> None:
        """Complete the chunk. A chunk without a group is not reported."""
        assert self._file is not None
        if self._position > CHUNK_HEADER_BYTES:
            self._complete()
        else:
            self._file.close()
            self._file = None

    def _complete(self) -> None:
        """Report the chunk. The rest of a prepared file is freed later, because that keeps a disk busy for a while."""
        file, size = self._file, self._position
        assert file is not None
        self._filled = size <= FILLED_GROUP_BYTES_MAX * self._groups
        self._groups = 0
        if not self._synced:
            self._retry(lambda: file.truncate(size))
        self._check_fence()
        self.on_rolled(self._number, size, self._appended_ms)
        self._file = None
        if self._synced:
            self._uncut = _Cut(file, size)
        else:
            file.close()

    def _roll(self, next_bytes: int) -> None:
        """Complete the chunk and begin the next one. `next_bytes`: the size with which the chunk after that one is prepared."""
        self._complete()
        self._next_bytes = next_bytes
        self._begin()

    def _begin(self) -> None:
        """Begin a chunk, in the prepared file if there is one."""
        self._join()
        self._number += 1
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            size = self._first_bytes
            file = self._retry(lambda: self._appender.create(keys.chunk(self._incarnation_id, self._number), size))
        else:
            file, size = prepared
        self._limit = size or self._chunk_bytes
        self._file = file
        self._alignment = file.alignment_bytes
        flags = FLAG_SYNCED if self._synced else 0
        header = chunk_header(self._incarnation, self._number, self._clock.now_ms(), flags, size if self._synced else 0)
        self._position = len(header)
        if self._alignment == 1:
            self._retry(lambda: file.write(0, [header]))
        else:
            self._stage(0, header, [], len(header))

    def _begin_prepare(self) -> None:
        """In the background, prepare the next chunk's file and cut the previous one. So a roll never waits for a disk that frees
        blocks or writes zeros. This begins only after a write to the present chunk, because a broker that is about to close
        writes no more."""
        before, self._uncut = self._uncut, None
        assert self._preparer is not None
        self._preparing = self._preparer.submit(self._prepare, before, self._number + 1, self._next_bytes, self._filled)

    def _prepare(self, before: _Cut | None, number: int, size_bytes: int, filled: bool) -> None:
        if before is not None:
            before.cut()
        # If this fails, `_begin` creates the chunk itself, and reports the error if it occurs again.
        with suppress(HeadgateError):
            file = self._appender.create(keys.chunk(self._incarnation_id, number), size_bytes, filled=filled)
            self._prepared = file, size_bytes

    def _join(self) -> None:
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            preparing.result()

    def release(self) -> None:
        """Close all open files. The WAL is not usable afterwards."""
        self._join()
        if self._preparer is not None:
            self._preparer.shutdown()
        if self._uncut is not None:
            self._uncut.cut()
        for file in (self._file, self._prepared and self._prepared[0]):
            if file is not None:
                file.close()
        self._file = self._prepared = None
