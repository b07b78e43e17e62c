"""Compaction (`cleanup.policy=compact`): which part of a partition a pass covers. No I/O.

A pass reads the keys of the *dirty* records, those that came since the last pass, and then folds the whole partition up to there, a
run of neighbours at a time: of each key in the dirty records, only the newest record stays. Each run is an edit of its own
(`FoldToFiles`). A record leaves only after a newer one of its key is in the log, so readers in the middle of a pass see nothing
wrong, and a pass that ends early has done a part of the work. When all runs are done, a *mark* notes the end of the dirty records:
they are clean now.

A marker of a deleted key, a record without a value, stays until it has been clean for `delete.retention.ms`. By then no older
record of its key is left. Marks with their times tell which offsets have been clean for so long.

History is not compacted: its records stay as they were committed, also below newer ones of the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple, TypeAlias

from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.partition.extents import is_live
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep.file_fold import Part, neighbours
from headgate.broker.engine.upkeep.merging import is_near, span_ms_max

DIRTY_EXTENTS_MAX = 4000
"""Dirty extents of one pass. Each job of it names them, because its process may have to read the keys again."""
MARKS_MAX = 16
"""Marks that are less than `delete.retention.ms` old. Markers of deleted keys stay at most a sixteenth of that time too long."""

Marks: TypeAlias = list[tuple[int, int]]
"""(end offset, wall-clock time in ms) of passes, by offset: below it, records were clean at that time. The time is 0 once the
markers of deleted keys below it have left."""


class Ages(NamedTuple):
    """Append times in ms that the topic's settings set apart; None: no record is old enough, or the clock is in doubt."""

    young_ms: int | None
    """Records from here on stay uncompacted (`min.compaction.lag.ms`)."""
    late_ms: int | None
    """Extents whose newest record is older must be compacted: half of `max.compaction.lag.ms`. Their oldest record may have had the
    other half before they were listed (`FileFolder`)."""
    old_ms: int | None
    """Records before it become Parquet files (`offline.after.ms`)."""
    cleaned_ms: int | None
    """The time of a pass, not of a record: what was clean then has been clean for `delete.retention.ms`."""


class Pass(NamedTuple):
    """What one pass does: fold the records below `end`, with the keys of those in [dirty, end), and remove the markers of deleted
    keys below `markers_end`."""

    dirty: int
    end: int
    markers_end: int


def plan(log: PartitionLog, marks: Marks, stay: Set[int], ages: Ages) -> Pass | None:
    """The pass that is due now; None if none is.

    Args:
        stay: base offsets of the extents that cannot be folded.
    """
    config = log.config
    dirty = max(marks[-1][0] if marks else 0, log.log_start)
    clean_bytes, size_bytes, first_ms, end, count = 0, 0, None, dirty, 0
    kept = False
    for extent, ref in zip(log.sealed.extents, log.sealed.refs, strict=True):
        if not is_live(extent) or extent.base_offset in stay:
            kept = True
            continue
        if extent.end_offset <= dirty:
            clean_bytes += extent.data_bytes
            continue
        young = config.min_compaction_lag_ms > 0 and (ages.young_ms is None or ref.appended_ms >= ages.young_ms)
        if young or extent.end_offset > log.stable_end or count == DIRTY_EXTENTS_MAX:
            break
        first_ms = ref.appended_ms if first_ms is None else first_ms
        size_bytes, end, count = size_bytes + extent.data_bytes, extent.end_offset, count + 1
    # An older record of the same key may be among those that stay: then its marker must hide it for ever.
    markers_end = 0 if kept else _markers_end(marks, ages.cleaned_ms)
    if first_ms is None:
        return Pass(dirty, dirty, markers_end) if markers_end else None
    late = ages.late_ms is not None and first_ms < ages.late_ms
    old = ages.old_ms is not None and first_ms < ages.old_ms
    large = 0 <= config.offline_after_bytes < size_bytes
    is_due = (old or large) and size_bytes >= config.min_dirty_ratio * (clean_bytes + size_bytes)
    return Pass(dirty, end, markers_end) if late or is_due or markers_end else None


def _markers_end(marks: Marks, cleaned_ms: int | None) -> int:
    return max((end for end, at_ms in marks if at_ms and cleaned_ms is not None and at_ms < cleaned_ms), default=0)


def after(marks: Marks, done: Pass, end: int, now_ms: int, config: TopicConfig) -> Marks:
    """The marks after a pass, of which the records below `end` are clean."""
    left = [(offset, 0 if offset <= done.markers_end else at_ms) for offset, at_ms in marks]
    # Of the marks without a time, only the last one counts; it may be where the dirty records begin.
    left = [*[mark for mark in left if not mark[1]][-1:], *[mark for mark in left if mark[1]]]
    if end <= (left[-1][0] if left else 0):
        return left
    if len(left) > 1 and left[-1][1] and left[-1][1] - left[-2][1] < config.delete_retention_ms // MARKS_MAX:
        left.pop()  # a neighbour is near: the new mark has its records, too, a little later
    return [*left, (end, now_ms)]


def next_run(log: PartitionLog, offset: int, end: int, stay: Set[int]) -> list[Part]:
    """The first neighbours from an offset on that one fold can take; [] if there are none below `end`."""
    longest_ms = span_ms_max(log.config)
    parts = (part if part is None or part[0].base_offset >= offset else None for part in _parts(log, offset, end, stay))
    return next(neighbours(parts, lambda first, part: is_near(first, part, longest_ms)), [])


def dirty_parts(log: PartitionLog, covers: Pass, stay: Set[int]) -> list[Part]:
    """The extents with the dirty records of a pass."""
    return [part for part in _parts(log, covers.dirty, covers.end, stay) if part is not None]


def _parts(log: PartitionLog, offset: int, end: int, stay: Set[int]) -> Iterator[Part | None]:
    """The extents with offsets in [offset, end), by offset. None: one that is not compacted."""
    for row in range(log.sealed.find(offset), len(log.sealed)):
        extent = log.sealed.extents[row]
        if extent.base_offset >= end:
            return
        yield (extent, log.sealed.refs[row]) if is_live(extent) and extent.base_offset not in stay else None
