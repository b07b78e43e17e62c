"""Plans, sizes of sources, and the spread of segments: by hand-made cases and random ones.

A mismatch means surplus or missing brokers, a forecast that does not learn, or a broker of a flood without work.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.assets.plot import markdown, svg
from headgate.assets.recorder import Sample, broker_seconds, peak
from headgate.broker.runtime.errors import HeadgateError, InvalidError
from headgate.pipelines.floods.measure import measure
from headgate.pipelines.floods.model import Brokers, Flood, Partitions, Source
from headgate.pipelines.floods.plan import (
    PartitionSize,
    PastRun,
    Plan,
    covered,
    deviation,
    forecast,
    loads_a_part,
    plan_lanes,
    too_late,
)
from headgate.pipelines.floods.spans import spans_of
from headgate.pipelines.floods.spread import Part, next_merge, next_split
from tests.support import floods

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
CSV = {"header": "true", "inferSchema": "true"}
LATER = NOW + timedelta(hours=1)


def flood(path: str = "/data", **changes: object) -> Flood:
    values: dict[str, object] = {"brokers": Brokers(minimum=1, maximum=4, bytes_per_s=1000), "catch_up_ms": 10_000}
    return floods.flood(path, **{**values, **changes})


def plan(rows: int, size_bytes: int, past: list[PastRun] | None = None, exact: bool = True) -> Plan:
    sizes = [PartitionSize(key="2026-01-01", rows=rows, size_bytes=size_bytes, exact=exact)]
    return forecast(flood(), sizes, past or [], NOW, LATER)


# -- plan


@pytest.mark.parametrize(("size_bytes", "brokers"), [(0, 1), (1, 1), (10_000, 1), (10_001, 2), (25_000, 3), (10**12, 4)])
def test_as_many_brokers_as_readers_need(size_bytes: int, brokers: int) -> None:
    assert plan(1000, size_bytes).brokers == brokers


@pytest.mark.parametrize(
    ("size_bytes", "readers", "lanes", "why"),
    [
        (0, 3, 0, "nothing to read"),
        (1, 0, 1, "1 group catches up at 1e-07 MB/s in all, one lane serves about 200 MB/s"),
        (10**9, 3, 2, "3 groups catch up at 300 MB/s in all, one lane serves about 200 MB/s"),
        (2 * 10**9, 1, 1, "1 group catches up at 200 MB/s in all, one lane serves about 200 MB/s"),
        (10**15, 9, 64, "9 groups catch up at 9e+08 MB/s in all, one lane serves about 200 MB/s"),
    ],
    ids=["nothing", "a byte", "three groups", "just one", "the most"],
)
def test_as_many_lanes_as_readers_need(size_bytes: int, readers: int, lanes: int, why: str) -> None:
    assert plan_lanes(size_bytes, 10_000, readers) == (lanes, why)


def test_a_forecast_learns_setup_and_speed_from_runs_of_different_size() -> None:
    past = [PastRun(rows=rows, size_bytes=0, seconds=20 + rows / 1000, broker_seconds=0) for rows in (10_000, 50_000, 100_000)]
    found = plan(200_000, 0, past)
    assert found.seconds == 220.0 and found.basis == "3 earlier runs: 20 s + 1,000 rows/s"


def test_runs_of_one_size_say_nothing_about_setup() -> None:
    past = [PastRun(rows=1000, size_bytes=0, seconds=100.0, broker_seconds=0)] * 3
    assert plan(1000, 0, past).seconds == pytest.approx(100, abs=0.1)


@settings(deadline=None)
@given(
    st.integers(0, 10**9),
    st.lists(
        st.builds(
            PastRun, rows=st.integers(0, 10**9), size_bytes=st.just(0), seconds=st.floats(0, 1e6), broker_seconds=st.just(0.0)
        )
    ),
)
def test_a_forecast_is_never_nonsense(rows: int, past: list[PastRun]) -> None:
    found = plan(rows, rows * 100, past)
    assert 0 <= found.seconds < 1e20 and 1 <= found.brokers <= 4 and found.basis
    assert Plan.from_json(found.to_json()) == found


def test_a_plan_survives_json() -> None:
    found = plan(5, 500)
    assert Plan.from_json(found.to_json()) == found


def test_deadlines() -> None:
    assert too_late(plan(1000, 1000), NOW) is None
    assert "over" in str(too_late(plan(1000, 1000), LATER))
    assert "takes longer" in str(too_late(plan(10**9, 1000), NOW))
    assert too_late(plan(0, 0), LATER) is None, "nothing to do is never late"


@pytest.mark.parametrize(
    ("exact", "actual", "good"), [(True, 100, True), (True, 101, False), (False, 149, True), (False, 151, False), (False, 50, True)]
)
def test_plan_against_actual(exact: bool, actual: int, good: bool) -> None:
    assert deviation(plan(100, 0, exact=exact), actual)[0] is good


@pytest.mark.parametrize(("actual", "good"), [(0, True), (3, True), (149, True), (151, False)])
def test_a_condition_may_leave_out_any_number_of_rows(actual: int, good: bool) -> None:
    assert deviation(plan(100, 0, exact=False), actual, filtered=True)[0] is good


@pytest.mark.parametrize(
    ("path", "where", "is_part"),
    [("/data/%Y-%m-%d.csv", None, False), ("/data/%Y-%m.csv", None, True), ("/all.csv", None, True), ("/%Y/%m/%d", "a > 1", True)],
)
def test_a_partition_may_have_only_some_rows_of_its_path(path: str, where: str | None, is_part: bool) -> None:
    assert loads_a_part(flood(path, where=where)) is is_part


# -- sources


def times(day: int, rows: int) -> list[datetime]:
    return [datetime(2026, 1, day, tzinfo=UTC) + timedelta(seconds=n) for n in range(rows)]


def write(path: Path, values: list[datetime], unit: str = "us", rows: int = 1000) -> None:
    table = pa.table({"at": pa.array(values, pa.timestamp(unit, tz="UTC")), "n": list(range(len(values)))})
    pq.write_table(table, path, row_group_size=rows)


def rows_of(one: Flood, *keys: str) -> dict[str, int]:
    return {size.key: size.rows for size in measure(one, spans_of(one.partitions, keys), NOW)}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("group", [7, 1000])
def test_parquet_is_counted_exactly(tmp_path: Path, unit: str, group: int) -> None:
    write(tmp_path / "a.parquet", times(1, 20) + times(2, 30), unit, group)
    write(tmp_path / "b.parquet", times(2, 5), unit, group)
    (tmp_path / "_SUCCESS").touch()
    # Spark reads nanoseconds as numbers.
    one = flood(str(tmp_path), event_time="timestamp_micros(at div 1000)" if unit == "ns" else "at")
    assert rows_of(one, "2026-01-01", "2026-01-02", "2026-01-03") == {"2026-01-01": 20, "2026-01-02": 35, "2026-01-03": 0}
    assert all(size.exact for size in measure(one, spans_of(one.partitions, ["2026-01-02"]), NOW))


def test_a_column_in_backquotes_is_counted_like_any_other(tmp_path: Path) -> None:
    pq.write_table(pa.table({"its time": pa.array(times(1, 20), pa.timestamp("us", tz="UTC"))}), tmp_path / "a.parquet")
    one = flood(str(tmp_path), event_time="`its time`")
    assert [(size.rows, size.exact) for size in measure(one, spans_of(one.partitions, ["2026-01-01"]), NOW)] == [(20, True)]


def test_a_file_for_each_day(tmp_path: Path) -> None:
    write(tmp_path / "2026-01-01.parquet", times(1, 3))
    write(tmp_path / "2026-01-02.parquet", times(2, 4))
    assert rows_of(flood(f"{tmp_path}/%Y-%m-%d.parquet"), "2026-01-01", "2026-01-02") == {"2026-01-01": 3, "2026-01-02": 4}
    assert rows_of(flood(f"{tmp_path}/2026-*.parquet"), "2026-01-02") == {"2026-01-02": 4}


@pytest.mark.parametrize("group", [2, 1000])
def test_rows_of_another_time_than_their_path(tmp_path: Path, group: int) -> None:
    write(tmp_path / "2026-01-01.parquet", times(1, 3) + times(2, 2), rows=group)
    write(tmp_path / "2026-01-02.parquet", times(2, 4), rows=group)
    write(tmp_path / "2026-01.parquet", [*times(1, 3), *times(2, 4), datetime(2026, 2, 1, tzinfo=UTC)], rows=group)

    def outside(path: str, *days: int, **changes: object) -> tuple[list[int | None], tuple[bool, str]]:
        one = flood(f"{tmp_path}/{path}", **changes)
        sizes = measure(one, spans_of(one.partitions, [f"2026-01-{day:02}" for day in days]), NOW)
        return [size.elsewhere for size in sizes], covered(one, sizes)

    assert outside("%Y-%m-%d.parquet", 2) == ([0], (True, "0 rows are of another time than the path at which they are"))
    assert outside("%Y-%m-%d.parquet", 1, 2) == (
        [2, 0],
        (
            False,
            "rows are of another time than the path at which they are, and no partition takes them. A `source` without the time in "
            "its path has all rows for each partition; or `timezone` is another. "
            f"rows=`{tmp_path}/2026-01-01.parquet: 2` paths=`1`",
        ),
    )
    # A path of several partitions is reported once, whichever of them the caller asks for.
    assert outside("%Y-%m.parquet", 2) == ([1], (False, outside("%Y-%m.parquet", 1, 2)[1][1]))
    assert outside("%Y-%m.parquet", 1, 2)[0] == [1, 1] and "parquet: 1` paths=`1`" in outside("%Y-%m.parquet", 1, 2)[1][1]
    not_counted = True, "not counted: the path names no time, or only Spark could count its rows"
    assert outside("2026-*.parquet", 1) == ([None], not_counted)
    assert outside("%Y-%m-%d.parquet", 1, where="n > 1") == ([None], not_counted)


def test_a_condition_makes_it_an_estimate(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", times(1, 3))
    (size,) = measure(flood(str(tmp_path), where="n > 1"), spans_of(flood().partitions, ["2026-01-01"]), NOW)
    assert not size.exact


@pytest.mark.parametrize(("name", "share"), [("2026-01-01.csv", 1), ("2026-01.csv", 30), ("all.csv", 120)])
def test_lines_are_estimated(tmp_path: Path, name: str, share: int) -> None:
    """The rows of a file that covers many partitions are divided among all partitions up to now, whichever the caller asks for."""
    pacsv.write_csv(pa.table({"at": [str(one) for one in times(1, 6000)]}), tmp_path / name)
    path = str(tmp_path / name.replace("2026-01-01", "%Y-%m-%d").replace("2026-01", "%Y-%m"))
    one = flood(source=Source(path=path, format="csv", options=CSV))
    (size,) = measure(one, spans_of(one.partitions, ["2026-01-01"]), NOW)
    assert not size.exact and abs(size.rows - 6000 / share) <= 1


@pytest.mark.parametrize(("rows", "least"), [(0, 0), (3, 1)])
def test_a_small_file_for_many_days_is_not_nothing(tmp_path: Path, rows: int, least: int) -> None:
    pacsv.write_csv(pa.table({"at": [str(one) for one in times(1, rows)]}, pa.schema({"at": pa.string()})), tmp_path / "all.csv")
    one = flood(source=Source(path=str(tmp_path), format="csv", options=CSV))
    (size,) = measure(one, spans_of(one.partitions, ["2026-01-01"]), NOW)
    assert (size.rows, size.size_bytes > 0) == (least, True)


@pytest.mark.parametrize("codec", ["gz", "bz2", "zst"])
def test_compressed_lines_are_estimated(tmp_path: Path, codec: str) -> None:
    with pa.output_stream(tmp_path / f"a.csv.{codec}", compression="detect") as file:
        pacsv.write_csv(pa.table({"at": [str(one) for one in times(1, 60_000)]}), file)
    one = flood(
        source=Source(path=f"{tmp_path}/a.csv.{codec}", format="csv", options=CSV),
        partitions=Partitions(start=NOW - timedelta(days=1)),
    )
    (size,) = measure(one, spans_of(one.partitions, ["2026-01-01"]), NOW)
    assert abs(size.rows / 60_000 - 1) < 0.2 and abs(size.size_bytes / (60_000 * 28) - 1) < 0.2


def test_an_event_time_that_is_an_expression_is_estimated(tmp_path: Path) -> None:
    write(tmp_path / "all.parquet", times(1, 1200))
    one = flood(str(tmp_path), event_time="date_trunc('HOUR', at)")
    (size,) = measure(one, spans_of(one.partitions, ["2026-01-01"]), NOW)
    assert (size.rows, size.exact) == (10, False)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "the source is not there"),
        (lambda path: path.write_bytes(b"x" * 100), "the source is not parquet: [^.]*[.] [^.]*[.] path=`.*/a.parquet`"),
        (lambda path: damage(path, footer=True), "a file of the source is damaged: .*[^.][.] path=`.*/a.parquet`"),
        (lambda path: damage(path, footer=False), "a file of the source is damaged: .*[^.][.] path=`.*/a.parquet`"),
        (lambda path: pq.write_table(pa.table({"b": [1]}), path), "the source has no such column. event_time=`at` columns=`b`"),
        (
            lambda path: pq.write_table(pa.table({"at": [1]}), path),
            "event time must be timestamp or date: .* event_time=`at` type=`number`",
        ),
        (lambda path: pq.write_table(pa.table({"at": ["x"]}), path), "event time must be timestamp or date: .* type=`text`"),
    ],
)
def test_sources_that_are_none(tmp_path: Path, make: object, text: str) -> None:
    path = tmp_path / "a.parquet"
    make(path)  # type: ignore[operator]
    with pytest.raises(InvalidError, match=text):
        rows_of(flood(str(path)), "2026-01-01")
    if path.exists():
        # A directory: the file itself is named.
        with pytest.raises(InvalidError, match=text):
            rows_of(flood(str(tmp_path)), "2026-01-01")


def damage(path: Path, *, footer: bool) -> None:
    """Write a file of two days, and zeros over its footer or over its rows."""
    write(path, times(1, 2) + times(2, 2))
    content = path.read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    zeros = bytes(len(content) - 8 - end if footer else end - 4)
    path.write_bytes(content[:end] + zeros + content[-8:] if footer else content[:4] + zeros + content[end:])


class _Forbidden(BaseHTTPRequestHandler):
    """Answers as S3 does to unknown credentials."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_: Any) -> None:
        pass


