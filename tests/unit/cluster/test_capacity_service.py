"""`Capacity` and KEDA's `ExternalScaler` over real gRPC channels: a leader, and a broker that forwards calls to it.

Runs: a small control plane in memory with the real services, handlers, forwarding and Python client. Compared: the numbers of
both services at both brokers; reasons of errors. A mismatch means that a fleet follows
another number than users see, or that KEDA gets no number when its Service picks a broker that does not lead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.message import Message

from headgate.broker.client.control import Control
from headgate.broker.cluster.capacity import (
    Deadlines,
    Desired,
    LoadDemand,
    OpenReservation,
    Reservation,
    desired_brokers,
    opened,
    renewed,
)
from headgate.broker.runtime.errors import InvalidError, Reason, RetryError
from headgate.broker.server.grpc.capacity_service import CAPACITY, METRIC, SCALER, CapacityService, ExternalScalerService
from headgate.broker.server.grpc.forward import Forwarder
from headgate.broker.server.grpc.handlers import CallCounts, service_handler
from headgate.broker.wire.grpc.headgate.v1 import capacity_pb2, externalscaler_pb2
from headgate.broker.wire.grpc.methods import Method
from tests.support.errors import raises

WAIT_S = 90


class PaperControl:
    """`CapacityView` in memory. `leads`: this broker; `elsewhere`: the leader's address, None: unknown."""

    def __init__(self, *, leads: bool) -> None:
        self.leads = leads
        self.elsewhere: str | None = None
        self.stored: dict[str, Reservation] = {}
        self.deadlines = Deadlines()
        self.minimum = 1

    def leader(self) -> str | None:
        if not self.leads and self.elsewhere is None:
            raise RetryError(Reason.NOT_LEADER, "nobody leads the cluster at the moment")
        return None if self.leads else self.elsewhere

    async def open_reservation(self, reservation: Reservation) -> OpenReservation:
        return self._put(opened(reservation, self.stored))

    async def renew_reservation(self, reservation_id: str, ttl_ms: int | None) -> OpenReservation:
        return self._put(renewed(reservation_id, ttl_ms, self.stored))

    async def release_reservation(self, reservation_id: str) -> bool:
        gone = self.stored.pop(reservation_id, None)
        self.changed()
        return gone is not None

    def _put(self, reservation: Reservation) -> OpenReservation:
        self.stored[reservation.id] = reservation
        self.changed()
        return OpenReservation(reservation=reservation, left_ms=reservation.ttl_ms)

    def reservations(self) -> list[OpenReservation]:
        return self.deadlines.open(0)

    def desired(self) -> Desired:
        return desired_brokers(self.minimum, self.reservations(), LoadDemand(1, 0))

    def live_brokers(self) -> int:
        return 2

    def changed(self) -> None:
        self.deadlines.observe(self.stored, 0)


class Door:
    """One broker's server."""

    def __init__(self, view: PaperControl) -> None:
        self.view = view
        self.forwarder = Forwarder()
        self.address = ""

    def capacity_handlers(self) -> list[grpc.GenericRpcHandler]:
        given, counts = (self.view, self.forwarder), CallCounts()
        services = {
            capacity_pb2.DESCRIPTOR.services_by_name["Capacity"]: CapacityService(*given),
            externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"]: ExternalScalerService(*given),
        }
        return [service_handler(service, made, counts) for service, made in services.items()]

    async def start(self) -> None:
        self.server = grpc.aio.server(handlers=self.capacity_handlers())
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(self.address)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(1)
        await self.forwarder.close()

    async def ask(self, method: Method, request: Message) -> Any:
        call: Any = self.channel.unary_unary(method.path)
        return method.response.FromString(await call(request.SerializeToString(), timeout=WAIT_S))


@pytest_asyncio.fixture
async def doors() -> AsyncIterator[tuple[Door, Door]]:
    """(the leader, the other broker)."""
    leader, other = Door(PaperControl(leads=True)), Door(PaperControl(leads=False))
    await leader.start()
    await other.start()
    other.view.elsewhere = leader.address
    yield leader, other
    await other.stop()
    await leader.stop()


async def keda(door: Door) -> tuple[bool, int, float, float]:
    """KEDA's requests and its result: (active, metric, metric as a float, replicas that the HPA computes from it)."""
    who = externalscaler_pb2.ScaledObjectRef(name="headgate", namespace="default", scalerMetadata={"scalerAddress": door.address})
    active = await door.ask(SCALER["IsActive"], who)
    (spec,) = (await door.ask(SCALER["GetMetricSpec"], who)).metricSpecs
    request = externalscaler_pb2.GetMetricsRequest(scaledObjectRef=who, metricName=spec.metricName)
    (value,) = (await door.ask(SCALER["GetMetrics"], request)).metricValues
    assert spec.metricName == value.metricName == METRIC and spec.targetSize == spec.targetSizeFloat
    return active.result, value.metricValue, value.metricValueFloat, value.metricValueFloat / spec.targetSizeFloat


