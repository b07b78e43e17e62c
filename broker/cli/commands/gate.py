"""``headgate gate``: room for history, and the files that fill it."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.broker.cli import output
from headgate.broker.cli.command import command
from headgate.broker.cli.options import (
    DEFAULT_CLUSTER,
    INT64_MAX,
    LONGEST_TTL_MS,
    Cluster,
    GateId,
    Json,
    NewTtl,
    TopicName,
    duration_ms,
)
from headgate.broker.client import Admin, FileRef, Gate, GateAdmin, GateState, Place
from headgate.broker.runtime.errors import InvalidError, Reason, in_words

COLUMNS = ("topic", "gate", "state", "place", "partitions", "room", "rows", "size", "left")
OPTIONAL = ("partitions", "place", "size")
NUMERIC = ("partitions", "room", "rows", "size")

app = typer.Typer(rich_markup_mode=None)


@command(app, "open")
def open_one(
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
) -> Coroutine[Any, Any, None]:
    """Keep offsets free for history. Live records continue behind them; readers from the beginning wait there."""
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
    ttl_ms = duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)

    async def work() -> None:
        wanted = counts
        if each is not None:
            async with Admin(cluster) as admin:
                wanted = [each] * (await admin.describe_topic(topic)).topic.partitions
        async with GateAdmin(cluster) as gates:
            _show(await gates.open(topic, wanted, gate_id=gate, place=Place(place), ttl_ms=ttl_ms), json)

    return work()


@command(app, "fill")
async def fill(
    topic: TopicName,
    gate: GateId,
    refs: Annotated[str, typer.Argument(metavar="REFS", help="A JSON list of file references, or -.")],
    cluster: Cluster = DEFAULT_CLUSTER,
    json: Json = False,
) -> None:
    """Commit uploaded files, all at once."""
    files = _read_refs(refs)
    async with GateAdmin(cluster) as gates:
        _show(await gates.fill(topic, gate, files), json)


@command(app, "renew")
def renew(
    topic: TopicName,
    gate: GateId,
    cluster: Cluster = DEFAULT_CLUSTER,
    ttl: NewTtl = None,
    json: Json = False,
) -> Coroutine[Any, Any, None]:
    """Start the time to live of an open gate again."""
    ttl_ms = None if ttl is None else duration_ms("--ttl", ttl, high_ms=LONGEST_TTL_MS)

    async def work() -> None:
        async with GateAdmin(cluster) as gates:
            _show(await gates.renew(topic, gate, ttl_ms), json)

    return work()


@command(app, "release")
async def release(topic: TopicName, gate: GateId, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Give up an open gate: readers skip it."""
    async with GateAdmin(cluster) as gates:
        _show(await gates.release(topic, gate), json)


@command(app, "list")
async def list_all(
    cluster: Cluster = DEFAULT_CLUSTER,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only gates of this topic.", show_default=False)] = None,
    json: Json = False,
    topic_option: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The same, as an option.")] = None,
) -> None:
    """List gates, including those that are no longer open."""
    async with GateAdmin(cluster) as gates:
        found = await gates.list(topic or topic_option)
    if json:
        output.print_json([_as_json(gate) for gate in found])
        return
    output.print_table(COLUMNS, rows_of(found), numeric=NUMERIC)


@command(app, "describe")
async def describe(topic: TopicName, gate: GateId, cluster: Cluster = DEFAULT_CLUSTER, json: Json = False) -> None:
    """Show a gate's windows and files."""
    async with GateAdmin(cluster) as gates:
        found, files = await gates.describe_files(topic, gate)
    if json:
        output.print_json({**_as_json(found), "refs": [asdict(file) for file in files]})
        return
    _show(found, False)
    output.print_line(f"files go to {found.store_url} under {found.prefix}")
    by_partition: dict[int, list[FileRef]] = {}
    for file in files:
        by_partition.setdefault(file.partition, []).append(file)
    output.print_table(
        ("partition", "first", "end", "room", "rows", "files", "size"),
        [
            (
                window.partition,
                window.base_offset,
                window.end_offset,
                window.end_offset - window.base_offset,
                sum(file.rows for file in by_partition.get(window.partition, ())),
                len(by_partition.get(window.partition, ())),
                output.size(sum(file.size_bytes for file in by_partition.get(window.partition, ()))),
            )
            for window in found.windows
        ],
        numeric=("partition", "first", "end", "room", "rows", "files", "size"),
    )


def rows_of(gates: Sequence[Gate]) -> list[tuple[object, ...]]:
    """Rows of a table with `COLUMNS`."""
    return [
        (
            gate.topic,
            gate.id,
            f"{gate.state.value} ({gate.released_by})" if gate.released_by else gate.state.value,
            gate.place.value,
            len(gate.windows),
            f"{sum(window.end_offset - window.base_offset for window in gate.windows):,}",
            f"{gate.rows:,}" if gate.state is GateState.FILLED else "",
            output.size(gate.size_bytes) if gate.state is GateState.FILLED else "",
            output.duration(gate.expires_in_ms) if gate.state is GateState.OPEN else "",
        )
        for gate in gates
    ]


def _read_refs(source: str) -> list[FileRef]:
    """References of files from JSON: a list of objects with the fields of `FileRef`. Raises InvalidError."""
    import msgspec

    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        return msgspec.json.decode(text, type=list[FileRef])
    except (OSError, ValueError) as error:
        text = f"expected a JSON list of file references: {in_words(error)}. source=`{source}`"
        raise InvalidError(Reason.INVALID_REQUEST, text) from error


def _show(gate: Gate, json: bool) -> None:
    if json:
        output.print_json(_as_json(gate))
        return
    room = sum(window.end_offset - window.base_offset for window in gate.windows)
    what = f"gate {gate.id} of topic {gate.topic} is {gate.state.value}"
    match gate.state:
        case GateState.OPEN:
            detail = f"room for {output.plural(room, 'record')}, {output.duration(gate.expires_in_ms)} left"
        case GateState.FILLED:
            detail = f"{output.plural(gate.rows, 'record')} in {output.plural(gate.files, 'file')}, {output.size(gate.size_bytes)}"
        case GateState.RELEASED:
            detail = gate.released_by
    output.print_line(f"{what}: {detail}")


def _as_json(gate: Gate) -> dict[str, object]:
    return {**asdict(gate), "place": gate.place.value, "state": gate.state.value}
