"""Spark as a separate process that takes commands over a pipe: one JSON object per line in, one per line out.

`Driver` is the benchmark's end of the pipe; `python -m tests.bench.spark_driver CORES [JAR ...]` is the other. Every answer has
`seconds`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
HOT_KEY = 0
STOP_TIMEOUT_S = 20.0
Source = tuple[str, Mapping[str, str], str]
"""Format, reader options, and event time of a source."""
SOURCES: dict[str, Source] = {
    "parquet": ("parquet", {}, "at"),
    "csv": ("csv", {"header": "true"}, "cast(at as timestamp)"),
    "json": ("json", {}, "cast(at as timestamp)"),
}


class Driver:
    """A running Spark driver with this many threads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._begun = False

    @property
    def pid(self) -> int:
        """The process of the driver. Its JVM and its Python workers are descendants."""
        return self._process.pid

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
def driver(threads: int, *, core: int | None = None, jars: Sequence[Path] = (), warm: bool = True) -> Iterator[Driver]:
    """A Spark driver, on one core if requested. It is ready when the block begins, unless `warm` is False."""
    command = [*Cores.prefix(core), sys.executable, "-m", "tests.bench.spark_driver", str(threads), *map(str, jars)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            running = Driver(process)
            if warm:
                running.run("warm")
            yield running
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT_S)
            # Its JVM is in the same group, and lives on when a job does not end.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


# -- the other end


def warm(spark: SparkSession) -> None:
    """Start Python workers, compile the partitioner, and let the JVM see a shuffle once."""
    from pyspark.sql import functions as F

    from headgate.pipelines.murmur2 import java_partition

    frame = spark.range(20_000).select(F.col("id").cast("string").cast("binary").alias("key"))
    frame = frame.withColumn("p", java_partition(spark, F.col("key"), 4)).repartitionById(4, F.col("p"))
    _drain(frame.sortWithinPartitions("key"))


def source(
    spark: SparkSession,
    path: str,
    rows: int,
    value_bytes: int = VALUE_BYTES,
    file_rows: int = FILE_ROWS,
    ordered: bool = False,
    hot_share: float = 0.0,
) -> None:
    """A source of random rows: a key, a value of base64, a time.

    Args:
        ordered: the files follow one another in time; without it, each has times of the whole day.
        hot_share: share of the rows that have the same key.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(7)
    alphabet = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
    Path(path).mkdir(parents=True)
    for number in range(0, rows, file_rows):
        count = min(file_rows, rows - number)
        keys = dice.integers(0, KEYS, count)
        if hot_share:
            keys[dice.random(count) < hot_share] = HOT_KEY
        first, span = (number * SPAN_US // rows, SPAN_US * count // rows) if ordered else (0, SPAN_US)
        table = pa.table(
            {
                "key": pa.array(np.char.mod(f"%0{KEY_BYTES}d", keys).astype(f"S{KEY_BYTES}"), pa.binary()),
                "value": pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(value_bytes),
                    count,
                    [None, pa.py_buffer(alphabet[dice.integers(0, 64, count * value_bytes, dtype=np.uint8)])],
                ).cast(pa.binary()),
                "at": pa.array(FIRST_US + first + dice.integers(0, span, count), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, Path(path, f"{number:09d}.parquet"), compression="snappy")


def text(spark: SparkSession, path: str, out: str, format: str) -> None:
    """The same rows as CSV with a header, or as JSON lines."""
    frame = spark.read.parquet(path).selectExpr("cast(key as string) key", "cast(value as string) value", "at")
    frame.write.format(format).options(**SOURCES[format][1]).save(out)


def plain(spark: SparkSession, path: str, out: str, partitions: int) -> None:
    """The work of a flood on its rows, without a gate or a cluster: partition, sort, write Parquet with zstd."""
    from pyspark.sql import functions as F

    from headgate.pipelines.murmur2 import java_partition

    frame = spark.read.parquet(path).select(F.col("at").alias("timestamp"), "key", "value")
    frame = frame.withColumn("p", java_partition(spark, F.col("key"), partitions)).repartitionById(partitions, F.col("p"))
    writer = frame.sortWithinPartitions("timestamp", "key", "value").drop("p").write.option("compression", "zstd")
    writer.option("parquet.compression.codec.zstd.level", "1").option("parquet.enable.dictionary", "false").parquet(out)


def flood(spark: SparkSession, path: str, cluster: str, topic: str, partitions: int, format: str = "parquet") -> dict[str, Any]:
    """The same rows as a flood. Returns the seconds of its phases."""
    from headgate.pipelines.backfill import Backfill, run

    _, options, event_time = SOURCES[format]
    usual: dict[str, Any] = {"key": "key", "value": "value", "event_time": event_time, "flood_id": "f"}
    usual |= {"format": format, "options": options}
    done = run(Backfill(cluster=cluster, topic=topic, source=path, partitions=partitions, **usual), spark)
    assert done.complete
    return {"rows": done.added_rows, "files": done.files, "size_bytes": done.size_bytes, "engine": done.engine, **done.seconds}


def sink(
    spark: SparkSession, path: str, bootstrap: str, topic: str, settings: dict[str, str], format: str = "parquet",
    key: str = "key", value: str = "value",
) -> None:  # fmt: skip
    """The same rows through Spark's Kafka sink; `settings` are the producer's."""
    _, options, _ = SOURCES[format]
    frame = spark.read.format(format).options(**options).load(path).selectExpr(f"{key} key", f"{value} value")
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer.options(**{f"kafka.{name}": value for name, value in settings.items()}).save()


def alone(spark: SparkSession, path: str, out: str, partitions: int) -> None:
    """The work of a flood on its rows in one thread, without Spark: count, read, partition, sort, write, with the project's own
    partitioner and uploader."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headgate.broker.client.upload import Uploader
    from headgate.broker.log.column_partitioner import partitions_for_keys

    def numbers_of(table: pa.Table) -> Any:
        keys: Any = table.column("key").combine_chunks()
        return partitions_for_keys(keys, partitions)

    files = sorted(Path(path).glob("*.parquet"))
    counts = sum(np.bincount(numbers_of(pq.read_table(file, columns=["key"])), minlength=partitions) for file in files)
    table = pa.concat_tables(pq.read_table(file, use_threads=False) for file in files).rename_columns(["key", "value", "timestamp"])
    table = table.combine_chunks()
    times: Any = table.column("timestamp").cast(pa.int64()).to_numpy()
    numbers = numbers_of(table)
    with Uploader(out) as uploader:
        for partition in range(partitions):
            own = np.flatnonzero(numbers == partition)
            assert len(own) == counts[partition]
            rows = table.take(own[np.argsort(times[own])])
            uploader.write(f"partition={partition}/0.parquet", rows, partition, 0)


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
    "text": text,
    "plain": plain,
    "flood": flood,
    "sink": sink,
    "alone": alone,
    "read_topic": read_topic,
    "read_natively": read_natively,
    "read_parquet": read_parquet,
}


def serve(threads: str, *jars: str) -> None:
    """Execute commands until the input ends."""
    from headgate.pipelines.session import session

    spark = session(f"local[{threads}]", app_name="headgate bench", conf={"spark.jars": ",".join(jars)} if jars else None)
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
    serve(*sys.argv[1:])
