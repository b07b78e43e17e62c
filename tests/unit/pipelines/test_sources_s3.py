"""Plans of sources in a bucket: the names of paths, and how a server tells the state of objects in its listings and answers.

A mismatch means that a good source cannot be planned, or that a change goes unseen. `HEADGATE_TEST_S3` runs it on another server.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import boto3  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.runtime.errors import InvalidError, RetryError
from headgate.pipelines.floods import measure, source_columns
from headgate.pipelines.floods.measure import listing, look
from headgate.pipelines.floods.model import Flood, Source
from headgate.pipelines.floods.spans import spans_of
from tests.support import floods
from tests.support.s3_server import ENVIRONMENT, S3Server

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = "2026-01-01"
PART_BYTES = 5 << 20
"""The smallest part of a multi-part upload that is not its last one."""


@pytest.fixture(scope="module")
def client(s3_server: S3Server) -> Iterator[Any]:
    keys = {name.lower(): ENVIRONMENT[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    with closing(boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1", **keys)) as found:
        yield found


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.endpoint)
    return s3_server.bucket()


def parquet(rows: int = 3, size_bytes: int = 0) -> bytes:
    """A file with rows of the first day, of at least some size."""
    at = pa.array([datetime(2026, 1, 1, 1, tzinfo=UTC)] * rows, pa.timestamp("us", tz="UTC"))
    file = io.BytesIO()
    filler = [random.Random(1).randbytes(size_bytes // rows)] * rows
    pq.write_table(pa.table({"at": at, "user": ["u"] * rows, "filler": filler}), file, use_dictionary=False)
    return file.getvalue()


def flood(path: str) -> Flood:
    return floods.flood(source=Source(path=path, format="parquet", options={}), key="user")


def planned(path: str) -> int:
    """The rows of the first day at a path, after the source was listed twice, as a plan does it."""
    one = flood(path)
    (size,) = look(one, spans_of(one.partitions, [DAY]), NOW).sizes
    return size.rows


@pytest.mark.parametrize("name", ["plain", "with space", "größe", "a#b", "a%41b", "a+b&c=d", "a?b"])
def test_no_name_is_decoded(client: Any, bucket: str, name: str) -> None:
    client.put_object(Bucket=bucket, Key=f"{name}/{DAY}/part 0.parquet", Body=parquet())
    for path in (f"s3://{bucket}/{name}/%Y-%m-%d", f"s3a://{bucket}/{name}/%Y-%m-%d/", f"s3://{bucket}/{name}/%Y-%m-%d/*.parquet"):
        assert planned(path) == 3
    with pytest.raises(InvalidError, match="the source is not there"):
        planned(f"s3://{bucket}/{name}x/%Y-%m-%d")


def test_objects_of_several_parts_and_encrypted_ones(client: Any, bucket: str) -> None:
    body = parquet(3, 2 * PART_BYTES)
    made = client.create_multipart_upload(Bucket=bucket, Key="lake/parts.parquet")
    upload = {"Bucket": bucket, "Key": "lake/parts.parquet", "UploadId": made["UploadId"]}
    parts = []
    for number in (1, 2):
        some = body[:PART_BYTES] if number == 1 else body[PART_BYTES:]
        parts.append({"PartNumber": number, "ETag": client.upload_part(**upload, PartNumber=number, Body=some)["ETag"]})
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
    try:
        client.put_object(Bucket=bucket, Key="lake/secret.parquet", Body=parquet(4), ServerSideEncryption="AES256")
    except client.exceptions.ClientError:  # a server without a key of its own
        client.put_object(Bucket=bucket, Key="lake/secret.parquet", Body=parquet(4))
    client.put_object(Bucket=bucket, Key="lake/_SUCCESS", Body=b"")
    client.put_object(Bucket=bucket, Key="lake/empty.parquet", Body=b"")
    assert planned(f"s3://{bucket}/lake") == 7
    assert planned(f"s3://{bucket}/{{lake,sea}}/*.parquet") == 7
    assert planned(f"s3://{bucket}/lake/parts.parquet") == 3


def test_a_day_without_files_is_no_mistake_in_the_path(client: Any, bucket: str) -> None:
    client.put_object(Bucket=bucket, Key=f"lake/{DAY}/_SUCCESS", Body=b"")
    assert planned(f"s3://{bucket}/lake/%Y-%m-%d") == 0
    (span,) = spans_of(flood("").partitions, [DAY])
    assert listing(flood(f"s3://{bucket}/lake/%Y-%m-%d"), span).files == 0
    with pytest.raises(InvalidError, match=f"did you mean `{bucket}/lake/{DAY}`?"):
        planned(f"s3://{bucket}/lake/%Y_%m_%d")


def test_a_change_is_seen(client: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client.put_object(Bucket=bucket, Key="lake/a.parquet", Body=parquet())
    usual = source_columns.of_parquet

    def then_more(*arguments: Any) -> Any:
        client.put_object(Bucket=bucket, Key="lake/b.parquet", Body=parquet())
        return usual(*arguments)

    monkeypatch.setattr(measure, "of_parquet", then_more)
    with pytest.raises(RetryError, match=r"the source changed while it was planned.*b\.parquet"):
        planned(f"s3://{bucket}/lake")
