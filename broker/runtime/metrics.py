"""Metrics: components count in plain integers, and a registry of callables reads the integers at each scrape.

The hot path does not use Prometheus. A component has ``self.produced_bytes += n``, and the composition root registers
``metrics.counter("headgate_produce_bytes", "…", lambda: component.produced_bytes)``. Names are
``headgate_<subsystem>_<noun>_<unit>``; Prometheus adds ``_total`` to counters by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from headgate.broker.runtime.steps import Steps, finish

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

    def observe(self, value: float, times: int = 1) -> None:
        """Count `times` observations of one value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """(upper bound in Prometheus' notation, number of observations up to it)."""
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            yield ("+Inf" if bound == float("inf") else repr(float(bound)), total)


Histograms: TypeAlias = Histogram | Mapping[Labels, Histogram]
SAMPLES_PER_STEP = 100
"""Lines that are written in one step of work: about a tenth of a millisecond."""
Kind: TypeAlias = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One metric. `name` is without the `_total` that Prometheus wants of counters; `shown` has it."""

    kind: Kind
    name: str
    documentation: str
    labels: Labels
    read: Callable[[], Reading | Histograms]

    @property
    def shown(self) -> str:
        return f"{self.name}_total" if self.kind == "counter" else self.name


class Metrics:
    """All metrics of one broker. Every name is registered once. The loop calls the readers, so they must be quick."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._preparations: list[Callable[[], Awaitable[None]]] = []

    def counter(self, name: str, documentation: str, read: Callable[[], Reading], labels: Labels = ()) -> None:
        """A number that only grows. With `labels`, `read` returns a mapping from label values to numbers."""
        self._add(Entry("counter", name, documentation, labels, read))

    def gauge(self, name: str, documentation: str, read: Callable[[], Reading], labels: Labels = ()) -> None:
        """A number that goes up and down. With `labels`, `read` returns a mapping from label values to numbers."""
        self._add(Entry("gauge", name, documentation, labels, read))

    def histogram(self, name: str, documentation: str, histogram: Histograms, labels: Labels = ()) -> None:
        """A distribution, or one for each value of `labels`; its component adds the observations."""
        self._add(Entry("histogram", name, documentation, labels, lambda: histogram))

    def prepare_with(self, find: Callable[[], Awaitable[None]]) -> None:
        """Have `find` awaited before each reading: for numbers of other processes, and for those that take long to count."""
        self._preparations.append(find)

    async def prepare(self) -> None:
        """Fetch the numbers of other processes; `render` then shows them."""
        for find in self._preparations:
            await find()

    def entries(self) -> list[Entry]:
        """All metrics, in order of registration."""
        return list(self._entries.values())

    def names(self) -> list[str]:
        """Every registered name, in order of registration."""
        return list(self._entries)

    def render(self) -> bytes:
        """The Prometheus text format of all metrics, read now."""
        return finish(self.render_steps())

    def render_steps(self) -> Steps[bytes]:
        """`render` in steps. prometheus_client would write tens of thousands of lines in one turn of the loop."""
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        parts = [generate_latest(registry)]
        for entry in self._entries.values():
            yield SAMPLES_PER_STEP
            about = entry.documentation.replace("\\", r"\\").replace("\n", r"\n")
            lines = [f"# HELP {entry.shown} {about}", f"# TYPE {entry.shown} {entry.kind}"]
            for line in _samples(entry):
                lines.append(line)
                if len(lines) >= SAMPLES_PER_STEP:
                    parts.append(_encoded(lines))
                    lines = []
                    yield SAMPLES_PER_STEP
            parts.append(_encoded(lines))
        return b"".join(parts)

    def _add(self, entry: Entry) -> None:
        assert entry.name.startswith("headgate_") and entry.name not in self._entries, entry.name
        self._entries[entry.name] = entry


def _encoded(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode() if lines else b""


def _samples(entry: Entry) -> Iterator[str]:
    """The lines of one metric."""
    reading = entry.read()
    if isinstance(reading, Histogram):
        yield from _buckets(entry, (), reading)
        return
    rows = reading if isinstance(reading, Mapping) else {(): reading}
    for labels, value in rows.items():
        if isinstance(value, Histogram):
            yield from _buckets(entry, labels, value)
        else:
            yield f"{entry.shown}{_braces(entry.labels, labels)} {float(value)!r}"


def _buckets(entry: Entry, labels: Labels, histogram: Histogram) -> Iterator[str]:
    total = 0
    for bound, total in histogram.cumulative():
        yield f"{entry.name}_bucket{_braces((*entry.labels, 'le'), (*labels, bound))} {float(total)!r}"
    braces = _braces(entry.labels, labels)
    yield f"{entry.name}_count{braces} {float(total)!r}"
    yield f"{entry.name}_sum{braces} {histogram.sum!r}"


def _braces(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    """A label's value in Prometheus' format. Ids of groups and clients may hold anything, even half of a surrogate pair."""
    if text.isalnum():
        return text.encode(errors="replace").decode()
    text = text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return text.encode(errors="replace").decode()
