"""The leader's memory of traffic: averages per partition and broker, and the time of each segment's last pause for writers.

There are two exponential averages: `FAST` follows a burst within seconds, `SLOW` is the basis of placement. They belong to
partitions: the successors of a segment inherit the averages of their partitions, so a split loses nothing.

Everything is measured in one unit, the *cost*: bytes/s in, plus bytes/s out, plus requests/s, each worth
`Targets.request_bytes`. A *share* is a cost as a part of one broker's capacity; a broker's *pressure* is the larger of its share
and its CPU. When CPU exceeds the share, the broker's segments count as that much dearer (at most `DEARNESS_MAX` times); the rest
is the broker's own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.broker.cluster.segments import BrokerLoad, PartitionLoad, SegmentInfo, SegmentLoad
from headgate.broker.runtime.steps import Steps

MIB = 1 << 20

FAST = 0
SLOW = 1
HALF_LIVES_MS = (2_000, 8_000)
"""Half-lives of the two averages: after this long without traffic, half of an average is left."""
DEARNESS_MAX = 4.0
GAP_MS = 5_000
"""Pause, in ms, between two reports from which no condition counts as lasting."""
CPU_SETTLES_MS = 2_000
"""After a change of its segments, a broker's CPU average starts anew when this time has passed: earlier values do not apply."""
FORGET_MS = 60_000
"""Ms after which a segment is dropped that is neither open nor reported."""
TRACE_COST = 1.0
"""An average below this (bytes/s) is dropped."""
SEGMENTS_PER_STEP = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The leader's targets. Shares are parts of one broker, costs bytes/s; see the module's docstring."""

    broker_bytes_per_s: float = 100.0 * MIB
    """Cost that one broker is to serve: the share 1."""
    request_bytes: float = 16_384.0
    """Cost of a request, beside its bytes."""
    partition_bytes_per_s: float = 1024.0
    """Cost of a partition without traffic, so that idle partitions are spread too."""

    split_share: float = 0.25
    """A segment above this is split ..."""
    split_after_ms: int = 3_000
    """... when it lasts this long."""
    uneven_share: float = 0.25
    """If the pressures of two brokers differ by more than this, a move evens them out ..."""
    uneven_after_ms: int = 10_000
    """... when it lasts this long ..."""
    busy_share: float = 0.3
    """... and the busier one is above this."""
    gain_share_min: float = 0.1
    """Amount by which a move or split must bring two brokers closer together."""
    quiet_share: float = 0.05
    """Neighbours that together are below this, or below the average segment, are merged ..."""
    merge_after_ms: int = 60_000
    """... when it lasts this long."""

    cooldown_ms: int = 10_000
    """After its writers waited, a segment rests for this long (except for drains); doubled when it happens again soon ..."""
    cooldown_ms_max: int = 600_000
    """... up to this."""
    warm_up_ms: int = 5_000
    """A new leader only watches for this long."""
    welcome_settle_ms: int = 1_000
    """An empty broker gets its part this long after the last one joined: brokers that join together are served together."""
    orders_max: int = 8
    """Segments that one plan splits, merges or moves, except for drains."""

    @property
    def merge_share_max(self) -> float:
        """Two merged segments stay far below the limit for a split."""
        return 0.4 * self.split_share


class Average:
    """Both averages of one partition's traffic, at `at_ms`."""

    __slots__ = ("at_ms", "bytes_in", "bytes_out", "costs", "requests")

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.costs = [0.0, 0.0]
        self.bytes_in = self.bytes_out = self.requests = 0.0

    def set(self, load: PartitionLoad, cost: float) -> None:
        """Start with the first measurement."""
        self.costs = [cost, cost]
        self.bytes_in, self.bytes_out, self.requests = load.bytes_in_per_s, load.bytes_out_per_s, load.requests_per_s

    def add(self, load: PartitionLoad, cost: float, window_ms: int, now_ms: int) -> None:
        """Add the measurement of the last `window_ms`; there was no traffic between `at_ms` and that window."""
        for which, half_life_ms in enumerate(HALF_LIVES_MS):
            kept = _kept(now_ms - self.at_ms, half_life_ms)
            self.costs[which] = self.costs[which] * kept + cost * (1 - _kept(window_ms, half_life_ms))
        kept, new = _kept(now_ms - self.at_ms, HALF_LIVES_MS[FAST]), 1 - _kept(window_ms, HALF_LIVES_MS[FAST])
        self.bytes_in = self.bytes_in * kept + load.bytes_in_per_s * new
        self.bytes_out = self.bytes_out * kept + load.bytes_out_per_s * new
        self.requests = self.requests * kept + load.requests_per_s * new
        self.at_ms = now_ms

    def cost(self, which: int, now_ms: int) -> float:
        return self.costs[which] * _kept(now_ms - self.at_ms, HALF_LIVES_MS[which])

    def load(self, now_ms: int) -> PartitionLoad:
        kept = _kept(now_ms - self.at_ms, HALF_LIVES_MS[FAST])
        return PartitionLoad(
            bytes_in_per_s=self.bytes_in * kept, bytes_out_per_s=self.bytes_out * kept, requests_per_s=self.requests * kept
        )


