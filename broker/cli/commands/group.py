"""``headgate group``: describe consumer groups, move their positions, delete them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, GroupIds, Json, Yes, confirm
from headgate.broker.client.group_admin import GroupAdmin, GroupDescription
from headgate.broker.client.types import Start, Timestamp, TopicPartition
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.setting_kinds import parse_time_ms

NOTHING = "-"

app = typer.Typer(rich_markup_mode=None)


@command(app, "list")
async def list_all(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the groups and their lag."""
    async with GroupAdmin(cluster) as admin:
        groups = await admin.list_groups()
    if json:
        output.print_json(
            [
                {
                    "group": group.id,
                    "state": group.state,
                    "protocol_type": group.protocol_type,
                    "members": group.members,
                    "positions": group.positions,
                    "lag_records": group.lag_records,
                }
                for group in groups
            ]
        )
        return
    output.print_table(
        ("group", "state", "type", "members", "positions", "lag"),
        [
            (group.id, group.state, group.protocol_type or NOTHING, group.members, group.positions, f"{group.lag_records:,}")
            for group in groups
        ],
        numeric=("members", "positions", "lag"),
    )


@command(app, "describe")
async def describe(groups: GroupIds, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show members, positions and lag of groups."""
    async with GroupAdmin(cluster) as admin:
        found, errors = await output.each(groups, admin.describe_group)
    if not json:
        _show(found)
    elif found:
        output.print_json([_as_json(group) for group in found])
    output.tell_of(errors)


def _show(groups: Sequence[GroupDescription]) -> None:
    for number, shown in enumerate(groups):
        if number:
            output.print_line()
        group = shown.group
        spoken = f", {shown.protocol}" if shown.protocol else ""
        output.print_line(
            f"group {group.id}: {group.state}{spoken}, generation {shown.generation}, "
            f"{output.plural(group.members, 'member')}, {output.plural(group.lag_records, 'record')} behind"
        )
        if shown.members:
            output.print_table(
                ("member", "instance", "client", "host", "partitions"),
                [
                    (member.id, member.instance_id or NOTHING, member.client_id or NOTHING, member.client_host, member.partitions)
                    for member in shown.members
                ],
                numeric=("partitions",),
            )
        if shown.positions:
            output.print_table(
                ("topic", "partition", "position", "end", "lag", "member"),
                [
                    (
                        row.topic,
                        row.partition,
                        NOTHING if row.offset is None else row.offset,
                        NOTHING if row.high_watermark < 0 else row.high_watermark,
                        NOTHING if row.lag_records is None else f"{row.lag_records:,}",
                        row.member_id or NOTHING,
                    )
                    for row in shown.positions
                ],
                numeric=("partition", "position", "end", "lag"),
            )


@command(app, "reset")
def reset(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group; it must have no members.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Behind the last record.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, help="To this offset, or the nearest existing one.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="WHEN", help="To ms since 1970, ISO 8601 (UTC), or 15m, 2h, 7d ago."),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Default: all topics in which the group has positions.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Make the changes. Default: only show them.")] = False,
    json: Json = False,
) -> Coroutine[Any, Any, None]:
    """Move the positions of a group. Without --execute, only show the changes."""
    places: list[Start] = ["earliest"] if to_earliest else []
    places += ["latest"] if to_latest else []
    places += [] if to_offset is None else [to_offset]
    places += [] if to_time is None else [Timestamp(parse_time_ms(to_time, Clock().now_ms()))]
    if len(places) != 1:
        raise InvalidError(Reason.INVALID_REQUEST, "give one of --to-earliest, --to-latest, --to-offset and --to-time")
    return _reset(cluster, group, topic or [], partition or [], places[0], execute, json)


async def _reset(
    cluster: str, group_id: str, topics: Sequence[str], partitions: Sequence[int], start: Start, execute: bool, json: bool
) -> None:
    """Print the new positions of a group, and with `execute` set them.

    Args:
        topics: empty for all topics in which the group has positions.
        partitions: empty for all partitions of these topics; otherwise only with one topic.
        start: the same position for every partition; an offset outside of a partition becomes its first or last one.
    """
    async with GroupAdmin(cluster) as admin:
        places = await _places(admin, group_id, topics, partitions)
        targets = await _targets(admin, places, start)
        before = await admin.alter_positions(group_id, targets, validate_only=True)
        if execute:
            await admin.alter_positions(group_id, targets)
    rows = [
        (place.topic, place.partition, NOTHING if before[place] is None else before[place], offset)
        for place, offset in targets.items()
    ]
    if json:
        output.print_json(
            {
                "group": group_id,
                "executed": execute,
                "positions": [
                    {"topic": place.topic, "partition": place.partition, "before": before[place], "after": offset}
                    for place, offset in targets.items()
                ],
            }
        )
        return
    output.print_table(("topic", "partition", "before", "after"), rows, numeric=("partition", "before", "after"))
    if execute:
        output.print_line(f"group {group_id}: {output.plural(len(rows), 'position')} moved")
    else:
        output.print_line("nothing was changed: give --execute to move the positions")


@app.command("delete")
def delete(
    groups: GroupIds,
    cluster: Cluster = DEFAULT_CLUSTER,
    yes: Yes = False,
) -> None:
    """Delete groups without members, and their positions. Asks first on a terminal."""
    output.check_reachable(cluster)
    confirm(f"Delete {', '.join(groups)} and all their positions?", yes=yes)
    output.run(_delete(cluster, groups))


async def _delete(cluster: str, ids: Sequence[str]) -> None:
    async with GroupAdmin(cluster) as admin:
        await output.delete_each("group", ids, admin.delete_group)


async def _places(admin: GroupAdmin, group_id: str, topics: Sequence[str], partitions: Sequence[int]) -> list[TopicPartition]:
    if partitions and len(topics) != 1:
        raise InvalidError(Reason.INVALID_REQUEST, "--partition needs exactly one --topic")
    if partitions:
        return [TopicPartition(topics[0], number) for number in dict.fromkeys(partitions)]
    if topics:
        return [place for topic in dict.fromkeys(topics) for place in await admin.partitions(topic)]
    described = await admin.describe_group(group_id)
    places = [TopicPartition(row.topic, row.partition) for row in described.positions if row.offset is not None]
    if not places:
        raise InvalidError(Reason.INVALID_REQUEST, f"group has no positions: name topics with --topic. group=`{group_id}`")
    return places


async def _targets(admin: GroupAdmin, places: Sequence[TopicPartition], start: Start) -> dict[TopicPartition, int]:
    if not isinstance(start, int):
        found = await admin.offsets(dict.fromkeys(places, start))
        return {place: found[place].offset for place in places}
    first = await admin.offsets(dict.fromkeys(places, "earliest"))
    last = await admin.offsets(dict.fromkeys(places, "latest"))
    return {place: min(max(start, first[place].offset), last[place].offset) for place in places}


def _as_json(group_description: GroupDescription) -> dict[str, object]:
    return {
        "group": group_description.group.id,
        "state": group_description.group.state,
        "protocol_type": group_description.group.protocol_type,
        "protocol": group_description.protocol,
        "generation": group_description.generation,
        "lag_records": group_description.group.lag_records,
        "members": [
            {
                "member_id": member.id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "partitions": member.partitions,
            }
            for member in group_description.members
        ],
        "positions": [
            {
                "topic": row.topic,
                "partition": row.partition,
                "offset": row.offset,
                "lag_records": row.lag_records,
                "log_start": row.log_start,
                "high_watermark": row.high_watermark,
                "metadata": row.metadata,
                "committed_ms": row.committed_ms,
                "member_id": row.member_id,
            }
            for row in group_description.positions
        ],
    }
