"""The rows of the table: clients, each with an old version and the newest one; `frameworks.py` has frameworks on Java's client.

A row that CI runs (`fast`) takes seconds and is not covered by another test of the project in the same version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.compat.matrix import artifacts
from tests.compat.matrix.artifacts import Program

STEPS = {
    "records": "Records",
    "group": "Groups",
    "group848": "KIP-848",
    "transactions": "Transactions",
    "admin": "Admin",
}
"""The columns for clients: the names of steps and of columns."""


@dataclass(frozen=True, slots=True)
class Row:
    """A client in a version. `make` fetches it, and raises artifacts.MissingError."""

    client: str
    version: str
    make: Callable[[], Program]
    fast: bool = False


def _pip(client: str, package: str, version: str, program: str, extras: str = "", *, fast: bool = False) -> Row:
    return Row(client, version, lambda: artifacts.pip(package, version, program, extras), fast)


def _java(version: str) -> Row:
    jars = (f"org.apache.kafka:kafka-clients:{version}", "org.slf4j:slf4j-nop:1.7.36")
    return Row("Java", version, lambda: artifacts.java(f"clients-{version}", jars, "Clients.java"))


def _go(client: str, module: str, version: str, folder: str, *also: str) -> Row:
    return Row(client, version, lambda: artifacts.go(module, version, folder, also))


_KADM = "github.com/twmb/franz-go/pkg/kadm"
CLIENTS = (
    _pip("librdkafka (Python)", "confluent-kafka", "2.0.2", "confluent", fast=True),
    _pip("librdkafka (Python)", "confluent-kafka", "2.16.1", "confluent"),
    _pip("kafka-python", "kafka-python", "2.0.2", "kafka_python", "[snappy,lz4,zstd]", fast=True),
    _pip("kafka-python", "kafka-python", "3.0.12", "kafka_python", "[snappy,lz4,zstd]"),
    _pip("aiokafka", "aiokafka", "0.10.0", "aiokafka_program", "[snappy,lz4,zstd]"),
    _pip("aiokafka", "aiokafka", "0.14.0", "aiokafka_program", "[snappy,lz4,zstd]"),
    _java("2.1.1"),
    _java("2.8.2"),
    _java("4.4.0"),
    Row("kafkajs", "1.16.0", lambda: artifacts.npm("kafkajs", "1.16.0", "kafkajs_program.js")),
    Row("kafkajs", "2.2.4", lambda: artifacts.npm("kafkajs", "2.2.4", "kafkajs_program.js")),
    _go("franz-go", "github.com/twmb/franz-go", "v1.21.4", "go_franz", f"{_KADM}@v1.18.0"),
    _go("franz-go", "github.com/twmb/franz-go", "v1.22.3", "go_franz", f"{_KADM}@v1.19.0"),
    _go("Sarama", "github.com/IBM/sarama", "v1.50.1", "go_sarama"),
    _go("Sarama", "github.com/IBM/sarama", "v1.61.1", "go_sarama"),
    _go("kafka-go", "github.com/segmentio/kafka-go", "v0.4.42", "go_segmentio"),
    _go("kafka-go", "github.com/segmentio/kafka-go", "v0.4.51", "go_segmentio"),
)
