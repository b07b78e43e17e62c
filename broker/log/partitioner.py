"""The partition of a key: `murmur2(key) % partitions`, bit for bit as Kafka's Java client computes it.

Every writer of a key (Kafka clients, ours, Spark) must compute the same partition, or the order of that key is lost. Source:
org.apache.kafka.common.utils.Utils.murmur2 and BuiltInPartitioner.partitionForKey.
"""

from __future__ import annotations

import struct
from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash as an unsigned number (Java prints the same bits signed)."""
    length = len(data)
    hashed = _SEED ^ length
    for word in _words(length >> 2).unpack_from(data):
        word = word * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ word
    rest = length & 3
    if rest:
        hashed = (hashed ^ int.from_bytes(data[-rest:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition of a key in a topic of `partitions` (>= 1) partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=256)
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}I")
