"""The WAL: what the engine needs of one, and the two for a store with append. (`wal_put.py` has the one for S3.)

Theory of operation. The loop puts batches (`append`) and callbacks (`on_durable`) behind each other. At the end of the loop's turn
`_flush` hands what waits to a thread, in one step under a lock. The thread takes everything that is queued, lays it out as one
group, writes it, checks that no fence stands for this incarnation (`wal_group.py`), and only then reports back to the loop, which
moves high watermarks, then calls the callbacks of all that is now durable, in order. While the thread writes, the next group
gathers: commits follow each other back to back and no timer is involved, so an idle client waits for one write and a busy one
shares it.

A write that fails is repeated, with the same bytes at the same place, until it succeeds or the WAL is closed: order and offsets
stay what they are, waiters wait, and `stalled` says so. Nothing is ever rolled back, so nothing can be rolled back wrongly.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from headgate.broker.engine.partition import PartitionLog
from headgate.broker.engine.wal_group import GroupWriter, Pending
from headgate.broker.runtime.errors import ClosedError, HeadgateError, Reason
from headgate.broker.runtime.scheduling import take_short_turns
from headgate.broker.runtime.threads import Thread, begin

DurableCallback: TypeAlias = Callable[[HeadgateError | None], None]


class Loop(Protocol):
    """What a WAL needs of an event loop."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> object: ...

    def time(self) -> float: ...


class Wal(Protocol):
    """What the engine needs of a WAL. Call everything from the loop's thread."""

    stalled: HeadgateError | None
    """Why nothing becomes durable at the moment, or None."""
    stalled_since: float
    """The loop's time when that began; meaningless while nothing is stalled."""
    complete: bool
    """After `close`: whether everything that was acked stands in chunks that were reported as complete."""

    @property
    def appended_batches(self) -> int: ...

    @property
    def durable_batches(self) -> int: ...

    def start(self) -> None: ...

    def append(self, pending: Pending) -> None:
        """Put a batch behind all others. Its bytes must not change until it is durable."""

    def on_durable(self, callback: DurableCallback) -> None:
        """Call back once everything appended so far is durable (None), or never can be (the error)."""

    async def roll(self, *, cut: bool = False) -> None:
        """Complete the chunk in which the last durable batch stands. Returns once the owner was told of it, or the WAL has ended.

        Args:
            cut: give back at once what is left of its file, which takes the disk a while; else when more is written.
        """

    async def close(self) -> None:
        """Write what waits, seal the chunk and stop. A WAL that is stalled gives up what it could not write: it was not acked."""


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

    def add(self, callback: DurableCallback, appended: int) -> None:
        """Call back once so many batches are durable, of all that were ever appended."""
        if self.error is not None or (self.durable >= appended and not self._waiting):
            self._loop.call_soon(callback, self.error)
        else:
            self._waiting.append((appended, callback))

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
    """A WAL whose writes block: they happen on a thread of its own."""

    def __init__(self, writer: GroupWriter, loop: Loop, owner: Owner) -> None:
        self._writer = writer
        self._loop = loop
        self._owner = owner
        self._acks = Acks(loop)
        self._fresh: list[Pending] = []
        self._ended = asyncio.Event()
        self.stalled: HeadgateError | None = None
        self.complete = False
        self.stalled_since = 0.0
        writer.on_group = lambda group, number, position: self._report(self._committed, group, number, position)
        writer.on_rolled = lambda number, size, appended_ms: self._report(owner.wal_rolled, number, size, appended_ms, None)
        writer.on_stalled = lambda error: self._report(self._stall, error)
        writer.on_resumed = lambda: self._report(self._resume)
        # Shared with the thread, under the lock.
        self._lock = threading.Lock()
        self._queue: list[Pending] = []
        self._rolls: list[tuple[Callable[[], object], bool]] = []
        """(what to call when it is done, whether to cut)"""
        self._over = False
        self._closing = False
        self._sleeping = False
        self._wake = threading.Lock()
        """Held while the thread works or sleeps; released once by whoever takes `_sleeping` back. Bare, to be quick."""
        self._wake.acquire()
        self._threads: Sequence[Thread] = ()

    @property
    def appended_batches(self) -> int:
        return self._acks.appended + len(self._fresh)

    @property
    def durable_batches(self) -> int:
        return self._acks.durable

    def start(self) -> None:
        self._threads = begin("wal", self._run)

    # -- the loop's half

    def append(self, pending: Pending) -> None:
        if not self._fresh:
            self._loop.call_soon(self._flush)
        self._fresh.append(pending)

    def on_durable(self, callback: DurableCallback) -> None:
        self._acks.add(callback, self.appended_batches)

    def _flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        self._acks.appended += len(fresh)
        with self._lock:
            self._queue.extend(fresh)
            wake, self._sleeping = self._sleeping, False
        if wake:
            self._wake.release()

    async def roll(self, *, cut: bool = False) -> None:
        done = asyncio.Event()
        with self._lock:
            if self._over:
                return
            self._rolls.append((done.set, cut))
            wake, self._sleeping = self._sleeping, False
        if wake:
            self._wake.release()
        await done.wait()

    def _committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        self._owner.wal_committed(group, chunk_number, position)
        self._acks.advance(len(group))

    def _failed(self, error: HeadgateError) -> None:
        self._acks.fail(error)
        self._owner.wal_failed(error)

    def _stall(self, error: HeadgateError) -> None:
        if self.stalled is None:
            self.stalled_since = self._loop.time()
        self.stalled = error
        if self._closing:
            self._writer.give_up.set()

    def _resume(self) -> None:
        self.stalled = None

    async def close(self) -> None:
        if not any(thread.is_alive() for thread in self._threads):
            return
        if self._fresh:
            self._flush()
        with self._lock:
            self._closing = True
            wake, self._sleeping = self._sleeping, False
        if wake:
            self._wake.release()
        if self.stalled is not None:
            self._writer.give_up.set()
        await self._ended.wait()
        for thread in self._threads:
            thread.join()
        self._acks.fail(ClosedError(Reason.CLOSED, "the broker is closing"))

    # -- the thread's half

    def _report(self, callback: Callable[..., object], *args: object) -> None:
        self._loop.call_soon_threadsafe(callback, *args)

    def _run(self) -> None:
        take_short_turns()
        try:
            self._writer.open()
            while self._serve():
                pass
            self._writer.seal()
            self.complete = True
        except HeadgateError as error:
            self._report(self._failed, error)
        finally:
            self._writer.release()
            with self._lock:
                self._over = True
            self._end_rolls(len(self._rolls))
            self._report(self._ended.set)

    def _serve(self) -> bool:
        with self._lock:
            queue, self._queue = self._queue, []
            rolls = list(self._rolls)
            closing = self._closing
            if not queue and not rolls and not closing:
                self._sleeping = True
        if queue:
            self._writer.write(queue)
        if rolls:
            self._writer.roll()
            if any(cut for _, cut in rolls):
                self._writer.cut()
            self._end_rolls(len(rolls))
        if queue or rolls:
            return True
        if closing:
            return False
        self._wake.acquire()
        return True

    def _end_rolls(self, count: int) -> None:
        with self._lock:
            ended, self._rolls = self._rolls[:count], self._rolls[count:]
        for done, _ in ended:
            self._report(done)


