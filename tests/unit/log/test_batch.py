"""Batch headers (`broker/log/batch.py`): the client's fields, and the fields that the broker writes.

kafka-python and aiokafka build the batches, and check them after the broker stamped them. Every refusal has a Reason that
Kafka's clients can act on. A mismatch means that the broker stores a batch that some consumer cannot read, refuses a healthy
one, or changes bytes that the producer's checksum covers.
"""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

from headgate.broker.log.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    BatchHeader,
    check,
    crc_matches,
    parse,
    parse_header,
    split,
    stamp,
    stamp_append_time,
)
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.batches import batch, patched
from tests.support.errors import raises
from tests.support.poison import with_count, with_records

BIG = 1 << 20
NOW_MS = 1_700_000_000_000
BATCH = batch([b"one", None, b"three"], key=b"key", producer_id=7, producer_epoch=3, base_sequence=11)


def validate(buffer: memoryview, position: int, size_bytes_max: int) -> tuple[int, ...]:
    header = parse(buffer, position, len(buffer) - position)
    check(header, buffer, position, len(buffer) - position, size_bytes_max)
    return header


def aiokafka_batch(compression: int) -> bytes:
    builder = AiokafkaBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=BIG,
    )
    for offset in range(20):
        builder.append(offset, NOW_MS + offset, b"key", b"value" * 10, [("header", b"content")])
    return bytes(builder.build())


def refused(data: bytes, size_bytes_max: int = BIG, position: int = 0) -> Reason:
    before = bytes(data)
    with pytest.raises(InvalidError) as caught:
        validate(memoryview(data), position, size_bytes_max)
    assert bytes(data) == before
    return caught.value.reason


def test_a_header_is_what_kafka_python_wrote() -> None:
    theirs = KafkaPythonBatch(BATCH)
    header = parse_header(BATCH)
    assert validate(memoryview(BATCH), 0, BIG) == tuple(header)
    assert header == BatchHeader(
        base_offset=theirs.base_offset,
        batch_length=len(BATCH) - 12,
        leader_epoch=theirs.leader_epoch,
        magic=theirs.magic,
        crc=theirs.crc,
        attributes=theirs.attributes,
        last_offset_delta=theirs.last_offset_delta,
        base_timestamp=theirs.first_timestamp,
        max_timestamp=theirs.max_timestamp,
        producer_id=7,
        producer_epoch=3,
        base_sequence=11,
        record_count=3,
    )
    assert header.size_bytes == len(BATCH)
    assert header.next_offset == 3


@pytest.mark.parametrize("compression", range(5))
def test_batches_of_aiokafka_are_taken_with_every_codec(compression: int) -> None:
    data = aiokafka_batch(compression)
    header = BatchHeader._make(validate(memoryview(data), 0, BIG))
    assert header.attributes & 7 == compression
    assert header.record_count == 20
    assert header.max_timestamp == NOW_MS + 19


