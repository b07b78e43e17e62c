"""Gates: room in a topic for history that is committed by reference, and the places of a topic's records."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum

from headgate.broker.client.cluster import ClusterClient
from headgate.broker.client.file_ref import FileRef as FileRef
from headgate.broker.client.rows import from_row, from_rows
from headgate.broker.client.types import DEFAULT_CLUSTER, Start, TopicPartition
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.wire.grpc.headgate.v1 import gates_pb2
from headgate.broker.wire.grpc.methods import methods

GATES = methods(gates_pb2.DESCRIPTOR.services_by_name["Gates"])
TTL_MS = 3_600_000


class Place(StrEnum):
    """The place of a gate's window.

    Behind existing records (`NOW`: live records continue behind it; `END`: opened and filled in one step), or in front of
    everything (`FRONT`), within the topic's `history.room`.
    """

    NOW = "now"
    FRONT = "front"
    END = "end"


class GateState(StrEnum):
    """`OPEN`: readers stop at its window. `FILLED`: they read it. `RELEASED`: they step over it."""

    OPEN = "open"
    FILLED = "filled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWindow:
    """Offsets [base_offset, end_offset) of one partition."""

    partition: int
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A gate. Its files go to `store_url` under keys that begin with `prefix`, which ends with a slash.

    `windows` has one for each partition, by number; it may be empty. Until the gate is filled, `filled_ms`, `rows`,
    `size_bytes`, `files` are 0 and `digest` is "". `released_by`: ``asked``, ``expired`` or "". `definition` and `owner` are its
    opener's.
    """

    topic: str
    id: str
    place: Place
    state: GateState
    windows: tuple[GateWindow, ...]
    store_url: str
    prefix: str
    opened_ms: int
    expires_in_ms: int
    ttl_ms: int = TTL_MS
    filled_ms: int = 0
    rows: int = 0
    size_bytes: int = 0
    files: int = 0
    digest: str = ""
    released_by: str = ""
    definition: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Offsets [base_offset, end_offset) without records. `open`: readers wait there, because records may still come.

    `gate_id`: the gate whose window, or part of a window, it is; "" for records that were removed before a gate was opened in
    front of them.
    """

    gate_id: str
    base_offset: int
    end_offset: int
    open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedFile:
    """Live records [file.base_offset, end_offset) of a partition that are in a Parquet file by now. Its column `offset` tells
    which of the offsets have a record."""

    file: FileRef
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRange:
    """The records that a reader wants: of all these. None: no limit. All limits are included in the range."""

    partitions: frozenset[int] | None = None
    first_offset: int = 0
    last_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLayout:
    """One partition: [log_start, high_watermark) is readable. Records outside `extents` are read through the lead.

    `grpc_address` and `kafka_address` are the lead's ``host:port``, "" without a lead. `folded` and `left_out`, offsets of files
    without a wanted record, are only there if a range was asked for.
    """

    partition: int
    log_start: int
    high_watermark: int
    grpc_address: str
    kafka_address: str
    extents: tuple[FileRef, ...] = ()
    holes: tuple[Hole, ...] = ()
    folded: tuple[FoldedFile, ...] = ()
    left_out: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of a topic's records. The topic's own files, and files that are to be published, have keys that begin with
    `prefix`, which ends with a slash. `files`: the number of the topic's files, listed or not."""

    topic: str
    topic_id: uuid.UUID
    store_url: str
    prefix: str
    partitions: tuple[PartitionLayout, ...] = field(default=())
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodReport:
    """How far a flood is, for the brokers' pages. `phase`: one of the phases of a flood, or `failed`. `rows_moved`: rows that Spark
    has sorted into partitions."""

    topic: str
    flood_id: str
    phase: str
    rows_planned: int = 0
    rows_moved: int = 0
    rows_written: int = 0
    rows_verified: int = 0
    message: str = ""

    @property
    def is_over(self) -> bool:
        return self.phase in ("done", "failed")

    def with_end(self, phase: str, message: str) -> FloodReport:
        """The report of a flood that ends after this report."""
        return replace(self, phase=phase, message=message)

    def with_progress(self, phase: str, rows_done: int, rows_total: int, message: str) -> FloodReport:
        """The report after this one. `rows_done` counts the rows of the phase."""
        planned = rows_total or self.rows_planned
        moved, written, verified = self.rows_moved, self.rows_written, self.rows_verified
        match phase:
            case "counting" | "opening":
                moved = written = verified = 0
            case "shuffling":
                moved, written, verified = rows_done, 0, 0
            case "writing":
                moved, written, verified = planned, rows_done, 0
            case "verifying":
                moved = written = planned
                verified = rows_done
            case _:
                moved = written = planned
        return replace(
            self,
            phase=phase,
            rows_planned=planned,
            rows_moved=moved,
            rows_written=written,
            rows_verified=verified,
            message=message,
        )