@dataclass(slots=True)
class SegmentHistory:
    """A segment that is open, or was open a moment ago.

    `cooldown_ms` counts from `born_ms`; 0: its writers never waited for it. `replaced`: its successors are known.
    """

    info: SegmentInfo
    born_ms: int
    cooldown_ms: int
    averages: dict[int, Average] = field(default_factory=dict)
    sampled: bool = False
    seen_ms: int = 0
    replaced: bool = False
    hot_since_ms: int | None = None

    def is_cooling(self, now_ms: int) -> bool:
        return now_ms - self.born_ms < self.cooldown_ms


@dataclass(slots=True)
class BrokerHistory:
    """A live member. `changed_ms`: time of its last gain or loss of a segment; None: not under this leader."""

    joined_ms: int
    cpu: list[float]
    at_ms: int
    changed_ms: int | None = None
    restart_average: bool = False
    uneven_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all live segments. `costs`: by incarnation, including brokers that are gone."""

    costs: Mapping[str, float]
    partitions: int
    segments: int


class LoadHistory:
    """Folds reports; answers in costs. Deterministic: the same calls give the same state."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self.now_ms = 0
        self.started_ms: int | None = None
        """Time of the first report; None before it."""
        self.gap = False
        """True if the last report came so late that no condition counts as lasting."""
        self.segments: dict[int, SegmentHistory] = {}
        """By segment id."""
        self.brokers: dict[str, BrokerHistory] = {}
        """All and only the brokers of the last report, by incarnation."""
        self._by_topic: dict[uuid.UUID, dict[int, SegmentHistory]] = {}
        self._partitions: dict[str, int] = {}
        """Partitions of all segments, by incarnation."""
        self._with_traffic: dict[int, SegmentHistory] = {}
        """Segments with averages. Most segments of a large cluster have none, and sums leave the others out."""
        self._gone: set[int] = set()
        """Segments that were not open at the last call of `learn`."""
        self._learned_ms = 0
        """Time of the last call of `learn`."""
        self._unknown: dict[int, tuple[SegmentLoad, int, int]] = {}
        """Reports about segments that are still unknown: (load, window in ms, time in ms)."""
        self._learned = False
        self._pruned_ms = 0

    def observe(self, brokers: Sequence[BrokerLoad], now_ms: int) -> None:
        """Add a report of all live brokers about the time since the previous one."""
        if self.started_ms is None:
            self.started_ms, self.now_ms = now_ms, now_ms - 1000
            # A new leader places lost segments before it receives the time.
            for segment in self.segments.values():
                segment.born_ms = segment.seen_ms = now_ms
        window_ms = max(now_ms - self.now_ms, 1)
        self.gap = window_ms > GAP_MS
        self.now_ms = now_ms
        self._unknown.clear()
        for broker in brokers:
            self._observe_broker(broker, now_ms)
            for load in broker.segments:
                history = self.segments.get(load.segment_id)
                if history is None:
                    self._unknown[load.segment_id] = (load, window_ms, now_ms)
                else:
                    self._fold(history, load, window_ms, now_ms)
        live = {broker.incarnation_id for broker in brokers}
        for gone in [incarnation_id for incarnation_id in self.brokers if incarnation_id not in live]:
            del self.brokers[gone]

    def _observe_broker(self, broker: BrokerLoad, now_ms: int) -> None:
        history = self.brokers.get(broker.incarnation_id)
        if history is None:
            cpu = broker.cpu_share
            self.brokers[broker.incarnation_id] = BrokerHistory(joined_ms=now_ms, cpu=[cpu, cpu], at_ms=now_ms)
            return
        for which, half_life_ms in enumerate(HALF_LIVES_MS):
            kept = _kept(now_ms - history.at_ms, half_life_ms)
            history.cpu[which] = history.cpu[which] * kept + broker.cpu_share * (1 - kept)
        history.at_ms = now_ms
        if history.restart_average and history.changed_ms is not None and now_ms - history.changed_ms >= CPU_SETTLES_MS:
            history.cpu = [broker.cpu_share, broker.cpu_share]
            history.restart_average = False

    def _fold(self, history: SegmentHistory, load: SegmentLoad, window_ms: int, now_ms: int) -> None:
        first = not history.sampled and not history.averages
        for partition, measured in load.partitions.items():
            average = history.averages.get(partition)
            cost = self.cost(measured)
            if average is None:
                average = history.averages[partition] = Average(now_ms)
                self._with_traffic[load.segment_id] = history
                if first:
                    average.set(measured, cost)
                    continue
            average.add(measured, cost, window_ms, now_ms)
        history.sampled = True
        history.seen_ms = now_ms

    def cost(self, load: PartitionLoad) -> float:
        """Cost of a load, in bytes/s."""
        return load.bytes_in_per_s + load.bytes_out_per_s + load.requests_per_s * self.targets.request_bytes

    def learn(self, segments: Mapping[int, SegmentInfo]) -> None:
        """Note which segments are open now: the new ones inherit from their predecessors."""
        now_ms = self.now_ms
        for segment_id in sorted(segments.keys() - self.segments.keys()):
            self._open(segments[segment_id], now_ms)
        gone = self.segments.keys() - segments.keys()
        for segment_id in gone - self._gone:
            history = self.segments[segment_id]
            history.seen_ms = max(history.seen_ms, self._learned_ms)
        self._learned, self._learned_ms = True, now_ms
        forgotten = {segment_id for segment_id in gone if now_ms - self.segments[segment_id].seen_ms > FORGET_MS}
        for segment_id in sorted(forgotten):
            self._forget(segment_id)
        self._gone = gone - forgotten
        if now_ms - self._pruned_ms >= FORGET_MS:
            self._pruned_ms = now_ms
            self._prune(now_ms)

    def _forget(self, segment_id: int) -> None:
        info = self.segments.pop(segment_id).info
        del self._by_topic[info.topic_id][segment_id]
        if not self._by_topic[info.topic_id]:
            del self._by_topic[info.topic_id]
        self._with_traffic.pop(segment_id, None)
        self._partitions[info.incarnation_id] -= len(info.partitions)
        if not self._partitions[info.incarnation_id]:
            del self._partitions[info.incarnation_id]

    def _prune(self, now_ms: int) -> None:
        for segment_id, history in list(self._with_traffic.items()):
            history.averages = {
                partition: average
                for partition, average in history.averages.items()
                if average.cost(SLOW, now_ms) >= TRACE_COST or average.cost(FAST, now_ms) >= TRACE_COST
            }
            if not history.averages:
                del self._with_traffic[segment_id]

    def _open(self, info: SegmentInfo, now_ms: int) -> None:
        neighbours = self._by_topic.setdefault(info.topic_id, {})
        before = [
            history
            for history in neighbours.values()
            if history.info.first_partition < info.end_partition and info.first_partition < history.info.end_partition
        ]
        before.sort(key=lambda history: history.info.leader_epoch)
        targets = self.targets
        # A segment that begins at offset 0 everywhere belongs to a new topic: no writer waited for it.
        cooldown_ms = targets.cooldown_ms if before or any(info.base_offsets) or info.origins else 0
        history = SegmentHistory(info=info, born_ms=now_ms, cooldown_ms=cooldown_ms, seen_ms=now_ms)
        for predecessor in before:
            if now_ms - predecessor.born_ms < 8 * predecessor.cooldown_ms:
                history.cooldown_ms = max(history.cooldown_ms, min(2 * predecessor.cooldown_ms, targets.cooldown_ms_max))
            for partition, average in predecessor.averages.items():
                if info.first_partition <= partition < info.end_partition:
                    history.averages[partition] = average
            predecessor.replaced = True
            self._changed(predecessor.info.incarnation_id, now_ms)
        self.segments[info.id] = neighbours[info.id] = history
        self._partitions[info.incarnation_id] = self._partitions.get(info.incarnation_id, 0) + len(info.partitions)
        if history.averages:
            self._with_traffic[info.id] = history
        if self._learned:
            self._changed(info.incarnation_id, now_ms)
        pending = self._unknown.pop(info.id, None)
        if pending is not None:
            self._fold(history, *pending)

    def _changed(self, incarnation_id: str, now_ms: int) -> None:
        broker = self.brokers.get(incarnation_id)
        if broker is not None:
            broker.changed_ms, broker.restart_average = now_ms, True

    # -- answers

    def partition_cost(self, history: SegmentHistory, partition: int, which: int) -> float:
        """Cost of a partition, including the part without traffic."""
        average = history.averages.get(partition)
        return self.targets.partition_bytes_per_s + (0.0 if average is None else average.cost(which, self.now_ms))

    def segment_cost(self, history: SegmentHistory, which: int) -> float:
        """Cost of all partitions of a segment."""
        idle = len(history.info.partitions) * self.targets.partition_bytes_per_s
        return idle + sum(average.cost(which, self.now_ms) for average in history.averages.values())

    def range_cost(self, topic_id: uuid.UUID, first: int, end: int, which: int) -> float | None:
        """The averages of partitions, independent of their lead; None without any."""
        found: dict[int, Average] = {}
        known = False
        for history in self._by_topic.get(topic_id, {}).values():
            if history.info.first_partition < end and first < history.info.end_partition:
                known = True
                found.update((number, average) for number, average in history.averages.items() if first <= number < end)
        if not known:
            return None
        return (end - first) * self.targets.partition_bytes_per_s + sum(
            segment_load.cost(which, self.now_ms) for segment_load in found.values()
        )

    def live(self) -> list[SegmentHistory]:
        """Segments that count for a broker: the open ones, and those that an order is taking away."""
        over = self._over()
        return [history for segment_id, history in self.segments.items() if segment_id not in over]

    def busiest(self) -> Steps[dict[uuid.UUID, float]]:
        """The present cost of every topic with traffic, without the part of its idle partitions."""
        costs: dict[uuid.UUID, float] = {}
        for number, history in enumerate(list(self._with_traffic.values())):
            if number % SEGMENTS_PER_STEP == 0:
                yield SEGMENTS_PER_STEP
            cost = sum(average.cost(FAST, self.now_ms) for average in history.averages.values())
            costs[history.info.topic_id] = costs.get(history.info.topic_id, 0.0) + cost
        return costs

    def age_ms(self, segment_id: int) -> int | None:
        """Time since a split, a merge or a move opened a segment. None: it is as old as its topic, or as this leader's term."""
        history = self.segments.get(segment_id)
        if history is None or not history.cooldown_ms or self.started_ms is None or history.born_ms <= self.started_ms:
            return None
        return self.now_ms - history.born_ms

    def _over(self) -> set[int]:
        """Segments that count for no broker."""
        gone = [(segment_id, self.segments[segment_id]) for segment_id in self._gone]
        return {segment_id for segment_id, seen in gone if seen.replaced or self.now_ms - seen.seen_ms >= GAP_MS}

    def totals(self, which: int) -> Totals:
        """The sums over all live segments. Every commit of new topics asks for them, so this costs what the segments with traffic
        cost, and not what all segments cost."""
        over = self._over()
        partitions = dict(self._partitions)
        for segment_id in over:
            info = self.segments[segment_id].info
            partitions[info.incarnation_id] -= len(info.partitions)
        costs = {incarnation_id: count * self.targets.partition_bytes_per_s for incarnation_id, count in partitions.items()}
        # By the time of a measurement: most were made at the same time.
        kept = {self.now_ms: 1.0}
        for segment_id, history in self._with_traffic.items():
            if segment_id not in over:
                cost = 0.0
                for average in history.averages.values():
                    if (part := kept.get(average.at_ms)) is None:
                        part = kept[average.at_ms] = _kept(self.now_ms - average.at_ms, HALF_LIVES_MS[which])
                    cost += average.costs[which] * part
                costs[history.info.incarnation_id] += cost
        return Totals(costs, sum(partitions.values()), len(self.segments) - len(over))

    def load(self, history: SegmentHistory) -> PartitionLoad:
        """Traffic of a whole segment, for the operator."""
        loads = [average.load(self.now_ms) for average in history.averages.values()]
        return PartitionLoad(
            bytes_in_per_s=sum(load.bytes_in_per_s for load in loads),
            bytes_out_per_s=sum(load.bytes_out_per_s for load in loads),
            requests_per_s=sum(load.requests_per_s for load in loads),
        )


def _kept(elapsed_ms: int, half_life_ms: int) -> float:
    """The part of an average that is left after `elapsed_ms`."""
    return float(2.0 ** (-elapsed_ms / half_life_ms))
