"""Metrics: components count in plain integers, and a registry of callables reads the integers at each scrape.

The hot path does not use Prometheus. A component has ``self.produced_bytes += n``, and the composition root registers
``metrics.counter("headgate_produce_bytes", "…", lambda: component.produced_bytes)``. Names are
``headgate_<subsystem>_<noun>_<unit>``; Prometheus adds ``_total`` to counters by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from prometheus_client.core import Metric

LATENCY_BUCKETS_S: tuple[float, ...] = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds, seconds: from one write to a local disk (0.1 ms) to a store in trouble (10 s)."""

Labels: TypeAlias = tuple[str, ...]
Reading: TypeAlias = float | Mapping[Labels, float]


class Histogram:
    """Counts of observations per bucket. `observe` costs a bisection; the observed values themselves are not kept."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: upper bounds (inclusive), rising; a last bucket for larger values is added."""
        assert list(bounds) == sorted(set(bounds)) and bounds, bounds
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """(upper bound in Prometheus' notation, number of observations up to it)."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            yield ("+Inf" if bound == float("inf") else repr(float(bound)), total)


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: Literal["counter", "gauge", "histogram"]
    name: str
    documentation: str
    labels: Labels
    read: Callable[[], Reading | Histogram]


class Metrics:
    """All metrics of one broker. Every name is registered once. The loop calls the readers, so they must be quick."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._preparations: list[Callable[[], Awaitable[None]]] = []

    def counter(self, name: str, documentation: str, read: Callable[[], Reading], labels: Labels = ()) -> None:
        """A number that only grows. With `labels`, `read` returns a mapping from label values to numbers."""
        self._add(_Entry("counter", name, documentation, labels, read))

    def gauge(self, name: str, documentation: str, read: Callable[[], Reading], labels: Labels = ()) -> None:
        """A number that goes up and down. With `labels`, `read` returns a mapping from label values to numbers."""
        self._add(_Entry("gauge", name, documentation, labels, read))

    def histogram(self, name: str, documentation: str, histogram: Histogram) -> None:
        """A distribution; its component adds the observations."""
        self._add(_Entry("histogram", name, documentation, (), lambda: histogram))

    def prepare_with(self, find: Callable[[], Awaitable[None]]) -> None:
        """Have `find` awaited before each reading: for numbers of other processes."""
        self._preparations.append(find)

    async def prepare(self) -> None:
        """Fetch the numbers of other processes; `render` then shows them."""
        for find in self._preparations:
            await find()

    def names(self) -> list[str]:
        """Every registered name, in order of registration."""
        return list(self._entries)

    def render(self) -> bytes:
        """The Prometheus text format of all metrics, read now."""
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        registry.register(self)  # a collector by its methods, not by a base class, so that prometheus_client stays a lazy import
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Prometheus' collector protocol."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for entry in self._entries.values():
            reading = entry.read()
            if isinstance(reading, Histogram):
                yield HistogramMetricFamily(
                    entry.name, entry.documentation, buckets=list(reading.cumulative()), sum_value=reading.sum
                )
                continue
            family = (CounterMetricFamily if entry.kind == "counter" else GaugeMetricFamily)(
                entry.name, entry.documentation, labels=entry.labels
            )
            rows = reading if isinstance(reading, Mapping) else {(): reading}
            for labels, value in rows.items():
                family.add_metric(labels, value)
            yield family

    def _add(self, entry: _Entry) -> None:
        assert entry.name.startswith("headgate_") and entry.name not in self._entries, entry.name
        self._entries[entry.name] = entry
