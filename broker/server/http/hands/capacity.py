"""Gates and capacity in a person's hands: release a gate; open a reservation, and give it back; drain a broker."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.setting_kinds import parse_duration_ms
from headgate.broker.runtime.tasks import looked_at
from headgate.broker.server.http.hands.room import Hand, Room
from headgate.broker.wire.grpc.headgate.v1 import capacity_pb2, control_pb2, gates_pb2
from headgate.broker.wire.grpc.methods import methods

GATES = methods(gates_pb2.DESCRIPTOR.services_by_name["Gates"])
CAPACITY = methods(capacity_pb2.DESCRIPTOR.services_by_name["Capacity"])
CONTROL = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])
WINDOWS_MAX = 500
"""Windows of one gate, and segments of one broker, that are listed."""
DRAIN_S = 10.0
"""Longest time, in seconds, for which a browser waits for a drain. Then the broker's page tells how far it is."""
SENTENCES = {
    "released": "The gate is released: its windows are gaps now, and readers step over them.",
    "opened": "The reservation is open.",
    "given": "The reservation is given back.",
}


class CapacityPages:
    """The answers of ``/gate``, ``/reservations`` and ``/broker``, and the acts on these."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._drains: set[asyncio.Task[control_pb2.ReshardResponse]] = set()
        """Drains under way."""

    async def gate(self, request: Request) -> Response:
        """One gate with its windows."""
        hand, values = await self._room.hand(request), request.query_params
        topic, gate_id = values.get("topic", ""), values.get("id", "")
        answer: gates_pb2.ListGatesResponse = await hand.inner.call(
            GATES["ListGates"], gates_pb2.ListGatesRequest(topic=topic), hand.visitor.client
        )
        gate = next((gate for gate in answer.gates if gate.id == gate_id and gate.topic == topic), None)
        if gate is None:
            raise InvalidError(Reason.UNKNOWN_GATE, f"there is no such gate, or you may not see it. gate=`{gate_id[:250]}`")
        return await self._room.page(
            "gate",
            self._room.entrance.known(hand.visitor),
            gate=gate,
            windows=gate.windows[:WINDOWS_MAX],
            is_open=gate.state == gates_pb2.GATE_STATE_OPEN,
            offsets=sum(window.end_offset - window.base_offset for window in gate.windows),
            done=SENTENCES.get(values.get("done", ""), ""),
        )

    async def reservations(self, request: Request) -> Response:
        """The open reservations, and the form of a new one."""
        hand = await self._room.hand(request)
        answer: capacity_pb2.ListReservationsResponse = await hand.inner.call(
            CAPACITY["ListReservations"], capacity_pb2.ListReservationsRequest(), hand.visitor.client
        )
        return await self._room.page(
            "reservations",
            self._room.entrance.known(hand.visitor),
            reservations=answer.reservations,
            done=SENTENCES.get(request.query_params.get("done", ""), ""),
        )

    async def broker(self, request: Request) -> Response:
        """One broker with its segments."""
        hand, number = await self._room.hand(request), request.query_params.get("id", "")
        seen: control_pb2.DescribeResponse = await hand.inner.order(
            CONTROL["Describe"], control_pb2.DescribeRequest(), hand.visitor.client
        )
        found = next((row for row in seen.members if str(row.member.broker_id) == number and not row.member.role), None)
        if found is None:
            raise InvalidError(Reason.NOT_FOUND, f"there is no live broker of this number. broker=`{number[:50]}`")
        segments = [row for row in seen.segments if row.broker_id == found.member.broker_id]
        return await self._room.page(
            "broker",
            self._room.entrance.known(hand.visitor),
            number=number,
            address=f"{found.member.host}:{found.member.kafka_port}",
            is_draining=found.draining,
            is_leader=found.member.broker_id == seen.leader_broker_id,
            segments=segments[:WINDOWS_MAX],
            segments_total=len(segments),
            others=sum(not row.draining and not row.member.role and row is not found for row in seen.members),
        )

    # -- acts

    async def release_gate(self, hand: Hand, fields: dict[str, str]) -> Response:
        topic, gate_id = fields.get("topic", ""), fields.get("id", "")
        if fields.get("confirm", "").strip() != gate_id:
            raise InvalidError(Reason.INVALID_REQUEST, "to release the gate, write its id into the field")
        request = gates_pb2.ReleaseGateRequest(topic=topic, gate_id=gate_id)
        await hand.inner.call(GATES["ReleaseGate"], request, hand.visitor.client)
        return RedirectResponse("/gate?" + urlencode({"topic": topic, "id": gate_id, "done": "released"}), 303)

    async def reserve(self, hand: Hand, fields: dict[str, str]) -> Response:
        brokers, ttl_ms = fields.get("brokers", "").strip(), parse_duration_ms(fields.get("time", ""))
        if not (brokers.isascii() and brokers.isdigit() and len(brokers) < 5):
            raise InvalidError(Reason.INVALID_REQUEST, f"not a number of brokers. value=`{brokers[:50]}`")
        if ttl_ms is None:
            raise InvalidError(Reason.INVALID_REQUEST, "write the time as 30m, 2h or 1d")
        request = capacity_pb2.OpenReservationRequest(
            owner=hand.visitor.name or "the page", brokers=int(brokers), ttl_ms=min(ttl_ms, 1 << 62)
        )
        await hand.inner.call(CAPACITY["OpenReservation"], request, hand.visitor.client)
        return RedirectResponse("/reservations?done=opened", 303)

    async def give_back(self, hand: Hand, fields: dict[str, str]) -> Response:
        request = capacity_pb2.ReleaseReservationRequest(id=fields.get("id", ""))
        await hand.inner.call(CAPACITY["ReleaseReservation"], request, hand.visitor.client)
        return RedirectResponse("/reservations?done=given", 303)

    async def drain(self, hand: Hand, fields: dict[str, str]) -> Response:
        """Take all segments from a broker. The drain goes on when the browser waits no longer."""
        number = fields.get("id", "")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise InvalidError(Reason.INVALID_REQUEST, f"not a number of a broker. value=`{number[:50]}`")
        if fields.get("confirm", "").strip() != number:
            raise InvalidError(Reason.INVALID_REQUEST, "to drain the broker, write its number into the field")
        request = control_pb2.ReshardRequest(drain=control_pb2.ReshardRequest.Drain(broker_id=int(number)))
        drain = asyncio.create_task(hand.inner.order(CONTROL["Reshard"], request, hand.visitor.client), name="drain")
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)
        drain.add_done_callback(looked_at)
        await asyncio.wait((drain,), timeout=DRAIN_S)
        if drain.done():
            drain.result()
        return RedirectResponse(f"/broker?id={number}", 303)
