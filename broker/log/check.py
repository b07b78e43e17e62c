"""Checks the records of arriving batches: which batches, how deeply, and by which rules. No I/O.

A CRC proves that a batch arrived as its producer sent it, not that a consumer can read it. A batch whose records cannot be read
stops most consumers for ever, so one faulty producer could block the readers of a partition. Reading every record costs more than
all other work on a batch, so the broker looks at a batch in four depths:

    header   every batch of every topic: `batch.check` compares the record count with the bytes (`RECORD_BYTES_MIN`, `RECORDS_MAX`)
    sample   the first `FIRST_BATCHES` of a sender (a Kafka connection or a Publish stream), later one in `SAMPLE_EVERY` or fewer.
             The first `SAMPLE_RECORDS` of a sampled batch are read whole (`REPEATED_RECORDS` in the batches directly behind the
             very first one); of the others only the lengths are read
    all      every record of every batch of a topic with `headgate.check.records=all`
    fold     every batch of a chunk that is folded for the first time, as deeply as a sample. The batch is already acked: it
             stays, and the broker reports it

The topic setting `headgate.check.records` chooses: `header` leaves out the second depth, `all` adds the third.

A compressed batch is decompressed into a buffer of limited size. If the records do not fit, a sample proves nothing and passes,
and `all` refuses the batch: it promises that everything was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from itertools import islice
from typing import NamedTuple

from headgate.broker.log.batch import CODEC_MASK, CONTROL, HEADER_BYTES, LOG_APPEND_TIME, Buffer
from headgate.broker.log.compression import DECOMPRESSED_BYTES_MAX, Codec, ExpansionError, decompress, stated_bytes
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.errors import InvalidError, Reason

FIRST_BATCHES = 16
"""Number of first batches of a sender that are all sampled. A client that encodes wrongly does so from its first batch on."""
SAMPLE_EVERY = 64
"""Batches from one sample to the next, for samples without records. One small batch in 64 costs less than 1 % of the write path."""
SAMPLE_EVERY_PER_RECORD = 4
"""Batches that are added to `SAMPLE_EVERY` for each record of the last sample, so that the share of the CPU time stays the same."""
SAMPLE_EVERY_MAX = 4096
"""Largest number of batches between two samples, also if the last one had many records."""
SAMPLE_RECORDS = 1000
"""Records of a sample that are read whole: about a millisecond on the event loop. Only the lengths of the others are read."""
REPEATED_RECORDS = 64
"""Records of the second to last of the `FIRST_BATCHES` that are read whole. Their batches mostly repeat the shape of the very first
one, and a sender of large batches must not cost the event loop some tens of milliseconds before it is trusted."""
SAMPLE_DECOMPRESSED_BYTES_MAX = 1 << 20
"""Largest decompressed size of a sample: a few milliseconds on the event loop. Producers send less by default. Of a larger batch
only the size that it states itself is judged."""
ALL_RECORDS_MAX = 1 << 16
"""Records of one batch of a topic that checks all: bounds the time on the event loop to some tens of milliseconds."""
LENGTHS_MAX = 1 << 20
"""Records of one large batch whose lengths `why_unreadable` reads: about a second in a thread."""
ALL_DECOMPRESSED_BYTES_MAX = 8 << 20
"""Largest decompressed size of one batch of a topic that checks all."""

NAMED_MAX = 1000
"""Wrong records of one batch that an answer names: 6 KB. Kafka names all; the broker finds the others when they are sent again."""

_EXPANDS = "records are larger after decompression than Headgate's consumers, SQL and checks read; other clients may read them"

_INT_BYTES_MAX = 5
_LONG_BYTES_MAX = 10
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1


class Depth(StrEnum):
    """The values of the topic setting `headgate.check.records`."""

    HEADER = "header"
    SAMPLE = "sample"
    ALL = "all"


class Times(NamedTuple):
    """Timestamps that records may have: ms since the epoch, both ends included."""

    earliest_ms: int = _LONG_MIN
    latest_ms: int = _LONG_MAX


ANY_TIME = Times()


class Verdict(Enum):
    """The result of a check that found no fault."""

    GOOD = "good"
    UNKNOWN = "unknown"
    """The decompressed records are larger than the check's limit."""


