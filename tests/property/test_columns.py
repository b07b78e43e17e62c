"""Rows of columns against the record codec, which encodes one record at a time.

Runs: tables with keys, values and headers of every kind (null, empty, short enough to stand in an Arrow view, long, as text, as
slices of larger arrays), times from 1960 to 2200, batches cut by bytes and by rows, every codec, and corrupted bytes. Compared:
batches with the output of `records.encode_batch` and with the records that `records.iter_records` reads; decoded rows with the
source; checksums with a plain Python version of their definition. A mismatch means that a Kafka client gets other records than
the uploaded history, or that a certificate wrongly reports such a difference.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.log import column_chain, column_decoder, column_encoder
from headgate.broker.log.batch import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, crc_matches, parse_header, stamp
from headgate.broker.log.compression import Codec
from headgate.broker.log.history_columns import (
    HEADERS_TYPE,
    SCHEMA,
    TIMESTAMP_MS_MAX,
    checksum,
    decode_batches,
    encode_batches,
    timestamp_types,
)
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises
from tests.support.examples import examples

CODECS = list(Codec)
Y1960, Y2200 = -315_619_200_000, 7_258_118_400_000


class Row(NamedTuple):
    """A record of the source. `headers` None: null, as distinct from an empty list."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] | None


def table(rows: list[Row], *, with_headers: bool = True, unit: str = "ms") -> pa.RecordBatch:
    """The rows as columns without `offset`."""
    scale = {"ms": 1, "us": 1000}[unit]
    kinds: dict[str, Any] = {"ms": pa.timestamp("ms", tz="UTC"), "us": pa.timestamp("us", tz="UTC")}
    times = [row.timestamp_ms * scale + (scale - 1 if scale > 1 else 0) for row in rows]
    columns: list[Any] = [
        pa.array(times, pa.int64()).cast(kinds[unit]),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
    ]
    names = ["timestamp", "key", "value"]
    if with_headers:
        items = [None if row.headers is None else [{"key": name, "value": value} for name, value in row.headers] for row in rows]
        columns.append(pa.array(items, HEADERS_TYPE))
        names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names=names)


def records(rows: list[Row], base_offset: int, *, with_headers: bool = True) -> list[Record]:
    return [
        Record(base_offset + at, row.timestamp_ms, row.key, row.value, (row.headers or ()) if with_headers else ())
        for at, row in enumerate(rows)
    ]


def encoded(rows: pa.RecordBatch | pa.Table, base_offset: int, **how: Any) -> list[memoryview]:
    return list(encode_batches(rows, base_offset, **how))


def read(batches: list[memoryview]) -> list[Record]:
    assert all(crc_matches(batch) for batch in batches)
    return [record for batch in batches for record in iter_records(batch)]


def as_records(rows: pa.RecordBatch) -> list[Record]:
    rows.validate(full=True)
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    columns: Any = zip(*(rows.column(name).to_pylist() for name in ("offset", "key", "value", "headers")), times, strict=True)
    return [
        Record(offset, time, key, value, tuple((item["key"], item["value"]) for item in headers or ()))
        for offset, key, value, headers, time in columns
    ]


contents = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=70), st.integers(120, 9000).map(bytes))
header_lists = st.one_of(
    st.none(),
    st.just(()),
    st.lists(st.tuples(st.text(max_size=15), contents), max_size=4).map(tuple),
)
times = st.one_of(st.integers(Y1960, Y2200), st.integers(1_700_000_000_000, 1_700_000_001_000), st.integers(-(1 << 50), 1 << 50))
sources = st.lists(st.builds(Row, times, contents, contents, header_lists), min_size=1, max_size=40)


