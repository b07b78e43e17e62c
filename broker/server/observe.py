"""The content of /metrics: the counters of all parts, by name. The parts themselves do not depend on this module."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from headgate.broker import __version__
from headgate.broker.runtime.errors import RetryError
from headgate.broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Labels, Metrics, Reading
from headgate.broker.server.topic_series import TopicCounts, TopicSeries
from headgate.broker.server.view.shared import Shared

if TYPE_CHECKING:
    from headgate.broker.cluster.flood_book import Flood
    from headgate.broker.control.leader import Leader
    from headgate.broker.control.participant import Participant
    from headgate.broker.control.timings import Timings
    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.node import Node
    from headgate.broker.server.kafka.listener import KafkaServer
    from headgate.broker.transactions.coordinator import TransactionCoordinator

Known: TypeAlias = "Callable[[Callable[[Leader], float | dict[Labels, float]]], Callable[[], Reading]]"
"""Makes a reading of what only the leader knows."""
LAG_INTERVAL_S = 1.0
THROTTLED_SERIES_MAX = 100
"""Series of throttled clients: their names come from clients."""
PAUSE_PER_COUNT = 10.0
"""Pause between two counts of all topics, as a multiple of a count's duration."""


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


class Observer:
    """The metrics of one broker; parts are added as they start."""

    def __init__(self, broker_id: int, not_ready: Callable[[], str | None], kafka: KafkaServer) -> None:
        self.metrics = Metrics()
        self._lag = LoopLag(asyncio.get_running_loop())
        _register_process(self.metrics, broker_id, not_ready, self._lag)
        _register_kafka(self.metrics, kafka)

    def opened(self, node: Node) -> None:
        """Add the node: its engine is open."""
        _register_topics(self.metrics, node.engine)
        _register_quotas(self.metrics, node.engine)
        _register_engine(self.metrics, node.engine)
        _register_history(self.metrics, node.engine)
        _register_cluster(self.metrics, node.engine)
        _register_groups(self.metrics, node.groups)
        _register_transactions(self.metrics, node.transactions)
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
        _register_leader(self.metrics, participant)

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
    audit = common.audit
    counter("headgate_audit_acts", "administrative acts in the audit log", lambda: 0 if audit is None else audit.acts)
    counter(
        "headgate_audit_refusals",
        "logins and requests that were refused, also those that the audit log only counts",
        lambda: 0 if audit is None else audit.refusals,
    )
    metrics.histogram(
        "headgate_kafka_produce_seconds",
        "time from the arrival of a produce request until it is acked; requests that arrive together have one time",
        common.produce_s,
    )
    metrics.histogram(
        "headgate_kafka_fetch_seconds",
        "time from the arrival of a fetch until its answer is ready, by kind: memory, store, waited (for new records, as its "
        "client asked)",
        common.fetch_s,
        ("kind",),
    )
    gauge("headgate_kafka_outgoing_bytes", "bytes of answers that clients have not read yet", lambda: common.outgoing_bytes)


def _register_topics(metrics: Metrics, engine: Engine) -> None:
    """Topics: counted before each scrape, in slices of the loop's time."""
    counts, series = TopicCounts(engine), TopicSeries()

    async def count() -> None:
        turn = engine.turns.begin()
        await turn.run(series.update(await turn.run(counts.read_all())))

    # With very many topics the numbers are counted more seldom than they are scraped.
    metrics.prepare_with(Shared(count, engine.clock.monotonic, 0.0, PAUSE_PER_COUNT).get)
    gauge, counter, topic = metrics.gauge, metrics.counter, ("topic",)
    counter("headgate_topic_in_bytes", "bytes of batches written to this broker", lambda: series.read(0), topic)
    counter("headgate_topic_out_bytes", "bytes of batches read from this broker", lambda: series.read(1), topic)
    counter(
        "headgate_topic_in_records",
        "offsets that this broker gave to records",
        lambda: series.read(2),
        topic,
    )
    gauge("headgate_topic_size_bytes", "bytes of the readable batches that this broker leads", lambda: series.read(3), topic)
    gauge("headgate_topic_partitions", "partitions of the topic", lambda: series.read(4), topic)


