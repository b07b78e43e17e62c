"""`headgate flood check|plan|list`: the floods of a YAML file, judged, planned and compared with the cluster, without Dagster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.broker.cli import output
from headgate.broker.cli.flood import open_loggers, quiet
from headgate.broker.client.gate_admin import Gate
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, in_words
from headgate.pipelines.calls import apart
from headgate.pipelines.connection import Connection
from headgate.pipelines.floods.asked import floods_of, keys_of
from headgate.pipelines.floods.document import DocumentError
from headgate.pipelines.floods.measure import listing
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.parse import parse_all
from headgate.pipelines.floods.plan import Plan, too_late
from headgate.pipelines.floods.planning import Analyse, make_plan
from headgate.pipelines.floods.spans import (
    LATE,
    TimeSpan,
    deadline_at,
    gates_of,
    middles,
    source_path,
    span_of,
)
from headgate.pipelines.floods.standing import Topic, topic_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOWN_MAX = 50
"""Partitions of one flood that the table shows."""
CALL_MS = 10_000
"""Longest wait for one answer of the cluster, with its retries: these commands only read."""
LOOK_BACK = 31
"""Partitions at each end among which `check` looks for one whose source is there: the newest one may not have arrived."""
SAMPLE_MAX = 8
"""Partitions on which `check` judges a flood: the oldest and the newest whose source is there, and some between them."""
LOOKS_MAX = 64
"""Partitions between them at which `check` looks."""


def read(path: Path) -> list[Flood]:
    """The floods of a file. Raises SomeFailedError with each mistake and its line; InvalidError when the file cannot be read."""
    try:
        return parse_all([(path.read_text(), str(path))])
    except DocumentError as error:
        raise output.SomeFailedError([InvalidError(error.reason, str(problem)) for problem in error.problems]) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(Reason.INVALID_REQUEST, f"floods cannot be read: {in_words(error)}. file=`{path}`") from error


def check(path: Path, as_json: bool) -> int:
    """Judge floods on a sample of the partitions whose source is there, without a cluster. Returns the exit code: 0 without
    mistakes."""
    now = datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    with _analyst() as analyse:
        for flood in read(path):
            rows.append({"flood": flood.name, "topic": flood.topic, **_judged(flood, now, analyse)})
    if as_json:
        output.print_json(rows)
    else:
        shown = [(row["flood"], row["topic"], ", ".join(row["partitions"]), "no" if row["problem"] else "yes") for row in rows]
        output.print_table(("flood", "topic", "looked at", "fits"), shown)
        for row in rows:
            for note in row["notes"]:
                output.print_line(f"{row['flood']}: {note}")
    return _told(rows)


def _judged(flood: Flood, now: datetime, analyse: Analyse | None) -> dict[str, Any]:
    keys: list[str] = []
    try:
        keys = _sampled(flood, now)
        plan = make_plan(flood, keys, None, now, deadline=deadline_at(flood, now), analyse=analyse)
    except HeadgateError as error:
        return {"partitions": keys, "problem": error.message, "notes": []}
    return {"partitions": keys, "problem": None, "notes": list(plan.notes)}


def _sampled(flood: Flood, now: datetime) -> list[str]:
    """The oldest and the newest partition whose source has files, and some between them, one for each path; else the newest one
    that is there, or the newest one of all; none for a flood that begins later. Raises as `listing`."""
    keys = keys_of(flood, (), now)
    files: dict[str, int | None] = {}

    def path(key: str) -> str:
        return source_path(flood, span_of(flood.partitions, key))

    def has_files(key: str) -> bool:
        if (at := path(key)) not in files:
            files[at] = _files_at(flood, key)
        return bool(files[at])

    ends = (next(filter(has_files, some), None) for some in (reversed(keys[-LOOK_BACK:]), keys[:LOOK_BACK]))
    found = {path(key): key for key in ends if key is not None}
    for key in middles(keys, LOOKS_MAX):
        if len(found) >= SAMPLE_MAX:
            break
        if path(key) not in found and has_files(key):
            found[path(key)] = key
    if found:
        return sorted(found.values())
    return [key for key in keys if files.get(path(key)) is not None][-1:] or keys[-1:]


def _files_at(flood: Flood, key: str) -> int | None:
    """The number of files of a partition's source; None if it is not there."""
    try:
        return listing(flood, span_of(flood.partitions, key)).files
    except InvalidError as error:
        if error.reason is not Reason.NOT_FOUND:
            raise
        return None


def plan(path: Path, names: Sequence[str], partitions: Sequence[str], cluster: str, as_json: bool) -> int:
    """Plan floods against the cluster and show the plans. Returns the exit code: 0 if all of them can run."""
    now = datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    floods = floods_of(read(path), names)
    with Connection(cluster, timeout_ms=CALL_MS) as connection, _analyst() as analyse:
        for flood in floods:
            keys = keys_of(flood, partitions, now)
            row: dict[str, Any] = {"flood": flood.name, "topic": flood.topic, "problem": None, "plan": None}
            try:
                made = make_plan(
                    flood, keys, _topic(connection, flood.topic), now, deadline=deadline_at(flood, now), analyse=analyse,
                    skip_missing=not partitions, readers=len(flood.groups),
                )  # fmt: skip
                row |= {"plan": made.to_json(), "problem": too_late(made, now)}
            except HeadgateError as error:
                row["problem"] = error.message
            rows.append(row)
    if as_json:
        output.print_json(rows)
    else:
        for row in rows:
            if row["plan"] is not None:
                _print(Plan.from_json(row["plan"]))
    return _told(rows)


