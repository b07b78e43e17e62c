"""A cluster for synchronous code: reservations, brokers, segments, topics and gates, as floods need them. Connects at a call.

Dagster's resource and the command line share these calls; a test overrides them with a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import headgate
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.loop import call

if TYPE_CHECKING:
    from headgate.broker.client import Gate, TopicDescription
    from headgate.broker.client.control import ClusterView, DesiredBrokers, Reservation

_T = TypeVar("_T")
CALL_MS = 30_000
BEHIND_ALL = 1 << 62
"""No log has this offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A consumer group in a topic: records that it has not read, the sum of its positions, and its members."""

    lag: int
    position: int
    members: int


class ClusterCalls:
    """A Headgate cluster. Methods raise HeadgateError after half a minute of retries.

    Args:
        address: host:grpc_port of any broker, or several with commas between.
    """

    address: str

    # -- capacity

    def reserve(self, reservation_id: str, brokers: int, ttl_ms: int, owner: str, lanes: int = 0) -> None:
        """Open a reservation; opening it again renews it."""
        self._control(
            lambda control: control.open_reservation(brokers, ttl_ms, owner=owner, reservation_id=reservation_id, lanes=lanes)
        )

    def release(self, reservation_id: str) -> bool:
        """Release a reservation; releasing it twice is no error. Returns True if it was open."""
        released: bool = self._control(lambda control: control.release_reservation(reservation_id))
        return released

    def reservations(self) -> list[Reservation]:
        """The open reservations."""
        found: list[Reservation] = self._control(lambda control: control.reservations())
        return found

    def desired(self) -> DesiredBrokers:
        """The desired number of brokers with its reasons, and the live number."""
        found: DesiredBrokers = self._control(lambda control: control.desired_brokers())
        return found

    def view(self) -> ClusterView:
        """Brokers, segments and decisions, as the leader knows them."""
        found: ClusterView = self._control(lambda control: control.describe())
        return found

    def split(self, segment: int, at_partition: int | None, broker: int) -> None:
        """Split a segment and give the second half to a broker; without a partition the whole segment moves."""
        if at_partition is None:
            self._control(lambda control: control.move(segment, broker))
        else:
            self._control(lambda control: control.split(segment, at_partition, broker))

    def merge(self, segment: int, next_segment: int) -> None:
        """Merge two neighbouring segments."""
        self._control(lambda control: control.merge(segment, next_segment))

    # -- topics

    def topic(self, name: str) -> TopicDescription | None:
        """A topic, or None if it does not exist."""

        async def work() -> TopicDescription | None:
            async with headgate.Admin(self.address, timeout_ms=CALL_MS) as admin:
                try:
                    return await admin.describe_topic(name)
                except InvalidError as error:
                    if error.reason is Reason.UNKNOWN_TOPIC:
                        return None
                    raise

        return call(work())

    def check_readable(self, topic: str) -> None:
        """Raise InvalidError(NOT_AUTHORIZED) if this user may not read the records of a topic."""
        from headgate.broker.client.fetcher import Fetcher  # a code location loads without gRPC

        async def work() -> None:
            async with Fetcher(self.address, timeout_ms=CALL_MS) as fetcher:
                try:
                    await fetcher.fetch(topic, 0, BEHIND_ALL)
                except InvalidError as error:
                    if error.reason is not Reason.OFFSET_OUT_OF_RANGE:
                        raise

        call(work())

    def create_topic(self, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
        """Create a topic, unless another client just did."""

        async def work() -> None:
            async with headgate.Admin(self.address, timeout_ms=CALL_MS) as admin:
                try:
                    await admin.create_topic(name, partitions, config)
                except InvalidError as error:
                    if error.reason is not Reason.TOPIC_EXISTS:
                        raise

        call(work())

    def lags(self, topic: str) -> dict[str, GroupLag]:
        """The consumer groups with positions in the topic."""

        async def work() -> dict[str, GroupLag]:
            async with headgate.GroupAdmin(self.address, timeout_ms=CALL_MS) as admin:
                found = {}
                for one in await admin.describe_groups([group.id for group in await admin.list_groups()]):
                    own = [position for position in one.positions if position.topic == topic]
                    if own:
                        found[one.group.id] = GroupLag(
                            lag=sum(position.lag_records or 0 for position in own),
                            position=sum(position.offset or 0 for position in own),
                            members=one.group.members,
                        )
                return found

        return call(work())

    # -- gates

    def gates(self, topic: str) -> dict[str, Gate]:
        """A topic's gates by id; empty if the topic does not exist."""

        async def work() -> dict[str, Gate]:
            async with headgate.GateAdmin(self.address, timeout_ms=CALL_MS) as admin:
                try:
                    return {gate.id: gate for gate in await admin.list(topic)}
                except InvalidError as error:
                    if error.reason is Reason.UNKNOWN_TOPIC:
                        return {}
                    raise

        return call(work())

    def release_gate(self, topic: str, gate_id: str) -> bool:
        """Release a gate. Returns True if it was open; a filled or unknown gate is no error."""

        async def work() -> bool:
            async with headgate.GateAdmin(self.address, timeout_ms=CALL_MS) as admin:
                try:
                    await admin.release(topic, gate_id)
                except InvalidError:
                    return False
                return True

        return call(work())

    def _control(self, work: Callable[[Any], Coroutine[Any, Any, _T]]) -> _T:
        async def run() -> _T:
            async with headgate.Control(self.address, timeout_ms=CALL_MS) as control:
                return await work(control)

        return call(run())
