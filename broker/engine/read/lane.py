"""The partitions of the whole cluster as a lane reads them: from the manifest alone, and only where their records are in files.

A lane leads nothing, but it follows the manifest as every broker does. `LaneLogs` makes a log of each partition, whichever broker
leads it, so that gates, log starts, skipped records and folds have here the effect that they have at the lead. What the manifest
does not list yet is not here: the log of a lane ends at the last listed record, which is never ahead of the lead's end.

A lane reads only files. They hold no record of an open or aborted transaction, and never change; so a lane needs neither the state
of producers nor a proof that no other broker took over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import AddChunks
from headgate.broker.cluster.objects import Chunk
from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.extents import ChunkRef, find_extents, is_live
from headgate.broker.engine.partition.leads import Leads
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.producers import Producers
from headgate.broker.engine.read.view import Reach, reach
from headgate.broker.log.tail import TailMemory

STALE_S = 5.0
"""Seconds without a word of the cluster's leader after which a lane sends its readers back. Another leader follows a lost one in
about three seconds, and replays need not notice that. A lane that hears its leader has each change within a round trip."""


class LaneLogs(Leads):
    """The logs of all partitions, for a lane's fetches.

    Args:
        silent_s: returns the seconds since this process last heard the cluster's leader.
    """

    def __init__(self, lifecycle: Lifecycle, tail_memory: TailMemory, silent_s: Callable[[], float]) -> None:
        super().__init__(lifecycle, tail_memory, copies_wanted=lambda: None, windows_opened=lambda _: None)
        self._silent_s = silent_s
        self.ends: dict[tuple[str, int], tuple[int, int]] = {}
        """(high watermark, last stable offset) by topic and partition, as the lead told them last. Only clients are shown them."""
        self.asked: dict[str, None] = {}
        """Topics with a read since their ends were last asked for."""
        self.is_leaving = False
        """True while the lane ends: it sends all its readers back."""
        self.fetches = 0
        """Reads of partitions so far."""

    def place(self, log: PartitionLog, offset: int) -> Reach | None:
        """The place in a file at which a read from `offset` begins. None: the reader must go back to the partition's lead."""
        if self.is_leaving or offset < log.log_start or self._silent_s() > STALE_S:
            return None
        reached = begin, _, in_file = reach(log, offset)
        if in_file is None:
            return None
        if offset >= log.high_watermark:
            # Records before this window are not listed yet. The window itself is known whole.
            window = log.windows.next(offset)
            if window is None or window.base_offset > offset or begin >= window.end_offset:
                return None
        self.fetches += 1
        self.asked[log.topic.name] = None
        return reached

    def shown_ends(self, log: PartitionLog) -> tuple[int, int]:
        """(high watermark, last stable offset) for an answer; -1 if they are not known."""
        return self.ends.get((log.topic.name, log.number), (-1, -1))

    # -- following

    def applied(self, edits: Sequence[Edit]) -> None:
        for edit in edits:
            if isinstance(edit, AddChunks):
                self._follow(edit.incarnation_id, edit.chunks)
        super().applied(edits)

    def sync(self) -> None:
        # The chunks that were listed meanwhile are not in the edits, so all logs are made anew.
        for segment_id in list(self.openings.mine):
            self._close(segment_id)
        super().sync()

    def _follow(self, incarnation_id: str, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            ref = ChunkRef(incarnation_id, chunk)
            for extent in chunk.extents:
                slots = self.by_id.get(extent.topic_id, [])
                log = slots[extent.partition] if extent.partition < len(slots) else None
                # A commit that is repeated lists chunks again.
                if log is not None and extent.base_offset >= log.high_watermark:
                    log.sealed.add(extent, ref)
                    log.step(extent.end_offset)

    def _is_mine(self, segment: SegmentInfo) -> bool:
        return True

    def _open(self, segments: list[SegmentInfo]) -> None:
        super()._open([structs.replace(segment, origins=[]) for segment in segments])

    def _install(self, parts: list[tuple[SegmentInfo, range]], producers: Producers) -> None:
        manifest = self._lifecycle.manifest
        places = [(segment, number) for segment, numbers in parts for number in numbers]
        extents = find_extents(manifest, [(segment.topic_id, number) for segment, number in places])
        for segment, number in places:
            topic, rows = manifest.topics_by_id[segment.topic_id], extents[segment.topic_id, number]
            listed_end = known_end = segment.base_offsets[number - segment.first_partition]
            for extent, _ in rows:
                known_end = max(known_end, extent.end_offset)
                # History may be listed earlier than the live records in front of it.
                if is_live(extent) or extent.base_offset <= listed_end:
                    listed_end = max(listed_end, extent.end_offset)
            config = self.parse_config(topic)
            log = PartitionLog(topic, number, config, segment.id, segment.leader_epoch, self._tail_memory, known_end)
            key = topic.id, number
            log.restore(rows, manifest.gates.windows(*key), self._gated.cuts(log), manifest.readable.log_start(*key))
            log.step(listed_end)
            self.by_id[topic.id][number] = log
        self._note_change()
