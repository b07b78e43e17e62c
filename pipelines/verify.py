"""Checks that a flood is in its topic: whole, once, and in order. `verify(cluster, topic, ...)`.

Every record of the flood's window is fetched from the brokers, as a Kafka client would fetch it, then counted and summed as the
Spark job did with the source's rows. No Spark is needed, and the memory does not depend on the flood's size.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headgate.broker.client.fetcher import Fetcher
from headgate.broker.client.gate_admin import Gate, GateState
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.pipelines.certificate import Certificate, PartitionCertificate, Tally
from headgate.pipelines.connection import Connection
from headgate.pipelines.identity import parts_of
from headgate.pipelines.progress import Listener, Phase, Progress
from headgate.pipelines.reports import Reports
from headgate.pipelines.tally import tally

if TYPE_CHECKING:
    import numpy.typing as npt
PARALLEL_PARTITIONS = 2
"""Partitions that are read at once: one is decoded while another is fetched."""


def verify(
    cluster: str,
    topic: str,
    *,
    certificate: Certificate | None = None,
    flood_id: str | None = None,
    progress: Listener | None = None,
) -> Certificate:
    """Read a flood's records from the topic and report them.

    Args:
        certificate: the run's certificate; the answer is the same certificate with a new topic's side, compared with the source.
        flood_id: the flood. Without a certificate, the answer has the topic's side only; without both, it covers all readable
            records of the topic.

    Raises:
        InvalidError: no such topic or flood; a certificate of another flood; the flood was never committed, or some of its
            records were removed from the topic since. RetryError: the cluster does not answer.
    """
    with Connection(cluster) as connection, Reports(connection) as reports:
        if certificate is None:
            certificate = _of_flood(connection, topic, flood_id) if flood_id is not None else _of_topic(connection, topic)
        elif certificate.topic != topic:
            raise InvalidError(
                Reason.INVALID_REQUEST, f"certificate is of another topic. certificate=`{certificate.topic}` topic=`{topic}`"
            )
        elif flood_id is not None and certificate.flood_id != flood_id:
            raise InvalidError(
                Reason.INVALID_REQUEST,
                f"certificate is of another flood. certificate=`{certificate.flood_id}` flood_id=`{flood_id}`",
            )
        elif certificate.rows or certificate.files:
            # A gate equal to the certificate's proves that this read covers the flood's window, all of it.
            gate = _filled(connection, topic, certificate.gate_id)
            if certificate.windows != _windows(gate):
                raise InvalidError(
                    Reason.INVALID_REQUEST,
                    f"certificate is of another flood, or not whole: its windows are not those of the gate. gate=`{gate.id}`",
                )
        tell = _teller(reports, topic, certificate.flood_id, progress)
        try:
            looked = connection.call(_look(cluster, topic, certificate, tell))
        except InvalidError as error:
            if error.reason is not Reason.OFFSET_OUT_OF_RANGE:
                raise
            raise InvalidError(
                error.reason, f"records were removed from the topic by retention or by hand, and cannot be read: {error.message}"
            ) from error
        looked = _without_holes(connection, topic, looked)
        ordered = bool(certificate.gate_id)
        if ordered and certificate.rows:
            ordered = "order" not in parts_of(_filled(connection, topic, certificate.gate_id).definition)
        tell(Progress(phase=Phase.DONE, rows_total=certificate.rows, message=f"{certificate.rows:,} records were read back"))
    if not ordered:
        # Neither live records need to be in the order of their times, nor those in the order of their source.
        looked = tuple(replace(part, disordered_rows=None) for part in looked)
    return certificate.with_partitions(looked)


def _teller(reports: Reports, topic: str, flood_id: str, progress: Listener | None) -> Listener:
    """Tells the caller's listener and, if a flood is verified, the cluster. The end is only told to the cluster."""

    def tell(seen: Progress) -> None:
        if flood_id:
            reports.tell(topic, flood_id, seen)
        if progress is not None and seen.phase is not Phase.DONE:
            progress(seen)

    return tell


def _of_flood(connection: Connection, topic: str, flood_id: str) -> Certificate:
    gate = _filled(connection, topic, flood_id)
    return _blank(
        connection.cluster, topic, flood_id, gate.id, str(gate.place),
        _windows(gate),
        files=gate.files, size_bytes=gate.size_bytes, digest=gate.digest,
    )  # fmt: skip


def _of_topic(connection: Connection, topic: str) -> Certificate:
    layout = connection.call(connection.gates.layout(topic))
    for part in layout.partitions:
        for hole in part.holes:
            if hole.open:
                raise RetryError(
                    Reason.GATE_CONFLICT,
                    f"a gate of the topic is open: its flood is not over. topic=`{topic}` gate=`{hole.gate_id}`",
                )
    return _blank(
        connection.cluster, topic, "", "", "",
        [(part.partition, part.log_start, part.high_watermark) for part in layout.partitions],
    )  # fmt: skip


