"""The leader's orders: which commit opens which successors, and how an order ends. No I/O; time is an argument.

Theory of operation. An order seals segments and opens others. The leads of its segments seal them, each in a commit of its own.
The commit with the last seal of an order opens the successors; until then the sealed partitions have no lead.

If the leader dies half-way, some segments are sealed and have no successor. The next leader finds the gap and fills it. If a
lead dies half-way, its failover seals the segment, with the same result.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.segments import SealSegment
from headgate.broker.cluster.edits.topics import DeleteTopic
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.segments import Order, OrderKind, SegmentInfo, Successor
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError

DECISIONS_MAX = 200
"""Past decisions that are remembered, for the operator."""


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
    under_way: bool = True
    error: HeadgateError | None = None
    pause_s: float = 0.0


class OrderBook:
    """All orders of one term. The methods that can end orders return the decisions that ended."""

    def __init__(self) -> None:
        self._current: list[Decision] = []
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_MAX)
        """Past and running decisions; the newest is last."""

    def busy(self) -> set[int]:
        """The segments that are being sealed."""
        return {segment_id for decision in self._current for segment_id in decision.segments}

    def under_way(self) -> int:
        """The orders that are under way, without drains: a broker that leaves hands over all of its segments together."""
        return sum(decision.order.kind is not OrderKind.DRAIN for decision in self._current)

    def missing(self, order: Order, manifest: Manifest) -> list[int]:
        """The segments of an order that cannot be sealed: they are not open, or are being sealed already."""
        busy = self.busy()
        return [key for key in order.seal if key not in manifest.segments.open or key in busy]

    def begin(self, order: Order, manifest: Manifest, now_s: float) -> Decision:
        """Note that an order is carried out. Raises InvalidError if it does not fit the manifest."""
        missing = self.missing(order, manifest)
        if missing or not order.seal:
            raise InvalidError(Reason.INVALID_REQUEST, f"segment is not open, or it is being changed already. segments=`{missing}`")
        segments = {key: manifest.segments.open[key] for key in order.seal}
        topics = sorted({manifest.topics_by_id[segment.topic_id].name for segment in segments.values()})
        decision = Decision(order, now_s, segments, set(order.seal), tuple(topics))
        self._current.append(decision)
        self.decisions.append(decision)
        return decision

    def note(
        self,
        order: Order,
        manifest: Manifest,
        now_s: float,
        *,
        topic_ids: Iterable[uuid.UUID] = (),
        began_s: float,
        error: HeadgateError | None = None,
    ) -> None:
        """Remember, for the operator, a decision that was made and carried out elsewhere: a failover."""
        known = manifest.topics_by_id
        topics = tuple(sorted({known[topic_id].name for topic_id in topic_ids if topic_id in known}))
        self.decisions.append(Decision(order, began_s, {}, set(), topics, False, error, now_s - began_s))

    def resigned(self, decision: Decision, error: HeadgateError | None, now_s: float) -> HeadgateError | None:
        """Note that the leads of an order have answered, with an error or without one.

        Returns:
            The error with which the order ended now: segments of it may be sealed and have no successors. None: the order goes
            well, or it ended before.
        """
        if not (decision.open_seals and decision.under_way):
            return None
        seals = sorted(decision.open_seals)
        error = error or RetryError(Reason.NOT_LEADER, f"a lead did not seal its segments. segments=`{seals}`")
        self._end(decision, error, now_s)
        return error

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
                successors += [segment for segment in decision.order.open if segment.incarnation_id in alive]
        return successors, held

    def applied(self, edits: Sequence[Edit], now_s: float) -> list[Decision]:
        """Called with edits that the manifest has just applied."""
        ended: list[Decision] = []
        if not self._current:
            return ended
        for edit in edits:
            match edit:
                case SealSegment(segment_id, _, _):
                    for decision in list(self._current):
                        if segment_id in decision.open_seals:
                            decision.open_seals.discard(segment_id)
                            if not decision.open_seals:
                                ended.append(self._end(decision, None, now_s))
                case DeleteTopic(topic_id):
                    for decision in list(self._current):
                        if any(segment.topic_id == topic_id for segment in decision.segments.values()):
                            error = InvalidError(Reason.UNKNOWN_TOPIC, "the topic was deleted")
                            ended.append(self._end(decision, error, now_s))
        return ended

    def end_all(self, error: HeadgateError, now_s: float) -> list[Decision]:
        """End all running orders with an error."""
        return [self._end(decision, error, now_s) for decision in list(self._current)]

    def _end(self, decision: Decision, error: HeadgateError | None, now_s: float) -> Decision:
        self._current.remove(decision)
        decision.under_way, decision.error, decision.pause_s = False, error, now_s - decision.at_s
        return decision
