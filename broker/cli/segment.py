"""``headgate segment``: manual forms of the leader's own actions, and the list of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from headgate.broker.cli import output
from headgate.broker.cli.cluster_tables import SEGMENT_COLUMNS, SEGMENT_NUMERIC, segment_rows
from headgate.broker.cli.orders import ordering
from headgate.broker.client import Admin
from headgate.broker.client.control import Control, Segment


async def list_all(cluster: str, topic: str | None, json: bool) -> None:
    """Show open segments, by topic and partition."""
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


async def split(cluster: str, segment_id: int, at_partition: int | None, broker_id: int | None, json: bool) -> None:
    """Cut a segment in two."""
    async with ordering(cluster, "segment split") as control:
        _show(await control.split(segment_id, at_partition, broker_id), f"segment {segment_id} split", json)


async def merge(cluster: str, segment_id: int, next_segment_id: int, json: bool) -> None:
    """Merge two neighbouring segments."""
    async with ordering(cluster, "segment merge") as control:
        _show(await control.merge(segment_id, next_segment_id), f"segments {segment_id} and {next_segment_id} merged", json)


async def move(cluster: str, segment_id: int, broker_id: int | None, json: bool) -> None:
    """Move a segment to another broker."""
    async with ordering(cluster, "segment move") as control:
        _show(await control.move(segment_id, broker_id), f"segment {segment_id} moved", json)


def _show(segments: Sequence[Segment], what: str, json: bool) -> None:
    if json:
        output.print_json([asdict(segment) for segment in segments])
        return
    made = ", ".join(
        f"segment {segment.id} of {segment.topic} {segment.span} at broker {segment.broker_id}" for segment in segments
    )
    output.print_line(f"{what}: {made}")
