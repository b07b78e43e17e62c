"""One broker as a participant in its cluster: it looks for the leader in the lease, follows the leader, or leads.

Theory of operation::

    looking    reads the lease; takes it if it may (`cluster/lease.py`), else tries to join its holder
    following  has a stream to the leader; when the stream ends, the broker looks again, and serves its partitions meanwhile
    leading    runs `Leader`; when the term ends, the broker looks again

A broker ends when a leader, or the fence of its own log, tells it that it was replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from headgate.broker.cluster.capacity import Desired
from headgate.broker.cluster.lease import Contender, Lease
from headgate.broker.cluster.liveness import Answer, Attention, Evidence
from headgate.broker.cluster.load_history import Targets
from headgate.broker.cluster.objects import Follower, Incarnation
from headgate.broker.cluster.patience import Patience
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.control.leader import Leader
from headgate.broker.control.leader_capacity import BrokerCapacity
from headgate.broker.control.lease_register import LeaseRegister
from headgate.broker.control.probe import ask, attend
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.control.timings import Timings
from headgate.broker.engine.base.catalog import DeposedError
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import known, load

if TYPE_CHECKING:
    from headgate.broker.control.member import Membership
    from headgate.broker.control.replication import Replication, Surrenders
    from headgate.broker.control.stream import Connect
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.write.replicas import Copy

logger = get_logger("participant")

LOOK_S = 0.1
"""Pause, in seconds, between two reads of the lease."""
PROBE_S = 0.5
REREAD_S = 0.3
"""Pause, in seconds, between two reads of the lease while the leader does not answer. The leader may have been replaced."""
DRAIN_LOOK_S = 0.05
CONNECT_TIMEOUT_S = 5.0
"""Time, in seconds, for a connection to a near leader. Then a new one is made, because a connection that a cut network swallowed is
never answered."""


class Participant:
    """One broker's place in its cluster.

    Args:
        catalog: the engine's.
        mine: this broker. Its epoch is assigned when its incarnation is opened.
        connect: makes a channel to another broker, ``host:port``.
        connections: returns the number of connected clients.
    """

    def __init__(
        self,
        engine: Engine,
        catalog: RoutedCatalog,
        *,
        mine: Incarnation,
        connect: Connect,
        connections: Callable[[], int],
    ) -> None:
        self.engine = engine
        self.leader: Leader | None = None
        """Set while this broker leads."""
        self.membership: Membership | None = None
        """Set while this broker follows a leader."""
        self.capacity = BrokerCapacity(lambda: None if self.leader is None else self.leader.capacity, self.leader_address)
        """The desired number of brokers, from the cluster's leader."""
        self._mine = mine
        self._address = f"{mine.host}:{mine.peer_port}"
        self._connect = connect
        self._connections = connections
        self._ttl_ms = engine.settings.cluster_lease_ttl_ms
        self._timeout_ms = engine.settings.cluster_member_timeout_ms
        self._catalog = catalog
        self.attention = Attention(engine.clock.monotonic())
        """Measures how late this process runs."""
        self.replaced: dict[Evidence, int] = dict.fromkeys(Evidence, 0)
        """Number of brokers that this broker replaced while it led, by evidence."""
        self.timings = Timings()
        """How long this broker's works took while it led."""
        self._register = LeaseRegister(engine.store, engine.clock)
        self._contender = Contender(self._address)
        self._patience = Patience(CONNECT_TIMEOUT_S)
        """For connections to leaders."""
        self._round_trip_s = 0.0
        """Seconds of a round trip to the last leader."""
        self._not_joined = ""
        """The error of the last attempt to join the cluster."""
        self._draining = asyncio.Event()
        """Set when this broker must lose its segments and get no new ones, also under later leaders."""
        self._serving = False
        self._started = asyncio.Event()
        self._term_ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._attending: asyncio.Task[None] | None = None
        self._replicating: asyncio.Task[None] | None = None
        self._surrenders: Surrenders | None = None

    @property
    def role(self) -> Literal["looking", "following", "leading"]:
        return "leading" if self.leader is not None else "following" if self.membership is not None else "looking"

    def late_s(self) -> float:
        """The largest recent lateness of this process's timers, in seconds."""
        return self.attention.late_s(self.engine.clock.monotonic())

    async def start(self) -> None:
        """Join the cluster. Afterwards the engine is open. Raises the error that prevents it."""
        await self.engine.identify()
        self.attention = Attention(self.engine.clock.monotonic())
        self._attending = asyncio.create_task(attend(self.attention, self.engine.clock), name="attend")
        self._task = asyncio.create_task(self._run(), name="participant")
        self._task.add_done_callback(self._run_ended)
        self._replicating = asyncio.create_task(self._replicate(), name="replication")
        self._replicating.add_done_callback(self._replicate_ended)
        started = asyncio.create_task(self._started.wait())
        try:
            await asyncio.wait((started, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        if self._task.done():
            self._task.result()

    async def serving(self) -> None:
        """Called when this broker's gRPC port is open."""
        self._serving = True
        if self.leader is not None:
            await self.leader.lease.write(serving=True)
        if self.membership is not None:
            self.membership.opened()

    def leader_address(self) -> str | None:
        """``host:port`` of the leader's gRPC port; None if this broker leads. Raises RetryError if no leader is known."""
        if self.leader is not None:
            return None
        if self.membership is not None:
            return self.membership.address
        raise RetryError(Reason.NOT_LEADER, "no broker is known to lead the cluster at the moment")

    def desired(self) -> Desired | None:
        """The desired number of brokers, as far as this broker knows it."""
        if self.leader is not None:
            return self.leader.capacity.known()
        return None if self.membership is None else self.membership.desired

    async def drain(self, timeout_s: float) -> None:
        """Hand over all partitions that this broker leads, if another broker takes them within `timeout_s` seconds."""
        deadline = self.engine.clock.monotonic() + timeout_s
        while self.engine.leads.segments() and len(self.engine.brokers()) > 1 and self.engine.failed is None:
            self._draining.set()
            if self.leader is not None:
                self.leader.leave()
            if self._takers() == 0:
                # All brokers end at the same time. Waiting for one another, they would all wait until the deadline.
                logger.info("drain_has_no_successor", segments=len(self.engine.leads.segments()))
                return
            if self.engine.clock.monotonic() > deadline:
                logger.warning("drain_timed_out", segments=len(self.engine.leads.segments()))
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    def _takers(self) -> int | None:
        """The number of brokers that do not drain; None: unknown."""
        if self.leader is not None:
            return self.leader.term.takers()
        return None if self.membership is None else self.membership.takers

    def abandon(self, error: HeadgateError) -> None:
        """This broker cannot continue: its pending commits do not wait for a leader any more."""
        self._catalog.end(error)

    async def close(self) -> None:
        """Leave the cluster. The engine must be closed: it sealed its incarnation if it could."""
        task, self._task = self._task, None
        for beside in (self._attending, self._replicating):
            if beside is not None:
                beside.cancel()
                await asyncio.wait((beside,))
        if self.leader is not None:
            # Give the lease back before the streams end. Then the members find a lease that they may take at once.
            try:
                await self.leader.lease.give_back()
            except HeadgateError as error:
                logger.warning("lease_not_given_up", error=error.message)
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    # -- roles

    async def _run(self) -> None:
        while True:
            try:
                version, lease = await self._look()
            except RetryError:
                await asyncio.sleep(LOOK_S)
                continue
            if lease is not None and lease.holder == self._mine.id:
                lease = None  # from an earlier term of this broker, or from an attempt of it that got no answer
            if self._contender.stands_back(lease, self.engine.clock.monotonic()):
                await asyncio.sleep(LOOK_S)
                continue
            if await self._may_take(version, lease):
                await self._lead(version, lease)
            elif lease is not None and lease.address:
                await self._follow(lease)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> tuple[int, Lease | None]:
        """The newest lease and its version. Raises RetryError."""
        began_s = self.engine.clock.monotonic()
        try:
            found = await self._register.read()
        except RetryError as error:
            logger.warning("lease_not_read", error=error.message)
            self._contender.blind()
            raise
        self._contender.looked(self.engine.clock.monotonic() - began_s)
        return found

    async def _may_take(self, version: int, lease: Lease | None) -> bool:
        if self._mine.is_lane:
            return False
        if self._has_run_out(version, lease):
            return True
        assert lease is not None
        if not lease.serving:
            return False
        host, _, port = lease.address.rpartition(":")
        answer = await ask(host, int(port), PROBE_S, self.engine.clock)
        return self._has_run_out(version, lease, refused=answer is Answer.REFUSED)

    def _has_run_out(self, version: int, lease: Lease | None, *, refused: bool = False) -> bool:
        at_s = self.attention.at(self.engine.clock.monotonic())
        return self._contender.may_take(version, lease, at_s, refused=refused, late_s=self.late_s())

    def _lease(self, at_ms: int) -> Lease:
        return Lease(
            holder=self._mine.id,
            broker_id=self._mine.broker_id,
            address=self._address,
            ttl_ms=self._ttl_ms,
            serving=self._serving,
            at_ms=at_ms,
        )

    async def _lead(self, version: int, before: Lease | None) -> None:
        noted_ms = 0 if before is None else before.at_ms
        lease = self._lease(self.engine.clock.now_ms() if self.engine.started else noted_ms)
        asked_s = self.engine.clock.monotonic()
        silent_s = self._contender.silent_s(self.attention.at(asked_s))
        try:
            if not await self._register.write(version + 1, lease):
                return
        except RetryError as error:
            logger.warning("lease_not_taken", error=error.message)
            return
        self._term_ended.clear()
        leader = Leader(
            engine=self.engine,
            catalog=self._catalog,
            register=self._register,
            mine=self._mine,
            lease=lease,
            version=version + 1,
            predecessor=("" if before is None else before.holder, silent_s),
            attention=self.attention,
            replaced=self.replaced,
            timings=self.timings,
            noted_ms=noted_ms,
            member_timeout_ms=self._timeout_ms,
            round_trip_s=self._round_trip_s,
            draining=self._draining,
            planner=_planner(self.engine.settings),
            surrender=self._surrender,
            yields=self._contender.may_yield(self.engine.clock.monotonic()),
            connections=self._connections,
            ended=lambda error: self._term_ended.set(),
        )
        self.engine.proof.extend(asked_s, lease.ttl_ms)
        try:
            await leader.start()
        except (DeposedError, RetryError) as error:
            logger.warning("lead_not_taken", error=error.message)
            leader.stop()
            return
        except HeadgateError:
            # This broker was replaced, so another broker must take the lease.
            leader.stop()
            with suppress(RetryError):
                await leader.lease.give_back()
            raise
        self.leader = leader
        try:
            if self._serving and not leader.lease.current.serving:
                await leader.lease.write(serving=True)
            self._started.set()
            await self._term_ended.wait()
        finally:
            self.leader = None
            leader.stop()
            if leader.yielded:
                self._contender.yielded(self.engine.clock.monotonic(), self._timeout_ms / 1000)

    async def _follow(self, lease: Lease) -> None:
        membership = (await load(_membership))(
            lease.address,
            connect=self._connect,
            engine=self.engine,
            catalog=self._catalog,
            mine=self._mine,
            silence_ms=self._timeout_ms,
            attention=self.attention,
            draining=self._draining,
            connections=self._connections,
            serves=lambda: self._serving,
            patience=self._patience,
        )
        try:
            await self._join(membership, lease)
            self._contender.followed()
            self._not_joined = ""
            self.membership = membership
            if self.engine.started:
                self.engine.replaced()
            else:
                await self.engine.start()
            self._started.set()
            logger.info("follows", leader=membership.leader_broker_id, address=lease.address, version=membership.version)
            await membership.run()
        except RetryError as error:
            if self.membership is not None:
                # A leader that announces its end is no reason for a warning.
                (logger.info if error.reason is Reason.NOT_LEADER else logger.warning)("leader_lost", error=error.message)
            elif error.message != self._not_joined:
                self._not_joined = error.message
                logger.info("leader_not_joined", address=lease.address, error=error.message)
        finally:
            if self.membership is not None:
                self._round_trip_s = membership.round_trip_s
            self.membership = None
            self.engine.proof.lapse()
            self._catalog.leave(membership)
            await membership.close()

    async def _join(self, membership: Membership, lease: Lease) -> None:
        """Join the holder of a lease, for as long as it keeps the lease. On a slow store it needs time. Raises as
        `Membership.join`."""
        tasks = (asyncio.create_task(membership.join(), name="join"), asyncio.create_task(self._watch(lease), name="watch-lease"))
        try:
            # Return as soon as the join is complete: the leader expects reports from a member at once.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            joining, watching = tasks
            if joining.done():
                return joining.result()
            watching.result()
            raise RetryError(Reason.NOT_LEADER, f"the leader is not there any more. address=`{lease.address}`")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _watch(self, lease: Lease) -> None:
        """Return when the holder has lost the lease, or has let it run out."""
        while True:
            await asyncio.sleep(REREAD_S)
            with suppress(RetryError):  # the leader may reach a store that this broker cannot reach
                version, now = await self._look()
                if now is None or now.holder != lease.holder:
                    return
                if self._has_run_out(version, now):
                    return

    async def _replicate(self) -> None:
        await self.engine.replicator.wanted.wait()
        replication, _ = await load(_replication)
        await replication(self.engine, self.attention, self._connect).run()

    async def _surrender(self, lead: Incarnation, follower: Follower) -> list[Copy]:
        if self._surrenders is None:
            _, surrenders = await load(_replication)
            self._surrenders = surrenders(self.engine, self._connect)
        known = self._round_trip_s if self.leader is None else self.leader.term.detector.round_trip_s(follower.incarnation_id)
        return await self._surrenders.ask(lead, follower, known)

    def _replicate_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, HeadgateError):
            return  # the log cannot continue; the engine knows that
        self.engine.fail(known(error, "replication"))

    def _run_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None or not self._started.is_set():
            return
        failure = known(error, "control plane")
        # A broker that is already closing must not wait for an answer either, because no answer can come.
        self.abandon(failure)
        self.engine.fail(failure)


def _planner(settings: Settings) -> LoadPlanner:
    return LoadPlanner(
        Targets(
            broker_bytes_per_s=float(settings.cluster_broker_bytes_per_second),
            split_after_ms=settings.cluster_split_after_ms,
            merge_after_ms=settings.cluster_merge_after_ms,
            cooldown_ms=settings.cluster_cooldown_ms,
        )
    )


def _membership() -> type[Membership]:
    """A broker that leads alone needs no gRPC client."""
    from headgate.broker.control.member import Membership

    return Membership


def _replication() -> tuple[type[Replication], type[Surrenders]]:
    from headgate.broker.control.replication import Replication, Surrenders

    return Replication, Surrenders
