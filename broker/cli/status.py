"""``headgate status``: the cluster on one screen."""

from __future__ import annotations

from dataclasses import asdict

from broker.cli import output
from broker.client import Admin
from broker.runtime.config import SECOND_MS


async def show_status(cluster: str, window_ms: int, json: bool) -> None:
    """Brokers and topics; with a window, the traffic in it."""
    async with Admin(cluster, timeout_ms=window_ms + 15 * SECOND_MS) as admin:
        status = await admin.status(rate_window_ms=window_ms)
    if json:
        value = asdict(status)
        for topic in value["topics"]:
            topic["id"] = str(topic["id"])
        output.print_json(value)
        return
    output.print_line(f"cluster {status.cluster_id}: {output.plural(len(status.brokers), 'broker')}, "
                      f"{output.plural(len(status.topics), 'topic')}")  # fmt: skip
    output.print_table(
        ("broker", "kafka", "grpc", "http", "up", "memory", "state"),
        [
            (
                broker.id,
                f"{broker.host}:{broker.kafka_port}",
                broker.grpc_port,
                broker.http_port,
                output.duration(broker.uptime_ms),
                output.size(broker.memory_bytes),
                broker.trouble or "serves",
            )
            for broker in status.brokers
        ],
        numeric=("broker", "memory"),
    )
    if status.topics:
        output.print_table(
            ("topic", "partitions", "records", "size", "records/s in", "bytes/s in"),
            [
                (
                    topic.name,
                    topic.partitions,
                    f"{topic.records:,}",
                    output.size(topic.size_bytes),
                    "" if topic.records_in_per_second is None else f"{topic.records_in_per_second:,.0f}",
                    "" if topic.bytes_in_per_second is None else output.size(topic.bytes_in_per_second),
                )
                for topic in status.topics
            ],
            numeric=("partitions", "records", "size", "records/s in", "bytes/s in"),
        )
