"""The commands for people and their options. Each command has its own module, which is imported when the command runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer.exceptions import TyperException

from headgate.broker import __version__
from headgate.broker.cli import output
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason

DEFAULT_CLUSTER = "127.0.0.1:9095"
LONGEST_TTL_MS = 7 * 86_400_000
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
"""Largest numbers that requests can hold. The cluster decides which numbers are sensible."""
TRACEBACK = "HEADGATE_TRACEBACK"
"""Name of an environment variable: if it is set, an unexpected error is shown with its traceback, for a bug report."""

app = typer.Typer(
    help="Headgate: a message queue for floods. `headgate up` runs a local broker; point any Kafka client at 127.0.0.1:9092.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
topic_app = typer.Typer(help="Create, list, describe, alter and delete topics.", rich_markup_mode=None)
app.add_typer(topic_app, name="topic")
group_app = typer.Typer(help="List, describe, reset and delete consumer groups.", rich_markup_mode=None)
app.add_typer(group_app, name="group")
segment_app = typer.Typer(help="List segments; split, merge and move them by hand.", rich_markup_mode=None)
app.add_typer(segment_app, name="segment")
capacity_app = typer.Typer(help="Reserve brokers: open, renew, release, list; show the planned number.", rich_markup_mode=None)
app.add_typer(capacity_app, name="capacity")
gate_app = typer.Typer(help="Gates, for history by reference: open, fill, renew, release, list, describe.", rich_markup_mode=None)
app.add_typer(gate_app, name="gate")
flood_app = typer.Typer(help="Bring history into a topic by reference, with Spark; prove that it is there.", rich_markup_mode=None)
app.add_typer(flood_app, name="flood")
verify_app = typer.Typer(
    help="Verify any Kafka endpoint while you inject faults: is a record lost, repeated, reordered, or gone after it was read?",
    rich_markup_mode=None,
    invoke_without_command=True,
)
app.add_typer(verify_app, name="verify")

GROUPS_OF_COMMANDS = ("topic", "group", "segment", "capacity", "gate", "flood", "verify")

Cluster = Annotated[
    str,
    typer.Option(
        "--cluster", envvar="HEADGATE_CLUSTER", metavar="HOST:GRPC_PORT", help="Any broker, or several separated by commas."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]
GroupIds = Annotated[list[str], typer.Argument(metavar="GROUP...", help="One or more groups.")]
SegmentId = Annotated[
    int, typer.Argument(metavar="SEGMENT", min=0, max=INT64_MAX, help="The number that `headgate segment list` shows.")
]
ReservationId = Annotated[str, typer.Argument(metavar="RESERVATION", help="The id that `headgate capacity list` shows.")]
GateId = Annotated[str, typer.Argument(metavar="GATE", help="The id that `headgate gate list` shows.")]
TopicNames = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="One or more topics.")]
Pairs = Annotated[list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting; may be repeated.")]


def run(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code; every error is one line on stderr."""
    _open_closed_streams()
    given = list(arguments)
    if not given or (len(given) == 1 and given[0] in GROUPS_OF_COMMANDS):
        given.append("--help")
    command = " ".join(["headgate", *_command_words(given)])
    try:
        code = app(given, prog_name="headgate", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = command if context is None else context.command_path
        output.fail(f"{' '.join(error.format_message().split())} (see `{path} --help`)", path)
        return output.EXIT_USAGE
    except (HeadgateError, output.SomeFailedError) as error:
        _drop_closed_output()
        errors = error.errors if isinstance(error, output.SomeFailedError) else (error,)
        for one in errors:
            output.fail(output.error_line(one, command), command)
        return output.EXIT_USAGE if all(one.reason is Reason.INVALID_REQUEST for one in errors) else output.EXIT_FAILED
    except (typer.Abort, KeyboardInterrupt):
        _drop_closed_output()
        return output.EXIT_INTERRUPTED
    except (output.ReaderLeft, BrokenPipeError):
        _drop_closed_output()
        return 0
    except OSError as error:
        output.fail(str(error).lower(), command)
        return output.EXIT_FAILED
    except Exception as error:
        if isinstance(error, UnicodeEncodeError) and any(error.object in argument for argument in given):
            output.fail(f"an argument is not UTF-8. value=`{error.object}`", command)
            return output.EXIT_USAGE
        if os.environ.get(TRACEBACK):
            raise
        output.fail(f"unexpected error: {type(error).__name__}: {error} ({TRACEBACK}=1 shows where)", command)
        return output.EXIT_FAILED
    return code if isinstance(code, int) else 0


def _command_words(arguments: Sequence[str]) -> list[str]:
    words = [word for word in arguments[:2] if not word.startswith("-")]
    if words and words[0] in GROUPS_OF_COMMANDS:
        return words[:2]
    return words[:1] if words and arguments[0] == words[0] else []


def _open_closed_streams() -> None:
    """Replace streams that the caller has closed (`<&-`) by /dev/null. Otherwise the next opened files would get their
    descriptors."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, mode))


def _drop_closed_output() -> None:
    """Discard unwritten output if the reader of stdout has gone: Python flushes stdout once more when it ends, and would fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(value: bool) -> None:
    if value:
        output.print_line(f"headgate {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def up(
    context: typer.Context,
    brokers: Annotated[int, typer.Option("--brokers", min=1, help="Fewest brokers.")] = 1,
    max_brokers: Annotated[
        int | None, typer.Option("--max-brokers", min=1, help="Most brokers, even if more are reserved. Default: 8, or --brokers.")
    ] = None,
    store: Annotated[str | None, typer.Option(metavar="DIR|s3://BUCKET/PREFIX", help="Default: ./headgate-data")] = None,
    kafka_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9092")] = None,
    grpc_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9095")] = None,
    http_port: Annotated[str | None, typer.Option(metavar="PORT", help="Default: 9090")] = None,
) -> None:
    """Run a local cluster until Ctrl-C.

    Takes every setting of `headgate broker --help` too. Prints one line when the cluster serves, and restarts a broker that
    dies. Starts and ends brokers to match the load and the reservations of `headgate capacity open`.
    """
    from headgate.broker.cli.up import DEFAULTS
    from headgate.broker.cli.up import up as run_up
    from headgate.broker.runtime.config import Settings

    named = {"--store": store, "--kafka-port": kafka_port, "--grpc-port": grpc_port, "--http-port": http_port}
    arguments = [part for name, value in named.items() if value is not None for part in (name, value)]
    try:
        settings = Settings.load([*arguments, *context.args], os.environ, DEFAULTS)
    except InvalidError as error:
        # Here a wrong setting is a usage error. A cluster may refuse a topic's setting although the command was right.
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error
    raise typer.Exit(run_up(settings, brokers, max_brokers))


@app.command("init", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def init_command(
    context: typer.Context,
    store: Annotated[str | None, typer.Option(metavar="DIR|s3://BUCKET/PREFIX", help="Default: ./headgate-data")] = None,
) -> None:
    """Make a new cluster in an empty store, and print its id. If the store has a cluster already, only print its id.

    Takes every setting of `headgate broker --help` too, such as --cluster-name.
    """
    import asyncio

    from headgate.broker.cli.init import init
    from headgate.broker.runtime.config import Settings

    named = [] if store is None else ["--store", store]
    try:
        settings = Settings.load([*named, *context.args], os.environ)
    except InvalidError as error:
        raise InvalidError(Reason.INVALID_REQUEST, error.message) from error
    typer.echo(asyncio.run(init(settings)))


@app.command("broker", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def broker_command(context: typer.Context) -> None:
    """Run one broker process: fleets start this command. `headgate broker --help` lists its settings."""
    from headgate.broker.cli.main import broker

    raise typer.Exit(broker(context.args))


@app.command()
def status(
    cluster: Cluster = DEFAULT_CLUSTER,
    window: Annotated[str, typer.Option(metavar="DURATION", help="Time to measure traffic; 0: do not measure.")] = "1s",
    json: Json = False,
) -> None:
    """Show the cluster: its brokers, segments and topics, their traffic, and the leader's latest decisions."""
    from headgate.broker.cli.status import show_status

    window_ms = _duration_ms("--window", window, high_ms=10_000)
    output.check_reachable(cluster)
    output.run(show_status(cluster, window_ms, json))


@app.command()
def top(
    cluster: Cluster = DEFAULT_CLUSTER,
    interval: Annotated[str, typer.Option("--interval", "-i", metavar="DURATION", help="Pause between two updates.")] = "1s",
    count: Annotated[int | None, typer.Option("--max", "-n", min=1, metavar="N", help="End after this many updates.")] = None,
) -> None:
    """Watch the cluster until Ctrl-C: brokers, the busiest segments, and the leader's decisions with their reasons."""
    from headgate.broker.cli.top import watch

    interval_ms = max(_duration_ms("--interval", interval, high_ms=60_000), 100)
    output.check_reachable(cluster)
    output.run(watch(cluster, interval_ms, count))


@app.command()
def produce(
    topic: TopicName,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE...]", help="Files to read; - and the default: standard input.")
    ] = None,
    cluster: Cluster = DEFAULT_CLUSTER,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="A line is KEY<TEXT>VALUE; \\t is a tab.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header for every record; may be repeated.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Default: chosen by key; without a key in turn.")
    ] = None,
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4 or zstd.")] = "none",
    null_value: Annotated[
        str | None, typer.Option("--null-value", metavar="TEXT", help="A line with this value is written as a tombstone.")
    ] = None,
) -> None:
    """Write one record per line, from files or standard input. Counts the records that are durable."""
    from headgate.broker.cli.produce import Format, produce_lines

    if compression not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise _bad_option("--compression", compression, "none, gzip, snappy, lz4 or zstd")
    headers = tuple((name, os.fsencode(value)) for name, value in _split_pairs("--header", header))
    separator = _separator(key_separator)
    if separator == b"":
        raise _bad_option("--key-separator", "", "at least one character")
    line_format = Format(separator, None if null_value is None else os.fsencode(null_value), headers, partition)
    output.check_reachable(cluster)
    raise typer.Exit(output.run(produce_lines(cluster, topic, files or [], line_format, compression)))


