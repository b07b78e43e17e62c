"""Lanes: which readers of history a lead sends away, and to which lane (KIP-392). No I/O.

A lead sends a reader away when enough history lies ahead of it (`is_far`), and a lane is there (`choose`). The answer has no
records then, but the id of the lane. What clients do with it differs (`broker/server/README.md`): they go there, or they go
there after they have looked at the metadata again, or they ask the lead again. A `Guide` tells them apart by what a connection asks
next, so that no client is sent away again and again, and one that does not follow is served by the lead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from headgate.broker.cluster.capacity import Reservation
from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.objects import Incarnation

LANE_IDS = 1_000_000
"""Lane n (from 1) beside broker b has the id n * LANE_IDS + b."""
LOOK_AHEAD_EXTENTS = 1000
"""Extents that are added up at most. A reader of more files than that is far away in any case."""
STAY_S = 5.0
"""A reader that is back within this time, with history still ahead of it, does not stay where it is sent: the lane is gone, or its
client forgets lanes at once (kafka-python 3.0)."""
PAUSES_S = (2.0, 10.0, 60.0, 300.0)
"""Seconds for which the lead serves a reader that did not go or did not stay: after the first time, the second ... A client that
had not heard of the lane knows it after some hundred ms; 300 s is the time for which Kafka's clients keep a replica."""
PARTITIONS_MAX = 10_000
"""Partitions of one connection that are remembered; beyond it the lead forgets them all and begins anew."""


@dataclass(slots=True)
class _Sent:
    """The last time that a reader was sent away. `is_due`: it has not asked here since. `failed`: how often in a row it did not go,
    or did not stay. `again_s`: before this time it is not sent away again."""

    offset: int
    at_s: float
    is_due: bool = True
    failed: int = 0
    again_s: float = 0.0


def lane_id(broker_id: int, number: int) -> int:
    """The id of a lane beside a broker. `number`: from 0."""
    return (number + 1) * LANE_IDS + broker_id


def beside(lanes: Iterable[Incarnation], broker_id: int) -> list[Incarnation]:
    """The lanes beside a broker."""
    return [lane for lane in lanes if lane.broker_id > LANE_IDS and lane.broker_id % LANE_IDS == broker_id]


def number_beside(own: int, reservations: Iterable[Reservation], broker_ids: Sequence[int], broker_id: int, cores: int) -> int:
    """Number of lanes that a broker may have beside it now. Reservations count for the whole cluster, and the largest one decides.

    Args:
        own: number without a reservation. A broker whose lanes cannot be reached has 0, and a reservation does not change that.
        broker_ids: the live brokers, which share the reserved lanes, in order.
        cores: of this machine. More lanes than cores serve no more.
    """
    if not own:
        return 0
    reserved = max((one.lanes for one in reservations), default=0)
    if not reserved or broker_id not in broker_ids:
        return own
    each, left = divmod(reserved, len(broker_ids))
    return max(own, min(each + (broker_ids.index(broker_id) < left), cores))


class Guide:
    """Which partitions of one connection's reader go to a lane now."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[Hashable, _Sent] = {}

    def may_send(self, partition: Hashable, offset: int, now_s: float) -> bool:
        """True if a reader at `offset` shall go to a lane. The caller then sends it."""
        sent = self._sent.get(partition)
        if sent is None:
            if len(self._sent) >= PARTITIONS_MAX:
                self._sent.clear()
            self._sent[partition] = _Sent(offset, now_s)
            return True
        if sent.is_due:
            sent.is_due = False
            if offset == sent.offset or now_s - sent.at_s < STAY_S:
                sent.again_s = now_s + PAUSES_S[min(sent.failed, len(PAUSES_S) - 1)]
                sent.failed += 1
            else:
                sent.failed = 0
        if now_s < sent.again_s:
            return False
        sent.offset, sent.at_s, sent.is_due = offset, now_s, True
        return True


def is_far(extents: Iterable[object], offset: int, bytes_min: int) -> bool:
    """True if a reader at `offset` has at least this much history ahead of it: bytes in files that follow one another.

    Args:
        extents: of the partition, by offset, from the one with `offset` on.
    """
    left = 0
    for count, extent in enumerate(extents):
        if not isinstance(extent, ParquetExtent):
            return False
        rows = extent.end_offset - extent.base_offset
        left += extent.data_bytes * (extent.end_offset - max(offset, extent.base_offset)) // max(rows, 1)
        if left >= bytes_min or count == LOOK_AHEAD_EXTENTS:
            return True
    return False


def choose(lanes: Sequence[Incarnation], rack: str, broker_id: int, partition: int) -> Incarnation:
    """The lane for a partition: one in the client's rack, else one beside its lead, else any. All readers of a partition
    from one rack get the same lane, so that its history is decoded once.

    Args:
        lanes: by id, at least one.
        broker_id: of the lead.
    """
    near = [lane for lane in lanes if rack and lane.rack == rack] or beside(lanes, broker_id) or lanes
    return near[partition % len(near)]
