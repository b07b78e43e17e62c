"""``headgate status``: the cluster on one screen."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.cluster_tables import (
    DECISION_COLUMNS,
    SEGMENT_COLUMNS,
    SEGMENT_NUMERIC,
    decision_rows,
    headline,
    lane_lines,
    look,
    segment_rows,
    starvation,
    state,
)
from headgate.broker.cli.command import command
from headgate.broker.cli.commands import gate as gate_commands
from headgate.broker.cli.commands.quota import throttled_lines
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json, duration_ms
from headgate.broker.client import Admin, Broker, Gate, GateAdmin, GateState, TopicStatus
from headgate.broker.client.control import ClusterView, Control
from headgate.broker.runtime.config import SECOND_MS
from headgate.broker.runtime.errors import RetryError

BROKER_COLUMNS = ("broker", "kafka", "grpc", "http", "up", "cpu", "memory", "connections", "segments", "state")
BROKER_NUMERIC = ("broker", "cpu", "memory", "connections", "segments")
BROKER_OPTIONAL = ("http", "connections", "memory", "grpc")
TOPIC_COLUMNS = ("topic", "partitions", "records", "size", "records/s in", "bytes/s in")
LEADER_MS = 5 * SECOND_MS
"""Longest wait for the leader; the rest of the screen does not need the leader."""

app = typer.Typer(rich_markup_mode=None)


@command(app, "status")
def status(
    cluster: Cluster = DEFAULT_CLUSTER,
    window: Annotated[str, typer.Option(metavar="DURATION", help="Time to measure traffic; 0: do not measure.")] = "1s",
    json: Json = False,
) -> Coroutine[Any, Any, None]:
    """Show the cluster: its brokers, segments and topics, their traffic, and the leader's latest decisions."""
    return _show_status(cluster, duration_ms("--window", window, high_ms=10_000), json)


async def _show_status(cluster: str, window_ms: int, json: bool) -> None:
    """Show brokers and topics; with a window, also the traffic in it."""
    async with Admin(cluster, timeout_ms=window_ms + 15 * SECOND_MS) as admin:
        status = await admin.status(rate_window_ms=window_ms)
    gates: list[Gate] = []
    async with Control(cluster, timeout_ms=LEADER_MS) as control, GateAdmin(cluster, timeout_ms=LEADER_MS) as gate_admin:
        try:
            found = await look(control)
            gates = [gate for gate in await gate_admin.list() if gate.state is GateState.OPEN]
        except RetryError as error:
            # During a change of the leader, the rest is still worth showing.
            found, trouble = None, error.message
        else:
            trouble = ""
    if json:
        value = asdict(status)
        for topic in value["topics"]:
            topic["id"] = str(topic["id"])
        value["control"] = None if found is None else asdict(found)
        value["open_gates"] = [{"topic": gate.topic, "id": gate.id, "expires_in_ms": gate.expires_in_ms} for gate in gates]
        output.print_json(value)
        return
    output.print_line(f"cluster {status.cluster_id}: {output.plural(len(status.brokers), 'broker')}, "
                      f"{output.plural(len(status.topics), 'topic')}")  # fmt: skip
    brokers = broker_rows(status.brokers, None if found is None else found.view)
    output.print_table(BROKER_COLUMNS, brokers, numeric=BROKER_NUMERIC, optional=BROKER_OPTIONAL)
    for broker in status.brokers:
        for notice in filter(None, (broker.clock_doubt, broker.history_limit)):
            output.print_line(f"broker {broker.id}: {notice}")
    if trouble:
        output.print_line(f"no leader answers: {trouble}")
    if found is not None:
        output.print_line(headline(found))
        for line in lane_lines(found.view):
            output.print_line(line)
        if starved := starvation(found.view):
            output.print_line(starved)
        for line in throttled_lines(found.view.quotas):
            output.print_line(line)
        for reason in found.desired.reasons:
            output.print_line(f"  {reason}")
        if found.view.segments:
            output.print_table(
                SEGMENT_COLUMNS, segment_rows(found.view.segments), numeric=SEGMENT_NUMERIC, optional=("epoch", "requests/s")
            )
        if found.view.decisions:
            output.print_table(DECISION_COLUMNS, decision_rows(found.view.decisions))
    if gates:
        gate_rows = gate_commands.rows_of(gates)
        output.print_table(
            gate_commands.COLUMNS, gate_rows, numeric=gate_commands.NUMERIC, title="open gates", optional=gate_commands.OPTIONAL
        )
    if status.topics:
        output.print_table(TOPIC_COLUMNS, _topic_rows(status.topics), numeric=TOPIC_COLUMNS[1:], optional=("records/s in",))


def _topic_rows(topics: Sequence[TopicStatus]) -> list[tuple[object, ...]]:
    return [
        (
            topic.name,
            topic.partitions,
            f"{topic.records:,}",
            output.size(topic.size_bytes),
            "" if topic.records_in_per_second is None else f"{topic.records_in_per_second:,.0f}",
            "" if topic.bytes_in_per_second is None else output.size(topic.bytes_in_per_second),
        )
        for topic in topics
    ]


def broker_rows(brokers: Sequence[Broker], view: ClusterView | None) -> list[tuple[object, ...]]:
    """A row per broker. Without the leader's view, loads and segments are unknown."""
    members = {} if view is None else {member.incarnation_id: member for member in view.members}
    rows: list[tuple[object, ...]] = []
    for broker in brokers:
        member = members.get(broker.incarnation_id)
        where = (broker.id, f"{broker.host}:{broker.kafka_port}", broker.grpc_port, broker.http_port)
        up = output.duration(broker.uptime_ms) if broker.uptime_ms else ""
        memory = output.size(broker.memory_bytes) if broker.memory_bytes else ""
        if member is None or view is None:
            rows.append((*where, up, "", memory, "", "", broker.trouble or "serves"))
            continue
        led = sum(segment.broker_id == broker.id for segment in view.segments)
        does = broker.trouble or state(member, led, view.leader_broker_id)
        rows.append((*where, up, f"{member.cpu_share:.0%}", memory, member.connections, led, does))
    return rows
