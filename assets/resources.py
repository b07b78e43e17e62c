"""The resources of assets: the cluster, Spark, and the fleet. Nothing is imported or connected to before its first use.

A resource is a small interface: its methods are those that assets need, and a test overrides them with a stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import dagster as dg
from pydantic import Field

import headgate
from headgate.assets.loop import call
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.pipelines.calls import apart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.assets.fleets.interface import Fleet
    from headgate.assets.progress import Follower
    from headgate.broker.client import Gate, TopicDescription
    from headgate.broker.client.control import ClusterView, DesiredBrokers, Reservation
    from headgate.pipelines.certificate import Certificate
    from headgate.pipelines.columns.memory import Need
    from headgate.pipelines.floods.model import Flood
    from headgate.pipelines.floods.spans import TimeSpan
    from headgate.pipelines.progress import Progress
    from headgate.pipelines.session import LazySession

    Backfiller: TypeAlias = Callable[[TimeSpan], Certificate]

_T = TypeVar("_T")
CALL_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A consumer group in a topic: records that it has not read, the sum of its positions, and its members."""

    lag: int
    position: int
    members: int


class ClusterResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A Headgate cluster. Methods raise HeadgateError after half a minute of retries."""

    address: str = Field(default="127.0.0.1:9095", description="host:grpc_port of any broker, or several with commas between")

    # -- capacity

    def reserve(self, reservation_id: str, brokers: int, ttl_ms: int, owner: str) -> None:
        """Open a reservation; opening it again renews it."""
        self._control(lambda control: control.open_reservation(brokers, ttl_ms, owner=owner, reservation_id=reservation_id))

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
                for group in await admin.list_groups():
                    positions = (await admin.describe_group(group.id)).positions
                    own = [position for position in positions if position.topic == topic]
                    if own:
                        found[group.id] = GroupLag(
                            lag=sum(one.lag_records or 0 for one in own),
                            position=sum(one.offset or 0 for one in own),
                            members=group.members,
                        )
                return found

        return call(work())

    # -- gates

    def gates(self, topic: str) -> dict[str, Gate]:
        """A topic's gates by id; empty if the topic does not exist."""

        async def work() -> dict[str, Gate]:
            async with headgate.GateAdmin(self.address, timeout_ms=CALL_MS) as admin:
                try:
                    return {one.id: one for one in await admin.list(topic)}
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


class SparkResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Spark. The first flood of the process starts a session, which later floods reuse."""

    master: str = Field(default="local[*]", description="any Spark master")
    driver_memory: str = Field(default="", description="heap of the driver's JVM, such as 4g; empty: Spark's own")
    conf: dict[str, str] = Field(default_factory=dict, description="more Spark settings")

    def session(self) -> SparkSession:
        """The session of this process, started if there is none. Raises FatalError when Spark does not start."""
        started: SparkSession = apart(lambda: self._spark().start(self.master, self.driver_memory, self.conf))
        return started

    def cancel(self) -> None:
        """Cancel all jobs of the session, from any thread. Without effect when there is none."""
        self._spark().cancel_all()

    @staticmethod
    def _spark() -> Any:
        """The module of floods on Spark, imported when it is first needed."""
        from headgate.assets import spark

        return spark

    def need(self, source_bytes: int) -> Need:
        """The memory that the tasks of a flood need.

        Args:
            source_bytes: of its rows.

        Raises InvalidError for a setting that cannot be.
        """
        found: Need = self._spark().need(self.master, self.driver_memory, self.conf, source_bytes)
        return found

    def _lazy(self, follow: Follower, links: Callable[[Mapping[str, str]], None]) -> LazySession:
        """The session of this process, started when a flood needs it."""
        from headgate.pipelines.session import LazySession, is_started

        def start() -> SparkSession:
            with nullcontext() if is_started() else follow.meanwhile("starting Spark"):
                started = self.session()
            page = getattr(started.sparkContext, "uiWebUrl", None) if hasattr(started, "_jsparkSession") else None
            links({"Spark's page (while it runs)": str(page)} if page else {})
            return started

        return LazySession(start, self.master, self.conf)

    def analyse(self, flood: Flood, span: TimeSpan) -> None:
        """Judge the expressions of a flood that only Spark can judge, on one partition's source. Raises InvalidError."""
        from headgate.pipelines.floods.analysis import analyse

        analyse(self.session(), flood, span)

    @contextmanager
    def flood(
        self,
        flood: Flood,
        spans: Sequence[TimeSpan],
        cluster: str,
        partitions: int,
        most_s: float,
        follow: Follower,
        links: Callable[[Mapping[str, str]], None],
        listen: Callable[[TimeSpan, Progress], None],
    ) -> Iterator[Backfiller]:
        """Provide Spark, if it is needed, for a flood's partitions and, for several partitions, open their gates ahead, in order.

        Yields a function that loads one partition and returns its certificate, to be called in the order of `spans`. A partition
        that is in the topic already adds nothing. Both raise HeadgateError for errors of the source, the topic, or Spark.

        Args:
            most_s: longest time that gates are renewed, in seconds.
            follow: is told what happens before the first partition is loaded.
            links: receives the addresses of pages about this work, by name.
            listen: receives the progress of each partition, also from other threads.
        """
        session = self._lazy(follow, links)
        if not session.is_usual:
            session.get()  # it is needed: one that does not start is told before gates open
        with self._spark().loader(session, flood, spans, cluster, partitions, most_s, follow, listen) as load:
            yield load


class FleetResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The component that starts and stops brokers."""

    kind: Literal["local", "kubernetes"] = Field(
        default="local", description="local: `headgate up`, or KEDA: they follow by themselves"
    )
    workload: str = Field(default="", description="kubernetes: the StatefulSet or Deployment")
    namespace: str = Field(default="default", description="kubernetes: the namespace")
    workload_kind: Literal["statefulset", "deployment"] = Field(
        default="statefulset", description="kubernetes: what the workload is"
    )
    minimum: int = Field(default=1, ge=0, description="never asked for fewer brokers")
    maximum: int = Field(default=64, ge=1, description="never asked for more brokers")

    def fleet(self, cluster: ClusterResource) -> Fleet:
        """The fleet. Raises FatalError when it is not configured."""
        if self.kind == "kubernetes":
            from headgate.assets.fleets.kubernetes import KubernetesFleet

            return KubernetesFleet(
                namespace=self.namespace,
                workload=self.workload,
                kind=self.workload_kind,
                minimum=self.minimum,
                maximum=self.maximum,
            )
        from headgate.assets.fleets.local import LocalFleet

        return LocalFleet(cluster.desired)
