"""Carries out orders: asks the leads to seal their segments, and wakes the callers that wait for an order's end.

The rules are in `cluster/order_book.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.order_book import Decision, OrderBook
from headgate.broker.cluster.segments import Order
from headgate.broker.control.leader_journal import not_leader
from headgate.broker.control.term_tasks import TermTasks
from headgate.broker.control.timings import Timings
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("orders")


class Leads(Protocol):
    """The brokers that lead segments (`sessions.Sessions`)."""

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None: ...


class OrdersJournal(Protocol):
    """The journal, as `Orders` needs it (`leader_journal.LeaderJournal`)."""

    @property
    def manifest(self) -> Manifest: ...

    def confirm(self) -> Coroutine[Any, Any, None]: ...


class Orders:
    """The orders of one term. `book` has the decisions.

    Args:
        tasks: of the term.
        timings: receives the time that writers waited.
    """

    def __init__(
        self,
        book: OrderBook,
        journal: OrdersJournal,
        leads: Leads,
        clock: Clock,
        tasks: TermTasks,
        timings: Timings | None = None,
    ) -> None:
        self.book = book
        self._timings = timings or Timings()
        self._journal = journal
        self._leads = leads
        self._clock = clock
        self._tasks = tasks
        self._waiting: dict[Decision, asyncio.Event] = {}

    def begin(self, order: Order) -> Decision:
        """Carry out an order. Raises InvalidError if it does not fit the manifest."""
        decision = self.book.begin(order, self._journal.manifest, self._now_s())
        logger.info("order_begins", kind=order.kind.value, seal=list(order.seal), open=len(order.open), why=order.why)
        self._tasks.spawn(self._execute(decision), "order")
        return decision

    async def wait(self, decision: Decision) -> None:
        """Wait until a decision is carried out. Raises its error."""
        if decision.under_way:
            await self._waiting.setdefault(decision, asyncio.Event()).wait()
        if decision.error is not None:
            raise decision.error

    def applied(self, edits: Sequence[Edit]) -> None:
        """Called with edits that the manifest has just applied."""
        ended = self.book.applied(edits, self._now_s())
        for decision in ended:
            if decision.error is None:
                self._timings.handed_over(decision.order.kind, decision.pause_s)
        self._wake(ended)

    def stop(self) -> None:
        """End all running orders, because the term has ended."""
        self._wake(self.book.end_all(not_leader(), self._now_s()))

    async def _execute(self, decision: Decision) -> None:
        by_lead: dict[str, list[int]] = {}
        for key, segment in decision.segments.items():
            by_lead.setdefault(segment.incarnation_id, []).append(key)
        error: HeadgateError | None = None
        try:
            # If a lead is lost meanwhile, its failover seals the segment, and `applied` sees that.
            await asyncio.gather(*(self._leads.resign(lead, keys) for lead, keys in by_lead.items()))
        except HeadgateError as failure:
            error = failure
        failed = self.book.resigned(decision, error, self._now_s())
        if failed is not None:
            logger.warning("order_failed", kind=decision.order.kind.value, error=failed.message)
            self._wake([decision])
            # Its segments may be sealed without successors, so every partition without a lead gets one.
            self._tasks.keep(self._journal.confirm, "fill-gaps")

    def _wake(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            waiting = self._waiting.pop(decision, None)
            if waiting is not None:
                waiting.set()

    def _now_s(self) -> float:
        return self._clock.monotonic()
