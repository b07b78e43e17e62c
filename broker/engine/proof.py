"""Proof that this broker still leads: what keeps its answers from being older than what its successors acked.

An answer is stale where it leaves out something that was acked before the request was sent: a high watermark below an acked
record, a committed position below one that another coordinator acked meanwhile. This broker acks nothing stale, because every ack
follows a look at the fence; but an answer from memory has no such look. So before an answer that can be stale, a broker needs one
of two proofs.

**A promise.** The cluster's leader promises to fence this broker no earlier than a span after it heard a message from it. This
broker counts the span from *before* it sent the message, on its own monotonic clock, and uses `SAFE_SHARE` of it, so the promise
ends here before it ends there: clocks of different machines are never compared, only assumed to run at the same rate within 10 %.
The leader itself holds its lease as a promise: nobody takes it until a whole `ttl_ms` after its last renewal. A member's promise
is given only under the leader's own proof, so a leader that was replaced while it slept cannot give one. While a promise holds,
nobody else can lead this broker's partitions, so nobody else can have acked anything: the answer is right. Cost: one comparison.

**A look.** Where no promise holds (the process was stopped, the leader is not reached, the lease is not renewed), this broker reads
its own fence marker. A successor creates the marker before it opens the partitions, so before it acks anything. If a successor's
ack came before the request was sent, then the marker stood before the request arrived, and a read of the marker that begins
after the arrival finds it: the store is linearizable for a key. So "no marker" proves the answer for all requests that arrived
before the read began, and for no later one. All requests that wait share one read, and at most one read is under way: a request
that arrives meanwhile waits for the next one. A look that takes more than `LOOK_TIMEOUT_S` proves nothing: the request is refused
with an error that sends the client to look for the lead again.

A stopped process (SIGSTOP) finds its promise over when it goes on: the monotonic clock did not stop. A machine that was suspended
together with its clocks is the exception; its answers may be stale until the promise ends, at most `SAFE_SHARE` of the member
timeout later. The other one is evidence of death that is wrong: a firewall that answers in the place of a living broker that its
port is closed.

Records below the high watermark never change, so a fetch that finds records needs no proof: a high watermark beside them may be
old, which tells the consumer no more than that it should fetch again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headgate.broker.engine import keys
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.tasks import outlast, watch
from headgate.broker.store.interface import Store

SAFE_SHARE = 0.9
"""Part of a promised span that this broker relies on. The rest is for clocks that run at different rates."""
LOOK_TIMEOUT_S = 1.0
"""Longest wait for a look at the fence marker. Clients wait 30 s for an answer, and look for another lead sooner than that."""


class LeadProof:
    """See the module's text. Lives on the loop.

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
        """The monotonic time until which nobody else can lead this broker's partitions."""
        self.looks = 0
        """Reads of the fence marker that were begun."""
        self._store = store
        self._clock = clock
        self._incarnation_id = incarnation_id
        self._fenced = fenced
        self._fail = fail
        self._over = False
        self._looking: asyncio.Task[None] | None = None
        self._next: asyncio.Future[HeadgateError | None] | None = None
        """Result of the look that begins when the current one has ended; None: no request waits for it."""

    @property
    def holds(self) -> bool:
        """Whether a promise holds now."""
        return self._clock.monotonic() < self.valid_until_s

    def extend(self, asked_s: float, span_ms: int) -> None:
        """Take a promise.

        Args:
            asked_s: the monotonic time just before the message was sent that the promise answers.
            span_ms: the promised span. 0: no promise was given.
        """
        if span_ms > 0 and not self._over:
            self.valid_until_s = max(self.valid_until_s, asked_s + span_ms / 1000 * SAFE_SHARE)

    def lapse(self) -> None:
        """Drop the promise: the other side is not reached any more, or this broker gives up what the promise was about."""
        self.valid_until_s = float("-inf")

    def end(self) -> None:
        """This broker stops leading: it takes no promise from now on."""
        self._over = True
        self.lapse()

    async def confirm(self) -> None:
        """Make sure that this broker led at some moment since the call: at once where a promise holds, else by a look.

        Raises RetryError(NOT_LEADER).
        """
        if not self.holds:
            await self.look()

    async def look(self) -> None:
        """Make sure that no fence marker stands for this broker. Shares its read with all calls that wait.

        Raises RetryError(NOT_LEADER): a marker stands, or the store did not answer in time.
        """
        result = self._next
        if result is None:
            result = self._next = asyncio.get_running_loop().create_future()
            if self._looking is None:
                self._begin()
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                error = await outlast(result)
        except TimeoutError as timeout:
            raise RetryError(
                Reason.NOT_LEADER,
                "this broker cannot find out in time whether it still leads: the store does not answer. "
                f"seconds=`{LOOK_TIMEOUT_S:g}`",
            ) from timeout
        if error is not None:
            raise RetryError(Reason.NOT_LEADER, f"this broker cannot find out whether it still leads: {error.message}") from error

    async def close(self) -> None:
        """End the look that is under way."""
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
        try:
            error = await self._find_marker()
            if not result.done():
                result.set_result(error)
        finally:
            self._looking = None
            if self._next is not None and not self._over:
                self._begin()

    async def _find_marker(self) -> HeadgateError | None:
        """Why this broker may not lead any more; None: no marker stands."""
        try:
            await self._store.get_range(keys.fence(self._incarnation_id), 0, 1)
        except InvalidError as error:
            return None if error.reason is Reason.NOT_FOUND else error
        except HeadgateError as error:
            return error
        self._fenced()
        return RetryError(Reason.NOT_LEADER, "other brokers lead its partitions by now")
