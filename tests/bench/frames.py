"""Kafka requests and canned responses as bytes: those of the load client and those of the ceiling.

Pure, and on purpose not built on the broker's own codec: a benchmark that tests a codec with itself proves nothing. Foreign
codecs judge these bytes in `tests/unit/test_bench.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import crc32c

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS = 0, 1, 3, 18, 19
PRODUCE_VERSION = 9
FETCH_VERSION = 12
CREATE_TOPICS_VERSION = 2
BATCH_HEADER_BYTES = 61
CLIENT_ID = b"bench"


def uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """A zigzag varint, as records use it."""
    return uvarint((value << 1) ^ (value >> 63))


def compact(data: bytes) -> bytes:
    """Compact bytes or string: length + 1 as an unsigned varint, then the bytes."""
    return uvarint(len(data) + 1) + data


def record(offset_delta: int, value: bytes) -> bytes:
    """One record: no key, no headers, no timestamp delta."""
    body = b"\x00" + varint(0) + varint(offset_delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(size_bytes: int, *, value_bytes: int = 1000, base_offset: int = 0, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """A valid, uncompressed RecordBatch v2 of exactly `size_bytes`, made of records with values of about `value_bytes`.

    Raises ValueError if no record fits.
    """
    records: list[bytes] = []
    left = size_bytes - BATCH_HEADER_BYTES
    filler = bytes(range(32, 127)) * (value_bytes // 95 + 2)
    typical = len(record(1 << 14, filler[:value_bytes]))
    while left > 2 * typical:
        records.append(record(len(records), filler[:value_bytes]))
        left -= len(records[-1])
    # The varints make a few sizes unreachable with one record; then an empty record precedes it.
    for ahead in ([], [b""], [b""] * 2):
        tail = [record(len(records) + i, value) for i, value in enumerate(ahead)]
        rest = left - sum(map(len, tail))
        delta = len(records) + len(tail)
        for length in range(max(rest - 20, 0), rest):
            if len(record(delta, bytes(length))) == rest:
                tail.append(record(delta, (filler * (length // len(filler) + 1))[:length]))
                return _batch_of(records + tail, base_offset, timestamp_ms)
    raise ValueError(f"a batch of this size holds no record. size_bytes=`{size_bytes}`")


def _batch_of(records: list[bytes], base_offset: int, timestamp_ms: int) -> bytes:
    count = len(records)
    covered = struct.pack(">hiqqqhii", 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + b"".join(records)
    return struct.pack(">qiibI", base_offset, 9 + len(covered), 0, 2, crc32c.crc32c(covered)) + covered


def frame(api_key: int, version: int, body: bytes, *, flexible: bool, correlation_id: int = 0) -> bytes:
    """A request with its length prefix and header. The correlation id stands at byte 8."""
    head = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID + (b"\x00" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def produce_request(topic: str, partition: int, records: bytes, *, acks: int = -1, timeout_ms: int = 30_000) -> bytes:
    """A Produce v9 request for one partition."""
    partitions = uvarint(2) + struct.pack(">i", partition) + compact(records) + b"\x00"
    body = b"\x00" + struct.pack(">hi", acks, timeout_ms) + uvarint(2) + compact(topic.encode()) + partitions + b"\x00\x00"
    return frame(PRODUCE, PRODUCE_VERSION, body, flexible=True)


def produce_response(topic: str, partition: int) -> bytes:
    """A broker's answer to it."""
    of_partition = struct.pack(">ihqqq", partition, 0, 0, -1, 0) + uvarint(1) + b"\x00" + b"\x00"
    body = uvarint(2) + compact(topic.encode()) + uvarint(2) + of_partition + b"\x00" + struct.pack(">i", 0) + b"\x00"
    return _response(body)


def produce_error_at(topic: str) -> int:
    """Position of the partition's error code in a Produce v9 response (including the length prefix)."""
    return 4 + 4 + 1 + 1 + len(compact(topic.encode())) + 1 + 4


def fetch_request(topic: str, partition: int, offset: int, *, bytes_max: int, wait_ms: int = 500, bytes_min: int = 1) -> bytes:
    """A Fetch v12 request without a session, for one partition."""
    of_partition = struct.pack(">iiqiqi", partition, -1, offset, -1, -1, bytes_max) + b"\x00"
    topics = uvarint(2) + compact(topic.encode()) + uvarint(2) + of_partition + b"\x00"
    body = struct.pack(">iiiibii", -1, wait_ms, bytes_min, bytes_max, 0, 0, -1) + topics + uvarint(1) + compact(b"") + b"\x00"
    return frame(FETCH, FETCH_VERSION, body, flexible=True)


def fetch_response(topic: str, partition: int, records: bytes, *, high_watermark: int) -> bytes:
    """A broker's answer to it."""
    of_partition = struct.pack(">ihqqq", partition, 0, high_watermark, high_watermark, 0) + uvarint(1) + struct.pack(">i", -1)
    of_topic = compact(topic.encode()) + uvarint(2) + of_partition + compact(records) + b"\x00" + b"\x00"
    return _response(struct.pack(">ihi", 0, 0, 0) + uvarint(2) + of_topic + b"\x00")


def fetch_error_at(topic: str) -> int:
    """Position of the partition's error code in a Fetch v12 response (including the length prefix)."""
    return 4 + 4 + 1 + 10 + 1 + len(compact(topic.encode())) + 1 + 4


def fetch_overhead_bytes(topic: str) -> int:
    """Length of a Fetch v12 response of about 1 MB, minus that of its records."""
    return len(fetch_response(topic, 0, bytes(1 << 20), high_watermark=0)) - (1 << 20)


def _response(body: bytes) -> bytes:
    return struct.pack(">iib", 4 + 1 + len(body), 0, 0) + body


def api_versions_request() -> bytes:
    """ApiVersions v0: the cheapest request."""
    return frame(API_VERSIONS, 0, b"", flexible=False)


def create_topic_request(topic: str, partitions: int, config: dict[str, str] | None = None) -> bytes:
    """CreateTopics v2 for one topic."""
    name = topic.encode()
    configs = struct.pack(">i", len(config or {}))
    for key, value in (config or {}).items():
        configs += struct.pack(">h", len(key)) + key.encode() + struct.pack(">h", len(value)) + value.encode()
    of_topic = struct.pack(">h", len(name)) + name + struct.pack(">ihi", partitions, 1, 0) + configs
    return frame(
        CREATE_TOPICS, CREATE_TOPICS_VERSION, struct.pack(">i", 1) + of_topic + struct.pack(">ib", 30_000, 0), flexible=False
    )


@dataclass(frozen=True, slots=True)
class CreateTopicAnswer:
    """CreateTopics v2's answer for the one topic."""

    error_code: int


def parse_create_topic_response(body: bytes) -> CreateTopicAnswer:
    """`body`: the response after its length prefix."""
    _correlation, _throttle, _count, name_bytes = struct.unpack_from(">iiih", body)
    (code,) = struct.unpack_from(">h", body, 14 + name_bytes)
    return CreateTopicAnswer(code)
