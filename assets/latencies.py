"""How long Kafka producers waited for acks while a flood ran, from the brokers' own histograms: what /metrics said at the first
look, and at the last."""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from headgate.broker.client.control import Member

TIMEOUT_S = 2.0
TEXT_BYTES_MAX = 16 << 20
"""Most bytes of /metrics that are read. A broker's text has less than 1 MiB."""
_BUCKET = re.compile(rb'^headgate_kafka_produce_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)

Buckets: TypeAlias = Mapping[float, float]
"""Number of observations up to each upper bound, in seconds."""


def scrape(member: Member) -> Buckets | None:
    """The histogram of a broker; None when its HTTP port cannot be reached from here."""
    host = f"[{member.host}]" if ":" in member.host else member.host
    try:
        with urllib.request.urlopen(f"http://{host}:{member.http_port}/metrics", timeout=TIMEOUT_S) as answer:
            text = answer.read(TEXT_BYTES_MAX)
        return {float(bound): float(count) for bound, count in _BUCKET.findall(text)}
    except (OSError, ValueError):
        return None


class Latencies:
    """The growth of the histograms of all brokers between looks. A broker whose port cannot be reached is asked once."""

    def __init__(self, ask: Callable[[Member], Buckets | None] = scrape) -> None:
        self._ask = ask
        self._first: dict[str, Buckets] = {}
        self._last: dict[str, Buckets] = {}
        self._silent: set[str] = set()

    def look(self, members: Sequence[Member]) -> None:
        """Ask the brokers that serve. A broker that leaves later counts with its last answer."""
        for member in members:
            key = member.incarnation_id
            if not member.http_port or key in self._silent:
                continue
            found = self._ask(member)
            if found is None:
                self._silent.add(key)
            else:
                self._first.setdefault(key, found)
                self._last[key] = found

    def p99_ms(self) -> float | None:
        """The 99th percentile in ms, interpolated within its bucket; None when no producer wrote."""
        grown: Counter[float] = Counter()
        for key, last in self._last.items():
            grown.update({bound: count - self._first[key].get(bound, 0.0) for bound, count in last.items()})
        seconds = quantile(grown, 0.99)
        return None if seconds is None else seconds * 1000


def quantile(buckets: Buckets, share: float) -> float | None:
    """A quantile of a cumulative histogram, as Prometheus computes it; None without observations. In the last bucket, which has no
    upper bound, it is the lower bound."""
    rows = [(0.0, 0.0), *sorted(buckets.items())]
    wanted = share * rows[-1][1]
    for (low, before), (high, count) in pairwise(rows):
        if count > before and count >= wanted:
            return low if high == float("inf") else low + (high - low) * (wanted - before) / (count - before)
    return None
