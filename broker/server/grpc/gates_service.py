"""`headgate.v1.Gates`: history by reference. The leader answers; other brokers pass calls on to it."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message

from headgate.broker.cluster.flood_book import FloodReport, check_report
from headgate.broker.cluster.gates import FILES_MAX, Gate, ParquetExtent, Place, data_prefix
from headgate.broker.control.leader import Leader
from headgate.broker.control.leader_gates import LeaderGates
from headgate.broker.control.participant import Participant
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.server.grpc.forward import Forwarder
from headgate.broker.server.grpc.layout import STATES, file_ref, layout
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.wire.grpc.headgate.v1 import gates_pb2
from headgate.broker.wire.grpc.methods import methods

GATES = methods(gates_pb2.DESCRIPTOR.services_by_name["Gates"])

_PLACES: dict[int, Place] = {
    gates_pb2.GATE_PLACE_UNSPECIFIED: "now",
    gates_pb2.GATE_PLACE_NOW: "now",
    gates_pb2.GATE_PLACE_FRONT: "front",
    gates_pb2.GATE_PLACE_END: "end",
}
_PLACE_NUMBERS = {
    "now": gates_pb2.GATE_PLACE_NOW,
    "front": gates_pb2.GATE_PLACE_FRONT,
    "end": gates_pb2.GATE_PLACE_END,
}


class GatesService:
    """The service of `gates.proto`: the leader answers, other brokers pass calls on to it."""

    def __init__(self, participant: Participant, forwarder: Forwarder) -> None:
        self._participant = participant
        self._forwarder = forwarder

    def _leader(self) -> Leader:
        leader = self._participant.leader
        if leader is None:
            raise RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster any more")
        return leader

    def _gates(self) -> LeaderGates:
        return self._leader().gates

    async def _elsewhere(self, method: str, request: Message, context: Context) -> bytes | None:
        """The leader's answer; None if this broker is the leader."""
        address = self._participant.leader_address()
        return None if address is None else await self._forwarder.unary(address, GATES[method], request, context)

    async def open_gate(self, request: gates_pb2.OpenGateRequest, context: Context) -> gates_pb2.OpenGateResponse | bytes:
        answer = await self._elsewhere("OpenGate", request, context)
        if answer is not None:
            return answer
        if request.place not in _PLACES:
            raise InvalidError(Reason.INVALID_REQUEST, f"no such place. place=`{request.place}`")
        partitions_max = self._participant.engine.settings.partitions_max
        if len(request.rows) > partitions_max:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many partitions. rows=`{len(request.rows)}` max=`{partitions_max}`")
        gates = self._gates()
        gate = await gates.open(
            request.topic,
            request.gate_id,
            _PLACES[request.place],
            list(request.rows),
            request.ttl_ms,
            await self._extents(request.files),
            definition=request.definition,
            owner=request.owner,
        )
        return gates_pb2.OpenGateResponse(gate=self._gate(gates, gate))

    async def fill_gate(self, request: gates_pb2.FillGateRequest, context: Context) -> gates_pb2.FillGateResponse | bytes:
        answer = await self._elsewhere("FillGate", request, context)
        if answer is not None:
            return answer
        gates = self._gates()
        gate = await gates.fill(request.topic, request.gate_id, await self._extents(request.files))
        return gates_pb2.FillGateResponse(gate=self._gate(gates, gate))

    async def renew_gate(self, request: gates_pb2.RenewGateRequest, context: Context) -> gates_pb2.RenewGateResponse | bytes:
        answer = await self._elsewhere("RenewGate", request, context)
        if answer is not None:
            return answer
        gates = self._gates()
        gate = await gates.renew(request.topic, request.gate_id, request.ttl_ms)
        return gates_pb2.RenewGateResponse(gate=self._gate(gates, gate))

    async def release_gate(self, request: gates_pb2.ReleaseGateRequest, context: Context) -> gates_pb2.ReleaseGateResponse | bytes:
        answer = await self._elsewhere("ReleaseGate", request, context)
        if answer is not None:
            return answer
        gates = self._gates()
        gate = await gates.release(request.topic, request.gate_id, owner=request.owner)
        return gates_pb2.ReleaseGateResponse(gate=self._gate(gates, gate))

    async def list_gates(self, request: gates_pb2.ListGatesRequest, context: Context) -> gates_pb2.ListGatesResponse | bytes:
        answer = await self._elsewhere("ListGates", request, context)
        if answer is not None:
            return answer
        gates = self._gates()
        return gates_pb2.ListGatesResponse(gates=[self._gate(gates, gate) for gate in gates.list_all(request.topic)])

    async def describe_gate(
        self, request: gates_pb2.DescribeGateRequest, context: Context
    ) -> gates_pb2.DescribeGateResponse | bytes:
        answer = await self._elsewhere("DescribeGate", request, context)
        if answer is not None:
            return answer
        gates = self._gates()
        gate = gates.describe(request.topic, request.gate_id)
        engine, response = self._participant.engine, gates_pb2.DescribeGateResponse(gate=self._gate(gates, gate))
        async for extent in engine.turns.begin().each(engine.manifest.files_of(gate)):
            response.files.append(file_ref(extent))
        return response

    async def layout(self, request: gates_pb2.LayoutRequest, context: Context) -> gates_pb2.LayoutResponse | bytes:
        answer = await self._elsewhere("Layout", request, context)
        if answer is not None:
            return answer
        engine = self._participant.engine
        return await engine.turns.begin().run(layout(engine.manifest, engine.store.url, request))

    async def report_flood(self, request: gates_pb2.ReportFloodRequest, context: Context) -> gates_pb2.ReportFloodResponse | bytes:
        answer = await self._elsewhere("ReportFlood", request, context)
        if answer is not None:
            return answer
        report = FloodReport(
            topic=request.topic,
            flood_id=request.flood_id,
            phase=request.phase,
            rows_planned=request.rows_planned,
            rows_moved=request.rows_moved,
            rows_written=request.rows_written,
            rows_verified=request.rows_verified,
            message=request.message,
        )
        check_report(report)
        self._leader().report(report)
        return gates_pb2.ReportFloodResponse()

    async def _extents(self, files: Sequence[gates_pb2.FileRef]) -> list[ParquetExtent]:
        if len(files) > FILES_MAX:
            raise InvalidError(Reason.INVALID_REQUEST, f"too many files. files=`{len(files)}` max=`{FILES_MAX}`")
        return [_extent(row) async for row in self._participant.engine.turns.begin().each(files)]

    def _gate(self, gates: LeaderGates, gate: Gate) -> gates_pb2.Gate:
        engine = self._participant.engine
        return gates_pb2.Gate(
            topic=engine.manifest.topics_by_id[gate.topic_id].name,
            id=gate.id,
            place=_PLACE_NUMBERS[gate.place],
            state=STATES[gate.state],
            windows=[
                gates_pb2.GateWindow(partition=window.partition, base_offset=window.base_offset, end_offset=window.end_offset)
                for window in gate.windows
            ],
            store_url=engine.store.url,
            prefix=data_prefix(gate.topic_id),
            opened_ms=gate.opened_ms,
            expires_in_ms=gates.expires_in_ms(gate),
            ttl_ms=gate.ttl_ms,
            filled_ms=gate.filled_ms,
            rows=gate.rows,
            size_bytes=gate.size_bytes,
            files=gate.files,
            digest=gate.digest,
            released_by=gate.released_by,
            definition=gate.definition,
            owner=gate.owner,
        )


def _extent(row: gates_pb2.FileRef) -> ParquetExtent:
    return ParquetExtent(
        partition=row.partition,
        base_offset=row.base_offset,
        end_offset=row.base_offset + row.rows,
        leader_epoch=-1,
        path=row.path,
        size_bytes=row.size_bytes,
        footer_crc32c=row.footer_crc32c,
        timestamp_min_ms=row.timestamp_min_ms,
        timestamp_max_ms=row.timestamp_max_ms,
        adopted_bytes=row.adopted_bytes,
    )
