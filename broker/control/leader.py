"""The leader of the cluster: carries out the decisions of its term, writes the manifest, and serves the members' streams.

`cluster/term.py` decides, without I/O: which members are lost and condemned, what is planned, and what a commit completes. This
driver passes it events and executes the effects. `failover.py` recovers lost brokers, `orders.py` carries out splits, merges,
moves and drains, `lease_register.py` renews the lease.

All state is in the store, except for facts that this broker learned since it leads: the connected members, their loads, and
running orders. When the leader dies, the next leader loads the journal and waits `member_timeout_ms` for the members. A member
that has not connected by then is lost. If a lost member was still alive, it finds the fence of its log and stops.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.broker.cluster import downtime
from headgate.broker.cluster.lease import Lease
from headgate.broker.cluster.liveness import Attention, Evidence
from headgate.broker.cluster.manifest import Edit, Follower, Incarnation, Manifest, PutReservation, ReleaseReservation
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.cluster.segments import BrokerLoad, Order
from headgate.broker.cluster.term import Term, own_clock_error_ms
from headgate.broker.cluster.term_events import (
    Admitted,
    Began,
    Carry,
    Damaged,
    Event,
    FailOver,
    GiveLeaseBack,
    Joined,
    LeaseKept,
    LeaseWritten,
    Leaving,
    Left,
    Measured,
    Opened,
    PlanDue,
    PlanLater,
    Probe,
    Probed,
    Recovered,
    Replace,
    Report,
    Reported,
    Spoke,
    Ticked,
    WaitFor,
)
from headgate.broker.control.failover import Failover
from headgate.broker.control.leader_capacity import LeaderCapacity
from headgate.broker.control.leader_gates import LeaderGates
from headgate.broker.control.lease_register import HeldLease, LeaseRegister
from headgate.broker.control.orders import Orders
from headgate.broker.control.probe import ask
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.control.sessions import Session, Sessions
from headgate.broker.engine.catalog import DeposedError, LocalCatalog
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import known

if TYPE_CHECKING:
    from headgate.broker.control.load import LoadMeter
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.topics import Held
    from headgate.broker.engine.write.replicas import Copy

logger = get_logger("leader")

DRAIN_TOGETHER_S = 0.2
"""Pause, in seconds, before the plan for a broker that leaves. Several brokers may leave one after the other; none of them
should receive the segments of another."""
PROBE_S = 0.5
"""Time, in seconds, in which the address of a suspect must accept or refuse a connection."""
LOAD_TRIES = 10
PATIENCE = 2.0
"""Time that the members get to find a new leader, as a multiple of the time that this broker needed to begin its term."""


class Leader:
    """One term. `start` begins it, and it works until `stop`. It calls `ended` when it cannot continue.

    Args:
        mine: this broker's incarnation, as in the manifest.
        draining: set when this broker must lose its segments and get no new ones.
        version: of the lease, which this broker has just written.
        predecessor: the incarnation that let the lease run out, and the seconds of its silence. "" if the lease was given up.
        attention: of this process.
        replaced: counts the replaced brokers, by evidence.
        noted_ms: `Lease.at_ms` of the previous version; 0: there was none.
        surrender: asks the follower of a lost lead for its copies (`Surrenders.ask`).
        yields: give the lease back when all members fall silent together.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        catalog: RoutedCatalog,
        register: LeaseRegister,
        mine: Incarnation,
        lease: Lease,
        version: int,
        predecessor: tuple[str, float],
        attention: Attention,
        replaced: dict[Evidence, int],
        noted_ms: int,
        member_timeout_ms: int,
        draining: asyncio.Event,
        planner: LoadPlanner,
        surrender: Callable[[Incarnation, Follower], Awaitable[list[Copy]]],
        yields: bool,
        ended: Callable[[HeadgateError], None],
    ) -> None:
        self.clock = engine.clock
        self.term = Term(
            mine,
            planner,
            attention,
            self.clock.monotonic(),
            timeout_s=member_timeout_ms / 1000,
            predecessor=predecessor,
            is_draining=draining.is_set(),
            yields=yields,
        )
        """The decisions."""
        self.sessions = Sessions(engine)
        self.orders = Orders(self, self.term.orders)
        self.gates = LeaderGates(self, engine)
        self.capacity = LeaderCapacity(
            self, brokers_min=engine.settings.capacity_brokers_min, brokers_max=engine.settings.capacity_brokers_max
        )
        self.lease = HeldLease(
            engine, register, lease, version, written=lambda stored: self._take(LeaseWritten(stored)), lost=self._lease_lost
        )
        self.yielded = False
        """True if this term ended because all members fell silent together."""
        self.connections: Callable[[], int] = lambda: 0
        self._engine = engine
        self._catalog = catalog
        self._mine = mine
        self._noted_ms = noted_ms
        self._draining = draining
        self._replaced = replaced
        self._ended = ended
        self._local = LocalCatalog(engine.store, mine.id, applied=self._applied, complete=self.term.complete, fail=self._failed)
        self._failover = Failover(engine, mine.id, self.term, self._local, surrender)
        self._tasks: set[asyncio.Task[None]] = set()
        self._meter: LoadMeter | None = None
        self._stopped = False

    # -- the term's beginning and end

    @property
    def planner(self) -> LoadPlanner:
        return self.term.planner

    @property
    def manifest(self) -> Manifest:
        return self._local.manifest

    @property
    def over(self) -> bool:
        """True if the term has ended."""
        return self._stopped

    @property
    def version(self) -> int:
        """The version of the manifest."""
        return self._local.version

    async def start(self) -> None:
        """Take the journal over. Afterwards this broker's copy of the manifest is the leader's copy.

        Raises:
            DeposedError: other brokers write the journal. RetryError: the store does not answer. FencedError: this broker was
                replaced.
        """
        began_s = self.clock.monotonic()
        # Renew from the beginning: the following steps may take longer than the lease lasts.
        self._spawn(self.lease.renew(), "lease")
        await self._local.load()
        for attempt in range(LOAD_TRIES):
            version = self.version
            try:
                records = await self._begin()
                break
            except (DeposedError, InvalidError, CorruptError) as error:
                # The previous leader wrote once more, and may have deleted objects that the older manifest names. After this
                # broker's first edit it cannot write again.
                await self._local.load()
                if attempt == LOAD_TRIES - 1 or self.version == version:
                    raise
                logger.warning("term_overtaken", error=error.message)
        self._check_term()
        # If the store is slow, the members also need longer to find this leader. So a slow leader gives them more time.
        self._take(Began(PATIENCE * (self.clock.monotonic() - began_s)))
        self._catalog.manifest, self._catalog.version = self._local.manifest, self.version
        self._catalog.use(self)
        self.capacity.follow()
        if self._engine.started:
            self._engine.replaced()
            self._engine.sweep_sealed()
        else:
            await self._engine.start(records)
            self._check_term()
        logger.info("leads", broker=self._mine.broker_id, incarnation=self._mine.id, version=self.version)
        self._take(Opened())
        self._spawn(self._run(), "leader")
        self._spawn(self.gates.run(), "gates")

    async def _begin(self) -> int:
        """Make the first commit of the term. Returns the number of recovered records."""
        was_replaced = self._mine.id not in self.manifest.incarnations and (
            self._engine.started or await self._failover.was_fenced(self._mine.id)
        )
        lost = self.term.load(self.manifest, was_replaced=was_replaced)
        recovered = (await self._failover.recover(lost)).whole()
        edits = list(recovered.edits)
        if not self._engine.started:
            edits += self._begin_time(recovered.edits)
        await self._local.commit_made(self.term.opening(edits))
        return recovered.records

    def _begin_time(self, recovered: Sequence[Edit]) -> Sequence[Edit]:
        """Call `Engine.begin_time`, unless the store has its own clock and agrees with this broker's clock. Then the clock is
        right."""
        ahead_ms = self.lease.clock_ahead_ms
        if ahead_ms is not None and abs(ahead_ms) <= self.clock.difference_max_ms:
            return []
        return self._engine.begin_time(max(self._noted_ms, downtime.newest_ms(self.manifest, recovered)))

    def _check_term(self) -> None:
        if self._stopped:
            raise DeposedError(Reason.FENCED, "another broker took the lease")

    def stop(self) -> None:
        """End the term. Streams end, and all waiting callers get an error."""
        if self._stopped:
            return
        self._stopped = self.lease.is_over = True
        self.clock.forget("brokers")
        self._engine.proof.lapse()
        self._catalog.leave(self)
        self._local.retire()
        self.sessions.end_all(_not_leader())
        self.orders.stop()
        for task in self._tasks:
            task.cancel()

    def _lease_lost(self) -> None:
        self._failed(DeposedError(Reason.FENCED, "another broker took the lease"))

    def _failed(self, error: HeadgateError) -> None:
        if isinstance(error, DeposedError):
            if not self._stopped:
                logger.warning("deposed", error=error.message)
                self.stop()
                self._ended(error)
        else:
            self._engine.fail(error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or self._stopped:
            return
        if isinstance(error, RetryError):
            logger.warning("leader_task_failed", task=task.get_name(), error=error.message)
        elif isinstance(error, HeadgateError):
            self._failed(error)
        else:
            self._engine.fail(known(error, "leader"))

    # -- events and effects

    def _take(self, event: Event) -> None:
        """Pass an event to the term, and execute the effects."""
        for effect in self.term.handle(event, self.clock.monotonic()):
            match effect:
                case Probe(incarnation):
                    self._spawn(self._probe(incarnation), "ask")
                case Replace(incarnation, evidence, why):
                    self._replaced[evidence] += 1
                    logger.warning("member_lost", broker=incarnation.broker_id, evidence=evidence.name.lower(), why=why)
                    session = self.sessions.get(incarnation.id)
                    if session is not None:
                        session.end(RetryError(Reason.TIMED_OUT, f"the broker was replaced: {why}"))
                case WaitFor(incarnation, why):
                    logger.warning("member_starved", broker=incarnation.broker_id, why=why)
                case FailOver(why_by_id):
                    self._spawn(self._fail_over(why_by_id), "failover")
                case Damaged(incarnation, why, error):
                    logger.error("failover_impossible", broker=incarnation.broker_id, why=why, error=error.message)
                case GiveLeaseBack():
                    self._spawn(self._yield(), "yield")
                case Report():
                    self._report()
                case Carry(order):
                    self._carry(order)
                case PlanLater():
                    self._spawn(self._plan_later(), "drain")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.term.pause_s)
            self.capacity.tick(self.clock.monotonic())
            self._take(Ticked())

    async def _probe(self, incarnation: Incarnation) -> None:
        answer = await ask(incarnation.host, incarnation.grpc_port, PROBE_S, self.clock)
        self._take(Probed(incarnation.id, answer))

    async def _fail_over(self, why: Mapping[str, str]) -> None:
        ended = Recovered()
        try:
            ended = await self._failover.run(why)
        finally:
            self._take(ended)
        if ended.lost:
            self._engine.sweep_sealed()

    async def _yield(self) -> None:
        try:
            await self.lease.give_back()
        except RetryError as error:
            logger.warning("lease_not_given_up", error=error.message)
            self.lease.is_given_back = False
            self._take(LeaseKept())
            return
        self.yielded = True
        self._failed(DeposedError(Reason.NOT_LEADER, "all brokers fell silent at once: one of them shall lead"))

    def _report(self) -> None:
        from headgate.broker.control.load import LoadMeter, broker_load

        self.clock.check()
        ahead_ms = [one.clock_ahead_ms for one in self.term.members.values() if one.clock_ahead_ms is not None]
        self.clock.note("brokers", own_clock_error_ms(ahead_ms, self.clock.difference_max_ms))
        self.clock.forget("leader")
        for session in list(self.sessions.values()):
            session.alive()
        if self._meter is None:
            self._meter = LoadMeter(self._engine)
        self._take(Measured(broker_load(self._mine, self._meter.report(self.version, self.connections()))))

    def _carry(self, order: Order) -> None:
        try:
            self.orders.begin(order)
        except InvalidError as error:
            logger.error("order_refused", kind=order.kind.value, why=order.why, error=error.message)

    async def _plan_later(self) -> None:
        await asyncio.sleep(DRAIN_TOGETHER_S)
        self.plan()

    # -- the manifest

    async def commit(self, edits: Sequence[Edit]) -> None:
        """Commit this broker's own edits, as a `Backend`."""
        await self._local.commit(*edits)

    async def settle(self) -> None:
        await self._local.settle()

    async def commit_made(self, make: Callable[[Manifest], Sequence[Edit]]) -> None:
        """Commit edits that `make` makes from the current manifest. Raises as `LocalCatalog.commit_made`, and
        RetryError(NOT_LEADER) if this broker does not lead any more."""
        try:
            await self._local.commit_made(make)
        except DeposedError as error:
            raise _not_leader() from error

    async def commit_of(self, incarnation_id: str, edits: Sequence[Edit]) -> int:
        """Commit a member's edits. Returns the version of the manifest that contains them. Raises as `Catalog.commit`."""
        self.term.check_condemned(incarnation_id)
        try:
            await self._local.commit_for(incarnation_id, edits)
        except DeposedError as error:
            raise _not_leader() from error
        return self.version

    def since(self, version: int) -> list[tuple[int, bytes]] | None:
        """The commits after a version; see `LocalCatalog.since`."""
        return self._local.since(version)

    def _applied(self, edits: Sequence[Edit]) -> None:
        if self._catalog.manifest is self._local.manifest:
            self._catalog.version = self.version
            self._engine.applied(edits)
        self.sessions.send(self.version, edits)
        self.orders.applied(edits)
        if any(isinstance(edit, PutReservation | ReleaseReservation) for edit in edits):
            self.capacity.follow()

    # -- members

    async def admit(self, incarnation: Incarnation, version: int) -> None:
        """Admit a broker that asks to be a member. If its incarnation is new, the manifest gets it.

        Args:
            version: of the broker's copy of the manifest; 0: it has none yet.

        Raises:
            FencedError: the incarnation was replaced. InvalidError: another broker has its broker id.
        """
        self.term.check_id(incarnation)
        is_fenced = incarnation.id not in self.manifest.incarnations and await self._failover.was_fenced(incarnation.id)
        # A broker with a copy of the manifest was a member before.
        make = self.term.admit(incarnation, was_member=version > 0 or is_fenced)
        try:
            await self.commit_made(make)
        finally:
            self._take(Admitted(incarnation.id))

    def joined(self, session: Session) -> None:
        """Called when a member's stream begins. The stream starts with the current manifest. Raises RetryError(NOT_LEADER) if
        the term is over."""
        if self._stopped:
            raise _not_leader()
        self.sessions.replace(session)
        self._take(Joined(session.incarnation))
        self.capacity.tick(self.clock.monotonic())
        logger.info("member_joined", broker=session.incarnation.broker_id, incarnation=session.incarnation.id)

    def left(self, session: Session) -> None:
        """Called when a member's stream has ended."""
        if self.sessions.get(session.incarnation.id) is session:
            del self.sessions[session.incarnation.id]
            if not self._stopped:
                logger.info("member_left", broker=session.incarnation.broker_id, incarnation=session.incarnation.id)
                self._take(Left(session.incarnation.id))

    def reported(self, session: Session, report: Reported) -> int:
        """Called when a member has sent a report. Promises the member not to fence it unless its process is gone.

        Returns:
            The length of the promise in ms from now; see `engine/proof.py`. 0: no promise, because this broker may have been
            replaced, or is about to replace the member.
        """
        if self._stopped or self.sessions.get(session.incarnation.id) is not session:
            return 0
        self._take(report)
        if not self._engine.proof.holds:
            return 0
        return int(self.term.promise_s(session.incarnation.id, self.clock.monotonic()) * 1000)

    def spoke(self, session: Session) -> None:
        """Called when a member has sent a message that is not a report."""
        self._take(Spoke(session.incarnation.id))

    def awaits_members(self) -> bool:
        return self.term.awaits_members()

    def loads(self) -> list[BrokerLoad]:
        return self.term.loads()

    def trouble_of(self, incarnation_id: str) -> str:
        """The reason why a live broker cannot store records at the moment. Empty: it can."""
        if incarnation_id == self._mine.id:
            trouble = self._engine.failed or self._engine.stalled
            return "" if trouble is None else trouble.message
        member = self.term.members.get(incarnation_id)
        return "it is not connected" if member is None else member.trouble

    @property
    def store_ms(self) -> int:
        """The store's own time in wall-clock ms. 0: the store has no clock, or its time is unknown."""
        ahead_ms = self.lease.clock_ahead_ms
        return 0 if ahead_ms is None else self.clock.now_ms() - ahead_ms

    # -- orders

    def leave(self) -> None:
        """Make this broker lose all its segments, now."""
        self._draining.set()
        self._take(Leaving())

    def drain(self, broker_id: int) -> str:
        """Give a broker no segments from now on, and tell it so. Returns its incarnation. Raises as `Term.drain`."""
        incarnation_id = self.term.drain(broker_id)
        if incarnation_id == self._mine.id:
            self._draining.set()
        else:
            self.sessions[incarnation_id].drain()
        return incarnation_id

    def plan(self) -> None:
        """Begin the orders that the planner recommends now."""
        self._take(PlanDue())

    async def hold(self, incarnation_id: str, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int]) -> list[Held]:
        """See `Sessions.hold`."""
        return await self.sessions.hold(incarnation_id, topic_id, gate_id, rows, self.term.epoch)

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        self.sessions.drop_holds(topic_id, gate_id)

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None:
        await self.sessions.resign(incarnation_id, segment_ids)

    def order_failed(self) -> None:
        """Called when an order failed. Its segments may be sealed without successors, so give a lead to every partition that has
        none."""
        self._spawn(self._local.commit(self.term.confirmation), "fill-gaps")

    def spawn_order(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Carry out an order. This ends with the term."""
        return self._spawn(work, "order")


def _not_leader() -> RetryError:
    """The error for clients and members: only this broker was replaced, not they."""
    return RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster any more")