async def test_a_reservation_lives_at_any_broker_and_keda_sees_the_same_number(doors: tuple[Door, Door]) -> None:
    leader, other = doors
    async with Control(other.address) as control:
        made = await control.open_reservation(5, 60_000, owner="dagster", reservation_id="flood-1", lanes=2)
        assert (made.id, made.owner, made.brokers, made.ttl_ms, made.left_ms) == ("flood-1", "dagster", 5, 60_000, 60_000)
        assert made.lanes == 2 and "holds 5 brokers and 2 lanes" in (await control.desired_brokers()).reasons[0]
        assert leader.view.stored["flood-1"].brokers == 5 and not other.view.stored
        for door in doors:
            assert await keda(door) == (True, 5, 5.0, 5.0)
        desired = await control.desired_brokers()
        assert (desired.brokers, desired.live_brokers) == (5, 2) and "flood-1 of dagster" in desired.reasons[0]
        assert (await control.renew_reservation("flood-1")).ttl_ms == 60_000
        renewed = await control.renew_reservation("flood-1", 90_000)
        assert (renewed.ttl_ms, renewed.lanes) == (90_000, 2)
        assert [one.id for one in await control.reservations()] == ["flood-1"]
        assert await control.release_reservation("flood-1") is True
        assert await control.release_reservation("flood-1") is False
        assert await control.reservations() == []
        with raises(InvalidError, Reason.NOT_FOUND):
            await control.renew_reservation("flood-1")
    for door in doors:
        assert await keda(door) == (True, 1, 1.0, 1.0)


async def test_an_id_is_chosen_where_none_is_given(doors: tuple[Door, Door]) -> None:
    for door in doors:
        async with Control(door.address) as control:
            made = [await control.open_reservation(2, 5000) for _ in range(2)]
        assert made[0].id != made[1].id and all(len(one.id) == 32 for one in made)


@pytest.mark.parametrize(("brokers", "ttl_ms", "says"), [(10_000, 1000, "1 to 64 brokers"), (0, 1000, "1 to 64"), (1, 1, "7 days")])
async def test_limits_are_said(doors: tuple[Door, Door], brokers: int, ttl_ms: int, says: str) -> None:
    for door in doors:
        async with Control(door.address) as control:
            with pytest.raises(InvalidError, match=says):
                await control.open_reservation(brokers, ttl_ms)
            for lanes in (65, -1):
                with pytest.raises(InvalidError, match="0 to 64 lanes"):
                    await control.open_reservation(1, 1000, lanes=lanes)


async def test_a_fleet_that_keeps_none_is_told_so(doors: tuple[Door, Door]) -> None:
    leader, other = doors
    leader.view.desired = lambda: Desired(brokers=0, reasons=("the minimum is 0 brokers",))  # type: ignore[method-assign]
    assert await keda(other) == (False, 0, 0.0, 0.0)


async def status(door: Door, method: Method, request: Message) -> tuple[grpc.StatusCode, str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await door.ask(method, request)
    error = caught.value
    metadata = error.trailing_metadata()
    return error.code(), str(None if metadata is None else metadata.get("headgate-reason")), error.details() or ""


async def test_without_a_leader_it_may_be_tried_again(doors: tuple[Door, Door]) -> None:
    leader, other = doors
    request = capacity_pb2.GetDesiredBrokersRequest()
    for elsewhere in (None, "127.0.0.1:1"):
        other.view.elsewhere = elsewhere
        code, reason, _ = await status(other, CAPACITY["GetDesiredBrokers"], request)
        assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "not_leader")
    # Each broker takes the other for the leader: the call is forwarded once, not in a circle.
    other.view.elsewhere = leader.address
    leader.view.leads, leader.view.elsewhere = False, other.address
    code, reason, details = await status(other, CAPACITY["GetDesiredBrokers"], request)
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "not_leader") and f"leader=`{other.address}`" in details
    leader.view.leads = True


async def test_errors_of_the_leader_are_passed_on_as_they_are(doors: tuple[Door, Door]) -> None:
    request = capacity_pb2.RenewReservationRequest(id="none")
    answers = [await status(door, CAPACITY["RenewReservation"], request) for door in doors]
    assert answers[0] == answers[1] and answers[0][:2] == (grpc.StatusCode.NOT_FOUND, "not_found")
