"""librdkafka as a separate client process, so that its work and its interpreter use no other process's time. Prints one JSON
object::

python -m tests.bench.rdkafka produce PORT TOPIC VALUE_BYTES BATCH_BYTES CODEC SECONDS
python -m tests.bench.rdkafka consume PORT TOPIC RECORDS
python -m tests.bench.rdkafka create_topic PORT TOPIC PARTITIONS
python -m tests.bench.rdkafka fill PORT TOPIC VALUE_BYTES BATCH_BYTES RECORDS PARTITIONS [VALUES [RATE_PER_S]]
python -m tests.bench.rdkafka paced PORT TOPIC RATE_PER_S LINGER_MS VALUE_BYTES SECONDS
python -m tests.bench.rdkafka live PORT TOPIC RATE_PER_S LINGER_MS VALUE_BYTES
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

POOL = 4096
"""Number of different values, which are sent again and again."""
WARM_UP_S = 0.5
TIMEOUT_MS = 20_000
"""A record without an ack after this time has failed."""


def values(size_bytes: int, count: int = POOL) -> list[bytes]:
    """Values of exactly that size that look like JSON events: they compress moderately."""
    source = random.Random(7)
    words = ["page", "view", "click", "cart", "order", "paid", "shipped", "north", "south", "mobile", "desktop", "de", "fr", "us"]
    out = []
    for number in range(count):
        text = f'{{"id":{source.getrandbits(48)},"seq":{number},"user":"u{source.randrange(100_000)}"'
        while len(text) < size_bytes:
            text += f',"{source.choice(words)}":"{source.choice(words)}-{source.getrandbits(32):x}"'
        out.append(text[: size_bytes - 1].encode() + b"}")
    return out


class Failures:
    """Delivery reports: counts failures and keeps the first reason."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.count += 1
            self.first = self.first or str(error)

    def check(self, left: int) -> None:
        if self.count or left:
            raise SystemExit(f"records were not acked. failed=`{self.count}` left=`{left}` first=`{self.first}`")


def produce(port: str, topic: str, value_bytes: str, batch_bytes: str, codec: str, seconds: str) -> dict[str, Any]:
    """Produces as fast as it can for this time; the measurement ends with the last ack."""
    failures = Failures()
    producer = _fast_producer(port, batch_bytes, codec)
    pool = values(int(value_bytes))
    for value in pool[:100]:
        producer.produce(topic, value, partition=0, on_delivery=failures)
    failures.check(producer.flush(30))
    records = 0
    start = time.perf_counter()
    deadline = start + float(seconds)
    while time.perf_counter() < deadline:
        for value in pool:
            _send(producer, topic, value, 0, failures)
        records += len(pool)
        producer.poll(0)
    failures.check(producer.flush(60))
    return {"records": records, "seconds": time.perf_counter() - start, "cpu_s": time.process_time()}


def _fast_producer(port: str, batch_bytes: str, codec: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "acks": "all",
            "compression.type": codec,
            "batch.size": int(batch_bytes),
            "message.max.bytes": 1_048_588,
            "batch.num.messages": 1_000_000,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 512 << 10,
            "delivery.report.only.error": True,
            "message.timeout.ms": TIMEOUT_MS,
        }
    )


def _send(producer: Producer, topic: str, value: bytes, partition: int, failures: Failures) -> None:
    """Hand over one record, as soon as there is room for it."""
    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=failures)
            return
        except BufferError:
            producer.poll(0.01)


def fill(
    port: str, topic: str, value_bytes: str, batch_bytes: str, records: str, partitions: str, count: str = "", rate_per_s: str = ""
) -> dict[str, Any]:
    """Writes this many records, to all partitions in turn, without compression.

    `count`: of different values. A codec finds values again that come back within its window. `rate_per_s`: "": as fast as it can.
    """
    failures = Failures()
    producer = _fast_producer(port, batch_bytes, "none")
    pool = values(int(value_bytes), int(count or POOL))
    every = int(rate_per_s) // 100 if rate_per_s else 0
    start = time.perf_counter()
    for number in range(int(records)):
        if every and number % every == 0:
            time.sleep(max(start + number / int(rate_per_s) - time.perf_counter(), 0))
        _send(producer, topic, pool[number % len(pool)], number % int(partitions), failures)
    failures.check(producer.flush(60))
    return {"records": int(records), "seconds": time.perf_counter() - start}