@app.command()
def consume(
    topic: TopicName,
    cluster: Cluster = DEFAULT_CLUSTER,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", "-b", help="Start at the first record.")] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", help="Start at this offset; negative: this many records before the end.")
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", "-t", metavar="WHEN", help="Start at ms since 1970, ISO 8601 (UTC), or 15m, 2h, 7d ago."),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    count: Annotated[int | None, typer.Option("--max", "-n", min=1, metavar="N", help="End after this many records.")] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", "-e", help="End at the current end of each partition.")] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", metavar="TEXT", help="Print KEY<TEXT>VALUE; \\t is a tab.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per record.")] = False,
) -> None:
    """Print records as they arrive, until Ctrl-C. Starts at the end by default."""
    from headgate.broker.cli.consume import Printer, consume_records, parse_start

    start = parse_start(from_beginning=from_beginning, offset=offset, timestamp=timestamp)
    separator = _separator(key_separator)
    output.check_reachable(cluster)
    output.run(consume_records(cluster, topic, partition or None, start, count, exit_at_end, Printer(json, separator)))


@topic_app.command("create")
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

    settings = _pairs("--config", config)
    output.check_reachable(cluster)
    output.run(topic.create(cluster, topics, partitions, settings, if_not_exists))


@topic_app.command("list")
def topic_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the topics."""
    from headgate.broker.cli import topic

    output.check_reachable(cluster)
    output.run(topic.list_all(cluster, json))


@topic_app.command("describe")
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


@topic_app.command("alter")
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

    settings = _pairs("--set", config)
    if partitions is None and not settings and not unset:
        raise InvalidError(Reason.INVALID_REQUEST, "nothing to change: give --partitions, --set or --unset")
    output.check_reachable(cluster)
    output.run(commands.alter(cluster, topic, partitions, settings, unset or []))


@topic_app.command("check")
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


@topic_app.command("skip")
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


@topic_app.command("delete")
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


@group_app.command("list")
def group_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """List the groups and their lag."""
    from headgate.broker.cli import group

    output.check_reachable(cluster)
    output.run(group.list_all(cluster, json))


@group_app.command("describe")
def group_describe(groups: GroupIds, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show members, positions and lag of groups."""
    from headgate.broker.cli import group

    output.check_reachable(cluster)
    output.run(group.describe(cluster, groups, json))


