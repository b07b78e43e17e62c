"""`headgate flood`: its commands and their options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.options import DEFAULT_CLUSTER, Cluster, Json, bad_option, named_pairs
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason
from headgate.broker.runtime.extras import missing

if TYPE_CHECKING:
    from headgate.pipelines.backfill import Backfill

app = typer.Typer(rich_markup_mode=None)


Topic = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic that gets the records.")]
Source = Annotated[
    str | None, typer.Option("--source", "-s", metavar="PATH", help="The path that Spark reads; with --format query, SQL.")
]
SourceFormat = Annotated[str, typer.Option("--format", "-f", help="parquet, csv, json, orc, query, or another format of Spark.")]
Option = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="Option of Spark's reader, such as header=true; may be repeated."),
]
EventTime = Annotated[
    str | None,
    typer.Option(
        "--event-time",
        "-e",
        metavar="COL",
        help="Column that gives a record's time and order. Default: the current time, and the order of the source.",
    ),
]
Headers = Annotated[str | None, typer.Option("--headers", metavar="EXPR", help="A map with the record's headers. Default: none.")]
OrderBy = Annotated[
    list[str] | None, typer.Option("--order-by", metavar="EXPR", help="Orders rows of one event time; may be repeated.")
]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Condition for the rows to read. Default: all rows.")]
FloodId = Annotated[
    str | None,
    typer.Option(
        "--flood-id", metavar="ID", help="A flood with the same id is added only once. Default: derived from these options."
    ),
]
Partitions = Annotated[
    int | None, typer.Option("--partitions", "-p", min=1, help="Create a missing topic with this many partitions.")
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A Spark setting, such as spark.driver.memory=4g; may be repeated."),
]
Certificate = Annotated[
    Path | None,
    typer.Option(
        "--certificate",
        metavar="FILE",
        help="Write the completeness certificate to this file, as JSON; with FILE, that of each partition into this directory.",
    ),
]
ValueFormat = Annotated[
    str | None, typer.Option("--value-format", help="avro, protobuf or json: each value in a schema registry's frame.")
]
KeyFormat = Annotated[str | None, typer.Option("--key-format", help="avro: each key in a schema registry's frame.")]
Registry = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        envvar="HEADGATE_REGISTRY",
        help="The schema registry; the newest schemas of TOPIC-value and TOPIC-key decide.",
    ),
]
Register = Annotated[bool, typer.Option("--register", help="Register schemas of the source's columns.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--partition", metavar="KEY", help="With FILE: a partition, or FIRST..LAST; may be repeated."),
]
Files = Annotated[
    str,
    typer.Option(
        "--files",
        help="rewrite; link or copy: the topic adopts the source's own Parquet files, unread but for keys and times; auto.",
    ),
]
Order = Annotated[str, typer.Option("--order", help="event_time; or source: of files and rows, for adopted files alone.")]
OF_A_FILE = ("partition", "flood")
OF_BOTH = ("file", "cluster", "master", "conf", "certificate", "json")
"""Parameters of `flood run` with a file, and with and without one. All others describe a flood without a file."""


@app.command("run")
def flood_run(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A YAML file with floods.")] = None,
    partition: Keys = None,
    flood: Annotated[str | None, typer.Option("--flood", metavar="NAME", help="With FILE: the flood, if it has several.")] = None,
    topic: Topic = None,
    source: Source = None,
    cluster: Cluster = DEFAULT_CLUSTER,
    source_format: SourceFormat = "parquet",
    option: Option = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="EXPR", help="A column or SQL. Default: no key.")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="EXPR", help="Default: the row as JSON.")] = None,
    value_format: ValueFormat = None,
    key_format: KeyFormat = None,
    registry: Registry = None,
    register: Register = False,
    event_time: EventTime = None,
    headers: Headers = None,
    order_by: OrderBy = None,
    where: Where = None,
    flood_id: FloodId = None,
    place: Annotated[str, typer.Option("--place", help="now, front or end.")] = "now",
    partitions: Partitions = None,
    files: Files = "rewrite",
    order: Order = "event_time",
    file_size: Annotated[str, typer.Option("--file-size", metavar="SIZE", help="Size of a Parquet file.")] = "64MiB",
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Any Spark master.")] = "local[*]",
    conf: Conf = None,
    certificate: Certificate = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read all records back through a client, and compare.")] = False,
    json: Json = False,
) -> int:
    """Bring history into a topic: Spark writes it to the topic's store, and it appears in one step, in front of later live
    records.

    With FILE: a flood of this file, for the partitions of --partition; brokers are raised for it, and released after it. Without
    FILE: the flood that --topic, --source and further options describe. A second run adds nothing.

    Exit code 0: all records are there, from this run or from an earlier one. With FILE also 1: look at the message; 2: a mistake, a
    retry fails again; 75: cluster, store or brokers are not available, a retry may succeed; 130: interrupted.
    """
    problem = missing("pipelines")
    if problem is not None:
        raise FatalError(Reason.UNSUPPORTED, problem)
    given = {name for name in context.params if _is_given(context, name)}
    if file is not None or given & set(OF_A_FILE):
        _check_form(given - set(OF_A_FILE) - set(OF_BOTH), file)
        return _run_file(file or Path("floods.yaml"), flood, partition, cluster, master, conf, certificate, json)
    from headgate.broker.cli.flood import run_flood

    backfill = _backfill(context.params, topic, source)
    output.check_reachable(cluster)
    return run_flood(backfill, master, named_pairs("--conf", conf), certificate, json)


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_form(others: set[str], file: Path | None) -> None:
    """Raise InvalidError if options describe a flood beside those of a file."""
    if others:
        option = "--" + sorted(others)[0].replace("source_format", "format").replace("_", "-")
        said = "the file says this" if file is not None else "--partition and --flood choose from a file"
        raise InvalidError(Reason.INVALID_REQUEST, f"{said}: leave the option out. option=`{option}`")


def _run_file(
    file: Path, flood: str | None, partition: list[str] | None, cluster: str, master: str, conf: list[str] | None,
    certificate: Path | None, json: bool,
) -> int:  # fmt: skip
    from headgate.broker.cli.flood_file import Asked, run_file

    asked = Asked(
        file=file, flood=flood, partitions=partition or (), cluster=cluster, master=master, conf=named_pairs("--conf", conf),
        certificates=certificate,
    )  # fmt: skip
    return run_file(asked, json)


def _backfill(given: Mapping[str, Any], topic: str | None, source: str | None) -> Backfill:
    """The flood that options describe. Raises InvalidError."""
    from headgate.broker.client.gate_admin import Place
    from headgate.broker.runtime.config import parse_size
    from headgate.pipelines.backfill import Backfill
    from headgate.pipelines.framing.declared import Framing

    if topic is None or source is None:
        wanted = "--topic and --source describe a flood; or name a FILE with floods, and --partition"
        raise InvalidError(Reason.INVALID_REQUEST, wanted)
    place, file_size = given["place"], given["file_size"]
    if place not in {known.value for known in Place}:
        raise bad_option("--place", place, "now, front or end")
    file_bytes = parse_size(file_size)
    if file_bytes is None:
        raise bad_option("--file-size", file_size, "a size, such as 64MiB")
    frames: dict[str, Any] = {}
    for part in ("key", "value"):
        if (format := given[f"{part}_format"]) is not None:
            if not given["registry"]:
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"a format is that of a schema registry: name it with --registry. {part}_format=`{format}`",
                )
            frames[f"{part}_frame"] = Framing(
                format=format, registry=given["registry"], subject=f"{topic}-{part}", register=given["register"]
            )
    same = ("cluster", "key", "value", "event_time", "headers", "where", "flood_id", "partitions", "files", "order", "verify")
    return Backfill(
        topic=topic, source=source, format=given["source_format"], options=named_pairs("--option", given["option"]),
        order_by=tuple(given["order_by"] or ()), place=Place(place), file_bytes=file_bytes, **frames,
        **{name: given[name] for name in same},
    )  # fmt: skip


@app.command("verify")
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
) -> int:
    """Read a flood back from the topic through a client: count, sum, look for gaps and duplicates. Exit code 0: all records are
    there."""
    from headgate.broker.cli.flood import verify_flood

    output.check_reachable(cluster)
    return verify_flood(cluster, topic, flood_id, certificate, write, json)


Floods = Annotated[Path, typer.Argument(metavar="FILE", help="The YAML file with the floods.")]


@app.command("check")
def flood_check(file: Floods = Path("floods.yaml"), json: Json = False) -> int:
    """Judge the floods of a file, without a cluster: the file itself, and the columns of each source. Exit code 0: no mistake."""
    from headgate.broker.cli.floods import check

    return check(file, json)


@app.command("plan")
def flood_plan(
    file: Floods = Path("floods.yaml"),
    partition: Annotated[
        list[str] | None,
        typer.Option("--partition", "-p", metavar="KEY", help="A partition, or FIRST..LAST; may be repeated. Default: all."),
    ] = None,
    flood: Annotated[list[str] | None, typer.Option("--flood", metavar="NAME", help="Only this flood; may be repeated.")] = None,
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> int:
    """Plan the floods of a file: rows, bytes, brokers, time, the order in the topic, and what is left out. Exit code 0: all can
    run."""
    from headgate.broker.cli.floods import plan

    output.check_reachable(cluster)
    return plan(file, flood or (), partition or (), cluster, json)


@app.command("list")
def flood_list(file: Floods = Path("floods.yaml"), cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> int:
    """List the floods of a file and their state in the cluster."""
    from headgate.broker.cli.floods import show

    output.check_reachable(cluster)
    return show(file, cluster, json)
