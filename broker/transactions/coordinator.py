"""The transaction coordinator: drives the shards of `__transaction_state`, and has markers written.

The lead of a transactional id's partition coordinates its transactions. A request that finds an id busy waits a moment for the
change under way: clients that get CONCURRENT_TRANSACTIONS pause longer than a change takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from headgate.broker.coordination.driver import Driver
from headgate.broker.coordination.effects import Budget, Now
from headgate.broker.coordination.slot import Slot
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.transactions import rules
from headgate.broker.transactions.records import NO_EPOCH, NO_ID, Partition, Transaction
from headgate.broker.transactions.rules import Reply
from headgate.broker.transactions.shard import Changed, Mark, Rule, Shard

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine

logger = get_logger(__name__)

TOPIC = "__transaction_state"
TOPIC_CONFIG = {"cleanup.policy": "compact", "compression.type": "producer", "max.message.bytes": str(16 << 20)}
BUSY_WAIT_S = 1.0
"""Longest wait of a request for an id that is busy. Then the client gets CONCURRENT_TRANSACTIONS, and asks again."""
MARKERS_RETRY_S = 0.05
"""First pause before markers are written again that a lead did not take; it doubles up to `MARKERS_RETRY_S_MAX`."""
MARKERS_RETRY_S_MAX = 1.0
MARKERS_AT_ONCE = 1_000
"""Transactions of this broker whose markers are written at the same time; others wait."""


class Marker(Protocol):
    """Writes markers. `broker_calls.TransactionCalls` reaches the leads."""

    async def write_markers(
        self, transaction: Transaction, partitions: set[Partition], coordinator: tuple[int, int]
    ) -> Mapping[Partition, HeadgateError | None]:
        """Write the markers of a prepared transaction at all leads.

        Args:
            coordinator: (partition of `__transaction_state`, leader epoch).

        Returns:
            The partitions that need none any more (None), and those that must be tried again, with the error.
        """


class TransactionCoordinator(Driver[Shard]):
    """All transactional ids of this broker. Requests are answered with a `Reply`, which holds the reason of a refusal; they also
    raise the errors of `Driver`."""

    name = "transactions"
    record_name = "transaction_record"
    topic_name = TOPIC
    topic_config = TOPIC_CONFIG

    def __init__(self, engine: Engine, settings: Settings, clock: Clock, marker: Marker) -> None:
        self._marker = marker
        self._busy: dict[str, list[asyncio.Future[None]]] = {}
        """Requests that wait until an id has another state."""
        self._marking: set[asyncio.Task[None]] = set()
        self._marking_room = asyncio.Semaphore(MARKERS_AT_ONCE)
        self.ended: dict[tuple[str, ...], float] = {("commit",): 0, ("abort",): 0}
        """Number of complete transactions by their outcome."""
        super().__init__(
            engine,
            settings,
            clock,
            partitions=settings.transaction_topic_num_partitions,
            ids_max=settings.transactional_ids_max,
        )

    def make_shard(self, budget: Budget) -> Shard:
        return Shard(budget)

    def stop(self) -> None:
        super().stop()
        for task in self._marking:
            task.cancel()
        for transactional_id in list(self._busy):
            self._wake_busy(transactional_id)

    # -- requests

    async def init(self, transactional_id: str, timeout_ms: int, expected: tuple[int, int] | None) -> Reply:
        """InitProducerId. `expected`: the producer's own id and epoch, or None. Creates the id."""
        fresh_id = await self._engine.allocate_producer_id()
        timeout_ms_max = self._settings.transaction_max_timeout_ms

        def rule(known: Transaction | None) -> rules.Step:
            return rules.init(known, timeout_ms, expected, fresh_id, self._wall_ms(), timeout_ms_max)

        return await self._request(transactional_id, rule, creates=True)

    async def add(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[Partition], *, version: int
    ) -> Reply:
        """Add partitions to the transaction, and begin it if none is ongoing. `version`: 2 for the second protocol."""
        topics = self._engine.manifest.topics
        if any((topic := topics.get(name)) is None or number >= topic.partitions for name, number in partitions):
            # A lead knows them, and this broker hears of them in a moment. Until then it could not tell them from deleted ones.
            return Reply(Reason.COORDINATOR_NOT_AVAILABLE)

        def rule(known: Transaction | None) -> rules.Step:
            return rules.add(known, producer_id, epoch, partitions, self._wall_ms(), version=version)

        return await self._request(transactional_id, rule)

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: frozenset[Partition]
    ) -> Reply:
        """Whether partitions belong to the ongoing transaction."""
        reply = await self._request(
            transactional_id, partial(rules.check_partitions, producer_id=producer_id, epoch=epoch, partitions=partitions)
        )
        if reply.error is None:
            # Nothing was written that would prove it.
            await self._prove(transactional_id)
        return reply

    async def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, version: int) -> Reply:
        """EndTxn. `version`: 2 for the second protocol."""
        fresh_id = await self._engine.allocate_producer_id()

        def rule(known: Transaction | None) -> rules.Step:
            return rules.end(known, producer_id, epoch, self._wall_ms(), fresh_id, commit=commit, version=version)

        return await self._request(transactional_id, rule)

    async def _request(self, transactional_id: str, rule: Rule, *, creates: bool = False) -> Reply:
        deadline_s = self._loop.time() + BUSY_WAIT_S
        while True:
            token = self.token()

            def act(shard: Shard, _: Now, token: object = token) -> list[object]:
                return list(shard.handle(transactional_id, rule, token, creates=creates))

            reply = cast(Reply, await self._ask(transactional_id, act, token, creates))
            left_s = deadline_s - self._loop.time()
            if reply.error is not Reason.CONCURRENT_TRANSACTIONS or left_s <= 0 or not await self._rest(transactional_id, left_s):
                if reply.error is not None:
                    # A coordinator that was replaced, and does not know it yet, would end a producer that the next one knows.
                    await self._prove(transactional_id)
                return reply

    async def _prove(self, transactional_id: str) -> None:
        """Make sure that no other broker has become the coordinator of an id. Raises RetryError(NOT_COORDINATOR)."""
        await self.topic.confirm()
        self._looked_at(transactional_id)  # its partition may have been handed over

    async def _rest(self, transactional_id: str, timeout_s: float) -> bool:
        """Wait until an id has another state. False if that took too long."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._busy.setdefault(transactional_id, []).append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            waiters = self._busy.get(transactional_id, [])
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._busy[transactional_id]
            return False
        return True

    def _wake_busy(self, transactional_id: str) -> None:
        for waiter in self._busy.pop(transactional_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # -- for reading. Await `confirm` first

    def find(self, transactional_id: str) -> Transaction | None:
        """The durable state of an id; None if it does not exist."""
        self._check()
        slot = self._looked_at(transactional_id)
        return None if slot is None else slot.shard.find(transactional_id)

    def list_all(self) -> Iterator[tuple[str, Transaction]]:
        """All ids of this broker with their durable states."""
        self._check()
        for slot in self._live():
            yield from slot.shard.list_all()

    def count_states(self) -> dict[tuple[str, ...], float]:
        """The number of ids in each state; {} while they are loaded."""
        counts: dict[tuple[str, ...], float] = {}
        if self._loaded and not self._closed:
            for _, transaction in self.list_all():
                key = (transaction.state.shown,)
                counts[key] = counts.get(key, 0) + 1
        return counts

    # -- effects and time

    def _perform(self, slot: Slot[Shard], effect: object) -> None:
        if isinstance(effect, Changed):
            self._wake_busy(effect.transactional_id)
        else:
            assert isinstance(effect, Mark)
            task = self._spawn(self._mark(slot, effect), "transactions-mark")
            self._marking.add(task)
            task.add_done_callback(self._marking.discard)

    async def _mark(self, slot: Slot[Shard], mark: Mark) -> None:
        """Write the markers of a prepared transaction, until all partitions have one or this broker loses the lead."""
        unmarked = set(mark.transaction.partitions)
        pause_s, reported = MARKERS_RETRY_S, ""
        while slot.log.closed is None:
            async with self._marking_room:
                results = await self._marker.write_markers(mark.transaction, unmarked, (slot.log.number, slot.log.leader_epoch))
            done = {partition for partition, error in results.items() if error is None}
            unmarked -= done
            if slot.log.closed is None and done:
                self._execute(slot, slot.shard.marked(mark.transactional_id, mark.transaction, done, self._clock.now()))
                self._wake_for(slot)
            if not unmarked:
                self.ended["commit" if mark.transaction.state.name.endswith("COMMIT") else "abort",] += 1
                return
            error = next(error for error in results.values() if error is not None)
            if pause_s >= MARKERS_RETRY_S_MAX and error.message != reported:
                reported = error.message
                logger.warning(
                    "markers_wait", transactional_id=mark.transactional_id, partitions=len(unmarked), error=error.message
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MARKERS_RETRY_S_MAX)

    def _wall_ms(self) -> int:
        return self._clock.now().wall_ms

    async def _clean(self) -> None:
        """Forget ids that were not used for long."""
        cutoff_ms = self._engine.cutoff_ms(self._settings.transactional_id_expiration_ms)
        try:
            await self.topic.protect()
            for slot in self._live():
                if cutoff_ms is not None:
                    self._execute(slot, list(slot.shard.clean(cutoff_ms)))
                await asyncio.sleep(0)
        except HeadgateError as error:
            logger.warning("transactions_clean_failed", error=error.message)
        finally:
            self._cleaning = None


def expected_of(producer_id: int, epoch: int) -> tuple[int, int] | None:
    """The producer's own id and epoch in InitProducerId; None if it starts."""
    return None if producer_id == NO_ID or epoch == NO_EPOCH else (producer_id, epoch)


async def asked(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """The reply to a request; a refusal, too, if it cannot be served now."""
    try:
        return await call()
    except RetryError as error:
        return Reply(error.reason)
    except HeadgateError as error:
        return Reply(Reason.COORDINATOR_NOT_AVAILABLE if error.reason is Reason.INTERNAL else error.reason)
