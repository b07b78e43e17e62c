"""Files with history on their way to the store: existing files, and the event loop in which an uploader may be used."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headgate.broker.client import Producer
from headgate.broker.client.publish import upload_table
from headgate.broker.client.upload import Uploader, write_extent
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.support.errors import raises

KEY = "topics/t/data/partition=0/a.parquet"


def rows(*values: bytes) -> pa.Table:
    return pa.table({
        "timestamp": pa.array(range(len(values)), pa.timestamp("ms", tz="UTC")),
        "key": pa.nulls(len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
    })  # fmt: skip


def test_what_stands_there_is_never_replaced(tmp_path: Path) -> None:
    store = str(tmp_path)
    first = write_extent(store, KEY, rows(b"a", b"b"), 0, 0)
    written = (tmp_path / KEY).read_bytes()
    assert write_extent(store, KEY, rows(b"a", b"b"), 0, 0) == first, "a retry"
    with raises(InvalidError, Reason.INVALID_REFERENCE, "another file stands there"):
        write_extent(store, KEY, rows(b"b", b"a"), 0, 0)
    assert (tmp_path / KEY).read_bytes() == written


async def test_in_a_coroutine_it_says_how_to_use_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"asyncio\.to_thread"):
        Uploader(str(tmp_path))


def test_a_table_of_views_is_uploaded_like_any_other(tmp_path: Path) -> None:
    """Polars and DuckDB export text as such columns, and pyarrow cannot select rows of them."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    views = pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())]))
    plain = pa.table({
        "timestamp": pa.array(range(4), pa.timestamp("ms", tz="UTC")),
        "key": pa.array(["a", "a key that is not held in place", None, "a"], pa.string()),
        "value": pa.array([b"1", None, b"a value that is not held in place", b""], pa.binary()),
        "headers": pa.array([[{"key": "h", "value": b"v"}], [], None, [{"key": "h", "value": None}]], headers),
    })  # fmt: skip
    same = pa.table({
        "timestamp": plain["timestamp"], "key": plain["key"].cast(pa.string_view()),
        "value": plain["value"].cast(pa.binary_view()), "headers": plain["headers"].cast(views),
    })  # fmt: skip
    files = upload_table(str(tmp_path), "topics/t/data/", plain, 2, "one")
    assert sum(file.rows for file in files) == 4
    assert upload_table(str(tmp_path), "topics/t/data/", same, 2, "one") == files


def test_a_table_of_dictionaries_is_uploaded_like_any_other(tmp_path: Path) -> None:
    """pandas exports categories in this form, and pyarrow can read files into it: each chunk may have its own dictionary."""
    plain = pa.table({
        "timestamp": pa.array(range(5), pa.timestamp("ms", tz="UTC")),
        "key": pa.chunked_array([["a", "b", None], ["c", "a"]], pa.string()),
        "value": pa.chunked_array([[b"1", b"", b"1"], [b"2", None]], pa.binary()),
    })  # fmt: skip
    same = plain
    for number, name in ((1, "key"), (2, "value")):
        chunks = [chunk.dictionary_encode() for chunk in plain[name].chunks]
        same = same.set_column(number, name, pa.chunked_array(chunks))
    files = upload_table(str(tmp_path), "topics/t/data/", plain, 2, "one")
    assert upload_table(str(tmp_path), "topics/t/data/", same, 2, "one") == files
    assert write_extent(str(tmp_path), KEY, plain, 0, 0) == write_extent(str(tmp_path), KEY, same, 0, 0)


def test_a_batch_is_uploaded_like_a_table_of_it(tmp_path: Path) -> None:
    table = rows(b"a", b"b", b"c")
    (batch,) = table.to_batches()
    files = upload_table(str(tmp_path), "topics/t/data/", table, 2, "one")
    assert upload_table(str(tmp_path), "topics/t/data/", batch, 2, "one") == files


@pytest.mark.parametrize("publish_id", ["", "a/b", "../x", "a~1", "x" * 101])
async def test_what_cannot_name_a_table_is_told_before_anything_is_uploaded(publish_id: str) -> None:
    """The empty id is refused too: a caller may have forgotten to set it, and relies on its effect."""
    async with Producer("127.0.0.1:1", delivery_timeout_ms=1_000) as producer:
        with pytest.raises(InvalidError, match="id is 1 to 100 letters, digits"):
            await producer.publish_table("t", rows(b"a"), publish_id=publish_id)
