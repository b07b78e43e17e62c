"""The record codec (`broker/log/records.py`, `compression.py`) against two foreign ones: kafka-python and aiokafka.

Runs: our codec encodes any records that a client can send, and theirs decode them, and the other way round; then arbitrary
bytes. Compared: every field. A mismatch means that some Kafka client would read other records than the written ones. For
arbitrary bytes the reader raises its own error or gives records; it never raises another exception, and never uses more memory
than allowed.
"""

from __future__ import annotations

import gzip
import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from headgate.broker.log.batch import (
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    crc_matches,
    parse_header,
    stamp,
    stamp_append_time,
)
from headgate.broker.log.compression import Codec, compress, decompress
from headgate.broker.log.records import Record, encode_batch, encoded_bytes_max, iter_records
from headgate.broker.runtime.errors import InvalidError, Reason

BLOBS = st.one_of(st.none(), st.binary(max_size=40), st.integers(0, 3000).map(lambda size: b"ab" * size))
HEADERS = st.lists(st.tuples(st.text(max_size=10), st.one_of(st.none(), st.binary(max_size=20))), max_size=4).map(tuple)
TIMESTAMPS = st.one_of(st.integers(0, 2**41), st.integers(1_700_000_000_000, 1_700_000_001_000))
RECORDS = st.lists(
    st.builds(Record, offset=st.just(0), timestamp_ms=TIMESTAMPS, key=BLOBS, value=BLOBS, headers=HEADERS), min_size=1, max_size=12
)
CODECS = st.sampled_from(list(Codec))
# kafka-python has no library for the others.
KAFKA_PYTHON_CODECS = st.sampled_from([Codec.NONE, Codec.GZIP])


def numbered(records: list[Record], base_offset: int = 0) -> list[Record]:
    """The records as a reader gets them."""
    return [record._replace(offset=base_offset + index) for index, record in enumerate(records)]


@given(RECORDS, CODECS)
def test_what_we_encode_we_read(records: list[Record], codec: Codec) -> None:
    batch = encode_batch(records, compression=codec, producer_id=7, producer_epoch=3, base_sequence=11)
    assert list(iter_records(batch)) == numbered(records)
    header = parse_header(batch)
    assert crc_matches(batch)
    assert header.size_bytes == len(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 11)
    assert header.record_count == header.last_offset_delta + 1 == len(records)
    assert header.base_timestamp == records[0].timestamp_ms
    assert header.max_timestamp == max(record.timestamp_ms for record in records)


@given(RECORDS)
def test_the_estimate_is_never_too_small(records: list[Record]) -> None:
    estimate = sum(encoded_bytes_max(record.key, record.value, record.headers) for record in records)
    assert len(encode_batch(records)) - HEADER_BYTES <= estimate


def test_the_estimate_counts_the_longest_form_of_everything() -> None:
    """Four bytes for each character, five for each length: each header adds its own, so many of them leave no slack."""
    headers = tuple(("\N{SNOWMAN}\N{GRINNING FACE}" * 40, bytes(100)) for _ in range(50))
    estimate = encoded_bytes_max(b"key", b"value", headers)
    assert len(encode_batch([Record(0, 0, b"key", b"value", headers)])) - HEADER_BYTES <= estimate
    faces = tuple(("\N{GRINNING FACE}" * 40, None) for _ in range(50))
    assert len(encode_batch([Record(0, 0, None, None, faces)])) - HEADER_BYTES <= encoded_bytes_max(None, None, faces)
    assert encoded_bytes_max(None, None, ()) == 1 + 10 + 5 * 5
    assert encoded_bytes_max(b"k", b"va", (("name", b"abc"),)) == encoded_bytes_max(None, None, ()) + 1 + 2 + 5 + 4 * 4 + 5 + 3


@given(RECORDS, CODECS)
def test_aiokafka_reads_ours(records: list[Record], codec: Codec) -> None:
    theirs = DefaultRecordBatch(bytearray(encode_batch(records, compression=codec)))
    assert theirs.validate_crc()
    read = [Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in theirs]
    assert read == numbered(records)


