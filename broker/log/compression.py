"""The codecs of a RecordBatch v2's records. Every decompression has a bound in bytes.

Clients need this, and the few places that read records; the broker moves batches as bytes. cramjam is imported at the first use,
so that it does not slow down a broker's start.
"""

from __future__ import annotations

import mmap
import struct
from enum import IntEnum
from typing import TypeAlias

from headgate.broker.runtime.errors import InvalidError, Reason

Buffer: TypeAlias = bytes | bytearray | memoryview

DECOMPRESSED_BYTES_MAX = 256 << 20
"""Bound of one batch's records after decompression, in bytes, for every reader of this project: a hostile batch must not exhaust a
reader's memory. Code that can do without a batch has lower bounds."""


class Codec(IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def named(cls, name: str) -> Codec:
        """The codec of a name as users write it (``lz4``). Raises InvalidError(UNSUPPORTED_COMPRESSION)."""
        codec = cls.__members__.get(name.upper())
        if codec is None:
            known = ", ".join(member.lower() for member in cls.__members__)
            raise InvalidError(Reason.UNSUPPORTED_COMPRESSION, f"unknown codec, expected one of {known}. codec=`{name}`")
        return codec


# Xerial's framing of snappy, which Java clients write and all clients read: magic, version, lowest compatible version, then blocks
# of (big-endian length, raw snappy). librdkafka writes raw snappy without framing; the magic distinguishes the two.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_LENGTH = struct.Struct(">i")

_NO_ROOM = "failed to write whole buffer"
"""The error text of every cramjam codec if the buffer for the result is too small."""
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HAS_SIZE = 0x08
_FIRST_GUESS_RATIO = 4
_FIRST_GUESS_BYTES_MIN = 16 << 10


class ExpansionError(InvalidError):
    """The decompressed records are larger than the caller allows. It is unknown whether they are right."""


def compress(codec: Codec, data: Buffer, *, fast: bool = False) -> bytes:
    """`data` as the records part of a batch with that codec.

    Args:
        fast: use the codec's quickest level instead of the default level of Kafka's clients.
    """
    import cramjam

    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(cramjam.gzip.compress(data, level=1) if fast else cramjam.gzip.compress(data))
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            # The one-shot function links the blocks, which Java's clients refuse to read, and uses a slow level.
            stream = cramjam.lz4.Compressor(level=1, block_linked=False)
            stream.compress(data if isinstance(data, bytes) else bytes(data))
            return bytes(stream.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=1 if fast else 3))


def decompress(codec: Codec, data: Buffer, size_bytes_max: int) -> memoryview:
    """The records that this `compress`, or that of a foreign client, was called with.

    Raises:
        ExpansionError: the result is larger than `size_bytes_max` (a few kB can hold GBs).
        InvalidError: these are not this codec's bytes. The reason of both errors is CORRUPT_MESSAGE.
    """
    if codec is Codec.NONE:
        return memoryview(data)
    if codec is Codec.SNAPPY:
        return _decompress_snappy(memoryview(data), size_bytes_max)
    import cramjam

    module = {Codec.GZIP: cramjam.gzip, Codec.LZ4: cramjam.lz4, Codec.ZSTD: cramjam.zstd}[codec]
    # A stream need not state its length. A buffer that is too small fails in the same way as corrupt input; then a buffer of the
    # largest allowed size is tried. The kernel provides its memory page by page as it is written: corrupt input costs nothing.
    guess = min(max(_FIRST_GUESS_RATIO * len(data), _FIRST_GUESS_BYTES_MIN), size_bytes_max)
    target: bytearray | mmap.mmap = bytearray(guess)
    try:
        size = module.decompress_into(data, target)
    except cramjam.DecompressionError:
        target = mmap.mmap(-1, max(size_bytes_max, 1))
        try:
            size = module.decompress_into(data, memoryview(target)[:size_bytes_max])
        except cramjam.DecompressionError as error:
            if str(error) == _NO_ROOM:
                raise _too_large(codec, size_bytes_max) from error
            raise _corrupt(codec, str(error), size_bytes_max) from error
    return memoryview(target)[:size]


def stated_bytes(codec: Codec, data: Buffer) -> int:
    """The size of the records after decompression, as far as compressed bytes state it; 0 if they do not. Costs no decompression.

    gzip always states it (modulo 4 GiB), zstd and lz4 if the client knew it when it began. snappy is not asked: its records are at
    most 22 times as large as a batch.
    """
    view = memoryview(data)
    if codec is Codec.GZIP:
        return int.from_bytes(view[-4:], "little")
    if codec is Codec.LZ4 and view[:4] == _LZ4_MAGIC and len(view) >= 14 and view[4] & _LZ4_HAS_SIZE:
        return int.from_bytes(view[6:14], "little")
    if codec is Codec.ZSTD and view[:4] == _ZSTD_MAGIC and len(view) > 4:
        return _stated_by_zstd(view)
    return 0


def _stated_by_zstd(view: memoryview) -> int:
    """The field Frame_Content_Size (RFC 8878, section 3.1.1.1)."""
    flags = view[4]
    is_single_segment = flags >> 5 & 1
    size = (is_single_segment, 2, 4, 8)[flags >> 6]
    begin = 5 + (not is_single_segment) + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(view[begin : begin + size], "little") + (256 if size == 2 else 0)


def _compress_xerial(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(view: memoryview, size_bytes_max: int) -> memoryview:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return memoryview(_decompress_block(view, size_bytes_max))
    if view[: len(_XERIAL_HEADER)] != _XERIAL_HEADER:
        raise _corrupt(Codec.SNAPPY, "unknown version of the framing", size_bytes_max)
    parts: list[bytearray] = []
    position, room = len(_XERIAL_HEADER), size_bytes_max
    while position < len(view):
        if position + _LENGTH.size > len(view):
            raise _corrupt(Codec.SNAPPY, "block is cut off", size_bytes_max)
        (length,) = _LENGTH.unpack_from(view, position)
        position += _LENGTH.size
        if not 0 <= length <= len(view) - position:
            raise _corrupt(Codec.SNAPPY, "block states a length that does not fit", size_bytes_max)
        parts.append(_decompress_block(view[position : position + length], room))
        room -= len(parts[-1])
        position += length
    return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))


def _decompress_block(block: memoryview, size_bytes_max: int) -> bytearray:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > size_bytes_max:
            raise _too_large(Codec.SNAPPY, size_bytes_max)
        target = bytearray(size)
        cramjam.snappy.decompress_raw_into(block, target)
    except cramjam.DecompressionError as error:
        raise _corrupt(Codec.SNAPPY, str(error), size_bytes_max) from error
    return target


def _too_large(codec: Codec, size_bytes_max: int) -> ExpansionError:
    return ExpansionError(
        Reason.CORRUPT_MESSAGE,
        f"records are too large after decompression. codec=`{codec.name.lower()}` size_bytes_max=`{size_bytes_max}`",
    )


def _corrupt(codec: Codec, what: str, size_bytes_max: int) -> InvalidError:
    return InvalidError(
        Reason.CORRUPT_MESSAGE,
        f"compressed records cannot be read: {what.lower()}. codec=`{codec.name.lower()}` size_bytes_max=`{size_bytes_max}`",
    )
