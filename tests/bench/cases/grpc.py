"""gRPC: whole record batches on one stream, with a bare client in a separate process. A GB is 10⁹ bytes of batches."""

from __future__ import annotations

from collections.abc import Iterable

from tests.bench.clients import costed
from tests.bench.harness import LOCAL_NEVER, Bench, Case
from tests.bench.report import Row, format_rate

TOTAL_BYTES = 192 << 20
"""Less than the broker keeps in memory, so that reads come from memory."""
BATCHES = (("64 KB", 64 << 10), ("1 MB", 1 << 20))


def _run(bench: Bench, name: str, batch_bytes: int) -> Iterable[Row]:
    count = TOTAL_BYTES // batch_bytes
    with bench.broker(LOCAL_NEVER) as broker:
        broker.create_topic("bench")
        written, publish_cpu = costed(broker.pid, "grpc_client", "publish", broker.grpc_port, "bench", batch_bytes, count)
        read, subscribe_cpu = costed(broker.pid, "grpc_client", "subscribe", broker.grpc_port, "bench", batch_bytes, TOTAL_BYTES)
    for verb, answer, cpu in (("publish", written, publish_cpu), ("subscribe", read, subscribe_cpu)):
        yield Row(
            group="grpc",
            case=f"{verb} {name} batches",
            measured=f"{format_rate(answer['bytes'] / answer['seconds'])}  {cpu / answer['bytes'] * 1e9:.2f} s/GB",
            note=f"client {answer['cpu_s'] / answer['bytes'] * 1e9:.2f} s/GB",
            details={**answer, "broker_cpu_s": cpu},
        )


def _case(name: str, batch_bytes: int) -> Case:
    return Case("grpc", f"{name} batches", lambda bench: _run(bench, name, batch_bytes))


CASES = [_case(*each) for each in BATCHES]
