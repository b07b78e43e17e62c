"""The WAL of one incarnation on a store without append (S3): one object per group, put if absent.

Chunk *n* is committed by `put_if_absent(wal/<incarnation>/<n>)`. This put is also the fence check: to fence this incarnation,
another broker puts its own object at the first free number. Then this broker's put of that number fails. It acks no group from
that number on, although later numbers may have been stored. Several puts are in flight; acks keep the order of the numbers.

A group is cut when `flush_bytes` wait, or `flush_interval_ms` after its first batch. The timer is useful here, because a PUT
costs money and takes tens of milliseconds. A failed put is repeated until it succeeds or the WAL is closed.
"""

from __future__ import annotations

import asyncio
import uuid

from headgate.broker.engine.base import keys
from headgate.broker.engine.partition.log import PartitionLog, Pending
from headgate.broker.engine.write.layout import by_partition
from headgate.broker.engine.write.wal import Acks, DurableCallback, Loop, WalObserver
from headgate.broker.log.chunk import (
    CHUNK_HEADER_BYTES,
    FLAG_SYNCED,
    GROUP_HEADER_BYTES,
    STREAM_KEY_BYTES,
    chunk_header,
    group_header,
)
from headgate.broker.log.index import BatchIndex
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import ClosedError, FencedError, HeadgateError, Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks, watch
from headgate.broker.store.interface import Store

RETRY_MS_MIN = 100
RETRY_MS_MAX = 2000


