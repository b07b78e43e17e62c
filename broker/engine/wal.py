"""The WAL of one incarnation on a store with append: group commit on a thread of its own.

Theory of operation. The loop puts batches (`append`) and callbacks (`on_durable`) behind each other. At the end of the loop's turn
`_flush` hands what waits to the thread, in one step under a lock. The thread takes everything that is queued, lays it out as one
group, writes it, checks that no fence stands for this incarnation, and only then reports back to the loop, which moves high
watermarks, then calls the callbacks of all that is now durable, in order. While the thread writes, the next group gathers: commits
follow each other back to back and no timer is involved, so an idle client waits for one write and a busy one shares it.

The stream of groups is packed. With O_DIRECT a write must begin and end on a block: the last block of a group is written again,
with the same bytes in front, when the next group continues it. A torn block therefore never harms what was acked.

A write that fails is repeated, with the same bytes at the same place, until it succeeds or the WAL is closed: order and offsets
stay what they are, waiters wait, and `stalled` says so. Nothing is ever rolled back, so nothing can be rolled back wrongly.
"""

from __future__ import annotations

import asyncio
import mmap
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from broker.engine import keys
from broker.engine.partition import PartitionLog
from broker.log.chunk import CHUNK_HEADER_BYTES, FLAG_SYNCED, chunk_header, group_header
from broker.log.chunk import GROUP_HEADER_BYTES as GROUP_BYTES
from broker.log.chunk import STREAM_KEY_BYTES as KEY_BYTES
from broker.runtime.clock import Clock
from broker.runtime.errors import ClosedError, FencedError, HeadgateError, Reason, RetryError
from broker.store.interface import Appender, AppendFile

Pending: TypeAlias = tuple[PartitionLog, memoryview, int, int, int]
"""(partition, batch, base offset, next offset, greatest timestamp in ms)"""

_T = TypeVar("_T")

DurableCallback: TypeAlias = Callable[[HeadgateError | None], None]

GROUP_BYTES_MAX = 16 << 20
"""What one commit writes at the most, but for a single larger batch: bounds the staging buffer and the wait of the first."""
FIRST_CHUNK_BYTES = 16 << 20
"""The first chunk of an incarnation is small, so that a start does not wait for zeros to be written."""
RETRY_MS_MIN = 20
RETRY_MS_MAX = 1000


class Loop(Protocol):
    """What the WAL needs of an event loop."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> object: ...


class Wal(Protocol):
    """What the engine needs of a WAL; `AppendWal` and `PutWal` are the two."""

    stalled: HeadgateError | None
    """Why nothing becomes durable at the moment, or None."""

    @property
    def appended_batches(self) -> int: ...

    @property
    def durable_batches(self) -> int: ...

    def start(self) -> None: ...

    def append(self, pending: Pending) -> None: ...

    def on_durable(self, callback: DurableCallback) -> None: ...

    async def close(self) -> None: ...


class Owner(Protocol):
    """Who is told what happened, on the loop."""

    def wal_committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        """A group is durable; its first batch stands at `position` of the chunk."""

    def wal_rolled(
        self, number: int, size_bytes: int, appended_ms: int, sections: dict[PartitionLog, tuple[int, int]] | None
    ) -> None:
        """A chunk is complete; all groups in it were reported. `sections`: its inline index, or None."""

    def wal_failed(self, error: HeadgateError) -> None:
        """The WAL can never ack again."""


class Acks:
    """Callbacks in the order of the batches they wait for. Lives on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[int, DurableCallback]] = deque()
        self.appended = 0
        self.durable = 0
        self.error: HeadgateError | None = None

    def add(self, callback: DurableCallback) -> None:
        if self.error is not None or (self.durable >= self.appended and not self._waiting):
            self._loop.call_soon(callback, self.error)
        else:
            self._waiting.append((self.appended, callback))

    def advance(self, batches: int) -> None:
        self.durable += batches
        durable = self.durable
        waiting = self._waiting
        while waiting and waiting[0][0] <= durable:
            waiting.popleft()[1](None)

    def fail(self, error: HeadgateError) -> None:
        self.error = error
        while self._waiting:
            self._waiting.popleft()[1](error)


