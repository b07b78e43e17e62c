"""The checked-in Kafka messages against the generator.

Runs the generator in memory and compares its text with `broker/wire/kafka/messages/`. A mismatch means that generated code was
edited by hand. Or the generator (or the version of kafka-python, which carries the schemas) changed and was not run again:
``python -m headgate.broker.wire.kafka.generate``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import headgate.broker.wire.kafka
from headgate.broker.wire.kafka import generate
from headgate.broker.wire.kafka.schema import load

MESSAGES = Path(headgate.broker.wire.kafka.__file__).parent / "messages"

KAFKA = {
    "ApiVersionsRequest": (18, 0, 5),
    "SaslHandshakeRequest": (17, 0, 1),
    "SaslAuthenticateRequest": (36, 0, 2),
    "DescribeAclsRequest": (29, 1, 3),
    "CreateAclsRequest": (30, 1, 3),
    "DeleteAclsRequest": (31, 1, 3),
    "DescribeUserScramCredentialsRequest": (50, 0, 0),
    "AlterUserScramCredentialsRequest": (51, 0, 0),
    "DescribeClientQuotasRequest": (48, 0, 1),
    "AlterClientQuotasRequest": (49, 0, 1),
    "MetadataRequest": (3, 0, 13),
    "ProduceRequest": (0, 3, 13),
    "FetchRequest": (1, 4, 18),
    "ListOffsetsRequest": (2, 1, 11),
    "OffsetForLeaderEpochRequest": (23, 2, 4),
    "FindCoordinatorRequest": (10, 0, 6),
    "JoinGroupRequest": (11, 0, 9),
    "HeartbeatRequest": (12, 0, 4),
    "LeaveGroupRequest": (13, 0, 5),
    "SyncGroupRequest": (14, 0, 5),
    "OffsetCommitRequest": (8, 2, 10),
    "OffsetFetchRequest": (9, 1, 10),
    "DescribeGroupsRequest": (15, 0, 6),
    "ListGroupsRequest": (16, 0, 5),
    "DeleteGroupsRequest": (42, 0, 2),
    "OffsetDeleteRequest": (47, 0, 0),
    "InitProducerIdRequest": (22, 0, 6),
    "DescribeProducersRequest": (61, 0, 0),
    "AddPartitionsToTxnRequest": (24, 0, 5),
    "AddOffsetsToTxnRequest": (25, 0, 4),
    "EndTxnRequest": (26, 0, 5),
    "WriteTxnMarkersRequest": (27, 1, 2),
    "TxnOffsetCommitRequest": (28, 0, 6),
    "DescribeTransactionsRequest": (65, 0, 0),
    "ListTransactionsRequest": (66, 0, 2),
    "ConsumerGroupHeartbeatRequest": (68, 0, 1),
    "ConsumerGroupDescribeRequest": (69, 0, 1),
    "CreateTopicsRequest": (19, 2, 7),
    "DeleteTopicsRequest": (20, 1, 6),
    "CreatePartitionsRequest": (37, 0, 3),
    "DeleteRecordsRequest": (21, 0, 2),
    "DescribeConfigsRequest": (32, 1, 4),
    "AlterConfigsRequest": (33, 0, 2),
    "IncrementalAlterConfigsRequest": (44, 0, 1),
    "DescribeClusterRequest": (60, 0, 2),
    "DescribeTopicPartitionsRequest": (75, 0, 0),
    "DescribeLogDirsRequest": (35, 1, 4),
    "ListPartitionReassignmentsRequest": (46, 0, 0),
    "AlterPartitionReassignmentsRequest": (45, 0, 1),
    "DescribeQuorumRequest": (55, 0, 2),
    "UpdateFeaturesRequest": (57, 0, 2),
    "ElectLeadersRequest": (43, 0, 2),
    "ListConfigResourcesRequest": (74, 0, 1),
}
"""API key: lowest and highest version of Kafka 4.2, and of 4.4 for ApiVersions and TxnOffsetCommit."""


def test_checked_in_messages_are_what_the_generator_writes() -> None:
    generated = generate.generate_all()
    assert {path.name for path in MESSAGES.glob("*.py")} == set(generated)
    for name, text in generated.items():
        assert (MESSAGES / name).read_text() == text, f"{name} differs: run python -m headgate.broker.wire.kafka.generate"


@pytest.mark.parametrize("name", KAFKA)
def test_schemas_cover_kafka(name: str) -> None:
    key, lowest, highest = KAFKA[name]
    for message in (load(name), load(name.replace("Request", "Response"))):
        assert message.api_key == key
        assert message.versions.lowest == lowest
        assert message.versions.highest >= highest


def test_every_generated_api_is_checked_against_kafka() -> None:
    requests = {name for names in generate.MESSAGES.values() for name in names if len(names) == 2 and name.endswith("Request")}
    assert requests == set(KAFKA)
