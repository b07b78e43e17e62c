"""``headgate topic``: create, list, describe, alter, delete."""

from __future__ import annotations

import datetime
from collections.abc import Coroutine, Mapping, Sequence
from typing import Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.commands import gate as gate_commands
from headgate.broker.cli.options import DEFAULT_CLUSTER, INT32_MAX, Cluster, Json, TopicName, TopicNames, Yes, confirm, named_pairs
from headgate.broker.client import Admin, Gate, GateAdmin, TopicDescription
from headgate.broker.client.errors import skip_command
from headgate.broker.cluster.topic_config import KEYS, Kind
from headgate.broker.runtime.config import parse_duration_ms, parse_size
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason

UNKNOWN = "?"
"""No broker leads the partition at the moment, or its lead does not answer."""

app = typer.Typer(rich_markup_mode=None)


@command(app, "create")
def create(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, max=INT32_MAX, help="Default: the broker's `num_partitions`.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting; may be repeated.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="An existing topic is no error.")] = False,
) -> Coroutine[Any, Any, None]:
    """Create topics."""
    return _create(cluster, topics, partitions, _settings("--config", config), if_not_exists)


async def _create(
    cluster: str, names: Sequence[str], partitions: int | None, config: Mapping[str, str], if_not_exists: bool
) -> None:
    async with Admin(cluster) as admin:

        async def make(name: str) -> None:
            try:
                topic = await admin.create_topic(name, partitions, config)
            except HeadgateError as error:
                if not (if_not_exists and error.reason is Reason.TOPIC_EXISTS):
                    raise
                output.print_line(f"topic {name} exists already")
            else:
                output.print_line(f"topic {name} created with {output.plural(topic.partitions, 'partition')}")

        _, errors = await output.each(names, make)
    output.tell_of(errors)


def _settings(option: str, given: Sequence[str] | None) -> dict[str, str]:
    """The settings of a topic, by name, in Kafka's form: ``7d`` in ms, ``1GiB`` in bytes. The broker judges all other values."""
    settings = named_pairs(option, given)
    for name, value in settings.items():
        parse = parse_duration_ms if name.endswith(".ms") else parse_size if name.endswith(".bytes") else None
        if parse is not None and name in KEYS and KEYS[name].kind in (Kind.INT, Kind.LONG):
            number = parse(value)
            settings[name] = value if number is None else str(number)
    return settings


