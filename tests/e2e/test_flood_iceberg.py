"""Floods from Iceberg tables: real Spark, a real broker, a catalog of PyIceberg in a file, and librdkafka.

Compared: the records of the topic with the rows of the pinned snapshot, and what the certificate and the plan say about it. A
mismatch means that a flood takes rows of another snapshot, or loses some.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.job import read_source
from headgate.pipelines.columns.plain import plain_source
from headgate.pipelines.columns.source import Source
from headgate.pipelines.columns.task_division import Limits
from headgate.pipelines.columns.tasks import Spec
from headgate.pipelines.columns.tasks import records as records_of
from headgate.pipelines.floods.measure import look
from headgate.pipelines.floods.parse import parse_all
from headgate.pipelines.floods.spans import span_of
from headgate.pipelines.iceberg_table import check_tasks, read_snapshot
from headgate.pipelines.rows import rows_of
from headgate.pipelines.session import LazySession
from headgate.pipelines.spark_rows import ARROW, Rows, records
from tests.support.broker_process import HOST, BrokerProcess, broker_of_module
from tests.support.clients.all import CLIENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DAY = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
SCHEMA = Schema(
    NestedField(1, "n", LongType()), NestedField(2, "user", StringType()), NestedField(3, "at", TimestamptzType()),
    NestedField(4, "kind", StringType()),
)  # fmt: skip
SNAPSHOT = 300
"""Rows of one snapshot's own."""


def rows(first: int, count: int) -> pa.Table:
    times = [DAY + datetime.timedelta(minutes=number) for number in range(first, first + count)]
    return pa.table(
        {
            "n": pa.array(range(first, first + count), pa.int64()),
            "user": [f"u{number % 17}" for number in range(first, first + count)],
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "kind": [f"k{number % 2}" for number in range(first, first + count)],
        }
    )


class Lake:
    """A catalog with a table of two snapshots, whose files lie in directories of the column `kind`. The first one has a tag."""

    def __init__(self, place: Path) -> None:
        self.options = {"catalog": "lake", "type": "sql", "uri": f"sqlite:///{place}/lake.db", "warehouse": f"file://{place}/lake"}
        properties = {name: value for name, value in self.options.items() if name != "catalog"}
        self.catalog: Any = load_catalog("lake", **properties)
        self.catalog.create_namespace("web")
        spec = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "kind"))
        self.table: Any = self.catalog.create_table("web.events", SCHEMA, partition_spec=spec)
        self.table.append(rows(0, SNAPSHOT))
        self.first = self.table.current_snapshot().snapshot_id
        self.table.manage_snapshots().create_tag(self.first, "v1").commit()
        self.table.append(rows(SNAPSHOT, SNAPSHOT))
        self.second = self.table.current_snapshot().snapshot_id


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lake"))


broker = broker_of_module()


def numbers(broker: BrokerProcess, topic: str) -> list[int]:
    read = CLIENTS["confluent"].consume(broker.bootstrap, topic, range(2))
    return sorted(int(one.value or b"") for records in read.values() for one in records)


def test_a_flood_reads_the_pinned_snapshot_and_names_it(spark: SparkSession, broker: BrokerProcess, lake: Lake) -> None:
    flood = Backfill(
        cluster=f"{HOST}:{broker.grpc_port}", topic="tagged", source="web.events", format="iceberg",
        options={**lake.options, "tag": "v1"}, key="user", value="cast(n as string)", event_time="at", partitions=2, verify=True,
    )  # fmt: skip
    certificate = run(flood, spark)
    assert certificate.verified and certificate.rows == SNAPSHOT
    assert certificate.snapshot == f"web.events snapshot {lake.first} (tag v1)"
    assert (certificate.engine, certificate.engine_reason) == (ARROW, "")
    assert numbers(broker, "tagged") == list(range(SNAPSHOT))
    again = run(flood, spark)
    assert again.already_filled and again.added_rows == 0 and again.snapshot == ""
    newest = run(replace(flood, topic="newest", options=lake.options, where="n >= 10 and kind = 'k1'"), spark)
    assert newest.snapshot == f"web.events snapshot {lake.second}"
    assert numbers(broker, "newest") == list(range(11, 2 * SNAPSHOT, 2))


