"""The Python client, all asyncio, over gRPC: `Admin`, `GroupAdmin`, `Producer`, `Consumer`.

Errors are those of `broker.runtime.errors`.
"""

from broker.client.admin import Admin
from broker.client.consumer import Consumer
from broker.client.groups import GroupAdmin, GroupDescription, GroupMember, GroupPosition, GroupSummary
from broker.client.producer import Producer
from broker.client.types import (
    DEFAULT_CLUSTER,
    Broker,
    ClusterStatus,
    ConfigEntry,
    ConsumerRecord,
    Delivery,
    OffsetAndTimestamp,
    Partition,
    Start,
    Timestamp,
    Topic,
    TopicDescription,
    TopicPartition,
    TopicStatus,
)

__all__ = [
    "DEFAULT_CLUSTER",
    "Admin",
    "Broker",
    "ClusterStatus",
    "ConfigEntry",
    "Consumer",
    "ConsumerRecord",
    "Delivery",
    "GroupAdmin",
    "GroupDescription",
    "GroupMember",
    "GroupPosition",
    "GroupSummary",
    "OffsetAndTimestamp",
    "Partition",
    "Producer",
    "Start",
    "Timestamp",
    "Topic",
    "TopicDescription",
    "TopicPartition",
    "TopicStatus",
]
