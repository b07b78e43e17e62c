"""The verifier against a real Apache Kafka: one that keeps its promises, and one that is configured to break them.

Runs: KRaft on loopback. Nodes that are killed and paused, with three copies and `acks=all`, must be judged right. Then two
copies, `acks=1` and unclean leader election: the follower is paused, so that it lacks the records acknowledged meanwhile; the
leader is killed; the follower resumes and leads with an older log. Here the verifier must find the loss. Compared: the verdicts
with the expected ones. A mismatch means that the verifier blames a correct endpoint, or misses a defective one.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.kafka_server import KafkaServer
from tests.support.verifier import Verifier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.kafka_server]


def leads(kafka: KafkaServer) -> dict[str, list[int]]:
    """The leaders of the partitions of each topic that a verifier created."""
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0}).list_topics(timeout=30).topics
    return {
        name: [partition.leader for partition in topic.partitions.values()]
        for name, topic in topics.items()
        if name.startswith("headgate-verify-")
    }


def test_one_node_that_is_killed_is_right(tmp_path: Path) -> None:
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        Verifier(kafka.bootstrap, tmp_path / "history", "--partitions", "3", "--rate", "300") as verifier,
    ):
        verifier.acknowledges()
        kafka.kill(1)
        kafka.start(1)
        verifier.acknowledges()
        code, data = verifier.end()
    assert (code, data["errors"]) == (0, {}), data


def test_three_nodes_that_are_killed_and_paused_are_right(tmp_path: Path) -> None:
    config = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "5000", "broker.session.timeout.ms": "4000"}
    options = ("--partitions", "3", "--rate", "300", "--replication-factor", "3")
    with (
        KafkaServer(tmp_path / "kafka", 3, config) as kafka,
        Verifier(kafka.bootstrap, tmp_path / "history", *options) as verifier,
    ):
        verifier.acknowledges()
        kafka.kill(1)
        verifier.acknowledges()
        kafka.start(1)
        kafka.wait_serving(1)
        verifier.acknowledges()
        kafka.pause(3)
        verifier.acknowledges()
        kafka.resume(3)
        verifier.acknowledges()
        code, data = verifier.end()
    assert (code, data["errors"]) == (0, {}), data


def test_an_unclean_election_is_found(tmp_path: Path) -> None:
    config = {
        "unclean.leader.election.enable": "true",
        "min.insync.replicas": "1",
        "broker.session.timeout.ms": "4000",
        "replica.lag.time.max.ms": "5000",
    }
    options = ("--partitions", "2", "--rate", "300", "--replication-factor", "2", "--acks", "1", "--settle", "5s")
    with (
        KafkaServer(tmp_path / "kafka", 3, config) as kafka,
        Verifier(kafka.bootstrap, tmp_path / "history", *options) as verifier,
    ):
        verifier.acknowledges()
        # Partition 0 has two copies; its follower stops. Only the leader has the records that are acknowledged from now on.
        (topic,) = leads(kafka)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        first = admin.list_topics(timeout=30).topics[topic].partitions[0]
        leader, follower = first.leader, next(number for number in first.replicas if number != first.leader)
        kafka.pause(follower)
        verifier.acknowledges()
        time.sleep(6)
        verifier.acknowledges()
        kafka.pause(leader)
        kafka.resume(follower)
        kafka.kill(leader)
        verifier.acknowledges(200)
        code, data = verifier.end()
    assert code == 1, data
    assert data["errors"]["lost"] > 0, data
