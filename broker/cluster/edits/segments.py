"""Edits of segments. No I/O."""

from __future__ import annotations

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.runtime.errors import InvalidError, Reason


class OpenSegment(Edit, frozen=True, tag="open_segment"):
    """A broker leads these partitions from now on. Before, none of them has an open segment."""

    segment: SegmentInfo

    def apply(self, state: Manifest) -> None:
        segment = self.segment
        if segment.topic_id in state.topics_by_id:
            state.segments.put(segment)
            state.segments.prune_chain(segment.topic_id)
        state.segments.next_id = max(state.segments.next_id, segment.id + 1)
        state.saw_epoch(segment.leader_epoch)


class SealSegment(Edit, frozen=True, tag="seal_segment"):
    """The segment has ended. `ends`: the offset after its last record, per partition in order. `producers_key`: an object with
    the state of its producers at these offsets."""

    segment_id: int
    ends: list[int]
    producers_key: str | None = None

    def check(self, state: Manifest) -> None:
        segment = state.segments.open.get(self.segment_id)
        if segment is None:
            raise InvalidError(Reason.INVALID_REQUEST, f"segment is not open. segment=`{self.segment_id}`")
        assert len(self.ends) == len(segment.partitions), "one end for each partition"

    def touches(self) -> frozenset[object]:
        return frozenset({self.segment_id})

    def apply(self, state: Manifest) -> None:
        state.segments.seal(self.segment_id, self.ends, self.producers_key)
