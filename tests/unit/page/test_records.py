"""From batches to what a person reads.

Runs: the functions on batches of any kind, without a broker. A mismatch means that a message is shown wrongly, is not found, or
that one batch takes all memory or all time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from headgate.broker.log.batch import HEADER_BYTES
from headgate.broker.log.compression import Codec
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.server.http.hands import records
from headgate.broker.server.http.hands.records import ALL, Look, Wanted, contains, look_at, rows, shown, time_text

MANY = 1 << 40


def batch(*some: tuple[bytes | None, bytes | None], codec: Codec = Codec.NONE, base: int = 0) -> bytes:
    data = bytearray(encode_batch([Record(0, 1000 + at, *one) for at, one in enumerate(some)], compression=codec))
    data[:8] = base.to_bytes(8, "big")
    return bytes(data)


def look(
    *batches: bytes, low: int = 0, high: int = MANY, most: int = MANY, wanted: Wanted = ALL, now: Callable[[], float] = float
) -> Look:
    return look_at(memoryview(b"".join(batches)), low, high, most, wanted, now)


@pytest.mark.parametrize("codec", list(Codec))
def test_records_are_found_by_key_and_text(codec: Codec) -> None:
    some = [(b"k%d" % at, b'{"n": %d}' % at) for at in range(500)]
    both = batch(*some, codec=codec), batch(*some, codec=codec, base=500)
    found = look(*both, wanted=Wanted(key=b"k42"))
    assert [one.offset for one in found.records] == [42, 542] and found.next_offset == 1000 and found.first_offset == 0
    assert [one.offset for one in look(*both, wanted=Wanted(text=b": 77}")).records] == [77, 577]
    assert [one.offset for one in look(*both, wanted=Wanted(key=b"k1", text=b"n")).records] == [1, 501]
    assert [one.offset for one in look(*both, wanted=Wanted(text=b"k499")).records] == [499, 999], "a text may be in the key"
    assert not look(*both, wanted=Wanted(key=b"k4", text=b"nosuch")).records
    part = look(*both, low=498, high=502)
    assert [one.offset for one in part.records] == [498, 499, 500, 501]
    first = look(*both, low=10, most=3)
    assert [one.offset for one in first.records] == [10, 11, 12] and first.next_offset == 13


def test_bytes_are_found_across_windows() -> None:
    size = records.WINDOW_BYTES
    for at in (0, size - 3, size - 1, size, 2 * size - 2):
        data = bytearray(2 * size + 10)
        data[at : at + 4] = b"here"
        assert contains(data, b"here") and not contains(data, b"gone"), at


def test_what_cannot_be_shown_is_said() -> None:
    good, broken = batch((b"k", b"v")), bytearray(batch((b"k", b"v"), base=1))
    broken[-2] ^= 1
    bomb = batch((b"k", bytes(records.BATCH_BYTES_MAX + 1)), codec=Codec.ZSTD, base=2)
    lied = bytearray(batch((b"k", b"v"), base=3))
    lied[HEADER_BYTES] = 0xFF
    assert len(bomb) < 100_000
    found = look(good, bytes(broken), bomb, batch((b"k", b"v"), base=4))
    assert [one.offset for one in found.records] == [0, 4]
    assert [(first, end) for first, end, _ in found.unread] == [(1, 2), (2, 3)]
    assert "checksum" in found.unread[0][2] and "too large" in found.unread[1][2]
    searched = look(good, bomb, wanted=Wanted(key=b"k"))
    assert [one.offset for one in searched.records] == [0] and len(searched.unread) == 1, "a search opens no bomb either"


def test_decoding_has_an_end() -> None:
    many = batch(*[(None, b"") for _ in range(5 * records.CHECK_EVERY)])
    late = itertools.chain([0.0, 0.0, 0.0], itertools.repeat(10.0))
    found = look(many, many, now=lambda: next(late))
    assert found.records and "too many records" in found.unread[0][2]
    assert found.next_offset == 5 * records.CHECK_EVERY, "the next page goes on behind it"


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", ""),
        (b"", "empty", ""),
        (b'{"b":1e400,"a":[1,"\\u202e"]}', "json", '{\n  "b": 1e400,\n  "a": [\n    1,\n    "\\u202e"\n  ]\n}'),
        (b"[1,]", "text", "[1,]"),
        (b"17", "text", "17"),
        ("\u202e\N{SNOWMAN} x".encode(), "text", "\u202e\N{SNOWMAN} x"),
        (b"[" + b"{}," * 70 + b"1]", "json", "[\n" + "  {},\n" * 70 + "  1\n]"),
        (b"[" * 70 + b"]" * 70, "text", "[" * 70 + "]" * 70),
        (b"a\x00b", "hex", "000000  61 00 62                                         a.b"),
        (b"\xff\xfe", "hex", "000000  ff fe                                            .."),
        (b"a\x1b[31m", "hex", "000000  61 1b 5b 33 31 6d                                a.[31m"),
    ],
)  # fmt: skip
def test_bytes_are_shown_as_what_they_are(data: bytes | None, kind: str, text: str) -> None:
    found = shown(data, 1000)
    assert (found.kind, found.text) == (kind, text)
    assert found.size_bytes == len(data or b"")


def test_a_large_value_is_cut() -> None:
    found = shown(b"x" * 999 + "ы".encode() * 10, 1000)
    assert (found.kind, found.cut, len(found.text)) == ("text", True, 999), "no half of a letter"
    assert shown(b'{"a":"' + b"x" * 2000 + b'"}', 1000).kind == "text", "half of a JSON text is not laid out"
    dump = shown(bytes(1 << 20), 1 << 20)
    assert dump.cut and len(dump.text) < 20 * records.HEX_BYTES_MAX
    many = rows([(0, Record(at, at, b"k" * 5000, b"v" * 100_000, (("h" * 5000, b"c" * 5000),) * 200)) for at in range(50)])
    assert sum(len(one.value.text) for one in many) < 2 * records.PAGE_BYTES_MAX
    assert len(many[0].headers) == records.HEADERS_MAX and many[0].headers_total == 200


def test_hostile_json_takes_no_time() -> None:
    for data in (b'["' + b'\\"' * 30_000, b'"' * 60_000, b"[" * 60_000, b'{"a":' * 12_000):
        assert shown(b"{" + data, 64 << 10).kind == "text"


def test_times() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14 22:13:20.123"
    assert [time_text(at) for at in (-1, -5, 1 << 62)] == ["no time", "-5 ms", f"{1 << 62} ms"]
