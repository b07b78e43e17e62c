"""Idempotent producers of one partition: which sequences came, so that a retry never duplicates (KIP-98, KIP-360).

Theory of operation, per producer id::

    epoch lower than known          -> INVALID_PRODUCER_EPOCH
    epoch higher than known         -> sequence must be 0; the window starts anew
    same batch as one in the window -> duplicate: answered with its first offset, nothing is written
    sequence == last + 1            -> accepted (2147483647 is followed by 0)
    producer not known              -> sequence must be 0: what it sent before is on its way to a lead that was replaced;
                                       any sequence of one that may have expired (KIP-360)
    anything else                   -> OUT_OF_ORDER_SEQUENCE

A client may have 5 requests in flight. The window has 10 batches: the 5 that may still be on their way to the store, and the 5
durable ones before them, which are what a checkpoint keeps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from broker.runtime.errors import CorruptError, InvalidError, Reason

WINDOW_BATCHES = 10
SEQUENCE_COUNT = 1 << 31

_COUNT = struct.Struct("<Iq")
_PRODUCER = struct.Struct("<qhqB")
_ENTRY = struct.Struct("<iiqq")


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """What DescribeProducers shows of one producer."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int


class _Producer:
    __slots__ = ("epoch", "seen_ms", "window")

    def __init__(self, epoch: int, seen_ms: int) -> None:
        self.epoch = epoch
        self.seen_ms = seen_ms
        self.window: list[tuple[int, int, int, int]] = []
        """(first sequence, last sequence, base offset, append time ms) of up to 10 batches, oldest first."""


class ProducerState:
    """The producers of one partition."""

    __slots__ = ("_expired_id_max", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._expired_id_max = -1
        """The greatest id that was ever forgotten: ids grow, so one above it never was known if it is not."""

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: no producer ever wrote."""
        return not self._producers and self._expired_id_max < 0

    def check(self, producer_id: int, epoch: int, sequence: int, count: int) -> tuple[int, int] | None:
        """Judge a batch that is about to be appended.

        Returns:
            None: append it, then call `record`. (base offset, append time ms): it is a duplicate of that batch.

        Raises:
            InvalidError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE or UNKNOWN_PRODUCER_ID.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            if sequence != 0 and producer_id > self._expired_id_max:
                raise InvalidError(
                    Reason.UNKNOWN_PRODUCER_ID,
                    f"a producer starts at sequence 0. producer_id=`{producer_id}` sequence=`{sequence}`",
                )
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
            return None
        window = producer.window
        last = window[-1][1]
        if sequence == last + 1 or (last == SEQUENCE_COUNT - 1 and sequence == 0):
            return None
        last_of_batch = (sequence + count - 1) % SEQUENCE_COUNT
        for first, end, base_offset, appended_ms in window:
            if first == sequence and end == last_of_batch:
                return base_offset, appended_ms
        raise InvalidError(
            Reason.OUT_OF_ORDER_SEQUENCE,
            f"sequence is out of order. producer_id=`{producer_id}` sequence=`{sequence}` expected=`{(last + 1) % SEQUENCE_COUNT}`",
        )

    def record(self, producer_id: int, epoch: int, sequence: int, count: int, base_offset: int, now_ms: int) -> None:
        """Remember a batch that was appended."""
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            producer = self._producers[producer_id] = _Producer(epoch, now_ms)
        producer.seen_ms = now_ms
        window = producer.window
        if len(window) == WINDOW_BATCHES:
            del window[0]
        window.append((sequence, (sequence + count - 1) % SEQUENCE_COUNT, base_offset, now_ms))

    def expire(self, before_ms: int) -> None:
        """Forget producers that wrote nothing since `before_ms`."""
        for producer_id in [key for key, producer in self._producers.items() if producer.seen_ms < before_ms]:
            del self._producers[producer_id]
            self._expired_id_max = max(self._expired_id_max, producer_id)

    def infos(self) -> Iterator[ProducerInfo]:
        for producer_id, producer in self._producers.items():
            yield ProducerInfo(producer_id, producer.epoch, producer.window[-1][1], producer.seen_ms)

    def encode(self, before_offset: int) -> bytes:
        """The state as bytes for a checkpoint: only of batches below `before_offset`, the end of what is durable.

        A batch that is not durable may vanish with this process, and must then not count as a duplicate when it is sent again.
        """
        parts = []
        count = 0
        for producer_id, producer in self._producers.items():
            window = [entry for entry in producer.window if entry[2] < before_offset]
            if window:
                count += 1
                parts.append(_PRODUCER.pack(producer_id, producer.epoch, producer.seen_ms, len(window)))
                parts.extend(_ENTRY.pack(*entry) for entry in window)
        return _COUNT.pack(count, self._expired_id_max) + b"".join(parts)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> ProducerState:
        """The state from a checkpoint's bytes. Raises CorruptError."""
        state = cls()
        try:
            count, state._expired_id_max = _COUNT.unpack_from(data, 0)
            position = _COUNT.size
            for _ in range(count):
                producer_id, epoch, seen_ms, entries = _PRODUCER.unpack_from(data, position)
                position += _PRODUCER.size
                producer = state._producers[producer_id] = _Producer(epoch, seen_ms)
                for _ in range(entries):
                    producer.window.append(_ENTRY.unpack_from(data, position))
                    position += _ENTRY.size
        except struct.error as error:
            raise CorruptError(Reason.CORRUPT_STORE, f"producer state is cut off. error=`{error}`") from error
        if position != len(data) or not all(producer.window for producer in state._producers.values()):
            raise CorruptError(Reason.CORRUPT_STORE, f"producer state is not what was written. bytes=`{len(data)}`")
        return state
