"""The records of `__consumer_offsets`, compared with bytes that Kafka 4.1's own classes wrote, and with garbage.

A mismatch means that Kafka's tools cannot read our positions, that we cannot read Kafka's, or that a broker of this version cannot
read the positions of an older one.
"""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.groups.records import (
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from headgate.broker.runtime.errors import CorruptError

TOPIC_ID = uuid.UUID("00000000-0000-0001-0000-000000000002")

# Written by org.apache.kafka.coordinator.group.generated.* of Kafka 4.1.0.
OFFSET_V0 = "0000000000000000002a00016d00000000000003e8"
OFFSET_V1 = "0001000000000000002a00016d00000000000003e800000000000007d0"
OFFSET_V2 = "0002000000000000002a00016d00000000000003e8"
OFFSET_V3 = "0003000000000000002a0000000700016d00000000000003e8"
OFFSET_V4 = "0004000000000000002a00000007026d00000000000003e800"
OFFSET_V4_TOPIC = "0004000000000000002a00000007026d00000000000003e801001000000000000000010000000000000002"
OFFSET_KEY = "000100016700017400000003"
GROUP_KEY = "0002000167"
_GROUP_TAIL = "00000005000000060000000201020000000103"
_NAMES = "0008636f6e73756d657200000009000572616e67650003632d31"
_MEMBER = "000000010003632d31"
_CLIENT = "00016300082f312e322e332e34"
GROUP_V0 = "0000" + _NAMES + _MEMBER + _CLIENT + "000000060000000201020000000103"
GROUP_V1 = "0001" + _NAMES + _MEMBER + _CLIENT + _GROUP_TAIL
GROUP_V2 = "0002" + _NAMES + "000000000000004d" + _MEMBER + _CLIENT + _GROUP_TAIL
GROUP_V3 = "0003" + _NAMES + "000000000000004d" + _MEMBER + "000169" + _CLIENT + _GROUP_TAIL
GROUP_V4 = (
    "000409636f6e73756d6572000000090672616e676504632d31000000000000004d0204632d310269"
    "0263092f312e322e332e34000000050000000603010202030000"
)
GROUP_EMPTY = "0003000000000000ffffffff000000000000004d00000000"


def _group(*, state_ms: int = 77, instance_id: str | None = "i", rebalance_timeout_ms: int = 5) -> GroupMetadata:
    member = MemberMetadata(
        member_id="c-1",
        instance_id=instance_id,
        client_id="c",
        client_host="/1.2.3.4",
        rebalance_timeout_ms=rebalance_timeout_ms,
        session_timeout_ms=6,
        subscription=b"\x01\x02",
        assignment=b"\x03",
    )
    return GroupMetadata(
        protocol_type="consumer", generation=9, protocol="range", leader="c-1", state_ms=state_ms, members=(member,)
    )


EMPTY = GroupMetadata(protocol_type=None, generation=0, protocol=None, leader=None, state_ms=77)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (OFFSET_V0, OffsetValue(42, -1, "m", 1000)),
        (OFFSET_V1, OffsetValue(42, -1, "m", 1000, 2000)),
        (OFFSET_V2, OffsetValue(42, -1, "m", 1000)),
        (OFFSET_V3, OffsetValue(42, 7, "m", 1000)),
        (OFFSET_V4, OffsetValue(42, 7, "m", 1000)),
        (OFFSET_V4_TOPIC, OffsetValue(42, 7, "m", 1000, -1, TOPIC_ID)),
    ],
)
def test_offset_values_of_kafka_are_read(data: str, value: OffsetValue) -> None:
    assert decode_offset_value(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (GROUP_V0, _group(state_ms=-1, instance_id=None, rebalance_timeout_ms=6)),
        (GROUP_V1, _group(state_ms=-1, instance_id=None)),
        (GROUP_V2, _group(instance_id=None)),
        (GROUP_V3, _group()),
        (GROUP_V4, _group()),
        (GROUP_EMPTY, EMPTY),
    ],
)
def test_group_values_of_kafka_are_read(data: str, value: GroupMetadata) -> None:
    assert decode_group_value(bytes.fromhex(data)) == value


