"""Kafka's primitive types at their edges, and hostile counts, lengths and tags in generated messages.

Compared: the decoded values of hand-made bytes with those in Kafka's protocol guide. A mismatch means a wrong length check:
memory for a count of elements that were never sent, a read beyond the frame, or a valid message that is refused.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from headgate.broker.testing.messages.fetch import FetchRequest
from headgate.broker.testing.messages.produce import ProduceRequest

from headgate.broker.wire.kafka import primitives as p
from headgate.broker.wire.kafka.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headgate.broker.wire.kafka.messages.create_topics import CreateTopicsRequest
from headgate.broker.wire.kafka.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest
from headgate.broker.wire.kafka.messages.find_coordinator import FindCoordinatorRequest
from headgate.broker.wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from headgate.broker.wire.kafka.primitives import DecodeError


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, b"\x00"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (2**31 - 1, b"\xff\xff\xff\xff\x07"),
        (2**32 - 1, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_uvarint(value: int, data: bytes) -> None:
    out = bytearray()
    p.write_uvarint(out, value)
    assert out == data
    assert p.read_uvarint(data + b"\xff", 0) == (value, len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\xff\xff\xff\xff\xff\x01", b"\x80" * 100])
def test_uvarint_that_is_too_long(data: bytes) -> None:
    with pytest.raises(DecodeError):
        p.read_uvarint(data, 0)


def test_a_longer_form_of_a_small_uvarint_is_read() -> None:
    assert p.read_uvarint(b"\x81\x00", 0) == (1, 2)  # as Java reads it


@pytest.mark.parametrize(
    ("read", "data", "value"),
    [
        (p.read_string, b"\x00\x02\xc3\xa4", "ä"),
        (p.read_string, b"\x00\x00", ""),
        (p.read_compact_string, b"\x03\xc3\xa4", "ä"),
        (p.read_nullable_string, b"\xff\xff", None),
        (p.read_nullable_string, b"\x00\x01a", "a"),
        (p.read_compact_nullable_string, b"\x00", None),
        (p.read_compact_nullable_string, b"\x01", ""),
        (p.read_bytes, b"\x00\x00\x00\x01a", b"a"),
        (p.read_compact_bytes, b"\x02a", b"a"),
        (p.read_nullable_bytes, b"\xff\xff\xff\xff", None),
        (p.read_compact_nullable_bytes, b"\x00", None),
        (p.read_nullable_records, b"\xff\xff\xff\xff", None),
        (p.read_compact_nullable_records, b"\x03ab", b"ab"),
        (p.read_uuid, bytes(range(16)), UUID(bytes=bytes(range(16)))),
    ],
)
def test_reading(read: Callable[[Any, int], tuple[Any, int]], data: bytes, value: object) -> None:
    assert read(data, 0) == (value, len(data))
    assert read(memoryview(b"??" + data + b"?"), 2) == (value, len(data) + 2)


@pytest.mark.parametrize(
    ("read", "data"),
    [
        (p.read_string, b"\xff\xff"),
        (p.read_string, b"\xff\xfe"),
        (p.read_string, b"\x00\x03ab"),
        (p.read_string, b"\x7f\xffab"),
        (p.read_compact_string, b"\x00"),
        (p.read_compact_string, b"\x04ab"),
        (p.read_nullable_string, b"\x00\x03ab"),
        (p.read_compact_nullable_string, b"\xff\xff\xff\xff\x0fab"),
        (p.read_bytes, b"\xff\xff\xff\xff"),
        (p.read_bytes, b"\x7f\xff\xff\xffab"),
        (p.read_compact_bytes, b"\x00"),
        (p.read_nullable_bytes, b"\x7f\xff\xff\xffab"),
        (p.read_compact_nullable_records, b"\xff\xff\xff\xff\x0fab"),
        (p.read_uuid, b"\x00" * 15),
    ],
)
def test_lengths_beyond_the_buffer_and_forbidden_nulls(read: Callable[[Any, int], object], data: bytes) -> None:
    with pytest.raises(DecodeError):
        read(data, 0)


def test_records_are_not_copied() -> None:
    buffer = bytearray(b"\x00\x00\x00\x02ab")
    records, _ = p.read_nullable_records(memoryview(buffer), 0)
    buffer[4:6] = b"cd"
    assert records == b"cd"


@pytest.mark.parametrize(
    ("read", "data", "size_min"),
    [
        (p.read_count, b"\x7f\xff\xff\xff", 1),
        (p.read_count, (p.ARRAY_ELEMENTS_MAX + 1).to_bytes(4, "big") + bytes(p.ARRAY_ELEMENTS_MAX + 1), 1),
        (p.read_count, b"\xff\xff\xff\xff", 1),
        (p.read_count, b"\x80\x00\x00\x00", 1),
        (p.read_count, b"\x00\x00\x00\x02abc", 2),
        (p.read_nullable_count, b"\x00\x00\x00\x02abc", 2),
        (p.read_compact_count, b"\x00", 1),
        (p.read_compact_count, b"\xff\xff\xff\xff\x0f", 1),
        (p.read_compact_nullable_count, b"\x03abc", 2),
    ],
)
def test_hostile_counts(read: Callable[[Any, int, int], object], data: bytes, size_min: int) -> None:
    with pytest.raises(DecodeError):
        read(data, 0, size_min)


def test_counts_that_fit() -> None:
    assert p.read_count(b"\x00\x00\x00\x02abcd", 0, 2) == (2, 4)
    assert p.read_nullable_count(b"\xff\xff\xff\xff", 0, 1) == (-1, 4)
    assert p.read_nullable_count(b"\x80\x00\x00\x00", 0, 1) == (-1, 4)  # any negative count is null, as in Java
    assert p.read_compact_nullable_count(b"\x00", 0, 1) == (-1, 1)
    assert p.read_compact_count(b"\x01", 0, 1) == (0, 1)


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (MetadataRequest, 1, b"\x7f\xff\xff\xff"),
        (MetadataRequest, 12, b"\xff\xff\xff\xff\x0f"),
        (CreateTopicsRequest, 2, b"\x7f\xff\xff\xff"),
        (ProduceRequest, 3, b"\xff\xff\x00\x01\x00\x00\x00\x00\x7f\xff\xff\xff"),
    ],
)
def test_a_hostile_count_allocates_nothing(message: Any, version: int, data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="more elements"):
            message.decode(data + b"\x00" * 64, 0, version)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


# -- tagged fields

_FETCH_15 = FetchRequest(cluster_id="c", max_wait_ms=1).encode(15)


def test_unknown_tags_are_skipped() -> None:
    plain = ApiVersionsRequest(client_software_name="a", client_software_version="b").encode(3)
    assert plain.endswith(b"\x00")
    tagged = plain[:-1] + b"\x02" + b"\x07\x03xyz" + b"\x88\x27\x00"
    value, end = ApiVersionsRequest.decode(tagged, 0, 3)
    assert (value.client_software_name, end) == ("a", len(tagged))


@pytest.mark.parametrize(
    "section", [b"\x01\x07\x04xyz", b"\x01\x07", b"\x02\x07\x00", b"\xff\xff\xff\xff\x0f", b"\x01\x07\xff\xff\xff\xff\x0f"]
)
def test_tags_beyond_the_end(section: bytes) -> None:
    plain = ApiVersionsRequest(client_software_name="a", client_software_version="b").encode(3)
    with pytest.raises(DecodeError):
        ApiVersionsRequest.decode(plain[:-1] + section, 0, 3)


@pytest.mark.parametrize("size", [1, 3])
def test_a_known_tag_whose_length_is_wrong(size: int) -> None:
    assert _FETCH_15.endswith(b"\x01\x00\x02\x02c")  # one tag: number 0, two bytes, the compact string "c"
    with pytest.raises(DecodeError):
        FetchRequest.decode(_FETCH_15[:-3] + bytes([size]) + b"\x02c??", 0, 15)


def test_tags_with_the_default_value_are_not_written() -> None:
    assert FetchRequest().encode(12).endswith(b"\x00")
    response = ApiVersionsResponse(finalized_features_epoch=-1, zk_migration_ready=False)
    assert response.encode(3) == b"\x00\x00\x01\x00\x00\x00\x00\x00"


# -- a value that a version cannot carry is a programmer error, not a silent loss


def test_fields_that_a_version_does_not_have() -> None:
    with pytest.raises(ValueError, match="allow_auto_topic_creation"):
        MetadataRequest(topics=[], allow_auto_topic_creation=False).encode(3)
    with pytest.raises(ValueError, match="key_type"):
        FindCoordinatorRequest(key="k", key_type=1).encode(0)
    MetadataRequest(topics=[], include_topic_authorized_operations=False).encode(0)


def test_null_where_a_version_has_none() -> None:
    with pytest.raises(ValueError, match="null"):
        MetadataRequest(topics=None).encode(0)
    with pytest.raises(ValueError, match="null"):
        MetadataRequest(topics=[MetadataRequestTopic(name=None)]).encode(9)


def test_versions_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="version"):
        MetadataRequest().encode(14)
    with pytest.raises(ValueError, match="version"):
        ProduceRequest.decode(b"", 0, 2)


def test_strings_that_no_java_client_could_read() -> None:
    with pytest.raises(ValueError, match="too long"):
        MetadataRequest(topics=[MetadataRequestTopic(name="x" * 32768)]).encode(9)


def test_nullable_struct() -> None:
    """KIP-893: a byte in front of the struct, negative for null."""
    plain = DescribeTopicPartitionsRequest(response_partition_limit=5)
    assert plain.encode(0) == b"\x01\x00\x00\x00\x05\xff\x00"
    full = DescribeTopicPartitionsRequest(response_partition_limit=5, cursor=Cursor(topic_name="a", partition_index=2))
    assert full.encode(0) == b"\x01\x00\x00\x00\x05\x01\x02a\x00\x00\x00\x02\x00\x00"
    assert DescribeTopicPartitionsRequest.decode(full.encode(0), 0, 0)[0] == full
