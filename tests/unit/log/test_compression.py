"""Compressed records for clients that this machine does not have.

Runs: every codec over data of several sizes. Compared: the frame's flags with those that Kafka's Java clients accept, and the
output of foreign libraries with the input. A mismatch means that a Java consumer cannot read records that our producer or a
broker compressed.
"""

from __future__ import annotations

import gzip
import random

import lz4.frame
import pytest
import zstandard

from headgate.broker.log.compression import Codec, compress, decompress

SIZES = (0, 1, 100, 70_000, 300_000)


def words(size: int) -> bytes:
    chance = random.Random(size)
    return b"".join(b"word-%d " % chance.randrange(1000) for _ in range(size // 5 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("codec", list(Codec))
def test_it_comes_back(codec: Codec, fast: bool, size: int) -> None:
    data = words(size)
    packed = compress(codec, data, fast=fast)
    assert bytes(decompress(codec, packed, size or 1)) == data
    if codec is Codec.GZIP:
        assert gzip.decompress(packed) == data
    if codec is Codec.LZ4:
        assert lz4.frame.decompress(packed) == data
    if codec is Codec.ZSTD:
        assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == data


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_lz4_do_not_depend_on_each_other(size: int) -> None:
    """Lz4BlockInputStream: "Dependent block stream is unsupported (BLOCK_INDEPENDENCE must be set)"."""
    packed = compress(Codec.LZ4, words(size))
    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] >> 6 == 1, "version"
    assert packed[4] & 0x20, "blocks are independent"
    assert not packed[4] & 0x01, "no dictionary"