@group_app.command("reset")
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
    from headgate.broker.cli.consume import parse_time_ms
    from headgate.broker.client.types import Start, Timestamp
    from headgate.broker.runtime.clock import Clock

    places: list[Start] = ["earliest"] if to_earliest else []
    places += ["latest"] if to_latest else []
    places += [] if to_offset is None else [to_offset]
    places += [] if to_time is None else [Timestamp(parse_time_ms(to_time, Clock().now_ms()))]
    if len(places) != 1:
        raise InvalidError(Reason.INVALID_REQUEST, "give one of --to-earliest, --to-latest, --to-offset and --to-time")
    output.check_reachable(cluster)
    output.run(commands.reset(cluster, group, topic or [], partition or [], places[0], execute, json))


@group_app.command("delete")
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


@app.command()
def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=INT32_MAX, help="The number that `headgate status` shows.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> None:
    """Move all segments of a broker to the others, and give it none until it is started again.

    A broker that gets SIGTERM does this by itself.
    """
    from headgate.broker.cli.drain import drain as drain_broker

    output.check_reachable(cluster)
    output.run(drain_broker(cluster, broker, json))


@segment_app.command("list")
def segment_list(
    cluster: Cluster = DEFAULT_CLUSTER,
    topic: Annotated[str | None, typer.Option("--topic", help="Only entries of this topic.")] = None,
    json: Json = False,
) -> None:
    """List open segments: their partitions, their leads, their traffic."""
    from headgate.broker.cli import segment

    output.check_reachable(cluster)
    output.run(segment.list_all(cluster, topic, json))


