"""Batches to folded files and back (`log/folded_file.py`, `log/column_encoder.py`): consumers see the same records.

Runs: batches of any records, with gaps between and inside them, of both timestamp types, written as row groups of any size and
encoded to batches of any size. Compared: every record with its offset and timestamp type, and that the new batches cover the
extent without a gap. A mismatch means that a fold changes acked records.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.log import folded_file
from headgate.broker.log.batch import LOG_APPEND_TIME, crc_matches, parse_header, stamp_append_time
from headgate.broker.log.column_encoder import encode_batches
from headgate.broker.log.compression import Codec, ExpansionError
from headgate.broker.log.folded_file import FOLDED_SCHEMA, FoldedEncoder, read_batches
from headgate.broker.log.parquet import footer_size, read_footer, read_group
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.log.transactions import marker, ranges_of
from headgate.broker.runtime.errors import InvalidError
from tests.support.examples import examples

BYTES = st.one_of(st.none(), st.binary(max_size=40))
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(st.integers(-1, 1 << 45), BYTES, BYTES, HEADERS), min_size=1, max_size=15)
BATCHES = st.lists(st.tuples(RECORDS, st.integers(0, 100_000), st.one_of(st.none(), st.integers(0, 3))), min_size=1, max_size=5)
CUTS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 30)), max_size=2)


@given(BATCHES, CUTS, st.sampled_from((200, 1000, 1 << 20)), st.integers(100, 2000), st.integers(0, 5))
@settings(deadline=None, max_examples=examples(20))
def test_records_are_the_same(
    given_batches: list[tuple[list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]], int, int | None]],
    cuts: list[tuple[int, int]],
    row_group_bytes: int,
    batch_bytes: int,
    behind: int,
) -> None:
    data = bytearray()
    expected: list[tuple[Record, int]] = []
    ranges = [(low, low + size) for low, size in cuts]
    base = offset = 7
    for records, gap, appended_ms in given_batches:
        made = [Record(offset + at, *record) for at, record in enumerate(records)]
        batch = bytearray(encode_batch(made))
        batch[:8] = offset.to_bytes(8, "big")
        kind = 0
        if appended_ms is not None:
            stamp_append_time(memoryview(batch), 0, len(batch), appended_ms)
            made = [one._replace(timestamp_ms=appended_ms) for one in made]
            kind = LOG_APPEND_TIME
        expected += [(one, kind) for one in made if not any(low <= one.offset < high for low, high in ranges)]
        data += batch
        offset += len(made) + gap
    end = offset + behind
    (rows,) = read_batches(bytes(data), 3, 0, 1 << 60, ranges)
    assert rows.schema == FOLDED_SCHEMA
    encoder = FoldedEncoder(3, row_group_bytes=row_group_bytes)
    if not expected:
        assert rows.num_rows == 0
        return
    encoder.add(rows)
    file = encoder.finish().data.to_pybytes()
    footer = read_footer(file[len(file) - footer_size(file, len(file)) :], len(file))
    assert footer.has_offsets and footer.rows == len(expected)
    seen: list[tuple[Record, int]] = []
    position = base
    for number, group in enumerate(footer.groups):
        assert group.first_offset is not None
        last = number + 1 == len(footer.groups)
        first = base if not number else group.first_offset
        until = end if last else footer.groups[number + 1].first_offset
        table = read_group(footer, group, file[group.start : group.end])
        for one in encode_batches(table, first, end_offset=until, leader_epoch=4, batch_bytes_max=batch_bytes):
            header = parse_header(one)
            assert crc_matches(one) and header.base_offset == position and header.leader_epoch == 4
            position = header.next_offset
            seen += [(record, header.attributes & LOG_APPEND_TIME) for record in iter_records(one)]
    assert position == end
    assert seen == expected


def test_aborted_records_and_markers_are_no_rows() -> None:
    def batch(offset: int, producer_id: int, *, transactional: bool = True) -> bytes:
        made = bytearray(
            encode_batch(
                [Record(0, 1, b"k", b"%d" % offset)], producer_id=producer_id, producer_epoch=0, base_sequence=0,
                transactional=transactional,
            )
        )  # fmt: skip
        made[:8] = offset.to_bytes(8, "big")
        return bytes(made)

    def end(offset: int, producer_id: int, *, commit: bool) -> bytes:
        made = marker(producer_id, 0, 0, commit=commit)
        made[:8] = offset.to_bytes(8, "big")
        return bytes(made)

    data = b"".join(
        [
            batch(0, 5), batch(1, 6), end(2, 5, commit=False), batch(3, 5), end(4, 5, commit=True), end(5, 6, commit=False),
            batch(6, 6, transactional=False),
        ]
    )  # fmt: skip
    aborted = ranges_of([(5, 0, 2), (6, 1, 5)])
    assert next(read_batches(data, 0, 0, 10, (), aborted)).column("offset").to_pylist() == [3, 6]
    assert next(read_batches(data, 0, 0, 10)).column("offset").to_pylist() == [0, 1, 3, 6]


def test_memory_is_bounded_however_far_batches_expand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred MB of equal bytes in a few kB: they come in parts. A batch above the limits stays."""
    bomb = [Record(0, 0, b"k", bytes(1 << 20))]
    data = b"".join(numbered(encode_batch(bomb, compression=Codec.ZSTD), offset) for offset in range(100))
    assert len(data) < 100_000
    parts = list(read_batches(data, 0, 0, 1 << 60))
    assert [offset for part in parts for offset in part.column("offset").to_pylist()] == list(range(100))
    assert max(part.nbytes for part in parts) <= folded_file.PART_BYTES + (6 << 20)
    monkeypatch.setattr(folded_file, "BATCH_BYTES_MAX", 1 << 20)
    with pytest.raises(ExpansionError):
        list(read_batches(data, 0, 0, 1 << 60))
    monkeypatch.setattr(folded_file, "BATCH_RECORDS_MAX", 2)
    with pytest.raises(InvalidError, match="too many records"):
        list(read_batches(encode_batch([Record(0, 0, b"k", b"v")] * 3), 0, 0, 1 << 60))
    assert next(read_batches(b"", 0, 0, 1)).num_rows == 0, "at least one part"


def numbered(batch: bytes, base_offset: int) -> bytes:
    """The batch at an offset, which its CRC does not cover."""
    return base_offset.to_bytes(8, "big") + batch[8:]