class GateAdmin(ClusterClient):
    """Opens, fills and manages gates. An async context manager.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        timeout_ms: longest wait for one call, with its retries.

    Every call may be repeated: the same call with the same content answers as the first time. Methods raise HeadgateError:
    InvalidError (UNKNOWN_TOPIC; UNKNOWN_GATE; GATE_CONFLICT: other content under the same id, or a state that does not allow the
    call; INVALID_REFERENCE: a file differs from its reference), RetryError when the cluster did not answer in time.
    """

    def __init__(self, cluster: str = DEFAULT_CLUSTER, *, timeout_ms: int = 60_000) -> None:
        super().__init__(cluster, timeout_ms=timeout_ms)

    async def open(
        self,
        topic: str,
        rows: Sequence[int],
        *,
        gate_id: str,
        place: Place = Place.NOW,
        ttl_ms: int = TTL_MS,
        definition: str = "",
        owner: str = "",
    ) -> Gate:
        """Keep room for `rows` records in each partition, by number, in one atomic step.

        From its return on, readers from the beginning wait at the window; live producers and readers at the end do not notice.
        Unless it is filled, released or renewed, the gate is released by itself after `ttl_ms`.

        Args:
            definition: description of the expected content, up to 1,024 characters; for an existing gate it must be the same.
            owner: the opener, up to 100 characters; an existing gate keeps its own.
        """
        request = gates_pb2.OpenGateRequest(
            topic=topic, gate_id=gate_id, place=_PLACES[place], rows=rows, ttl_ms=ttl_ms, definition=definition, owner=owner
        )
        response: gates_pb2.OpenGateResponse = await self._cluster.call(GATES["OpenGate"], request, retry=True)
        return _gate(response.gate)

    async def publish(self, topic: str, files: Sequence[FileRef], *, gate_id: str, definition: str = "", owner: str = "") -> Gate:
        """Append files at the end of the topic: a gate that is opened and filled in one step. Their offsets count from 0."""
        request = gates_pb2.OpenGateRequest(
            topic=topic,
            gate_id=gate_id,
            place=gates_pb2.GATE_PLACE_END,
            ttl_ms=TTL_MS,
            files=[_message(file) for file in files],
            definition=definition,
            owner=owner,
        )
        response: gates_pb2.OpenGateResponse = await self._cluster.call(GATES["OpenGate"], request, retry=True)
        return _gate(response.gate)

    async def fill(self, topic: str, gate_id: str, files: Sequence[FileRef]) -> Gate:
        """Commit the files of all partitions in one atomic step: they are readable at its return. Fewer rows than the window has
        room for leave a gap, which readers step over."""
        request = gates_pb2.FillGateRequest(topic=topic, gate_id=gate_id, files=[_message(file) for file in files])
        response: gates_pb2.FillGateResponse = await self._cluster.call(GATES["FillGate"], request, retry=True)
        return _gate(response.gate)

    async def renew(self, topic: str, gate_id: str, ttl_ms: int | None = None) -> Gate:
        """Restart the time-to-live of an open gate. Raises InvalidError(GATE_CONFLICT) for a gate that is no longer open."""
        request = gates_pb2.RenewGateRequest(topic=topic, gate_id=gate_id, ttl_ms=ttl_ms or 0)
        response: gates_pb2.RenewGateResponse = await self._cluster.call(GATES["RenewGate"], request, retry=True)
        return _gate(response.gate)

    async def release(self, topic: str, gate_id: str, *, owner: str = "") -> Gate:
        """Release an open gate; its window stays empty. Raises InvalidError(GATE_CONFLICT) for a filled gate, and for another
        owner's gate if `owner` is given."""
        request = gates_pb2.ReleaseGateRequest(topic=topic, gate_id=gate_id, owner=owner)
        response: gates_pb2.ReleaseGateResponse = await self._cluster.call(GATES["ReleaseGate"], request, retry=True)
        return _gate(response.gate)

    async def list(self, topic: str | None = None) -> builtins.list[Gate]:
        """All gates, of one topic or of all."""
        response: gates_pb2.ListGatesResponse = await self._cluster.call(
            GATES["ListGates"], gates_pb2.ListGatesRequest(topic=topic or ""), retry=True
        )
        return [_gate(row) for row in response.gates]

    async def describe(self, topic: str, gate_id: str) -> Gate:
        """One gate. Raises InvalidError(UNKNOWN_GATE)."""
        return (await self.describe_files(topic, gate_id))[0]

    async def describe_files(self, topic: str, gate_id: str) -> tuple[Gate, builtins.list[FileRef]]:
        """One gate, with the files that filled it."""
        response: gates_pb2.DescribeGateResponse = await self._cluster.call(
            GATES["DescribeGate"], gates_pb2.DescribeGateRequest(topic=topic, gate_id=gate_id), retry=True
        )
        return _gate(response.gate), list(from_rows(FileRef, response.files))

    async def report_flood(self, report: FloodReport) -> None:
        """Tell the leader how far a flood is. It stores nothing. Raises InvalidError(UNSUPPORTED) if the brokers are too old."""
        request = gates_pb2.ReportFloodRequest(**{field.name: getattr(report, field.name) for field in fields(FloodReport)})
        await self._cluster.call(GATES["ReportFlood"], request, retry=True)

    async def layout(self, topic: str, wanted: RecordRange | None = None) -> Layout:
        """The places of a topic's records. The high watermarks are read after the files, so no file below them is missing.

        Args:
            wanted: only list files and partitions that may have such records, and list folded files, too.
        """
        request = layout_request(topic, wanted)
        response: gates_pb2.LayoutResponse = await self._cluster.call(GATES["Layout"], request, retry=True)
        places: dict[TopicPartition, Start] = {TopicPartition(topic, row.partition): "latest" for row in response.partitions}
        ends = await self._cluster.offsets(places)
        return layout_of(topic, response, {at.partition: found.offset for at, found in ends.items()})


