"""Commands that write and read records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, TopicName, TopicNames, bad_option, separator_bytes, split_pairs
from headgate.broker.runtime.errors import InvalidError, Reason

if TYPE_CHECKING:
    from headgate.broker.schemas.decoder import Decoder

app = typer.Typer(rich_markup_mode=None)


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
    json: Annotated[
        bool,
        typer.Option("--json", help="A line is a JSON object as `consume --json` prints it: key, value, headers, timestamp_ms."),
    ] = False,
) -> None:
    """Write one record per line, from files or standard input. Counts the records that are durable."""
    from headgate.broker.cli.produce import Format, produce_lines

    if compression not in ("none", "gzip", "snappy", "lz4", "zstd"):
        raise bad_option("--compression", compression, "none, gzip, snappy, lz4 or zstd")
    headers = tuple((name, os.fsencode(value)) for name, value in split_pairs("--header", header))
    separator = separator_bytes(key_separator)
    if separator == b"":
        raise bad_option("--key-separator", "", "at least one character")
    if json and (separator is not None or null_value is not None):
        raise InvalidError(Reason.INVALID_REQUEST, "--json has key and null itself: give no --key-separator and no --null-value")
    line_format = Format(separator, None if null_value is None else os.fsencode(null_value), headers, partition, json)
    output.check_reachable(cluster)
    raise typer.Exit(output.run(produce_lines(cluster, topic, files or [], line_format, compression)))


@app.command()
def consume(
    topics: TopicNames,
    cluster: Cluster = DEFAULT_CLUSTER,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", "-b", help="Start at the first record.")] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset", "-o", metavar="OFFSET", help="N: start there. -N: N records before the end. FROM:TO: end before TO."
        ),
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
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="GROUP", help="Continue at this group's positions, and move them. It has no members."
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="Such as '%t %p %o %T %k %v %h\\n': topic, partition, offset, time in ms, key, value, headers; %K %S: sizes.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per record, with time and headers.")] = False,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="A schema registry: keys and values in its frame are printed as JSON."),
    ] = None,
) -> None:
    """Print records as they arrive, until Ctrl-C. Starts at the end by default."""
    from headgate.broker.cli.consume import Reading, consume_records, parse_start
    from headgate.broker.cli.record_format import Printer

    if (pattern is not None) + json + (key_separator is not None) > 1:
        raise InvalidError(Reason.INVALID_REQUEST, "give only one of --format, --json and --key-separator")
    start, until = parse_start(from_beginning=from_beginning, offset=offset, timestamp=timestamp)
    printer = Printer(json, separator_bytes(key_separator), pattern, None if registry is None else _decoder(registry))
    reading = Reading(
        topics=list(dict.fromkeys(topics)), partitions=partition or None, start=start, until=until, count=count,
        exit_at_end=exit_at_end, group=group,
    )  # fmt: skip
    output.check_reachable(cluster)
    output.run(consume_records(cluster, reading, printer))


def _decoder(registry: str) -> Decoder:
    from headgate.broker.schemas.decoder import Decoder  # slow to import, and few read framed records

    return Decoder.of(registry)
