"""Spark's Kafka source and sink."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from tests.compat.matrix.programs.steps import BOOTSTRAP, PREFIX, RECORDS, same, step

SPARK = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", os.environ["SPARK_KAFKA_JARS"])
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .getOrCreate()
)
SERVERS = {"kafka.bootstrap.servers": BOOTSTRAP}


def batch() -> None:
    rows = SPARK.range(RECORDS).selectExpr("CAST(id AS STRING) AS key", "concat('v', id) AS value")
    rows.write.format("kafka").options(**SERVERS, topic=f"{PREFIX}-batch").save()
    read = SPARK.read.format("kafka").options(**SERVERS, subscribe=f"{PREFIX}-batch").load()
    found = {row.value for row in read.selectExpr("CAST(value AS STRING) AS value").collect()}
    same(found, {f"v{number}" for number in range(RECORDS)})


def streaming() -> None:
    stream = SPARK.readStream.format("kafka").options(**SERVERS, subscribe=f"{PREFIX}-batch", startingOffsets="earliest").load()
    checkpoints = os.path.join(os.environ["SPARK_HOME_DIR"], PREFIX)
    copy = stream.selectExpr("key", "value").writeStream.format("kafka").options(**SERVERS, topic=f"{PREFIX}-copy")
    copy.option("checkpointLocation", checkpoints).trigger(availableNow=True).start().awaitTermination(120)
    read = SPARK.read.format("kafka").options(**SERVERS, subscribe=f"{PREFIX}-copy").load()
    same(read.count(), RECORDS)


step("batch", batch)
step("streaming", streaming)
SPARK.stop()
