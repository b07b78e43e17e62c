"""Chunks of the WAL (`broker/log/chunk.py`): a scan of bytes that a crash, a bad medium or another incarnation left.

Runs: chunks made of whole groups, then cut at every byte, with every byte flipped, torn, continued by zeros or by foreign bytes.
Compared: the frames of the scan with the written batches. A mismatch means that a restart loses acked records, invents some, or
silently passes over a hole.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

import pytest

from headgate.broker.log.batch import LENGTH_OVERHEAD_BYTES, parse_header, stamp
from headgate.broker.log.chunk import (
    CHUNK_HEADER_BYTES,
    FLAG_SYNCED,
    FORMAT_VERSION,
    GROUP_HEADER_BYTES,
    ChunkScan,
    Frame,
    chunk_header,
    group_header,
    parse_stream_key,
    stream_key,
)
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.errors import CorruptError

INCARNATION = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF).bytes
OTHER = uuid.UUID(int=7).bytes
TOPIC = uuid.UUID(int=99).bytes
NOW_MS = 1_700_000_000_000
HEADER_KNOWN_BYTES = 25
"""The first bytes of a chunk's header, up to the last non-zero byte of its number; only the creation time follows them."""

Group = Sequence[tuple[bytes, bytes]]
"""(stream key, batch) of each frame."""


def batch(offset: int, size: int = 20) -> bytes:
    data = bytearray(encode_batch([Record(0, NOW_MS, b"key", bytes([offset % 251]) * size)]))
    stamp(data, 0, offset, len(data) - LENGTH_OVERHEAD_BYTES, 3)
    return bytes(data)


def group(sequence: int, frames: Group, incarnation: bytes = INCARNATION) -> bytes:
    keys = [key for key, _ in frames]
    body = b"".join(data for _, data in frames)
    size = GROUP_HEADER_BYTES + 20 * len(keys) + len(body)
    return group_header(incarnation, sequence, NOW_MS + sequence, size, keys) + body


def groups(count: int, first: int = 0) -> list[Group]:
    """Groups of one to three frames of two streams."""
    made: list[Group] = []
    offset = 0
    for sequence in range(first, first + count):
        frames = []
        for _ in range(sequence % 3 + 1):
            frames.append((stream_key(TOPIC, offset % 2), batch(offset, 10 + 7 * sequence)))
            offset += 1
        made.append(frames)
    return made


def chunk(contents: Sequence[Group], *, first: int = 0, flags: int = FLAG_SYNCED, number: int = 5) -> bytes:
    parts = [chunk_header(INCARNATION, number, NOW_MS, flags)]
    parts += [group(first + at, frames) for at, frames in enumerate(contents)]
    return b"".join(parts)


def scan(data: bytes, sequence: int = 0) -> tuple[ChunkScan, list[Frame]]:
    scanned = ChunkScan(data, INCARNATION, 5, sequence)
    return scanned, list(scanned)


def frames_of(contents: Sequence[Group]) -> list[tuple[bytes, bytes]]:
    return [frame for frames in contents for frame in frames]


def found(data: bytes, frames: Sequence[Frame]) -> list[tuple[bytes, bytes]]:
    return [(frame.stream, data[frame.position : frame.position + frame.size_bytes]) for frame in frames]


def ends(contents: Sequence[Group]) -> list[int]:
    """The end offsets of the chunk's header and of each group, in bytes."""
    positions = [CHUNK_HEADER_BYTES]
    for at, frames in enumerate(contents):
        positions.append(positions[-1] + len(group(at, frames)))
    return positions


def stamps(whole: bytes) -> set[int]:
    """The bytes of offsets and epochs, which no checksum covers."""
    return {frame.position + byte for frame in scan(whole)[1] for byte in (*range(8), *range(12, 16))}


FIVE = groups(5)


def test_a_stream_key_names_topic_and_partition() -> None:
    assert parse_stream_key(stream_key(TOPIC, 4_000_000_000)) == (TOPIC, 4_000_000_000)
    assert len(stream_key(TOPIC, 0)) == 20


