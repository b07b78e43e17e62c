"""The Python client, all asyncio, over gRPC: `Admin`, `GateAdmin`, `GroupAdmin`, `Control`, `Producer`, `Consumer`.

A client belongs to the event loop of its first use, and so to one thread: another loop (a second `asyncio.run`, another thread)
needs its own clients. Close a client before its loop ends, best with `async with`; a Producer loses unsent records otherwise,
with a ResourceWarning. Errors are those of `headgate.broker.runtime.errors`. Closing a client ends calls under way and later
calls with ClosedError.
"""

from headgate.broker.client.admin import Admin
from headgate.broker.client.consumer import Consumer
from headgate.broker.client.control import Control, DesiredBrokers, Reservation
from headgate.broker.client.gate_admin import FileRef, Gate, GateAdmin, GateState, GateWindow, Hole, Layout, PartitionLayout, Place
from headgate.broker.client.group_admin import GroupAdmin, GroupDescription, GroupMember, GroupPosition, GroupSummary
from headgate.broker.client.producer import Producer
from headgate.broker.client.types import (
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
    "GateWindow",
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
]
