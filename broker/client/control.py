"""Calls that only the cluster's leader answers: segments with their leads and reasons, manual orders, and capacity."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headgate.broker.client.cluster import ClusterClient
from headgate.broker.client.rows import from_row, from_rows
from headgate.broker.client.types import DEFAULT_CLUSTER
from headgate.broker.runtime.errors import Reason, RetryError
from headgate.broker.runtime.tasks import end_tasks
from headgate.broker.wire.grpc.headgate.v1 import capacity_pb2, control_pb2
from headgate.broker.wire.grpc.methods import methods

CONTROL = methods(control_pb2.DESCRIPTOR.services_by_name["Control"])
ORDER_S = 300.0
"""Longest wait, in seconds, for an order that the leader has under way. With 5 s for each call of the store, it takes a minute."""
ORDER_LOOK_S = 10.0
"""Pause, in seconds, between two looks at an order that is under way."""
ORDER_LOST_LOOKS = 2
"""Looks without the order after which it counts as lost: its answer may be on its way during the first one."""
CAPACITY = methods(capacity_pb2.DESCRIPTOR.services_by_name["Capacity"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A live broker, as the leader knows it. `cpu_share`: share of one core, 0-1. `trouble`: the reason why it cannot store
    records, or empty."""

    broker_id: int
    incarnation_id: str
    host: str
    kafka_port: int
    grpc_port: int
    http_port: int
    rack: str
    cpu_share: float
    memory_bytes: int
    connections: int
    draining: bool
    trouble: str
    follower_broker_id: int | None = None
    """The broker that holds copies of its acked records for topics with `ack=replicated`."""
    late_ms: int = 0
    """Greatest delay of its timers and its reports in the last half minute."""
    starved: bool = False
    """Whether its machine gives it too little processor time."""
    silence_ms_max: int = 0
    """The leader replaces it after this much silence; 0: it is the leader."""
    listeners: Mapping[str, str] = field(default_factory=dict)
    """``host:port`` of its further Kafka ports by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An open segment: partitions [first_partition, end_partition) of a topic, led by a broker."""

    id: int
    topic: str
    first_partition: int
    end_partition: int
    broker_id: int
    leader_epoch: int
    bytes_in_per_s: float
    bytes_out_per_s: float
    requests_per_s: float

    @property
    def span(self) -> str:
        """Its partitions for a person: ``3``, ``3-7``; the last one is included."""
        last = self.end_partition - 1
        return str(last) if last == self.first_partition else f"{self.first_partition}-{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An order of the leader. `error`: empty for a finished order, and for one that is `under_way`. `pause_ms`: time that
    writers waited; 0: unknown.

    `topics`: topics with sealed segments.
    """

    age_ms: int
    kind: str
    why: str
    error: str
    under_way: bool
    pause_ms: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The use of a quota at one broker, in bytes per second. None: the clients that share it have any such name. `limit`: of the
    cluster; `share`: of this broker."""

    broker_id: int
    user: str | None = None
    client_id: str | None = None
    kind: str
    limit: float
    share: float
    rate: float
    throttled: bool
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The leader's view. Members and lanes by id, segments by topic and partition, decisions newest first."""

    leader_broker_id: int
    version: int
    members: tuple[Member, ...]
    segments: tuple[Segment, ...]
    decisions: tuple[Decision, ...]
    quotas: tuple[QuotaUse, ...] = ()
    lanes: tuple[Member, ...] = ()
    """Processes that serve history, and are no brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation: until `left_ms` from now the cluster should have at least `brokers` brokers, and may start `lanes` lanes."""

    id: str
    owner: str
    brokers: int
    ttl_ms: int
    left_ms: int
    lanes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredBrokers:
    """The desired number of brokers, its reasons (the decisive reason first), and the number of live brokers."""

    brokers: int
    reasons: tuple[str, ...]
    live_brokers: int


