"""The choice of the batches that are checked, and the refusals of a check (`broker/log/check.py`).

Runs: checks of batches that kafka-python, aiokafka and the test itself build, with right headers and CRCs. A mismatch means that
the broker stores a batch that consumers cannot read, refuses a good one, uses more memory for a check than documented, or trusts
a sender too early.
"""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import cramjam
import pytest
import zstandard
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headgate.broker.log import check
from headgate.broker.log.batch import parse
from headgate.broker.log.check import RecordError, SenderTrust, Times, Verdict, check_all, check_keys, check_sample
from headgate.broker.log.column_decoder import decode_batches
from headgate.broker.log.compression import Codec, ExpansionError, compress, decompress, stated_bytes
from headgate.broker.log.records import Record, encode_batch, iter_records
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.batches import batch
from tests.support.errors import raises
from tests.support.poison import GOOD, NOISE, POISON, with_count, with_records, zstd_bomb

NOW_MS = 1_700_000_000_000


def sample(data: bytes, times: Times = check.ANY_TIME) -> Verdict:
    view = memoryview(data)
    return check_sample(parse(view, 0, len(view)), view, times)


def whole(data: bytes, times: Times = check.ANY_TIME) -> None:
    view = memoryview(data)
    check_all(parse(view, 0, len(view)), view, times)


def aiokafka_batch(codec: int, count: int = 50) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 30)
    for offset in range(count):
        builder.append(
            offset, NOW_MS - offset * 1000, None if offset % 3 else b"key", b"v" * offset * 9, [("héader", None)] * (offset % 4)
        )
    return bytes(builder.build())


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_clients_pass(codec: Codec) -> None:
    for data in (aiokafka_batch(codec), encode_batch([Record(0, NOW_MS, None, None)] * 3000, compression=codec)):
        assert sample(data) is Verdict.GOOD
        whole(data)


def test_records_pass_whose_lengths_need_one_byte_more() -> None:
    """Of each length around those at which a varint of the record grows, or has a byte without bits."""
    for edge in (1 << 6, 1 << 13, 3 << 12, 1 << 20):
        for size in range(edge - 16, edge + 16):
            data = batch([b"v" * size, b""])
            assert sample(data) is Verdict.GOOD
            whole(data)


@pytest.mark.parametrize("name", [name for name in POISON if name != "gzip-bomb"])
def test_poison_is_refused(name: str) -> None:
    for judge in (sample, whole):
        with pytest.raises(RecordError) as caught:
            judge(POISON[name])
        assert caught.value.reason is (
            Reason.MESSAGE_TOO_LARGE if judge is whole and name == "huge-count" else Reason.INVALID_RECORD
        )


def test_the_first_wrong_record_is_named() -> None:
    data = with_records(GOOD[61:] + b"\x0e\x00\x00\x06\x01\x05\x61\x00", 4)
    with pytest.raises(RecordError, match="negative") as caught:
        sample(data)
    assert caught.value.records == (3,)


def test_all_wrong_records_are_named_as_far_as_their_ends_are_known() -> None:
    def of(*content: tuple[int, bytes]) -> bytes:
        """Records with a time (ms behind the first) and the name of their only header."""
        found = b""
        for index, (at, name) in enumerate(content):
            body = b"\0" + bytes([at * 2, index * 2]) + b"\x01\x01\x02" + bytes([len(name) * 2]) + name + b"\x01"
            found += bytes([len(body) * 2]) + body
        return with_records(found, len(content))

    times = Times(*(parse(memoryview(GOOD), 0, len(GOOD))[7] + at for at in (0, 10)))
    good, bad, late = (1, b"name"), (1, b"\xff"), (11, b"name")
    cases: list[tuple[list[tuple[int, bytes]], tuple[int, ...], Reason]] = [
        ([good, bad, good, bad, bad], (1, 3, 4), Reason.INVALID_RECORD),
        ([late, good, late], (0, 2), Reason.INVALID_TIMESTAMP),
        ([bad, good, late], (0, 2), Reason.INVALID_TIMESTAMP),
        ([bad] * 5, (0, 1, 2, 3, 4), Reason.INVALID_RECORD),
    ]
    for content, named, reason in cases:
        for judge in (sample, whole):
            with pytest.raises(RecordError) as refused:
                judge(of(*content), times)
            assert (refused.value.records, refused.value.reason) == (named, reason), content
            assert f"wrong=`{len(named)}`" in refused.value.message
    broken = of(good, bad, good, good)
    cut = with_records(broken[61:-1] + b"\x03", 4)  # the last record's value has more bytes than the record
    with pytest.raises(RecordError) as refused:
        sample(cut, times)
    assert refused.value.records == (1, 3)


