"""What several handlers of Kafka APIs need."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from broker.cluster.topic_config import validate_topic_name
from broker.runtime.errors import InvalidError, Reason
from broker.server.kafka.errors import ErrorCode, error_code

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.cluster.manifest import Incarnation, Topic
    from broker.engine.partition import PartitionLog
    from broker.server.kafka.context import Context

NO_OPERATIONS = -(2**31)
"""Authorized operations where the client did not ask for them."""
TOPIC_OPERATIONS = 0b1101_1111_1000
"""Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs: what Kafka answers where nothing is forbidden."""
GROUP_OPERATIONS = 0b1_0100_1000
"""Read, Delete, Describe."""
CLUSTER_OPERATIONS = 0b1_1111_1010_0000
"""Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite."""

ID_UNKNOWN = -1
"""Kafka's "none" for offsets, timestamps, epochs, producers."""

_Key = TypeVar("_Key", bound=Hashable)


def broker_address(broker: Incarnation, context: Context) -> tuple[str, int]:
    """(host, port) of a broker's Kafka port. This one's is what its listener tells."""
    if broker.id == context.engine.incarnation_id or not broker.host:
        return context.host, context.port
    return broker.host, broker.kafka_port


def lead_of(topic: Topic, number: int, context: Context) -> tuple[ErrorCode, int, int]:
    """Who leads a partition: error code, broker id, leader epoch. There may be nobody for a moment: clients then ask again."""
    lead = context.engine.lead(topic.id, number)
    if lead is None:
        return ErrorCode.LEADER_NOT_AVAILABLE, ID_UNKNOWN, ID_UNKNOWN
    return ErrorCode.NONE, lead[0].broker_id, lead[1]


def repeated(keys: Iterable[_Key]) -> set[_Key]:
    """The keys that come more than once."""
    seen: set[_Key] = set()
    twice: set[_Key] = set()
    for key in keys:
        (twice if key in seen else seen).add(key)
    return twice


def unknown_topic_code(name: str) -> ErrorCode:
    """Why a topic of that name is not there: it is not, or it cannot be."""
    try:
        validate_topic_name(name)
    except InvalidError as error:
        return error_code(error)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def check_leader_epoch(log: PartitionLog, current_leader_epoch: int) -> None:
    """Compare the epoch that the client believes in (-1: it does not say) with the partition's (KIP-320).

    Raises:
        InvalidError: FENCED_LEADER_EPOCH where the client's is older, UNKNOWN_LEADER_EPOCH where it is newer.
    """
    if current_leader_epoch in (ID_UNKNOWN, log.leader_epoch):
        return
    older = current_leader_epoch < log.leader_epoch
    raise InvalidError(
        Reason.FENCED_LEADER_EPOCH if older else Reason.UNKNOWN_LEADER_EPOCH,
        f"leader epoch is not the partition's. topic=`{log.topic.name}` partition=`{log.number}` epoch=`{current_leader_epoch}` "
        f"current=`{log.leader_epoch}`",
    )


def epoch_at(log: PartitionLog, offset: int) -> int:
    """The leader epoch in which the record at `offset` was, or would next be, written; -1 where it is not known."""
    row = bisect_right(log.epochs, offset, key=lambda epoch: epoch[1]) - 1
    return log.epochs[row][0] if row >= 0 else ID_UNKNOWN


def check_assignment(brokers: Collection[int], replicas: list[int]) -> None:
    """Check one partition's replicas as a client assigned them. Raises InvalidError(INVALID_REPLICA_ASSIGNMENT).

    Args:
        brokers: ids of the brokers there are.
        replicas: broker ids; the first would lead.
    """
    if not replicas:
        raise InvalidError(Reason.INVALID_REPLICA_ASSIGNMENT, "manual assignment has a partition without replicas")
    if len(set(replicas)) != len(replicas):
        raise InvalidError(Reason.INVALID_REPLICA_ASSIGNMENT, "manual assignment has a broker twice for one partition")
    for broker_id in replicas:
        if broker_id not in brokers:
            raise InvalidError(
                Reason.INVALID_REPLICA_ASSIGNMENT, f"manual assignment has an unknown broker. broker_id=`{broker_id}`"
            )
