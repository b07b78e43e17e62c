"""The tail of ORC files against files that pyarrow wrote; and that no damage gives another error than the tail's own."""

from __future__ import annotations

import io
import random
from contextlib import suppress

import pyarrow as pa
import pyarrow.orc as orc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.columns.orc_tail import POSTSCRIPT_BYTES_MAX, Tail, Values, read_tail, tail_bytes, zone_of

ROWS = 5000


def written(codec: str) -> bytes:
    dice, out = random.Random(2), io.BytesIO()
    table = pa.table(
        {
            "n": pa.array([None, *range(ROWS - 1)], pa.int32()),
            "at": pa.array(range(ROWS), pa.timestamp("ms")),
            "text": ["é" * (number % 3) for number in range(ROWS)],
            "none": pa.array([None] * ROWS, pa.date32()),
            "data": [dice.randbytes(dice.randrange(99)) for _ in range(ROWS)],
        }
    )
    orc.write_table(table, out, compression=codec, stripe_size=1 << 12, batch_size=1024)
    return out.getvalue()


FILES = {codec: written(codec) for codec in ("uncompressed", "zlib", "snappy", "lz4", "zstd")}


def tail_of(data: bytes) -> Tail:
    return read_tail(data[-tail_bytes(data[-POSTSCRIPT_BYTES_MAX:], len(data)) :])


@pytest.mark.parametrize("codec", FILES)
def test_a_tail_says_what_the_stripes_have(codec: str) -> None:
    data = FILES[codec]
    tail, file = tail_of(data), orc.ORCFile(io.BytesIO(data))
    assert tail.columns == {"n": "integer", "at": "timestamp", "text": "string", "none": "date", "data": "binary"}
    assert len(tail.stripes) == file.nstripes > 1
    for number, stripe in enumerate(tail.stripes):
        rows = file.read_stripe(number)
        numbers, times = rows.column("n").drop_null().to_pylist(), rows.column("at").cast(pa.int64()).to_pylist()
        assert stripe.rows == rows.num_rows
        assert stripe.values["n"] == Values(len(numbers), min(numbers), max(numbers))
        assert stripe.values["at"] == Values(stripe.rows, min(times) // 10**6, max(times) // 10**6)
        assert stripe.values["text"].text_bytes == sum(len(one.encode()) for one in rows.column("text").to_pylist())
        assert stripe.values["data"].text_bytes == sum(map(len, rows.column("data").to_pylist()))
        assert stripe.values["none"] == Values(0)
        assert zone_of(tail, data[slice(*stripe.footer)]) == "GMT"


@given(codec=st.sampled_from(sorted(FILES)), at=st.integers(1, 3000), to=st.binary(max_size=4), cut=st.integers(0, 40))
def test_damage_is_told(codec: str, at: int, to: bytes, cut: int) -> None:
    data = FILES[codec]
    at = max(len(data) - at, 0)
    bad = data[:at] + to + data[at + len(to) : len(data) - cut]
    with suppress(InvalidError):
        tail = tail_of(bad)
        zone_of(tail, bad[slice(*tail.stripes[0].footer)] if tail.stripes else b"")


@given(st.binary(max_size=300))
def test_any_bytes_are_a_tail_or_an_error(data: bytes) -> None:
    with suppress(InvalidError):
        tail_of(data)
