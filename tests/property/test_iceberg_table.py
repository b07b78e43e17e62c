"""A topic's Iceberg table (`wire/iceberg/table.py`), judged by PyIceberg.

Runs: any sequence of changes, with small manifests; each version is read as PyIceberg reads it. Compared: the files of each version
with those that were added and not removed, with their partitions and bounds, and files that a filter leaves out. A mismatch means
that a reader of the table sees other records than the topic has.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable

from headgate.broker.wire.iceberg import table as tables
from headgate.broker.wire.iceberg.table import DAY_MS, DataFile, Table, Written
from tests.support.examples import examples

T0 = 19_000 * DAY_MS

FILES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3 * DAY_MS), st.integers(0, DAY_MS)), max_size=4)
CHANGES = st.lists(st.tuples(FILES, st.integers(0, 3)), min_size=1, max_size=6)


def put(directory: Path, written: Written) -> Path:
    (directory / "manifests").mkdir(exist_ok=True)
    for name, data in written.objects.items():
        (directory / "manifests" / name).write_bytes(data)
    path = directory / f"{written.table.version}.metadata.json"
    path.write_bytes(written.metadata)
    return path


@given(CHANGES)
@settings(deadline=None, max_examples=examples(10))
def test_every_version_has_its_files(changes: list[tuple[list[tuple[int, int, int]], int]]) -> None:
    tables.MANIFEST_FILES_MAX, before = 3, tables.MANIFEST_FILES_MAX
    try:
        with tempfile.TemporaryDirectory() as name:
            check(Path(name), changes)
    finally:
        tables.MANIFEST_FILES_MAX = before


def check(directory: Path, changes: list[tuple[list[tuple[int, int, int]], int]]) -> None:
    table = Table(id=uuid.uuid4(), location=f"file://{directory}")
    live: dict[str, DataFile] = {}
    offset = 0
    for number, (files, dropped) in enumerate(changes):
        added = []
        for partition, at_ms, span_ms in files:
            offset += 10
            path = f"file://{directory}/data/{partition}-{offset}.parquet"
            one = DataFile(
                path=path, partition=partition, first_offset=offset, last_offset=offset + 9, timestamp_min_ms=T0 + at_ms,
                timestamp_max_ms=T0 + at_ms + span_ms, rows=10, size_bytes=1000 + offset,
            )  # fmt: skip
            added.append(one)
        gone = set(list(live)[:dropped])
        written = table.change(added, gone, {"headgate.topic": "t"}, 1_700_000_000_000 + number)
        table = written.table
        live = {path: one for path, one in live.items() if path not in gone} | {one.path: one for one in added}
        assert table.paths == set(live)
        assert all((directory / "manifests" / name).exists() or name in written.objects for name in table.objects)
        seen = StaticTable.from_metadata(str(put(directory, written)))
        assert seen.metadata.properties == {"headgate.topic": "t"}
        planned = {task.file.file_path: task.file for task in seen.scan().plan_files()}
        assert planned.keys() == live.keys()
        for path, file in planned.items():
            assert (file.record_count, file.file_size_in_bytes) == (live[path].rows, live[path].size_bytes)
            assert file.partition[0] == live[path].partition
        snapshot = seen.current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        assert snapshot.summary["total-records"] == str(10 * len(live))
        assert snapshot.summary["total-data-files"] == str(len(live))
        if offset:
            low, high = offset // 2, offset
            wanted = {
                one.path for one in live.values() if one.partition == 1 and one.last_offset >= low and one.first_offset < high
            }
            condition = f"partition = 1 and offset >= {low} and offset < {high}"
            assert {task.file.file_path for task in seen.scan(row_filter=condition).plan_files()} == wanted
            day = "2022-01-09T00:00:00+00:00"  # T0 is 2022-01-08
            early = {one.path for one in live.values() if one.timestamp_min_ms < T0 + DAY_MS}
            assert {task.file.file_path for task in seen.scan(row_filter=f"timestamp < '{day}'").plan_files()} == early
