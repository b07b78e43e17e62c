"""What /metrics shows: the counters of all parts, by name. The parts themselves know nothing of this."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from broker import __version__
from broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Labels, Metrics

if TYPE_CHECKING:
    from broker.engine.coordinator import Coordinator
    from broker.engine.engine import Engine
    from broker.engine.partition import PartitionLog
    from broker.server.kafka.listener import KafkaServer

LAG_INTERVAL_S = 1.0
LAG_SERIES_MAX = 10_000
"""Series of one metric; Prometheus and whoever pays for it want no more. gRPC tells all."""


class LoopLag:
    """How late the event loop is: the time between when a timer was due and when it ran. Every client waits at least that long."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds = Histogram(LATENCY_BUCKETS_S)
        self._loop = loop
        self._due_s = loop.time() + LAG_INTERVAL_S
        self._timer = loop.call_at(self._due_s, self._sample)

    def close(self) -> None:
        """Stop measuring."""
        self._timer.cancel()

    def _sample(self) -> None:
        now_s = self._loop.time()
        self.seconds.observe(max(now_s - self._due_s, 0.0))
        self._due_s = now_s + LAG_INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._sample)


class Observer:
    """The metrics of one broker; parts are added as they come."""

    def __init__(self, broker_id: int, not_ready: Callable[[], str | None], kafka: KafkaServer) -> None:
        self.metrics = Metrics()
        self._lag = LoopLag(asyncio.get_running_loop())
        _register_process(self.metrics, broker_id, not_ready, self._lag)
        _register_kafka(self.metrics, kafka)

    def engine_opened(self, engine: Engine, groups: Coordinator) -> None:
        """The engine is there, and what depends on it."""
        _register_engine(self.metrics, engine)
        _register_groups(self.metrics, groups)

    def close(self) -> None:
        """Stop measuring."""
        self._lag.close()


def _register_process(metrics: Metrics, broker_id: int, not_ready: Callable[[], str | None], lag: LoopLag) -> None:
    """The broker as a whole. Prometheus' own `process_*` add its memory, processor time and open files."""
    info: dict[Labels, float] = {(str(broker_id), __version__): 1}
    metrics.gauge("headgate_broker_info", "1; the labels say which broker this is", lambda: info, ("broker_id", "version"))
    metrics.gauge("headgate_broker_ready_bool", "1 while /readyz says ready", lambda: float(not_ready() is None))
    metrics.histogram("headgate_loop_lag_seconds", "how late the event loop ran a timer, once a second", lag.seconds)


def _register_kafka(metrics: Metrics, kafka: KafkaServer) -> None:
    """The Kafka door."""
    gauge, counter = metrics.gauge, metrics.counter
    gauge("headgate_kafka_open_connections", "open connections of Kafka clients", lambda: len(kafka.connections))
    counter("headgate_kafka_refused_connections", "connections beyond connections_max", lambda: kafka.connections_refused)
    counter("headgate_kafka_requests", "requests by kind", lambda: {(kind,): n for kind, n in kafka.requests.items()}, ("kind",))
    gauge("headgate_kafka_inflight_bytes", "requests received and not answered", lambda: kafka.inflight_bytes)
    gauge("headgate_kafka_outgoing_bytes", "answers that clients have not taken", lambda: kafka.outgoing_bytes)


def _register_engine(metrics: Metrics, engine: Engine) -> None:
    """Topics, memory and the write-ahead log."""

    def by_topic(name: str) -> Callable[[], dict[Labels, float]]:
        def total(logs: Iterable[PartitionLog | None]) -> int:
            counts: Iterable[int] = (getattr(partition, name) for partition in logs if partition is not None)
            return sum(counts)

        return lambda: {(topic,): total(logs) for topic, logs in engine.logs.items()}

    gauge, counter, topic = metrics.gauge, metrics.counter, ("topic",)
    gauge("headgate_topic_partitions", "partitions", lambda: {(name,): len(logs) for name, logs in engine.logs.items()}, topic)
    gauge("headgate_topic_size_bytes", "batches that can be read", by_topic("size_bytes"), topic)
    counter("headgate_topic_in_bytes", "batches written since this broker started", by_topic("bytes_in"), topic)
    counter("headgate_topic_out_bytes", "batches read since this broker started", by_topic("bytes_out"), topic)
    counter("headgate_topic_in_records", "sum of the end offsets, whoever wrote the records", by_topic("high_watermark"), topic)
    gauge("headgate_tail_memory_bytes", "memory that holds the newest records", lambda: engine.tail_bytes)
    counter("headgate_wal_appended_batches", "batches handed to the write-ahead log", lambda: engine.wal_batches[0])
    counter("headgate_wal_durable_batches", "batches that are in the store", lambda: engine.wal_batches[1])
    gauge("headgate_wal_stalled_bool", "1 while nothing becomes durable", lambda: float(engine.stalled is not None))


def _register_groups(metrics: Metrics, groups: Coordinator) -> None:
    """Consumer groups."""
    metrics.counter("headgate_group_committed_offsets", "positions that were acked", lambda: groups.commits)
    metrics.counter("headgate_group_rebalances", "join phases that were completed", lambda: groups.rebalances)
    metrics.gauge("headgate_group_groups", "groups, by state", groups.count_states, ("state",))
    metrics.gauge(
        "headgate_group_lag_records",
        f"records behind a committed position; of the first {LAG_SERIES_MAX} positions",
        lambda: {
            (group, topic, str(partition)): behind for group, topic, partition, behind in islice(groups.lags(), LAG_SERIES_MAX)
        },
        ("group", "topic", "partition"),
    )