def _register_engine(metrics: Metrics, engine: Engine) -> None:
    """Memory and the write-ahead log."""
    gauge, counter = metrics.gauge, metrics.counter
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
    gauge(
        "headgate_fold_stuck_units",
        "units of adopted files that stay unfolded, because a kept file is missing or was changed: see `headgate store check`",
        lambda: engine.units_stuck,
    )
    gauge("headgate_wal_stalled_bool", "1 while nothing becomes durable", lambda: float(engine.stalled is not None))


def _register_history(metrics: Metrics, engine: Engine) -> None:
    """Rows of files as batches, and who sends them."""
    gauge, counter = metrics.gauge, metrics.counter
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
    counter("headgate_history_out_bytes", "bytes of history sent to clients", lambda: engine.history_out_bytes)
    gauge(
        "headgate_history_limit_bytes_per_second",
        "history that this broker sends at most while live records need it; 0: it is not limited",
        lambda: engine.live_first.shown_bytes_per_s,
    )
    counter(
        "headgate_history_waited_seconds", "time that reads of history waited for live records", lambda: engine.live_first.waited_s
    )
    counter(
        "headgate_lane_sent_readers",
        "answers that sent a reader of history to a lane, for one partition each",
        lambda: engine.sent_to_lanes,
    )
    gauge("headgate_history_cache_bytes", "bytes of encoded row groups in memory", lambda: history.cache.size_bytes)
    disk = history.disk
    counter(
        "headgate_history_disk_hits", "row groups that were read from history_cache_dir", lambda: 0 if disk is None else disk.hits
    )
    gauge(
        "headgate_history_disk_bytes",
        "bytes of encoded row groups in history_cache_dir",
        lambda: 0 if disk is None else disk.cache.size_bytes,
    )


def _register_cluster(metrics: Metrics, engine: Engine) -> None:
    """This broker's role in the cluster."""
    metrics.gauge("headgate_cluster_brokers", "live brokers known to this broker", lambda: len(engine.brokers()))
    metrics.gauge("headgate_cluster_lanes", "live lanes known to this broker", lambda: len(engine.lanes()))
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


def _register_leader(metrics: Metrics, participant: Participant) -> None:
    """What the cluster's leader knows. The other brokers have no samples of its gauges."""
    timings = participant.timings
    metrics.counter(
        "headgate_leader_task_retries",
        "times that a task of this broker as the leader began again because the store did not answer",
        lambda: {(name,): count for name, count in timings.retries.items()},
        ("task",),
    )
    metrics.histogram(
        "headgate_cluster_handover_seconds",
        "time that writers waited for the new lead of a segment, by this broker as the leader; by kind: split, merge, move, "
        "drain, failover",
        timings.handovers,
        ("kind",),
    )
    known = partial(_at_leader, participant)
    metrics.gauge(
        "headgate_tables_failing",
        "topics whose Iceberg table could not be written at the last attempt; only at the leader",
        known(lambda leader: len(leader.tables.failing)),
    )
    _register_capacity(metrics, known)
    _register_gates(metrics, known, timings)
    _register_floods(metrics, known)


def _at_leader(participant: Participant, read: Callable[[Leader], float | dict[Labels, float]]) -> Callable[[], Reading]:
    """A reading that only the leader has."""

    def reading() -> Reading:
        leader = participant.leader
        if leader is None:
            return {}
        value = read(leader)
        return value if isinstance(value, dict) else {(): value}

    return reading


def _register_capacity(metrics: Metrics, known: Known) -> None:
    metrics.gauge("headgate_capacity_desired_brokers", "desired number of brokers; only at the leader", known(_desired))
    metrics.gauge(
        "headgate_capacity_live_brokers",
        "brokers that serve; only at the leader",
        known(lambda leader: leader.capacity.live_brokers()),
    )
    metrics.gauge(
        "headgate_capacity_reservations",
        "open reservations; only at the leader",
        known(lambda leader: len(leader.capacity.reservations())),
    )
    metrics.gauge(
        "headgate_capacity_reserved_brokers",
        "brokers that the largest open reservation asks for; only at the leader",
        known(lambda leader: max((row.reservation.brokers for row in leader.capacity.reservations()), default=0)),
    )


