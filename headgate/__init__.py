"""Headgate: a message queue for floods. This module is the public API; ARCHITECTURE.md says how the parts fit.

The asyncio clients (`Producer`, `Consumer`, `Admin` ...) stand here, the Spark parts in `headgate.spark`, the Dagster parts in
`headgate.dagster`. A name is imported at its first use: ``import headgate`` loads nothing else, and a broker starts as quickly as
without this module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.broker import __version__
    from headgate.broker.client import (
        DEFAULT_CLUSTER,
        Admin,
        Broker,
        CheckedRecords,
        ClusterStatus,
        ConfigEntry,
        Consumer,
        ConsumerRecord,
        Control,
        Delivery,
        DesiredBrokers,
        FileRef,
        Gate,
        GateAdmin,
        GateState,
        GateWindow,
        GroupAdmin,
        GroupDescription,
        GroupMember,
        GroupPosition,
        GroupSummary,
        Hole,
        Layout,
        OffsetAndTimestamp,
        Partition,
        PartitionLayout,
        Place,
        Producer,
        Reservation,
        Start,
        Timestamp,
        Topic,
        TopicDescription,
        TopicPartition,
        TopicStatus,
        UnreadableBatch,
    )
    from headgate.broker.runtime.errors import (
        ClosedError,
        CorruptError,
        FatalError,
        FencedError,
        HeadgateError,
        InvalidError,
        Reason,
        RetryError,
    )
    from headgate.pipelines.sql.query import SqlResult, sql

_ERRORS = (
    "ClosedError",
    "CorruptError",
    "FatalError",
    "FencedError",
    "HeadgateError",
    "InvalidError",
    "Reason",
    "RetryError",
)
_SQL = ("SqlResult", "sql")
_HOMES = {
    **dict.fromkeys(_ERRORS, "headgate.broker.runtime.errors"),
    **dict.fromkeys(_SQL, "headgate.pipelines.sql.query"),
    "__version__": "headgate.broker",
}
"""Module of each public name that is not the client's."""

__all__ = [
    "DEFAULT_CLUSTER",
    "Admin",
    "Broker",
    "CheckedRecords",
    "ClosedError",
    "ClusterStatus",
    "ConfigEntry",
    "Consumer",
    "ConsumerRecord",
    "Control",
    "CorruptError",
    "Delivery",
    "DesiredBrokers",
    "FatalError",
    "FencedError",
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
    "HeadgateError",
    "Hole",
    "InvalidError",
    "Layout",
    "OffsetAndTimestamp",
    "Partition",
    "PartitionLayout",
    "Place",
    "Producer",
    "Reason",
    "Reservation",
    "RetryError",
    "SqlResult",
    "Start",
    "Timestamp",
    "Topic",
    "TopicDescription",
    "TopicPartition",
    "TopicStatus",
    "UnreadableBatch",
    "__version__",
    "sql",
]


def __getattr__(name: str) -> Any:
    """Import a public name (PEP 562). Raises AttributeError for any other."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES.get(name, "headgate.broker.client")), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
