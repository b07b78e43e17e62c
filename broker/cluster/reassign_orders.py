"""The orders that reassignments need; see `reassignment.py`. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Topic
from headgate.broker.cluster.segments import BrokerLoad, Order, OrderKind, SegmentInfo, Successor

MOVED_TOGETHER_MAX = 20
"""Segments that are moved at one time for reassignments. Each is a commit and a pause of its writers; the others wait."""


def placed(manifest: Manifest) -> set[int]:
    """The segments with partitions that are where a client wants them."""
    return {
        lead.id
        for topic_id in manifest.placed
        for number, replica in manifest.topics_by_id[topic_id].replicas.items()
        if (lead := manifest.segments.leads[topic_id][number]) is not None and manifest.lead_id(topic_id, number) == replica[0]
    }


def orders(manifest: Manifest, brokers: Iterable[BrokerLoad], busy: Collection[int]) -> list[Order]:
    """The moves that reassignments need now. A target that is not alive, or is drained, is waited for.

    Args:
        busy: segments that are being sealed.
    """
    able = {broker.broker_id: broker.incarnation_id for broker in brokers if not broker.draining}
    found: list[Order] = []
    for topic_id in manifest.reassigning:
        topic = manifest.topics_by_id[topic_id]
        wanted = {number: able[target[0]] for number, target in topic.targets.items() if target[0] in able}
        leads = manifest.segments.leads[topic_id]
        segments = {lead.id: lead for number in wanted if (lead := leads[number]) is not None and lead.id not in busy}
        room = MOVED_TOGETHER_MAX - len(busy) - len(found)
        for segment in islice(segments.values(), max(room, 0)):
            found += _moved(topic, segment, wanted)
    return found


def _moved(topic: Topic, segment: SegmentInfo, wanted: Mapping[int, str]) -> list[Order]:
    """The order that gives the partitions of a segment to their targets; [] if they are there."""
    runs: list[Successor] = []
    for number in segment.partitions:
        lead = wanted.get(number, segment.incarnation_id)
        if runs and runs[-1].incarnation_id == lead:
            runs[-1] = Successor(
                topic_id=topic.id, first_partition=runs[-1].first_partition, end_partition=number + 1, incarnation_id=lead
            )
        else:
            runs.append(Successor(topic_id=topic.id, first_partition=number, end_partition=number + 1, incarnation_id=lead))
    if len(runs) == 1 and runs[0].incarnation_id == segment.incarnation_id:
        return []
    moved = sum(len(range(run.first_partition, run.end_partition)) for run in runs if run.incarnation_id != segment.incarnation_id)
    why = f"a client reassigned {moved} of the partitions {segment.first_partition} to {segment.end_partition - 1} of {topic.name}"
    return [Order(kind=OrderKind.MOVE, seal=(segment.id,), open=tuple(runs), why=why)]