class RecordError(InvalidError):
    """Consumers cannot read a batch, or the topic does not accept its records.

    `records`: the wrong records by their numbers within the batch, from 0, at most `NAMED_MAX`; the producer may send the others
    again. Empty if the batch as a whole is wrong.
    """

    def __init__(self, reason: Reason, message: str, records: Sequence[int] = ()) -> None:
        super().__init__(reason, message)
        self.records = tuple(records)


class SenderTrust:
    """The trust in one sender of batches: when its next sample is due.

    The write path counts no single batch: the connection counts some batches at once (`sent`), and passes this object on only
    while a sample is due.
    """

    __slots__ = ("_first", "due_in", "failures")

    def __init__(self) -> None:
        self._first = FIRST_BATCHES
        """First batches that are still to be sampled."""
        self.due_in = 0
        """Batches until the next sample; 0 or less: the next batch is one."""
        self.failures = 0
        """Batches that were refused for their records."""

    @property
    def records_max(self) -> int:
        """Records of the due batch that are read whole."""
        return REPEATED_RECORDS if 0 < self._first < FIRST_BATCHES else SAMPLE_RECORDS

    def sent(self, batches: int) -> SenderTrust | None:
        """Count batches. Returns this object if a sample is due."""
        self.due_in -= batches
        return self if self.due_in <= 0 else None

    def passed(self, records: int) -> None:
        """The due batch is right, or was not checked."""
        self._first = max(self._first - 1, 0)
        if self._first:
            self.due_in = 0
        else:
            self.due_in = min(SAMPLE_EVERY + SAMPLE_EVERY_PER_RECORD * records, SAMPLE_EVERY_MAX)

    def failed(self) -> None:
        """A batch was refused for its records: the sender starts again like a new one."""
        self.failures += 1
        self._first = FIRST_BATCHES
        self.due_in = 0


def check_keys(batch: Buffer) -> None:
    """Check that every record has a key, as compacted topics demand.

    Raises:
        RecordError: INVALID_RECORD for the records without one; MESSAGE_TOO_LARGE: the records are too large after decompression.
            InvalidError: the records cannot be read.
    """
    records = enumerate(iter_records(batch, decompressed_bytes_max=ALL_DECOMPRESSED_BYTES_MAX))
    try:
        wrong = list(islice((index for index, record in records if record.key is None), NAMED_MAX))
    except ExpansionError as error:
        # Not its own reason: clients send a corrupt message again, without end.
        raise RecordError(
            Reason.MESSAGE_TOO_LARGE, f"record batch is too large for a compacted topic, whose records are checked: {error.message}"
        ) from error
    if wrong:
        text = f"a compacted topic refuses records without a key. record=`{wrong[0]}`{_more(wrong)}"
        raise RecordError(Reason.INVALID_RECORD, text, wrong)


def records_out_of(times: Times, header: tuple[int, ...], batch: memoryview) -> tuple[int, ...]:
    """The records, by number, whose times are not in `times`, as far as a sample shows. Empty if it shows none.

    Args:
        header: the result of `batch.parse`; `batch.check` has accepted it.
        batch: the whole batch and nothing else.
    """
    try:
        _check(header, batch, times, SAMPLE_RECORDS, SAMPLE_DECOMPRESSED_BYTES_MAX)
    except RecordError as error:
        return error.records if error.reason is Reason.INVALID_TIMESTAMP else ()
    except ExpansionError:
        pass
    return ()


def check_sample(header: tuple[int, ...], batch: memoryview, times: Times = ANY_TIME, records_max: int = SAMPLE_RECORDS) -> Verdict:
    """Check a sample.

    Args:
        header: the result of `batch.parse`; `batch.check` has accepted it.
        batch: the whole batch and nothing else.
        records_max: records that are read whole; of the others only the lengths are read.

    Raises:
        RecordError: consumers cannot read the batch, or a record's time is not in `times`; MESSAGE_TOO_LARGE if the compressed
            bytes state a size above the bound of readers.
    """
    try:
        _check(header, batch, times, records_max, SAMPLE_DECOMPRESSED_BYTES_MAX)
    except ExpansionError:
        return Verdict.UNKNOWN
    return Verdict.GOOD