def test_every_record_time_is_judged() -> None:
    data = batch([b"a", b"b", b"c"], timestamp_ms=NOW_MS)
    for function in (check_sample, check_all):
        view = memoryview(data)
        header = parse(view, 0, len(view))
        function(header, view, Times(NOW_MS, NOW_MS + 2))
        for times, index in ((Times(NOW_MS, NOW_MS + 1), 2), (Times(NOW_MS + 1, NOW_MS + 2), 0)):
            with pytest.raises(RecordError) as caught:
                function(header, view, times)
            assert (caught.value.reason, caught.value.records) == (Reason.INVALID_TIMESTAMP, (index,))


def test_a_sample_reads_the_lengths_of_all_records() -> None:
    """Behind the records that are read completely, values are unchecked, but the number of records is checked."""
    count = check.SAMPLE_RECORDS + 500
    data = batch([b"value"] * count)
    assert sample(data) is Verdict.GOOD
    for wrong in (count - 1, count + 1):
        with pytest.raises(RecordError):
            sample(with_count(data, wrong))


def test_too_many_records_for_a_topic_that_checks_all() -> None:
    data = batch([b""] * (check.ALL_RECORDS_MAX + 1))
    with raises(RecordError, Reason.MESSAGE_TOO_LARGE):
        whole(data)
    assert sample(data) is Verdict.GOOD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_bomb_takes_no_more_memory_than_is_stated(codec: Codec) -> None:
    content = bytes(64 << 20)
    payload = {
        Codec.GZIP: lambda: gzip.compress(content),
        Codec.SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(content)),
        Codec.LZ4: lambda: bytes(cramjam.lz4.compress(content)),
        Codec.ZSTD: lambda: bytes(cramjam.zstd.compress(content)),
    }[codec]()
    data = with_records(payload, 3, codec)
    tracemalloc.start()
    try:
        assert sample(data) is Verdict.UNKNOWN
        with raises(RecordError, Reason.MESSAGE_TOO_LARGE):
            whole(data)
        assert tracemalloc.get_traced_memory()[1] < check.ALL_DECOMPRESSED_BYTES_MAX + len(data) * 5
    finally:
        tracemalloc.stop()


def test_a_sample_refuses_a_batch_that_states_a_size_that_no_reader_takes() -> None:
    """A sample decompresses too little to find out by itself, so a batch that does not state its size passes."""
    assert sample(zstd_bomb(257, stated=False)) is Verdict.UNKNOWN
    assert sample(zstd_bomb(256, stated=True)) is Verdict.UNKNOWN
    for judge in (sample, whole):
        with raises(RecordError, Reason.MESSAGE_TOO_LARGE, "larger after decompression than Headgate's consumers"):
            judge(zstd_bomb(257, stated=True))


def test_every_reader_has_a_bound() -> None:
    bomb = zstd_bomb(257, stated=False)
    for read in (lambda: list(iter_records(bomb)), lambda: decode_batches([bomb])):
        with pytest.raises(ExpansionError, match="records are too large after decompression"):
            read()
    with pytest.raises(RecordError, match="too large for a compacted topic") as refused:
        check_keys(bomb)
    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE, "a corrupt message would be sent again without end"