def layout_request(topic: str, wanted: RecordRange | None) -> gates_pb2.LayoutRequest:
    """The request of `GateAdmin.layout`."""
    if wanted is None:
        return gates_pb2.LayoutRequest(topic=topic)
    limits = {**asdict(wanted), "partitions": sorted(wanted.partitions or ())}
    return gates_pb2.LayoutRequest(topic=topic, wanted=gates_pb2.RecordRange(**limits))


def layout_of(topic: str, response: gates_pb2.LayoutResponse, ends: Mapping[int, int]) -> Layout:
    """The answer of a broker. `ends`: high watermarks by partition."""
    partitions = tuple(
        from_row(
            PartitionLayout,
            row,
            high_watermark=ends[row.partition],
            extents=from_rows(FileRef, row.files),
            holes=tuple(from_row(Hole, hole, open=hole.state == gates_pb2.GATE_STATE_OPEN) for hole in row.holes),
            folded=tuple(from_row(FoldedFile, folded, file=from_row(FileRef, folded.file)) for folded in row.folded),
            left_out=tuple((span.base_offset, span.end_offset) for span in row.left_out),
        )
        for row in response.partitions
    )
    return from_row(Layout, response, topic=topic, topic_id=uuid.UUID(bytes=response.topic_id), partitions=partitions)


_PLACES = {
    Place.NOW: gates_pb2.GATE_PLACE_NOW,
    Place.FRONT: gates_pb2.GATE_PLACE_FRONT,
    Place.END: gates_pb2.GATE_PLACE_END,
}
_PLACE_OF = {number: place for place, number in _PLACES.items()}
_STATE_OF = {
    gates_pb2.GATE_STATE_OPEN: GateState.OPEN,
    gates_pb2.GATE_STATE_FILLED: GateState.FILLED,
    gates_pb2.GATE_STATE_RELEASED: GateState.RELEASED,
}


def _message(file: FileRef) -> gates_pb2.FileRef:
    message = gates_pb2.FileRef()
    for known in fields(FileRef):
        value = getattr(file, known.name)
        try:
            setattr(message, known.name, value)
        except (TypeError, ValueError) as error:
            # References also come from the JSON of other programs.
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"a file's reference has a field of a wrong type or size. field=`{known.name}` value=`{value!r}`",
            ) from error
    return message


def _gate(row: gates_pb2.Gate) -> Gate:
    windows = from_rows(GateWindow, row.windows)
    return from_row(Gate, row, place=_PLACE_OF[row.place], state=_STATE_OF[row.state], windows=windows)