class AppendWal:
    """See the module's text. Call everything from the loop's thread.

    Args:
        chunk_bytes: a chunk is rolled when it has grown to this.
        chunk_ms: ... or when its first group is this old, so that retention can free it.
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
        loop: Loop,
        owner: Owner,
    ) -> None:
        self._appender = appender
        self._incarnation_id = incarnation_id
        self._incarnation = bytes.fromhex(incarnation_id)
        self._flags = FLAG_SYNCED if synced else 0
        self._chunk_bytes = chunk_bytes
        self._chunk_ms = chunk_ms
        self._clock = clock
        self._loop = loop
        self._owner = owner
        self._acks = Acks(loop)
        self._fresh: list[Pending] = []
        self._flush_scheduled = False
        self.stalled: HeadgateError | None = None
        # Shared with the thread, under the lock.
        self._lock = threading.Lock()
        self._queue: list[Pending] = []
        self._closing = False
        self._stop = threading.Event()
        self._wake = threading.Semaphore(0)
        self._sleeping = False
        # The thread's own.
        self._file: AppendFile | None = None
        self._number = -1
        self._position = 0
        self._limit = chunk_bytes
        self._chunk_started_ms = 0
        self._appended_ms = 0
        self._sequence = 0
        self._view = memoryview(mmap.mmap(-1, GROUP_BYTES_MAX + 2 * mmap.PAGESIZE))
        """Page-aligned, as O_DIRECT wants it; begins with what is in the file from the last block boundary on."""
        self._prepared: AppendFile | None = None
        self._preparing: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="wal", daemon=True)
        self._ended: asyncio.Event | None = None

    @property
    def appended_batches(self) -> int:
        return self._acks.appended

    @property
    def durable_batches(self) -> int:
        return self._acks.durable

    def start(self) -> None:
        self._thread.start()

    # -- the loop's half

    def append(self, pending: Pending) -> None:
        """Put a batch behind all others. Its bytes must not change until it is durable."""
        self._fresh.append(pending)
        self._acks.appended += 1
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def on_durable(self, callback: DurableCallback) -> None:
        """Call back once everything appended so far is durable (None), or never can be (the error)."""
        self._acks.add(callback)

    def _flush(self) -> None:
        self._flush_scheduled = False
        fresh, self._fresh = self._fresh, []
        with self._lock:
            self._queue.extend(fresh)
            wake, self._sleeping = self._sleeping, False
        if wake:
            self._wake.release()

    def _committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        self.stalled = None
        self._owner.wal_committed(group, chunk_number, position)
        self._acks.advance(len(group))

    def _failed(self, error: HeadgateError) -> None:
        self._acks.fail(error)
        self._owner.wal_failed(error)

    def _stalled(self, error: HeadgateError) -> None:
        self.stalled = error
        if self._closing:
            self._stop.set()

    async def close(self) -> None:
        """Write what waits, seal the chunk and stop. A WAL that is stalled gives up what it could not write."""
        if not self._thread.is_alive():
            return
        if self._fresh:
            self._flush()
        ended = self._ended = asyncio.Event()
        with self._lock:
            self._closing = True
            wake, self._sleeping = self._sleeping, False
        if wake:
            self._wake.release()
        if self.stalled is not None:
            self._stop.set()
        await ended.wait()
        self._thread.join()
        self._acks.fail(ClosedError(Reason.CLOSED, "the broker is closing"))

    # -- the thread's half

    def _run(self) -> None:
        try:
            self._serve()
        except HeadgateError as error:
            self._loop.call_soon_threadsafe(self._failed, error)
        finally:
            self._release()
            self._loop.call_soon_threadsafe(self._thread_ended)

    def _thread_ended(self) -> None:
        if self._ended is not None:
            self._ended.set()

    def _release(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
        for file in (self._file, self._prepared):
            if file is not None:
                file.close()
        self._file = self._prepared = None

    def _serve(self) -> None:
        self._roll()
        while True:
            with self._lock:
                queue, self._queue = self._queue, []
                closing = self._closing
                if not queue and not closing:
                    self._sleeping = True
            if queue:
                self._write_all(queue)
            elif closing:
                self._seal()
                return
            else:
                self._wake.acquire()

    def _write_all(self, queue: list[Pending]) -> None:
        start = 0
        while start < len(queue):
            size = GROUP_BYTES
            end = start
            while end < len(queue):
                size += len(queue[end][1]) + KEY_BYTES
                if size > GROUP_BYTES_MAX and end > start:
                    break
                end += 1
            self._write_group(queue if end - start == len(queue) else queue[start:end])
            start = end

    def _write_group(self, group: list[Pending]) -> None:
        assert self._file is not None
        self._appended_ms = now_ms = self._clock.now_ms()
        if self._position >= self._limit or now_ms - self._chunk_started_ms >= self._chunk_ms:
            self._seal()
            self._roll()
        keys_of_group = [pending[0].stream for pending in group]
        data_at = GROUP_BYTES + KEY_BYTES * len(group)
        size = data_at + sum([len(pending[1]) for pending in group])
        header = group_header(self._incarnation, self._sequence, now_ms, size, keys_of_group)
        alignment = self._file.alignment_bytes
        before = self._position % alignment
        at = before + data_at
        if before + size + alignment > len(self._view):
            self._grow(before, before + size + alignment)
        view = self._view
        view[before:at] = header
        for pending in group:
            batch = pending[1]
            next_at = at + len(batch)
            view[at:next_at] = batch
            at = next_at
        padded = -(-at // alignment) * alignment
        if padded > at:
            view[at:padded] = bytes(padded - at)
        self._write(self._position - before, view[:padded])
        position = self._position + data_at
        self._position += size
        self._sequence += 1
        if alignment > 1:
            keep = at % alignment
            if keep:
                view[:keep] = view[at - keep : at]
        self._loop.call_soon_threadsafe(self._committed, group, self._number, position)

    def _grow(self, keep: int, size_bytes: int) -> None:
        staging = mmap.mmap(-1, size_bytes)
        view = memoryview(staging)
        view[:keep] = self._view[:keep]
        self._view = view

    def _write(self, position: int, data: memoryview) -> None:
        """Write durably and check the fence: what returns from here may be acked."""
        assert self._file is not None
        file = self._file
        self._retry(lambda: file.write(position, data))
        self._check_fence()

    def _check_fence(self) -> None:
        fence = keys.fence(self._incarnation_id)
        if self._retry(lambda: self._appender.exists(fence)):
            raise FencedError(
                Reason.FENCED, f"another broker took over this incarnation's WAL. incarnation=`{self._incarnation_id}`"
            )

    def _retry(self, call: Callable[[], _T]) -> _T:
        pause_ms = RETRY_MS_MIN
        while True:
            try:
                return call()
            except RetryError as error:
                self._loop.call_soon_threadsafe(self._stalled, error)
                if self._stop.wait(pause_ms / 1000):
                    raise ClosedError(error.reason, f"records that were not acked could not be written: {error.message}") from error
                pause_ms = min(pause_ms * 2, RETRY_MS_MAX)

    def _seal(self) -> None:
        """End the chunk: cut it to what was written and report it. An empty one is left as it is."""
        assert self._file is not None
        if self._position > CHUNK_HEADER_BYTES:
            file, size = self._file, self._position
            self._retry(lambda: file.truncate(size))
            self._check_fence()
            self._loop.call_soon_threadsafe(self._owner.wal_rolled, self._number, size, self._appended_ms, None)
        self._file.close()
        self._file = None

    def _roll(self) -> None:
        """Begin the next chunk. The one after it is prepared meanwhile, so that a roll does not wait for zeros to be written."""
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        self._number += 1
        file, self._prepared = self._prepared, None
        if file is None:
            number, size = self._number, min(FIRST_CHUNK_BYTES, self._chunk_bytes)
            file = self._retry(lambda: self._appender.create(keys.chunk(self._incarnation_id, number), size))
            self._limit = size if number == 0 else self._chunk_bytes
        else:
            self._limit = self._chunk_bytes
        self._file = file
        self._chunk_started_ms = self._clock.now_ms()
        header = chunk_header(self._incarnation, self._number, self._chunk_started_ms, self._flags)
        self._view[: len(header)] = header
        self._position = CHUNK_HEADER_BYTES
        if file.alignment_bytes == 1:
            self._retry(lambda: file.write(0, self._view[: len(header)]))
        self._preparing = threading.Thread(target=self._prepare, args=(self._number + 1,), name="wal-prepare", daemon=True)
        self._preparing.start()

    def _prepare(self, number: int) -> None:
        try:
            self._prepared = self._appender.create(keys.chunk(self._incarnation_id, number), self._chunk_bytes)
        except HeadgateError:
            # `_roll` creates the chunk itself then, and says what is wrong if it still is.
            self._prepared = None
