"""librdkafka at full speed through confluent-kafka for Python: a user's rate, and its cost for the broker.

The client is the bottleneck: its process spends several times the broker's CPU. The broker's CPU-seconds per GB show the rate
that the broker could serve. A GB is 10⁹ bytes of values, before compression.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.bench.clients import costed
from tests.bench.harness import LOCAL_NEVER, Bench, Case
from tests.bench.report import Row, format_rate

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VALUES = (100, 1000)
BATCHES = ((64 << 10, "64 KB"), (1_000_000, "1 MB"))


def _run(bench: Bench, name: str, value_bytes: int, batch_bytes: int, codec: str) -> Iterable[Row]:
    seconds = 0.4 if bench.quick else 2.0
    topic = "bench"
    with bench.broker(LOCAL_NEVER) as broker:
        broker.create_topic(topic)
        port = broker.kafka_port
        arguments = port, topic, value_bytes, batch_bytes, codec, seconds
        sent, produce_cpu_s = costed(broker.pid, "rdkafka", "produce", *arguments)
        read, consume_cpu_s = costed(broker.pid, "rdkafka", "consume", port, topic, sent["records"])
    produce_cpu, consume_cpu = (
        cpu_s / (answer["records"] * value_bytes / 1e9) for answer, cpu_s in ((sent, produce_cpu_s), (read, consume_cpu_s))
    )
    parts = []
    for verb, answer, cpu in (("produce", sent, produce_cpu), ("consume", read, consume_cpu)):
        rate = answer["records"] / answer["seconds"]
        parts.append(f"{verb} {rate / 1e6:.2f} M/s {format_rate(rate * value_bytes)} {cpu:.2f} s/GB")
    yield Row(
        group="librdkafka",
        case=name,
        measured=parts[0],
        ceiling=parts[1],
        note=f"client {sent['cpu_s'] / (sent['records'] * value_bytes / 1e9):.1f} s/GB",
        details={"produce": sent, "consume": read, "broker_produce_s_per_gb": produce_cpu, "broker_consume_s_per_gb": consume_cpu},
    )


def _case(value_bytes: int, batch_bytes: int, batch_name: str, codec: str) -> Case:
    name = f"{value_bytes} B values, {batch_name} batches, {codec}"
    return Case("librdkafka", name, lambda bench: _run(bench, name, value_bytes, batch_bytes, codec))


CASES = [_case(value, batch, name, codec) for value in VALUES for batch, name in BATCHES for codec in CODECS]