def test_a_whole_chunk_is_read_as_it_was_written() -> None:
    data = chunk(FIVE)
    scanned, frames = scan(data)
    assert found(data, frames) == frames_of(FIVE)
    assert scanned.end == len(data)
    assert scanned.sequence_next == 5
    assert scanned.damage is None
    assert scanned.synced
    for frame in frames:
        assert frame.header == tuple(parse_header(data, frame.position))
    assert sorted({frame.appended_ms for frame in frames}) == [NOW_MS + sequence for sequence in range(5)]


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(buffer: type) -> None:
    assert len(list(ChunkScan(buffer(chunk(FIVE)), INCARNATION, 5, 0))) == len(frames_of(FIVE))


def test_a_scan_may_begin_in_the_middle_of_the_wal() -> None:
    data = chunk(FIVE, first=70)
    assert ChunkScan.first_sequence(data) == 70
    scanned, frames = scan(data, 70)
    assert found(data, frames) == frames_of(FIVE)
    assert scanned.sequence_next == 75
    assert ChunkScan.first_sequence(data[: CHUNK_HEADER_BYTES + GROUP_HEADER_BYTES - 1]) == 0


@pytest.mark.parametrize("flags", [0, FLAG_SYNCED])
@pytest.mark.parametrize("behind", [b"", bytes(1), bytes(10_000)])
def test_a_chunk_cut_at_every_byte_has_exactly_the_groups_that_are_whole(flags: int, behind: bytes) -> None:
    whole = chunk(FIVE, flags=flags)
    boundaries = ends(FIVE)
    for size in range(len(whole) + 1):
        data = whole[:size] + behind
        scanned, frames = scan(data)
        count = sum(boundary <= size for boundary in boundaries[1:])
        # Zeros may complete a group that ends with zeros itself.
        if behind and count < len(FIVE) and data[: boundaries[count + 1]] == whole[: boundaries[count + 1]]:
            count += 1
        assert found(data, frames) == frames_of(FIVE[:count]), size
        assert scanned.sequence_next == count
        header_is_there = size >= HEADER_KNOWN_BYTES and len(data) >= CHUNK_HEADER_BYTES
        assert scanned.end == (boundaries[count] if header_is_there else 0), size


@pytest.mark.parametrize("flags", [0, FLAG_SYNCED])
def test_every_flipped_byte_ends_the_scan_before_it_or_is_an_error(flags: int) -> None:
    whole = chunk(FIVE, flags=flags)
    boundaries = ends(FIVE)
    unchecked = stamps(whole) | {at + byte for at in boundaries for byte in range(GROUP_HEADER_BYTES - 4, GROUP_HEADER_BYTES)}
    for position in range(CHUNK_HEADER_BYTES, len(whole)):
        if position in unchecked:
            continue
        data = bytearray(whole)
        data[position] ^= 0x41
        harmed = sum(boundary <= position for boundary in boundaries) - 1
        scanned = ChunkScan(bytes(data), INCARNATION, 5, 0)
        frames: list[Frame] = []
        if flags and harmed < len(FIVE) - 1:
            with pytest.raises(CorruptError):
                frames.extend(scanned)
        else:
            frames = list(scanned)
            assert found(whole, frames) == frames_of(FIVE[:harmed]), position
            assert scanned.end == boundaries[harmed]
            if position - boundaries[harmed] >= 4:
                assert scanned.damage is not None
        assert scanned.sequence_next == harmed


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_group_of_zeros_in_the_middle_is_damage(lost: int) -> None:
    boundaries = ends(FIVE)
    for flags in (0, FLAG_SYNCED):
        data = bytearray(chunk(FIVE, flags=flags))
        data[boundaries[lost] : boundaries[lost + 1]] = bytes(boundaries[lost + 1] - boundaries[lost])
        scanned = ChunkScan(bytes(data), INCARNATION, 5, 0)
        if flags:
            with pytest.raises(CorruptError, match="lost acked data"):
                list(scanned)
        else:
            assert len(list(scanned)) == len(frames_of(FIVE[:lost]))
            assert scanned.damage is not None
            assert scanned.end == boundaries[lost]


def test_a_torn_last_group_is_cut_whichever_part_is_missing() -> None:
    whole = chunk(FIVE)
    boundaries = ends(FIVE)
    unchecked = stamps(whole)
    chance = random.Random(3)
    for _ in range(300):
        data = bytearray(whole + bytes(100))
        start = chance.randrange(boundaries[4], boundaries[5])
        end = chance.randint(start + 1, boundaries[5])
        if not any(data[byte] for byte in range(start, end) if byte not in unchecked):
            continue
        data[start:end] = bytes(end - start)
        scanned, frames = scan(bytes(data))
        assert found(whole, frames) == frames_of(FIVE[:4])
        assert scanned.end == boundaries[4]


