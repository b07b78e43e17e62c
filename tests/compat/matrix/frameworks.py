"""Frameworks, most of them on Kafka's Java client, each with what it does here."""

from __future__ import annotations

import shlex
import sys
import tempfile

from tests.compat.matrix import artifacts
from tests.compat.matrix.artifacts import ROOT, Program
from tests.compat.matrix.rows import Row
from tests.support import maven

KAFKA = "4.1.0"
LOGGER = "org.slf4j:slf4j-nop:1.7.36"
NEW_JAVA = ("--add-opens", "java.base/java.util=ALL-UNNAMED", "--add-opens", "java.base/java.lang=ALL-UNNAMED")


def _streams(version: str) -> Program:
    return artifacts.java(f"streams-{version}", (f"org.apache.kafka:kafka-streams:{version}", LOGGER), "Streams.java")


def _connect() -> Program:
    names = ("connect-runtime", "connect-file", "connect-mirror", "connect-mirror-client")
    jars = [f"org.apache.kafka:{name}:{KAFKA}" for name in names]
    return artifacts.java(f"connect-{KAFKA}", (*jars, LOGGER), "ConnectProgram.java")


def _flink(flink: str, connector: str) -> Program:
    jars = (
        f"org.apache.flink:flink-streaming-java:{flink}",
        f"org.apache.flink:flink-clients:{flink}",
        f"org.apache.flink:flink-connector-base:{flink}",
        f"org.apache.flink:flink-connector-kafka:{connector}",
        LOGGER,
    )
    return artifacts.java(f"flink-{flink}", jars, "FlinkProgram.java", NEW_JAVA)


def _spark(version: str) -> Program:
    if (reason := maven.missing()) is not None:
        raise artifacts.MissingError(reason)
    wanted = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
    jars = maven.jars(f"compat/spark-{version}", (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}",), wanted)
    env = {
        "SPARK_KAFKA_JARS": ",".join(str(one) for one in sorted(jars.glob("*.jar"))),
        "SPARK_HOME_DIR": tempfile.mkdtemp(prefix="compat-spark-"),
        "PYTHONPATH": str(ROOT),
    }
    return Program((sys.executable, "-m", "tests.compat.matrix.programs.spark_program"), env)


def _iceberg(spark: str, iceberg: str) -> Program:
    if (reason := maven.missing()) is not None:
        raise artifacts.MissingError(reason)
    name = f"iceberg-spark-runtime-{spark.rpartition('.')[0]}_2.13"
    jars = maven.jars(f"compat/{name}-{iceberg}", (f"org.apache.iceberg:{name}:{iceberg}",), (name,))
    program = artifacts.pip("pyspark", spark, "iceberg_spark")
    return Program(program.command, {**program.env, "ICEBERG_RUNTIME": str(next(jars.glob("*.jar")))})


def _airflow(version: str) -> Program:
    python = artifacts.environment("apache-airflow", version)
    env = {"AIRFLOW_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
    return Program((sys.executable, "-m", "tests.compat.matrix.programs.airflow_program"), env)


def _apicurio(version: str, serde: str) -> Program:
    home = artifacts.unpacked(f"io.apicurio:apicurio-registry-app:{version}:tar.gz:all")
    jars = (f"io.apicurio:apicurio-registry-serdes-avro-serde:{serde}", f"org.apache.kafka:kafka-clients:{KAFKA}", LOGGER)
    program = artifacts.java(f"apicurio-serde-{serde}", jars, "ApicurioRead.java")
    env = {"APICURIO_HOME": str(home), "APICURIO_READ": shlex.join(program.command)}
    return Program((sys.executable, "-m", "tests.compat.matrix.programs.apicurio_program"), {**env, "PYTHONPATH": str(ROOT)})


_STREAMS = {"at_least_once": "counts by key, `at_least_once`", "exactly_once_v2": "counts by key, `exactly_once_v2`"}
FRAMEWORKS: dict[Row, dict[str, str]] = {
    Row("Kafka Streams", KAFKA, lambda: _streams(KAFKA)): _STREAMS,
    Row("Kafka Streams", "4.4.0", lambda: _streams("4.4.0")): _STREAMS,
    Row("Kafka Connect, MirrorMaker 2", KAFKA, _connect): {
        "source": "a source connector, exactly once",
        "sink": "a sink connector",
        "mirror": "MirrorMaker 2's source connector, exactly once",
    },
    Row("Flink", "2.0.0", lambda: _flink("2.0.0", "4.0.1-2.0")): {"exactly_once": "copies a topic, exactly once"},
    Row("Spark", "4.3.0 with the connector of 4.2.0", lambda: _spark("4.2.0")): {
        "batch": "writes and reads a topic",
        "streaming": "copies a topic as a stream",
    },
    Row("Spark with Iceberg's runtime 1.12.0", "4.1.4", lambda: _iceberg("4.1.4", "1.12.0")): {
        "whole": "reads a topic's files through the REST catalog",
        "part": "reads some offsets of them",
        "killed": "reads them between SIGKILLs of brokers and of folding processes",
    },
    Row("Airflow", "3.3.2", lambda: _airflow("3.3.2")): {
        "days": "loads a flood day by day with `headgate flood run`, after the [page](../../pipelines/orchestrators.md)",
        "waits": "waits for a filled gate without a worker",
    },
    Row("Apicurio Registry", "3.3.3", lambda: _apicurio("3.3.3", "2.6.13.Final")): {
        "avro": "registers Avro schemas; Confluent's Python clients read a flood in its frame, then live records",
        "json": "registers the JSON Schema of a flood, which Confluent's Python client reads",
        "java": "its Avro deserializer for Java (2.6.13) reads history and live records",
    },
}
"""Each with its steps and what they do."""
