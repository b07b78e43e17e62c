"""Floods from Iceberg tables: real Spark, a real broker, a catalog of PyIceberg in a file, and librdkafka.

Compared: the records of the topic with the rows of the pinned snapshot, and what the certificate and the plan say about it. A
mismatch means that a flood takes rows of another snapshot, or loses some.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from headgate.broker.runtime.errors import InvalidError
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.floods.measure import look
from headgate.pipelines.floods.parse import parse_all
from headgate.pipelines.floods.spans import span_of
from headgate.pipelines.iceberg_table import check_tasks, read_snapshot
from headgate.pipelines.plan import ARROW
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
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


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("iceberg")
    with BrokerProcess(place / "store", place / "broker.log") as one:
        one.start()
        one.wait_ready()
        yield one
    one.check_output()


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
    found = read_snapshot("web.renamed", lake.options)
    assert found.rows == 5 and len(found.files) == 1 and found.schema.names == ["n", "user", "at", "kind"]
    table.append(rows(5, 5).append_column("later", pa.array(["x"] * 5)))
    assert read_snapshot("web.renamed", lake.options).schema.names[-1] == "later"
    with table.update_schema() as update:
        update.rename_column("user", "person")
    table.append(rows(10, 5).rename_columns(["n", "person", "at", "kind"]).append_column("later", pa.array(["x"] * 5)))
    with pytest.raises(InvalidError, match="column `person` is `user` there"):
        read_snapshot("web.renamed", lake.options)
