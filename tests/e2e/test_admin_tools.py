"""Kafka's own command line tools against a cluster: reassignments, elections, settings of brokers, loggers, quorum, features,
transactions.

Runs: three real brokers, and the tools of Apache Kafka in one JVM. Compared: what the tools print with what they print for Kafka,
and where the leads are afterwards. A mismatch means that an operator's habits or scripts fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from headgate.broker.wire.grpc.headgate.v1 import control_pb2
from tests.compat.topics import create_topic
from tests.support.broker_process import BrokerProcess
from tests.support.cluster import Brokers, eventually
from tests.support.kafka_tools import Tools

pytestmark = [pytest.mark.slow, pytest.mark.kafka_server]
FAR = 99


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


def plan(path: Path, topic: str, replicas: dict[int, list[int]]) -> str:
    rows = [{"topic": topic, "partition": number, "replicas": one} for number, one in replicas.items()]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def test_a_reassignment_moves_the_lead(world: World, tmp_path: Path) -> None:
    brokers, tools = world
    create_topic(brokers.bootstrap, "moved", 3)
    leads = brokers.leads("moved")
    wanted = {number: [lead % 3 + 1] for number, lead in leads.items()}
    path = plan(tmp_path / "plan.json", "moved", wanted)
    output = tools("kafka-reassign-partitions", "--reassignment-json-file", path, "--execute", "--throttle", "1000000")
    assert "Successfully started partition reassignments for moved-0,moved-1,moved-2" in output

    def verified() -> bool:
        output = tools("kafka-reassign-partitions", "--reassignment-json-file", path, "--verify")
        return all(f"Reassignment of partition moved-{number} is completed." in output for number in wanted)

    eventually(verified, "the reassignment is completed")
    assert brokers.leads("moved") == {number: one[0] for number, one in wanted.items()}
    assert "No partition reassignments found." in tools("kafka-reassign-partitions", "--list")
    # The tool set throttles, and has deleted them. Deleting them again is no error.
    described = tools("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1")
    assert "throttled.rate" not in described, described
    name, operation = "leader.replication.throttled.rate", AlterConfigOpType.DELETE
    resource = ConfigResource(
        ResourceType.BROKER, "1", incremental_configs=[ConfigEntry(name, None, incremental_operation=operation)]
    )
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(60)


def test_a_reassignment_to_a_missing_broker(world: World, tmp_path: Path) -> None:
    brokers, tools = world
    create_topic(brokers.bootstrap, "stays", 1)
    before = brokers.leads("stays")
    path = plan(tmp_path / "plan.json", "stays", {0: [FAR]})
    code, output = tools.run("kafka-reassign-partitions", "--reassignment-json-file", path, "--execute")
    assert code == 1 and str(FAR) in output, output
    assert brokers.leads("stays") == before


def test_a_reassignment_waits_for_a_broker_that_is_drained_and_is_cancelled(world: World, tmp_path: Path) -> None:
    brokers, tools = world
    create_topic(brokers.bootstrap, "waits", 1)
    target = next(number for number in (3, 2, 1) if number != brokers.metadata().controller_id)
    brokers.control("Reshard", control_pb2.ReshardRequest(drain=control_pb2.ReshardRequest.Drain(broker_id=target)))
    lead = brokers.leads("waits")[0]
    assert lead != target
    path = plan(tmp_path / "plan.json", "waits", {0: [target]})
    tools("kafka-reassign-partitions", "--reassignment-json-file", path, "--execute")
    assert f"waits-0: replicas: {target},{lead}. adding: {target}. removing: {lead}." in tools(
        "kafka-reassign-partitions", "--list"
    )
    verified = tools("kafka-reassign-partitions", "--reassignment-json-file", path, "--verify", "--preserve-throttles")
    assert "Reassignment of partition waits-0 is still in progress." in verified
    cancelled = tools("kafka-reassign-partitions", "--reassignment-json-file", path, "--cancel", "--preserve-throttles")
    assert "Successfully cancelled partition reassignment for: waits-0" in cancelled
    assert "No partition reassignments found." in tools("kafka-reassign-partitions", "--list")
    assert brokers.leads("waits") == {0: lead}
    assert brokers.all[target - 1].terminate() == 0
    brokers.start()


def test_an_election_gives_a_partition_back(world: World, tmp_path: Path) -> None:
    brokers, tools = world
    create_topic(brokers.bootstrap, "elected", 1)
    lead = brokers.leads("elected")[0]
    target = lead % 3 + 1
    path = plan(tmp_path / "plan.json", "elected", {0: [target, lead]})
    tools("kafka-reassign-partitions", "--reassignment-json-file", path, "--execute")
    eventually(lambda: brokers.leads("elected") == {0: target}, "the lead moves")
    one = ("--topic", "elected", "--partition", "0")
    output = tools("kafka-leader-election", "--election-type", "preferred", *one)
    assert "Valid replica already elected for partitions elected-0" in output
    assert brokers.all[target - 1].terminate() == 0
    eventually(lambda: brokers.leads("elected", brokers.all[lead - 1].bootstrap)[0] not in (-1, target), "another broker leads")
    brokers.start()
    output = tools("kafka-leader-election", "--election-type", "preferred", *one)
    assert "Successfully completed leader election (PREFERRED) for partitions elected-0" in output
    assert brokers.leads("elected") == {0: target}


def test_settings_and_loggers_of_brokers(world: World) -> None:
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
    loggers = ("--entity-type", "broker-loggers", "--entity-name", "2")
    tools("kafka-configs", "--alter", *loggers, "--add-config", "engine=DEBUG")
    assert "engine=DEBUG" in tools("kafka-configs", "--describe", *loggers)
    assert "engine=INFO" in tools("kafka-configs", "--describe", "--entity-type", "broker-loggers", "--entity-name", "1")
    tools("kafka-configs", "--alter", *loggers, "--delete-config", "engine")
    assert "engine=INFO" in tools("kafka-configs", "--describe", *loggers)


def test_quorum_and_features(world: World) -> None:
    brokers, tools = world
    leader = brokers.metadata().controller_id
    status = tools("kafka-metadata-quorum", "describe", "--status")
    assert f"LeaderId:               {leader}\n" in status and "MaxFollowerLag:         0\n" in status
    rows = tools("kafka-metadata-quorum", "describe", "--replication").splitlines()
    assert len(rows) == 2 and rows[1].split()[0] == str(leader) and rows[1].split()[-1] == "Leader"
    features = tools("kafka-features", "describe")
    assert "transaction.version" in features and "group.version" in features
    tools("kafka-features", "upgrade", "--feature", "transaction.version=2")
    code, output = tools.run("kafka-features", "downgrade", "--feature", "group.version=0")
    assert code == 1 and "fixed by the release" in output, output


def test_transactions_are_listed_described_aborted_and_fenced(world: World) -> None:
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
    start = row.split()[-1]
    tools("kafka-transactions", "abort", "--topic", "open", "--partition", "0", "--start-offset", start)
    (row,) = tools("kafka-transactions", "describe-producers", "--topic", "open", "--partition", "0").splitlines()[1:]
    assert row.split()[-1] == "None"
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