@segment_app.command("split")
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


@segment_app.command("merge")
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


@segment_app.command("move")
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


@gate_app.command("open")
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
    ttl_ms = _duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    output.run(commands.open_one(cluster, topic, gate, counts, each, place, ttl_ms, json))


@gate_app.command("fill")
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


@gate_app.command("renew")
def gate_renew(
    topic: TopicName,
    gate: GateId,
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="DURATION", help="New time to live. Default: unchanged.")] = None,
    json: Json = False,
) -> None:
    """Start the time to live of an open gate again."""
    from headgate.broker.cli import gate as commands

    ttl_ms = None if ttl is None else _duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    output.run(commands.renew(cluster, topic, gate, ttl_ms, json))


@gate_app.command("release")
def gate_release(topic: TopicName, gate: GateId, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Give up an open gate: readers skip it."""
    from headgate.broker.cli import gate as commands

    output.check_reachable(cluster)
    output.run(commands.release(cluster, topic, gate, json))


@gate_app.command("list")
def gate_list(
    cluster: Cluster = DEFAULT_CLUSTER,
    topic: Annotated[str | None, typer.Option("--topic", help="Only entries of this topic.")] = None,
    json: Json = False,
) -> None:
    """List gates, including those that are no longer open."""
    from headgate.broker.cli import gate as commands

    output.check_reachable(cluster)
    output.run(commands.list_all(cluster, topic, json))


@gate_app.command("describe")
def gate_describe(topic: TopicName, gate: GateId, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show a gate's windows and files."""
    from headgate.broker.cli import gate as commands

    output.check_reachable(cluster)
    output.run(commands.describe(cluster, topic, gate, json))


@capacity_app.command("open")
def capacity_open(
    brokers: Annotated[
        int, typer.Argument(metavar="BROKERS", max=INT32_MAX, help="Fewest brokers that the cluster should have, 1 to 64.")
    ],
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: Annotated[
        str, typer.Option("--ttl", metavar="DURATION", help="Time to live: the reservation ends after it, unless renewed.")
    ] = "15m",
    owner: Annotated[str | None, typer.Option("--owner", metavar="TEXT", help="Owner shown in lists. Default: user@host.")] = None,
    reservation_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="An existing id renews that reservation. Default: a new id.")
    ] = "",
    json: Json = False,
) -> None:
    """Reserve brokers until a time."""
    from headgate.broker.cli import capacity

    ttl_ms = _duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    output.run(capacity.open_one(cluster, brokers, ttl_ms, _owner() if owner is None else owner, reservation_id, json))


