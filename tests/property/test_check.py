"""A batch that passes the check of all records is readable by foreign decoders, with as many records as its header states.

Runs: batches of kafka-python and aiokafka with bytes overwritten, inserted, removed or moved, also before they are compressed,
and with changed counts; the CRC is recomputed. Compared: the check's verdict with the results of kafka-python's decoder, of
aiokafka's (written in C), and of the project's own. A mismatch means that one producer can stop the consumers of a partition, or
that one offset has two values.
"""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder

from headgate.broker.log.batch import CONTROL, HEADER_BYTES, check, parse
from headgate.broker.log.check import check_all, check_sample
from headgate.broker.log.compression import Codec, compress
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.errors import InvalidError
from tests.support.batches import patched
from tests.support.examples import examples
from tests.support.poison import POISON, with_count, with_records

MANY = settings(max_examples=examples(120))
T0 = 1_700_000_000_000
NAMES = st.text(max_size=4)
RECORDS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=6)),
        st.one_of(st.none(), st.binary(max_size=90)),
        st.integers(-(2**20), 2**20),
        st.lists(st.tuples(NAMES, st.one_of(st.none(), st.binary(max_size=4))), max_size=2),
    ),
    min_size=1,
    max_size=6,
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(("flip", "put", "insert", "remove", "swap", "repeat")), st.integers(0, 10_000), st.integers(0, 255)),
    max_size=3,
)
COUNTS = st.one_of(st.just(0), st.sampled_from((-1, 1)), st.integers(-5, 5))
CODECS = st.sampled_from((Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD))


def changed(data: bytes, changes: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, place, value in changes:
        if not out:
            break
        at = place % len(out)
        match kind:
            case "flip":
                out[at] ^= 1 << value % 8
            case "put":
                out[at] = value
            case "insert":
                out.insert(at, value)
            case "remove":
                del out[at]
            case "swap":
                other = value % len(out)
                out[at], out[other] = out[other], out[at]
            case "repeat":
                out[at:at] = out[at : at + value]
    return bytes(out)


def accepted(data: bytes) -> bool:
    view = memoryview(data)
    try:
        header = parse(view, 0, len(view))
        check(header, view, 0, len(view), 1 << 20)
        check_all(header, view)
    except InvalidError:
        return False
    check_sample(header, view)  # a sample refuses no batch that passes the whole check
    return True


def judge(data: bytes) -> None:
    """Three decoders read the same records at the offsets that the header states."""
    count = parse(memoryview(data), 0, len(data))[12]
    codec = data[22] & 7
    shown = [
        [(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in AiokafkaBatch(bytearray(data))],
        [(one.offset, one.timestamp_ms, one.key, one.value, list(one.headers)) for one in iter_records(data)],
    ]
    if codec in (Codec.NONE, Codec.GZIP):  # kafka-python has no library for the other codecs
        shown.append([(one.offset, one.timestamp, one.key, one.value, list(one.headers)) for one in KafkaPythonBatch(data)])
    assert all(one == shown[0] for one in shown)
    assert [row[0] for row in shown[0]] == list(range(count))


def encoded(records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for offset, (key, value, time, headers) in enumerate(records):
        builder.append(offset, T0 + time, key, value, headers)
    return bytes(builder.build())


@MANY
@given(RECORDS, CHANGES, CHANGES, COUNTS, CODECS)
@example([(None, None, 0, [])], [("flip", 1, 7)], [], 0, Codec.NONE)
def test_what_is_accepted_is_read_by_all(
    records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]],
    before: list[tuple[str, int, int]],
    after: list[tuple[str, int, int]],
    more: int,
    codec: Codec,
) -> None:
    """Records that are changed before or after they are compressed, and a count that is wrong."""
    good = encoded(records)
    assert accepted(good)
    payload = changed(good[HEADER_BYTES:], before)
    if codec is not Codec.NONE:
        payload = changed(compress(codec, payload), after)
    data = with_records(payload, len(records) + more, codec)
    if accepted(data):
        judge(data)


@MANY
@given(RECORDS, st.lists(st.tuples(st.integers(21, HEADER_BYTES - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_headers_that_are_accepted(
    records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]], changes: list[tuple[int, int]]
) -> None:
    data = encoded(records)
    for at, value in changes:
        data = patched(data, at, bytes((value,)))
    if accepted(data):
        assert not data[22] & CONTROL
        judge(data)


@pytest.mark.parametrize("name", POISON)
def test_poison_is_never_accepted(name: str) -> None:
    assert not accepted(POISON[name])


@MANY
@given(RECORDS, st.integers(2, 6))
def test_a_count_that_is_wrong_is_never_accepted(
    records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]], other: int
) -> None:
    data = encoded(records)
    assert accepted(with_count(data, other)) == (other == len(records))


def test_the_judges_find_poison() -> None:
    """The test can fail: foreign decoders indeed cannot read the batches that the check refuses."""
    for name in ("noise", "two-as-three", "value-too-long", "header-not-utf8", "not-gzip"):
        with pytest.raises(Exception):  # noqa: B017 - each decoder has its own
            judge(POISON[name])
