"""Carries out orders: asks the leads to seal their segments, and wakes the callers that wait for an order's end.

The rules are in `cluster/order_book.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

from headgate.broker.cluster.manifest import Edit, Manifest
from headgate.broker.cluster.order_book import Decision, OrderBook
from headgate.broker.cluster.segments import Order
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

logger = get_logger("orders")


class OrderingLeader(Protocol):
    """The leader, as `Orders` needs it."""

    @property
    def clock(self) -> Clock: ...

    @property
    def manifest(self) -> Manifest: ...

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None: ...

    def spawn_order(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...

    def order_failed(self) -> None: ...


class Orders:
    """The orders of one term. `book` has the decisions."""

    def __init__(self, leader: OrderingLeader, book: OrderBook) -> None:
        self.book = book
        self._leader = leader
        self._waiting: dict[Decision, asyncio.Event] = {}

    def begin(self, order: Order) -> Decision:
        """Carry out an order. Raises InvalidError if it does not fit the manifest."""
        decision = self.book.begin(order, self._leader.manifest, self._now_s())
        logger.info("order_begins", kind=order.kind.value, seal=list(order.seal), open=len(order.open), why=order.why)
        self._leader.spawn_order(self._execute(decision))
        return decision

    async def wait(self, decision: Decision) -> None:
        """Wait until a decision is carried out. Raises its error."""
        if decision.under_way:
            await self._waiting.setdefault(decision, asyncio.Event()).wait()
        if decision.error is not None:
            raise decision.error

    def applied(self, edits: Sequence[Edit]) -> None:
        """Called with edits that the manifest has just applied."""
        self._wake(self.book.applied(edits, self._now_s()))

    def stop(self) -> None:
        """End all running orders, because the term has ended."""
        error = RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster any more")
        self._wake(self.book.end_all(error, self._now_s()))

    async def _execute(self, decision: Decision) -> None:
        by_lead: dict[str, list[int]] = {}
        for key, segment in decision.segments.items():
            by_lead.setdefault(segment.incarnation_id, []).append(key)
        error: HeadgateError | None = None
        try:
            # If a lead is lost meanwhile, its failover seals the segment, and `applied` sees that.
            await asyncio.gather(*(self._leader.resign(lead, keys) for lead, keys in by_lead.items()))
        except HeadgateError as failure:
            error = failure
        failed = self.book.resigned(decision, error, self._now_s())
        if failed is not None:
            logger.warning("order_failed", kind=decision.order.kind.value, error=failed.message)
            self._wake([decision])
            self._leader.order_failed()

    def _wake(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            waiting = self._waiting.pop(decision, None)
            if waiting is not None:
                waiting.set()

    def _now_s(self) -> float:
        return self._leader.clock.monotonic()