def _without_holes(
    connection: Connection, topic: str, looked: tuple[PartitionCertificate, ...]
) -> tuple[PartitionCertificate, ...]:
    """Subtract the offsets that gates left unused, or that never had records: they are not missing."""
    holes = {
        part.partition: [(hole.base_offset, hole.end_offset) for hole in part.holes]
        for part in connection.call(connection.gates.layout(topic)).partitions
    }
    return tuple(
        replace(
            part,
            gap_rows=(part.gap_rows or 0)
            - sum(max(0, min(end, part.end_offset) - max(base, part.base_offset)) for base, end in holes.get(part.partition, [])),
        )
        for part in looked
    )


def _filled(connection: Connection, topic: str, gate_id: str) -> Gate:
    gate = connection.call(connection.gates.describe(topic, gate_id))
    if gate.state is not GateState.FILLED:
        raise InvalidError(
            Reason.GATE_CONFLICT, f"the flood was not committed. topic=`{topic}` gate=`{gate_id}` state=`{gate.state}`"
        )
    return gate


def _windows(gate: Gate) -> list[tuple[int, int, int]]:
    return [(window.partition, window.base_offset, window.end_offset) for window in gate.windows]


def _blank(
    cluster: str, topic: str, flood_id: str, gate_id: str, place: str, windows: list[tuple[int, int, int]],
    *, files: int = 0, size_bytes: int = 0, digest: str = "",
) -> Certificate:  # fmt: skip
    return Certificate(
        cluster=cluster,
        topic=topic,
        flood_id=flood_id,
        gate_id=gate_id,
        place=place,
        files=files,
        size_bytes=size_bytes,
        digest=digest,
        partitions=tuple(
            PartitionCertificate(partition=partition, base_offset=base, end_offset=end) for partition, base, end in windows
        ),
    )


async def _look(cluster: str, topic: str, certificate: Certificate, progress: Listener) -> tuple[PartitionCertificate, ...]:
    total = certificate.rows
    done = 0

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        progress(Progress(phase=Phase.VERIFYING, rows_done=done, rows_total=total))

    limit = asyncio.Semaphore(PARALLEL_PARTITIONS)
    async with Fetcher(cluster) as fetcher:

        async def one(part: PartitionCertificate) -> PartitionCertificate:
            async with limit:
                seen = Seen(part.base_offset, part.end_offset)
                async for rows in fetcher.read(topic, part.partition, part.base_offset, part.end_offset):
                    await asyncio.to_thread(seen.add, rows)
                    tell(rows.num_rows)
                return seen.certificate(part)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(one(part)) for part in certificate.partitions]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return tuple(task.result() for task in running)


class Seen:
    """The records of one window, in the order in which they arrived."""

    def __init__(self, base_offset: int, end_offset: int) -> None:
        self._size = end_offset - base_offset
        self._next_offset = base_offset
        self._last_ms: int | None = None
        self._tally = Tally()
        self._distinct = 0
        self._duplicates = 0
        self._disordered = 0
        self._span: list[int] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next records, in `headgate.broker.log.history_columns.SCHEMA`."""
        if rows.num_rows == 0:
            return
        self._tally += tally(rows)
        offsets: npt.NDArray[np.int64] = rows.column("offset").to_numpy(zero_copy_only=False)
        times: npt.NDArray[np.int64] = rows.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        # A client gets offsets in ascending order, so an offset is new if it is beyond all earlier ones.
        highest = np.maximum.accumulate(np.concatenate(([self._next_offset - 1], offsets)))
        fresh = int(np.count_nonzero(offsets > highest[:-1]))
        self._distinct += fresh
        self._duplicates += len(offsets) - fresh
        self._next_offset = int(highest[-1]) + 1
        before = times[:1] if self._last_ms is None else np.asarray([self._last_ms])
        self._disordered += int(np.count_nonzero(np.diff(np.concatenate((before, times))) < 0))
        self._last_ms = int(times[-1])
        self._span = [min([int(times.min()), *self._span]), max([int(times.max()), *self._span])]

    def certificate(self, part: PartitionCertificate) -> PartitionCertificate:
        """The certificate with the topic's side of this read."""
        return replace(
            part,
            topic=self._tally,
            timestamp_min_ms=self._span[0] if self._span else None,
            timestamp_max_ms=self._span[1] if self._span else None,
            gap_rows=self._size - self._distinct,
            duplicate_rows=self._duplicates,
            disordered_rows=self._disordered,
        )
