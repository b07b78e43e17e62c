"""`headgate.v1.Capacity`, and the same number for KEDA: `externalscaler.ExternalScaler`.

Both services read a `CapacityView`. A broker that is not the leader passes calls on to the leader (`forward.py`): KEDA, and
every client behind a load balancer, reaches any broker and cannot search for the right one.
"""

from __future__ import annotations

import uuid
from typing import Protocol

from headgate.broker.cluster.capacity import Desired, OpenReservation, Reservation, check_reservation, check_ttl
from headgate.broker.server.grpc.forward import Forwarder
from headgate.broker.server.grpc.open_calls import Context
from headgate.broker.wire.grpc.headgate.v1 import capacity_pb2, externalscaler_pb2
from headgate.broker.wire.grpc.methods import methods

METRIC = "headgate-desired-brokers"
"""KEDA's name for the metric. KEDA wants one replica for each 1 of it."""

CAPACITY = methods(capacity_pb2.DESCRIPTOR.services_by_name["Capacity"])
SCALER = methods(externalscaler_pb2.DESCRIPTOR.services_by_name["ExternalScaler"])


class CapacityView(Protocol):
    """The control plane's view of capacity. All methods except the first are called only while this broker leads."""

    def leader(self) -> str | None:
        """``host:grpc_port`` of the leader; None: this broker leads. Raises RetryError(NOT_LEADER) if no leader is known."""
        ...

    async def open_reservation(self, reservation: Reservation) -> OpenReservation:
        """Returns once the reservation is durable. `renewals` is chosen here. Raises InvalidError, RetryError(NOT_LEADER)."""
        ...

    async def renew_reservation(self, reservation_id: str, ttl_ms: int | None) -> OpenReservation:
        """Raises InvalidError(NOT_FOUND), RetryError(NOT_LEADER)."""
        ...

    async def release_reservation(self, reservation_id: str) -> bool:
        """Returns whether the reservation was open. Raises RetryError(NOT_LEADER)."""
        ...

    def reservations(self) -> list[OpenReservation]:
        """The open reservations, by id."""
        ...

    def desired(self) -> Desired:
        """The desired number and its reasons, without I/O."""
        ...

    def live_brokers(self) -> int:
        """The number of brokers that serve."""
        ...


class CapacityService:
    """Reservations and the desired number of brokers."""

    def __init__(self, view: CapacityView, forwarder: Forwarder) -> None:
        self._view = view
        self._forwarder = forwarder

    async def open_reservation(
        self, request: capacity_pb2.OpenReservationRequest, context: Context
    ) -> capacity_pb2.OpenReservationResponse | bytes:
        # An id that is chosen here, before the request is passed on.
        reservation_id = request.id or uuid.uuid4().hex
        reservation = Reservation(
            id=reservation_id, owner=request.owner, brokers=request.brokers, ttl_ms=request.ttl_ms, lanes=request.lanes
        )
        check_reservation(reservation, {})
        leader = self._view.leader()
        if leader is not None:
            request.id = reservation_id
            return await self._forwarder.unary(leader, CAPACITY["OpenReservation"], request, context)
        return capacity_pb2.OpenReservationResponse(reservation=_row(await self._view.open_reservation(reservation)))

    async def renew_reservation(
        self, request: capacity_pb2.RenewReservationRequest, context: Context
    ) -> capacity_pb2.RenewReservationResponse | bytes:
        ttl_ms = request.ttl_ms if request.HasField("ttl_ms") else None
        if ttl_ms is not None:
            check_ttl(ttl_ms)
        leader = self._view.leader()
        if leader is not None:
            return await self._forwarder.unary(leader, CAPACITY["RenewReservation"], request, context)
        return capacity_pb2.RenewReservationResponse(reservation=_row(await self._view.renew_reservation(request.id, ttl_ms)))

    async def release_reservation(
        self, request: capacity_pb2.ReleaseReservationRequest, context: Context
    ) -> capacity_pb2.ReleaseReservationResponse | bytes:
        leader = self._view.leader()
        if leader is not None:
            return await self._forwarder.unary(leader, CAPACITY["ReleaseReservation"], request, context)
        return capacity_pb2.ReleaseReservationResponse(released=await self._view.release_reservation(request.id))

    async def list_reservations(
        self, request: capacity_pb2.ListReservationsRequest, context: Context
    ) -> capacity_pb2.ListReservationsResponse | bytes:
        leader = self._view.leader()
        if leader is not None:
            return await self._forwarder.unary(leader, CAPACITY["ListReservations"], request, context)
        return capacity_pb2.ListReservationsResponse(reservations=[_row(reservation) for reservation in self._view.reservations()])

    async def get_desired_brokers(
        self, request: capacity_pb2.GetDesiredBrokersRequest, context: Context
    ) -> capacity_pb2.DesiredBrokers | bytes:
        leader = self._view.leader()
        if leader is not None:
            return await self._forwarder.unary(leader, CAPACITY["GetDesiredBrokers"], request, context)
        return self._desired()

    def _desired(self) -> capacity_pb2.DesiredBrokers:
        desired = self._view.desired()
        return capacity_pb2.DesiredBrokers(brokers=desired.brokers, reasons=desired.reasons, live_brokers=self._view.live_brokers())


class ExternalScalerService:
    """Answers to KEDA's calls: the same number for every `ScaledObject`."""

    def __init__(self, view: CapacityView, forwarder: Forwarder) -> None:
        self._view = view
        self._forwarder = forwarder

    async def is_active(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> externalscaler_pb2.IsActiveResponse | bytes:
        leader = self._view.leader()
        if leader is not None:
            return await self._forwarder.unary(leader, SCALER["IsActive"], request, context)
        return externalscaler_pb2.IsActiveResponse(result=self._view.desired().brokers > 0)

    async def get_metric_spec(
        self, request: externalscaler_pb2.ScaledObjectRef, context: Context
    ) -> externalscaler_pb2.GetMetricSpecResponse:
        spec = externalscaler_pb2.MetricSpec(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
        return externalscaler_pb2.GetMetricSpecResponse(metricSpecs=[spec])

    async def get_metrics(
        self, request: externalscaler_pb2.GetMetricsRequest, context: Context
    ) -> externalscaler_pb2.GetMetricsResponse | bytes:
        leader = self._view.leader()
        if leader is not None:
            return await self._forwarder.unary(leader, SCALER["GetMetrics"], request, context)
        brokers = self._view.desired().brokers
        # Under the requested name: KEDA may have put its own prefix in front of ours.
        value = externalscaler_pb2.MetricValue(
            metricName=request.metricName or METRIC, metricValue=brokers, metricValueFloat=float(brokers)
        )
        return externalscaler_pb2.GetMetricsResponse(metricValues=[value])


def _row(open_reservation: OpenReservation) -> capacity_pb2.Reservation:
    reservation = open_reservation.reservation
    return capacity_pb2.Reservation(
        id=reservation.id,
        owner=reservation.owner,
        brokers=reservation.brokers,
        ttl_ms=reservation.ttl_ms,
        left_ms=open_reservation.left_ms,
        lanes=reservation.lanes,
    )
