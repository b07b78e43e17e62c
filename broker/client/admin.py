"""Topics and the state of the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from broker.client.types import (
    DEFAULT_CLUSTER,
    ClusterStatus,
    OffsetAndTimestamp,
    Start,
    Topic,
    TopicDescription,
    TopicPartition,
)


class Admin:
    """Manages topics. An async context manager; every method may be called from any number of tasks.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        timeout_ms: longest wait for one call, with its retries.

    Methods raise HeadgateError: InvalidError when the request is wrong (`reason` says how: UNKNOWN_TOPIC, TOPIC_EXISTS ...),
    RetryError when the cluster did not answer in time.
    """

    def __init__(self, cluster: str = DEFAULT_CLUSTER, *, timeout_ms: int = 30_000) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Give back the connections."""
        raise NotImplementedError

    async def status(self, *, rate_window_ms: int = 0) -> ClusterStatus:
        """The cluster, its brokers and topics; with a window (at most 10000) traffic is measured for that long first."""
        raise NotImplementedError

    async def list_topics(self) -> list[Topic]:
        """All topics, by name."""
        raise NotImplementedError

    async def describe_topic(self, name: str) -> TopicDescription:
        """One topic. Raises InvalidError(UNKNOWN_TOPIC)."""
        raise NotImplementedError

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> Topic:
        """Create a topic. Raises InvalidError: TOPIC_EXISTS, INVALID_TOPIC, INVALID_PARTITIONS, INVALID_CONFIG."""
        raise NotImplementedError

    async def alter_topic_config(
        self, name: str, set: Mapping[str, str] | None = None, unset: Iterable[str] = (), *, validate_only: bool = False
    ) -> None:
        """Change single settings, put others back to their defaults; what is not named stays."""
        raise NotImplementedError

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> None:
        """Give a topic `total` partitions; only more than it has."""
        raise NotImplementedError

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        raise NotImplementedError

    async def delete_records(self, topic: str, before: Mapping[int, int | None]) -> dict[int, int]:
        """Make records unreadable for ever.

        Args:
            before: by partition, the first offset to keep; None deletes everything that can be read now.

        Returns:
            The new first offsets, by partition.
        """
        raise NotImplementedError

    async def offsets(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Turn places into offsets: earliest, latest, by time; of several topics at once. A number is returned as it is."""
        raise NotImplementedError