def test_a_bucket_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    path = "s3://lake/clicks.parquet"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Forbidden) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(HeadgateError) as caught:
            rows_of(flood(path), "2026-01-01")
        server.shutdown()
    assert caught.value.message.startswith("the source may not be read: are there credentials for it?")
    assert caught.value.message.endswith(f"path=`{path}`")


# -- segments


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12))
def test_every_broker_gets_a_part_and_all_can_be_merged_again(partitions: int, brokers: int) -> None:
    parts = [Part(id=1, first=0, end=partitions, broker=1)]
    ids = list(range(1, brokers + 1))
    for _ in range(100):
        step = next_split(parts, ids)
        if step is None:
            break
        old = next(one for one in parts if one.id == step.segment)
        parts.remove(old)
        newest = max([old.id, *(one.id for one in parts)])
        if step.at is None:
            parts.append(Part(id=newest + 1, first=old.first, end=old.end, broker=step.broker))
            continue
        assert old.first < step.at < old.end
        parts.append(Part(id=newest + 1, first=old.first, end=step.at, broker=old.broker))
        parts.append(Part(id=newest + 2, first=step.at, end=old.end, broker=step.broker))
    else:
        pytest.fail("it does not come to an end")
    assert sorted(number for one in parts for number in range(one.first, one.end)) == list(range(partitions))
    assert len({one.broker for one in parts}) == min(partitions, brokers)
    widths = [sum(one.width for one in parts if one.broker == broker) for broker in {one.broker for one in parts}]
    assert max(widths) <= 3 * min(widths) + 1
    alone = [Part(id=one.id, first=one.first, end=one.end, broker=1) for one in parts]
    while (pair := next_merge(alone)) is not None:
        left, right = (next(one for one in alone if one.id == number) for number in pair)
        alone = [one for one in alone if one.id not in pair]
        alone.append(Part(id=left.id, first=left.first, end=right.end, broker=1))
    assert [(one.first, one.end) for one in alone] == [(0, partitions)]


# -- the picture


def samples(*live: int) -> list[Sample]:
    return [
        Sample(at_s=float(at), desired=one, live=one, bytes_in_per_s=0, bytes_out_per_s=0, rows_done=at * 100)
        for at, one in enumerate(live)
    ]


def test_broker_seconds() -> None:
    assert broker_seconds(samples(1, 3, 3, 1)) == 7.0 and peak(samples(1, 3, 3, 1)) == 3
    assert broker_seconds([]) == 0.0 and peak([]) == 0


@pytest.mark.parametrize("live", [(), (1,), (1, 3, 1), tuple(range(64)) * 100])
def test_the_picture_is_svg_whatever_happened(live: tuple[int, ...]) -> None:
    from xml.etree import ElementTree

    picture = svg(samples(*live), "clicks <&> more")
    assert ElementTree.fromstring(picture).tag.endswith("svg") and len(picture) < 60_000
    assert markdown(samples(*live), "x").startswith("![x](data:image/svg+xml;base64,")


def test_the_picture_of_a_long_flood_has_its_end() -> None:
    assert ">1000 s<" in svg(samples(*[3] * 1000, 1), "clicks"), "at which the brokers are gone"