def test_a_table_of_plain_columns_needs_no_spark(broker: BrokerProcess, lake: Lake) -> None:
    """Also its files are adopted. They overlap in time, and lie in directories of a column."""
    usual = Backfill(
        cluster=f"{HOST}:{broker.grpc_port}", topic="plain", source="web.events", format="iceberg", options=lake.options,
        key="user", value="kind", event_time="at", partitions=2, verify=True,
    )  # fmt: skip
    session = LazySession(lambda: pytest.fail("a session of Spark starts"), "local[2]", {})
    certificate = run(usual, session)
    assert certificate.verified and certificate.rows == 2 * SNAPSHOT
    assert certificate.snapshot == f"web.events snapshot {lake.second}"
    rows = run(replace(usual, topic="rows", value=None, files="link"), session)
    assert rows.verified and rows.adopted_rows == 2 * SNAPSHOT
    read = CLIENTS["confluent"].consume(broker.bootstrap, "rows", range(2))
    found = sorted((json.loads(one.value or b"") for some in read.values() for one in some), key=lambda one: int(one["n"]))
    wanted = lake.table.scan().to_arrow().sort_by("n").to_pylist()
    assert found == [{**one, "at": one["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")} for one in wanted]


def test_a_plain_table_is_the_one_that_spark_finds(spark: SparkSession, lake: Lake) -> None:
    for value in ("to_json(struct(*))", "kind"):
        assert_alike(spark, "web.events", lake.options, "user", value)


def assert_alike(spark: SparkSession, source: str, options: dict[str, str], key: str, value: str) -> None:
    flood = Backfill(topic="t", source=source, format="iceberg", options=options, key=key, value=value, event_time="at")
    assert outcome(lambda: plain_source(flood, Limits())) == outcome(lambda: read_source(flood.rows(spark, 0)))


def outcome(made: Callable[[], Source | None]) -> Any:
    """What decides the records of a source; the kind of an error for one that columns do not read."""
    try:
        source = made()
    except UnlikeError:
        return UnlikeError
    assert source is not None
    query = source.query
    kinds = {name: query.source[name] for name in query.columns(*query.outputs)}
    return query.outputs, query.filters, kinds, source.pieces


def test_a_plan_counts_the_rows_of_the_snapshot(lake: Lake) -> None:
    options = "".join(f"      {name}: '{value}'\n" for name, value in {**lake.options, "snapshot-id": str(lake.first)}.items())
    text = (
        "floods:\n- name: web\n  topic: web\n  source:\n    path: web.events\n    format: iceberg\n    options:\n" + options
        + "  key: user\n  event_time: at\n  partitions: {by: hour, start: 2026-03-01}\n"
    )  # fmt: skip
    (flood,) = parse_all([(text, "floods.yaml")])
    spans = [span_of(flood.partitions, f"2026-03-01-{hour:02d}:00") for hour in (0, 1, 9)]
    found = look(flood, spans, DAY + datetime.timedelta(days=1))
    assert [(one.rows, one.exact) for one in found.sizes] == [(60, True), (60, True), (0, True)]
    assert f"the source is web.events snapshot {lake.first}" in found.notes
    wrong = replace(flood, key="nobody")
    with pytest.raises(InvalidError, match="nobody"):
        look(wrong, spans, DAY + datetime.timedelta(days=1))