def test_what_is_written_is_what_kafka_writes() -> None:
    assert encode_offset_key(OffsetKey("g", "t", 3)).hex() == OFFSET_KEY
    assert encode_group_key("g").hex() == GROUP_KEY
    assert encode_offset_value(OffsetValue(42, 7, "m", 1000)).hex() == OFFSET_V4
    assert encode_offset_value(OffsetValue(42, 7, "m", 1000, -1, TOPIC_ID)).hex() == OFFSET_V4_TOPIC
    assert encode_offset_value(OffsetValue(42, -1, "m", 1000, 2000)).hex() == OFFSET_V1
    assert encode_group_value(_group()).hex() == GROUP_V3
    assert encode_group_value(EMPTY).hex() == GROUP_EMPTY


def test_keys_are_told_apart() -> None:
    assert decode_key(bytes.fromhex(OFFSET_KEY)) == OffsetKey("g", "t", 3)
    assert decode_key(b"\x00\x00" + bytes.fromhex(OFFSET_KEY)[2:]) == OffsetKey("g", "t", 3)
    assert decode_key(bytes.fromhex(GROUP_KEY)) == "g"
    assert decode_key(b"\x00\x03\x00\x01g") is None, "a group of the protocol of KIP-848, which is not served"


def test_unknown_tagged_fields_are_skipped() -> None:
    value = bytes.fromhex(OFFSET_V4)[:-1] + b"\x01\x63\x02hi"
    assert decode_offset_value(value) == OffsetValue(42, 7, "m", 1000)


@pytest.mark.parametrize(
    "data", ["", "00", "0005" + OFFSET_V4[4:], "ffff", OFFSET_V4 + "00", OFFSET_V4[:-2], OFFSET_V4[:-2] + "01000100"]
)
def test_garbled_offset_values_are_corrupt(data: str) -> None:
    with pytest.raises(CorruptError):
        decode_offset_value(bytes.fromhex(data))


@pytest.mark.parametrize(
    "data", ["", "0005", GROUP_V3 + "00", GROUP_V3[:-2], GROUP_EMPTY[:-8] + "7fffffff", GROUP_EMPTY[:-8] + "ffffffff", "0003ffff"]
)
def test_garbled_group_values_are_corrupt(data: str) -> None:
    with pytest.raises(CorruptError):
        decode_group_value(bytes.fromhex(data))


TEXT = st.text(st.characters(codec="utf-8"), max_size=300)
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TIME = st.integers(0, 2**62)


@given(
    st.one_of(
        st.builds(OffsetValue, INT64, INT32, TEXT, TIME, st.just(-1), st.none() | st.uuids(), TIME, st.just(-1) | TIME),
        st.builds(OffsetValue, INT64, st.just(-1), TEXT, TIME, TIME, st.none(), st.just(0), st.just(-1)),
    )
)
def test_offset_values_come_back(value: OffsetValue) -> None:
    assert decode_offset_value(encode_offset_value(value)) == value


@given(
    st.builds(
        GroupMetadata,
        protocol_type=TEXT.map(lambda text: text or None),
        generation=INT32,
        protocol=st.none() | TEXT,
        leader=st.none() | TEXT,
        state_ms=INT64,
        members=st.lists(
            st.builds(
                MemberMetadata,
                member_id=TEXT,
                instance_id=st.none() | TEXT,
                client_id=TEXT,
                client_host=TEXT,
                rebalance_timeout_ms=st.integers(0, 2**31 - 1),
                session_timeout_ms=INT32,
                subscription=st.binary(),
                assignment=st.binary(),
            ),
            max_size=3,
        ).map(tuple),
    )
)
def test_group_values_come_back(value: GroupMetadata) -> None:
    assert decode_group_value(encode_group_value(value)) == value


@given(TEXT, TEXT, INT32)
def test_keys_come_back(group: str, topic: str, partition: int) -> None:
    assert decode_key(encode_offset_key(OffsetKey(group, topic, partition))) == OffsetKey(group, topic, partition)
    assert decode_key(encode_group_key(group)) == group


@given(st.binary(max_size=200), st.integers(0, 4))
def test_any_bytes_are_a_record_or_corrupt(data: bytes, version: int) -> None:
    for prefix in (b"", b"\x00" + bytes([version])):
        for decode in (decode_key, decode_offset_value, decode_group_value):
            try:
                decode(prefix + data)
            except CorruptError:
                continue
