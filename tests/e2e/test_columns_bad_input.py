"""Bad input of floods on columns, from the source to the topic: each run ends with a message in the user's terms, adds nothing, and
leaves no gate open. Real Spark, a real broker.

`test_columns.py` and `test_runs.py` have full disks and old releases of Arrow, which need a task inside the test's own process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.broker.client.gate_admin import Gate, GateAdmin, GateState
from headgate.broker.runtime.errors import HeadgateError, InvalidError, RetryError
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.progress import Phase, Progress
from headgate.pipelines.spark_rows import ARROW
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
ROWS = 600
LATE = ROWS - 7
"""The row whose time cannot be."""
KEY_BYTES = 3 << 20

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    place = tmp_path_factory.mktemp("bad")
    with BrokerProcess(place / "store", place / "broker.log") as one:
        one.start()
        yield one
    one.check_output()


def table(**changed: Any) -> pa.Table:
    usual = {"user": [f"u{n % 7}" for n in range(ROWS)], "payload": ["x"] * ROWS, "ms": pa.array(range(ROWS), pa.int64())}
    return pa.table({**usual, **changed})


def write(path: Path, **changed: Any) -> Path:
    """Rows in the format that the name says."""
    found = table(**changed)
    if path.suffix == ".parquet":
        pq.write_table(found, path)
    elif path.suffix == ".json":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in found.to_pylist()))
    else:
        path.write_text("".join(",".join(map(str, row.values())) + "\n" for row in found.to_pylist()))
    return path


FORMATS = ("parquet", "csv", "json")


def flood(broker: BrokerProcess, topic: str, source: Path, format: str = "parquet", **changed: Any) -> Backfill:
    names = {"key": "user", "value": "payload", "event_time": "timestamp_millis(ms)"}
    if format == "csv":
        names = {"key": "_c0", "value": "_c1", "event_time": "timestamp_millis(cast(_c2 as bigint))"}
    return Backfill(
        cluster=f"{HOST}:{broker.grpc_port}", topic=topic, source=str(source), format=format, partitions=PARTITIONS,
        **{**names, **changed},
    )  # fmt: skip


def gates(broker: BrokerProcess, topic: str) -> list[Gate]:
    async def ask() -> list[Gate]:
        async with GateAdmin(f"{HOST}:{broker.grpc_port}") as admin:
            return await admin.list(topic)

    return asyncio.run(ask())


def refused(one: Backfill, spark: SparkSession, listen: Callable[[Progress], None] | None = None) -> HeadgateError:
    """The error of a flood."""
    with pytest.raises(HeadgateError) as caught:
        run(one, spark, progress=listen)
    assert "\n" not in caught.value.message and len(caught.value.message) < 1000
    return caught.value


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more\n")


def change(path: Path) -> None:
    write(path, user=["other"] * ROWS)


HARMS: dict[str, Callable[[Path], None]] = {"changes": change, "grows": grow, "vanishes": Path.unlink}


CHANGES = [
    ("parquet", "changes"),
    pytest.param("parquet", "grows", marks=pytest.mark.slow),
    pytest.param("parquet", "vanishes", marks=pytest.mark.slow),
    ("csv", "vanishes"),
    ("json", "changes"),
]


@pytest.mark.parametrize(("format", "harm"), CHANGES)
def test_a_file_that_changes_between_count_and_write(
    broker: BrokerProcess, spark: SparkSession, tmp_path: Path, format: str, harm: str
) -> None:
    topic = f"{harm}-{format}"
    path = write(tmp_path / f"a.{format}")
    one = flood(broker, topic, tmp_path, format)
    said: list[str] = []

    def listen(seen: Progress) -> None:
        said.append(seen.message)
        if seen.phase is Phase.OPENING:
            HARMS[harm](path)

    error = refused(one, spark, listen)
    assert isinstance(error, RetryError) and f"file=`{path}`" in error.message and "changed" in error.message
    assert any("tasks work on columns" in text for text in said)
    assert [gate.state for gate in gates(broker, topic)] == [GateState.RELEASED]
    write(path)
    done = run(one, spark)
    assert (done.engine, done.added_rows) == (ARROW, ROWS)
    found = CLIENTS["confluent"].consume(broker.bootstrap, topic, range(PARTITIONS))
    assert sum(map(len, found.values())) == ROWS, "the run that failed added nothing"


def test_a_file_that_is_not_what_its_name_says(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.csv").rename(tmp_path / "b.parquet")
    error = refused(flood(broker, "named", tmp_path), spark)
    assert isinstance(error, InvalidError) and "b.parquet" in error.message and "footer" in error.message.lower()
    with pytest.raises(InvalidError):
        gates(broker, "named")


def test_files_of_different_schemas(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", ms=[f"at {n}" for n in range(ROWS)])
    error = refused(flood(broker, "schemas", tmp_path), spark)
    assert isinstance(error, InvalidError) and "b.parquet" in error.message and "ms" in error.message


@pytest.mark.parametrize("format", FORMATS)
def test_one_time_out_of_range(broker: BrokerProcess, spark: SparkSession, tmp_path: Path, format: str) -> None:
    times = [1 << 62 if number == LATE else number for number in range(ROWS)]
    path = write(tmp_path / f"a.{format}", ms=pa.array(times, pa.int64()))
    error = refused(flood(broker, f"late-{format}", tmp_path, format), spark)
    assert isinstance(error, InvalidError) and f"file=`{path}`" in error.message and f"row=`{LATE}`" in error.message
    with pytest.raises(InvalidError):
        gates(broker, f"late-{format}")


@pytest.mark.parametrize("format", ["parquet", pytest.param("csv", marks=pytest.mark.slow)])
def test_keys_longer_than_a_buffer(broker: BrokerProcess, spark: SparkSession, tmp_path: Path, format: str) -> None:
    write(tmp_path / f"a.{format}", user=["k" * KEY_BYTES if number == LATE else "k" for number in range(ROWS)])
    done = run(flood(broker, f"long-{format}", tmp_path, format, verify=True), spark)
    assert (done.engine, done.added_rows, done.verified) == (ARROW, ROWS, True)
