"""What one reader may see of a partition now: this module alone joins windows, deleted ranges, files and the last stable offset.

A reader that continues meets, in the order of offsets: records in batches, records in files, ranges that it passes (deleted ones,
and windows without history), and windows at which it waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.objects import Extent
from headgate.broker.engine.partition.windows import NOBODY, ReaderWindow
from headgate.broker.log.batch import marker_batch

if TYPE_CHECKING:
    from headgate.broker.engine.partition.log import PartitionLog

InFile: TypeAlias = tuple[ParquetExtent, ParquetExtent | None]
"""A place in a Parquet file: its extent, and the extent that follows if that is in a file, too."""
Reach: TypeAlias = tuple[int, int, InFile | None]
"""The offsets that one read covers: (first offset, end offset, their file). None: they are in batches, in memory or in chunks."""


def see(
    log: PartitionLog, offset: int, max_bytes: int, reader: int = NOBODY, *, committed: bool = False
) -> tuple[list[memoryview] | None, Reach]:
    """Whole batches in memory for a reader at `offset`, which is at least the log's start.

    Args:
        committed: show nothing behind the last stable offset.

    Returns:
        (batches, what the read covers). No batches: there is nothing to read now. None for batches: the records are not in memory.
    """
    end = log.high_watermark
    if offset >= log.windows.end_of_all:
        if committed:
            end = min(end, log.stable_end)
        return log.tail.read(offset, end, max_bytes), (offset, end, None)
    reached = begin, end, in_file = reach(log, offset, reader)
    if in_file is not None:
        return None, reached
    if committed:
        end = min(end, log.stable_end)
    slices = log.tail.read(begin, end, max_bytes)
    return (_step_over(log, offset, reader) if slices == [] else slices), (begin, end, None)


def reach(log: PartitionLog, offset: int, reader: int = NOBODY, *, skip: bool = False, at_rest: bool = False) -> Reach:
    """Plan a read from `offset`, which is at least the log's start.

    The returned range is completely in one file, or completely in batches. If there is nothing to read now, it is (begin, begin,
    None).

    Args:
        skip: pass windows that have no history yet. A look-up that must not wait does this.
        at_rest: pass only windows that the reader passes also without a record behind them.
    """
    asked = offset
    windows = log.windows
    while offset < windows.end_of_all:
        end_offset = log.high_watermark
        for low, high in windows.cuts:
            if low <= offset < high:
                offset = high
                if not skip:
                    # The last batch before a cut may reach into it. A caller that asks for less than `high` would get deleted
                    # records.
                    return offset, offset, None
            elif offset < low < end_offset:
                end_offset = low
        window = windows.next(offset)
        if window is None:
            return _alike(log, offset, max(end_offset, offset))
        if offset < window.base_offset:
            if window.past and offset < window.past.get(reader, offset):
                del window.past[reader]  # the reader went back: it wants to read all records
            if log.high_watermark < window.base_offset:
                return _alike(log, offset, max(end_offset, offset))
            if _has_records(log, offset, window.base_offset):
                return _alike(log, offset, min(end_offset, window.base_offset))
            offset = window.base_offset  # a dead lead had reserved these offsets for a gate that was never opened
        if reader in window.past and _passes(log, window, reader, asked, at_rest):
            pass
        elif window.waits:
            if not skip:
                return offset, offset, None
        elif window.state == "filled":
            row = log.sealed.find(offset)
            if row < len(log.sealed) and log.sealed.extents[row].base_offset < window.end_offset:
                in_file = log.sealed.in_file(row)
                assert in_file is not None, "a filled window has files only"
                return max(offset, in_file[0].base_offset), window.end_offset, in_file
        offset = window.end_offset
    return offset, max(log.high_watermark, offset), None


def is_waiting(log: PartitionLog, offset: int, reader: int) -> bool:
    """True if a reader waits for history at a window. Records written after the window do not end its wait."""
    if offset >= log.windows.end_of_all:
        return False
    begin, end, _ = reach(log, offset, reader)
    return begin == end and begin < log.high_watermark


def seek(log: PartitionLog, reader: int, offset: int) -> None:
    """Called when a reader looked for a time, whose first record is at `offset`: it may want the records of a window."""
    window = log.windows.next(offset) if offset < log.windows.end_of_all else None
    if window is not None and window.base_offset <= offset:
        window.past.pop(reader, None)


def _step_over(log: PartitionLog, offset: int, reader: int) -> list[memoryview]:
    """A marker batch for a reader at `offset` if the next offsets have no record for it and never will. `reach` finds nothing to
    read there.

    A reader continues after the last record that it received. Without records it would stay at `offset`, below the high watermark.
    So the reader gets a batch that shows no record, at the last of these offsets.

    Returns:
        One batch. [] if the reader has records to read, or records to wait for.
    """
    begin, end, _ = reach(log, offset, reader, at_rest=True)
    begin, end = min(begin, log.high_watermark), min(end, log.high_watermark)
    if begin == offset or begin < end:
        return []
    epoch = log.epochs.at(begin - 1)
    return [marker_batch(begin - 1, log.leader_epoch if epoch is None else epoch)]


def _alike(log: PartitionLog, offset: int, end_offset: int) -> Reach:
    """The first part of a range outside of windows and cuts that is completely in one file, or completely in batches."""
    sealed = log.sealed
    if offset >= min(log.windows.files_end, end_offset):
        return offset, end_offset, None
    row = sealed.find(offset)
    if row == len(sealed):
        return offset, end_offset, None
    extent = sealed.extents[row]
    if isinstance(extent, Extent):
        return offset, min(end_offset, extent.end_offset), None
    begin = max(offset, extent.base_offset)
    if begin >= end_offset:
        return offset, end_offset, None
    return begin, min(end_offset, extent.end_offset), sealed.in_file(row)


def _passes(log: PartitionLog, window: ReaderWindow, reader: int, asked: int, at_rest: bool) -> bool:
    """True if a reader of `window.past` that asks for `asked` passes the window."""
    behind = window.state == "filled" and log.readers.was_at(reader, window.end_offset)
    if asked > window.base_offset or behind:
        del window.past[reader]  # it was behind the window, or sought its records
        return False
    return window.live or (window.waits and not at_rest)


def _has_records(log: PartitionLog, offset: int, end_offset: int) -> bool:
    """True if there are records between `offset` and the next window, which begins at `end_offset`."""
    first_open = log.open.first_offset
    if first_open is not None and first_open < end_offset:
        return True
    row = log.sealed.find(offset)
    return row < len(log.sealed) and log.sealed.extents[row].base_offset < end_offset
