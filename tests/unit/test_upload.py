"""Files with history on their way to the store: what stands there already, and where an uploader may be used."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from broker.client.upload import Uploader, write_extent
from broker.runtime.errors import InvalidError, Reason

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
    with pytest.raises(InvalidError, match="another file stands there") as caught:
        write_extent(store, KEY, rows(b"b", b"a"), 0, 0)
    assert caught.value.reason is Reason.INVALID_REFERENCE
    assert (tmp_path / KEY).read_bytes() == written


async def test_in_a_coroutine_it_says_how_to_use_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"asyncio\.to_thread"):
        Uploader(str(tmp_path))
