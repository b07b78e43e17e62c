"""Idempotent producers of one partition: the sequences that arrived, so that a retry never duplicates (KIP-98, KIP-360).

Theory of operation, per producer id::

    epoch lower than known          -> INVALID_PRODUCER_EPOCH
    epoch higher than known         -> sequence must be 0; the window starts anew
    same batch as one in the window -> duplicate: answered with its first offset, nothing is written
    sequence == last + 1            -> accepted (2147483647 is followed by 0)
    unknown producer                -> sequence must be 0: its earlier batches are on their way to a replaced lead;
                                       any sequence if its state may have expired (KIP-360)
    anything else                   -> OUT_OF_ORDER_SEQUENCE

A client may have 5 requests in flight. The window has 10 batches: the 5 that may still be on their way to the store, and the 5
durable ones before them, which a checkpoint keeps.

Many clients write one batch and never return. So producers are kept as the bytes of their checkpoint, 43 for one batch, except
the few that wrote recently. Above `PRODUCERS_MAX`, the producers that have been silent the longest are dropped as if they had
expired. Open transactions (`transactions.py`) are kept apart, so they outlive their producers' state.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from headgate.broker.log.transactions import Transactions
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason

WINDOW_BATCHES = 10
SEQUENCE_COUNT = 1 << 31
NO_SEQUENCE = -1
"""In the window in place of a batch: a marker began the epoch, and the next sequence is 0."""
PRODUCERS_MAX = 20_000
"""Producers of one partition: up to 7 MB. A producer is dropped while one of its batches may still be repeated (two minutes with
clients' defaults) only if 150 new ones a second overtake it in its partition."""
ACTIVE_MAX = 256
"""Producers of one partition that are kept as objects, up to 2 KB each, for quick judgement."""
FORGOTTEN_AT_ONCE = PRODUCERS_MAX // 16
"""Finding the longest-silent producer takes a pass over all of them."""

_COUNT = struct.Struct("<Iq")
_HEAD = struct.Struct("<qhqB")
"""Id, epoch, time of its last batch in ms, batches in the window; the window follows, oldest batch first."""
_BATCH = struct.Struct("<iiqq")
"""First sequence, last sequence, base offset, append time in ms of a batch."""
_HEAD_BYTES = _HEAD.size
_BATCH_BYTES = _BATCH.size


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """What DescribeProducers shows of one producer. `transaction_start`: first offset of its open transaction, or -1."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    transaction_start: int = -1


class _Producer:
    __slots__ = ("epoch", "seen_ms", "window")

    def __init__(self, epoch: int, seen_ms: int) -> None:
        self.epoch = epoch
        self.seen_ms = seen_ms
        self.window: list[tuple[int, int, int, int]] = []
        """(first sequence, last sequence, base offset, append time ms) of up to 10 batches, oldest first."""

    def pack(self, producer_id: int) -> bytes:
        head = _HEAD.pack(producer_id, self.epoch, self.seen_ms, len(self.window))
        return head + b"".join([_BATCH.pack(*batch) for batch in self.window])

    @classmethod
    def unpack(cls, packed: bytes) -> _Producer:
        _, epoch, seen_ms, _ = _HEAD.unpack_from(packed)
        producer = cls(epoch, seen_ms)
        producer.window.extend(_BATCH.iter_unpack(packed[_HEAD_BYTES:]))
        return producer


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_active", "_end_offset", "_forgotten_id_max", "_packed", "in_transactions", "transactions")

    def __init__(self) -> None:
        self._active: dict[int, _Producer] = {}
        """Up to `ACTIVE_MAX` that wrote recently, and none of `_packed`."""
        self._packed: dict[int, bytes] = {}
        self._end_offset = 0
        """Every base offset in `_packed` is below it."""
        self._forgotten_id_max = -1
        """The greatest id that was ever dropped: ids grow, so a greater unknown id is new."""
        self.transactions = Transactions()
        self.in_transactions = self.transactions.open
        """The same dictionary, which the path of all batches then reads with one look-up."""

    @property
    def is_empty(self) -> bool:
        """True if no producer ever wrote."""
        return not self._active and not self._packed and self._forgotten_id_max < 0 and self.transactions.is_empty

    def admit(
        self, producer_id: int, epoch: int, sequence: int, count: int, base_offset: int, now_ms: int
    ) -> tuple[int, int] | None:
        """Judge a batch that is about to be appended, and record it if it is new.

        Returns:
            None: the batch is recorded, with the offset and the append time that it gets. (base offset, append time in ms): it is
            a duplicate of that batch.

        Raises:
            InvalidError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE or UNKNOWN_PRODUCER_ID.
        """
        producer = self._active.get(producer_id) or self._unpack(producer_id)
        if producer is None:
            if sequence != 0 and producer_id > self._forgotten_id_max:
                raise InvalidError(
                    Reason.UNKNOWN_PRODUCER_ID,
                    f"a producer starts at sequence 0. producer_id=`{producer_id}` sequence=`{sequence}`",
                )
            self.record(producer_id, epoch, sequence, count, base_offset, now_ms)
            return None
        if epoch != producer.epoch:
            if epoch < producer.epoch:
                raise InvalidError(
                    Reason.INVALID_PRODUCER_EPOCH,
                    f"producer epoch is old. producer_id=`{producer_id}` epoch=`{epoch}` current=`{producer.epoch}`",
                )
            if sequence != 0:
                raise InvalidError(
                    Reason.OUT_OF_ORDER_SEQUENCE,
                    f"a new producer epoch starts at sequence 0. producer_id=`{producer_id}` sequence=`{sequence}`",
                )
            self.record(producer_id, epoch, sequence, count, base_offset, now_ms)
            return None
        window = producer.window
        last = window[-1][1]
        last_of_batch = (sequence + count - 1) % SEQUENCE_COUNT
        if sequence == last + 1 or (last == SEQUENCE_COUNT - 1 and sequence == 0):
            producer.seen_ms = now_ms  # as `record` does, without a second look-up
            if len(window) == WINDOW_BATCHES:
                del window[0]
            window.append((sequence, last_of_batch, base_offset, now_ms))
            return None
        for first, end, first_offset, appended_ms in window:
            if first == sequence and end == last_of_batch:
                return first_offset, appended_ms
        raise InvalidError(
            Reason.OUT_OF_ORDER_SEQUENCE,
            f"sequence is out of order. producer_id=`{producer_id}` sequence=`{sequence}` expected=`{(last + 1) % SEQUENCE_COUNT}`",
        )

    def record(self, producer_id: int, epoch: int, sequence: int, count: int, base_offset: int, now_ms: int) -> None:
        """Record a batch without judging it: `admit` has judged it, or a recovery found it in the log."""
        producer = self._active.get(producer_id) or self._unpack(producer_id)
        if producer is None or producer.epoch != epoch:
            producer = self._activate(producer_id, _Producer(epoch, now_ms))
        producer.seen_ms = now_ms
        window = producer.window
        if len(window) == WINDOW_BATCHES:
            del window[0]
        window.append((sequence, (sequence + count - 1) % SEQUENCE_COUNT, base_offset, now_ms))

    def epoch_of(self, producer_id: int) -> int:
        """The epoch of a producer; -1 if it is unknown."""
        producer = self._active.get(producer_id) or self._unpack(producer_id)
        return -1 if producer is None else producer.epoch

    def is_duplicate(self, producer_id: int, epoch: int, sequence: int, count: int) -> bool:
        """True if `admit` would answer that the batch is a duplicate. Records nothing."""
        producer = self._active.get(producer_id) or self._unpack(producer_id)
        if producer is None or producer.epoch != epoch:
            return False
        last = (sequence + count - 1) % SEQUENCE_COUNT
        return any(batch[0] == sequence and batch[1] == last for batch in producer.window)

    def fence(self, producer_id: int, epoch: int, offset: int, now_ms: int) -> None:
        """A marker at `offset` has this epoch. A newer one begins it: batches of older epochs are refused from now on."""
        producer = self._active.get(producer_id) or self._unpack(producer_id)
        if producer is None:
            if producer_id <= self._forgotten_id_max:
                return  # its state was dropped, and its next batch may have any sequence
        elif epoch <= producer.epoch:
            producer.seen_ms = now_ms
            return
        producer = self._activate(producer_id, _Producer(epoch, now_ms))
        producer.window.append((NO_SEQUENCE, NO_SEQUENCE, offset, now_ms))

    def expire(self, before_ms: int) -> None:
        """Drop producers that have not written since `before_ms`."""
        self._pack()
        self._forget([producer_id for producer_id in self._packed if self._seen_ms(producer_id) < before_ms])

    def infos(self) -> Iterator[ProducerInfo]:
        self._pack()
        for packed in self._packed.values():
            producer_id, epoch, seen_ms, _ = _HEAD.unpack_from(packed)
            opened = self.transactions.open.get(producer_id)
            yield ProducerInfo(producer_id, epoch, _last(packed)[1], seen_ms, -1 if opened is None else opened[0])

    def encode(self, before_offset: int) -> bytes:
        """The state as bytes for a checkpoint: only batches below `before_offset`, the end of the durable ones.

        A batch that is not durable may vanish with this process, and must then not count as a duplicate when it is sent again.
        """
        self._pack()
        packed: Collection[bytes] = self._packed.values()
        if self._end_offset > before_offset:
            packed = [entry for entry in (_before(entry, before_offset) for entry in packed) if entry]
        transactions = self.transactions.encode(before_offset)
        return _COUNT.pack(len(packed), self._forgotten_id_max) + b"".join(packed) + transactions

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ProducerState:
        """The state from a checkpoint's bytes. Raises CorruptError."""
        state = cls()
        try:
            count, state._forgotten_id_max = _COUNT.unpack_from(data, 0)
            position = _COUNT.size
            for _ in range(count):
                producer_id, _, _, batches = _HEAD.unpack_from(data, position)
                end = position + _HEAD_BYTES + batches * _BATCH_BYTES
                packed = bytes(data[position:end])
                if not batches or len(packed) != end - position:
                    break
                state._packed[producer_id] = packed
                state._end_offset = max(state._end_offset, _last(packed)[2] + 1)
                position = end
            else:
                # Older releases wrote nothing behind the producers.
                state.transactions = Transactions.decode(memoryview(data)[position:])
                state.in_transactions = state.transactions.open
                return state
        except struct.error as error:
            raise CorruptError(Reason.CORRUPT_STORE, f"producer state is cut off. error=`{error}`") from error
        raise CorruptError(Reason.CORRUPT_STORE, f"producer state is not what was written. bytes=`{len(data)}`")

    def _activate(self, producer_id: int, producer: _Producer) -> _Producer:
        if len(self._active) == ACTIVE_MAX:
            self._pack()
        self._active[producer_id] = producer
        return producer

    def _unpack(self, producer_id: int) -> _Producer | None:
        packed = self._packed.pop(producer_id, None)
        return None if packed is None else self._activate(producer_id, _Producer.unpack(packed))

    def _pack(self) -> None:
        """Pack all; active producers are unpacked again."""
        for producer_id, producer in self._active.items():
            self._packed[producer_id] = producer.pack(producer_id)
            self._end_offset = max(self._end_offset, producer.window[-1][2] + 1)
        self._active.clear()
        if len(self._packed) > PRODUCERS_MAX:
            self._forget(sorted(self._packed, key=self._seen_ms)[:FORGOTTEN_AT_ONCE])

    def _seen_ms(self, producer_id: int) -> int:
        seen_ms: int = _HEAD.unpack_from(self._packed[producer_id])[2]
        return seen_ms

    def _forget(self, producer_ids: list[int]) -> None:
        for producer_id in producer_ids:
            del self._packed[producer_id]
        self._forgotten_id_max = max(self._forgotten_id_max, max(producer_ids, default=-1))


def _last(packed: bytes) -> tuple[int, int, int, int]:
    """The newest batch in a window."""
    batch: tuple[int, int, int, int] = _BATCH.unpack_from(packed, len(packed) - _BATCH_BYTES)
    return batch


def _before(packed: bytes, before_offset: int) -> bytes:
    """A producer with the batches of its window below an offset; empty without any."""
    if _last(packed)[2] < before_offset:
        return packed
    producer = _Producer.unpack(packed)
    producer.window = [batch for batch in producer.window if batch[2] < before_offset]
    producer_id: int = _HEAD.unpack_from(packed)[0]
    return producer.pack(producer_id) if producer.window else b""
