"""The content of /metrics: the counters of all parts, by name. The parts themselves do not depend on this module."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headgate.broker import __version__
from headgate.broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Labels, Metrics

if TYPE_CHECKING:
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.partition.log import PartitionLog
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.node import Node
    from headgate.broker.server.kafka.listener import KafkaServer

LAG_INTERVAL_S = 1.0


class LoopLag:
    """Delay of the event loop: the time from a timer's due time to its run. Every client waits at least that long."""

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


class TopicCounts:
    """Traffic of topics on this broker since its start, including partitions that it no longer leads. It never falls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: dict[uuid.UUID, tuple[int, int, int]] = {}
        """Partitions that other brokers lead now: bytes in, bytes out, offsets given."""
        self._first: dict[PartitionLog, int] = {}
        """For every partition that this broker leads, the end offset at the time when it took over the lead."""
        for partition in engine.all_logs():
            self._watch(partition)
        engine.leads.watch(self._watch)

    def _watch(self, partition: PartitionLog) -> None:
        if partition.closed is None:
            self._first[partition] = partition.high_watermark
            return
        counted = self._count(partition)
        self._first.pop(partition, None)
        topic_id = partition.topic.id
        if topic_id in self._engine.manifest.topics_by_id:
            before = self._before.get(topic_id, (0, 0, 0))
            self._before[topic_id] = before[0] + counted[0], before[1] + counted[1], before[2] + counted[2]
            if len(self._before) > len(self._engine.manifest.topics):
                # Some topics were deleted while other brokers led all of their partitions.
                self._before = {key: one for key, one in self._before.items() if key in self._engine.manifest.topics_by_id}
        else:
            self._before.pop(topic_id, None)

    def _count(self, partition: PartitionLog) -> tuple[int, int, int]:
        given = partition.high_watermark - self._first.get(partition, partition.high_watermark)
        return partition.bytes_in, partition.bytes_out, given

    def read(self, which: int) -> dict[Labels, float]:
        """By topic: 0 bytes in, 1 bytes out, 2 offsets given."""
        found: dict[Labels, float] = {}
        for name, logs in self._engine.logs.items():
            topic = self._engine.manifest.topics.get(name)
            before = self._before.get(topic.id, (0, 0, 0)) if topic is not None else (0, 0, 0)
            found[(name,)] = before[which] + sum(self._count(partition)[which] for partition in logs if partition is not None)
        return found


class Observer:
    """The metrics of one broker; parts are added as they start."""

    def __init__(self, broker_id: int, not_ready: Callable[[], str | None], kafka: KafkaServer) -> None:
        self.metrics = Metrics()
        self._lag = LoopLag(asyncio.get_running_loop())
        _register_process(self.metrics, broker_id, not_ready, self._lag)
        _register_kafka(self.metrics, kafka)

    def opened(self, node: Node) -> None:
        """Add the node: its engine is open."""
        _register_engine(self.metrics, node.engine)
        _register_cluster(self.metrics, node.engine)
        _register_groups(self.metrics, node.groups)
        participant = node.participant
        self.metrics.gauge(
            "headgate_cluster_late_seconds",
            "how late this broker's timers were at most in the last half minute; above 0.2 its machine is starved",
            participant.late_s,
        )
        self.metrics.counter(
            "headgate_cluster_replaced_brokers",
            "brokers that this one replaced as the leader, by evidence: dead, unreached, silent",
            lambda: {(evidence.name.lower(),): count for evidence, count in participant.replaced.items()},
            ("evidence",),
        )

    def close(self) -> None:
        """Stop measuring."""
        self._lag.close()


def _register_process(metrics: Metrics, broker_id: int, not_ready: Callable[[], str | None], lag: LoopLag) -> None:
    """The broker as a whole. Prometheus' own `process_*` add its memory, processor time and open files."""
    info: dict[Labels, float] = {(str(broker_id), __version__): 1}
    metrics.gauge(
        "headgate_broker_info", "always 1; the labels name this broker and its version", lambda: info, ("broker_id", "version")
    )
    metrics.gauge("headgate_broker_ready_bool", "1 while /readyz answers ready", lambda: float(not_ready() is None))
    metrics.histogram("headgate_loop_lag_seconds", "delay of a timer of the event loop, measured once a second", lag.seconds)


def _register_kafka(metrics: Metrics, kafka: KafkaServer) -> None:
    """The Kafka listener."""
    gauge, counter = metrics.gauge, metrics.counter
    common = kafka.common
    gauge("headgate_kafka_open_connections", "open connections of Kafka clients", lambda: len(kafka.connections))
    counter("headgate_kafka_refused_connections", "connections closed at once for lack of room", lambda: kafka.connections_refused)
    counter("headgate_kafka_requests", "requests by kind", lambda: {(kind,): n for kind, n in common.requests.items()}, ("kind",))
    gauge(
        "headgate_kafka_inflight_bytes",
        "bytes of requests that were received and not answered yet",
        lambda: common.inbox.inflight_bytes,
    )
    gauge("headgate_kafka_outgoing_bytes", "bytes of answers that clients have not read yet", lambda: common.outgoing_bytes)