@given(
    rows=sources,
    codec=st.sampled_from(CODECS),
    batch_bytes_max=st.sampled_from([70, 300, 5000, 1 << 20]),
    batch_rows_max=st.sampled_from([1, 2, 7, 1 << 16]),
    with_headers=st.booleans(),
    base_offset=st.sampled_from([0, 5, (1 << 40) + 1]),
    unit=st.sampled_from(["ms", "us"]),
)
@settings(max_examples=examples(25), deadline=None)
def test_batches_have_the_rows(
    rows: list[Row], codec: Codec, batch_bytes_max: int, batch_rows_max: int, with_headers: bool, base_offset: int, unit: str
) -> None:
    source = table(rows, with_headers=with_headers, unit=unit)
    batches = encoded(
        source,
        base_offset,
        leader_epoch=7,
        compression=codec,
        batch_bytes_max=batch_bytes_max,
        batch_rows_max=batch_rows_max,
    )
    expected = records(rows, base_offset, with_headers=with_headers)
    assert read(batches) == expected
    at = base_offset
    for batch in batches:
        header = parse_header(batch)
        assert (header.base_offset, header.leader_epoch, header.producer_id) == (at, 7, -1)
        assert header.record_count <= batch_rows_max
        assert header.max_timestamp == max(record.timestamp_ms for record in expected if at <= record.offset < header.next_offset)
        assert len(batch) <= batch_bytes_max or header.record_count == 1
        at = header.next_offset
    decoded = decode_batches(batches)
    assert decoded.schema == SCHEMA
    assert as_records(decoded) == expected
    assert checksum(decoded) == checksum(source) == plain_checksum(expected)
    low, high = base_offset + len(rows) // 3, base_offset + len(rows) // 2 + 1
    assert as_records(decode_batches(batches, start=low, end=high)) == expected[low - base_offset : high - base_offset]


@given(
    rows=st.lists(st.builds(Row, st.integers(0, Y2200), contents, contents, st.just([])), min_size=1, max_size=30),
    chosen=st.lists(st.integers(0, 29), min_size=1, max_size=40),
    codec=st.sampled_from(CODECS),
    most=st.integers(1, 50),
)
@settings(max_examples=examples(25))
def test_rows_that_are_divided_have_the_bytes_of_rows_that_were_taken(
    rows: list[Row], chosen: list[int], codec: Codec, most: int
) -> None:
    source = pa.Table.from_batches([table(rows, with_headers=False)])
    mine = np.array([number % len(rows) for number in chosen], np.int64)
    how = {"leader_epoch": 3, "batch_rows_max": most}
    made = list(column_encoder.DividedRows(source).encode(mine, 7, codec=codec, **how))
    assert made == encoded(source.take(pa.array(mine)), 7, compression=codec, **how)


@given(rows=st.lists(st.builds(Row, st.integers(0, Y2200), contents, contents, header_lists), min_size=1, max_size=30))
@settings(max_examples=examples(20), deadline=None)
def test_an_uncompressed_batch_is_what_a_producer_sends(rows: list[Row]) -> None:
    (batch,) = encoded(table(rows), 0, leader_epoch=-1, batch_bytes_max=1 << 30)
    assert batch == encode_batch(records(rows, 0))


@given(
    parts=st.lists(sources, min_size=1, max_size=5),
    codecs=st.lists(st.sampled_from(CODECS), min_size=5, max_size=5),
)
@settings(max_examples=examples(25), deadline=None)
@pytest.mark.usefixtures("lanes")
def test_batches_of_any_producer_are_decoded_together(parts: list[list[Row]], codecs: list[Codec]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_decoder, "GROUP_BYTES", 20_000)
        patch.setattr(column_decoder, "IN_PLACE_BYTES", 30_000)
        expected: list[Record] = []
        buffers: list[bytes] = []
        for number, rows in enumerate(parts):
            base = number * 1000
            expected += records(rows, base)
            batch = bytearray(encode_batch(records(rows, 0), compression=codecs[number]))
            stamp(batch, 0, base, len(batch) - LENGTH_OVERHEAD_BYTES, 3)
            buffers.append(bytes(batch))
        assert as_records(decode_batches(buffers)) == expected
        assert as_records(decode_batches([b"".join(buffers)])) == expected


