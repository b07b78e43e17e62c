"""How far groups are behind, for /metrics: shown by a group's own broker, which asks the leads of the partitions."""

from __future__ import annotations

from itertools import islice

from headgate.broker.engine.coordinator import Coordinator
from headgate.broker.runtime.metrics import Labels, Metrics
from headgate.broker.server.grpc.bounds import find_bounds
from headgate.broker.server.grpc.shared import Shared

SERIES_MAX = 10_000
"""Series of one metric; Prometheus and whoever pays for it want no more. gRPC tells all."""


class Lags:
    """Of the groups that this broker holds, as they were when somebody last asked for metrics."""

    def __init__(self, shared: Shared, groups: Coordinator) -> None:
        self._shared = shared
        self._groups = groups
        self._lags: dict[Labels, float] = {}

    def register(self, metrics: Metrics) -> None:
        """Show them; they are found anew for each reading."""
        metrics.prepare_with(self.find)
        metrics.gauge(
            "headgate_group_lag_records",
            f"records behind a committed position, on the group's own broker; of its first {SERIES_MAX} positions",
            lambda: self._lags,
            ("group", "topic", "partition"),
        )

    async def find(self) -> None:
        """Ask where partitions end. Those whose lead does not answer have no lag."""
        committed = list(islice(self._groups.committed(), SERIES_MAX))
        bounds = await find_bounds(self._shared.engine, self._shared.peers, {topic for _, topic, _, _ in committed})
        self._lags = {
            (group, topic, str(partition)): bounds[topic, partition].lag(offset)
            for group, topic, partition, offset in committed
            if (topic, partition) in bounds
        }