def why_unreadable(header: tuple[int, ...], batch: memoryview) -> str | None:
    """The reason why this project's consumers cannot read a batch of which a sample proves nothing, or None. It takes up to
    `DECOMPRESSED_BYTES_MAX` of memory and some seconds: not for the event loop."""
    try:
        if header[12] > LENGTHS_MAX:
            decompress(Codec(header[5] & CODEC_MASK), batch[HEADER_BYTES:], DECOMPRESSED_BYTES_MAX)
        else:
            _check(header, batch, ANY_TIME, SAMPLE_RECORDS, DECOMPRESSED_BYTES_MAX)
    except ExpansionError:
        return f"{_EXPANDS}. max=`{DECOMPRESSED_BYTES_MAX}`"
    except InvalidError as error:
        return error.message
    return None


def check_all(header: tuple[int, ...], batch: memoryview, times: Times = ANY_TIME) -> None:
    """Check every record of a batch.

    Args:
        header: the result of `batch.parse`; `batch.check` has accepted it.
        batch: the whole batch and nothing else.

    Raises:
        RecordError: consumers cannot read the batch, or a record's time is not in `times`; MESSAGE_TOO_LARGE if the batch is too
            large to be checked.
    """
    count = header[12]
    if count > ALL_RECORDS_MAX:
        raise RecordError(
            Reason.MESSAGE_TOO_LARGE,
            f"record batch has too many records for a topic that checks all of them. records=`{count}` max=`{ALL_RECORDS_MAX}`",
        )
    try:
        _check(header, batch, times, count, ALL_DECOMPRESSED_BYTES_MAX)
    except ExpansionError as error:
        raise RecordError(
            Reason.MESSAGE_TOO_LARGE, f"record batch is too large for a topic that checks all records: {error.message}"
        ) from error


def _check(header: tuple[int, ...], batch: memoryview, times: Times, records_max: int, decompressed_bytes_max: int) -> None:
    attributes, base_ms, count = header[5], header[7], header[12]
    if attributes & CONTROL:
        return
    codec = attributes & CODEC_MASK
    data, position = batch, HEADER_BYTES
    if codec:
        try:
            data, position = decompress(Codec(codec), batch[HEADER_BYTES:], decompressed_bytes_max), 0
        except ExpansionError as error:
            stated = stated_bytes(Codec(codec), batch[HEADER_BYTES:])
            if stated <= DECOMPRESSED_BYTES_MAX:
                raise
            text = f"{_EXPANDS}. stated=`{stated}` max=`{DECOMPRESSED_BYTES_MAX}`"
            raise RecordError(Reason.MESSAGE_TOO_LARGE, text) from error
        except InvalidError as error:
            raise RecordError(Reason.INVALID_RECORD, error.message) from error
    if attributes & LOG_APPEND_TIME:
        times = ANY_TIME
    low, high = max(times.earliest_ms, _LONG_MIN) - base_ms, min(times.latest_ms, _LONG_MAX) - base_ms
    index = 0
    wrong: list[tuple[int, _Wrong]] = []
    try:
        whole = min(count, records_max)
        while index < whole:
            try:
                position = _check_record(data, position, index, low, high)
            except _Wrong as error:
                if error.end is None:
                    raise
                wrong.append((index, error))
                if len(wrong) == NAMED_MAX:
                    raise
                position = error.end
            index += 1
        while index < count:
            length, position = _varint(data, position, _INT_BYTES_MAX)
            if length < 0:
                raise _Wrong("its length is negative")
            position += length
            index += 1
    except IndexError as error:
        raise _refusal([*wrong, (index, _Wrong("it is cut off"))], count) from error
    except _Wrong as error:
        raise _refusal(wrong if error.end is not None else [*wrong, (index, error)], count) from error
    if wrong:
        raise _refusal(wrong, count)
    if position != len(data):
        raise RecordError(
            Reason.INVALID_RECORD,
            f"records do not end where their batch ends. records=`{count}` end=`{position}` size=`{len(data)}`",
        )