def _register_gates(metrics: Metrics, known: Known, timings: Timings) -> None:
    metrics.gauge(
        "headgate_gate_open_gates", "open gates; only at the leader", known(lambda leader: len(leader.gates.open_gates()))
    )
    metrics.gauge(
        "headgate_gate_reserved_offsets",
        "offsets that open gates keep free for history; only at the leader",
        known(lambda leader: leader.gates.reserved_offsets()),
    )
    metrics.counter(
        "headgate_gate_filled_records",
        "records that gates brought in, by this broker as the leader",
        lambda: timings.filled_records,
    )
    metrics.counter(
        "headgate_gate_released_gates",
        "gates that were released by this broker as the leader, by reason: asked, expired",
        lambda: timings.released_gates,
        ("reason",),
    )
    metrics.histogram(
        "headgate_gate_fill_seconds",
        "time from a request to fill a gate until its files are committed, by this broker as the leader",
        timings.fills,
    )


def _register_floods(metrics: Metrics, known: Known) -> None:
    for name, what in (("planned", "planned"), ("written", "written to files"), ("verified", "read back and compared")):
        metrics.gauge(
            f"headgate_flood_{name}_rows",
            f"rows {what}, of floods in progress; only at the leader",
            known(lambda leader, field=f"rows_{name}": _flood_rows(leader, field)),  # type: ignore[misc]
            ("topic", "flood"),
        )
    metrics.gauge(
        "headgate_flood_silent_seconds",
        "time since the driver's last report, of floods in progress; only at the leader",
        known(_flood_silence),
        ("topic", "flood"),
    )


def _desired(leader: Leader) -> float | dict[Labels, float]:
    try:
        return leader.capacity.desired().brokers
    except RetryError:
        return {}  # the leader is too new to know


def _flood_rows(leader: Leader, field: str) -> dict[Labels, float]:
    return {(flood.report.topic, flood.report.flood_id): getattr(flood.report, field) for flood in _running(leader)}


def _flood_silence(leader: Leader) -> dict[Labels, float]:
    now_s = leader.clock.monotonic()
    return {(flood.report.topic, flood.report.flood_id): now_s - flood.reported_s for flood in _running(leader)}


def _running(leader: Leader) -> list[Flood]:
    return [flood for flood in leader.floods.floods() if flood.ended_s is None]


def _register_groups(metrics: Metrics, groups: Coordinator) -> None:
    """Consumer groups."""
    metrics.counter("headgate_group_committed_offsets", "positions that were acked", lambda: groups.commits)
    metrics.counter("headgate_group_rebalances", "join phases that were completed", lambda: groups.rebalances)
    metrics.gauge("headgate_group_groups", "groups, by state", groups.count_states, ("state",))


def _register_transactions(metrics: Metrics, transactions: TransactionCoordinator) -> None:
    """Transactions that this broker coordinates."""
    metrics.counter("headgate_transaction_ended", "transactions that ended, by outcome", lambda: transactions.ended, ("outcome",))
    metrics.gauge("headgate_transaction_ids", "transactional ids, by state", transactions.count_states, ("state",))


def _register_quotas(metrics: Metrics, engine: Engine) -> None:
    """Clients with quotas."""
    meters = engine.meters

    def throttled() -> dict[Labels, float]:
        found: dict[Labels, float] = {}
        for entity, kind in meters.throttled()[:THROTTLED_SERIES_MAX]:
            found[kind.value, entity.user or "", entity.client_id or ""] = 1
        return found

    metrics.gauge(
        "headgate_quota_throttled_bool",
        f"1 while clients wait because they have used up a quota, which they share by these names; {THROTTLED_SERIES_MAX} at most",
        throttled,
        ("quota", "user", "client_id"),
    )
    metrics.counter(
        "headgate_quota_waited_seconds",
        "time that clients were told to wait, by quota",
        lambda: {(kind.value,): seconds for kind, seconds in meters.waited_s().items()},
        ("quota",),
    )