def consume(port: str, topic: str, records: str, partitions: str = "1") -> dict[str, Any]:
    """Reads this many records from the beginning; the time starts with the first one."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            # A client that is slower than the broker fills its queue, and by default polls again a second later.
            "fetch.queue.backoff.ms": 1,
            "fetch.message.max.bytes": 1 << 20,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(int(partitions))])
    wanted = int(records)
    seen = size = 0
    start = last = 0.0
    waited = time.perf_counter()
    while seen < wanted:
        messages = consumer.consume(min(wanted - seen, 10_000) if start else 1, 1.0)
        now = time.perf_counter()
        if not messages and now - waited > 30:
            raise SystemExit(f"records did not come. wanted=`{wanted}` seen=`{seen}`")
        for message in messages:
            error = message.error()
            if error is not None:
                raise SystemExit(f"consume failed. error=`{error}`")
        if messages:
            waited = last = now
            if start:
                seen += len(messages)
                size += sum(len(message) for message in messages)
            else:
                start = now
                wanted -= len(messages)
    consumer.close()
    return {"records": seen, "bytes": size, "seconds": last - start, "cpu_s": time.process_time()}


def create_topic(port: str, topic: str, partitions: str) -> dict[str, Any]:
    """Creates a topic, and waits until all its partitions have a leader."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    admin.create_topics([NewTopic(topic, int(partitions), 1)])[topic].result(30)
    while True:
        seen = admin.list_topics(topic, 30).topics[topic].partitions
        if len(seen) == int(partitions) and all(one.leader >= 0 for one in seen.values()):
            return {}
        time.sleep(0.05)


def consume_again(port: str, topic: str, records: str, partitions: str = "1") -> dict[str, Any]:
    """Runs `consume` again and again, until the process is killed."""
    while True:
        consume(port, topic, records, partitions)


def paced(port: str, topic: str, rate_per_s: str, linger_ms: str, value_bytes: str, seconds: str) -> dict[str, Any]:
    """Sends at a steady rate; the latencies are librdkafka's own, from produce() to the ack."""
    begin = time.perf_counter() + WARM_UP_S
    end = begin + float(seconds)
    return _pace(port, topic, rate_per_s, linger_ms, value_bytes, lambda: _phase(time.perf_counter(), begin, end))


def live(port: str, topic: str, rate_per_s: str, linger_ms: str, value_bytes: str) -> dict[str, Any]:
    """As `paced`, but a line of input starts the measurement, and the end of input ends it."""
    phase = 0

    def follow() -> None:
        nonlocal phase
        for _ in sys.stdin:
            phase = 1
        phase = 2

    threading.Thread(target=follow, daemon=True).start()
    return _pace(port, topic, rate_per_s, linger_ms, value_bytes, lambda: phase)


def _phase(now: float, begin: float, end: float) -> int:
    return 0 if now < begin else 1 if now < end else 2


def _pace(port: str, topic: str, rate_per_s: str, linger_ms: str, value_bytes: str, phase: Callable[[], int]) -> dict[str, Any]:
    """Send until `phase` is 2; only records of phase 1 count."""
    latencies: list[float] = []
    failures = Failures()
    producer = Producer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "acks": "all", "linger.ms": float(linger_ms), "message.timeout.ms": TIMEOUT_MS}
    )

    def delivered(error: KafkaError | None, message: Message) -> None:
        failures(error, message)
        latency: float | None = message.latency()
        if error is None and latency is not None:
            latencies.append(latency)

    pool = values(int(value_bytes))
    rate = float(rate_per_s)
    start = time.perf_counter()
    sent = warm = 0
    late = 0.0
    while (current := phase()) < 2:
        now = time.perf_counter() - start
        due = int(now * rate)
        late = max(late, (due - sent) / rate if sent else 0.0)
        if not warm and current:
            producer.flush(30)
            latencies.clear()
            warm = 1
            late = 0.0
            sent = int((time.perf_counter() - start) * rate)
            continue
        for number in range(sent, due):
            producer.produce(topic, pool[number % POOL], partition=0, on_delivery=delivered)
        sent = max(sent, due)
        # Polls reports as they come: librdkafka's latency ends when the report is polled, not when the ack arrives. A shorter wait
        # than a millisecond would be a busy loop, which takes the core from the measured broker.
        producer.poll(0.001)
    failures.check(producer.flush(30))
    if not latencies:
        raise SystemExit("no record was acked in the measured time")
    latencies.sort()
    picked = {f"p{name}_ms": latencies[min(int(len(latencies) * share), len(latencies) - 1)] * 1e3 for name, share in PERCENTILES}
    return {"records": len(latencies), "late_max_ms": late * 1e3, **picked}


PERCENTILES = (("50", 0.5), ("99", 0.99), ("999", 0.999))

RUNS: dict[str, Callable[..., dict[str, Any]]] = {
    "produce": produce,
    "consume": consume,
    "consume_again": consume_again,
    "create_topic": create_topic,
    "fill": fill,
    "live": live,
    "paced": paced,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(RUNS[sys.argv[1]](*sys.argv[2:])) + "\n")