@capacity_app.command("renew")
def capacity_renew(
    reservation: ReservationId,
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="DURATION", help="New time to live. Default: unchanged.")] = None,
    json: Json = False,
) -> None:
    """Start the time to live of a reservation again."""
    from headgate.broker.cli import capacity

    ttl_ms = None if ttl is None else _duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)
    output.check_reachable(cluster)
    output.run(capacity.renew(cluster, reservation, ttl_ms, json))


@capacity_app.command("release")
def capacity_release(reservation: ReservationId, cluster: Cluster = DEFAULT_CLUSTER) -> None:
    """End a reservation."""
    from headgate.broker.cli import capacity

    output.check_reachable(cluster)
    output.run(capacity.release(cluster, reservation))


@capacity_app.command("status")
def capacity_status(
    cluster: Cluster = DEFAULT_CLUSTER,
    wait: Annotated[
        str, typer.Option("--wait", metavar="DURATION", help="Wait until enough brokers serve; fail after this time.")
    ] = "0",
    json: Json = False,
) -> None:
    """Show the planned number of brokers, its reason, and the number of brokers that serve."""
    from headgate.broker.cli import capacity

    wait_ms = _duration_ms("--wait", wait, high_ms=86_400_000)
    output.check_reachable(cluster)
    output.run(capacity.status(cluster, wait_ms, json))


