"""The Python client, all asyncio, over gRPC: `Admin`, `GateAdmin`, `GroupAdmin`, `Control`, `Producer`, `Consumer`.

A client belongs to the event loop of its first use, and so to one thread: another loop (a second `asyncio.run`, another thread)
needs its own clients. Close a client before its loop ends, best with `async with`; a Producer loses unsent records otherwise,
with a ResourceWarning. Errors are those of `broker.runtime.errors`. Closing a client ends calls under way and later calls with
ClosedError.
"""

from broker.client.admin import Admin
from broker.client.consumer import Consumer
from broker.client.control import Control, DesiredBrokers, Reservation
from broker.client.gates import FileRef, Gate, GateAdmin, GateState, Hole, Layout, PartitionLayout, Place, Window
from broker.client.groups import GroupAdmin, GroupDescription, GroupMember, GroupPosition, GroupSummary
from broker.client.producer import Producer
from broker.client.types import (
    DEFAULT_CLUSTER,
    Broker,
    CheckedRecords,
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
    UnreadableBatch,
)

__all__ = [
    "DEFAULT_CLUSTER",
    "Admin",
    "Broker",
    "CheckedRecords",
    "ClusterStatus",
    "ConfigEntry",
    "Consumer",
    "ConsumerRecord",
    "Control",
    "Delivery",
    "DesiredBrokers",
    "FileRef",
    "Gate",
    "GateAdmin",
    "GateState",
    "GroupAdmin",
    "GroupDescription",
    "GroupMember",
    "GroupPosition",
    "GroupSummary",
    "Hole",
    "Layout",
    "OffsetAndTimestamp",
    "Partition",
    "PartitionLayout",
    "Place",
    "Producer",
    "Reservation",
    "Start",
    "Timestamp",
    "Topic",
    "TopicDescription",
    "TopicPartition",
    "TopicStatus",
    "UnreadableBatch",
    "Window",
]