class PutWal:
    """The WAL for a store without append. Lives on the loop.

    Args:
        puts_max: puts in flight; batches that arrive meanwhile wait for the next group.
    """

    def __init__(
        self,
        *,
        store: Store,
        incarnation_id: str,
        flush_bytes: int,
        flush_interval_ms: int,
        puts_max: int,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        observer: WalObserver,
    ) -> None:
        self._store = store
        self._incarnation_id = incarnation_id
        self._incarnation = uuid.UUID(hex=incarnation_id).bytes
        self._flush_bytes = flush_bytes
        self._flush_interval_s = flush_interval_ms / 1000
        self._puts_max = puts_max
        self._clock = clock
        self._loop = loop
        self._observer = observer
        self._acks = Acks(_as_loop(loop))
        self._fresh: list[Pending] = []
        self._fresh_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._number = 0
        self._puts: dict[int, asyncio.Task[None]] = {}
        self._stored: dict[int, tuple[list[Pending], int, int, int, dict[PartitionLog, tuple[int, int]]]] = {}
        self._next_ack = 0
        self._failing: dict[int, tuple[RetryError, float]] = {}
        """Failed puts that are being repeated, by number: the error, and the time of the first failure in seconds."""
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.stalled: HeadgateError | None = None
        self.complete = True
        self.stalled_since = 0.0

    @property
    def appended_batches(self) -> int:
        return self._acks.appended

    @property
    def durable_batches(self) -> int:
        return self._acks.durable

    def start(self) -> None:
        """Do nothing: puts begin with the first batch."""

    def append(self, pending: Pending) -> None:
        """Add a batch after all others. Its bytes must not change until it is durable."""
        self._fresh.append(pending)
        self._fresh_bytes += len(pending[1])
        self._acks.appended += 1
        self._idle.clear()
        if self._fresh_bytes >= self._flush_bytes:
            self._due = True
            self._cut()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._flush_interval_s, self._on_timer)

    def on_durable(self, callback: DurableCallback) -> None:
        """Call back once all batches appended so far are durable (None), or can never be durable (the error)."""
        self._acks.add(callback, self.appended_batches)

    def _on_timer(self) -> None:
        self._timer = None
        self._due = True
        self._cut()

    def _cut(self) -> None:
        if self._acks.error is not None:
            self._fresh = []
            return
        while self._fresh and self._due and len(self._puts) < self._puts_max:
            group = by_partition(self._take())
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._due = self._fresh_bytes >= self._flush_bytes or (self._closing and bool(self._fresh))
            if self._fresh and not self._due:
                self._timer = self._loop.call_later(self._flush_interval_s, self._on_timer)
            number, self._number = self._number, self._number + 1
            self._puts[number] = self._loop.create_task(self._put(number, group))
            watch(self._puts[number], "WAL", self._fail)

    def _take(self) -> list[Pending]:
        size = 0
        count = 0
        for pending in self._fresh:
            if size >= self._flush_bytes:
                break
            size += len(pending[1])
            count += 1
        group, self._fresh = self._fresh[:count], self._fresh[count:]
        self._fresh_bytes -= size
        return group

    async def _put(self, number: int, group: list[Pending]) -> None:
        now_ms = self._clock.now_ms()
        keys_of_group = [pending[0].stream for pending in group]
        data_at = GROUP_HEADER_BYTES + STREAM_KEY_BYTES * len(group)
        size = data_at + sum(len(pending[1]) for pending in group)
        parts: list[bytes | memoryview] = [
            chunk_header(self._incarnation, number, now_ms, FLAG_SYNCED),
            group_header(self._incarnation, number, now_ms, size, keys_of_group),
        ]
        rows: dict[PartitionLog, BatchIndex] = {}
        position = CHUNK_HEADER_BYTES + data_at
        for log, batch, base_offset, _, timestamp_max in group:
            parts.append(batch)
            rows.setdefault(log, BatchIndex()).add(base_offset, timestamp_max, position, len(batch))
            position += len(batch)
        sections: dict[PartitionLog, tuple[int, int]] = {}
        for log, index in rows.items():
            section = index.encode()
            parts.append(section)
            sections[log] = (position, len(section))
            position += len(section)
        try:
            if not await self._store_chunk(number, parts):
                raise FencedError(
                    Reason.FENCED, f"another broker took over this incarnation's WAL. incarnation=`{self._incarnation_id}`"
                )
        finally:
            del self._puts[number]
        self._stored[number] = (group, CHUNK_HEADER_BYTES + data_at, position, now_ms, sections)
        self._advance()
        self._cut()

    async def _store_chunk(self, number: int, parts: list[bytes | memoryview]) -> bool:
        key = keys.chunk(self._incarnation_id, number)
        pause_ms = RETRY_MS_MIN
        ambiguous = False
        while True:
            try:
                created = await self._store.put_if_absent(key, parts)
                if not created and ambiguous:
                    created = await self._store.get(key) == b"".join(parts)
                if created:
                    self._failing.pop(number, None)
                return created
            except RetryError as error:
                ambiguous = True
                _, since = self._failing.get(number, (error, self._loop.time()))
                self._failing[number] = error, since
                self._note_stall()
                if self._closing:
                    raise ClosedError(error.reason, f"records that were not acked could not be written: {error.message}") from error
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, RETRY_MS_MAX)

    def _advance(self) -> None:
        while self._next_ack in self._stored:
            group, data_at, size, appended_ms, sections = self._stored.pop(self._next_ack)
            number, self._next_ack = self._next_ack, self._next_ack + 1
            self._observer.wal_committed(group, number, data_at)
            self._observer.wal_rolled(number, size, appended_ms, sections)
            self._acks.advance(len(group))
        self._note_stall()
        if not self._puts and not self._fresh:
            self._idle.set()

    def _note_stall(self) -> None:
        """Note that no record becomes durable while the put that is next in order fails, also if later puts succeed."""
        self.stalled, self.stalled_since = self._failing.get(self._next_ack, (None, 0.0))

    def _fail(self, error: HeadgateError) -> None:
        if self._acks.error is None:
            self._acks.fail(error)
            self._observer.wal_failed(error)
        self._idle.set()

    async def roll(self, *, cut: bool = False) -> None:
        """Do nothing: every group is a chunk."""

    async def close(self) -> None:
        """Write the waiting batches and stop. A batch that the store refuses now was never acked."""
        self._closing = True
        if self._acks.error is None:
            self._due = True
            self._cut()
            await self._idle.wait()
        await end_tasks(self._puts.values())
        if self._timer is not None:
            self._timer.cancel()
        self._acks.fail(ClosedError(Reason.CLOSED, "the broker is closing"))


def _as_loop(loop: asyncio.AbstractEventLoop) -> Loop:
    return loop
