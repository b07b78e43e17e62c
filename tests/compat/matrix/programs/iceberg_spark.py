"""Spark with Iceberg's runtime reads a topic through a broker's REST catalog, and sees what librdkafka reads.

The broker is one of its own, whose records become files at once: with default settings they do after an hour.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.compat.matrix.programs.steps import PREFIX, same, step
from tests.compat.topics import create_topic
from tests.support.broker_process import HOST, BrokerProcess
from tests.support.mixed_topic import ENV, PARTITIONS, MixedTopic, consumed, make, produce, sums, until_folded

ROUNDS, ROUND_RECORDS = 4, 1500
COLUMNS = "partition, offset, timestamp, key, value, headers"


def session(broker: BrokerProcess) -> SparkSession:
    made: SparkSession = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", os.environ["ICEBERG_RUNTIME"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.catalog.hg", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.hg.type", "rest")
        .config("spark.sql.catalog.hg.cache-enabled", "false")
        .config("spark.sql.catalog.hg.uri", f"http://{HOST}:{broker.http_port}/iceberg")
        .getOrCreate()
    )
    return made


def offsets_of(spark: SparkSession, table: str) -> str:
    """The offsets that the table states."""
    return str(spark.sql(f"SHOW TBLPROPERTIES {table} ('headgate.offsets')").collect()[0].value)


def whole(spark: SparkSession, broker: BrokerProcess, name: str) -> None:
    table = f"hg.headgate.`{name}`"
    found, offsets = None, ""
    while found is None or offsets != offsets_of(spark, table):  # records became files during the query
        offsets = offsets_of(spark, table)
        found = spark.sql(f"SELECT {COLUMNS} FROM {table}").toArrow()
    read, stated = consumed(broker, name), json.loads(offsets)
    inside = [
        any(base <= row["offset"] < end for base, end in stated.get(str(row["partition"]), []))
        for row in read.select(["partition", "offset"]).to_pylist()
    ]
    same(any(inside), True)
    same(sums(found), sums(read.filter(pa.array(inside))))


def part(spark: SparkSession, broker: BrokerProcess, topic: MixedTopic) -> None:
    wanted = [row for row in consumed(broker, topic.name).to_pylist() if row["partition"] == 1 and 1010 <= row["offset"] < 1025]
    where = "partition = 1 AND offset >= 1010 AND offset < 1025"
    found = spark.sql(f"SELECT offset FROM hg.headgate.`{topic.name}` WHERE {where} ORDER BY offset").collect()
    same([row.offset for row in found], [row["offset"] for row in wanted])


def killed(spark: SparkSession, broker: BrokerProcess) -> None:
    """Brokers and folding processes die by SIGKILL while records become files; between the deaths Spark reads."""
    name = create_topic(broker.bootstrap, f"{PREFIX}-killed", PARTITIONS, offline_after_bytes="0")
    for number in range(ROUNDS):
        produce(broker, name, number * ROUND_RECORDS, ROUND_RECORDS)
        broker.kill_children("file_fold_process")
        if number % 2:
            broker.kill()
            broker.start()
        until_folded(f"{HOST}:{broker.grpc_port}", name, (number + 1) * ROUND_RECORDS // PARTITIONS // 2)
        whole(spark, broker, name)
    until_folded(f"{HOST}:{broker.grpc_port}", name, ROUNDS * ROUND_RECORDS // PARTITIONS)
    whole(spark, broker, name)


def main(home: str) -> None:
    with BrokerProcess(f"{home}/store", Path(home, "log"), env=ENV) as broker:
        broker.start()
        topic = make(broker, PREFIX)
        spark = session(broker)
        step("whole", lambda: whole(spark, broker, topic.name))
        step("part", lambda: part(spark, broker, topic))
        step("killed", lambda: killed(spark, broker))
        spark.stop()
        topic.close()


with tempfile.TemporaryDirectory(prefix="headgate-compat-") as directory:
    main(directory)
