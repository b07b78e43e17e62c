"""One partition of a coordinator's topic on the broker that leads it: the log, and the shard that is its fold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headgate.broker.coordination.effects import Now, Row
from headgate.broker.runtime.errors import Reason

if TYPE_CHECKING:
    from headgate.broker.engine.partition.log import PartitionLog


class AnyShard(Protocol):
    """The fold of one partition. `groups/shard.py` describes the order of the calls."""

    rows_appended: int

    @property
    def next_deadline_ms(self) -> int | None: ...

    def replay(self, key_bytes: bytes, value_bytes: bytes | None) -> None: ...

    def loaded(self, now: Now) -> list[Any]: ...

    def unload(self, reason: Reason) -> list[Any]: ...

    def tick(self, now: Now) -> list[Any]: ...

    def stored(self, number: int, error: Reason | None, now: Now) -> list[Any]: ...

    def snapshot(self) -> Iterator[list[Row]]: ...

    def live_count(self) -> int: ...


ShardT = TypeVar("ShardT", bound=AnyShard)


class Slot(Generic[ShardT]):
    """A shard and its partition, for as long as this broker leads the partition."""

    __slots__ = ("loaded", "loading", "log", "settled", "shard", "snapshot_rows", "snapshotting")

    def __init__(self, shard: ShardT, partition: PartitionLog) -> None:
        self.shard = shard
        self.log = partition
        self.loaded = False
        self.loading: asyncio.Task[None] | None = None
        self.settled = asyncio.Event()
        """Set once loading has succeeded, has ended, or waits for an operator."""
        self.snapshotting: asyncio.Task[None] | None = None
        self.snapshot_rows = 0
        """Number of rows in the log from which `Shortening` considers a snapshot."""