def test_a_batch_is_found_at_its_position() -> None:
    data = b"\xff" * 13 + BATCH
    for buffer in (memoryview(data), memoryview(bytearray(data))):
        assert validate(buffer, 13, BIG) == validate(memoryview(BATCH), 0, BIG)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("something behind it", BATCH + b"\xff" * 7, Reason.INVALID_RECORD),
        ("another one behind it", BATCH + BATCH, Reason.INVALID_RECORD),
        ("magic 0", patched(BATCH, 16, b"\x00"), Reason.UNSUPPORTED_MESSAGE_FORMAT),
        ("magic 1", patched(BATCH, 16, b"\x01"), Reason.UNSUPPORTED_MESSAGE_FORMAT),
        ("short message set, magic 0", patched(BATCH, 16, b"\x00")[:34], Reason.UNSUPPORTED_MESSAGE_FORMAT),
        ("short message set, magic 1", patched(BATCH, 16, b"\x01")[:34], Reason.UNSUPPORTED_MESSAGE_FORMAT),
        ("magic 3", patched(BATCH, 16, b"\x03"), Reason.CORRUPT_MESSAGE),
        ("magic -1", patched(BATCH, 16, b"\xff"), Reason.CORRUPT_MESSAGE),
        ("flipped record byte", patched(BATCH, len(BATCH) - 1, b"\xfe", fix_crc=False), Reason.CORRUPT_MESSAGE),
        ("flipped crc", patched(BATCH, 17, b"\x00\x00\x00\x00", fix_crc=False), Reason.CORRUPT_MESSAGE),
        ("length of nothing", patched(BATCH, 8, struct.pack(">i", 0)), Reason.CORRUPT_MESSAGE),
        ("negative length", patched(BATCH, 8, struct.pack(">i", -1)), Reason.CORRUPT_MESSAGE),
        ("length into the header", patched(BATCH, 8, struct.pack(">i", 48)), Reason.CORRUPT_MESSAGE),
        ("length beyond the end", patched(BATCH, 8, struct.pack(">i", len(BATCH) - 11)), Reason.CORRUPT_MESSAGE),
        ("greatest length", patched(BATCH, 8, struct.pack(">i", 2**31 - 1)), Reason.CORRUPT_MESSAGE),
        ("codec 5", patched(BATCH, 21, b"\x00\x05"), Reason.UNSUPPORTED_COMPRESSION),
        ("codec 7", patched(BATCH, 21, b"\x00\x07"), Reason.UNSUPPORTED_COMPRESSION),
        ("control batch", patched(BATCH, 21, b"\x00\x20"), Reason.INVALID_RECORD),
        (
            "transactional, without a producer",
            patched(patched(BATCH, 21, b"\x00\x10"), 43, struct.pack(">q", -1)),
            Reason.INVALID_RECORD,
        ),
        ("the broker's kind of timestamp", patched(BATCH, 21, b"\x00\x08"), Reason.INVALID_TIMESTAMP),
        ("delete horizon", patched(BATCH, 21, b"\x00\x40"), Reason.INVALID_RECORD),
        ("reserved attribute", patched(BATCH, 21, b"\x01\x00"), Reason.INVALID_RECORD),
        ("greatest reserved attribute", patched(BATCH, 21, b"\x80\x00"), Reason.INVALID_RECORD),
        ("more records than bytes", with_count(BATCH, (len(BATCH) - HEADER_BYTES) // 7 + 1), Reason.INVALID_RECORD),
        ("2^31 - 1 records", with_count(BATCH, 2**31 - 1), Reason.INVALID_RECORD),
        ("2^31 - 1 records, gzip", with_count(patched(BATCH, 21, b"\x00\x01"), 2**31 - 1), Reason.INVALID_RECORD),
        ("2^31 - 1 records, zstd", with_count(patched(BATCH, 21, b"\x00\x04"), 2**31 - 1), Reason.INVALID_RECORD),
        ("more records than readers decompress", with_records(bytes(1 << 19), (256 << 20) // 7 + 1, 4), Reason.INVALID_RECORD),
        ("no records", patched(BATCH, 57, struct.pack(">i", 0)), Reason.INVALID_RECORD),
        ("negative count", patched(BATCH, 57, struct.pack(">i", -3)), Reason.INVALID_RECORD),
        ("count and delta disagree", patched(BATCH, 57, struct.pack(">i", 2)), Reason.INVALID_RECORD),
        ("delta and count disagree", patched(BATCH, 23, struct.pack(">i", 3)), Reason.INVALID_RECORD),
        ("negative delta", patched(BATCH, 23, struct.pack(">i", -1)), Reason.INVALID_RECORD),
        ("producer without epoch", patched(BATCH, 51, struct.pack(">h", -1)), Reason.INVALID_RECORD),
        ("producer without sequence", patched(BATCH, 53, struct.pack(">i", -1)), Reason.INVALID_RECORD),
    ],
    ids=lambda value: value if isinstance(value, str) and not isinstance(value, Reason) else "",
)
def test_what_is_refused(name: str, data: bytes, reason: Reason) -> None:
    assert refused(data) is reason


def test_every_cut_is_refused() -> None:
    assert refused(b"") is Reason.INVALID_RECORD
    for size in range(1, len(BATCH)):
        assert refused(BATCH[:size]) is Reason.CORRUPT_MESSAGE, size


def test_every_flipped_bit_that_the_checksum_covers_is_refused() -> None:
    for position in range(21, len(BATCH)):
        for bit in range(8):
            flipped = patched(BATCH, position, bytes([BATCH[position] ^ 1 << bit]), fix_crc=False)
            assert refused(flipped) is Reason.CORRUPT_MESSAGE, (position, bit)


def test_the_size_limit_counts_the_whole_batch() -> None:
    validate(memoryview(BATCH), 0, len(BATCH))
    assert refused(BATCH, len(BATCH) - 1) is Reason.MESSAGE_TOO_LARGE


def test_random_bytes_raise_nothing_else() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        data = bytearray(chance.randbytes(chance.randint(0, 200)))
        if len(data) > 16 and chance.random() < 0.8:
            data[16] = 2
        if len(data) > 12 and chance.random() < 0.8:
            data[8:12] = struct.pack(">i", chance.randint(-2, 200))
        assert isinstance(refused(bytes(data)), Reason)
        with suppress(InvalidError):
            assert b"".join(split(memoryview(data))) == data


def test_a_stamp_changes_offset_and_epoch_and_nothing_else() -> None:
    data = bytearray(b"\xaa" * 5 + BATCH + b"\xbb" * 5)
    stamp(data, 5, 2**40 + 3, len(BATCH) - LENGTH_OVERHEAD_BYTES, 77)
    stamped = bytes(data[5:-5])
    assert data[:5] == b"\xaa" * 5
    assert data[-5:] == b"\xbb" * 5
    assert stamped[8:12] + stamped[16:] == BATCH[8:12] + BATCH[16:]
    assert crc_matches(stamped)
    theirs = KafkaPythonBatch(stamped)
    assert theirs.validate_crc()
    assert theirs.leader_epoch == 77
    assert [record.offset for record in theirs] == [2**40 + 3, 2**40 + 4, 2**40 + 5]
    judge = AiokafkaBatch(bytearray(stamped))
    assert judge.validate_crc()
    assert [record.offset for record in judge] == [2**40 + 3, 2**40 + 4, 2**40 + 5]


def test_append_time_is_the_time_of_every_record_and_the_checksum_is_right() -> None:
    data = bytearray(b"\xaa" * 5 + BATCH + b"\xbb" * 5)
    stamp_append_time(data, 5, len(BATCH), NOW_MS)
    stamped = bytes(data[5:-5])
    assert data[:5] == b"\xaa" * 5
    assert data[-5:] == b"\xbb" * 5
    assert crc_matches(stamped)
    for judge in (KafkaPythonBatch(stamped), AiokafkaBatch(bytearray(stamped))):
        assert judge.validate_crc()
        records = list(judge)
        assert [record.timestamp for record in records] == [NOW_MS] * 3
        assert [record.timestamp_type for record in records] == [1] * 3
        assert [record.value for record in records] == [b"one", None, b"three"]
    assert stamped[HEADER_BYTES:] == BATCH[HEADER_BYTES:]


@pytest.mark.parametrize("compression", range(5))
def test_append_time_keeps_the_codec(compression: int) -> None:
    data = bytearray(aiokafka_batch(compression))
    stamp_append_time(data, 0, len(data), NOW_MS + 5)
    judge = AiokafkaBatch(data)
    assert judge.validate_crc()
    assert judge.compression_type == compression
    assert {record.timestamp for record in judge} == {NOW_MS + 5}


def test_split_finds_every_batch_and_refuses_what_is_left_over() -> None:
    parts = [BATCH, aiokafka_batch(0), BATCH]
    whole = memoryview(b"".join(parts))
    assert [bytes(part) for part in split(whole)] == parts
    assert split(memoryview(b"")) == []
    ends = {0, len(parts[0]), len(parts[0]) + len(parts[1]), len(whole)}
    for size in range(len(whole)):
        if size in ends:
            continue
        with raises(InvalidError, Reason.CORRUPT_MESSAGE):
            split(whole[:size])


def test_a_header_that_is_cut_off_is_said_to_be() -> None:
    for size in range(HEADER_BYTES):
        with pytest.raises(InvalidError):
            parse_header(BATCH[:size])
    with pytest.raises(InvalidError):
        parse_header(BATCH, len(BATCH) - HEADER_BYTES + 1)
