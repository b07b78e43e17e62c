"""`headgate segment`: its commands and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, INT32_MAX, INT64_MAX, Cluster, Json, SegmentId

app = typer.Typer(help="List segments; split, merge and move them by hand.", rich_markup_mode=None)


@app.command("list")
def segment_list(
    cluster: Cluster = DEFAULT_CLUSTER,
    topic: Annotated[str | None, typer.Option("--topic", help="Only entries of this topic.")] = None,
    json: Json = False,
) -> None:
    """List open segments: their partitions, their leads, their traffic."""
    from headgate.broker.cli import segment

    output.check_reachable(cluster)
    output.run(segment.list_all(cluster, topic, json))


@app.command("split")
def segment_split(
    segment: SegmentId,
    cluster: Cluster = DEFAULT_CLUSTER,
    at: Annotated[
        int | None, typer.Option("--at", min=1, max=INT32_MAX, help="First partition of the second half. Default: by load.")
    ] = None,
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, max=INT32_MAX, help="Broker for the second half. Default: the least loaded.")
    ] = None,
    json: Json = False,
) -> None:
    """Cut a segment in two. Its writers wait a moment."""
    from headgate.broker.cli import segment as commands

    output.check_reachable(cluster)
    output.run(commands.split(cluster, segment, at, broker, json))


@app.command("merge")
def segment_merge(
    segment: SegmentId,
    next_segment: Annotated[
        int, typer.Argument(metavar="NEXT", min=0, max=INT64_MAX, help="The segment with the partitions behind those of the first.")
    ],
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> None:
    """Merge two neighbouring segments at the broker of the first one. Their writers wait a moment."""
    from headgate.broker.cli import segment as commands

    output.check_reachable(cluster)
    output.run(commands.merge(cluster, segment, next_segment, json))


@app.command("move")
def segment_move(
    segment: SegmentId,
    cluster: Cluster = DEFAULT_CLUSTER,
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, max=INT32_MAX, help="Destination. Default: the least loaded other broker.")
    ] = None,
    json: Json = False,
) -> None:
    """Move a segment to another broker. Its writers wait a moment."""
    from headgate.broker.cli import segment as commands

    output.check_reachable(cluster)
    output.run(commands.move(cluster, segment, broker, json))
