"""The assignment of a topic's pieces to Spark tasks, planned from a made-up layout: no broker, no Spark, no files.

A mismatch means that a query reads records twice, or not at all.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.broker.client.gate_admin import FileRef, Hole, Layout, PartitionLayout
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.pipelines.offsets import Narrowed
from headgate.pipelines.reads import FETCH_ROWS_SHARED, PIECE_BYTES, PIECES_MAX, Piece, Work, narrowed_pieces, pieces, tasks


def file(base: int, rows: int, *, size: int = 1000, first_ms: int = 0, last_ms: int = 0, partition: int = 0) -> FileRef:
    return FileRef(
        partition=partition, path=f"f{base}", base_offset=base, rows=rows, size_bytes=size, footer_crc32c=0,
        timestamp_min_ms=first_ms, timestamp_max_ms=last_ms,
    )  # fmt: skip


def layout(files: list[FileRef], holes: list[Hole], *, log_start: int = 0, end: int = 100) -> Layout:
    part = PartitionLayout(
        partition=0,
        log_start=log_start,
        high_watermark=end,
        grpc_address="",
        kafka_address="",
        extents=tuple(files),
        holes=tuple(holes),
    )
    return Layout(topic="t", topic_id=uuid.UUID(int=0), store_url="/s", prefix="p/", partitions=(part,))


def hole(base: int, end: int, *, is_open: bool) -> Hole:
    return Hole(gate_id="g", base_offset=base, end_offset=end, open=is_open)


def plan(
    one: Layout,
    ranges: dict[int, tuple[int, int]],
    narrowed: Narrowed,
    *,
    piece_bytes: int = PIECE_BYTES,
    open_gates: str = "error",
    tasks_min: int = 1,
) -> list[Work]:
    """The tasks of a read."""
    found = pieces(one, ranges, narrowed, open_gates=open_gates, tasks_min=tasks_min)
    return tasks(one.store_url, found, piece_bytes=piece_bytes, tasks_min=tasks_min)


def spans(work: list[Work]) -> list[tuple[int, int, str | None]]:
    return sorted((piece.start, piece.end, piece.file and piece.file.path) for one in work for piece in one.pieces)


def test_files_are_read_and_the_rest_is_fetched() -> None:
    seen = plan(layout([file(10, 20), file(30, 5)], [hole(50, 60, is_open=False)]), {0: (5, 90)}, Narrowed())
    assert spans(seen) == [(5, 10, None), (10, 30, "f10"), (30, 35, "f30"), (35, 50, None), (60, 90, None)]


def test_a_file_outside_of_the_store_is_read_through_the_brokers() -> None:
    foreign = replace(file(10, 20), path="s3://elsewhere/x.parquet")
    assert spans(plan(layout([foreign], []), {0: (10, 30)}, Narrowed())) == [(10, 30, None)]


def test_what_was_removed_of_a_file_is_not_read() -> None:
    assert spans(plan(layout([file(10, 20)], [hole(10, 15, is_open=False)]), {0: (10, 30)}, Narrowed())) == [(15, 30, "f10")]


def test_ranges_and_filters_cut() -> None:
    one = layout([file(0, 100)], [])
    assert spans(plan(one, {0: (0, 100)}, Narrowed(first=20, last=29))) == [(20, 30, "f0")]
    assert spans(plan(one, {0: (40, 50)}, Narrowed(first=20))) == [(40, 50, "f0")]
    assert plan(one, {0: (0, 100)}, Narrowed(partitions=frozenset({1}))) == []
    assert plan(one, {}, Narrowed()) == []


def test_a_file_of_another_time_is_not_opened() -> None:
    one = layout([file(0, 10, first_ms=0, last_ms=9), file(10, 10, first_ms=10, last_ms=19)], [])
    assert spans(plan(one, {0: (0, 20)}, Narrowed(first_us=9_999))) == [(0, 10, "f0"), (10, 20, "f10")], "9.9 ms is stated as 9"
    assert spans(plan(one, {0: (0, 20)}, Narrowed(first_us=10_000))) == [(10, 20, "f10")]
    assert spans(plan(one, {0: (0, 20)}, Narrowed(last_us=9_999))) == [(0, 10, "f0")]


def test_filters_cut_known_pieces_as_they_cut_a_plan() -> None:
    known = [
        Piece("t", 0, 0, 10, file(0, 10, first_ms=0, last_ms=9)), Piece("t", 0, 10, 20, file(10, 10, first_ms=10, last_ms=19)),
        Piece("t", 0, 20, 30), Piece("t", 1, 0, 5),
    ]  # fmt: skip

    def left(**narrowed: Any) -> list[tuple[int, int, int]]:
        return [(piece.partition, piece.start, piece.end) for piece in narrowed_pieces(known, Narrowed(**narrowed))]

    assert left() == [(0, 0, 10), (0, 10, 20), (0, 20, 30), (1, 0, 5)]
    assert left(first=5, last=24) == [(0, 5, 10), (0, 10, 20), (0, 20, 25)]
    assert left(first_us=10_000) == [(0, 10, 20), (0, 20, 30), (1, 0, 5)]
    assert left(partitions=frozenset({1})) == [(1, 0, 5)]
    assert left(topics=frozenset({"other"})) == []


def test_an_open_gate() -> None:
    one = layout([file(0, 10)], [hole(10, 50, is_open=True)])
    with pytest.raises(RetryError) as caught:
        plan(one, {0: (0, 100)}, Narrowed())
    assert caught.value.reason is Reason.GATE_CONFLICT and "openGates" in caught.value.message
    assert spans(plan(one, {0: (0, 100)}, Narrowed(), open_gates="stop")) == [(0, 10, "f0")]
    assert spans(plan(one, {0: (0, 100)}, Narrowed(), open_gates="skip")) == [(0, 10, "f0"), (50, 100, None)]
    assert spans(plan(one, {0: (50, 100)}, Narrowed())) == [(50, 100, None)], "a reader behind it does not notice"


def test_small_files_share_a_task_and_large_ones_are_split() -> None:
    small = [file(10 * number, 10, size=10) for number in range(10)]
    assert len(plan(layout(small, []), {0: (0, 100)}, Narrowed(), piece_bytes=50)) == 2
    many = [file(number, 1, size=1) for number in range(3 * PIECES_MAX)]
    assert len(plan(layout(many, []), {0: (0, len(many))}, Narrowed())) == 3, "opening files takes time, too"
    assert len(plan(layout([file(0, 100, size=1000)], []), {0: (0, 100)}, Narrowed(), piece_bytes=100)) == 10
    assert len(plan(layout([file(0, 100, size=1000)], []), {0: (0, 100)}, Narrowed(), tasks_min=4)) == 4


def test_a_few_live_records_between_files_are_no_task_of_their_own() -> None:
    between = [file(10 * number, 5) for number in range(1000)]
    assert len(plan(layout(between, [], end=10_000), {0: (0, 10_000)}, Narrowed())) <= 2000 // PIECES_MAX + 1
    many = layout([file(FETCH_ROWS_SHARED, 5)], [], end=3 * FETCH_ROWS_SHARED)
    assert len(plan(many, {0: (0, 3 * FETCH_ROWS_SHARED)}, Narrowed())) == 3, "many are fetched in parallel"


def test_live_records_too_are_divided_among_as_many_tasks_as_are_wanted() -> None:
    live = layout([], [])
    assert spans(plan(live, {0: (0, 100)}, Narrowed(), tasks_min=4)) == [(at, at + 25, None) for at in range(0, 100, 25)]
    assert len(plan(live, {0: (0, 100)}, Narrowed(), tasks_min=7)) >= 7
    assert len(plan(live, {0: (0, 3)}, Narrowed(), tasks_min=9)) == 3
    assert len(plan(live, {0: (0, 100)}, Narrowed())) == 1


@settings(deadline=None)
@given(st.data())
def test_every_offset_is_read_once(data: st.DataObject) -> None:
    position, files, holes = data.draw(st.integers(0, 20)), [], []
    first = position
    for _ in range(data.draw(st.integers(0, 8))):
        size = data.draw(st.integers(1, 40))
        match data.draw(st.sampled_from(("file", "live", "hole"))):
            case "file":
                files.append(file(position, size, size=data.draw(st.integers(1, 500))))
            case "hole":
                holes.append(hole(position, position + size, is_open=False))
        position += size
    start = data.draw(st.integers(first, position))
    end = data.draw(st.integers(start, position))
    work = plan(layout(files, holes, end=position), {0: (start, end)}, Narrowed(), piece_bytes=data.draw(st.integers(1, 300)))
    read = [offset for low, high, _ in spans(work) for offset in range(low, high)]
    gone = {offset for one in holes for offset in range(one.base_offset, one.end_offset)}
    assert read == [offset for offset in range(start, end) if offset not in gone]
    for one in work:
        for piece in one.pieces:
            held = piece.file
            assert held is None or held.base_offset <= piece.start < piece.end <= held.end_offset
