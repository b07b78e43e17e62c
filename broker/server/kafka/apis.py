"""The Kafka APIs that this broker serves: all and only the APIs that ApiVersions advertises.

Light on purpose: a row names its modules, and the first request for the API imports them.

A new API needs its name in `MESSAGES` of `broker/wire/kafka/generate.py` (then run that module), a row here, a handler in `api/`,
and Kafka's versions in `tests/unit/wire/test_generated.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, TypeAlias

from headgate.broker.runtime.steps import Steps
from headgate.broker.server.kafka.context import Context
from headgate.broker.wire.kafka.primitives import Buffer


class Message(Protocol):
    """A generated message."""

    def encode(self, version: int) -> bytes: ...

    def encoding(self, out: bytearray, version: int) -> Steps[None]: ...


Decoder: TypeAlias = Callable[[Buffer, int, int], Steps[tuple[Message, int]]]
Handler: TypeAlias = Callable[[Message, Context], Awaitable[Message]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API.

    `min_version` to `max_version` are served. `advertised_min_version` is the lowest version in ApiVersions; it is lower only
    for Produce. `flexible_from` is the first version with KIP-482's encoding, or None. `module` is the name of the handler's
    file in `broker/server/kafka/api/` and of the messages' file in `broker/wire/kafka/messages/`; None if the connection handles
    the API itself.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_from: int | None
    module: str | None
    advertised_min_version: int

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from

    def load(self) -> tuple[Decoder, Handler]:
        """The request's decoder, which works in steps, and the handler; the first call imports them."""
        assert self.module is not None
        messages = import_module(f"headgate.broker.wire.kafka.messages.{self.module}")
        handler = import_module(f"headgate.broker.server.kafka.api.{self.module}")
        return getattr(messages, f"{self.name}Request").decoding, handler.handle


def _api(
    key: int,
    name: str,
    versions: tuple[int, int],
    flexible_from: int | None,
    module: str | None,
    advertised_min_version: int | None = None,
) -> Api:
    low, high = versions
    advertised = low if advertised_min_version is None else advertised_min_version
    return Api(
        key=key,
        name=name,
        min_version=low,
        max_version=high,
        flexible_from=flexible_from,
        module=module,
        advertised_min_version=advertised,
    )


PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
JOIN_GROUP = 11
SYNC_GROUP = 14
API_VERSIONS = 18

REQUEST_BYTES_MAX = 1 << 20
"""Largest request of the other APIs. Two bytes can become an object of 60 bytes: this bounds the memory of one request. A real
request of this size would commit some 25,000 offsets."""
LARGE_REQUEST_BYTES_MAX = 4 << 20
"""Largest request of Fetch, JoinGroup and SyncGroup: a real Fetch of this size is for some 100,000 partitions; the others carry
large pieces that the broker does not parse."""

