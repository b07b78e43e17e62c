"""Transactions of one partition: the open ones, and the aborted ones that readers of committed records must pass (KIP-98). No I/O.

Theory of operation. A transaction begins with the first transactional batch of a producer, and ends with a *marker*: a control
batch with the producer's id and the outcome. The **last stable offset** is the first offset of the oldest open transaction, or
the end of the log. Readers of committed records read up to it. An ended transaction counts as open until its marker is
durable: it may vanish with this process.

The coordinator decides whether a partition belongs to a transaction, so the first batch of each transaction needs its consent::

    ask(producer)      -> token              before the coordinator is asked
    consent(token)                           the coordinator agreed, and no marker came meanwhile
    begin(producer)                          the first batch: the transaction is open
    end(producer)                            the marker; it ends a consent, too

Without the token, a batch that was late would open a transaction behind its marker, and no other marker would ever end it.

A row of the index of aborted transactions has the producer's id, the first offset, the offset of the marker, and the last stable
offset behind the marker. Rows are in the order of the markers. All later rows begin at or behind a row's last stable offset, so a
look-up reads only the rows that it needs. Rows leave when their records are deleted.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from headgate.broker.log.batch import (
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    TRANSACTIONAL,
    pack_header,
    unpack_header,
)
from headgate.broker.log.crc import crc32c
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason, RetryError

OPEN_MAX = 20_000
"""Open transactions of one partition. Each takes about 100 bytes, and one row of a checkpoint."""
ABORTED_MAX = 200_000
"""Aborted transactions of one partition with readable records: 6.4 MB in memory and in each checkpoint. Above it no transaction
begins in the partition, until retention deletes old records."""
CONSENTS_MAX = 20_000
"""Consents of one partition that no batch has used yet; the oldest leave first, and the coordinator is asked again."""
TRIM_ROWS = 1_000
"""Deleted rows at the beginning of the index that stay until there are this many, because removing them moves all others."""

_COUNTS = struct.Struct("<II")
_OPEN = struct.Struct("<qqh")
_ROW_BYTES = 32
_MARKER = struct.Struct(">bbbbbhhbhib")
"""A record: length, attributes, two deltas; length of the key, its version and type; length of the value, its version and the
coordinator's epoch; headers."""
_COMMIT_TYPE = 1

Ranges: TypeAlias = dict[int, list[tuple[int, int]]]
"""By producer id: the offsets [first, marker) of its aborted transactions."""