class _Wrong(Exception):
    """A fault of one record. The text continues the sentence of `_refusal`. `end`: where the next record begins, if that is certain
    in spite of the fault."""

    def __init__(self, what: str, reason: Reason = Reason.INVALID_RECORD, end: int | None = None) -> None:
        super().__init__(what)
        self.reason = reason
        self.end = end


def _refusal(wrong: Sequence[tuple[int, _Wrong]], count: int) -> RecordError:
    """The error for a batch with these wrong records. One wrong time decides the reason, as in Kafka."""
    index, first = wrong[0]
    late = any(wrong_record.reason is Reason.INVALID_TIMESTAMP for _, wrong_record in wrong)
    numbers = [number for number, _ in wrong]
    text = f"a record cannot be stored: {first}. record=`{index}` records=`{count}`{_more(numbers)}"
    return RecordError(Reason.INVALID_TIMESTAMP if late else first.reason, text, numbers)


def _more(wrong: Sequence[int]) -> str:
    """The number of wrong records for a message about the first one."""
    return f" wrong=`{len(wrong)}{' or more' if len(wrong) == NAMED_MAX else ''}`" if len(wrong) > 1 else ""


def _check_record(data: Buffer, position: int, index: int, time_low: int, time_high: int) -> int:
    """Check the record at `position`; return the position behind it. Varints of one or two bytes, the usual case, are inlined.

    Raises _Wrong, IndexError.
    """
    byte = data[position]
    if byte < 0x80:
        length, position = byte, position + 1
    elif (second := data[position + 1]) < 0x80:
        length, position = byte & 0x7F | second << 7, position + 2
    else:
        length, position = _varint(data, position, _INT_BYTES_MAX)
        length <<= 1
    if length & 1 or length < 0:
        raise _Wrong("its length is negative")
    end = position + (length >> 1)
    if data[position] & 0x80:  # attributes: no bit has a meaning, and aiokafka reads this one as the sign of a longer number
        raise _Wrong("its attributes have a reserved bit", end=end)
    position += 1
    byte = data[position]
    if byte < 0x80:
        time, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        time, position = _varint(data, position, _LONG_BYTES_MAX)
    if not time_low <= time <= time_high:
        raise _Wrong(f"its timestamp is out of the topic's range, time delta {time} ms", Reason.INVALID_TIMESTAMP, end)
    byte = data[position]
    if byte < 0x80:
        delta, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        delta, position = _varint(data, position, _INT_BYTES_MAX)
    if delta != index:
        raise _Wrong(f"its offset delta is {delta}")
    for _ in _KEY_AND_VALUE:
        byte = data[position]
        if byte == 1:
            position += 1
        elif byte < 0x80 and not byte & 1:
            position += 1 + (byte >> 1)
        else:
            size, position = _varint(data, position, _INT_BYTES_MAX)
            position += _size(size)
    byte = data[position]
    position += 1
    if byte:
        position = _check_headers(data, position - 1, end)
    if position != end:
        raise _Wrong("its length is not that of its fields")
    return end


_KEY_AND_VALUE = (0, 1)


def _check_headers(data: Buffer, position: int, end: int) -> int:
    count, position = _varint(data, position, _INT_BYTES_MAX)
    # A header has two bytes or more: that bounds the loop.
    if not 0 <= count <= (end - position) // 2:
        raise _Wrong(f"it cannot have {count} headers")
    for _ in range(count):
        size, position = _varint(data, position, _INT_BYTES_MAX)
        if not 0 <= size <= end - position:
            raise _Wrong("a header's name does not fit")
        try:
            str(data[position : position + size], "utf-8")
        except UnicodeDecodeError:
            raise _Wrong("a header's name is not UTF-8", end=end) from None
        size, position = _varint(data, position + size, _INT_BYTES_MAX)
        position += _size(size)
    return position


def _size(size: int) -> int:
    if size < -1:
        raise _Wrong("a field's length is negative")
    return max(size, 0)


def _varint(data: Buffer, position: int, bytes_max: int) -> tuple[int, int]:
    """The zigzag varint of an int (5 bytes) or a long (10 bytes), and the position behind it. More bits than that are wrong."""
    value = shift = 0
    for _ in range(bytes_max):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if bytes_max == _INT_BYTES_MAX else 64):
                break
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise _Wrong("a number has too many bits")
