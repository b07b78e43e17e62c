"""`headgate group`: its commands and their options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, GroupIds, Json
from headgate.broker.runtime.errors import InvalidError, Reason

app = typer.Typer(help="List, describe, reset and delete consumer groups.", rich_markup_mode=None)


@app.command("list")
def group_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the groups and their lag."""
    from headgate.broker.cli import group

    output.check_reachable(cluster)
    output.run(group.list_all(cluster, json))


@app.command("describe")
def group_describe(groups: GroupIds, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show members, positions and lag of groups."""
    from headgate.broker.cli import group

    output.check_reachable(cluster)
    output.run(group.describe(cluster, groups, json))


@app.command("reset")
def group_reset(
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
) -> None:
    """Move the positions of a group. Without --execute, only show the changes."""
    from headgate.broker.cli import group as commands
    from headgate.broker.client.types import Start, Timestamp
    from headgate.broker.runtime.clock import Clock
    from headgate.broker.runtime.setting_kinds import parse_time_ms

    places: list[Start] = ["earliest"] if to_earliest else []
    places += ["latest"] if to_latest else []
    places += [] if to_offset is None else [to_offset]
    places += [] if to_time is None else [Timestamp(parse_time_ms(to_time, Clock().now_ms()))]
    if len(places) != 1:
        raise InvalidError(Reason.INVALID_REQUEST, "give one of --to-earliest, --to-latest, --to-offset and --to-time")
    output.check_reachable(cluster)
    output.run(commands.reset(cluster, group, topic or [], partition or [], places[0], execute, json))


@app.command("delete")
def group_delete(
    groups: GroupIds,
    cluster: Cluster = DEFAULT_CLUSTER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete groups without members, and their positions. Asks first on a terminal."""
    from headgate.broker.cli import group

    output.check_reachable(cluster)
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm(f"Delete {', '.join(groups)} and all their positions?", abort=True)
    output.run(group.delete(cluster, groups))
