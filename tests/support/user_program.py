"""A user's program over the whole public API, for mypy only: `tests/unit/test_package.py` checks it against the built wheel.

`assert_type` fails where a type is `Any` or another one than users see in the documents.
"""

from __future__ import annotations

from typing import assert_type

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

import headgate
from headgate import (
    Admin,
    ClusterStatus,
    Consumer,
    ConsumerRecord,
    Control,
    Delivery,
    DesiredBrokers,
    FileRef,
    Gate,
    GateAdmin,
    GateState,
    GroupAdmin,
    GroupDescription,
    InvalidError,
    OffsetAndTimestamp,
    Place,
    Producer,
    Reason,
    Reservation,
    RetryError,
    Start,
    Timestamp,
    Topic,
    TopicPartition,
)


async def write_and_read(cluster: str) -> list[ConsumerRecord]:
    """Live records."""
    async with Producer(cluster) as producer:
        assert_type(await producer.send_and_wait("clicks", b"hello", key=b"user-1", headers=(("a", b"1"),)), Delivery)
        future = await producer.send("clicks", b"again")
        assert_type((await future).offset, int)
    start: Start = Timestamp(1_767_225_600_000)
    found: list[ConsumerRecord] = []
    async with Consumer(cluster) as consumer:
        await consumer.assign({TopicPartition("clicks", 0): start, TopicPartition("clicks", 1): "latest"})
        async for record in consumer:
            assert_type(record, ConsumerRecord)
            assert_type(record.value, bytes | None)
            found.append(record)
        assert_type(await consumer.poll(timeout_ms=10), list[ConsumerRecord])
    return found


async def operate(cluster: str) -> None:
    """Topics, groups, gates and capacity."""
    async with Admin(cluster) as admin, Control(cluster) as control, GateAdmin(cluster) as gates, GroupAdmin(cluster) as groups:
        assert_type(await admin.status(), ClusterStatus)
        assert_type(await admin.list_topics(), list[Topic])
        assert_type(await admin.offsets({TopicPartition("clicks", 0): "earliest"}), dict[TopicPartition, OffsetAndTimestamp])
        assert_type(await control.open_reservation(3, 60_000), Reservation)
        assert_type(await control.desired_brokers(), DesiredBrokers)
        gate, files = await gates.describe_files("clicks", "history")
        assert_type(gate, Gate)
        assert_type(gate.state, GateState)
        assert_type(files, list[FileRef])
        assert_type(await groups.describe_group("readers"), GroupDescription)


def handle(error: headgate.HeadgateError) -> bool:
    """Errors are cut by what the caller does."""
    assert_type(error.reason, Reason)
    return isinstance(error, RetryError) and not isinstance(error, InvalidError)


assert_type(headgate.__version__, str)


def load_history(spark: SparkSession, cluster: str) -> DataFrame:
    """A flood with Spark, its proof, and the topic as a DataFrame."""
    from headgate.spark import Backfill, Certificate, Progress, read_topic, register, run, session, verify

    assert_type(session("local[2]"), SparkSession)

    def tell(progress: Progress) -> None:
        assert_type(progress.rows_done, int)

    flood = Backfill(cluster=cluster, topic="clicks", source="history.parquet", key="user", place=Place.FRONT)
    proof = run(flood, spark, progress=tell)
    assert_type(proof, Certificate)
    assert_type(verify(cluster, "clicks", certificate=proof), Certificate)
    register(spark)
    return read_topic(spark, "clicks", cluster=cluster)


def definitions(text: str) -> dg.Definitions:
    """Floods in Dagster."""
    from headgate.dagster import ClusterResource, FleetResource, Flood, SparkResource, flood_definitions, parse

    floods = parse(text, "floods.yaml")
    assert_type(floods, list[Flood])
    assert_type(floods[0].name, str)
    made = flood_definitions(
        floods, cluster=ClusterResource(address="127.0.0.1:9095"), spark=SparkResource(), fleet=FleetResource(kind="local")
    )
    assert_type(made, dg.Definitions)
    return made
