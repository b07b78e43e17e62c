"""The leader epochs of one partition's records. OffsetForLeaderEpoch is answered from them (KIP-101)."""

from __future__ import annotations

from bisect import bisect_right

from headgate.broker.cluster.gates import FRONT_EPOCH


class Epochs:
    """The first offset of each leader epoch that has readable records. `starts`: (epoch, first offset), ascending in both."""

    __slots__ = ("starts",)

    def __init__(self) -> None:
        self.starts: list[tuple[int, int]] = []

    def note(self, epoch: int, base_offset: int) -> None:
        """Note the base offset of an epoch's first batch. An epoch that is not above the newest known one changes nothing."""
        if not self.starts or self.starts[-1][0] < epoch:
            self.starts.append((epoch, base_offset))

    def note_front(self, base_offset: int) -> None:
        """Note the offset at which the first epoch begins, after offsets were added in front of all others."""
        if self.starts and self.starts[0][0] == FRONT_EPOCH:
            base_offset = min(base_offset, self.starts.pop(0)[1])
        self.starts.insert(0, (FRONT_EPOCH, base_offset))

    def drop_below(self, offset: int) -> None:
        """Forget the epochs whose records are all below `offset`."""
        while len(self.starts) > 1 and self.starts[1][1] <= offset:
            del self.starts[0]

    def at(self, offset: int) -> int | None:
        """The epoch in which the record at `offset` was written, or would be written next; None if it is unknown."""
        row = bisect_right(self.starts, offset, key=lambda start: start[1]) - 1
        return self.starts[row][0] if row >= 0 else None

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(greatest known epoch not above `epoch`, offset at which the next epoch begins, or `log_end`); KIP-101, KIP-279.

        If all records of an epoch are deleted, returns as Kafka does (`epoch`, first offset of the next known epoch). So a
        consumer that has read all of them continues at its position.
        """
        row = bisect_right(self.starts, (epoch, 1 << 63)) - 1
        end = self.starts[row + 1][1] if row + 1 < len(self.starts) else log_end
        return epoch if row < 0 else self.starts[row][0], end
