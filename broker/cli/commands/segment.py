"""``headgate segment``: manual forms of the leader's own actions, and the list of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.cluster_tables import SEGMENT_COLUMNS, SEGMENT_NUMERIC, segment_rows
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, INT32_MAX, INT64_MAX, Cluster, Json, SegmentId
from headgate.broker.cli.orders import ordering
from headgate.broker.client import Admin
from headgate.broker.client.control import Control, Segment

app = typer.Typer(rich_markup_mode=None)


@command(app, "list")
async def list_all(
    cluster: Cluster = DEFAULT_CLUSTER,
    topic: Annotated[str | None, typer.Option("--topic", help="Only entries of this topic.")] = None,
    json: Json = False,
) -> None:
    """List open segments: their partitions, their leads, their traffic."""
    async with Control(cluster) as control:
        view = await control.describe()
    segments = [segment for segment in view.segments if topic in (None, segment.topic)]
    if topic is not None and not segments:
        async with Admin(cluster) as admin:
            await admin.describe_topic(topic)  # raises if the topic does not exist
    if json:
        output.print_json([asdict(segment) for segment in segments])
        return
    output.print_table(SEGMENT_COLUMNS, segment_rows(segments), numeric=SEGMENT_NUMERIC)


@command(app, "split")
async def split(
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
    async with ordering(cluster, "segment split") as control:
        _show(await control.split(segment, at, broker), f"segment {segment} split", json)


@command(app, "merge")
async def merge(
    segment: SegmentId,
    next_segment: Annotated[
        int, typer.Argument(metavar="NEXT", min=0, max=INT64_MAX, help="The segment with the partitions behind those of the first.")
    ],
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> None:
    """Merge two neighbouring segments at the broker of the first one. Their writers wait a moment."""
    async with ordering(cluster, "segment merge") as control:
        _show(await control.merge(segment, next_segment), f"segments {segment} and {next_segment} merged", json)


@command(app, "move")
async def move(
    segment: SegmentId,
    cluster: Cluster = DEFAULT_CLUSTER,
    broker: Annotated[
        int | None, typer.Option("--broker", min=0, max=INT32_MAX, help="Destination. Default: the least loaded other broker.")
    ] = None,
    json: Json = False,
) -> None:
    """Move a segment to another broker. Its writers wait a moment."""
    async with ordering(cluster, "segment move") as control:
        _show(await control.move(segment, broker), f"segment {segment} moved", json)


def _show(segments: Sequence[Segment], what: str, json: bool) -> None:
    if json:
        output.print_json([asdict(segment) for segment in segments])
        return
    made = ", ".join(
        f"segment {segment.id} of {segment.topic} {segment.span} at broker {segment.broker_id}" for segment in segments
    )
    output.print_line(f"{what}: {made}")
