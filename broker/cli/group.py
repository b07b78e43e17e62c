"""``headgate group``: describe consumer groups, move their positions, delete them."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.broker.cli import output
from headgate.broker.client.group_admin import GroupAdmin, GroupDescription
from headgate.broker.client.types import Start, TopicPartition
from headgate.broker.runtime.errors import InvalidError, Reason

NOTHING = "-"


async def list_all(cluster: str, as_json: bool) -> None:
    """Print every group."""
    async with GroupAdmin(cluster) as admin:
        groups = await admin.list_groups()
    if as_json:
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


async def describe(cluster: str, ids: Sequence[str], as_json: bool) -> None:
    """Print members, positions and lag of groups."""
    async with GroupAdmin(cluster) as admin:
        groups, errors = await output.each(ids, admin.describe_group)
    if not as_json:
        _show(groups)
    elif groups:
        output.print_json([_as_json(group) for group in groups])
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


async def reset(
    cluster: str, group_id: str, topics: Sequence[str], partitions: Sequence[int], start: Start, execute: bool, as_json: bool
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
    if as_json:
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


async def delete(cluster: str, ids: Sequence[str]) -> None:
    """Delete groups and their positions."""
    async with GroupAdmin(cluster) as admin:

        async def forget(group_id: str) -> None:
            await admin.delete_group(group_id)
            output.print_line(f"group {group_id} deleted")

        _, errors = await output.each(ids, forget)
    output.tell_of(errors)


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
