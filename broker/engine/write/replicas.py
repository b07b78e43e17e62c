"""Copies in the memory of a second broker, for topics with `ack=replicated`: the lead's half and the follower's half.

The price of `ack=durable` on S3 is the time of a PUT. With `ack=replicated` a record is acked when two brokers hold it in
memory: its lead and the lead's *follower*. The WAL follows later. When the lead is lost, the broker that recovers its WAL takes
the missing records from the follower (`recovery.py`). All else is unchanged: the high watermark covers only durable records, so
readers see only those.

Theory of operation. A *stream* is one agreement of a lead and a follower::

    begin   batches go to the follower from here on; its confirmations do not count yet
    count   all batches appended before `begin` are durable, and the manifest names the stream: from here on a batch that the
            follower has is acked, and a recovery must ask the follower
    end     after any failure of the follower or of the connection to it. Acks wait for the store, as without a follower; the
            next stream begins once all batches that this one acked are durable

So a follower's copies continue the durable part of the lead's log without a gap. A manifest that still names an old stream is
right, because all batches of that stream are durable.

Fencing needs no clock. A batch counts only if both brokers have it, so a recovery must stop only one of the two. The follower
*surrenders* a lead: it gives its copies away and takes no further ones from that incarnation. If the lead is still alive, it can
then ack only batches that its WAL took, and there it finds the fence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from headgate.broker.engine.write.wal import DurableCallback, Wal
from headgate.broker.log.batch import CRC_START, LENGTH_OVERHEAD_BYTES, parse
from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError

STREAM_BYTES_MAX = 64 << 20
"""Bytes of one lead's copies that may wait for the store: about the writes of half a second at full speed. With more, the store
is too slow, and acks have to wait for it."""


class Copy(NamedTuple):
    """A copy of a lead's batch. `number`: its position among the batches of the lead's WAL, from 1. `stream`: the partition's
    key, as in a chunk."""

    number: int
    stream: bytes
    batch: bytes
    appended_ms: int


class _Once:
    """Passes on only the first call."""

    __slots__ = ("_callback",)

    def __init__(self, callback: DurableCallback) -> None:
        self._callback: DurableCallback | None = callback

    def __call__(self, error: HeadgateError | None) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(error)


class Replicator:
    """The lead's half. Lives on the loop. `control/replication.py` does the network part.

    Args:
        wal: returns the lead's WAL. A batch goes there first.
    """

    def __init__(self, wal: Callable[[], Wal]) -> None:
        self.wanted = asyncio.Event()
        """Set at the first batch that needs a follower while there is no stream."""
        self.stream = 0
        """The number of the newest stream."""
        self.counts = False
        """True if the follower's confirmation acks a batch."""
        self.is_open = False
        self._wal = wal
        self._unsent: deque[Copy] = deque()
        self._sizes: deque[tuple[int, int]] = deque()
        """(number, bytes) of copies that may not be durable yet."""
        self._bytes = 0
        self._last_number = 0
        self._waiting: deque[tuple[int, _Once]] = deque()
        self._more = asyncio.Event()

    def append(self, stream: bytes, batch: memoryview, now_ms: int) -> None:
        """Send the batch to the follower, too. The caller has just handed it to the WAL."""
        if not self.is_open:
            self.wanted.set()
            return
        number = self._last_number = self._wal().appended_batches
        self._unsent.append(Copy(number, stream, bytes(batch), now_ms))
        self._sizes.append((number, len(batch)))
        self._bytes += len(batch)
        self._more.set()
        if self._bytes > STREAM_BYTES_MAX:
            self._forget_durable()
            if self._bytes > STREAM_BYTES_MAX:
                self.end()

    def on_acked(self, callback: DurableCallback) -> None:
        """Call back once the last batch and all before it are with the follower or durable (None), or can never be durable (the
        error)."""
        once = _Once(callback)
        self._waiting.append((self._last_number, once))
        self._wal().on_durable(once)

    def begin(self) -> int:
        """Begin a stream. Returns its number. All batches that the previous stream acked must be durable."""
        self.end()
        self.stream += 1
        self.is_open = True
        return self.stream

    def count(self, stream: int) -> None:
        """Called when the manifest names the stream. If the stream is still open, its confirmations count from now on."""
        self.counts = self.is_open and stream == self.stream

    def end(self) -> None:
        """End the stream: send nothing more to the follower, and count no confirmation. The WAL calls all waiting callbacks."""
        self.is_open = self.counts = False
        self._unsent.clear()
        self._sizes.clear()
        self._bytes = 0
        self._waiting.clear()
        self._more.set()

    async def batches(self, bytes_max: int, timeout_s: float) -> list[Copy]:
        """The next copies to send, about `bytes_max` bytes. [] if there are none within `timeout_s`, or if the stream has ended."""
        if not self._unsent and self.is_open:
            self._more.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._more.wait()
            except TimeoutError:
                return []
        copies: list[Copy] = []
        size = 0
        while self._unsent and size < bytes_max:
            copies.append(self._unsent.popleft())
            size += len(copies[-1].batch)
        return copies

    def held(self, number: int) -> None:
        """Called when the follower has all copies up to this one."""
        if not self.counts:
            return
        waiting = self._waiting
        while waiting and waiting[0][0] <= number:
            waiting.popleft()[1](None)

    def _forget_durable(self) -> None:
        durable = self._wal().durable_batches
        while self._sizes and self._sizes[0][0] <= durable:
            self._bytes -= self._sizes.popleft()[1]


