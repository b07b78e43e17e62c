"""librdkafka at full speed through confluent-kafka for Python: what a user's client gets, and what it costs the broker.

The client is the bottleneck: its process spends several times the broker's CPU. The broker's CPU-seconds per GB are the figure that
says what the broker could serve. A GB is 10⁹ bytes of values, before compression.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from tests.bench.brokers import ROOT, Broker
from tests.bench.harness import LOCAL_NEVER, Bench, Case
from tests.bench.native import BenchError, cpu_seconds
from tests.bench.report import Row, format_rate

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VALUES = (100, 1000)
BATCHES = ((64 << 10, "64 KB"), (1_000_000, "1 MB"))


def client(*arguments: object) -> dict[str, Any]:
    """Runs the client process. Raises BenchError with its reason."""
    command = [sys.executable, "-m", "tests.bench.rdkafka", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError("the client did not end") from error
    if done.returncode:
        raise BenchError(f"the client failed. message=`{done.stderr.strip()[-300:]}`")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _measure(broker: Broker, value_bytes: int, arguments: tuple[object, ...]) -> tuple[dict[str, Any], float]:
    before = cpu_seconds(broker.pid)
    answer = client(*arguments)
    spent = cpu_seconds(broker.pid) - before
    return answer, spent / (answer["records"] * value_bytes / 1e9)


def _run(bench: Bench, name: str, value_bytes: int, batch_bytes: int, codec: str) -> Iterable[Row]:
    seconds = 0.4 if bench.quick else 2.0
    topic = "bench"
    with bench.broker(LOCAL_NEVER) as broker:
        broker.create_topic(topic)
        port = broker.kafka_port
        sent, produce_cpu = _measure(broker, value_bytes, ("produce", port, topic, value_bytes, batch_bytes, codec, seconds))
        read, consume_cpu = _measure(broker, value_bytes, ("consume", port, topic, sent["records"]))
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
