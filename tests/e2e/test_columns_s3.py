"""Floods from a bucket on columns: a session without S3A reads them, with the records of Spark's rows of the same files on disk.

The server is a process of its own. Secrets are in the settings of S3A only, and no plan and no message shows them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.pipelines.backfill import Backfill
from headgate.pipelines.columns import tasks
from headgate.pipelines.columns.files import Access, access_of
from headgate.pipelines.columns.job import ColumnWork, read_source
from headgate.pipelines.columns.processes import Processes
from headgate.pipelines.columns.stand_ins import hadoop_settings
from headgate.pipelines.columns.tasks import Spec
from headgate.pipelines.rows import rows_of
from headgate.pipelines.spark_rows import ARROW, Rows, records
from headgate.pipelines.work import RowWork, work_and_counts
from tests.e2e.test_columns import NOW_MS, result, write
from tests.e2e.test_columns_lines import csv_files, json_files
from tests.support.errors import raises
from tests.support.in_process import PARTITIONS, assert_found, of_rows
from tests.support.s3_server import ENVIRONMENT, S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SECRET = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture
def bucket(s3_server: S3Server, spark: SparkSession) -> Iterator[str]:
    """An empty bucket, which the session reaches by the settings of S3A alone. Its workers may have started before the server."""
    settings = hadoop_settings(spark)
    wanted = {
        "fs.s3a.endpoint": s3_server.endpoint,
        "fs.s3a.access.key": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        "fs.s3a.secret.key": SECRET,
    }
    for name, value in wanted.items():
        settings.set(name, value)
    yield s3_server.bucket()
    for name in wanted:
        settings.unset(name)


@contextmanager
def client(server: S3Server) -> Iterator[Any]:
    keys = {name.lower(): ENVIRONMENT[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    with closing(boto3.client("s3", endpoint_url=server.endpoint, region_name="us-east-1", **keys)) as found:
        yield found


def upload(server: S3Server, bucket: str, place: Path, prefix: str = "") -> None:
    """Put all files below a directory into a bucket, under keys that begin with `prefix`."""
    with client(server) as to:
        for path in sorted(place.rglob("*")):
            if path.is_file():
                to.put_object(Bucket=bucket, Key=prefix + str(path.relative_to(place)), Body=path.read_bytes())


def rows_from(spark: SparkSession, source: str, format: str = "parquet", **changed: Any) -> Rows:
    usual: dict[str, Any] = {
        "key": "user", "value": None, "event_time": "at", "headers": None, "order_by": (), "where": None, "now_ms": NOW_MS,
    }  # fmt: skip
    options = changed.pop("options", {})
    return rows_of(spark, source, format, options, partial(records, **{**usual, **changed}, options=options))


def lake(place: Path) -> Path:
    for day in ("2024-01-01", "2024-01-02"):
        path = place / "a #%41 lake" / f"day={day}" / f"é {day}.parquet"
        path.parent.mkdir(parents=True)
        write(path, at=pa.array([2, 1], pa.timestamp("us", tz="UTC")), n=pa.array([1, 2]))
    (place / "a #%41 lake" / "_SUCCESS").write_bytes(b"")
    (place / "a #%41 lake" / ".hidden.parquet").write_bytes(b"not a file of rows")
    return place / "a #%41 lake"


def same_as_on_disk(
    spark: SparkSession, source: str, local: str, place: Path, format: str = "parquet", *, whole: bool = False, **changed: Any
) -> None:
    """The records of a source on S3, made on columns, are those of Spark's rows of the same files on disk. `whole`: by Spark's
    workers, with the sums; otherwise in this process."""
    on_s3, on_disk = rows_from(spark, source, format, **changed), rows_from(spark, local, format, **changed)
    if whole:
        work, counts = work_and_counts(spark, on_s3, PARTITIONS)
        moved = RowWork(spark, on_disk, PARTITIONS, "")
        assert (work.engine, work.why) == (ARROW, "")
        assert counts == moved.count() and counts.total > 0
        ours, theirs = result(work, counts, place / "columns"), result(moved, counts, place / "rows")
        assert (work.engine, ours[2]) == (ARROW, theirs[2])
        assert [(one.partition, one.tally) for one in ours[1]] == [(one.partition, one.tally) for one in theirs[1]]
    else:
        assert assert_found({source: on_s3}, {source: of_rows(spark, on_disk)}, place)[source].total > 0
    with redirect_stdout(io.StringIO()) as plans:
        on_s3.frame.explain(True)
    assert "Relation" in plans.getvalue() and SECRET not in plans.getvalue()


@pytest.mark.parametrize(
    ("scheme", "path"),
    [
        ("s3", "a #%41 lake"),
        ("s3a", "a #%41 lake/day=2024-01-0{1,2}"),
        ("s3a", "a #%41 lake/day=2024-01-0[2-9]/"),
        ("s3", "a #%41 lake/day=2024-01-01/é 2024-01-01.parquet"),
    ],
)
def test_parquet_in_a_bucket(spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path, scheme: str, path: str) -> None:
    """Columns in the paths, patterns, files that Spark leaves out, names to escape."""
    lake(tmp_path)
    upload(s3_server, bucket, tmp_path)
    same_as_on_disk(spark, f"{scheme}://{bucket}/{path}", str(tmp_path / path), tmp_path / "to", whole=path == "a #%41 lake")


def test_objects_with_colons_in_their_names(spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    """On disk, Spark opens no file with such a name."""
    for format, files, changed in (
        ("parquet", lake, {}),
        ("csv", csv_files, {"options": {"header": "true"}, "event_time": "to_timestamp(at)", "value": "payload"}),
    ):
        (tmp_path / format).mkdir()
        path = files(tmp_path / format)
        same = str(path.relative_to(tmp_path))
        with client(s3_server) as to:
            for one in sorted(tmp_path.rglob(f"{same}/**/*.{format}")):
                key = str(one.parent.relative_to(tmp_path) / f"12:00 {one.name}")
                to.put_object(Bucket=bucket, Key=key, Body=one.read_bytes())
        same_as_on_disk(spark, f"s3://{bucket}/{same}", str(path), tmp_path / f"{format}-to", format, **changed)


def test_an_iceberg_table_in_a_bucket(spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    """Locations are not encoded, and a column has another name in older files."""
    options = {
        "catalog": "lake", "type": "sql", "uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"s3://{bucket}/lake",
        "s3.endpoint": s3_server.endpoint, "s3.access-key-id": ENVIRONMENT["AWS_ACCESS_KEY_ID"], "s3.secret-access-key": SECRET,
    }  # fmt: skip
    catalog: Any = load_catalog("lake", **{name: value for name, value in options.items() if name != "catalog"})
    catalog.create_namespace("web")
    rows = pa.table({"old": ["a/b", "ö %41", "c"], "at": pa.array([1, 2, 3], pa.timestamp("us", tz="UTC"))})
    table = catalog.create_table("web.events", rows.schema)
    with table.update_spec() as update:
        update.add_identity("old")
    table.append(rows)
    with table.update_schema() as change:
        change.rename_column("old", "user")
    table.append(rows.rename_columns(["user", "at"]))
    found = rows_from(spark, "web.events", "iceberg", options=options, value="user")
    work, counts = work_and_counts(spark, found, PARTITIONS)
    assert (work.engine, work.why, counts.total) == (ARROW, "", 6)
    source = read_source(found)
    values = [one for batch in tasks.records(Spec(source.query, 1, (), 1), source.pieces) for one in batch["value"].to_pylist()]
    assert sorted(values) == sorted(one.encode() for one in rows["old"].to_pylist() * 2)


def test_lines_in_a_bucket(spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    for format, files, options, time in (
        ("csv", csv_files, {"header": "true"}, "to_timestamp(at)"),
        ("csv", csv_files, {"header": "true", "inferSchema": "true"}, "at"),
        ("json", json_files, {}, "timestamp_millis(ms)"),
    ):
        place = tmp_path / f"{format}{len(options)}"
        place.mkdir()
        path = files(place)
        upload(s3_server, bucket, path, f"{place.name}/")
        changed = {"options": options, "event_time": time, "value": "payload"}
        same_as_on_disk(spark, f"s3a://{bucket}/{place.name}", str(path), place, format, **changed)


def test_what_needs_rows_asks_for_the_package(spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    lake(tmp_path)
    upload(s3_server, bucket, tmp_path)
    source = f"s3://{bucket}/a #%41 lake"
    with raises(InvalidError, Reason.UNSUPPORTED, r"hadoop-aws.*why=`not on columns: Spark's Upper"):
        work_and_counts(spark, rows_from(spark, source, value="upper(user)"), PARTITIONS)
    with pytest.raises(InvalidError, match=r"hadoop-aws.*why=`not on columns: .*format=`orc`"):
        rows_from(spark, source, "orc")


def test_what_is_wrong_with_a_bucket_is_told(spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    settings = hadoop_settings(spark)

    def error_of(source: str, format: str = "parquet") -> HeadgateError:
        with pytest.raises(HeadgateError) as raised:
            work_and_counts(spark, rows_from(spark, source, format), PARTITIONS)
        assert SECRET not in raised.value.message and "headgate-s3-" not in raised.value.message
        return raised.value

    assert error_of(f"s3://{bucket}/nothing").reason is Reason.NOT_FOUND
    with client(s3_server) as to:
        to.put_object(Bucket=bucket, Key="day/_SUCCESS", Body=b"")
        to.put_object(Bucket=bucket, Key="below/day/a.parquet", Body=b"something")
    assert Backfill(topic="t", source=f"s3a://{bucket}/day").rows_if_any(spark) is None, "an empty day"
    with pytest.raises(InvalidError, match="recursiveFileLookup"):
        Backfill(topic="t", source=f"s3a://{bucket}/below").rows_if_any(spark)
    assert error_of("s3://no-such-bucket/x").reason is Reason.NOT_FOUND
    with client(s3_server) as to:
        to.put_object(Bucket=bucket, Key="lake/a.parquet", Body=b"this is no Parquet file at all")
    assert f"s3://{bucket}/lake/a.parquet" in error_of(f"s3://{bucket}/lake").message
    settings.set("fs.s3a.endpoint", "http://127.0.0.1:9")
    assert isinstance(error_of(f"s3://{bucket}/lake"), RetryError)


def test_an_object_that_changes_meanwhile_is_told(spark: SparkSession, s3_server: S3Server, bucket: str, tmp_path: Path) -> None:
    """Of the same size, within the same second: the ETag is another."""
    path = lake(tmp_path) / "day=2024-01-01" / "é 2024-01-01.parquet"
    upload(s3_server, bucket, tmp_path)
    key = str(path.relative_to(tmp_path))
    source = read_source(rows_from(spark, f"s3://{bucket}/a #%41 lake"))
    assert SECRET not in repr(source)
    work = ColumnWork(Processes(0), source, PARTITIONS)
    work.count()
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    with client(s3_server) as to:
        to.put_object(Bucket=bucket, Key=key, Body=bytes(data))
    with pytest.raises(RetryError, match=f"changed or vanished.*file=`s3://{bucket}/{key}`"):
        work.count()
    with client(s3_server) as to:
        to.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(RetryError, match=f"changed or vanished.*file=`s3://{bucket}/{key}`"):
        work.count()


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({}, {"AWS_REGION": "eu-west-1"}, Access("eu-west-1", path_style=False)),
        ({"endpoint": "s3.eu-west-3.amazonaws.com"}, {}, Access("eu-west-3", path_style=False)),
        ({"endpoint": "minio:9000"}, {}, Access("us-east-1", "https://minio:9000")),
        ({"endpoint": "minio:9000", "connection.ssl.enabled": "false"}, {}, Access("us-east-1", "http://minio:9000")),
        ({"endpoint": "a:1", "bucket.lake.endpoint": "http://b:2"}, {}, Access("us-east-1", "http://b:2")),
        ({}, {"AWS_ENDPOINT_URL": "http://b:2"}, Access("us-east-1", "http://b:2")),
        (
            {"endpoint": "http://b:2", "access.key": "a", "secret.key": "b"},
            {},
            Access("us-east-1", "http://b:2", False, True, "a", "b"),
        ),
        (
            {"endpoint": "http://b:2", "aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"},
            {},
            Access("us-east-1", "http://b:2", anonymous=True),
        ),
        ({"aws.credentials.provider": "com.acme.OurOwnProvider"}, {}, None),
        ({"encryption.algorithm": "SSE-C"}, {}, None),
    ],
    ids=str,
)
def test_the_access_is_that_of_s3a(settings: dict[str, str], environment: dict[str, str], expected: Access | None) -> None:
    found = {f"fs.s3a.{name}": value for name, value in settings.items()}
    assert access_of("lake", lambda name: found.get(name, ""), environment) == expected