def _register_engine(metrics: Metrics, engine: Engine) -> None:
    """Topics, memory and the write-ahead log."""

    def by_topic(name: str) -> Callable[[], dict[Labels, float]]:
        def total(logs: Iterable[PartitionLog | None]) -> int:
            counts: Iterable[int] = (getattr(partition, name) for partition in logs if partition is not None)
            return sum(counts)

        return lambda: {(topic,): total(logs) for topic, logs in engine.logs.items()}

    gauge, counter, topic = metrics.gauge, metrics.counter, ("topic",)
    gauge("headgate_topic_partitions", "partitions", lambda: {(name,): len(logs) for name, logs in engine.logs.items()}, topic)
    gauge("headgate_topic_size_bytes", "bytes of the readable batches", by_topic("size_bytes"), topic)
    counts = TopicCounts(engine)
    counter("headgate_topic_in_bytes", "bytes of batches written to this broker since it started", lambda: counts.read(0), topic)
    counter("headgate_topic_out_bytes", "bytes of batches read from this broker since it started", lambda: counts.read(1), topic)
    counter("headgate_topic_in_records", "offsets that this broker gave to records since it started", lambda: counts.read(2), topic)
    history = engine.history
    counter("headgate_history_encoded_records", "rows of Parquet files that were encoded to batches", lambda: history.encoded_rows)
    counter("headgate_history_encoded_bytes", "bytes of the batches made from rows of Parquet files", lambda: history.encoded_bytes)
    counter("headgate_history_hits", "row groups that the cache had encoded already", lambda: history.hits)
    counter("headgate_history_misses", "row groups that the cache lacked, and that were encoded", lambda: history.misses)
    counter(
        "headgate_history_dropped_in_use",
        "row groups that were dropped during a read, and will be encoded again: raise history_cache_bytes",
        lambda: history.cache.dropped_in_use,
    )
    gauge("headgate_history_cache_bytes", "bytes of encoded row groups in memory", lambda: history.cache.size_bytes)
    gauge("headgate_tail_memory_bytes", "memory that holds the newest records", lambda: engine.tail_memory.held_bytes)
    counter("headgate_wal_appended_batches", "batches handed to the write-ahead log", lambda: engine.wal_batches[0])
    counter("headgate_wal_durable_batches", "batches that are in the store", lambda: engine.wal_batches[1])
    gauge(
        "headgate_clock_difference_seconds",
        "greatest difference above clock_difference_max_ms between this broker's clock and another one; 0: none; "
        "above 0, nothing is deleted by age",
        lambda: engine.clock.difference_ms / 1000,
    )
    counter(
        "headgate_check_refused_batches",
        "batches that were refused because consumers could not read their records",
        lambda: engine.batches_refused,
    )
    counter(
        "headgate_check_unreadable_batches",
        "stored batches that consumers cannot read, found when chunks were folded: see `headgate topic check`",
        lambda: engine.batches_unreadable,
    )
    gauge("headgate_wal_stalled_bool", "1 while nothing becomes durable", lambda: float(engine.stalled is not None))


def _register_cluster(metrics: Metrics, engine: Engine) -> None:
    """This broker's role in the cluster."""
    metrics.gauge("headgate_cluster_brokers", "live brokers known to this broker", lambda: len(engine.brokers()))
    metrics.gauge(
        "headgate_cluster_leader_bool",
        "1 while this broker leads the cluster",
        lambda: float(engine.manifest.leader == engine.incarnation_id),
    )
    metrics.gauge("headgate_cluster_led_segments", "segments that this broker leads", lambda: len(engine.leads.segments()))
    metrics.gauge(
        "headgate_replicas_follower_bool",
        "1 while a follower's copies count as acks, for topics with ack=replicated",
        lambda: float(engine.replicator.counts),
    )
    metrics.gauge(
        "headgate_replicas_held_bytes", "bytes of copies that this broker holds for other brokers", lambda: engine.replicas.bytes
    )


def _register_groups(metrics: Metrics, groups: Coordinator) -> None:
    """Consumer groups."""
    metrics.counter("headgate_group_committed_offsets", "positions that were acked", lambda: groups.commits)
    metrics.counter("headgate_group_rebalances", "join phases that were completed", lambda: groups.rebalances)
    metrics.gauge("headgate_group_groups", "groups, by state", groups.count_states, ("state",))