def test_sizes_that_compressed_bytes_state() -> None:
    content = NOISE * 1000
    assert stated_bytes(Codec.GZIP, compress(Codec.GZIP, content)) == len(content)
    for size in (0, 1, 255, 256, 65_791, 65_792, 400_000):
        for one in (zstandard.compress(bytes(size)), zstandard.ZstdCompressor(write_content_size=False).compress(bytes(size))):
            known = zstandard.frame_content_size(one)
            assert stated_bytes(Codec.ZSTD, one) == max(known, 0)
    frame = bytes(cramjam.lz4.compress(content))
    assert stated_bytes(Codec.LZ4, frame) in (0, len(content))
    assert stated_bytes(Codec.LZ4, b"\x04\x22\x4d\x18\x48\x40" + struct.pack("<Q", 77) + b"\0") == 77
    for codec in Codec:
        for data in (b"", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18\x48"):
            assert stated_bytes(codec, data) >= 0


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_too_large_and_wrong_are_told_apart(codec: Codec) -> None:
    """A sample accepts records that are too large for it: producers may send such batches. A batch that cannot be decompressed
    is refused."""
    data = encode_batch([Record(0, NOW_MS, None, NOISE * 100)] * 30, compression=codec)
    with pytest.raises(ExpansionError):
        decompress(codec, data[61:], 100_000)
    with pytest.raises(InvalidError) as caught:
        decompress(codec, NOISE, 100_000)
    assert type(caught.value) is InvalidError
    assert sample(data) is Verdict.UNKNOWN
    whole(data)


def test_the_first_batches_of_a_sender_are_checked_and_later_samples() -> None:
    trust = SenderTrust()
    checked = []
    for number in range(2000):
        if trust.sent(1) is not None:
            checked.append(number)
            trust.passed(10)
    first = list(range(check.FIRST_BATCHES))
    assert checked[: len(first)] == first
    step = check.SAMPLE_EVERY + 10 * check.SAMPLE_EVERY_PER_RECORD
    assert checked[len(first) :] == list(range(first[-1] + step, 2000, step))


def test_the_very_first_batch_and_later_samples_are_read_deeper_than_their_repetitions() -> None:
    trust = SenderTrust()
    depths = []
    for _ in range(check.FIRST_BATCHES + 2):
        depths.append(trust.records_max)
        trust.passed(10)
    few = [check.REPEATED_RECORDS] * (check.FIRST_BATCHES - 1)
    assert depths == [check.SAMPLE_RECORDS, *few, check.SAMPLE_RECORDS, check.SAMPLE_RECORDS]
    trust.failed()
    assert trust.records_max == check.SAMPLE_RECORDS
    data = batch([b"value"] * 100)
    view = memoryview(data[:-1] + bytes([data[-1] ^ 0x7E]))  # the header count of the last record is wrong
    header = parse(view, 0, len(view))
    assert check_sample(header, view, records_max=99) is Verdict.GOOD
    with pytest.raises(RecordError):
        check_sample(header, view, records_max=100)


def test_a_sender_that_sent_poison_is_new_again() -> None:
    trust = SenderTrust()
    for _ in range(check.FIRST_BATCHES):
        trust.passed(1)
    assert trust.sent(1) is None
    trust.failed()
    assert trust.sent(1) is trust
    assert trust.failures == 1


def test_large_samples_are_rare_but_never_over() -> None:
    trust = SenderTrust()
    for _ in range(check.FIRST_BATCHES):
        trust.passed(10**6)
    assert trust.due_in == check.SAMPLE_EVERY_MAX


def test_a_control_batch_has_no_records_to_check() -> None:
    assert sample(struct.pack(">qiibIhiqqqhii", 0, 49, 0, 2, 0, 0x20, 0, 0, 0, -1, -1, -1, 1)) is Verdict.GOOD
