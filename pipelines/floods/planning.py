"""The plan of a flood against its source and its topic: what is missing in the topic, whether the source fits, where it will stand.

It connects to nothing: the caller brings the topic, earlier runs, and Spark as a judge of expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain

from headgate.broker.client.types import OPEN_GATES_MAX
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.floods.adopting import adoption_note
from headgate.pipelines.floods.framing import framing_note
from headgate.pipelines.floods.job import job_of
from headgate.pipelines.floods.judge import Columns, moved_note, needs_spark
from headgate.pipelines.floods.loaded import notes_of_loaded
from headgate.pipelines.floods.measure import can_count, look
from headgate.pipelines.floods.model import Flood
from headgate.pipelines.floods.plan import PartitionSize, PastRun, Plan, covered, forecast
from headgate.pipelines.floods.spans import TimeSpan, gate_id, source_path, spans_of
from headgate.pipelines.floods.standing import Topic, check_topic, doubles, filled_keys, loaded_rows, other_keys, stands

Analyse = Callable[[Flood, TimeSpan], None]
"""Judges expressions with Spark; raises InvalidError (`analysis.analyse`)."""


def pending(flood: Flood, keys: Sequence[str], topic: Topic | None, now: datetime) -> list[TimeSpan]:
    """The partitions of which rows are missing in the topic, oldest first: those that are not loaded, and, for a flood that
    declares `late`, those whose source has more rows by now.

    Only Spark can count some sources: their late rows are pending until a run has loaded some. Raises as `look`.
    """
    filled = filled_keys(flood, keys, topic)
    found = spans_of(flood.partitions, [key for key in keys if key not in filled])
    if flood.late is None or topic is None:
        return found
    states = {gate.id: gate.state for gate in topic.gates}
    loaded = spans_of(flood.partitions, [key for key in sorted(filled) if states.get(gate_id(flood, key, late=True)) != "filled"])
    sizes = look(flood, loaded, now, skip_missing=True).sizes if loaded and can_count(flood) else ()
    counted = {size.key: size.rows for size in sizes if size.exact}
    for span in loaded:
        rows = loaded_rows(flood, span.key, topic)
        if counted.get(span.key, rows + 1) > rows:
            found.append(replace(span, late=True, loaded=rows))
    return sorted(found)


def make_plan(
    flood: Flood,
    keys: Sequence[str],
    topic: Topic | None,
    now: datetime,
    *,
    deadline: datetime,
    past: Sequence[PastRun] = (),
    analyse: Analyse | None = None,
    skip_missing: bool = False,
    readers: int = 1,
) -> Plan:
    """Judge the source of these partitions and forecast.

    Args:
        readers: consumer groups that read the flood.
        analyse: judges what metadata cannot; None leaves it unjudged, and a note says so.
        skip_missing: partitions without a source are left out, instead of being an error.

    Raises:
        InvalidError: the source or the topic does not fit; the rows are in the topic already under another name. FatalError,
            RetryError: the source cannot be read.
    """
    check_topic(flood, topic)
    spans = pending(flood, keys, topic, now)
    digests = {span.key: job_of(flood, span, cluster="", partitions=1).identity().digests() for span in spans}
    if (reason := doubles(flood, spans, digests, topic)) is not None:
        raise InvalidError(Reason.GATE_CONFLICT, reason)
    found = look(flood, spans, now, skip_missing=skip_missing)
    there = [span for span in spans if span.key not in found.missing]
    with_files = [span for span in there if span.key not in found.empty]
    notes = [
        *found.notes,
        *moved_note(flood, found.columns.values()),
        *framing_note(flood, with_files),
        *adoption_note(flood, with_files),
        *check_expressions(flood, with_files, found.columns, analyse),
    ]
    if there and (note := other_keys(flood, digests[there[0].key], topic)) is not None:
        notes.append(note)
    if (text := _too_many(found.sizes)) is not None:
        if not skip_missing:
            raise InvalidError(Reason.POLICY_VIOLATION, text)
        notes.append(text)
    complete, text = covered(flood, found.sizes)
    if not complete:
        notes.append(text)
    behind = {span.key: span.loaded for span in there if span.late}
    sizes = [_late(size, behind[size.key]) if size.key in behind else size for size in found.sizes]
    plan = forecast(flood, sizes, past, now, deadline, readers)
    filled = filled_keys(flood, keys, topic) - {span.key for span in spans}
    notes += notes_of_loaded(flood, filled, topic, now)
    left_out = [
        *((key, "in the topic already") for key in sorted(filled)),
        *((key, "the source is not there") for key in found.missing),
    ]
    return replace(plan, stands=tuple(stands(flood, with_files, topic)), notes=tuple(notes), left_out=tuple(left_out))


def _too_many(sizes: Sequence[PartitionSize]) -> str | None:
    """Why these partitions do not fit into one run, or None. A run opens all its gates before it loads, so that no live record
    comes between two of them."""
    with_rows = [size.key for size in sizes if size.rows]
    if len(with_rows) <= OPEN_GATES_MAX:
        return None
    return (
        f"one run loads at most {OPEN_GATES_MAX} partitions that have rows: run {with_rows[0]}..{with_rows[OPEN_GATES_MAX - 1]} "
        f"first, then the others. with_rows=`{len(with_rows)}`"
    )


def _late(size: PartitionSize, loaded: int) -> PartitionSize:
    """Only the rows that the topic lacks."""
    rows = max(size.rows - loaded, 0)
    return replace(size, rows=rows, size_bytes=round(size.size_bytes * rows / max(size.rows, 1)), loaded=loaded)


def check_expressions(
    flood: Flood, spans: Sequence[TimeSpan], columns: Mapping[str, Columns | None], analyse: Analyse | None
) -> list[str]:
    """Let Spark judge the expressions that metadata cannot, on the first and the last partition that has some. Returns notes about
    what is left unjudged. Raises InvalidError.

    Args:
        columns: of each partition, by its key.
    """
    left = {span: needs_spark(flood, columns.get(span.key)) for span in spans}
    judged = [span for span, fields in left.items() if fields]
    if not judged:
        return []
    if analyse is None:
        return [f"not judged, for want of Spark: {', '.join(dict.fromkeys(chain.from_iterable(left.values())))}"]
    for span in {source_path(flood, span): span for span in (*judged[:1], *judged[-1:])}.values():
        analyse(flood, span)
    return []
