"""``headgate gate``: room for history, and the files that fill it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from headgate.broker.cli import output
from headgate.broker.client import Admin, FileRef, Gate, GateAdmin, GateState, Place
from headgate.broker.runtime.errors import InvalidError, Reason

COLUMNS = ("topic", "gate", "state", "place", "partitions", "room", "rows", "size", "left")
OPTIONAL = ("partitions", "place", "size")
NUMERIC = ("partitions", "room", "rows", "size")


async def open_one(
    cluster: str, topic: str, gate_id: str, rows: Sequence[int], each: int | None, place: str, ttl_ms: int, json: bool
) -> None:
    """Open a gate; `each`: the same number of rows for every partition."""
    if each is not None:
        async with Admin(cluster) as admin:
            rows = [each] * (await admin.describe_topic(topic)).topic.partitions
    async with GateAdmin(cluster) as gates:
        _show(await gates.open(topic, rows, gate_id=gate_id, place=Place(place), ttl_ms=ttl_ms), json)


async def fill(cluster: str, topic: str, gate_id: str, source: str, json: bool) -> None:
    """Commit files; `source` is a JSON file with their references, or ``-``."""
    refs = read_refs(source)
    async with GateAdmin(cluster) as gates:
        _show(await gates.fill(topic, gate_id, refs), json)


async def renew(cluster: str, topic: str, gate_id: str, ttl_ms: int | None, json: bool) -> None:
    """Start a gate's time to live again."""
    async with GateAdmin(cluster) as gates:
        _show(await gates.renew(topic, gate_id, ttl_ms), json)


async def release(cluster: str, topic: str, gate_id: str, json: bool) -> None:
    """Release a gate."""
    async with GateAdmin(cluster) as gates:
        _show(await gates.release(topic, gate_id), json)


async def list_all(cluster: str, topic: str | None, json: bool) -> None:
    """Gates of a topic, or of all."""
    async with GateAdmin(cluster) as gates:
        found = await gates.list(topic)
    if json:
        output.print_json([_as_json(gate) for gate in found])
        return
    output.print_table(COLUMNS, rows_of(found), numeric=NUMERIC)


async def describe(cluster: str, topic: str, gate_id: str, json: bool) -> None:
    """One gate: its windows, and its files."""
    async with GateAdmin(cluster) as gates:
        gate, files = await gates.describe_files(topic, gate_id)
    if json:
        output.print_json({**_as_json(gate), "refs": [asdict(file) for file in files]})
        return
    _show(gate, False)
    output.print_line(f"files go to {gate.store_url} under {gate.prefix}")
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
            for window in gate.windows
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


def read_refs(source: str) -> list[FileRef]:
    """References of files from JSON: a list of objects with the fields of `FileRef`. Raises InvalidError."""
    import msgspec

    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
        return msgspec.json.decode(text, type=list[FileRef])
    except (OSError, ValueError) as error:
        raise InvalidError(
            Reason.INVALID_REQUEST, f"expected a JSON list of file references: {error}. source=`{source}`"
        ) from error


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
