"""The command `headgate sql`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, bad_option
from headgate.broker.runtime.config import parse_size
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.extras import missing

app = typer.Typer(rich_markup_mode=None)
FORMATS = ("table", "csv", "json", "parquet")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL of DuckDB; - reads it from standard input.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="OFFSET|TIME",
            help="End each partition before an offset, as 1000, or 0:1000,1:800 by partition; or before the first record of a "
            "time, as 2026-11-21T10:00:00 (UTC), or 15m (ago).",
        ),
    ] = None,
    form: Annotated[str, typer.Option("--format", "-f", metavar="FORMAT", help="table, csv, json (lines) or parquet.")] = "table",
    target: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Most memory of DuckDB, such as 1GiB; beyond it, it uses the disk."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="URL", help="A schema registry: decoded(value) is the JSON of a value in its frame."),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print what was read of files and from brokers, on stderr.")] = False,
) -> None:
    """Query topics with SQL: each topic is a table.

    Columns: partition, "offset" (in quotes, it is a word of SQL), timestamp, timestamp_type, key, value, headers. key and value are
    bytes: decode(value) ->> '$.user' looks into JSON. Records in files are read from the store, the others from the brokers; the
    query sees what a consumer of committed records can read when it starts.
    """
    if form not in FORMATS:
        raise bad_option("--format", form, ", ".join(FORMATS))
    memory_bytes = None if memory is None else parse_size(memory)
    if memory is not None and not memory_bytes:
        raise bad_option("--memory", memory, "a size, such as 1GiB")
    if form == "parquet" and target is None and sys.stdout.isatty():
        raise InvalidError(Reason.INVALID_REQUEST, "a Parquet file is not for a terminal: give --output FILE")
    problem = missing("sql")
    if problem is not None:
        output.fail(problem, "headgate sql")
        raise typer.Exit(output.EXIT_FAILED)
    from headgate.broker.cli import sql as work

    text = sys.stdin.read() if query == "-" else query
    output.check_reachable(cluster)
    work.run(text, cluster, as_of=as_of, memory_bytes=memory_bytes, registry=registry, form=form, target=target, stats=stats)
