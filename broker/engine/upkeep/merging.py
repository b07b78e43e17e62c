"""Which Parquet files of a partition are folded again: files of gates, small ones, and files with deleted records. No I/O.

*Files of gates* have no offsets in them, so no table can show them. They become folded files at the age at which live records do
(`offline.after.ms`); if that setting is -1, when they are larger than `offline.after.bytes`. Files outside the cluster's store stay
as they are: a copy would take room that their owner did not ask for. So do all files of gates with `history.fold=never`. Adopted
files have rows of many partitions, and are folded elsewhere (`adopted_folds.py`).

*Small files* are merged as a log-structured merge tree compacts its runs: `MERGE_FILES` neighbours of one size class become one
file of the next class. So a byte is written only a few times in its life, and a partition has a few small files at any time.

*A file whose first records are deleted* is written again without them, once the start of the log rests. Until then the topic's
table leaves it out. A log start that moves all the time, as Kafka Streams moves it, therefore costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from headgate.broker.cluster.gates import ParquetExtent, is_url
from headgate.broker.cluster.readable import first_readable
from headgate.broker.cluster.topic_config import TopicConfig
from headgate.broker.engine.partition.extents import AnyExtent
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.upkeep.chunk_fold import SPAN_MS_MAX
from headgate.broker.engine.upkeep.file_fold import Part, neighbours, oldest_ms

CLASSES = (64 << 10, 512 << 10, 4 << 20, 32 << 20)
"""Sizes of files, in bytes, below which they belong to a class. Larger files are not merged: half of what a fold writes as one."""
MERGE_FILES = 8
"""Neighbours of one class that are merged: as many as make a file of the next class."""
SPAN_SHARE = 16
"""A merge joins records whose ages differ by this part of `retention.ms` at most (6 %), because a file is removed as a whole."""
SPAN_MS_ANY = 1 << 62


def span_ms_max(config: TopicConfig) -> int:
    """The longest time in ms between the appends of records that one file may have."""
    return max(SPAN_MS_MAX, config.retention_ms // SPAN_SHARE) if config.delete and config.retention_ms >= 0 else SPAN_MS_ANY


def choose_files(log: PartitionLog, stay: Set[int], *, at_rest: bool, old_ms: int | None) -> list[Part]:
    """The next neighbours to fold, as one job; [] if there are none.

    Args:
        stay: base offsets of the extents that cannot be folded.
        at_rest: the start of the log has not moved lately.
        old_ms: append time in ms before which records are old; None: none is.
    """
    if at_rest and (part := _partly_deleted(log, stay)) is not None:
        return [part]
    runs = list(_runs(log, stay))
    given = [run for run in runs if not _is_folded(run[0][0])]
    size_bytes = sum(file.data_bytes for run in given for file, _ in run)
    if log.config.offline_after_ms < 0 and size_bytes > log.config.offline_after_bytes:
        return given[0]
    for run in given:
        if old := [part for part in run if old_ms is not None and part[1].appended_ms < old_ms]:
            return old
    for limit in range(len(CLASSES)):
        for run in runs:
            if found := _small(run, limit):
                return found
    return []


def waits_for_age(log: PartitionLog) -> bool:
    """True if there are files of gates that time alone will make old."""
    files = (extent for extent in log.sealed.extents if isinstance(extent, ParquetExtent))
    return any(not file.folded and not _stays(file, log.config) for file in files)


def _partly_deleted(log: PartitionLog, stay: Set[int]) -> Part | None:
    """A folded file whose first records are deleted, and not its last ones."""
    for offset in (log.log_start, *(high for _, high in log.windows.cuts)):
        row = log.sealed.find(offset)
        if row < len(log.sealed):
            extent = log.sealed.extents[row]
            begin = first_readable(extent.base_offset, log.log_start, log.windows.cuts)
            if _is_folded(extent) and extent.base_offset not in stay and extent.base_offset < begin < extent.end_offset:
                return extent, log.sealed.refs[row]
    return None


def _stays(file: ParquetExtent, config: TopicConfig) -> bool:
    """True if a file's rows are not copied here."""
    return file.adopted or is_url(file.path) or not (file.folded or config.folds_history)


def _is_folded(extent: AnyExtent) -> bool:
    return isinstance(extent, ParquetExtent) and extent.folded


def _runs(log: PartitionLog, stay: Set[int]) -> Iterator[list[Part]]:
    """Neighbouring files of one kind that one fold can take, by offset."""
    longest_ms = span_ms_max(log.config)

    def fits(first: Part, part: Part) -> bool:
        one, other = first[0], part[0]
        assert isinstance(one, ParquetExtent) and isinstance(other, ParquetExtent)
        return (one.folded, one.history) == (other.folded, other.history) and is_near(first, part, longest_ms)

    files = (
        (extent, ref)
        if isinstance(extent, ParquetExtent) and not _stays(extent, log.config) and extent.base_offset not in stay
        else None
        for extent, ref in zip(log.sealed.extents, log.sealed.refs, strict=True)
    )
    return neighbours(files, fits)


def is_near(first: Part, part: Part, longest_ms: int) -> bool:
    """True if the newest record of an extent was appended at most that long after the oldest one of a run's first extent."""
    return part[1].appended_ms - oldest_ms(first) <= longest_ms


def _small(run: list[Part], limit: int) -> list[Part]:
    """The first stretch of a run with no file above a class, and at least `MERGE_FILES` files of that class."""
    stretch: list[Part] = []
    count = 0
    for part in [*run, None]:
        of_class = (
            None if part is None else next((at for at, size in enumerate(CLASSES) if part[0].data_bytes < size), len(CLASSES))
        )
        if part is None or of_class is None or of_class > limit:
            if count >= MERGE_FILES:
                return stretch
            stretch, count = [], 0
            continue
        stretch.append(part)
        count += of_class == limit
    return []
