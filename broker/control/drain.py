"""Takes all segments from a broker that an operator drains."""

from __future__ import annotations

import asyncio
import uuid

from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.cluster.term import TICK_S
from headgate.broker.cluster.term_events import PlanDue
from headgate.broker.control.leader import Leader
from headgate.broker.control.leader_journal import not_leader
from headgate.broker.runtime.errors import Reason, RetryError

DRAIN_S = 150.0
"""Longest time, in seconds, in which a broker must hand over some of its segments. With 5 s for each call of the store, a hand-over
takes a minute, and it may have to wait for an earlier one."""


async def drain_broker(leader: Leader, broker_id: int) -> list[SegmentInfo]:
    """Take all segments from a broker, and give it none until it is restarted.

    Returns:
        The segments that replace them.

    Raises:
        InvalidError: there is no such live broker, or no other broker. RetryError: it hands over no segment for too long, or the
            term ends.
    """
    incarnation_id = leader.term.drain(broker_id)
    leader.sessions.drain(incarnation_id)
    taken: set[tuple[uuid.UUID, int]] = set()
    deadline_s, count = leader.clock.monotonic() + DRAIN_S, 0
    while left := [segment for segment in leader.manifest.segments.open.values() if segment.incarnation_id == incarnation_id]:
        taken.update((segment.topic_id, number) for segment in left for number in segment.partitions)
        if leader.journal.is_over:
            raise not_leader()
        if len(left) != count:
            deadline_s, count = leader.clock.monotonic() + DRAIN_S, len(left)
        if leader.clock.monotonic() > deadline_s:
            raise RetryError(Reason.TIMED_OUT, f"the broker still has segments. broker=`{broker_id}` segments=`{len(left)}`")
        leader.take(PlanDue())
        await asyncio.sleep(TICK_S)
    return [
        segment
        for segment in leader.manifest.segments.open.values()
        if any((segment.topic_id, number) in taken for number in segment.partitions)
    ]
