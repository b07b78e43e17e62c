"""Spark as a separate process that takes commands over a pipe: one JSON object per line in, one per line out.

`Driver` is the benchmark's end of the pipe; `python -m tests.bench.spark_driver CORES` is the other. Every answer has `seconds`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.brokers import ROOT
from tests.bench.native import BenchError, Cores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE_ROWS = 500_000
KEYS = 100_000
KEY_BYTES = 16
VALUE_BYTES = 100
FIRST_US = 1_700_000_000_000_000
SPAN_US = 86_400_000_000


class Driver:
    """A running Spark driver with this many threads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._begun = False

    def begin(self, do: str, **arguments: Any) -> None:
        """Start a command, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Wait for the started command. Raises BenchError with its error."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the Spark driver died. code=`{self._process.wait()}`")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"the Spark job failed. message=`{answer['error']}`")
        return answer

    def run(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Start a command and wait for it."""
        self.begin(do, **arguments)
        return self.end()


@contextlib.contextmanager
def driver(threads: int, *, core: int | None = None) -> Iterator[Driver]:
    """A Spark driver, on one core if requested. It is ready when the block begins."""
    command = [*Cores.prefix(core), sys.executable, "-m", "tests.bench.spark_driver", str(threads)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as process:
        try:
            running = Driver(process)
            running.run("warm")
            yield running
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


# -- the other end


def warm(spark: SparkSession) -> None:
    """Start Python workers, compile the partitioner, and let the JVM see a shuffle once."""
    from pyspark.sql import functions as F

    from headgate.pipelines.murmur2 import java_partition

    frame = spark.range(20_000).select(F.col("id").cast("string").cast("binary").alias("key"))
    frame = frame.withColumn("p", java_partition(spark, F.col("key"), 4)).repartitionById(4, F.col("p"))
    _drain(frame.sortWithinPartitions("key"))


def source(spark: SparkSession, path: str, rows: int) -> None:
    """A source of random rows: a key, a value of base64, a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(7)
    alphabet = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
    Path(path).mkdir(parents=True)
    for number in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - number)
        table = pa.table(
            {
                "key": pa.array(np.char.mod(f"%0{KEY_BYTES}d", dice.integers(0, KEYS, count)).astype(f"S{KEY_BYTES}"), pa.binary()),
                "value": pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(VALUE_BYTES),
                    count,
                    [None, pa.py_buffer(alphabet[dice.integers(0, 64, count * VALUE_BYTES, dtype=np.uint8)])],
                ).cast(pa.binary()),
                "at": pa.array(FIRST_US + dice.integers(0, SPAN_US, count), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, Path(path, f"{number}.parquet"), compression="snappy")


def plain(spark: SparkSession, path: str, out: str, partitions: int) -> None:
    """The work of a flood on its rows, without a gate or a cluster: partition, sort, write Parquet with zstd."""
    from pyspark.sql import functions as F

    from headgate.pipelines.murmur2 import java_partition

    frame = spark.read.parquet(path).select(F.col("at").alias("timestamp"), "key", "value")
    frame = frame.withColumn("p", java_partition(spark, F.col("key"), partitions)).repartitionById(partitions, F.col("p"))
    writer = frame.sortWithinPartitions("timestamp", "key", "value").drop("p").write.option("compression", "zstd")
    writer.option("parquet.compression.codec.zstd.level", "1").option("parquet.enable.dictionary", "false").parquet(out)


def flood(spark: SparkSession, path: str, cluster: str, topic: str, partitions: int) -> dict[str, Any]:
    """The same rows as a flood. Returns the seconds of its phases."""
    from headgate.pipelines.backfill import Backfill, run

    usual: dict[str, Any] = {"key": "key", "value": "value", "event_time": "at", "flood_id": "f"}
    done = run(Backfill(cluster=cluster, topic=topic, source=path, partitions=partitions, **usual), spark)
    assert done.complete
    return {"rows": done.added_rows, "files": done.files, "size_bytes": done.size_bytes, **done.seconds}


def read_topic(spark: SparkSession, cluster: str, topic: str) -> None:
    """Read the whole topic through the data source."""
    from headgate.pipelines.source import register

    register(spark)
    reader = spark.read.format("headgate").option("cluster", cluster).option("subscribe", topic)
    _drain(reader.option("columns", "timestamp,key,value").load())


def read_natively(spark: SparkSession, cluster: str, topic: str) -> None:
    """Read the whole topic with `read_topic`."""
    from headgate.pipelines.topic import read_topic as natively

    _drain(natively(spark, topic, cluster=cluster, columns="timestamp,key,value"))


def read_parquet(spark: SparkSession, path: str, arrow: bool) -> None:
    """Read the same files with Spark; through Arrow and a Python worker, or not."""
    frame = spark.read.option("recursiveFileLookup", "true").parquet(path).select("timestamp", "key", "value")
    _drain(frame.mapInArrow(lambda batches: batches, frame.schema) if arrow else frame)


def _drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


WORK: dict[str, Callable[..., dict[str, Any] | None]] = {
    "warm": warm,
    "source": source,
    "plain": plain,
    "flood": flood,
    "read_topic": read_topic,
    "read_natively": read_natively,
    "read_parquet": read_parquet,
}


def serve(threads: str) -> None:
    """Execute commands until the input ends."""
    from headgate.pipelines.session import session

    spark = session(f"local[{threads}]", app_name="headgate bench")
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        try:
            answer = WORK[request.pop("do")](spark, **request) or {}
        except Exception as error:  # noqa: BLE001 - the bench must get every error
            answer = {"error": str(error).splitlines()[0][:300]}
        sys.stdout.write(json.dumps({**answer, "seconds": time.perf_counter() - began}) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    serve(sys.argv[1])