class AbortedTransaction(NamedTuple):
    """A transaction whose records consumers must not see. `last_offset` is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class Transactions:
    """The transactions of one partition."""

    __slots__ = ("_aborted", "_asked", "_asks", "_consents", "_dropped", "_ending", "open")

    def __init__(self) -> None:
        self.open: dict[int, tuple[int, int]] = {}
        """By producer id: (first offset, epoch), in the order of the first offsets."""
        self._ending: list[tuple[int, int, int, int]] = []
        """(marker's offset, first offset, producer id, epoch) of transactions with a marker that may not be durable yet, in the
        order of the markers."""
        self._aborted = tuple(array("q") for _ in range(4))
        """Columns: producer id, first offset, marker's offset, last stable offset behind the marker."""
        self._dropped = 0
        """Rows at the beginning of the columns whose records are deleted."""
        self._asks = 0
        self._asked: dict[int, int] = {}
        """By producer id: the token of the first question without an answer."""
        self._consents: dict[int, int] = {}
        """By producer id: the epoch for which the coordinator agreed."""

    @property
    def is_empty(self) -> bool:
        """True if a checkpoint needs nothing of this."""
        return not (self.open or self._ending or self.aborted_count)

    @property
    def aborted_count(self) -> int:
        """Number of aborted transactions with readable records."""
        return len(self._aborted[0]) - self._dropped

    # -- consents of the coordinator

    def ask(self, producer_id: int) -> int:
        """Note that the coordinator is asked about a producer. Returns the token for `consent`."""
        if producer_id not in self._asked:
            if len(self._asked) >= CONSENTS_MAX:
                del self._asked[next(iter(self._asked))]
            self._asks += 1
            self._asked[producer_id] = self._asks
        return self._asked[producer_id]

    def consent(self, producer_id: int, epoch: int, token: int) -> bool:
        """The coordinator agreed that the partition belongs to the producer's transaction. False if a marker came meanwhile: ask
        again."""
        if self._asked.get(producer_id) != token:
            return self.is_allowed(producer_id, epoch)  # another request has asked, too
        del self._asked[producer_id]
        if len(self._consents) >= CONSENTS_MAX:
            del self._consents[next(iter(self._consents))]
        self._consents[producer_id] = epoch
        return True

    def is_allowed(self, producer_id: int, epoch: int) -> bool:
        """True if a transactional batch of the producer can be appended without asking the coordinator."""
        known = self.open.get(producer_id)
        return (known is not None and known[1] == epoch) or self._consents.get(producer_id) == epoch

    # -- the log

    def check(self, producer_id: int, epoch: int) -> None:
        """Check that a transactional batch may be appended. Changes nothing.

        Raises:
            RetryError: TRANSACTION_UNVERIFIED: ask the coordinator first. InvalidError: POLICY_VIOLATION: too many transactions.
        """
        if not self.is_allowed(producer_id, epoch):
            raise RetryError(
                Reason.TRANSACTION_UNVERIFIED,
                f"the partition is not part of the producer's transaction. producer_id=`{producer_id}` epoch=`{epoch}`",
            )
        if producer_id not in self.open and (len(self.open) >= OPEN_MAX or self.aborted_count >= ABORTED_MAX):
            raise InvalidError(
                Reason.POLICY_VIOLATION,
                "the partition has too many open or aborted transactions: wait for retention, or delete records. "
                f"open=`{len(self.open)}` max=`{OPEN_MAX}` aborted=`{self.aborted_count}` max=`{ABORTED_MAX}`",
            )

    def begin(self, producer_id: int, epoch: int, base_offset: int) -> None:
        """A transactional batch was assigned its offset, or found in the log."""
        self._consents.pop(producer_id, None)
        if producer_id not in self.open:
            self.open[producer_id] = base_offset, epoch

    def end(self, producer_id: int, marker_offset: int, *, commit: bool, end_offset: int) -> None:
        """A marker was assigned its offset, or found in the log.

        Args:
            end_offset: the offset behind the marker.
        """
        self._consents.pop(producer_id, None)
        self._asked.pop(producer_id, None)
        known = self.open.pop(producer_id, None)
        if known is None:
            return
        first_offset, epoch = known
        self._ending.append((marker_offset, first_offset, producer_id, epoch))
        if not commit:
            stable = next(iter(self.open.values()))[0] if self.open else end_offset
            for column, value in zip(self._aborted, (producer_id, first_offset, marker_offset, stable), strict=True):
                column.append(value)

    def stable_end(self, high_watermark: int) -> int:
        """The last stable offset."""
        ending = self._ending
        while ending and ending[0][0] < high_watermark:
            del ending[0]
        if self.open:
            high_watermark = min(high_watermark, next(iter(self.open.values()))[0])
        for _, first_offset, _, _ in ending:
            high_watermark = min(high_watermark, first_offset)
        return high_watermark

    def is_aborted_after(self, offset: int) -> bool:
        """True if a record at or behind `offset` may be aborted."""
        markers = self._aborted[2]
        return bool(markers) and markers[-1] >= offset

    def aborted(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [offset, end_offset), by their first offset."""
        ids, firsts, markers, stables = self._aborted
        found: list[AbortedTransaction] = []
        for row in range(bisect_left(markers, offset, self._dropped), len(markers)):
            if firsts[row] < end_offset:
                found.append(AbortedTransaction(ids[row], firsts[row], markers[row]))
            if stables[row] >= end_offset:
                break
        found.sort(key=_first_offset)
        return found

    def drop_below(self, log_start: int) -> None:
        """Forget aborted transactions whose records are deleted."""
        markers = self._aborted[2]
        while self._dropped < len(markers) and markers[self._dropped] < log_start:
            self._dropped += 1
        if self._dropped >= min(TRIM_ROWS, max(len(markers), 1)):
            for column in self._aborted:
                del column[: self._dropped]
            self._dropped = 0

    # -- checkpoints

    def encode(self, before_offset: int) -> bytes:
        """The state as bytes for a checkpoint, as of `before_offset`, the end of the durable batches. Empty without any."""
        opened = [(first, producer_id, epoch) for producer_id, (first, epoch) in self.open.items() if first < before_offset]
        opened += [
            (first, producer_id, epoch)
            for marker, first, producer_id, epoch in self._ending
            if marker >= before_offset and first < before_offset
        ]
        end = bisect_left(self._aborted[2], before_offset)
        rows = max(end - self._dropped, 0)
        if not opened and not rows:
            return b""
        parts = [_COUNTS.pack(len(opened), rows)]
        parts += [_OPEN.pack(first, producer_id, epoch) for first, producer_id, epoch in sorted(opened)]
        for column in self._aborted:
            piece = column[self._dropped : end]
            if sys.byteorder == "big":
                piece.byteswap()
            parts.append(piece.tobytes())
        return b"".join(parts)

    @classmethod
    def decode(cls, data: memoryview) -> Transactions:
        """The state from a checkpoint's bytes. Raises CorruptError."""
        state = cls()
        if not data:
            return state
        if len(data) < _COUNTS.size:
            raise _corrupt(len(data))
        opened, rows = _COUNTS.unpack_from(data)
        at = _COUNTS.size
        if len(data) != at + opened * _OPEN.size + rows * _ROW_BYTES:
            raise _corrupt(len(data))
        for first_offset, producer_id, epoch in _OPEN.iter_unpack(data[at : at + opened * _OPEN.size]):
            state.open[producer_id] = first_offset, epoch
        at += opened * _OPEN.size
        for column in state._aborted:
            column.frombytes(data[at : at + rows * 8])
            if sys.byteorder == "big":
                column.byteswap()
            at += rows * 8
        return state


def marker(producer_id: int, epoch: int, coordinator_epoch: int, *, commit: bool) -> bytearray:
    """The batch that ends a transaction: a control batch with one record. Offset and leader epoch are stamped later.

    It has no timestamp: look-ups by time must not find it.
    """
    record = _MARKER.pack(_MARKER.size - 1 << 1, 0, 0, 0, 4 << 1, 0, int(commit), 6 << 1, 0, coordinator_epoch, 0)
    batch = bytearray(HEADER_BYTES) + record
    pack_header(
        batch, 0,
        0, len(batch) - LENGTH_OVERHEAD_BYTES, -1, 2, 0, CONTROL | TRANSACTIONAL, 0, -1, -1, producer_id, epoch, -1, 1,
    )  # fmt: skip
    batch[17:21] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return batch


def ranges_of(aborted: Iterable[tuple[int, int, int]]) -> Ranges:
    """Aborted transactions, each (producer id, first offset, offset of its marker), for `is_aborted`."""
    ranges: Ranges = {}
    for producer_id, first, last in aborted:
        ranges.setdefault(producer_id, []).append((first, last))
    return ranges


def is_aborted(header: tuple[int, ...], ranges: Ranges) -> bool:
    """True if a batch is part of an aborted transaction. `header`: see `log.batch.parse`."""
    return header[5] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL and any(
        first <= header[0] < last for first, last in ranges.get(header[9], ())
    )


def without_aborted(
    batches: memoryview, ranges: Ranges, instead: Callable[[tuple[int, ...]], memoryview] | None = None
) -> Iterator[memoryview]:
    """The batches, back to back, that are not part of an aborted transaction: as few views as possible.

    Args:
        instead: what takes the place of an aborted batch with this header.
    """
    begin = position = 0
    while position < len(batches):
        header = unpack_header(batches, position)
        end = position + header[1] + LENGTH_OVERHEAD_BYTES
        if is_aborted(header, ranges):
            if begin < position:
                yield batches[begin:position]
            if instead is not None:
                yield instead(header)
            begin = end
        position = end
    if begin < len(batches):
        yield batches[begin:]


def is_commit(batch: memoryview) -> bool:
    """True if a marker commits. Raises CorruptError if the control batch is no marker."""
    # length, attributes, two deltas, length of the key: one byte each; then version and type, two bytes each
    at = HEADER_BYTES + 5
    if len(batch) < at + 4 or batch[at - 1] != 4 << 1 or int.from_bytes(batch[at : at + 2], "big") != 0:
        raise CorruptError(Reason.CORRUPT_STORE, f"control batch is no end of a transaction. bytes=`{len(batch)}`")
    return int.from_bytes(batch[at + 2 : at + 4], "big") == _COMMIT_TYPE


def _first_offset(aborted_transaction: AbortedTransaction) -> int:
    return aborted_transaction.first_offset


def _corrupt(size: int) -> CorruptError:
    return CorruptError(Reason.CORRUPT_STORE, f"state of transactions is not what was written. bytes=`{size}`")
