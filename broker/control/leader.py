"""The leader of the cluster: begins a term, executes the decisions of the term, and ends it.

`cluster/term.py` decides, without I/O: which members are lost and condemned, what is planned, and what a commit completes. This
driver passes it events and executes the effects. Each other activity has a file and an owner of its state::

    leader_journal.py   the manifest's writer: commits of this broker and of members
    sessions.py         the members' streams: admission, reports, requests to members
    failover.py         recovers lost brokers
    orders.py           carries out splits, merges, moves and drains
    held_lease.py       renews the lease, and gives it back
    leader_gates.py     gates: opens, fills and expires them
    file_sweeper.py     deletes the files of topics that nothing needs
    leader_tables.py    topics as Iceberg tables: writes their metadata
    leader_capacity.py  reservations, and the desired number of brokers
    term_tasks.py       the tasks of the term

All state is in the store, except for facts that this broker learned since it leads: the connected members, their loads, and
running orders. When the leader dies, the next leader loads the journal and waits `member_timeout_ms` for the members. A member
that has not connected by then is lost. If a lost member was still alive, it finds the fence of its log and stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headgate.broker.cluster import downtime
from headgate.broker.cluster.chronicle import Chronicle
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.flood_book import FloodBook, FloodReport
from headgate.broker.cluster.lease import Lease
from headgate.broker.cluster.liveness import Attention, Evidence
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Follower, Incarnation
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.cluster.segments import Order, OrderKind, Plan
from headgate.broker.cluster.term import Term
from headgate.broker.cluster.term_events import (
    Began,
    Carry,
    CountBrokers,
    Damaged,
    Event,
    FailOver,
    GiveLeaseBack,
    LeaseKept,
    LeaseWritten,
    Leaving,
    MakePlan,
    Measured,
    Opened,
    PlanDue,
    PlanLater,
    Planned,
    Probe,
    Probed,
    Recovered,
    Replace,
    Report,
    Ticked,
    WaitFor,
)
from headgate.broker.control.failover import Failover
from headgate.broker.control.held_lease import HeldLease
from headgate.broker.control.leader_capacity import LeaderCapacity
from headgate.broker.control.leader_gates import LeaderGates
from headgate.broker.control.leader_journal import LeaderJournal
from headgate.broker.control.leader_quotas import LeaderQuotas
from headgate.broker.control.leader_tables import LeaderTables
from headgate.broker.control.lease_register import LeaseRegister
from headgate.broker.control.orders import Orders
from headgate.broker.control.probe import ask
from headgate.broker.control.routed_catalog import RoutedCatalog
from headgate.broker.control.sessions import Sessions
from headgate.broker.control.term_tasks import TermTasks
from headgate.broker.control.timings import Timings
from headgate.broker.engine.base.catalog import DeposedError
from headgate.broker.runtime.errors import CorruptError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.steps import Steps, finish

if TYPE_CHECKING:
    from headgate.broker.control.load import LoadMeter
    from headgate.broker.engine.engine import Engine
    from headgate.broker.engine.write.replicas import Copy
    from headgate.broker.runtime.turns import Turn

logger = get_logger("leader")

DRAIN_TOGETHER_S = 0.2
"""Pause, in seconds, before the plan for a broker that leaves. Several brokers may leave one after the other; none of them
should receive the segments of another."""
PROBE_S = 0.5
"""Time, in seconds, in which the address of a near suspect must accept or refuse a connection."""
LOAD_TRIES = 10
FLOOD_EVENTS = {"done": "is done", "failed": "failed"}


class Leader:
    """One term. `start` begins it, and it works until `stop`. It calls `ended` when it cannot continue.

    Args:
        mine: this broker's incarnation, as in the manifest.
        draining: set when this broker must lose its segments and get no new ones.
        version: of the lease, which this broker has just written.
        predecessor: the incarnation that let the lease run out, and the seconds of its silence. "" if the lease was given up.
        attention: of this process.
        replaced: counts the replaced brokers, by evidence.
        round_trip_s: seconds of a round trip to other brokers, as far as this broker knows.
        timings: receives how long hand-overs and fills take.
        noted_ms: `Lease.at_ms` of the previous version; 0: there was none.
        surrender: asks the follower of a lost lead for its copies (`Surrenders.ask`).
        yields: give the lease back when all members fall silent together.
        connections: returns the number of connected clients.
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
        timings: Timings,
        noted_ms: int,
        member_timeout_ms: int,
        round_trip_s: float,
        draining: asyncio.Event,
        planner: LoadPlanner,
        surrender: Callable[[Incarnation, Follower], Awaitable[list[Copy]]],
        yields: bool,
        connections: Callable[[], int],
        ended: Callable[[HeadgateError], None],
    ) -> None:
        self.clock = engine.clock
        self.term = Term(
            mine,
            planner,
            attention,
            self.clock.monotonic(),
            timeout_s=member_timeout_ms / 1000,
            round_trip_s=round_trip_s,
            predecessor=predecessor,
            is_draining=draining.is_set(),
            yields=yields,
            clock_difference_max_ms=self.clock.difference_max_ms,
        )
        """The decisions."""
        self.journal = LeaderJournal(engine, mine.id, self.term, catalog, applied=self._applied, failed=self._failed)
        self._tasks = TermTasks(self._failed, self.clock.monotonic, timings.retries)
        self._failover = Failover(engine, mine.id, self.term, self.journal, surrender)
        self.sessions = Sessions(
            engine, self.term, self.journal, draining=draining, was_fenced=self._failover.was_fenced, take=self.take
        )
        self.orders = Orders(self.term.orders, self.journal, self.sessions, self.clock, self._tasks, timings)
        self.chronicle = Chronicle()
        self.floods = FloodBook()
        self.tables, self.quotas = LeaderTables(engine, self.journal), LeaderQuotas(engine, self.sessions)
        self.gates = LeaderGates(engine, self.journal, self.sessions, self.note, timings, self.tables.is_behind)
        self.capacity = LeaderCapacity(
            self.term, self.journal, engine.settings, self.clock, self._tasks.keep, chronicle=self.chronicle
        )
        self.lease = HeldLease(engine, register, lease, version, written=self._lease_written, lost=self._lease_lost)
        self.yielded = False
        """True if this term ended because all members fell silent together."""
        self._engine = engine
        self._mine = mine
        self._noted_ms = noted_ms
        self._connections = connections
        self._replaced = replaced
        self._timings = timings
        self._ended = ended
        self._meter: LoadMeter | None = None

    @property
    def manifest(self) -> Manifest:
        return self.journal.manifest

    # -- the term's beginning and end

    async def start(self) -> None:
        """Take the journal over. Afterwards this broker's copy of the manifest is the leader's copy.

        Raises:
            DeposedError: other brokers write the journal. RetryError: the store does not answer. FencedError: this broker was
                replaced.
        """
        began_s = self.clock.monotonic()
        # Renew from the beginning: the following steps may take longer than the lease lasts.
        self._tasks.keep(self.lease.renew, "lease")
        await self.journal.load()
        for attempt in range(LOAD_TRIES):
            version = self.journal.version
            try:
                records = await self._begin()
                break
            except (DeposedError, InvalidError, CorruptError) as error:
                # The previous leader wrote once more, and may have deleted objects that the older manifest names. After this
                # broker's first edit it cannot write again.
                await self.journal.load()
                if attempt == LOAD_TRIES - 1 or self.journal.version == version:
                    raise
                logger.warning("term_overtaken", error=error.message)
        self._check_term()
        self.take(Began(self.clock.monotonic() - began_s))
        self.journal.publish()
        self.capacity.follow()
        if self._engine.started:
            self._engine.replaced()
            self._engine.sweep_sealed()
        else:
            await self._engine.start(records)
            self._check_term()
        logger.info("leads", broker=self._mine.broker_id, incarnation=self._mine.id, version=self.journal.version)
        self.note("leader", f"broker {self._mine.broker_id} leads the cluster from now on")
        self.take(Opened())
        for work, name in self.lasting():
            self._tasks.keep(work, name)

    def lasting(self) -> Iterator[tuple[Callable[[], Coroutine[Any, Any, None]], str]]:
        """The works that last as long as the open term, and their names. A store that does not answer ends none of them."""
        yield self._run, "leader"
        yield self.gates.run, "gates"
        yield self.tables.run, "tables"

    async def _begin(self) -> int:
        """Make the first commit of the term. Returns the number of recovered records."""
        was_replaced = self._engine.started or await self._failover.was_fenced(self._mine.id)
        lost = self.term.load(self.manifest, was_replaced=was_replaced)
        recovered = (await self._failover.recover(lost)).whole()
        edits = list(recovered.edits)
        is_clock_right = downtime.is_clock_right(self.lease.clock_ahead_ms, self.clock.difference_max_ms)
        if not self._engine.started and not is_clock_right:
            edits += self._engine.begin_time(max(self._noted_ms, downtime.newest_ms(self.manifest, recovered.edits)))
        await self.journal.commit_first(self.term.opening(edits))
        return recovered.records

    def _check_term(self) -> None:
        if self.journal.is_over:
            raise _lease_taken()

    def stop(self) -> None:
        """End the term. Streams end, and all waiting callers get an error."""
        if self.journal.is_over:
            return
        self.lease.end()
        self.clock.forget("brokers")
        self._engine.proof.lapse()
        self.journal.end()
        self.sessions.end_all()
        self.orders.stop()
        self._tasks.end()

    def _lease_written(self, stored: bool) -> None:
        self.take(LeaseWritten(stored))

    def _lease_lost(self) -> None:
        self._failed(_lease_taken())

    def _failed(self, error: HeadgateError) -> None:
        if not isinstance(error, DeposedError):
            self._engine.fail(error)
        elif not self.journal.is_over:
            logger.warning("deposed", error=error.message)
            self.stop()
            self._ended(error)

    # -- events and effects

    def take(self, event: Event) -> None:
        """Pass an event to the term, and execute the effects."""
        for effect in self.term.handle(event, self.clock.monotonic()):
            match effect:
                case Probe(incarnation):
                    self._tasks.spawn(self._probe(incarnation), "ask")
                case Replace(incarnation, evidence, why):
                    self._replaced[evidence] += 1
                    logger.warning("member_lost", broker=incarnation.broker_id, evidence=evidence.name.lower(), why=why)
                    self.sessions.end(incarnation.id, RetryError(Reason.TIMED_OUT, f"the broker was replaced: {why}"))
                case WaitFor(incarnation, why):
                    logger.warning("member_starved", broker=incarnation.broker_id, why=why)
                case FailOver(why_by_id):
                    self._tasks.spawn(self._fail_over(why_by_id), "failover")
                case Damaged(incarnation, why, error):
                    logger.error("failover_impossible", broker=incarnation.broker_id, why=why, error=error.message)
                case GiveLeaseBack():
                    self._tasks.spawn(self._yield(), "yield")
                case Report(clock_error_ms):
                    self._report(clock_error_ms)
                case MakePlan(steps):
                    self._plan(steps)
                case Carry(order):
                    self._carry(order)
                case PlanLater():
                    self._tasks.spawn(self._plan_later(), "drain")
                case CountBrokers():
                    self.capacity.tick(self.clock.monotonic())

    def note(self, kind: str, why: str, topic: str = "") -> None:
        """Remember an event, for people."""
        self.chronicle.note(kind, why, self.clock.monotonic(), topic)

    def report(self, report: FloodReport) -> None:
        """Note how far a flood is. The beginning and the end of a flood are events."""
        if self.floods.take(report, self.clock.monotonic()):
            what = f"flood {report.flood_id} {FLOOD_EVENTS.get(report.phase, 'began')}"
            self.note("flood", f"{what}: {report.message}" if report.message else what, report.topic)

    def leave(self) -> None:
        """Make this broker lose all its segments, now."""
        self.take(Leaving())

    def _applied(self, edits: Sequence[Edit]) -> None:
        self.sessions.send(self.journal.version, edits)
        self.orders.applied(edits)
        self.capacity.applied(edits)
        self.tables.applied(edits)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.term.pause_s)
            self.capacity.tick(self.clock.monotonic())
            self.take(Ticked())

    async def _probe(self, incarnation: Incarnation) -> None:
        timeout_s = PROBE_S + self.term.detector.round_trip_s(incarnation.id)
        answer = await ask(incarnation.host, incarnation.grpc_port, timeout_s, self.clock)
        self.take(Probed(incarnation.id, answer))

    async def _fail_over(self, why: Mapping[str, str]) -> None:
        ended = Recovered()
        try:
            ended = await self._failover.run(why)
        finally:
            self.take(ended)
        if ended.lost:
            self._timings.handed_over(OrderKind.FAILOVER, self.clock.monotonic() - ended.began_s)
            self._engine.sweep_sealed()

    async def _yield(self) -> None:
        if await self.lease.surrender():
            self.yielded = True
            self._failed(DeposedError(Reason.NOT_LEADER, "all brokers fell silent at once: one of them shall lead"))
        else:
            self.take(LeaseKept())

    def _report(self, clock_error_ms: int) -> None:
        from headgate.broker.control.load import LoadMeter, broker_load

        self.clock.check()
        self.clock.note("brokers", clock_error_ms)
        self.clock.forget("leader")
        self.sessions.alive(self.lease.store_ms, self.capacity.known())
        self.quotas.tick()
        if self._meter is None:
            self._meter = LoadMeter(self._engine)
        load = finish(broker_load(self._mine, self._meter.report(self.journal.version, self._connections())))
        self.take(Measured(load, self.journal.commit_s))

    def _plan(self, steps: Steps[Plan]) -> None:
        turn = self._engine.turns.begin()
        # Most plans end in their first slice: those need no task.
        plan = turn.advance(steps)
        if plan is not None:
            self.take(Planned(plan))
        else:
            self._tasks.spawn(self._plan_in_turns(turn, steps), "plan")

    async def _plan_in_turns(self, turn: Turn, steps: Steps[Plan]) -> None:
        self.take(Planned(await turn.run(steps)))

    def _carry(self, order: Order) -> None:
        try:
            self.orders.begin(order)
        except InvalidError as error:
            logger.error("order_refused", kind=order.kind.value, why=order.why, error=error.message)

    async def _plan_later(self) -> None:
        await asyncio.sleep(DRAIN_TOGETHER_S)
        self.take(PlanDue())


def _lease_taken() -> DeposedError:
    return DeposedError(Reason.FENCED, "another broker took the lease")