class Control(ClusterClient):
    """Sends calls to the leader, and finds it through any broker. An async context manager.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several separated by commas.
        timeout_ms: longest wait for one call, with its retries. For an order (split, merge, move, drain) the client waits as long
            as the leader has it under way, `ORDER_S` at most.
        on_wait: called about every `ORDER_LOOK_S` with the seconds since an order was sent, and the part of it that the leader has
            under way.

    Methods raise HeadgateError: InvalidError if the request is wrong, RetryError if no broker became the leader in time.
    """

    def __init__(
        self,
        cluster: str = DEFAULT_CLUSTER,
        *,
        timeout_ms: int = 30_000,
        on_wait: Callable[[float, Decision], None] = lambda waited_s, decision: None,
    ) -> None:
        super().__init__(cluster, timeout_ms=timeout_ms)
        self._on_wait = on_wait

    # -- segments

    async def describe(self) -> ClusterView:
        """Members, segments and decisions."""
        response: control_pb2.DescribeResponse = await self._cluster.call(
            CONTROL["Describe"], control_pb2.DescribeRequest(), retry=True
        )
        return ClusterView(
            leader_broker_id=response.leader_broker_id,
            version=response.version,
            members=_members(row for row in response.members if not row.member.role),
            lanes=_members(row for row in response.members if row.member.role),
            segments=tuple(
                sorted((_segment(row) for row in response.segments), key=lambda segment: (segment.topic, segment.first_partition))
            ),
            decisions=tuple(from_row(Decision, row, topics=tuple(row.topics)) for row in response.decisions),
            quotas=from_rows(QuotaUse, response.quotas),
        )

    async def split(self, segment_id: int, at_partition: int | None = None, broker_id: int | None = None) -> tuple[Segment, ...]:
        """Cut a segment in two.

        Args:
            at_partition: the first partition of the second half; None: the partition that divides the load in half.
            broker_id: broker for the second half; None: the least loaded other broker.

        Returns:
            The segments that were opened.
        """
        split = control_pb2.ReshardRequest.Split(segment_id=segment_id, at_partition=at_partition, broker_id=broker_id)
        return await self._reshard(control_pb2.ReshardRequest(split=split))

    async def merge(self, segment_id: int, next_segment_id: int) -> tuple[Segment, ...]:
        """Merge two neighbouring segments of a topic at the broker of the first one. Returns the segment that was opened."""
        merge = control_pb2.ReshardRequest.Merge(segment_id=segment_id, next_segment_id=next_segment_id)
        return await self._reshard(control_pb2.ReshardRequest(merge=merge))

    async def move(self, segment_id: int, broker_id: int | None = None) -> tuple[Segment, ...]:
        """Move a segment to another broker; None: the least loaded one. Returns the segment that was opened."""
        move = control_pb2.ReshardRequest.Move(segment_id=segment_id, broker_id=broker_id)
        return await self._reshard(control_pb2.ReshardRequest(move=move))

    async def drain(self, broker_id: int) -> tuple[Segment, ...]:
        """Move all segments away from a broker, and give it none until it is started again. Returns the segments that were
        opened."""
        drain = control_pb2.ReshardRequest.Drain(broker_id=broker_id)
        return await self._reshard(control_pb2.ReshardRequest(drain=drain))

    async def _reshard(self, request: control_pb2.ReshardRequest) -> tuple[Segment, ...]:
        asking = asyncio.create_task(self._cluster.call(CONTROL["Reshard"], request, retry=False, extra_s=ORDER_S))
        try:
            await self._until_done(asking, request.WhichOneof("order") or "")
            response: control_pb2.ReshardResponse = await asking
        finally:
            await end_tasks([asking])
        return tuple(_segment(row) for row in response.segments)

    async def _until_done(self, asking: asyncio.Task[Any], kind: str) -> None:
        """Wait for the answer to an order. Raises RetryError when the leader does not answer, does not know of the order, or has it
        under way for too long."""
        loop = asyncio.get_running_loop()
        began_s, lost = loop.time(), 0
        while not (await asyncio.wait([asking], timeout=ORDER_LOOK_S))[0]:
            view, waited_s = await self.describe(), loop.time() - began_s
            ours = [
                decision
                for decision in view.decisions
                if decision.under_way and decision.kind == kind and decision.age_ms <= 1000 * waited_s + 1
            ]
            lost = 0 if ours else lost + 1
            if asking.done():
                return
            if lost == ORDER_LOST_LOOKS:
                raise RetryError(
                    Reason.NOT_READY, f"the leader does not know of the order any more: look at the segments. order=`{kind}`"
                )
            if waited_s >= ORDER_S:
                raise RetryError(
                    Reason.NOT_READY,
                    f"the order is still under way, and goes on: the leader's decisions show its end. order=`{kind}` "
                    f"waited_s=`{waited_s:.0f}`",
                )
            if ours:
                self._on_wait(waited_s, ours[0])

    # -- capacity

    async def open_reservation(
        self, brokers: int, ttl_ms: int, *, owner: str = "", reservation_id: str = "", lanes: int = 0
    ) -> Reservation:
        """Reserve brokers for a time.

        Args:
            lanes: number of lanes that the cluster may start for readers of history.
            reservation_id: an existing id renews that reservation, for any caller; empty: the cluster chooses an id.
        """
        request = capacity_pb2.OpenReservationRequest(
            # A number that the field cannot hold is sent as one that the broker refuses with its own message.
            id=reservation_id, owner=owner, brokers=brokers if 0 <= brokers < 2**31 else 0, ttl_ms=ttl_ms,
            lanes=lanes if 0 <= lanes < 2**31 else 2**31,
        )  # fmt: skip
        response: capacity_pb2.OpenReservationResponse = await self._cluster.call(
            CAPACITY["OpenReservation"], request, retry=bool(reservation_id)
        )
        return from_row(Reservation, response.reservation)

    async def renew_reservation(self, reservation_id: str, ttl_ms: int | None = None) -> Reservation:
        """Start the reservation's time to live again. Raises InvalidError(NOT_FOUND) if the reservation has expired."""
        request = capacity_pb2.RenewReservationRequest(id=reservation_id, ttl_ms=ttl_ms)
        response: capacity_pb2.RenewReservationResponse = await self._cluster.call(
            CAPACITY["RenewReservation"], request, retry=True
        )
        return from_row(Reservation, response.reservation)

    async def release_reservation(self, reservation_id: str) -> bool:
        """End the reservation. Returns whether it was open."""
        request = capacity_pb2.ReleaseReservationRequest(id=reservation_id)
        response: capacity_pb2.ReleaseReservationResponse = await self._cluster.call(
            CAPACITY["ReleaseReservation"], request, retry=True
        )
        return response.released

    async def reservations(self) -> list[Reservation]:
        """The open reservations, by id."""
        response: capacity_pb2.ListReservationsResponse = await self._cluster.call(
            CAPACITY["ListReservations"], capacity_pb2.ListReservationsRequest(), retry=True
        )
        return list(from_rows(Reservation, response.reservations))

    async def desired_brokers(self) -> DesiredBrokers:
        """The desired number of brokers."""
        response: capacity_pb2.DesiredBrokers = await self._cluster.call(
            CAPACITY["GetDesiredBrokers"], capacity_pb2.GetDesiredBrokersRequest(), retry=True
        )
        return from_row(DesiredBrokers, response, reasons=tuple(response.reasons))


def _members(rows: Iterable[control_pb2.MemberState]) -> tuple[Member, ...]:
    return tuple(sorted(map(_member, rows), key=lambda member: member.broker_id))


def _member(row: control_pb2.MemberState) -> Member:
    names = ("broker_id", "host", "kafka_port", "grpc_port", "http_port", "rack")
    of_member = {name: getattr(row.member, name) for name in names}
    return from_row(Member, row, **of_member, listeners=dict(row.member.listeners))


def _segment(row: control_pb2.SegmentState) -> Segment:
    return from_row(
        Segment, row, bytes_in_per_s=row.bytes_in_per_second, bytes_out_per_s=row.bytes_out_per_second,
        requests_per_s=row.requests_per_second,
    )  # fmt: skip