def _print(made: Plan) -> None:
    shown = [
        (partition.key, f"{partition.rows:,}", output.size(partition.size_bytes), "counted" if partition.exact else "estimated")
        for partition in made.partitions[:SHOWN_MAX]
    ]
    if len(made.partitions) > SHOWN_MAX:
        shown.append((f"... {len(made.partitions) - SHOWN_MAX} more", "", "", ""))
    title = f"{made.flood} into {made.topic}"
    output.print_table(("partition", "rows", "size", "how"), shown, title=title, numeric=("rows", "size"))
    facts = [
        ("rows", f"{made.rows:,}"),
        ("size", output.size(made.size_bytes)),
        ("brokers", str(made.brokers)),
        ("lanes", f"{made.lanes} ({made.lanes_why})"),
        ("minutes", f"{made.seconds / 60:.1f} ({made.basis})"),
        ("broker-seconds", f"{made.broker_seconds:,.0f}"),
        ("deadline", made.deadline.isoformat(timespec="seconds")),
    ]
    facts += [("order", text) for text in made.stands]
    facts += [("note", text) for text in made.notes]
    why: dict[str, list[str]] = {}
    for key, reason in made.left_out:
        why.setdefault(reason, []).append(key)
    facts += [("left out", f"{reason}: {', '.join(_short(keys))}") for reason, keys in why.items()]
    output.print_table(("what", "plan"), facts)


def _short(keys: Sequence[str]) -> list[str]:
    return list(keys) if len(keys) < 4 else [f"{keys[0]} ... {keys[-1]} ({len(keys)})"]


def show(path: Path, cluster: str, as_json: bool) -> int:
    """Show floods and their state in the cluster. Returns the exit code 0."""
    now = datetime.now(UTC)
    rows: list[dict[str, Any]] = []
    with Connection(cluster, timeout_ms=CALL_MS) as connection:
        for flood in read(path):
            gates = {gate.id: gate for gate in _gates(connection, flood.topic)}
            keys = keys_of(flood, (), now)
            own = {key: gates[gate] for gate, key in gates_of(flood, keys, gates).items()}
            loaded = sorted(key for key, gate in own.items() if str(gate.state) == "filled")
            open_now = sorted(key for key, gate in own.items() if str(gate.state) == "open")
            names = {own[key].id for key in loaded}
            filled = [gate for gate in gates.values() if str(gate.state) == "filled" and gate.id.partition(LATE)[0] in names]
            rows.append({
                "flood": flood.name,
                "topic": flood.topic,
                "state": "loading" if open_now else "loaded" if keys and len(loaded) == len(keys) else "waiting",
                "loaded": len(loaded),
                "partitions": len(keys),
                "first": loaded[0] if loaded else None,
                "last": loaded[-1] if loaded else None,
                "open": open_now,
                "rows": sum(gate.rows for gate in filled),
                "bytes": sum(gate.size_bytes for gate in filled),
            })  # fmt: skip
    if as_json:
        output.print_json(rows)
        return 0
    shown = [
        (
            *(row[name] for name in ("flood", "topic", "state")),
            f"{row['loaded']} of {row['partitions']}",
            row["last"] or "-",
            f"{row['rows']:,}",
            output.size(row["bytes"]),
        )
        for row in rows
    ]
    output.print_table(("flood", "topic", "state", "loaded", "last", "rows", "size"), shown, numeric=("rows", "size"))
    return 0


def _topic(connection: Connection, name: str) -> Topic | None:
    try:
        found = connection.call(connection.admin.describe_topic(name))
    except InvalidError as error:
        if error.reason is not Reason.UNKNOWN_TOPIC:
            raise
        return None
    return topic_of(found, _gates(connection, name))


def _gates(connection: Connection, topic: str) -> list[Gate]:
    try:
        return connection.call(connection.gates.list(topic))
    except InvalidError as error:
        if error.reason is not Reason.UNKNOWN_TOPIC:
            raise
        return []


@contextmanager
def _analyst() -> Iterator[Analyse | None]:
    """Spark as a judge of expressions, started at the first one; None where it is not installed."""
    if find_spec("pyspark") is None:
        yield None
        return
    from headgate.pipelines.floods.analysis import analyse
    from headgate.pipelines.session import cancel_all, end, session

    with ExitStack() as held:
        started: list[SparkSession] = []

        def judge(flood: Flood, span: TimeSpan) -> None:
            doing = "judges" if started else "starts, to judge"
            output.fail(f"{flood.name}: Spark {doing} its expressions on {span.key}", "headgate flood")
            if not started:
                held.enter_context(quiet())
                open_loggers()
                master = f"local[{min(os.cpu_count() or 1, 2)}]"
                started.append(apart(lambda: session(master, app_name="headgate flood check")))
                held.callback(end, started[0])
            apart(lambda: analyse(started[0], flood, span), cancel_all)

        yield judge


def _told(rows: Sequence[dict[str, Any]]) -> int:
    """Tell the problems on stderr. Returns the exit code."""
    for row in rows:
        for line in (row["problem"] or "").splitlines():
            output.fail(f"{row['flood']}: {line}", "headgate flood")
    return output.EXIT_FAILED if any(row["problem"] for row in rows) else 0