def test_snapshots_that_cannot_be_read_as_files_are_refused_in_the_terms_of_the_table(lake: Lake) -> None:
    for changed, message in (
        ({"tag": "v9"}, "no such tag.*known=`v1`"),
        ({"tag": "main"}, "no such tag"),
        ({"branch": "other"}, "no such branch.*known=`main`"),
        ({"snapshot-id": "7"}, "no such snapshot-id"),
        ({"snapshot-id": "7", "tag": "v1"}, "give one of"),
    ):
        with pytest.raises(InvalidError, match=message):
            read_snapshot("web.events", {**lake.options, **changed})
    with pytest.raises(InvalidError, match="table does not exist"):
        read_snapshot("web.nothing", lake.options)
    file = SimpleNamespace(file_format="PARQUET", file_path="f")
    with pytest.raises(InvalidError, match="the snapshot has delete files"):
        check_tasks("t", [SimpleNamespace(delete_files={1}, file=file)])
    with pytest.raises(InvalidError, match="not Parquet"):
        check_tasks("t", [SimpleNamespace(delete_files=(), file=SimpleNamespace(file_format="ORC", file_path="f"))])
    table: Any = lake.catalog.create_table("web.renamed", SCHEMA)
    assert read_snapshot("web.renamed", lake.options).files == ()
    table.append(rows(0, 5))
    with table.update_schema() as update:
        update.add_column("later", StringType())
        update.delete_column("kind")
    lake.catalog.create_table("web.clock", Schema(*SCHEMA.fields, NestedField(5, "opens", TimeType())))
    with pytest.raises(InvalidError, match=r"Spark reads no columns of times of day.*columns=`opens`"):
        rows_of(Mock(), "web.clock", "iceberg", lake.options, Mock())
    names = {text: read_snapshot("web.renamed", {**lake.options, **pin}).schema.names for text, pin in (
        ("now", {}), ("branch", {"branch": "main"}), ("snapshot", {"snapshot-id": str(table.current_snapshot().snapshot_id)}),
    )}  # fmt: skip
    now = ["n", "user", "at", "later"]
    assert names == {"now": now, "branch": now, "snapshot": ["n", "user", "at", "kind"]}


PLACES = ("ö", "a/b", "a:b", "50%", "a b", "#?", "[x]", "{y}", "*z", "%41", "+", "k")
"""Values of a partition, each of which is a directory."""


def evolved(lake: Lake) -> tuple[str, Any]:
    """The URL of a table in which everything has changed since its first files, and the table as PyIceberg reads it."""
    first = Schema(
        NestedField(1, "n", IntegerType()), NestedField(2, "user", StringType()), NestedField(3, "at", TimestamptzType()),
        NestedField(4, "kind", StringType()), NestedField(5, "secret", StringType()), NestedField(6, "old", StringType()),
        NestedField(7, "id", UUIDType()), NestedField(8, "share", FloatType()),
        NestedField(9, "parts", StructType(NestedField(10, "a", IntegerType()), NestedField(11, "b", StringType()))),
        NestedField(12, "list", ListType(13, StructType(NestedField(14, "x", IntegerType())))),
    )  # fmt: skip
    spec = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "kind"))
    table: Any = lake.catalog.create_table("web.evolved", first, partition_spec=spec)
    table = lake.catalog.load_table("web.evolved")

    def add(number: int, **changed: Any) -> None:
        count = len(PLACES)
        columns = {
            "n": range(number, number + count), "user": [f"u{one}" for one in range(count)],
            "at": [DAY + datetime.timedelta(minutes=number + one) for one in range(count)], "kind": PLACES,
            "secret": ["secret"] * count, "old": ["old"] * count, "id": [uuid.UUID(int=number + one).bytes for one in range(count)],
            "share": [0.5] * count, "parts": [{"a": one, "b": "b"} for one in range(count)],
            "list": [[{"x": one}, {"x": None}] for one in range(count)], **changed,
        }  # fmt: skip
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        table.append(pa.table([pa.array(columns[one.name], one.type) for one in schema], schema=schema))

    add(0)
    with table.update_schema() as update:
        update.rename_column("user", "person")
        update.update_column("n", LongType())
        update.update_column("share", DoubleType())
        update.delete_column("old")
    with table.update_schema() as update:
        update.add_column("old", LongType())  # another column of that name
        update.add_column(("parts", "c"), LongType())
        update.rename_column(("parts", "a"), "aa")
        update.delete_column(("parts", "b"))
        update.rename_column("list.element.x", "y")
        for name, kind in (("later", StringType()), ("price", DecimalType(9, 2)), ("day", DateType()), ("other", UUIDType())):
            update.add_column(name, kind)
    count = len(PLACES)
    add(
        100, person=["p"] * count, old=[7] * count, parts=[{"aa": 1, "c": 2}] * count, list=[[{"y": 1}]] * count,
        later=["l"] * count, price=[None] * count, day=[datetime.date(2026, 5, 5)] * count, other=[None] * count,
    )  # fmt: skip
    with table.update_schema() as update:
        update.delete_column("secret")
    metadata = json.loads(Path(table.metadata_location.removeprefix("file://")).read_text())
    defaults = {"later": "then", "price": "1.50", "day": "2026-02-03", "other": str(uuid.UUID(int=9))}
    for schema in metadata["schemas"]:
        for field in schema["fields"]:
            if field["name"] in defaults:
                field["initial-default"] = defaults[field["name"]]
    third = Path(table.metadata_location.removeprefix("file://")).with_name("v3.metadata.json")
    third.write_text(json.dumps({**metadata, "format-version": 3, "next-row-id": 0}))
    return str(third), StaticTable.from_metadata(str(third))


