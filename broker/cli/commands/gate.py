"""`headgate gate`: its commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import (
    DEFAULT_CLUSTER,
    INT64_MAX,
    LONGEST_TTL_MS,
    Cluster,
    GateId,
    Json,
    NewTtl,
    TopicName,
    duration_ms,
)

app = typer.Typer(help="Gates, for history by reference: open, fill, renew, release, list, describe.", rich_markup_mode=None)


@app.command("open")
def gate_open(
    topic: TopicName,
    gate: Annotated[str, typer.Argument(metavar="GATE", help="An id of your choice. Opening it again returns the same gate.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="N,N,...", help="Number of offsets for each partition, in the order of partitions."),
    ] = None,
    each: Annotated[
        int | None, typer.Option("--each", min=0, max=INT64_MAX, help="The same number of offsets for every partition.")
    ] = None,
    place: Annotated[
        str, typer.Option("--place", help="now: behind the existing records; front: in front of them (history.room).")
    ] = "now",
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="DURATION", help="Time to live: the gate is released after it, unless renewed.")
    ] = "1h",
    json: Json = False,
) -> None:
    """Keep offsets free for history. Live records continue behind them; readers from the beginning wait there."""
    from headgate.broker.cli import gate as commands

    if (rows is None) == (each is None):
        raise typer.BadParameter("give either --rows or --each")
    if place not in ("now", "front"):
        raise typer.BadParameter("must be now or front", param_hint="--place")
    try:
        counts = [] if rows is None else [int(count) for count in rows.split(",")]
    except ValueError as error:
        raise typer.BadParameter("numbers with commas between them", param_hint="--rows") from error
    if max(counts, default=0) > INT64_MAX:
        raise typer.BadParameter(f"numbers up to {INT64_MAX}", param_hint="--rows")
    ttl_ms = duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    output.run(commands.open_one(cluster, topic, gate, counts, each, place, ttl_ms, json))


@app.command("fill")
def gate_fill(
    topic: TopicName,
    gate: GateId,
    refs: Annotated[str, typer.Argument(metavar="REFS", help="A JSON list of file references, or -.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> None:
    """Commit uploaded files, all at once."""
    from headgate.broker.cli import gate as commands

    output.check_reachable(cluster)
    output.run(commands.fill(cluster, topic, gate, refs, json))


@app.command("renew")
def gate_renew(
    topic: TopicName,
    gate: GateId,
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: NewTtl = None,
    json: Json = False,
) -> None:
    """Start the time to live of an open gate again."""
    from headgate.broker.cli import gate as commands

    ttl_ms = None if ttl is None else duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    output.run(commands.renew(cluster, topic, gate, ttl_ms, json))


@app.command("release")
def gate_release(topic: TopicName, gate: GateId, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Give up an open gate: readers skip it."""
    from headgate.broker.cli import gate as commands

    output.check_reachable(cluster)
    output.run(commands.release(cluster, topic, gate, json))


@app.command("list")
def gate_list(
    cluster: Cluster = DEFAULT_CLUSTER,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only gates of this topic.", show_default=False)] = None,
    json: Json = False,
    topic_option: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The same, as an option.")] = None,
) -> None:
    """List gates, including those that are no longer open."""
    from headgate.broker.cli import gate as commands

    output.check_reachable(cluster)
    output.run(commands.list_all(cluster, topic or topic_option, json))


@app.command("describe")
def gate_describe(topic: TopicName, gate: GateId, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show a gate's windows and files."""
    from headgate.broker.cli import gate as commands

    output.check_reachable(cluster)
    output.run(commands.describe(cluster, topic, gate, json))
