"""The pure parts of SQL: what a filter leaves, which topics a query names, where a cut ends, and which shape rows have.

A filter that is taken for narrower than it is would lose records.
"""

from __future__ import annotations

import datetime
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cli.sql import columns_of
from headgate.broker.client import Topic
from headgate.broker.client.gate_admin import RecordRange
from headgate.broker.client.types import Timestamp
from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.sql.cut import parse_as_of
from headgate.pipelines.sql.filters import narrowed
from headgate.pipelines.sql.query import named_topics, one_line
from headgate.pipelines.sql.topic_columns import TABLE, shaped

PARTITIONS, OFFSETS, TIMES = range(3), range(12), range(0, 40_000, 4_000)
ROWS = pa.table(
    {
        "partition": pa.array([p for p in PARTITIONS for _ in OFFSETS for _ in TIMES], pa.int32()),
        "offset": pa.array([o for _ in PARTITIONS for o in OFFSETS for _ in TIMES], pa.int64()),
        "timestamp": pa.array([t for _ in PARTITIONS for _ in OFFSETS for t in TIMES], pa.timestamp("us", tz="UTC")),
        "value": pa.array([b"v%d" % t for _ in PARTITIONS for _ in OFFSETS for t in TIMES], pa.binary()),
    }
)


def _comparisons(name: str, values: range, scalar: Any) -> st.SearchStrategy[Any]:
    field: Any = ds.field(name)
    one = st.sampled_from([*values, values.start - 1, values.stop + 1]).map(scalar)
    operators = (
        lambda value: field == value,
        lambda value: field != value,
        lambda value: field < value,
        lambda value: field <= value,
        lambda value: field > value,
        lambda value: field >= value,
    )
    return st.tuples(st.sampled_from(operators), one).map(lambda pair: pair[0](pair[1]))


LEAVES = st.one_of(
    _comparisons("partition", PARTITIONS, lambda value: pa.scalar(value, pa.int32())),
    _comparisons("offset", OFFSETS, int),
    _comparisons("timestamp", TIMES, lambda value: pa.scalar(value, pa.timestamp("us", tz="UTC"))),
    st.sampled_from([b"v0", b"v4000", b"none"]).map(lambda value: ds.field("value") == value),
)
FILTERS = st.recursive(
    LEAVES, lambda inner: st.tuples(inner, inner, st.booleans()).map(lambda t: t[0] & t[1] if t[2] else t[0] | t[1]), max_leaves=5
)


@given(FILTERS)
def test_no_row_of_a_filter_is_outside_of_its_range(filter: Any) -> None:
    wanted = narrowed(filter, PARTITIONS, len(OFFSETS))
    left = ROWS.filter(filter).to_pylist()
    if wanted is None:
        assert not left
        return
    for row in left:
        ms = row["timestamp"].timestamp() * 1000
        assert wanted.partitions is not None and row["partition"] in wanted.partitions
        assert wanted.last_offset is not None and wanted.first_offset <= row["offset"] <= wanted.last_offset
        assert wanted.first_timestamp_ms is None or ms >= wanted.first_timestamp_ms
        assert wanted.last_timestamp_ms is None or ms < wanted.last_timestamp_ms + 1


def test_ranges_are_as_narrow_as_comparisons_are() -> None:
    def ms(value: int) -> Any:
        return pa.scalar(value * 1000, pa.timestamp("us", tz="UTC"))

    offset, timestamp, partition = ds.field("offset"), ds.field("timestamp"), ds.field("partition")
    filter: Any = ((offset == 7) | (offset == 900)) & (timestamp >= ms(5)) & (timestamp < ms(9)) & (partition > 0)
    assert narrowed(filter, range(4), 1000) == RecordRange(
        partitions=frozenset((1, 2, 3)), first_offset=7, last_offset=900, first_timestamp_ms=5, last_timestamp_ms=8
    )
    assert narrowed(None, range(4), 1000) == RecordRange()
    assert narrowed(offset > 999, range(4), 1000) is None
    assert narrowed(partition == 4, range(4), 1000) is None


def topic(name: str) -> Topic:
    return Topic(name=name, id=uuid.uuid4(), partitions=1, created_ms=0)


