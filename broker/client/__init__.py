"""The Python client, all asyncio, over gRPC: `Admin`, `GateAdmin`, `GroupAdmin`, `Control`, `Producer`, `Consumer`.

A client belongs to the event loop of its first use, and so to one thread: another loop (a second `asyncio.run`, another thread)
needs its own clients. Close a client before its loop ends, best with `async with`; a Producer loses unsent records otherwise,
with a ResourceWarning. Errors are those of `headgate.broker.runtime.errors`. Closing a client ends calls under way and later
calls with ClosedError.

A name is imported at its first use: Spark's tasks use one module of this package, and grpc would cost each worker a quarter second.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.broker.client.admin import Admin
    from headgate.broker.client.consumer import Consumer
    from headgate.broker.client.control import Control, DesiredBrokers, Reservation
    from headgate.broker.client.file_ref import FileRef
    from headgate.broker.client.gate_admin import Gate, GateAdmin, GateState, GateWindow, Hole, Layout, PartitionLayout, Place
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

_MODULES = {
    "admin": ["Admin"],
    "consumer": ["Consumer"],
    "control": ["Control", "DesiredBrokers", "Reservation"],
    "file_ref": ["FileRef"],
    "gate_admin": ["Gate", "GateAdmin", "GateState", "GateWindow", "Hole", "Layout", "PartitionLayout", "Place"],
    "group_admin": ["GroupAdmin", "GroupDescription", "GroupMember", "GroupPosition", "GroupSummary"],
    "producer": ["Producer"],
    "types": [
        "DEFAULT_CLUSTER",
        "Broker",
        "CheckedRecords",
        "ClusterStatus",
        "ConfigEntry",
        "ConsumerRecord",
        "Delivery",
        "OffsetAndTimestamp",
        "Partition",
        "Start",
        "Timestamp",
        "Topic",
        "TopicDescription",
        "TopicPartition",
        "TopicStatus",
        "UnreadableBatch",
    ],
}
"""The public names of each module."""

_HOMES = {name: module for module, names in _MODULES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562). Raises AttributeError for any other."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
