"""Proof that this broker still leads. It keeps answers from being older than records that a successor has acked.

An answer is stale if it leaves out something that was acked before the request was sent. Examples are a high watermark below an
acked record, or a committed position below one that another coordinator has acked meanwhile. An ack is never stale, because this
broker looks at the fence before every ack. An answer from memory has no such look. So before an answer that can be stale, a
broker needs one of two proofs.

**A promise.** The cluster's leader promises a member not to fence it within a span after it heard a message from the member. The
member counts the span from *before* it sent the message, on its own monotonic clock, and uses only `SAFE_SHARE` of it. So the
promise ends for the member before it ends for the leader. Clocks of different machines are never compared; they only have to run
at the same rate within 10 %. The leader's own promise is its lease: no other broker takes the lease until a whole `ttl_ms` after
the last renewal. The leader gives a promise only under its own proof, so a leader that was replaced while it slept cannot give
one. While a promise holds, no other broker can lead this broker's partitions, so no other broker can have acked anything, and
an answer about these partitions is right. Cost: one comparison. A promise says nothing about other partitions. So a member that
does not know a topic, even under a promise, cannot answer that the topic does not exist.

**A look.** If no promise holds (the process was stopped, the leader is not reached, the lease is not renewed), this broker reads
its own fence marker. A successor creates the marker before it opens the partitions, so before its first ack. If a successor's
ack came before the request was sent, then the marker existed before the request arrived. A read of the marker that begins after
the arrival finds it, because the store is linearizable for a key. So "no marker" proves the answer for all requests that arrived
before the read began, and for no later request. All waiting requests share one read, and at most one read runs at a time: a
request that arrives during a read waits for the next one. A look that takes too long (`LOOK_TIMEOUT_S`) proves nothing.
The broker then refuses the request with an error that makes the client look for the lead again.

When a stopped process (SIGSTOP) continues, its promise has ended, because the monotonic clock did not stop. There are two
exceptions. If a machine was suspended together with its clocks, its answers may be stale until the promise ends, at most
`SAFE_SHARE` of the member timeout later. The other exception is wrong evidence of death: a firewall answers in place of a living
broker that the broker's port is closed.

Records below the high watermark never change, so a fetch that finds records needs no proof. The high watermark in its answer may
be old, and then the consumer only fetches once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.broker.cluster.patience import Patience
from headgate.broker.engine.base import keys
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast, watch
from headgate.broker.store.interface import Store

SAFE_SHARE = 0.9
"""Share of a promised span that this broker relies on. The rest allows for clocks that run at different rates."""
LOOK_TIMEOUT_S = 1.0
"""Time, in seconds, for a look at the fence marker in a store that is near. Clients wait 30 s for an answer, and look for another
lead earlier than that. If the store is far away or slow, all looks take longer, and the next limits are longer (`Patience`)."""


class LeadProof:
    """Proves that this broker leads, by a promise or a look. Lives on the loop.

    Args:
        fenced: called when a look finds the fence marker.
        fail: called with an unexpected error of a look.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        incarnation_id: str,
        *,
        fenced: Callable[[], None],
        fail: Callable[[HeadgateError], None],
    ) -> None:
        self.valid_until_s = float("-inf")
        """The monotonic time, in seconds, until which no other broker can lead this broker's partitions."""
        self.promised = False
        """True since the first promise: this broker belongs to a cluster."""
        self.looks = 0
        """Number of reads of the fence marker."""
        self._store = store
        self._clock = clock
        self._incarnation_id = incarnation_id
        self._fenced = fenced
        self._fail = fail
        self._over = False
        self._patience = Patience(LOOK_TIMEOUT_S)
        self._looking: asyncio.Task[None] | None = None
        self._next: asyncio.Future[HeadgateError | None] | None = None
        """Result of the look that begins after the current one. None: no request waits for it."""

    @property
    def holds(self) -> bool:
        """True if a promise holds now."""
        return self._clock.monotonic() < self.valid_until_s

    def extend(self, asked_s: float, span_ms: int) -> None:
        """Take a promise.

        Args:
            asked_s: the monotonic time just before the message was sent that the promise answers.
            span_ms: the promised span. 0: no promise was given.
        """
        self.promised = True
        if span_ms > 0 and not self._over:
            self.valid_until_s = max(self.valid_until_s, asked_s + span_ms / 1000 * SAFE_SHARE)

    def lapse(self) -> None:
        """Drop the promise: the leader is not reached any more, or this broker gives up its role in the promise."""
        self.valid_until_s = float("-inf")

    def end(self) -> None:
        """This broker stops leading: it takes no promise from now on."""
        self._over = True
        self.lapse()

    async def confirm(self) -> None:
        """Make sure that this broker led at some moment since the call. Immediate if a promise holds, else by a look.

        Raises RetryError(NOT_LEADER).
        """
        if not self.holds:
            await self.look()

    async def look(self) -> None:
        """Make sure that no fence marker exists for this broker. All waiting calls share one read.

        Raises RetryError(NOT_LEADER): a marker exists, or the store did not answer in time.
        """
        result = self._next
        if result is None:
            result = self._next = asyncio.get_running_loop().create_future()
            if self._looking is None:
                self._begin()
        try:
            async with asyncio.timeout(limit_s := self._patience.limit_s):
                error = await outlast(result)
        except TimeoutError as timeout:
            if limit_s == self._patience.limit_s:  # not every request that waited for the same look
                self._patience.ran_out()
            raise RetryError(
                Reason.NOT_LEADER,
                f"this broker cannot find out in time whether it still leads: the store does not answer. seconds=`{limit_s:g}`",
            ) from timeout
        if error is not None:
            raise RetryError(Reason.NOT_LEADER, f"this broker cannot find out whether it still leads: {error.message}") from error

    async def close(self) -> None:
        """Cancel the running look."""
        self.end()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    def _begin(self) -> None:
        result, self._next = self._next, None
        assert result is not None
        self.looks += 1
        self._looking = asyncio.get_running_loop().create_task(self._look(result), name="look-at-fence")
        watch(self._looking, "look at the fence", self._fail)

    async def _look(self, result: asyncio.Future[HeadgateError | None]) -> None:
        began_s = self._clock.monotonic()
        try:
            error = await self._find_marker()
            # A request waits for the look before, too.
            self._patience.answered(2 * (self._clock.monotonic() - began_s))
            if not result.done():
                result.set_result(error)
        finally:
            self._looking = None
            if self._next is not None and not self._over:
                self._begin()

    async def _find_marker(self) -> HeadgateError | None:
        """The reason why this broker may not lead any more; None if there is no marker."""
        try:
            await self._store.get_range(keys.fence(self._incarnation_id), 0, 1)
        except InvalidError as error:
            return None if error.reason is Reason.NOT_FOUND else error
        except HeadgateError as error:
            return error
        self._fenced()
        return RetryError(Reason.NOT_LEADER, "other brokers lead its partitions by now")
