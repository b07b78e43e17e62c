"""Apache Kafka as the other side of a comparison, and the jars of Spark's Kafka connector. Both come from Maven Central."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.harness import LOCAL_ALWAYS, Bench, remove_tree
from tests.bench.native import BenchError, Cores
from tests.support import kafka_server, maven
from tests.support.kafka_server import KafkaServer

SINK_VERSION = "4.2.0"
"""The newest release of Spark's Kafka connector on Maven Central. It works in Spark 4.3, which lacks a release of its own there."""
CONNECTOR = "spark-sql-kafka-0-10_2.13"
CONNECTOR_PARTS = (CONNECTOR, "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""What Spark's own jars lack."""
JVM = (
    "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)  # fmt: skip
"""As Kafka's own start script sets them."""
NODE = 1


@dataclass(frozen=True, slots=True)
class Server:
    """A running server with a Kafka port. `place`: of its files. `note`: what a row must say about it."""

    pid: int
    kafka_port: int
    place: Path
    note: str = ""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka_port}"


def connector_jars() -> list[Path]:
    """The jars of Spark's Kafka connector. Raises BenchError with the reason when they cannot be had."""
    try:
        place = maven.jars(f"spark-kafka-{SINK_VERSION}", [f"org.apache.spark:{CONNECTOR}:{SINK_VERSION}"], CONNECTOR_PARTS)
    except (OSError, subprocess.SubprocessError) as error:
        raise BenchError(f"Spark's Kafka connector cannot be downloaded: {maven.missing() or _reason(error)}") from error
    return sorted(place.glob("*.jar"))


@contextlib.contextmanager
def server(bench: Bench, partitions: int, *, pinned: bool = False) -> Iterator[Server]:
    """An empty Apache Kafka of one node with its defaults; without Java or Maven a broker of Headgate.

    Args:
        partitions: of a topic that a client creates by its first request.
    """
    why_not = maven.missing()
    if why_not is not None:
        with bench.broker(LOCAL_ALWAYS, pinned=pinned, settings={"num.partitions": str(partitions)}) as broker:
            yield Server(broker.pid, broker.kafka_port, Path(broker.store), f"{why_not}: the sink writes to Headgate's Kafka port")
        return
    place = bench.fresh_directory("kafka")
    prefix = Cores.prefix(bench.cores.server if pinned else None)
    try:
        with contextlib.ExitStack() as stack:
            try:
                kafka_server.jars()
                node = KafkaServer(place, config={"num.partitions": str(partitions)}, jvm=JVM, prefix=prefix)
                running = stack.enter_context(node)
            except (AssertionError, subprocess.SubprocessError) as error:
                raise BenchError(f"Apache Kafka does not start: {_reason(error)}") from error
            yield Server(running.pid(NODE), running.ports[NODE], place)
    finally:
        remove_tree(place)


def _reason(error: Exception) -> str:
    output = error.stdout if isinstance(error, subprocess.CalledProcessError) else b""
    lines = [line for line in (output or b"").decode(errors="replace").splitlines() if "[ERROR]" in line]
    return (lines or [str(error)])[0][:300]
