"""`murmur2(key) % partitions` against kafka-python's and Java's own test vectors.

A mismatch means that a key written through gRPC or Spark lands in another partition than the same key written by a Kafka client:
the order of that key is lost.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from headgate.broker.log.column_partitioner import murmur2_of, partitions_for_keys
from headgate.broker.log.partitioner import murmur2, partition_for_key

# org.apache.kafka.common.utils.UtilsTest.testMurmur2: signed, as Java prints them.
JAVA = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "expected"), JAVA)
def test_javas_vectors(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32


@given(st.binary(max_size=200))
def test_kafka_python_agrees(key: bytes) -> None:
    assert murmur2(key) == kafka_python_murmur2(key)


@given(st.binary(max_size=50), st.integers(1, 10_000))
def test_partition(key: bytes, partitions: int) -> None:
    assert partition_for_key(key, partitions) == (kafka_python_murmur2(key) & 0x7FFFFFFF) % partitions


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40)), max_size=30), st.integers(1, 10_000), st.integers(0, 5))
@settings(deadline=None)  # the first example includes the load time of libraries
def test_columns_of_keys(keys: list[bytes | None], partitions: int, first: int) -> None:
    column = pa.array(keys, pa.binary()).slice(first)
    keys = keys[first:]
    assert partitions_for_keys(column, partitions).tolist() == [
        -1 if key is None else partition_for_key(key, partitions) for key in keys
    ]
    assert [int(one) for one, key in zip(murmur2_of(column), keys, strict=True) if key is not None] == [
        murmur2(key) for key in keys if key is not None
    ]
