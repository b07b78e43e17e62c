"""`headgate topic`: its commands and their options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, INT32_MAX, Cluster, Json, Pairs, TopicName, TopicNames, topic_settings
from headgate.broker.runtime.errors import InvalidError, Reason

app = typer.Typer(help="Create, list, describe, alter and delete topics.", rich_markup_mode=None)


@app.command("create")
def topic_create(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, max=INT32_MAX, help="Default: the broker's `num_partitions`.")
    ] = None,
    config: Pairs = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is no error.")] = False,
) -> None:
    """Create topics."""
    from headgate.broker.cli import topic

    settings = topic_settings("--config", config)
    output.check_reachable(cluster)
    output.run(topic.create(cluster, topics, partitions, settings, if_not_exists))


@app.command("list")
def topic_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the topics."""
    from headgate.broker.cli import topic

    output.check_reachable(cluster)
    output.run(topic.list_all(cluster, json))


@app.command("describe")
def topic_describe(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    every: Annotated[bool, typer.Option("--all", "-a", help="Show every setting, including defaults.")] = False,
    json: Json = False,
) -> None:
    """Show partitions, offsets and settings of topics."""
    from headgate.broker.cli import topic

    output.check_reachable(cluster)
    output.run(topic.describe(cluster, topics, every, json))


@app.command("alter")
def topic_alter(
    topic: TopicName,
    cluster: Cluster = DEFAULT_CLUSTER,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, max=INT32_MAX, help="New total; it can only grow.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--set", "--config", "-c", metavar="NAME=VALUE", help="A setting; may be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Reset this setting to its default; may be repeated.")
    ] = None,
) -> None:
    """Change settings or the number of partitions of a topic."""
    from headgate.broker.cli import topic as commands

    settings = topic_settings("--set", config)
    if partitions is None and not settings and not unset:
        raise InvalidError(Reason.INVALID_REQUEST, "nothing to change: give --partitions, --set or --unset")
    output.check_reachable(cluster)
    output.run(commands.alter(cluster, topic, partitions, settings, unset or []))


@app.command("check")
def topic_check(
    topic: TopicName,
    cluster: Cluster = DEFAULT_CLUSTER,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Default: all; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Find batches that consumers cannot read. The exit code is 1 if there is one."""
    from headgate.broker.cli import topic as commands

    output.check_reachable(cluster)
    if not output.run(commands.check(cluster, topic, partition or [], json)):
        raise typer.Exit(1)


@app.command("skip")
def topic_skip(
    topic: TopicName,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="The partition.")],
    offset: Annotated[int, typer.Option("--offset", min=0, help="The offset at which consumers stop.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    to: Annotated[int | None, typer.Option("--to", min=0, help="The last offset to skip. Default: the offset of --offset.")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Skip the records. Default: only show them.")] = False,
    json: Json = False,
) -> None:
    """Let readers skip records that they cannot read, for ever. Shows the records, and changes nothing without --execute."""
    from headgate.broker.cli import topic as commands

    last = offset if to is None else to
    if last < offset:
        raise InvalidError(Reason.INVALID_REQUEST, f"--to is below --offset. offset=`{offset}` to=`{last}`")
    output.check_reachable(cluster)
    output.run(commands.skip(cluster, topic, partition, offset, last, execute, json))


@app.command("delete")
def topic_delete(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete topics and their records. Asks first on a terminal."""
    from headgate.broker.cli import topic

    output.check_reachable(cluster)
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        typer.confirm(f"Delete {', '.join(topics)} and all records in it?", abort=True)
    output.run(topic.delete(cluster, topics))
