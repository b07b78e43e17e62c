"""Transactional producers of librdkafka, in a process of their own. Prints one JSON object::

python -m tests.bench.transactional small PORT TOPIC PRODUCERS SECONDS
python -m tests.bench.transactional produce PORT TOPIC VALUE_BYTES COMMIT_MS SECONDS
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Producer

from tests.bench.rdkafka import values

PARTITIONS = 4
TIMEOUT_S = 30.0


def _producer(port: str, transactional_id: str | None) -> Producer:
    config: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{port}",
        "enable.idempotence": True,
        "linger.ms": 5,
        "batch.size": 1 << 20,
        "batch.num.messages": 1_000_000,
        "queue.buffering.max.messages": 2_000_000,
        "delivery.report.only.error": True,
    }
    if transactional_id is None:
        return Producer(config)
    producer = Producer({**config, "transactional.id": transactional_id})
    producer.init_transactions(TIMEOUT_S)
    return producer


def small(port: str, topic: str, producers: str, seconds: str) -> dict[str, Any]:
    """Each producer commits one transaction after another: a record for each of two partitions."""
    made = [_producer(port, f"bench-{number}") for number in range(int(producers))]
    took: list[float] = []
    stop_at = time.perf_counter() + float(seconds)

    def run(producer: Producer, number: int) -> None:
        while time.perf_counter() < stop_at:
            producer.begin_transaction()
            for partition in (number % PARTITIONS, (number + 1) % PARTITIONS):
                producer.produce(topic, b"value", partition=partition)
            producer.flush(TIMEOUT_S)
            began = time.perf_counter()
            producer.commit_transaction(TIMEOUT_S)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    threads = [threading.Thread(target=run, args=(one, number)) for number, one in enumerate(made)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began
    took.sort()
    return {
        "transactions_per_s": len(took) / took_s,
        "end_p50_ms": took[len(took) // 2] * 1e3,
        "end_p99_ms": took[int(len(took) * 0.99)] * 1e3,
    }


def produce(port: str, topic: str, value_bytes: str, commit_ms: str, seconds: str) -> dict[str, Any]:
    """Produces as fast as it can; commits every COMMIT_MS, or has no transactions if that is 0."""
    transactions = int(commit_ms) > 0
    producer = _producer(port, "bench" if transactions else None)
    pool = values(int(value_bytes))
    records = 0
    began = time.perf_counter()
    stop_at = began + float(seconds)
    while (turn_at := time.perf_counter()) < stop_at:
        if transactions:
            producer.begin_transaction()
        commit_at = min(turn_at + int(commit_ms) / 1e3, stop_at) if transactions else stop_at
        while time.perf_counter() < commit_at:
            for value in pool[:200]:
                _send(producer, topic, value)
            records += 200
            producer.poll(0)
        if transactions:
            producer.commit_transaction(TIMEOUT_S)
    if producer.flush(TIMEOUT_S):
        raise SystemExit("records were not acked")
    return {"records_per_s": records / (time.perf_counter() - began)}


def _send(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=0)
            return
        except BufferError:
            producer.poll(0.01)


def main() -> None:
    _, what, *arguments = sys.argv
    answer = {"small": small, "produce": produce}[what](*arguments)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