@pytest.fixture(scope="module", params=[False, True])
def lanes(request: pytest.FixtureRequest) -> Iterator[None]:
    """True: the decoder uses lanes even for a few records."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param:
            patch.setattr(column_chain, "ROWS_MIN", 1)
            patch.setattr(column_chain, "LANE_ROWS_MIN", 2)
            patch.setattr(column_chain, "STEP_ROWS_MIN", 1)
        yield


@pytest.mark.usefixtures("lanes")
@given(rows=sources, at=st.integers(0, 1 << 30), byte=st.integers(0, 255), codec=st.sampled_from(CODECS), cut=st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_spoiled_bytes_are_refused_or_read_as_the_record_codec_does(
    rows: list[Row], at: int, byte: int, codec: Codec, cut: bool
) -> None:
    """The corrupted batch is tested alone and between two others."""
    from crc32c import crc32c

    batch = bytearray(encode_batch(records(rows, 0), compression=codec))
    position = HEADER_BYTES + at % (len(batch) - HEADER_BYTES)
    if cut:
        del batch[position:]
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    else:
        batch[position] = byte
    if len(batch) <= HEADER_BYTES:
        return
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    try:
        expected = list(iter_records(batch))
    except InvalidError:
        expected = None
    other = encode_batch([Record(0, 7, b"key", b"value", ())])
    between = [bytes(other) + bytes(batch) + bytes(other)]
    if expected is None:
        for buffers in ([batch], between):
            with pytest.raises(InvalidError):
                decode_batches(buffers)
        return
    if any(not 0 <= record.timestamp_ms + (1 << 62) < 1 << 63 for record in expected):
        return
    try:
        decoded = decode_batches([batch])
        together = as_records(decode_batches(between))
    except InvalidError:
        assert any("\udc80" <= char <= "\udcff" for record in expected for name, _ in record.headers for char in name)
        return
    plain = [
        record._replace(
            headers=tuple(
                (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), value) for name, value in record.headers
            )
        )
        for record in expected
    ]
    assert as_records(decoded) == plain
    assert together[1:-1] == plain and together[0] == together[-1] == next(iter_records(other))


@given(data=st.binary(max_size=300))
@settings(max_examples=examples(25), deadline=None)
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    try:
        decode_batches([data])
    except InvalidError as error:
        assert error.reason in (Reason.CORRUPT_MESSAGE, Reason.UNSUPPORTED_COMPRESSION)


def test_large_groups_are_cut_and_every_row_is_there() -> None:
    chance = random.Random(7)
    rows = [
        Row(
            1_700_000_000_000 + at * 3, b"k%d" % at if at % 3 else None, chance.randbytes(chance.choice((0, 11, 13, 80, 300))), None
        )
        for at in range(40_000)
    ]
    source = table(rows, with_headers=False)
    batches = encoded(source, 10, batch_bytes_max=200_000)
    assert len(batches) > 10
    assert max(len(batch) for batch in batches) <= 200_000
    assert read(batches) == records(rows, 10)
    assert checksum(decode_batches(batches)) == checksum(source)
    assert as_records(decode_batches(batches, start=20_000, end=20_010)) == records(rows, 10)[19_990:20_000]


def test_groups_of_one_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for rows that are larger than a group: properties that all rows share must not be taken from one row."""
    monkeypatch.setattr(column_encoder, "GROUP_ROWS", 1)
    keys = [None, b"", b"k", bytes(63), bytes(64), bytes(9_000), b"k"]
    rows = [Row(1_000 + 300 * at, key, bytes(20 * at), None) for at, key in enumerate(keys)]
    assert read(encoded(table(rows, with_headers=False), 5, batch_rows_max=1)) == records(rows, 5)
    assert read(encoded(table(rows, with_headers=False), 5, batch_rows_max=2)) == records(rows, 5)


