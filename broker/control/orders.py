"""Running orders: leads seal the segments of an order, and the commit with the last seal opens the successors.

If the leader dies half-way, some segments are sealed and have no successor. The next leader finds the gap and fills it. If a
lead dies half-way, its failover seals the segment, with the same result.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headgate.broker.cluster.manifest import DeleteTopic, Edit, Manifest, SealSegment
from headgate.broker.cluster.segments import Order, SegmentInfo, Successor
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger

log = get_logger("orders")

DECISIONS_MAX = 200
"""Past decisions that are remembered, for the operator."""


class Owner(Protocol):
    """The leader."""

    clock: Clock

    @property
    def manifest(self) -> Manifest: ...

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None: ...

    def spawn_order(self, work: Any) -> asyncio.Task[None]: ...

    def order_failed(self) -> None: ...


@dataclass(slots=True, eq=False)
class Decision:
    """An order and its result. `at_s` and `pause_s` are seconds of the monotonic clock."""

    order: Order
    at_s: float
    segments: dict[int, SegmentInfo]
    """The segments to seal, as they were at the beginning."""
    open_seals: set[int]
    topics: tuple[str, ...]
    """Names of the segments' topics at the beginning."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: HeadgateError | None = None
    pause_s: float = 0.0

    @property
    def under_way(self) -> bool:
        return not self.done.is_set()


class OrderBook:
    """All orders of one term."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._current: list[Decision] = []
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_MAX)
        """Past and running decisions; the newest is last."""

    def is_busy(self, segment_id: int) -> bool:
        """True if a segment is being sealed."""
        return any(segment_id in decision.segments for decision in self._current)

    def begin(self, order: Order) -> Decision:
        """Carry out an order. Raises InvalidError if it does not fit the manifest."""
        manifest = self._owner.manifest
        missing = [key for key in order.seal if key not in manifest.segments or self.is_busy(key)]
        if missing or not order.seal:
            raise InvalidError(Reason.INVALID_REQUEST, f"segment is not open, or it is being changed already. segments=`{missing}`")
        segments = {key: manifest.segments[key] for key in order.seal}
        decision = Decision(order, self._owner.clock.monotonic(), segments, set(order.seal), _topics(manifest, segments.values()))
        self._current.append(decision)
        self.decisions.append(decision)
        log.info("order_begins", kind=order.kind.value, seal=list(order.seal), open=len(order.open), why=order.why)
        self._owner.spawn_order(self._execute(decision))
        return decision

    def note(self, order: Order, *, topic_ids: Iterable[uuid.UUID], began_s: float, error: HeadgateError | None = None) -> None:
        """Remember, for the operator, a decision that was made and carried out elsewhere: a failover."""
        known = self._owner.manifest.topics_by_id
        topics = tuple(sorted({known[topic_id].name for topic_id in topic_ids if topic_id in known}))
        pause_s = self._owner.clock.monotonic() - began_s
        decision = Decision(order, began_s, {}, set(), topics, error=error, pause_s=pause_s)
        decision.done.set()
        self.decisions.append(decision)

    async def wait(self, decision: Decision) -> None:
        """Wait until a decision is carried out. Raises its error."""
        await decision.done.wait()
        if decision.error is not None:
            raise decision.error

    async def _execute(self, decision: Decision) -> None:
        by_lead: dict[str, list[int]] = {}
        for key, segment in decision.segments.items():
            by_lead.setdefault(segment.incarnation_id, []).append(key)
        try:
            # If a lead is lost meanwhile, its failover seals the segment, and `applied` sees that.
            await asyncio.gather(*(self._owner.resign(lead, keys) for lead, keys in by_lead.items()))
            if decision.open_seals and decision.under_way:
                raise RetryError(Reason.NOT_LEADER, f"a lead did not seal its segments. segments=`{sorted(decision.open_seals)}`")
        except HeadgateError as error:
            if decision.open_seals and decision.under_way:
                log.warning("order_failed", kind=decision.order.kind.value, error=error.message)
                self._end(decision, error)
                self._owner.order_failed()

    def successors(self, seals: set[int], alive: set[str]) -> tuple[list[Successor], set[tuple[uuid.UUID, int]]]:
        """The segments that orders open in a commit that seals `seals`, and the partitions that still wait for other seals.

        Args:
            alive: incarnations that can lead. If a target is gone, the placement decides about its partitions.
        """
        successors: list[Successor] = []
        held: set[tuple[uuid.UUID, int]] = set()
        for decision in self._current:
            if decision.open_seals - seals:
                for segment in decision.segments.values():
                    held.update((segment.topic_id, number) for number in segment.partitions)
            elif decision.open_seals & seals:
                successors += [one for one in decision.order.open if one.incarnation_id in alive]
        return successors, held

    def applied(self, edits: Sequence[Edit]) -> None:
        """Called with edits that the manifest has just applied."""
        if not self._current:
            return
        for edit in edits:
            match edit:
                case SealSegment(segment_id, _, _):
                    for decision in list(self._current):
                        if segment_id in decision.open_seals:
                            decision.open_seals.discard(segment_id)
                            if not decision.open_seals:
                                self._end(decision, None)
                case DeleteTopic(topic_id):
                    for decision in list(self._current):
                        if any(segment.topic_id == topic_id for segment in decision.segments.values()):
                            self._end(decision, InvalidError(Reason.UNKNOWN_TOPIC, "the topic was deleted"))

    def stop(self) -> None:
        for decision in list(self._current):
            self._end(decision, RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster any more"))

    def _end(self, decision: Decision, error: HeadgateError | None) -> None:
        if decision in self._current:
            self._current.remove(decision)
        decision.error = error
        decision.pause_s = self._owner.clock.monotonic() - decision.at_s
        decision.done.set()


def _topics(manifest: Manifest, segments: Iterable[SegmentInfo]) -> tuple[str, ...]:
    return tuple(sorted({manifest.topics_by_id[segment.topic_id].name for segment in segments}))
