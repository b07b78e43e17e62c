"""What readers of committed records get: no batch behind the last stable offset, and none of an aborted transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.broker.log.batch import LENGTH_OVERHEAD_BYTES, marker_batch, unpack_header
from headgate.broker.log.transactions import ranges_of, without_aborted

if TYPE_CHECKING:
    from headgate.broker.engine.partition.log import PartitionLog


def cut(slices: list[memoryview], end_offset: int) -> list[memoryview]:
    """The batches that end at or before `end_offset`."""
    kept: list[memoryview] = []
    for part in slices:
        position, size = 0, len(part)
        while position < size:
            header = unpack_header(part, position)
            if header[0] >= end_offset:
                return [*kept, part[:position]] if position else kept
            position += header[1] + LENGTH_OVERHEAD_BYTES
        kept.append(part)
    return kept


def end_of(slices: list[memoryview]) -> int:
    """The offset behind the last batch; -1 without one."""
    if not slices:
        return -1
    part, position, end_offset = slices[-1], 0, -1
    while position < len(part):
        header = unpack_header(part, position)
        end_offset = header[0] + header[6] + 1
        position += header[1] + LENGTH_OVERHEAD_BYTES
    return end_offset


def stable(log: PartitionLog, slices: list[memoryview]) -> list[memoryview]:
    """The batches of `slices` below the last stable offset."""
    end_offset = log.stable_end
    return cut(slices, end_offset) if slices and end_offset < log.high_watermark else slices


def aborted_in(log: PartitionLog, offset: int, slices: list[memoryview]) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions with records in the batches from `offset` on."""
    if not slices or not log.producers_state.transactions.is_aborted_after(offset):
        return []
    return [(span.producer_id, span.first_offset) for span in log.producers_state.transactions.aborted(offset, end_of(slices))]


def visible(log: PartitionLog, offset: int, slices: list[memoryview]) -> list[memoryview]:
    """The batches that readers of committed records may see, for readers that know no aborted transactions.

    A batch of an aborted transaction is replaced by a marker at its last offset, so that the reader steps over it.
    """
    slices = stable(log, slices)
    if not slices or not log.producers_state.transactions.is_aborted_after(offset):
        return slices
    ranges = ranges_of(log.producers_state.transactions.aborted(offset, end_of(slices)))
    return [view for part in slices for view in without_aborted(part, ranges, _instead)] if ranges else slices


def _instead(header: tuple[int, ...]) -> memoryview:
    return marker_batch(header[0] + header[6], header[2])