_ROWS = (
    # The connection handles these itself. Produce is advertised from 0: librdkafka turns features off otherwise (KAFKA-18659).
    _api(PRODUCE, "Produce", (3, 13), 9, None, advertised_min_version=0),
    _api(FETCH, "Fetch", (4, 17), 12, None),
    # Discovery.
    _api(API_VERSIONS, "ApiVersions", (0, 5), 3, "api_versions"),
    _api(17, "SaslHandshake", (0, 1), None, "sasl_handshake"),
    _api(36, "SaslAuthenticate", (0, 2), 2, "sasl_authenticate"),
    _api(3, "Metadata", (0, 13), 9, "metadata"),
    _api(60, "DescribeCluster", (0, 2), 0, "describe_cluster"),
    _api(75, "DescribeTopicPartitions", (0, 0), 0, "describe_topic_partitions"),
    # Offsets and producers.
    _api(LIST_OFFSETS, "ListOffsets", (1, 11), 6, "list_offsets"),
    _api(23, "OffsetForLeaderEpoch", (2, 4), 4, "offset_for_leader_epoch"),
    _api(22, "InitProducerId", (0, 5), 2, "init_producer_id"),
    _api(61, "DescribeProducers", (0, 0), 0, "describe_producers"),
    # Transactions.
    _api(24, "AddPartitionsToTxn", (0, 5), 3, "add_partitions_to_txn"),
    _api(25, "AddOffsetsToTxn", (0, 4), 3, "add_offsets_to_txn"),
    _api(26, "EndTxn", (0, 5), 3, "end_txn"),
    _api(27, "WriteTxnMarkers", (1, 2), 1, "write_txn_markers"),
    _api(28, "TxnOffsetCommit", (0, 6), 3, "txn_offset_commit"),
    _api(65, "DescribeTransactions", (0, 0), 0, "describe_transactions"),
    _api(66, "ListTransactions", (0, 2), 0, "list_transactions"),
    # Administration.
    _api(19, "CreateTopics", (2, 7), 5, "create_topics"),
    _api(20, "DeleteTopics", (1, 6), 4, "delete_topics"),
    _api(37, "CreatePartitions", (0, 3), 2, "create_partitions"),
    _api(21, "DeleteRecords", (0, 2), 2, "delete_records"),
    _api(32, "DescribeConfigs", (1, 4), 4, "describe_configs"),
    _api(33, "AlterConfigs", (0, 2), 2, "alter_configs"),
    _api(44, "IncrementalAlterConfigs", (0, 1), 1, "incremental_alter_configs"),
    _api(35, "DescribeLogDirs", (1, 4), 2, "describe_log_dirs"),
    _api(43, "ElectLeaders", (0, 2), 2, "elect_leaders"),
    _api(74, "ListConfigResources", (0, 1), 0, "list_config_resources"),
    _api(45, "AlterPartitionReassignments", (0, 1), 0, "alter_partition_reassignments"),
    _api(46, "ListPartitionReassignments", (0, 0), 0, "list_partition_reassignments"),
    _api(55, "DescribeQuorum", (0, 2), 0, "describe_quorum"),
    _api(57, "UpdateFeatures", (0, 2), 0, "update_features"),
    # Users and permissions.
    _api(50, "DescribeUserScramCredentials", (0, 0), 0, "describe_user_scram_credentials"),
    _api(51, "AlterUserScramCredentials", (0, 0), 0, "alter_user_scram_credentials"),
    _api(29, "DescribeAcls", (1, 3), 2, "describe_acls"),
    _api(30, "CreateAcls", (1, 3), 2, "create_acls"),
    _api(31, "DeleteAcls", (1, 3), 2, "delete_acls"),
    _api(48, "DescribeClientQuotas", (0, 1), 1, "describe_client_quotas"),
    _api(49, "AlterClientQuotas", (0, 1), 1, "alter_client_quotas"),
    # Groups.
    _api(10, "FindCoordinator", (0, 6), 3, "find_coordinator"),
    _api(JOIN_GROUP, "JoinGroup", (0, 9), 6, "join_group"),
    _api(SYNC_GROUP, "SyncGroup", (0, 5), 4, "sync_group"),
    _api(12, "Heartbeat", (0, 4), 4, "heartbeat"),
    _api(13, "LeaveGroup", (0, 5), 4, "leave_group"),
    _api(8, "OffsetCommit", (2, 10), 8, "offset_commit"),
    _api(9, "OffsetFetch", (1, 10), 6, "offset_fetch"),
    _api(68, "ConsumerGroupHeartbeat", (0, 1), 0, "consumer_group_heartbeat"),
    _api(69, "ConsumerGroupDescribe", (0, 1), 0, "consumer_group_describe"),
    _api(47, "OffsetDelete", (0, 0), None, "offset_delete"),
    _api(42, "DeleteGroups", (0, 2), 2, "delete_groups"),
    _api(16, "ListGroups", (0, 5), 3, "list_groups"),
    _api(15, "DescribeGroups", (0, 6), 5, "describe_groups"),
)

APIS: dict[int, Api] = {api.key: api for api in sorted(_ROWS, key=lambda api: api.key)}
"""By API key, in its order."""


def request_bytes_max(key: int) -> int:
    """The largest request of an API, in bytes; a Produce request is bounded by `frame_bytes_max` alone."""
    return LARGE_REQUEST_BYTES_MAX if key in (FETCH, JOIN_GROUP, SYNC_GROUP) else REQUEST_BYTES_MAX