@command(app, "list")
async def list_all(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the topics."""
    async with Admin(cluster) as admin:
        status, topics = await admin.status(), await admin.list_topics()
    sizes = {row.id: row for row in status.topics}
    if json:
        output.print_json(
            [
                {
                    "name": topic.name,
                    "id": str(topic.id),
                    "partitions": topic.partitions,
                    "created_ms": topic.created_ms,
                    "records": sizes[topic.id].records if topic.id in sizes else None,
                    "size_bytes": sizes[topic.id].size_bytes if topic.id in sizes else None,
                }
                for topic in topics
            ]
        )
        return
    rows = [
        (
            topic.name,
            topic.partitions,
            f"{sizes[topic.id].records:,}" if topic.id in sizes else "",
            output.size(sizes[topic.id].size_bytes) if topic.id in sizes else "",
            _time(topic.created_ms),
        )
        for topic in topics
    ]
    output.print_table(("topic", "partitions", "records", "size", "created"), rows, numeric=("partitions", "records", "size"))


@command(app, "describe")
async def describe(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    every: Annotated[bool, typer.Option("--all", "-a", help="Show every setting, including defaults.")] = False,
    json: Json = False,
) -> None:
    """Show partitions, offsets and settings of topics."""
    async with Admin(cluster) as admin:
        found, errors = await output.each(topics, admin.describe_topic)
    async with GateAdmin(cluster) as gate_admin:
        gates = {description.topic.name: await gate_admin.list(description.topic.name) for description in found}
    if not json:
        _show(found, gates, every)
    elif found:
        output.print_json(
            [
                {**_as_json(description, every), "gates": [gate.id for gate in gates[description.topic.name]]}
                for description in found
            ]
        )
    output.tell_of(errors)


def _show(found: Sequence[TopicDescription], gates: Mapping[str, Sequence[Gate]], every: bool) -> None:
    for description in found:
        topic = description.topic
        output.print_line(f"topic {topic.name}  id {topic.id}  created {_time(topic.created_ms)}")
        output.print_table(
            ("partition", "leader", "epoch", "first", "end", "size"),
            [
                (
                    part.number,
                    _known(part.leader),
                    _known(part.leader_epoch),
                    _known(part.log_start),
                    _known(part.high_watermark),
                    output.size(part.size_bytes) if part.size_bytes >= 0 else UNKNOWN,
                )
                for part in description.partitions
            ],
            numeric=("partition", "leader", "epoch", "first", "end", "size"),
        )
        skipped = [(part.number, first, end - 1, end - first) for part in description.partitions for first, end in part.skipped]
        if skipped:
            columns = ("partition", "skipped from", "to", "offsets")
            output.print_table(columns, skipped, numeric=columns)
        if gates[topic.name]:
            output.print_table(gate_commands.COLUMNS, gate_commands.rows_of(gates[topic.name]), numeric=gate_commands.NUMERIC)
        config = [entry for entry in description.config if every or not entry.is_default]
        if config:
            rows = [(entry.name, entry.value, "default" if entry.is_default else "topic", entry.documentation) for entry in config]
            output.print_table(("setting", "value", "from", "meaning"), rows)


@command(app, "alter")
def alter(
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
) -> Coroutine[Any, Any, None]:
    """Change settings or the number of partitions of a topic."""
    settings = _settings("--set", config)
    if partitions is None and not settings and not unset:
        raise InvalidError(Reason.INVALID_REQUEST, "nothing to change: give --partitions, --set or --unset")
    return _alter(cluster, topic, partitions, settings, unset or [])


async def _alter(cluster: str, name: str, partitions: int | None, config: Mapping[str, str], unset: Sequence[str]) -> None:
    """Change settings first and the number of partitions last: only the settings can be changed back."""
    async with Admin(cluster) as admin:
        if partitions is not None:
            await admin.create_partitions(name, partitions, validate_only=True)
        if config or unset:
            await admin.alter_topic_config(name, config, unset)
            output.print_line(f"topic {name} has new settings")
        if partitions is not None:
            await admin.create_partitions(name, partitions)
            output.print_line(f"topic {name} has {output.plural(partitions, 'partition')}")


@command(app, "check")
async def check(
    topic: TopicName,
    cluster: Cluster = DEFAULT_CLUSTER,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Default: all; may be repeated.")
    ] = None,
    json: Json = False,
) -> int:
    """Find batches that consumers cannot read. The exit code is 1 if there is one."""
    rows: list[tuple[int, int, int, str]] = []
    batches = 0
    async with Admin(cluster) as admin:
        numbers = list(dict.fromkeys(partition or [])) or range((await admin.describe_topic(topic)).topic.partitions)
        for number in numbers:
            first: int | None = None
            while True:
                checked = await admin.check_records(topic, number, first)
                batches += checked.batches
                rows += [(number, batch.base_offset, batch.end_offset - 1, batch.why) for batch in checked.unreadable]
                if checked.next_offset >= checked.end_offset or checked.next_offset == first:
                    break
                first = checked.next_offset
    if json:
        output.print_json(
            {
                "topic": topic,
                "batches": batches,
                "unreadable": [{"partition": row[0], "first": row[1], "last": row[2], "why": row[3]} for row in rows],
            }
        )
        return output.EXIT_FAILED if rows else 0
    if rows:
        output.print_table(("partition", "first", "last", "why"), rows, numeric=("partition", "first", "last"))
        number, first_bad, last_bad, _ = rows[0]
        output.print_line(f"let readers step over one: {skip_command(topic, number, first_bad, last_bad)}")
    output.print_line(f"batches: {batches:,}, unreadable: {len(rows):,}")
    return output.EXIT_FAILED if rows else 0


@command(app, "skip")
def skip(
    topic: TopicName,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="The partition.")],
    offset: Annotated[int, typer.Option("--offset", min=0, help="The offset at which consumers stop.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    to: Annotated[int | None, typer.Option("--to", min=0, help="The last offset to skip. Default: the offset of --offset.")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Skip the records. Default: only show them.")] = False,
    json: Json = False,
) -> Coroutine[Any, Any, None]:
    """Let readers skip records that they cannot read, for ever. Shows the records, and changes nothing without --execute."""
    last = offset if to is None else to
    if last < offset:
        raise InvalidError(Reason.INVALID_REQUEST, f"--to is below --offset. offset=`{offset}` to=`{last}`")
    return _skip(cluster, topic, partition, offset, last, execute, json)


async def _skip(cluster: str, name: str, partition: int, first: int, last: int, execute: bool, json: bool) -> None:
    """Print the records that readers would skip, and with `execute` make them skip. Whole batches are skipped."""
    async with Admin(cluster) as admin:
        base, end = await admin.skip_records(name, partition, first, last, validate_only=True)
        checked = await admin.check_records(name, partition, base, end - 1)
        if execute:
            base, end = await admin.skip_records(name, partition, first, last)
    whole = checked.next_offset >= end
    if json:
        output.print_json(
            {
                "topic": name,
                "partition": partition,
                "executed": execute,
                "first": base,
                "last": end - 1,
                "batches": checked.batches if whole else None,
                "unreadable": [
                    {"first": batch.base_offset, "last": batch.end_offset - 1, "why": batch.why} for batch in checked.unreadable
                ],
            }
        )
        return
    for batch in checked.unreadable:
        output.print_line(f"offsets {batch.base_offset} to {batch.end_offset - 1}: {batch.why}")
    bad = len(checked.unreadable)
    more = "" if whole else " or more"
    output.print_line(
        f"{name} partition {partition}: offsets {base} to {end - 1}, batches: {checked.batches}{more}, unreadable: {bad}{more}"
    )
    if (base, end) != (first, last + 1):
        output.print_line(f"more than the offsets {first} to {last}: a batch is skipped whole")
    if bad < checked.batches:
        output.print_line("the other batches can be read: their records are skipped, too")
    if execute:
        output.print_line("readers step over these offsets from now on")
    else:
        output.print_line("nothing was changed: give --execute to skip them, for ever")


@app.command("delete")
def delete(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    yes: Yes = False,
) -> None:
    """Delete topics and their records. Asks first on a terminal."""
    output.check_reachable(cluster)
    confirm(f"Delete {', '.join(topics)} and all records in it?", yes=yes)
    output.run(_delete(cluster, topics))


async def _delete(cluster: str, names: Sequence[str]) -> None:
    async with Admin(cluster) as admin:
        await output.delete_each("topic", names, admin.delete_topic)


def _as_json(topic_description: TopicDescription, every: bool) -> dict[str, object]:
    return {
        "name": topic_description.topic.name,
        "id": str(topic_description.topic.id),
        "created_ms": topic_description.topic.created_ms,
        "partitions": [
            {
                "partition": part.number,
                "leader": part.leader,
                "leader_epoch": part.leader_epoch,
                "log_start": part.log_start,
                "high_watermark": part.high_watermark,
                "size_bytes": part.size_bytes,
                "skipped": [{"first": first, "last": end - 1} for first, end in part.skipped],
            }
            for part in topic_description.partitions
        ],
        "config": {entry.name: entry.value for entry in topic_description.config if every or not entry.is_default},
    }


def _known(number: int) -> int | str:
    return number if number >= 0 else UNKNOWN


def _time(ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")
