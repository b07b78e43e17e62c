"""Lag of groups, for /metrics. The broker that holds a group shows it, and asks the leads of the partitions."""

from __future__ import annotations

from itertools import islice

from headgate.broker.groups.coordinator import Coordinator
from headgate.broker.runtime.metrics import Labels, Metrics
from headgate.broker.server.grpc.bounds import find_bounds
from headgate.broker.server.grpc.server_state import ServerState

SERIES_MAX = 10_000
"""Most series of one metric: Prometheus, and its operators, want no more. The gRPC API returns all."""


class Lags:
    """Lags of the groups that this broker holds, at the time of the last scrape."""

    def __init__(self, server_state: ServerState, groups: Coordinator) -> None:
        self._server_state = server_state
        self._groups = groups
        self._lags: dict[Labels, float] = {}

    def register(self, metrics: Metrics) -> None:
        """Register the metric; the lags are found anew for each scrape."""
        metrics.prepare_with(self.find)
        metrics.gauge(
            "headgate_group_lag_records",
            f"records behind a committed position, on the group's own broker; of its first {SERIES_MAX} positions",
            lambda: self._lags,
            ("group", "topic", "partition"),
        )

    async def find(self) -> None:
        """Ask for the ends of the partitions. A partition has no lag if its lead does not answer."""
        committed = list(islice(self._groups.committed(), SERIES_MAX))
        engine = self._server_state.engine
        bounds = await find_bounds(engine, self._server_state.peers, {topic for _, topic, _, _ in committed})
        lags: dict[Labels, float] = {}
        async for group, topic, partition, offset in engine.turns.begin().each(committed):
            bound = bounds.get((topic, partition))
            if bound is not None:
                lags[group, topic, str(partition)] = bound.lag(offset)
        self._lags = lags