def test_the_topics_that_a_query_names() -> None:
    topics = [topic(name) for name in ("clicks", "web.clicks-1", "Orders", "other")]

    def named(query: str) -> list[str]:
        return [one.name for one in named_topics(query, topics)]

    assert named('SELECT * FROM clicks JOIN "web.clicks-1" USING (key)') == ["clicks", "web.clicks-1"]
    assert named("select ORDERS.value from orders") == ["Orders"]
    assert named("SELECT * FROM myclicks") == []
    topics.append(topic("ORDERS"))
    assert named("SELECT * FROM clicks") == ["clicks"]
    assert named("SELECT * FROM Orders") == ["Orders"]
    for query in ("SELECT * FROM orders", "SELECT * FROM Orders JOIN ORDERS USING (key)"):
        with pytest.raises(InvalidError, match="topics=`Orders, ORDERS`"):
            named(query)
    query = "SELECT orders.key, 'ORDERS' FROM clicks AS orders"
    assert [one.name for one in named_topics(query, topics, {"clicks"})] == ["clicks"]
    assert [one.name for one in named_topics(query, topics, {"ORDERS"})] == ["clicks", "ORDERS"]


def test_one_line_of_a_message_of_duckdb() -> None:
    message = 'Parser Error: syntax error at or near "SELEC"\n\nLINE 1: SELEC 1\n        ^'
    assert one_line(message) == 'Parser Error: syntax error at or near "SELEC"'
    assert one_line("Catalog Error: no table\nDid you mean x?") == "Catalog Error: no table Did you mean x?"


def test_the_places_at_which_a_query_may_end() -> None:
    assert parse_as_of(None, 0) is None
    assert parse_as_of(7, 0) == parse_as_of(" 7 ", 0) == 7
    assert parse_as_of("0:5,12:900", 0) == {0: 5, 12: 900}
    moment = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)
    expected = Timestamp(int(moment.timestamp()) * 1000)
    assert (
        parse_as_of(moment, 0) == parse_as_of(moment.replace(tzinfo=None), 0) == parse_as_of("2026-11-21T10:00:00", 0) == expected
    )
    assert parse_as_of("15m", 1_000_000) == Timestamp(100_000)
    for wrong in ("soon", "1:", "-5", "0:1,"):
        with pytest.raises(InvalidError, match="as-of is an offset"):
            parse_as_of(wrong, 0)
    with pytest.raises(InvalidError, match="not negative"):
        parse_as_of(-1, 0)


def test_rows_get_the_shape_of_the_table() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    file = pa.record_batch(
        {
            "timestamp": pa.array([1, 2, 3], pa.timestamp("ms", tz="UTC")),
            "value": pa.array(["a", None, ""]),
            "headers": pa.array([[{"key": "h", "value": b"1"}], [], None], kind),
        }
    )
    found = shaped(file, TABLE.names, 4, 100)
    assert found.schema == TABLE
    assert found.column("offset").to_pylist() == [100, 101, 102] and found.column("partition").to_pylist() == [4] * 3
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [1000, 2000, 3000]
    assert found.column("timestamp_type").to_pylist() == [0] * 3 and found.column("key").null_count == 3
    assert found.column("value").to_pylist() == [b"a", None, b""]
    # Kafka does not tell no headers from an empty list of them.
    assert found.column("headers").to_pylist() == [[{"key": "h", "value": b"1"}], None, None]
    distant = pa.record_batch({"timestamp": pa.array([1 << 54], pa.timestamp("ms", tz="UTC"))})
    with pytest.raises(InvalidError, match="out of the range of tables"):
        shaped(distant, ["timestamp"], 0, 0)
    assert shaped(distant, ["offset"], 0, 5).column("offset").to_pylist() == [5]


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (1_767_225_600_123, "2026-01-01 00:00:00.123Z"),
        (1_767_225_600_000_000, "57971-02-25 00:00:00.000Z"),
        (-719_162 * DAY_MS, "0001-01-01 00:00:00.000Z"),
        (-719_163 * DAY_MS, "0000-12-31 00:00:00.000Z"),
        (-719_163 * DAY_MS - 366 * DAY_MS, "-0001-12-31 00:00:00.000Z"),
        (253_402_300_800_000, "10000-01-01 00:00:00.000Z"),
        ((1 << 63) - 1, "292278994-08-17 07:12:55.807Z"),
        (None, None),
    ],
)
def test_times_of_any_year_are_printed(ms: int | None, text: str | None) -> None:
    """Also beside usual times in one batch; the latest one is that of Java's `Instant.ofEpochMilli(Long.MAX_VALUE)`."""
    for others in ([], [0, None]):
        batch = pa.record_batch({"at": pa.array([ms, *others], pa.timestamp("ms", "UTC"))})
        assert columns_of(batch)[0][: 1 + len(others)] == [text, *(["1970-01-01 00:00:00.000Z", None] if others else [])]


def test_dates_of_any_year_are_printed() -> None:
    days: Any = pa.array([20_000_000, 0, -800_000], pa.date32())
    assert columns_of(pa.record_batch({"day": days})) == [["56728-02-22", "1970-01-01", "-0221-09-04"]]
