"""How long the leader's works took and how often its tasks began again, counted since this broker's start over all of its terms."""

from __future__ import annotations

from collections import Counter

from headgate.broker.cluster.segments import OrderKind
from headgate.broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Labels

HANDOVERS = (OrderKind.SPLIT, OrderKind.MERGE, OrderKind.MOVE, OrderKind.DRAIN, OrderKind.FAILOVER)
FILL_BUCKETS_S = (*LATENCY_BUCKETS_S, 30.0, 100.0)


class Timings:
    """Distributions of seconds, and counts."""

    def __init__(self) -> None:
        self.handovers: dict[Labels, Histogram] = {(kind.value,): Histogram(LATENCY_BUCKETS_S) for kind in HANDOVERS}
        """Time that the writers of sealed segments waited for the successors."""
        self.fills = Histogram(FILL_BUCKETS_S)
        """Time from a request to fill a gate until its files are committed: they are checked meanwhile."""
        self.filled_records = 0
        self.released_gates: dict[Labels, float] = {("asked",): 0, ("expired",): 0}
        self.retries: Counter[str] = Counter()
        """Times that a task of the leader began again because the store did not answer, by task (`term_tasks.py`)."""

    def handed_over(self, kind: OrderKind, seconds: float) -> None:
        """Note a hand-over that went well."""
        histogram = self.handovers.get((kind.value,))
        if histogram is not None:
            histogram.observe(seconds)

    def filled(self, seconds: float, records: int) -> None:
        """Note a gate that was filled."""
        self.fills.observe(seconds)
        self.filled_records += records

    def released(self, why: str) -> None:
        """Note a gate that was released."""
        self.released_gates[why,] = self.released_gates.get((why,), 0) + 1