@capacity_app.command("list")
def capacity_list(cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show the planned number of brokers, its reason, and the open reservations."""
    from headgate.broker.cli import capacity

    output.check_reachable(cluster)
    output.run(capacity.list_all(cluster, json))


@flood_app.command("run")
def flood_run(
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic that gets the records.")],
    source: Annotated[
        str, typer.Option("--source", "-s", metavar="PATH", help="The path that Spark reads; with --format query, SQL.")
    ],
    cluster: Cluster = DEFAULT_CLUSTER,
    source_format: Annotated[
        str, typer.Option("--format", "-f", help="parquet, csv, json, orc, query, or another format of Spark.")
    ] = "parquet",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Option of Spark's reader, such as header=true; may be repeated."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="EXPR", help="A column or SQL. Default: no key.")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="EXPR", help="Default: the row as JSON.")] = None,
    event_time: Annotated[
        str | None,
        typer.Option(
            "--event-time",
            "-e",
            metavar="COL",
            help="Column that gives a record's time and order. Default: the current time, and the order of the source.",
        ),
    ] = None,
    headers: Annotated[
        str | None, typer.Option("--headers", metavar="EXPR", help="A map with the record's headers. Default: none.")
    ] = None,
    order_by: Annotated[
        list[str] | None, typer.Option("--order-by", metavar="EXPR", help="Orders rows of one event time; may be repeated.")
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="SQL", help="Condition for the rows to read. Default: all rows.")
    ] = None,
    flood_id: Annotated[
        str | None,
        typer.Option(
            "--flood-id", metavar="ID", help="A flood with the same id is added only once. Default: derived from these options."
        ),
    ] = None,
    place: Annotated[str, typer.Option("--place", help="now, front or end.")] = "now",
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Create a missing topic with this many partitions.")
    ] = None,
    file_size: Annotated[str, typer.Option("--file-size", metavar="SIZE", help="Size of a Parquet file.")] = "64MiB",
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Any Spark master.")] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting, such as spark.driver.memory=4g; may be repeated."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="Write the completeness certificate to this file, as JSON.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read all records back through a client, and compare.")] = False,
    json: Json = False,
) -> None:
    """Bring history into a topic: Spark writes it to the topic's store, and it appears in one step, in front of later live
    records.

    A second run with the same options adds nothing. Exit code 0: all records are there.
    """
    from headgate.broker.cli.flood import run_flood
    from headgate.broker.client.gates import Place
    from headgate.broker.runtime.config import parse_size
    from headgate.pipelines.backfill import Backfill

    if place not in {one.value for one in Place}:
        raise _bad_option("--place", place, "now, front or end")
    file_bytes = parse_size(file_size)
    if file_bytes is None:
        raise _bad_option("--file-size", file_size, "a size, such as 64MiB")
    options = _pairs("--option", option)
    output.check_reachable(cluster)
    backfill = Backfill(
        cluster=cluster, topic=topic, source=source, format=source_format, options=options, key=key, value=value,
        event_time=event_time, headers=headers, order_by=tuple(order_by or ()), where=where, flood_id=flood_id, place=Place(place),
        partitions=partitions, file_bytes=file_bytes, verify=verify,
    )  # fmt: skip
    raise typer.Exit(run_flood(backfill, master, _pairs("--conf", conf), certificate, json))


@flood_app.command("verify")
def flood_verify(
    topic: Annotated[str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    flood_id: Annotated[
        str | None, typer.Option("--flood-id", metavar="ID", help="The flood. Default: all records of the topic.")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", metavar="FILE", help="Compare with this certificate of the source, written when the flood ran."
        ),
    ] = None,
    write: Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Write the new certificate to this file.")] = None,
    json: Json = False,
) -> None:
    """Read a flood back from the topic through a client: count, sum, look for gaps and duplicates. Exit code 0: all records are
    there."""
    from headgate.broker.cli.flood import verify_flood

    output.check_reachable(cluster)
    raise typer.Exit(verify_flood(cluster, topic, flood_id, certificate, write, json))


@verify_app.callback()
def verify(
    context: typer.Context,
    bootstrap: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT", help="Kafka endpoint, or several separated by commas.")
    ] = None,
    duration: Annotated[str, typer.Option("--duration", "-d", metavar="DURATION", help="Time that producers write.")] = "60s",
    rate: Annotated[float, typer.Option("--rate", min=0.1, max=1e6, help="Records per second of all producers together.")] = 1000,
    topics: Annotated[int, typer.Option("--topics", min=1, max=100, help="New topics to write to.")] = 1,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=500, help="Partitions of each topic.")] = 6,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor", "-r", min=-1, max=100, help="Replication factor of the topics; -1: the endpoint's default."
        ),
    ] = -1,
    producers: Annotated[
        int, typer.Option("--producers", min=1, max=100, help="Producers; every second one without idempotence.")
    ] = 4,
    groups: Annotated[int, typer.Option("--groups", min=0, max=100, help="Consumer groups of two members each.")] = 1,
    acks: Annotated[str, typer.Option("--acks", help="all or 1; with 1 no producer is idempotent.")] = "all",
    value_bytes: Annotated[int, typer.Option("--value-bytes", min=64, max=1_000_000, help="Size of a value.")] = 200,
    patience: Annotated[
        str,
        typer.Option("--patience", metavar="DURATION", help="Longest wait for the last acknowledgements; for the final read."),
    ] = "60s",
    settle: Annotated[
        str, typer.Option("--settle", metavar="DURATION", help="Longest wait until all acknowledged records can be read.")
    ] = "15s",
    interval: Annotated[
        str, typer.Option("--interval", "-i", metavar="DURATION", help="Pause between two lines of progress.")
    ] = "2s",
    history: Annotated[
        Path | None,
        typer.Option("--history", metavar="DIR", help="New directory for the history. Default: a temporary one."),
    ] = None,
    client_config: Annotated[
        list[str] | None, typer.Option("--client-config", "-X", metavar="NAME=VALUE", help="librdkafka property; may be repeated.")
    ] = None,
    topic_config: Annotated[
        list[str] | None, typer.Option("--topic-config", metavar="NAME=VALUE", help="Setting of the topics; may be repeated.")
    ] = None,
    keep_topic: Annotated[bool, typer.Option("--keep-topic", help="Keep the topics even if no rule was violated.")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Gaps, repeats without idempotence and old watermarks are errors, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Verify any Kafka endpoint while you inject faults.

    Producers, readers and groups work until the duration is over or Ctrl-C. Then everything is read once more and judged.
    Prints one page with the rules and their violations. Exit code 0: no violation. 1: a violation. 2: it could not be
    judged.
    """
    if context.invoked_subcommand is not None:
        return
    from headgate.broker.cli.verify import verify_endpoint

    if bootstrap is None:
        raise InvalidError(Reason.INVALID_REQUEST, "an endpoint is missing. option=`--bootstrap`")
    if acks not in ("all", "1"):
        raise _bad_option("--acks", acks, "all or 1")
    plan = {
        "bootstrap": bootstrap,
        "duration_s": _duration_ms("--duration", duration, high_ms=LONGEST_TTL_MS) / 1000,
        "rate": rate,
        "topics": topics,
        "partitions": partitions,
        "replication_factor": replication_factor,
        "producers": producers,
        "groups": groups,
        "acks": acks,
        "value_bytes": value_bytes,
        "patience_s": _duration_ms("--patience", patience, high_ms=LONGEST_TTL_MS) / 1000,
        "settle_s": _duration_ms("--settle", settle, high_ms=LONGEST_TTL_MS) / 1000,
        "progress_s": max(_duration_ms("--interval", interval, high_ms=60_000), 100) / 1000,
        "config": _pairs("--client-config", client_config),
        "topic_config": _pairs("--topic-config", topic_config),
        "keep_topics": keep_topic,
        "strict": strict,
    }
    raise typer.Exit(verify_endpoint(plan, history, json))


@verify_app.command("judge")
def verify_judge(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="History of an earlier run.")],
    strict: Annotated[
        bool, typer.Option("--strict", help="Gaps, repeats without idempotence and old watermarks are errors, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Judge the history of an earlier run again. Sends nothing to the endpoint."""
    from headgate.broker.cli.verify import judge_again

    raise typer.Exit(judge_again(directory, strict, json))


def _owner() -> str:
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for name, value in _split_pairs(option, given):
        if name in pairs:
            raise _bad_option(option, f"{name}={value}", "each name once")
        pairs[name] = value
    return pairs


def _split_pairs(option: str, given: Sequence[str] | None) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for text in given or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise _bad_option(option, text, "NAME=VALUE")
        pairs.append((name, value))
    return pairs


def _duration_ms(option: str, text: str, high_ms: int) -> int:
    from headgate.broker.runtime.config import parse_duration_ms

    ms = parse_duration_ms(text)
    if ms is None or ms > high_ms:
        raise _bad_option(option, text, f"a duration up to {high_ms // 1000}s, such as 500ms")
    return ms


def _separator(text: str | None) -> bytes | None:
    r"""The separator between key and value: the given text, with ``\t`` for a tab."""
    return None if text is None else os.fsencode(text.replace("\\t", "\t"))


def _bad_option(option: str, value: str, expected: str) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, f"option has a wrong value, expected {expected}. option=`{option}` value=`{value}`")
