"""Transactions: how many end in a second, what the end of one takes, and what they cost a fast producer.

The producers are librdkafka's. A commit is answered when its outcome is durable. The markers follow, and the next transaction of
the same producer waits for them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from tests.bench.brokers import broker
from tests.bench.cases.cold import DIRECTORY, S3, store
from tests.bench.clients import client
from tests.bench.harness import LOCAL_NEVER, Bench, Case
from tests.bench.report import Row
from tests.bench.transactional import PARTITIONS

TOPIC = "bench"
COMMIT_MS = 100
VALUE_BYTES = 1000
GOAL = 0.9


def _small(bench: Bench, name: str, kind: str, producers: int) -> Iterable[Row]:
    with store(bench, kind) as (url, needed, _), broker(bench.directory, url, settings=needed) as one:
        one.create_topic(TOPIC, PARTITIONS)
        answer = client("transactional", "small", one.kafka_port, TOPIC, producers, bench.pick(2, 8))
    yield Row(
        group="transactions",
        case=name,
        measured=f"{answer['transactions_per_s']:,.0f}/s  EndTxn p50 {answer['end_p50_ms']:.1f}  p99 {answer['end_p99_ms']:.1f} ms",
        details=answer,
    )


def _produce(bench: Bench, name: str) -> Iterable[Row]:
    """Alternately without and with transactions, on one broker."""
    rates: dict[int, list[float]] = {0: [], COMMIT_MS: []}
    with bench.broker(LOCAL_NEVER) as one:
        one.create_topic(TOPIC, config={"retention.bytes": str(256 << 20)})
        for _ in range(bench.pick(2, 5)):
            for commit_ms, rate in rates.items():
                answer = client("transactional", "produce", one.kafka_port, TOPIC, VALUE_BYTES, commit_ms, bench.pick(2, 5))
                rate.append(answer["records_per_s"])
    without, within = (statistics.median(rate) for rate in rates.values())
    ratios = [mine / plain for plain, mine in zip(*rates.values(), strict=True)]
    yield Row(
        group="transactions",
        case=name,
        measured=f"{within / 1e3:,.0f} k records/s",
        ceiling=f"{without / 1e3:,.0f} k records/s",
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        goal=GOAL,
    )


def _case_small(kind: str, producers: int) -> Case:
    name = f"{producers} producers, two partitions each, {kind}"
    return Case("transactions", name, lambda bench: _small(bench, name, kind, producers))


_FAST = f"1 KB values, a commit every {COMMIT_MS} ms, of the same without transactions"

CASES = [
    *(_case_small(kind, producers) for kind in (DIRECTORY, S3) for producers in (1, 32)),
    Case("transactions", _FAST, lambda bench: _produce(bench, _FAST), goal=GOAL),
]