@given(RECORDS, KAFKA_PYTHON_CODECS)
def test_kafka_python_reads_ours(records: list[Record], codec: Codec) -> None:
    theirs = KafkaPythonBatch(encode_batch(records, compression=codec))
    assert theirs.validate_crc()
    read = [Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers)) for record in theirs]
    assert read == numbered(records)


@given(RECORDS, CODECS)
def test_we_read_aiokafka(records: list[Record], codec: Codec) -> None:
    theirs = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for index, record in enumerate(records):
        theirs.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    assert list(iter_records(bytes(theirs.build()))) == numbered(records)


@given(RECORDS, KAFKA_PYTHON_CODECS)
def test_we_read_kafka_python(records: list[Record], codec: Codec) -> None:
    theirs = KafkaPythonBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for index, record in enumerate(records):
        theirs.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    assert list(iter_records(bytes(theirs.build()))) == numbered(records)


@given(RECORDS)
def test_uncompressed_bytes_are_kafka_pythons(records: list[Record]) -> None:
    """The bytes are equal: there is one shortest encoding, and both write it."""
    theirs = KafkaPythonBuilder(2, 0, 0, 7, 3, 11, 1 << 30)
    for index, record in enumerate(records):
        theirs.append(index, record.timestamp_ms, record.key, record.value, list(record.headers))
    ours = bytearray(encode_batch(records, producer_id=7, producer_epoch=3, base_sequence=11))
    expected = bytearray(theirs.build())
    stamp(expected, 0, 0, len(expected) - LENGTH_OVERHEAD_BYTES, -1)  # the leader epoch of a batch from a producer has no meaning
    assert ours == expected


@given(RECORDS, CODECS, st.integers(0, 2**62))
def test_a_stamped_batch_shows_the_brokers_offsets_and_time(records: list[Record], codec: Codec, base_offset: int) -> None:
    batch = bytearray(encode_batch(records, compression=codec))
    stamp(batch, 0, base_offset, len(batch) - LENGTH_OVERHEAD_BYTES, 5)
    assert list(iter_records(batch)) == numbered(records, base_offset)
    stamp_append_time(batch, 0, len(batch), 1234)
    assert parse_header(batch).attributes & LOG_APPEND_TIME
    assert crc_matches(batch)
    assert list(iter_records(batch)) == [record._replace(timestamp_ms=1234) for record in numbered(records, base_offset)]