def test_records_that_hold_a_wal_are_records() -> None:
    inner = chunk(groups(3, first=8), first=8)
    contents = [*FIVE[:2], [(stream_key(TOPIC, 0), bytes(_with_value(inner)))]]
    data = chunk(contents)
    scanned, frames = scan(data)
    assert found(data, frames) == frames_of(contents)
    assert scanned.end == len(data)
    # The last group is torn; bytes inside one of its records that look like a group must not count as one.
    assert scan(data[:-1])[1] == frames[:-1]


def _with_value(value: bytes) -> bytes:
    return encode_batch([Record(0, NOW_MS, None, value)])


def test_groups_of_another_incarnation_or_sequence_are_not_read() -> None:
    boundaries = ends(FIVE)
    head = chunk(FIVE[:2])
    foreign = group(2, FIVE[2], OTHER)
    stale = group(1, FIVE[1])
    early = group(9, FIVE[2])
    for behind in (foreign, stale, foreign + foreign):
        data = head + behind
        scanned, frames = scan(data)
        assert found(data, frames) == frames_of(FIVE[:2])
        assert scanned.end == boundaries[2]
    with pytest.raises(CorruptError):
        scan(head + early)


def test_an_index_behind_the_group_is_no_damage() -> None:
    data = chunk(FIVE[:1]) + bytes(range(1, 200))
    scanned, frames = scan(data)
    assert found(data, frames) == frames_of(FIVE[:1])
    assert scanned.damage is None


@pytest.mark.parametrize("size", [0, 1, CHUNK_HEADER_BYTES - 1, CHUNK_HEADER_BYTES, 100_000])
def test_zeros_are_an_empty_chunk(size: int) -> None:
    scanned, frames = scan(bytes(size))
    assert (frames, scanned.end, scanned.sequence_next, scanned.damage) == ([], 0, 0, None)


def test_a_chunk_without_groups_is_empty() -> None:
    for behind in (b"", bytes(5000)):
        scanned, frames = scan(chunk([]) + behind)
        assert (frames, scanned.end, scanned.damage) == ([], CHUNK_HEADER_BYTES, None)


def test_a_torn_chunk_header_is_an_empty_chunk() -> None:
    whole = chunk([])
    for size in range(1, HEADER_KNOWN_BYTES):
        scanned, frames = scan(whole[:size] + bytes(5000))
        assert (frames, scanned.end) == ([], 0), size
        assert scanned.damage is not None
    with pytest.raises(CorruptError):
        scan(whole[:10] + bytes(CHUNK_HEADER_BYTES - 10) + group(0, FIVE[0]))


@pytest.mark.parametrize(
    "header",
    [
        chunk_header(OTHER, 5, NOW_MS, FLAG_SYNCED),
        chunk_header(INCARNATION, 6, NOW_MS, FLAG_SYNCED),
        b"HGxx" + chunk_header(INCARNATION, 5, NOW_MS, FLAG_SYNCED)[4:],
        chunk_header(INCARNATION, 5, NOW_MS, FLAG_SYNCED)[:4]
        + bytes([FORMAT_VERSION + 1, 0])
        + chunk_header(INCARNATION, 5, NOW_MS, 1)[6:],
    ],
    ids=["incarnation", "number", "magic", "newer version"],
)
def test_a_foreign_chunk_is_refused(header: bytes) -> None:
    with pytest.raises(CorruptError):
        scan(header + group(0, FIVE[0]))


def test_random_bytes_raise_nothing_else() -> None:
    chance = random.Random(5)
    head = chunk_header(INCARNATION, 5, NOW_MS, FLAG_SYNCED)
    whole = chunk(FIVE)
    for _ in range(2000):
        data = bytearray(chance.choice((b"", head, whole)))
        for _ in range(chance.randint(0, 3)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        data += chance.randbytes(chance.randint(0, 100))
        try:
            list(ChunkScan(bytes(data), INCARNATION, 5, chance.randint(0, 2)))
        except CorruptError:
            continue
