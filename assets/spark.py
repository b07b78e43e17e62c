"""Floods on Spark: partitions of a flood as backfills, with their gates opened ahead and in order. Imported when a flood runs."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from headgate.assets.floods.model import Flood
from headgate.assets.floods.windows import Window, gate_id, predicate, source_path
from headgate.assets.lease import Heartbeat
from headgate.assets.loop import call
from headgate.assets.progress import throttled
from headgate.broker.client.gates import GateAdmin, GateState, Place
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason
from headgate.pipelines.backfill import Backfill, run
from headgate.pipelines.certificate import Certificate
from headgate.pipelines.plan import Rows, count, load, records
from headgate.pipelines.progress import Progress
from headgate.pipelines.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.broker.client import Gate

CALL_MS = 60_000


def start(master: str, driver_memory: str, conf: Mapping[str, str]) -> SparkSession:
    """The session of this process. Raises FatalError when Spark does not start."""
    # Spark creates a directory for tables at its start, although a flood has none.
    places = {"spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "headgate-spark-warehouse")}
    return session(master, app_name="headgate-flood", driver_memory=driver_memory or None, conf={**places, **conf})


def backfill(
    spark: SparkSession, flood: Flood, span: Window, cluster: str, partitions: int, listener: Callable[[Progress], None]
) -> Certificate:
    """Load one partition of a flood into its topic. A partition that is there already adds nothing. Raises HeadgateError."""
    job = job_of(flood, span, cluster, partitions)
    with own_words(spark, flood, job):
        return run(job, spark, progress=listener)


@contextmanager
def own_words(spark: SparkSession, flood: Flood, job: Backfill) -> Iterator[None]:
    """Report an error in a partition's condition in terms of the flood: the condition contains the partition's span of time,
    which the user did not write, so the error is in the event time or in the user's own condition."""
    try:
        yield
    except InvalidError as error:
        if f"where=`{job.where}`" not in error.message:
            raise
        rows_of(spark, replace(job, where=flood.where))
        raise InvalidError(
            Reason.INVALID_CONFIG,
            f"event time is a column whose name is no word: it needs backquotes around it. event_time=`{flood.event_time}`",
        ) from error


def rows_of(spark: SparkSession, job: Backfill) -> Rows:
    """The rows of a partition as records. Raises InvalidError when its expressions do not fit the source."""
    assert isinstance(job.source, str), "a flood's source is a path"
    return records(
        load(spark, job.source, job.format, job.options),
        key=job.key,
        value=job.value,
        event_time=job.event_time,
        headers=None,
        order_by=(),
        where=job.where,
        now_ms=0,
        options=job.options,
    )


@contextmanager
def gates_ahead(
    spark: SparkSession,
    flood: Flood,
    spans: Sequence[Window],
    cluster: str,
    partitions: int,
    most_s: float,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Open the gates of several partitions before the first one is filled, so that no live record stands between two of them.

    Readers from the beginning wait at the first unfilled gate. All gates are renewed until the end. On an error, the gates that
    this run opened are released, except the filled ones.
    """
    opened: list[str] = []
    tell = throttled(say)
    owner = f"headgate-{uuid.uuid4().hex}"
    # Renewal starts with the first gate: counting for the others may take longer than a gate lives.
    beat = Heartbeat("gates of the flood", lambda: _renew(flood, tuple(opened), cluster), flood.gate_ttl_ms, most_s, say)
    try:
        # In front of everything, each gate stands before the one that was opened last.
        for number, span in enumerate(reversed(spans) if flood.place == "front" else spans, 1):
            tell("gates", f"{span.key} ({number} of {len(spans)}): counting, for its gate")
            gate = _open(spark, flood, span, cluster, partitions, owner)
            if gate is not None:
                opened.append(gate)
        if opened:
            say(f"gates open: {len(opened)}; readers from the beginning wait for them, nobody else does")
        yield
    except BaseException:
        for gate in opened:
            try:
                _release(flood, gate, cluster, owner)
            except HeadgateError as error:
                say(f"gate {gate} could not be released, it will expire: {error.message}")
        raise
    finally:
        beat.stop()


def job_of(flood: Flood, span: Window, cluster: str, partitions: int) -> Backfill:
    """A partition of a flood, as a backfill."""
    return Backfill(
        cluster=cluster,
        topic=flood.topic,
        source=source_path(flood, span),
        format=flood.source.format,
        options=flood.source.options,
        key=flood.key,
        value=flood.value,
        event_time=flood.event_time,
        where=predicate(flood, span),
        flood_id=gate_id(flood, span.key),
        place=Place(flood.place),
        partitions=partitions,
        ttl_ms=flood.gate_ttl_ms,
        verify=flood.verify,
    )


def _open(spark: SparkSession, flood: Flood, span: Window, cluster: str, partitions: int, owner: str) -> str | None:
    """Open the gate of a partition; None when it exists already, or the partition has no rows."""
    job = job_of(flood, span, cluster, partitions)
    gate = call(_describe(flood.topic, job.id(), cluster))
    if gate is not None and gate.state is not GateState.RELEASED:
        return None
    with own_words(spark, flood, job):
        counts = count(spark, rows_of(spark, job), partitions)
    if counts.total == 0:
        return None
    opened = call(_open_gate(job, counts.rows, owner))
    return opened.id if opened.owner == owner else None


async def _describe(topic: str, gate: str, cluster: str) -> Gate | None:
    async with GateAdmin(cluster, timeout_ms=CALL_MS) as admin:
        try:
            return await admin.describe(topic, gate)
        except InvalidError as error:
            if error.reason is Reason.UNKNOWN_GATE:
                return None
            raise


async def _open_gate(job: Backfill, rows: Sequence[int], owner: str) -> Gate:
    async with GateAdmin(job.cluster, timeout_ms=CALL_MS) as admin:
        return await admin.open(
            job.topic, rows, gate_id=job.id(), place=job.place, ttl_ms=job.ttl_ms, definition=job.definition(), owner=owner
        )


def _renew(flood: Flood, gates: Sequence[str], cluster: str) -> None:
    async def work() -> None:
        async with GateAdmin(cluster, timeout_ms=CALL_MS) as admin:
            for gate in gates:
                try:
                    await admin.renew(flood.topic, gate, flood.gate_ttl_ms)
                except InvalidError:
                    continue  # filled or released meanwhile

    call(work())


def _release(flood: Flood, gate: str, cluster: str, owner: str) -> None:
    async def work() -> None:
        async with GateAdmin(cluster, timeout_ms=CALL_MS) as admin:
            try:
                await admin.release(flood.topic, gate, owner=owner)
            except InvalidError:
                return  # filled meanwhile, or released and opened by another run

    call(work())
