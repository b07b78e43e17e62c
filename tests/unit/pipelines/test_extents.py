"""Extents on their way to the store: one is uploaded while the next one is encoded, and no error is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.broker.client.upload import Uploader
from headgate.broker.log.parquet import ExtentEncoder
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.extents import ExtentFiles

PATIENCE_S = 30


def rows(first: int) -> pa.RecordBatch:
    times = pa.array(range(first, first + 10), pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_pydict({"timestamp": times, "key": pa.array([b"k"] * 10), "value": pa.array([b"v"] * 10)})


def test_a_file_is_uploaded_while_the_next_one_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[threading.Event] = [threading.Event() for _ in range(3)]
    encode, put = ExtentEncoder.finish, Uploader.put
    known = iter(encoded)

    def encode_and_tell(self: ExtentEncoder) -> Any:
        found = encode(self)
        next(known).set()
        return found

    def put_late(self: Uploader, key: str, written: Any, partition: int, base_offset: int) -> Any:
        if base_offset == 0:
            assert encoded[1].wait(PATIENCE_S), "the second file is encoded before the first one is in the store"
        return put(self, key, written, partition, base_offset)

    monkeypatch.setattr(ExtentEncoder, "finish", encode_and_tell)
    monkeypatch.setattr(Uploader, "put", put_late)
    with ExtentFiles(str(tmp_path), "data/", "job", 1, {}) as files:
        for number in range(3):
            files.add(7, rows(10 * number))
        (written,) = files.finish()
    assert [(file.path, file.base_offset, file.rows) for file in written.files] == [
        (f"data/partition=7/job-00{number}.parquet", 10 * number, 10) for number in range(3)
    ]
    assert written.tally.rows == 30 and all((tmp_path / file.path).stat().st_size == file.size_bytes for file in written.files)


@pytest.mark.parametrize("files_more", [0, 1])
def test_an_upload_that_fails_ends_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_more: int) -> None:
    def put(self: Uploader, *arguments: Any) -> Any:
        raise RetryError(Reason.STORE_UNAVAILABLE, "the disk is full")

    monkeypatch.setattr(Uploader, "put", put)
    with pytest.raises(RetryError, match="the disk is full"), ExtentFiles(str(tmp_path), "", "job", 1, {}) as files:
        for number in range(1 + files_more):
            files.add(0, rows(number))
        files.finish()