@given(RECORDS, CODECS, st.data())
def test_a_damaged_batch_gives_the_readers_own_error_or_records(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    batch = bytearray(encode_batch(records, compression=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(batch)


@given(RECORDS, CODECS, st.data())
def test_a_cut_batch_is_refused(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    batch = encode_batch(records, compression=codec)
    cut = batch[: data.draw(st.integers(0, len(batch) - 1))]
    with pytest.raises(InvalidError):
        list(iter_records(cut))
    # Truncated, with a header that matches the length: the records themselves are too short.
    if len(cut) >= HEADER_BYTES:
        patched = bytearray(cut)
        struct.pack_into(">i", patched, 8, len(patched) - 12)
        with pytest.raises(InvalidError):
            list(iter_records(patched))


@given(st.binary(max_size=300), st.integers(0, 7))
def test_random_bytes_behind_a_fitting_header(payload: bytes, attributes: int) -> None:
    read_or_refuse(with_payload(payload, attributes, count=5))


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 2**31 - 1])
def test_a_hostile_record_count(count: int) -> None:
    batch = with_payload(encode_batch([Record(0, 1, b"k", b"v")] * 3)[HEADER_BYTES:], 0, count)
    with pytest.raises(InvalidError):
        list(iter_records(batch))


def test_a_hostile_header_count_makes_no_list() -> None:
    # length, attributes, timestamp delta, offset delta, null key, null value, 2^40 headers
    record = bytes((0, 0, 0, 1, 1)) + b"\x80\x80\x80\x80\x80\x40"
    with pytest.raises(InvalidError, match="header count"):
        list(iter_records(with_payload(bytes((len(record) << 1,)) + record, 0, 1)))


# attributes, timestamp delta, offset delta; a null key, value, or number of headers
BEGIN, NULL, NONE, TWO = b"\0\0\0", b"\1", b"\0", b"\4"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BEGIN, NULL + NONE),
        (BEGIN + NULL, NONE),
        (BEGIN + NULL + NULL + b"\2", NULL),
        (BEGIN + NULL + NULL + b"\2" + TWO + b"ab", b""),
    ],
    ids=["key", "value", "header's key", "header's value"],
)
def test_a_field_of_a_hostile_length(before: bytes, after: bytes) -> None:
    """Only -1 means null. A field ends within its record, also if another record follows, whose first byte it would take."""

    def read(length: bytes, content: bytes) -> list[Record]:
        record = before + length + content + after
        framed_record = bytes((len(record) << 1,)) + record
        return list(iter_records(with_payload(framed_record + framed_record.replace(BEGIN, b"\0\0\2", 1), 0, 2)))

    assert len(read(TWO, b"ab")) == 2
    for length in (b"\3", b"\5", b"\xff\xff\xff\xff\x0f"):
        with pytest.raises(InvalidError, match="negative length"):
            read(length, b"")
    # It would end one byte behind its record.
    beyond = bytes(((len(b"ab" + after) + 1) << 1,))
    with pytest.raises(InvalidError, match="field that does not fit"):
        read(beyond, b"ab")


def test_a_varint_without_an_end() -> None:
    with pytest.raises(InvalidError, match="varint"):
        list(iter_records(with_payload(b"\x80" * 50, 0, 1)))


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
def test_a_bomb_is_refused(codec: Codec) -> None:
    bomb = compress(codec, bytes(2 << 20))
    assert len(decompress(codec, bomb, 2 << 20)) == 2 << 20
    with pytest.raises(InvalidError) as caught:
        decompress(codec, bomb, (2 << 20) - 1)
    assert caught.value.reason is Reason.CORRUPT_MESSAGE


@given(st.binary(max_size=5000), CODECS)
def test_codecs_round_trip(data: bytes, codec: Codec) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("size", [0, 1, (32 << 10) - 1, 32 << 10, (32 << 10) + 1, 100_000])
def test_snappy_with_and_without_xerial_framing(size: int) -> None:
    import cramjam

    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    framed = compress(Codec.SNAPPY, data)
    assert framed.startswith(b"\x82SNAPPY\x00")
    assert decompress(Codec.SNAPPY, framed, size) == data
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), size) == data


def test_gzip_of_another_library() -> None:
    assert decompress(Codec.GZIP, gzip.compress(b"x" * 100_000), 1 << 20) == b"x" * 100_000


def test_codec_names() -> None:
    assert [Codec.named(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == list(Codec)
    with pytest.raises(InvalidError, match="none, gzip, snappy, lz4, zstd"):
        Codec.named("brotli")


def with_payload(payload: bytes, attributes: int, count: int) -> bytes:
    """A batch with a header that fits `payload` in all fields that the broker checks."""
    batch = bytearray(encode_batch([Record(0, 0, None, None)])[:HEADER_BYTES]) + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, CRC_START, attributes)
    struct.pack_into(">i", batch, 23, count - 1 if count > -(2**31) else count)
    struct.pack_into(">i", batch, 57, count)
    return bytes(batch)


def read_or_refuse(batch: bytes | bytearray) -> None:
    try:
        for record in iter_records(batch, decompressed_bytes_max=1 << 20):
            assert isinstance(record, Record)
    except InvalidError as error:
        assert error.reason in (Reason.CORRUPT_MESSAGE, Reason.UNSUPPORTED_COMPRESSION)
