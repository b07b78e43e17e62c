"""Live first: how much history a lead serves while live records are acked.

History that a lead serves takes time of the loop, of the processors and of the disk that acks need. So a lead compares the time of
acks with their time while no history is served. As long as acks are slower than they should be, it serves history at a rate that
falls, one reader at a time, in smaller answers; the rate rises again when they are quick. Congestion control of networks works in
the same way (the rest that measures the quiet time is that of BBR, https://queue.acm.org/detail.cfm?id=3022184).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from headgate.broker.engine.read.places import Places

WINDOW_S = 0.25
"""Seconds between two judgements."""
WINDOW_S_MAX = 1.0
"""With fewer acks than ACKS_MIN a window lasts this long."""
ACKS_MIN = 20
"""Acks whose mean is worth a judgement. With fewer in WINDOW_S_MAX it would be noise, and history would wait for almost nothing."""
SLOW_FACTOR, SLOW_S = 1.5, 0.001
"""Acks are slow if their mean exceeds that of quiet by this factor and these seconds. The second one keeps the noise of a broker
that acks in less than a millisecond from mattering."""
QUIET_AGE_S = 60.0
"""After this many seconds of history the time of quiet acks is measured again: history rests for a window."""
SHRINK, GROW = 0.6, 1.25
"""Factors of the rate after a window with slow acks, and after one with quick ones."""
ANSWER_S = 0.1
"""While history is limited, one answer has at most the bytes of this many seconds."""
TURN_S_MAX = 1.0
"""A read that takes longer, because the store does not answer, keeps its turn no longer: other history may lie elsewhere."""
WAIT_S_MAX = 5.0
"""Longest wait of a Kafka fetch for its turn. Then the answer is empty, and the client asks again: its own limit is 30 s."""
RECENT_S = 10.0
"""A broker says that history is limited for this many seconds after the last read of history. Kafka clients that wait ask again
within WAIT_S_MAX."""
FREE_BYTES_PER_S = 4 << 30
"""A limit above this number is none: no broker serves more."""


class LiveFirst:
    """The share of history at one lead. Lives on the loop.

    Args:
        now: a monotonic clock, in seconds.
        bytes_per_s_min: the lowest rate of history.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self, now: Callable[[], float], bytes_per_s_min: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._now = now
        self._min = bytes_per_s_min
        self._sleep = sleep
        self.acks: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
        """(number of acks, sum of their times in s) since the start."""
        self.bytes_per_s = math.inf
        """The limit of history."""
        self.ack_s = self.quiet_s = 0.0
        """Mean time of acks in the last window, and in the last one without history."""
        self.waited_s = 0.0
        """Seconds that reads of history have waited, so far."""
        self._quiet_at_s = -math.inf
        self._began_s = now()
        self._asked_s = -math.inf
        """The last time that a read of history began or ended."""
        self._seen = (0, 0.0)
        self._served = 0
        """Bytes of history in this window."""
        self._free_s = -math.inf
        """The next read of history begins at this time at the earliest."""
        self._places = Places()

    @property
    def is_limited(self) -> bool:
        """True while live records slow history down."""
        return self.bytes_per_s < math.inf

    @property
    def shown_bytes_per_s(self) -> float:
        """The limit that people are told of; 0: none, or no reader of history feels it."""
        asked = self._places.is_taken or self._now() - self._asked_s < RECENT_S
        return self.bytes_per_s if self.is_limited and asked else 0.0

    @property
    def is_open(self) -> bool:
        """True if a read of history would begin at once."""
        return not self._places.is_taken and self._now() >= self._free_s

    def __str__(self) -> str:
        """One sentence for a person; empty if no reader of history is limited."""
        if not self.shown_bytes_per_s:
            return ""
        return (
            f"history waits for live records: at most {self.bytes_per_s / (1 << 20):.0f} MiB/s, "
            f"acks take {self.ack_s * 1000:.1f} ms, {self.quiet_s * 1000:.1f} ms without history"
        )

    @asynccontextmanager
    async def turn(self, max_bytes: int, patience_s: float | None = None, reader: int | None = None) -> AsyncIterator[int]:
        """Around one read of history: waits while live records need the broker.

        Yields the most bytes that the read may have; 0: the wait took longer than `patience_s`. The caller tells `served` how many
        there were.

        Args:
            reader: keeps its place in the queue when its patience ends.
        """
        self._asked_s = self._now()
        self._judge()
        if not self.is_limited and self._now() >= self._free_s:
            yield max_bytes
            return
        began_s, place = self._now(), self._places.place(reader)
        try:
            async with asyncio.timeout(patience_s):
                await self._places.take(place)
        except TimeoutError:
            self._places.keep(reader, place)
            yield 0
            return
        try:
            until_s = math.inf if patience_s is None else began_s + patience_s
            while (left_s := min(self._free_s, until_s) - self._now()) > 0:
                await self._sleep(left_s)
                self._judge()
            self.waited_s += self._now() - began_s
            room = min(max_bytes, int(min(self.bytes_per_s, FREE_BYTES_PER_S) * ANSWER_S))
            if self._now() < until_s:
                slow = asyncio.get_running_loop().call_later(TURN_S_MAX, self._places.leave, place)
                try:
                    yield max(room, 1)
                finally:
                    slow.cancel()
            else:
                self._places.keep(reader, place)
                yield 0
        finally:
            self._places.leave(place)

    def served(self, size: int) -> None:
        """A read of history had this many bytes."""
        self._served += size
        self._asked_s = self._now()
        if self.is_limited:
            self._free_s = max(self._free_s, self._now()) + size / self.bytes_per_s

    def _judge(self) -> None:
        """End the window, if it is over, and set the rate of the next one."""
        now_s = self._now()
        length_s = now_s - self._began_s
        if length_s < WINDOW_S:
            return
        count, total_s = self.acks()
        acks, seconds = count - self._seen[0], total_s - self._seen[1]
        if acks < ACKS_MIN and length_s < WINDOW_S_MAX:
            return
        rate, served = self._served / length_s, self._served
        self._began_s, self._seen, self._served = now_s, (count, total_s), 0
        if acks < ACKS_MIN * max(length_s / WINDOW_S_MAX, 1.0):
            self.bytes_per_s = math.inf
            return
        self.ack_s = seconds / acks
        if not served:
            self.quiet_s, self._quiet_at_s = self.ack_s, now_s
            return
        if now_s - self._quiet_at_s >= QUIET_AGE_S:
            self._free_s = max(self._free_s, now_s + WINDOW_S)
        elif self.ack_s > self.quiet_s * SLOW_FACTOR + SLOW_S:
            self.bytes_per_s = max(min(self.bytes_per_s, rate) * SHRINK, self._min)
        elif self.is_limited:
            self.bytes_per_s *= GROW
            if self.bytes_per_s > FREE_BYTES_PER_S:
                self.bytes_per_s = math.inf