def test_slices_chunks_and_other_types_of_columns() -> None:
    rows = [Row(Y1960 + at, b"key%d" % at, b"value of %d" % at if at % 4 else None, (("h", b"%d" % at),)) for at in range(100)]
    whole = table(rows)
    expected = records(rows[10:60], 10)
    assert read(encoded(whole.slice(10, 50), 10)) == expected
    assert as_records(decode_batches(encoded(whole.slice(10, 50), 10))) == expected
    chunked = pa.Table.from_batches([whole.slice(10, 20), whole.slice(30, 30)])
    assert read(encoded(chunked, 10)) == expected
    assert checksum(chunked) == checksum(whole.slice(10, 50))
    text = chunked.set_column(1, "key", chunked["key"].cast(pa.string())).set_column(
        2, "value", chunked["value"].cast(pa.large_binary())
    )
    assert read(encoded(text, 10)) == expected
    views = chunked.set_column(2, "value", chunked["value"].cast(pa.binary_view()))
    assert read(encoded(views, 10)) == expected
    nothing = pa.table({"timestamp": pa.array([5], pa.int64()), "key": pa.nulls(1), "value": pa.nulls(1), "headers": pa.nulls(1)})
    assert read(encoded(nothing, 3)) == [Record(3, 5, None, None)]
    seconds = whole.set_column(0, "timestamp", pa.array([-5] * 100, pa.timestamp("s")))
    assert read(encoded(seconds, 0))[0].timestamp_ms == -5000


def test_batches_are_made_one_at_a_time() -> None:
    source = table([Row(at, None, bytes(1_000), None) for at in range(4_000)], with_headers=False)
    before = pa.total_allocated_bytes()
    allocated = []
    for batch in encode_batches(source, 0, batch_bytes_max=100_000):
        allocated.append(pa.total_allocated_bytes() - before)
        del batch
    assert len(allocated) > 40
    assert max(allocated) < 1_000_000, "bytes, of 4 MB"


def test_rows_that_are_nothing() -> None:
    assert encoded(table([]), 0) == []
    assert decode_batches([]).num_rows == 0
    assert decode_batches([]).schema == SCHEMA
    assert checksum(table([])) == 0


def test_a_row_larger_than_a_batch_is_a_batch_of_its_own() -> None:
    rows = [Row(1, b"a", b"small", None), Row(2, b"b", bytes(300_000), None), Row(3, b"c", b"small", None)]
    batches = encoded(table(rows), 0, batch_bytes_max=100_000)
    assert [parse_header(batch).record_count for batch in batches] == [1, 1, 1]
    assert read(batches) == records(rows, 0)
    assert checksum(table(rows)) == plain_checksum(records(rows, 0))


def test_what_does_not_shrink_is_left_uncompressed() -> None:
    rows = [Row(1, None, random.Random(1).randbytes(100_000), None)]
    for codec in CODECS:
        (batch,) = encoded(table(rows), 0, compression=codec)
        assert parse_header(batch).attributes == 0
        assert len(batch) < 100_100
    (batch,) = encoded(table([Row(1, None, bytes(100_000), None)]), 0, compression="lz4")
    assert parse_header(batch).attributes == Codec.LZ4


LOOSE_HEADERS_TYPE: Any = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
BINARY_HEADERS_TYPE: Any = pa.list_(pa.struct([pa.field("key", pa.binary()), pa.field("value", pa.binary())]))


def with_headers(headers: list[Any], kind: Any) -> dict[str, Any]:
    """The columns of one row."""
    return {"timestamp": pa.array([1]), "key": pa.nulls(1), "value": pa.nulls(1), "headers": pa.array(headers, kind)}


def test_null_headers_beside_others() -> None:
    columns = {name: pa.concat_arrays([column] * 4) for name, column in with_headers([None], LOOSE_HEADERS_TYPE).items()}
    rows = pa.table(columns).set_column(3, "headers", pa.array([None, [{"key": "a", "value": None}], None, []], LOOSE_HEADERS_TYPE))
    assert [record.headers for record in read(encoded(rows, 0))] == [(), (("a", None),), (), ()]