def plain(value: Any) -> Any:
    """A value as JSON has it, without nulls in rows."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return float(value) if isinstance(value, Decimal) else str(value) if isinstance(value, uuid.UUID | datetime.date) else value


def test_rows_are_those_of_the_table_by_the_ids_of_its_columns(spark: SparkSession, lake: Lake) -> None:
    url, table = evolved(lake)

    def read(value: str | None, key: str = "person", where: str | None = None) -> Rows:
        made = partial(records, key=key, value=value, event_time="at", headers=None, order_by=(), where=where, now_ms=0, options={})
        return rows_of(spark, url, "iceberg", {}, made)

    def on_columns(rows: Rows) -> list[bytes]:
        source = read_source(rows)
        spec = Spec(source.query, 1, (), 1, limits=source.limits)
        return sorted(one for batch in records_of(spec, source.pieces) for one in batch.column("value").to_pylist())

    flat = [one for one in table.schema().column_names if one not in ("parts", "list", "share") and "." not in one]
    value = f"to_json(struct({', '.join(flat)}))"
    wanted = [plain(one) for one in table.scan().to_arrow().to_pylist()]
    assert len(wanted) == 2 * len(PLACES) and any(one.keys() >= {"other", "price", "day"} for one in wanted)
    found = [json.loads(one) for one in on_columns(read(value))]
    assert sorted(found, key=lambda one: int(one["n"])) == sorted(
        ({name: one[name] for name in flat if name in one} for one in wanted), key=lambda one: int(one["n"])
    )
    for name, more in (("person", "later"), ("person", "price"), ("later", "old"), ("id", "n"), ("person", "to_json(struct(*))")):
        assert_alike(spark, url, {}, name, more)
    # A filter on a column that some files lack, and the event time of one file's directory.
    assert on_columns(read("later", where="later = 'then' and kind in ('ö', '%41')")) == [b"then"] * 2
    with pytest.raises(UnlikeError, match="nested column"):
        read_source(read("to_json(parts)"))
    with pytest.raises(InvalidError, match=r"Spark reads no columns of UUIDs.*columns=`id, other`"):
        read(None).for_spark("why")
    with pytest.raises(InvalidError, match="UNRESOLVED_COLUMN"):
        read(None, key="secret || ''")
    with lake.catalog.load_table("web.evolved").update_schema() as update:
        update.delete_column("id")
        update.delete_column("other")
    table = lake.catalog.load_table("web.evolved")
    url = table.metadata_location
    plan = (
        "floods:\n- name: web\n  topic: web\n  source: {path: web.evolved, format: iceberg, options: {"
        + ", ".join(f"{name}: '{value}'" for name, value in lake.options.items())
        + "}}\n  key: person\n  event_time: at\n  partitions: {by: day, start: 2026-03-01}\n"
    )
    (flood,) = parse_all([(plan, "floods.yaml")])
    spans = [span_of(flood.partitions, "2026-03-01")]
    (size,) = look(flood, spans, DAY + datetime.timedelta(days=1)).sizes
    assert (size.rows, size.exact) == (2 * len(PLACES), True)
    assert look(replace(flood, key="later"), spans, DAY + datetime.timedelta(days=1)).sizes == (size,)
    for gone in ("secret", "user", "id"):
        with pytest.raises(InvalidError, match=f"no such column.*key=`{gone}`"):
            look(replace(flood, key=gone), spans, DAY + datetime.timedelta(days=1))
    wanted = [plain(one) for one in table.scan().to_arrow().to_pylist()]
    moved = [json.loads(one["value"]) for one in read(None).for_spark("why").frame.select("value").collect()]
    assert sorted(moved, key=lambda one: int(one["n"])) == sorted(wanted, key=lambda one: int(one["n"]))