class _Held:
    """The copies of one lead."""

    __slots__ = ("bytes", "copies", "stream", "surrendered")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.surrendered = False
        self.copies: deque[Copy] = deque()
        self.bytes = 0


class Replicas:
    """The follower's half: copies of other brokers' batches, by the lead's incarnation. Lives on the loop."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    @property
    def bytes(self) -> int:
        """Bytes of all copies in memory."""
        return sum(held.bytes for held in self._held.values())

    @property
    def leads(self) -> list[str]:
        """Incarnations with copies here, or that were surrendered."""
        return list(self._held)

    def open(self, lead: str, stream: int) -> None:
        """Called when a lead begins a stream. All batches of its previous stream are durable. Raises FencedError if the lead was
        surrendered."""
        held = self._held.get(lead)
        if held is not None and (held.surrendered or held.stream >= stream):
            raise FencedError(Reason.FENCED, f"another broker takes over from this one. incarnation=`{lead}` stream=`{stream}`")
        self._held[lead] = _Held(stream)

    def take(self, lead: str, stream: int, copies: list[Copy], durable_number: int) -> None:
        """Keep copies, and drop those that are durable by now.

        Raises:
            FencedError: the stream is over. InvalidError: a copy is not a batch. RetryError: there are too many copies of this
                lead.
        """
        held = self._held.get(lead)
        if held is None or held.surrendered or held.stream != stream:
            raise FencedError(Reason.FENCED, f"another broker takes over from this one. incarnation=`{lead}` stream=`{stream}`")
        for copy in copies:
            _check(copy.batch)
        held.copies.extend(copies)
        held.bytes += sum(len(copy.batch) for copy in copies)
        durable = sum(1 for _ in takewhile(lambda copy: copy.number <= durable_number, held.copies))
        for _ in range(durable):
            held.bytes -= len(held.copies.popleft().batch)
        if held.bytes > 2 * STREAM_BYTES_MAX:
            raise RetryError(Reason.OVERLOADED, f"too much is not durable. held_bytes=`{held.bytes}` max=`{2 * STREAM_BYTES_MAX}`")

    def surrender(self, lead: str, stream: int) -> list[Copy]:
        """Return the copies of a stream, and take nothing more from its lead. The call may be repeated."""
        held = self._held.setdefault(lead, _Held(stream))
        held.surrendered = True
        return list(held.copies) if held.stream == stream else []

    def forget(self, lead: str) -> None:
        """Called when the lead is sealed in the manifest. All its acked batches are durable, and it cannot begin a stream again."""
        self._held.pop(lead, None)


def _check(batch: bytes) -> None:
    """Raise InvalidError if the bytes are not one whole batch of the lead's log."""
    header = parse(memoryview(batch), 0, len(batch))
    if header[3] != 2 or header[1] + LENGTH_OVERHEAD_BYTES != len(batch) or crc32c(batch[CRC_START:]) != header[4]:
        raise InvalidError(Reason.INVALID_RECORD, f"copy is not a whole record batch. bytes=`{len(batch)}`")
