"""The WAL: the interface for the engine, and two implementations for a store with append. `wal_put.py` has the implementation
for S3.

Theory of operation. The loop adds batches (`append`) and callbacks (`on_durable`) in order. At the end of the loop's turn,
`_flush` hands the waiting batches to the WAL thread, in one step under a lock. The thread takes all queued batches, lays them
out as one group, writes the group, and checks that there is no fence for this incarnation (`wal_group.py`). Only then does it
report to the loop. The loop moves high watermarks, and then calls the callbacks of all durable batches, in order. While the
thread writes, the next group gathers. Commits follow each other immediately, without a timer. So an idle client waits for one
write, and busy clients share one.

A failed write is repeated, with the same bytes at the same place, until it succeeds or the WAL is closed. Order and offsets
never change; callbacks wait, and `stalled` has the error. The WAL never rolls a write back, so it needs no code for that.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from headgate.broker.engine.partition.log import PartitionLog, Pending
from headgate.broker.engine.write.wal_group import GroupWriter
from headgate.broker.runtime.errors import ClosedError, HeadgateError, Reason
from headgate.broker.runtime.scheduling import take_short_turns
from headgate.broker.runtime.threads import Thread, begin

DurableCallback: TypeAlias = Callable[[HeadgateError | None], None]


class Loop(Protocol):
    """The part of an event loop that a WAL needs."""

    def call_soon(self, callback: Callable[..., object], *args: object) -> object: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> object: ...

    def time(self) -> float: ...


class Wal(Protocol):
    """The interface of a WAL for the engine. Call all methods on the loop's thread."""

    stalled: HeadgateError | None
    """The reason why nothing becomes durable at the moment, or None."""
    stalled_since: float
    """The loop's time in seconds at which `stalled` was set. Meaningless while `stalled` is None."""
    complete: bool
    """Valid after `close`. True if all acked batches are in chunks that were reported as complete."""

    @property
    def appended_batches(self) -> int: ...

    @property
    def durable_batches(self) -> int: ...

    def start(self) -> None: ...

    def append(self, pending: Pending) -> None:
        """Add a batch after all others. Its bytes must not change until it is durable."""

    def on_durable(self, callback: DurableCallback) -> None:
        """Call back once all batches appended so far are durable (None), or can never be durable (the error)."""

    async def roll(self, *, cut: bool = False) -> None:
        """Complete the chunk that contains the last durable batch. Returns after the observer has received the report, or when the
        WAL has ended.

        Args:
            cut: free the unused rest of the chunk's file at once, which keeps the disk busy for a while. False: free it after
                the next write.
        """

    async def close(self) -> None:
        """Write the waiting batches, seal the chunk and stop. A stalled WAL drops batches that it cannot write: they were not
        acked."""


class WalObserver(Protocol):
    """Receives the WAL's reports, on the loop."""

    def wal_committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        """Called when a group is durable. Its first batch is at `position` of the chunk."""

    def wal_rolled(
        self, number: int, size_bytes: int, appended_ms: int, sections: dict[PartitionLog, tuple[int, int]] | None
    ) -> None:
        """Called when a chunk is complete. All its groups were reported before. `sections`: its inline index, or None."""

    def wal_failed(self, error: HeadgateError) -> None:
        """Called when the WAL can never ack again."""


class Acks:
    """Callbacks, in the order of the batches for which they wait. Lives on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[int, DurableCallback]] = deque()
        self.appended = 0
        self.durable = 0
        self.error: HeadgateError | None = None

    def add(self, callback: DurableCallback, appended: int) -> None:
        """Call back once `appended` batches are durable. This counts all batches since the start."""
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


class _GroupedWal(ABC):
    """The loop's side of a WAL with a `GroupWriter`: it collects the batches of a turn of the loop, and reports durable ones."""

    def __init__(self, writer: GroupWriter, loop: Loop, observer: WalObserver) -> None:
        self._writer = writer
        self._loop = loop
        self._observer = observer
        self._acks = Acks(loop)
        self._fresh: list[Pending] = []
        self.stalled: HeadgateError | None = None
        self.complete = False
        self.stalled_since = 0.0

    @property
    def appended_batches(self) -> int:
        return self._acks.appended + len(self._fresh)

    @property
    def durable_batches(self) -> int:
        return self._acks.durable

    def append(self, pending: Pending) -> None:
        if not self._fresh:
            self._loop.call_soon(self._flush)
        self._fresh.append(pending)

    def on_durable(self, callback: DurableCallback) -> None:
        self._acks.add(callback, self.appended_batches)

    @abstractmethod
    def _flush(self) -> None:
        """Hand the collected batches to the writer, at the end of the turn."""

    def _committed(self, group: list[Pending], chunk_number: int, position: int) -> None:
        self._observer.wal_committed(group, chunk_number, position)
        self._acks.advance(len(group))

    def _failed(self, error: HeadgateError) -> None:
        self._acks.fail(error)
        self._observer.wal_failed(error)


class AppendWal(_GroupedWal):
    """A WAL with blocking writes, which run on their own thread."""

    def __init__(self, writer: GroupWriter, loop: Loop, observer: WalObserver) -> None:
        super().__init__(writer, loop, observer)
        self._ended = asyncio.Event()
        writer.on_group = lambda group, number, position: self._report(self._committed, group, number, position)
        writer.on_rolled = lambda number, size, appended_ms: self._report(observer.wal_rolled, number, size, appended_ms, None)
        writer.on_stalled = lambda error: self._report(self._stall, error)
        writer.on_resumed = lambda: self._report(self._resume)
        # Shared with the WAL thread; the lock protects the following.
        self._lock = threading.Lock()
        self._queue: list[Pending] = []
        self._rolls: list[tuple[Callable[[], object], bool]] = []
        """(callback for the end of the roll, whether to cut)"""
        self._over = False
        self._closing = False
        self._sleeping = False
        self._wake = threading.Lock()
        """Held while the WAL thread works or sleeps. The side that sets `_sleeping` from True to False releases it, once. A
        plain lock is fastest."""
        self._wake.acquire()
        self._threads: Sequence[Thread] = ()

    def start(self) -> None:
        self._threads = begin("wal", self._run)

    # -- on the loop

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

    # -- on the WAL thread

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


class InlineWal(_GroupedWal):
    """A WAL without blocking writes, because the store is memory. They happen at the end of the loop's turn."""

    def __init__(self, writer: GroupWriter, loop: Loop, observer: WalObserver) -> None:
        super().__init__(writer, loop, observer)
        writer.on_group = self._committed
        writer.on_rolled = lambda number, size, appended_ms: observer.wal_rolled(number, size, appended_ms, None)

    def start(self) -> None:
        self._writer.open()

    def _flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        self._acks.appended += len(fresh)
        if self._acks.error is None:
            self._try(lambda: self._writer.write(fresh))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except HeadgateError as error:
            self._failed(error)

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
