"""Copies in the memory of a second broker, for topics with `ack=replicated`: the lead's half and the follower's.

The price of `ack=durable` on S3 is the time of a PUT. With `ack=replicated` a record is acked when its lead and one other broker,
the lead's *follower*, hold it in memory; the WAL follows. When the lead is lost, whoever recovers its WAL takes from the follower
what the WAL lacks (`recovery.py`). Nothing else is different: the high watermark is what is durable, so readers see only that.

Theory of operation. A *stream* is one agreement of a lead and a follower::

    begin   batches go to the follower from here on; its word does not count yet
    count   everything appended before `begin` is durable, and the manifest names the stream: from here on what the follower has
            is acked, and a recovery must hear the follower
    end     whatever happens to the follower, or to the way there. Acks wait for the store, as if there were no follower; the next
            stream begins once everything that this one had acked is durable

So what a follower holds continues, without a gap, what is durable of the lead's log; and a manifest that still names an old stream
is right, because all of it is durable.

Fencing needs no clock: a batch counts only if both have it, so a recovery stops one of the two. The follower *surrenders* a lead:
it gives its copies away and takes nothing more from that incarnation. A lead that is alive after all can then only ack what its WAL
took, and finds the fence there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple

from headgate.broker.engine.wal import DurableCallback, Wal
from headgate.broker.log.batch import CRC_START, LENGTH_OVERHEAD_BYTES, parse
from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import FencedError, HeadgateError, InvalidError, Reason, RetryError

STREAM_BYTES_MAX = 64 << 20
"""Copies of one lead that are not durable: about the writes of half a second at full speed. Where there are more the store does
not keep up, and acks have to wait for it."""


class Copy(NamedTuple):
    """A batch as its lead has it. `number`: among the batches of its WAL, from 1; `stream`: the partition's key, as in a chunk."""

    number: int
    stream: bytes
    batch: bytes
    appended_ms: int


class _Once:
    """Calls back the first time."""

    __slots__ = ("_callback",)

    def __init__(self, callback: DurableCallback) -> None:
        self._callback: DurableCallback | None = callback

    def __call__(self, error: HeadgateError | None) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(error)


class Replicator:
    """The lead's half. Lives on the loop; `control/replication.py` does what needs a network.

    Args:
        wal: the lead's. A batch goes there first.
    """

    def __init__(self, wal: Callable[[], Wal]) -> None:
        self.wanted = asyncio.Event()
        """Set once there was a batch that a follower should have."""
        self.stream = 0
        """The number of the newest stream."""
        self.counts = False
        """Whether the follower's word is an ack."""
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
        """The batch that was handed to the WAL just now is for the follower, too."""
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
        """Call back once the last batch and all before it are with the follower, or durable (None), or never can be (the error)."""
        once = _Once(callback)
        self._waiting.append((self._last_number, once))
        self._wal().on_durable(once)

    def begin(self) -> int:
        """Begin a stream. Returns its number. Everything that the one before acked is durable."""
        self.end()
        self.stream += 1
        self.is_open = True
        return self.stream

    def count(self, stream: int) -> None:
        """The manifest names the stream, if it is still open."""
        self.counts = self.is_open and stream == self.stream

    def end(self) -> None:
        """Nothing goes to a follower, and nobody's word counts. Whoever waits is called back by the WAL."""
        self.is_open = self.counts = False
        self._unsent.clear()
        self._sizes.clear()
        self._bytes = 0
        self._waiting.clear()
        self._more.set()

    async def batches(self, bytes_max: int, timeout_s: float) -> list[Copy]:
        """The next copies to send: about `bytes_max` at the most; [] where there is none for so long, or the stream has ended."""
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
        """The follower has all copies up to this one."""
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
    """What is held of one lead."""

    __slots__ = ("bytes", "copies", "stream", "surrendered")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.surrendered = False
        self.copies: deque[Copy] = deque()
        self.bytes = 0


class Replicas:
    """The follower's half: what this broker holds of others, by their incarnation. Lives on the loop."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    @property
    def bytes(self) -> int:
        """Memory in copies."""
        return sum(held.bytes for held in self._held.values())

    @property
    def leads(self) -> list[str]:
        """Incarnations of which something is held or was surrendered."""
        return list(self._held)

    def open(self, lead: str, stream: int) -> None:
        """A lead begins a stream; everything of the one before is durable. Raises FencedError where it was surrendered."""
        held = self._held.get(lead)
        if held is not None and (held.surrendered or held.stream >= stream):
            raise FencedError(Reason.FENCED, f"another broker takes over from this one. incarnation=`{lead}` stream=`{stream}`")
        self._held[lead] = _Held(stream)

    def take(self, lead: str, stream: int, copies: list[Copy], durable_number: int) -> None:
        """Hold copies, and let go of what is durable.

        Raises:
            FencedError: the stream is over. InvalidError: a copy is no batch. RetryError: too much is held of this lead.
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
        """Give away what is held of a stream, and take nothing more from that lead. It may be asked for again."""
        held = self._held.setdefault(lead, _Held(stream))
        held.surrendered = True
        return list(held.copies) if held.stream == stream else []

    def forget(self, lead: str) -> None:
        """The lead is sealed in the manifest: whatever counts of it is durable, and it is not let in again."""
        self._held.pop(lead, None)


def _check(batch: bytes) -> None:
    """Raises InvalidError where it is not what the lead's log has."""
    header = parse(memoryview(batch), 0, len(batch))
    if header[3] != 2 or header[1] + LENGTH_OVERHEAD_BYTES != len(batch) or crc32c(batch[CRC_START:]) != header[4]:
        raise InvalidError(Reason.INVALID_RECORD, f"copy is not a whole record batch. bytes=`{len(batch)}`")
