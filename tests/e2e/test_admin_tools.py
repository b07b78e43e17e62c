"""Kafka's own command line tools against a cluster: settings of brokers, topics, groups, transactions.

Runs: three real brokers, and the tools of Apache Kafka in one JVM. Compared: what the tools print with what they print for Kafka.
A mismatch means that an operator's habits or scripts fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.compat.topics import create_topic
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Brokers
from tests.support.kafka_tools import Tools

pytestmark = [pytest.mark.slow, pytest.mark.kafka_server]


class World(NamedTuple):
    brokers: Brokers
    tools: Tools


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home, made = tmp_path_factory.mktemp("tools"), list[BrokerProcess]()

    def make(store: str | Path | None = None, **options: Any) -> BrokerProcess:
        made.append(BrokerProcess(store or home / "store", home / f"broker-{len(made)}.log", **options))
        return made[-1]

    try:
        brokers = Brokers(make, home / "store")
        brokers.start()
        with Tools(brokers.bootstrap) as tools:
            yield World(brokers, tools)
    finally:
        for one in made:
            one.kill()
    for one in made:
        one.check_output()


def test_settings_of_brokers(world: World) -> None:
    brokers, tools = world
    everywhere = ("--entity-type", "brokers", "--entity-default")
    tools("kafka-configs", "--alter", *everywhere, "--add-config", "num.partitions=4,log.retention.ms=3600000")
    described = tools("kafka-configs", "--describe", *everywhere)
    assert "num.partitions=4 sensitive=false" in described and "log.retention.ms=3600000" in described
    tools("kafka-topics", "--create", "--topic", "default-size")
    assert len(brokers.leads("default-size")) == 4
    every = tools("kafka-configs", "--describe", "--all", "--entity-type", "topics", "--entity-name", "default-size")
    assert "retention.ms=3600000" in every and "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=3600000" in every
    tools("kafka-configs", "--alter", *everywhere, "--delete-config", "num.partitions,log.retention.ms")
    code, output = tools.run("kafka-configs", "--alter", *everywhere, "--add-config", "log.dirs=/elsewhere")
    assert code == 1 and "cannot change while the broker runs" in output
    for kind in ("topics", "brokers", "users", "clients"):
        tools("kafka-configs", "--describe", "--entity-type", kind)
    without = "only topics (2) and brokers (4) have configs"
    for kind, name, said in (
        ("broker-loggers", "2", without),
        ("groups", "g", without),
        ("client-metrics", "m", "does not support"),
    ):
        code, output = tools.run("kafka-configs", "--describe", "--entity-type", kind, "--entity-name", name)
        assert code == 1 and said in output, output


def test_tools_without_an_api_here_say_so(world: World, tmp_path: Path) -> None:
    """Brokers own nothing, so clients place no partitions; there is no quorum, and the release fixes the levels of features."""
    brokers, tools = world
    create_topic(brokers.bootstrap, "placed", 1)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": "placed", "partition": 0, "replicas": [1]}]}))
    features = tools("kafka-features", "describe")
    assert "transaction.version" in features and "group.version" in features
    for tool, *arguments in (
        ("kafka-reassign-partitions", "--list"),
        ("kafka-reassign-partitions", "--reassignment-json-file", str(path), "--execute"),
        ("kafka-leader-election", "--election-type", "preferred", "--topic", "placed", "--partition", "0"),
        ("kafka-metadata-quorum", "describe", "--status"),
        ("kafka-features", "upgrade", "--feature", "transaction.version=2"),
    ):
        code, output = tools.run(tool, *arguments)
        assert code == 1 and "The node does not support" in output, (tool, output)


def test_transactions_are_listed_described_and_fenced(world: World) -> None:
    brokers, tools = world
    create_topic(brokers.bootstrap, "open", 1)
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "transactional.id": "left", "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("open", b"never seen", partition=0)
    producer.flush(60)
    assert "left" in tools("kafka-transactions", "list")
    assert "Ongoing" in tools("kafka-transactions", "describe", "--transactional-id", "left")
    (row,) = tools("kafka-transactions", "describe-producers", "--topic", "open", "--partition", "0").splitlines()[1:]
    assert row.split()[-1] == "0", "the transaction is open"
    abort = ("abort", "--topic", "open", "--partition", "0", "--start-offset", "0")
    code, output = tools.run("kafka-transactions", *abort)
    assert code == 1 and "The node does not support WRITE_TXN_MARKERS" in output, output
    tools("kafka-transactions", "forceTerminateTransaction", "--transactionalId", "left")
    with pytest.raises(KafkaException):
        producer.commit_transaction(60)
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("open", 0, 0)])
    low, high = consumer.get_watermark_offsets(TopicPartition("open", 0))
    assert low == 0 and high >= 2
    assert consumer.poll(1) is None
    consumer.close()


def test_what_dashboards_ask(world: World) -> None:
    """The calls of kafka-ui and AKHQ that the other tests have not made."""
    brokers, tools = world
    create_topic(brokers.bootstrap, "shown", 2)
    assert "shown" in tools("kafka-topics", "--describe")
    for trouble in ("--under-replicated-partitions", "--under-min-isr-partitions", "--unavailable-partitions"):
        assert not tools("kafka-topics", "--describe", trouble).strip()
    assert '"shown-1"' in tools("kafka-log-dirs", "--describe", "--topic-list", "shown")
    assert "shown:1:0" in tools("kafka-get-offsets", "--topic", "shown")
    tools("kafka-groups", "--list")
    tools("kafka-consumer-groups", "--describe", "--all-groups")
    tools("kafka-consumer-groups", "--list", "--state", "--type")
    assert "UNSUPPORTED" not in tools("kafka-broker-api-versions").split("Produce")[0]