class InlineWal:
    """A WAL whose writes do not block, because the store is memory: they happen at the end of the loop's turn."""

    def __init__(self, writer: GroupWriter, loop: Loop, owner: Owner) -> None:
        self._writer = writer
        self._loop = loop
        self._owner = owner
        self._acks = Acks(loop)
        self._fresh: list[Pending] = []
        self.stalled: HeadgateError | None = None
        self.complete = False
        self.stalled_since = 0.0
        writer.on_group = self._committed
        writer.on_rolled = lambda number, size, appended_ms: owner.wal_rolled(number, size, appended_ms, None)

    @property
    def appended_batches(self) -> int:
        return self._acks.appended + len(self._fresh)

    @property
    def durable_batches(self) -> int:
        return self._acks.durable

    def start(self) -> None:
        self._writer.open()

    def append(self, pending: Pending) -> None:
        if not self._fresh:
            self._loop.call_soon(self._flush)
        self._fresh.append(pending)

    def on_durable(self, callback: DurableCallback) -> None:
        self._acks.add(callback, self.appended_batches)

    def _flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        self._acks.appended += len(fresh)
        if self._acks.error is None:
            self._try(lambda: self._writer.write(fresh))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except HeadgateError as error:
            self._acks.fail(error)
            self._owner.wal_failed(error)

    def _committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        self._owner.wal_committed(group, chunk_number, position)
        self._acks.advance(len(group))

    async def roll(self, *, cut: bool = False) -> None:
        self._writer.roll()

    async def close(self) -> None:
        self._flush()
        if self._acks.error is None:
            self._try(self._writer.seal)
        if self._acks.error is None:
            self.complete = True
            self._acks.fail(ClosedError(Reason.CLOSED, "the broker is closing"))
        self._writer.release()