def test_offsets_must_be_consecutive_where_they_are_said() -> None:
    source = table([Row(1, None, b"a", None), Row(1, None, b"b", None)])
    for offsets, fine in (([7, 8], True), ([7, 9], False), ([8, 7], False), ([0, 1], False)):
        said = pa.RecordBatch.from_arrays([pa.array(offsets), *source.columns], names=["offset", *source.schema.names])
        if fine:
            assert len(read(encoded(said, 7))) == 2
        else:
            with raises(InvalidError, Reason.INVALID_RECORD):
                encoded(said, 7)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"timestamp": pa.array([1]), "key": pa.nulls(1)}, "no column `value`"),
        ({"timestamp": pa.array(["x"]), "key": pa.nulls(1), "value": pa.nulls(1)}, "not a time"),
        ({"timestamp": pa.array([1.5]), "key": pa.nulls(1), "value": pa.nulls(1)}, "not a time"),
        ({"timestamp": pa.array([1]), "key": pa.array([1]), "value": pa.nulls(1)}, "records: column `key` is neither"),
        ({"timestamp": pa.array([1]), "key": pa.nulls(1), "value": pa.array([[b"x"]])}, "`value` is neither"),
        ({"timestamp": pa.array([1]), "key": pa.nulls(1), "value": pa.nulls(1), "headers": pa.array(["x"])}, "`headers` is not"),
        ({"timestamp": pa.array([1]), "key": pa.nulls(1), "value": pa.nulls(1), "headers": pa.array([["x"]])}, "`headers` is not"),
        ({"timestamp": pa.array([1]), "key": pa.nulls(1), "value": pa.nulls(1), "offset": pa.array(["1"])}, "`offset` is not"),
        ({"timestamp": pa.array([None], pa.int64()), "key": pa.nulls(1), "value": pa.nulls(1)}, "timestamp is null"),
        ({"timestamp": pa.array([TIMESTAMP_MS_MAX + 1]), "key": pa.nulls(1), "value": pa.nulls(1)}, "out of range"),
        ({"timestamp": pa.array([-(1 << 63)]), "key": pa.nulls(1), "value": pa.nulls(1)}, "out of range"),
        (with_headers([[{"key": None, "value": b"x"}]], LOOSE_HEADERS_TYPE), "a header, or its name, is null"),
        (with_headers([[{"key": "a", "value": b"x"}, None]], LOOSE_HEADERS_TYPE), "a header, or its name, is null"),
        (with_headers([[None]], HEADERS_TYPE), "a header, or its name, is null"),
        (with_headers([[{"key": b"\xff", "value": b"x"}]], BINARY_HEADERS_TYPE), "cannot be read as"),
    ],
)
def test_what_is_no_table_of_records(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        encoded(pa.table(columns), 0)


def test_control_batches_and_append_times() -> None:
    control = bytearray(encode_batch([Record(0, 5, b"\0\0\0\1", b"")]))
    control[22] |= 0x20
    appended = bytearray(encode_batch([Record(0, 5, b"k", b"v"), Record(0, 9, b"k", b"w")]))
    from headgate.broker.log.batch import stamp_append_time, stamp_crc

    stamp_crc(control)
    stamp(appended, 0, 1, len(appended) - LENGTH_OVERHEAD_BYTES, 0)
    stamp_append_time(appended, 0, len(appended), 77)
    assert as_records(decode_batches([control, appended])) == [Record(1, 77, b"k", b"v"), Record(2, 77, b"k", b"w")]
    created = bytearray(encode_batch([Record(0, 5, b"k", b"v")]))
    stamp(created, 0, 3, len(created) - LENGTH_OVERHEAD_BYTES, 0)
    assert timestamp_types(control + appended + created, np.array([1, 2, 3])).tolist() == [1, 1, 0]
    assert timestamp_types(appended + created, np.array([2])).tolist() == [1]


def test_what_stands_in_the_place_of_a_null_does_not_count() -> None:
    data = b"visible" + b"what nobody should see" + b"x" * 20
    offsets = pa.py_buffer(memoryview(b"".join(at.to_bytes(4, "little") for at in (0, 7, 29, 49))))
    value = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(data)])
    hidden = pa.table({"timestamp": pa.array([1, 2, 3]), "key": pa.nulls(3), "value": value})
    plain = pa.table({"timestamp": pa.array([1, 2, 3]), "key": pa.nulls(3), "value": pa.array([b"visible", None, b"x" * 20])})
    assert read(encoded(hidden, 0)) == read(encoded(plain, 0))
    assert checksum(hidden) == checksum(plain)


