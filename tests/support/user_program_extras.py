"""A user's program over the public API for Spark and Dagster, for `make lint` only: mypy reads all of both for it.

`assert_type` fails where a type is `Any` or another one than users see in the documents.
"""

from __future__ import annotations

from typing import assert_type

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

from headgate import Place


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