@pytest.mark.parametrize("shortest,longest", [(8, 8), (16, 16), (13, 13), (0, 0), (0, 9), (1, 40), (250, 600), (3000, 3000)])
def test_the_checksum_is_its_definition_for_values_of_any_length(shortest: int, longest: int) -> None:
    """Values of one length, short and long ones, in slices that begin anywhere, also with nulls among them."""
    dice = random.Random(shortest + longest)
    for null_share in (0.0, 0.2):
        rows = [
            Row(at, dice.randbytes(dice.randint(0, 20)), dice.randbytes(dice.randint(shortest, longest)), None) for at in range(60)
        ]
        rows = [row if dice.random() >= null_share else row._replace(value=None) for row in rows]
        whole = table(rows, with_headers=False)
        for begin in (0, 1, 7):
            assert checksum(whole.slice(begin)) == plain_checksum(records(rows[begin:], 0))


def test_checksums_tell_rows_apart() -> None:
    base = Row(5, b"key", b"value", (("a", b"1"),))
    others = [
        base._replace(timestamp_ms=6),
        base._replace(key=None),
        base._replace(key=b""),
        base._replace(key=b"value", value=b"key"),
        base._replace(value=b"value\0"),
        base._replace(headers=()),
        base._replace(headers=(("a", None),)),
        base._replace(headers=(("a", b"1"), ("a", b"1"))),
        base._replace(headers=(("a1", b""),)),
    ]
    sums = {checksum(table([row])) for row in [base, *others]}
    assert len(sums) == 1 + len(others)
    assert checksum(table([base, others[0]])) == checksum(table([others[0], base])) != checksum(table([base, base]))
    with_null, with_empty = table([base._replace(headers=None)]), table([base._replace(headers=())])
    assert checksum(with_null) == checksum(with_empty) == checksum(table([base], with_headers=False))


def plain_checksum(rows: list[Record]) -> int:
    """The definition in `column_checksum`, one byte after the other."""
    mask = (1 << 64) - 1

    def finish(value: int) -> int:
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, None):
            value ^= value >> 33
            if factor is not None:
                value = value * factor & mask
        return value

    def hashed(data: bytes | None) -> int:
        if data is None:
            return 0x7FB5D329728EA185
        total = 0
        padded = data + bytes(-len(data) % 8)
        for at in range(0, len(padded), 8):
            word = int.from_bytes(padded[at : at + 8], "little")
            word ^= word >> 32
            word = word * 0xD6E8FEB86659FD93 & mask
            word ^= word >> 29
            total += word * pow(0x9E3779B97F4A7C15, at // 8, 1 << 64)
        return finish((total + len(data) * 0xA24BAED4963EE407) & mask)

    def section(headers: tuple[tuple[str, bytes | None], ...]) -> bytes:
        out = b""
        for name, value in headers:
            encoded = name.encode()
            out += varint(len(encoded)) + encoded + (varint(-1) if value is None else varint(len(value)) + value)
        return out

    def varint(value: int) -> bytes:
        value = value << 1 if value >= 0 else -2 * value - 1
        out = b""
        while value >= 0x80:
            out += bytes((value & 0x7F | 0x80,))
            value >>= 7
        return out + bytes((value,))

    total = 0
    for row in rows:
        value = finish((row.timestamp_ms + 0x9FB21C651E98DF25) & mask)
        headers = hashed(section(row.headers)) if row.headers else 0x2545F4914F6CDD1D
        for part in (hashed(row.key), hashed(row.value), headers):
            value = finish((value * 0xC2B2AE3D27D4EB4F + part) & mask)
        total += value
    return total & mask
