"""The leader of the cluster: writes the manifest, keeps the members, replaces lost members, and carries out orders.

All its state is in the store, except for facts that it learned since it leads: the connected members, their loads, and running
orders. When it dies, the next leader loads the journal and waits `member_timeout_ms` for the members. A member that has not
connected by then is lost.

If all members, two or more, fall silent together, then probably this broker is cut off, and the members are not lost. So it
gives the lease back and does not compete for a while. One of the members then leads, and finds out which brokers it can reach.
Otherwise this broker would fence all of them.

`cluster/liveness.py` decides which members are lost. The incarnation of a lost member is *condemned*: the leader commits none of
its edits any more. Then the leader fences and recovers it (`engine/recovery.py`). One commit lists its last chunks, seals its
segments and itself, and opens their successors on other brokers. If the member was still alive, it finds the fence and stops.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from headgate.broker.cluster import downtime
from headgate.broker.cluster.admission import taken_over
from headgate.broker.cluster.lease import Lease
from headgate.broker.cluster.liveness import LEADER_REPORT_S, MEMBER_REPORT_S, Attention, Detector, Evidence, Judgement, Lost
from headgate.broker.cluster.manifest import (
    Edit,
    Follower,
    Incarnation,
    Manifest,
    OpenIncarnation,
    PutReservation,
    ReleaseReservation,
    SealIncarnation,
    SealSegment,
    SetLeader,
    encode_edits,
)
from headgate.broker.cluster.reshard import LoadPlanner, count_of_segments
from headgate.broker.cluster.segments import BrokerLoad, Order, OrderKind, SegmentInfo
from headgate.broker.cluster.succession import Gap, find_gaps, open_successors
from headgate.broker.control.capacity import TermCapacity
from headgate.broker.control.catalog import ClusterCatalog
from headgate.broker.control.gates import LeaderGates
from headgate.broker.control.lease import LeaseRegister
from headgate.broker.control.orders import OrderBook
from headgate.broker.control.probe import ask
from headgate.broker.engine import keys
from headgate.broker.engine.catalog import DeposedError, LocalCatalog
from headgate.broker.engine.recovery import recover
from headgate.broker.runtime.errors import CorruptError, FencedError, HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import known

if TYPE_CHECKING:
    from headgate.broker.control.load import LoadMeter
    from headgate.broker.engine.engine import Engine, Held
    from headgate.broker.engine.replicas import Copy

log = get_logger("leader")

TICK_S = 0.1
"""Pause, in seconds, between two checks of the other brokers. It bounds the delay with which their silence is detected."""
ALONE_S = 0.5
"""The same pause when there are no other brokers. Then only reservations can expire, so an idle broker wakes seldom."""
DRAIN_S = 60.0
"""Longest time, in seconds, in which a broker must hand over all its segments."""
DRAIN_TOGETHER_S = 0.2
"""Pause, in seconds, before the plan for a broker that leaves. Several brokers may leave one after the other; none of them
should receive the segments of another."""
PROBE_S = 0.5
"""Time, in seconds, in which the address of a suspect must accept or refuse a connection."""
DAMAGED_RETRY_S = 10.0
"""Pause, in seconds, before a damaged log is read again. An operator may have restored it."""
TROUBLE_S = 60.0
"""Seconds after which a broker that cannot store records is replaced, if the leader can store. Other brokers can store, too."""
LOAD_TRIES = 10
PATIENCE = 2.0
"""Time that the members get to find a new leader, as a multiple of the time that this broker needed to begin its term."""
RETRY_S = 0.2
QUEUE_MESSAGES_MAX = 10_000
"""Largest number of unsent messages to one member. Beyond it, the leader ends the member's stream, and the member connects
again."""


class Session(Protocol):
    """A member's stream, on the leader's side."""

    incarnation: Incarnation
    load: BrokerLoad
    """The member's last report."""
    trouble: str
    """The reason why the member cannot store records, from its last report. Empty: it can store."""
    trouble_since_s: float | None
    """The monotonic time, in seconds, since which the member has reported trouble. None: it has none."""
    clock_ahead_ms: int | None
    """Milliseconds by which the leader's clock was ahead of the member's machine at the last report. None: unknown."""

    def edits(self, version: int, data: bytes) -> None:
        """Send the edits of a commit to the member."""

    def alive(self) -> None:
        """Send the member a sign of life of the leader."""

    async def resign(self, segment_ids: list[int]) -> None:
        """Make the member seal segments. Raises RetryError if the stream ends first."""

    async def hold(self, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int], term: int) -> list[Held]:
        """Call `Engine.hold` on the member. Raises as it does, and RetryError if the stream ends first."""

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Call `Engine.drop_holds` on the member."""

    def drain(self) -> None:
        """Tell the member that it must give up all its segments, also under later leaders."""

    def end(self, error: HeadgateError) -> None:
        """End the stream."""


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
        catalog: ClusterCatalog,
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
        fail: Callable[[HeadgateError], None],
    ) -> None:
        self.sessions: dict[str, Session] = {}
        self.lease = lease
        self.planner = planner
        self.orders = OrderBook(self)
        self.gates = LeaderGates(self, engine)
        self.capacity = TermCapacity(
            self, brokers_min=engine.settings.capacity_brokers_min, brokers_max=engine.settings.capacity_brokers_max
        )
        self._engine = engine
        self._catalog = catalog
        self._register = register
        self._mine = mine
        self._version = version
        self._noted_ms = noted_ms
        self._draining = draining
        self._ended = ended
        self._fail = fail
        self.clock = engine.clock
        self._local = LocalCatalog(engine.store, mine.id, applied=self._applied, complete=self._complete, fail=self._failed)
        self._condemned: set[str] = set()
        self._damaged: dict[str, float] = {}
        """Incarnations with an unreadable log, and the monotonic time in seconds before which their recovery is not tried again."""
        now_s = self.clock.monotonic()
        self.attention = attention
        self.detector = Detector(attention, member_timeout_ms / 1000, MEMBER_REPORT_S, now_s)
        """Observes all other brokers."""
        if predecessor[0]:
            self.detector.silent_since(*predecessor, now_s)
        self._replaced = replaced
        self._failing_over: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._meter: LoadMeter | None = None
        self._own_load: BrokerLoad | None = None
        self._stopped = False
        self._epoch = -1
        """The leader epoch of this term."""
        self._attempts = 0
        self._drained: set[str] = set()
        """Incarnations that an operator drained, or that announced their end."""
        self._given_up = False
        self._store_well_since_s = self.clock.monotonic()
        """The monotonic time, in seconds, since which every renewal of the lease has succeeded."""
        self.yielded = False
        """True if this term ended because all members fell silent together."""
        self._surrender = surrender
        self._yields = yields
        self._writing_lease = asyncio.Lock()
        self.connections: Callable[[], int] = lambda: 0

    # -- the term

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
        self._spawn(self._renew(), "lease")
        for attempt in range(LOAD_TRIES):
            await self._local.load()
            try:
                records = await self._begin()
                break
            except DeposedError:
                # The previous leader wrote once more. After this broker's first edit it cannot write again.
                if attempt == LOAD_TRIES - 1:
                    raise
        self._check_term()
        now_s = self.clock.monotonic()
        # If the store is slow, the members also need longer to find this leader. So a slow leader gives them more time.
        self.detector.begins(now_s, PATIENCE * (now_s - began_s))
        self._catalog.manifest, self._catalog.version = self._local.manifest, self.version
        self._catalog.use(self)
        self.capacity.follow()
        if self._engine.started:
            self._engine.replaced()
            self._engine.sweep_sealed()
        else:
            await self._engine.start(self._catalog, records)
            self._check_term()
        log.info("leads", broker=self._mine.broker_id, incarnation=self._mine.id, version=self.version)
        self._ask_suspects()
        self._spawn(self._run(), "leader")
        self._spawn(self.gates.run(), "gates")

    async def _begin(self) -> int:
        """Make the first commit of the term. Returns the number of recovered records."""
        manifest = self.manifest
        self._epoch = manifest.leader_epoch + 1
        edits: list[Edit] = [SetLeader(self._mine.id, self._epoch)]
        # Two processes cannot listen at one address. So an earlier broker at this address is gone.
        lost = [incarnation for incarnation in self._others() if _same_place(incarnation, self._mine)]
        recovered = (await recover(self._engine.store, manifest, lost, self._maker(), self._copies_of)).whole()
        edits += recovered.edits
        if not self._engine.started:
            edits += self._begin_time(recovered.edits)
        known = manifest.incarnations.get(self._mine.id)
        if known.sealed if known is not None else self._engine.started or await self._was_fenced(self._mine.id):
            raise taken_over(manifest, self._mine.id, self._mine.broker_id)
        self._own_load = BrokerLoad(incarnation_id=self._mine.id, broker_id=self._mine.broker_id)

        def make(now: Manifest) -> list[Edit]:
            return [*edits, OpenIncarnation(_with_epoch(self._mine, now, 2))] if known is None else edits

        await self._local.commit_made(make)
        return recovered.records

    def _begin_time(self, recovered: Sequence[Edit]) -> Sequence[Edit]:
        """Call `Engine.begin_time`, unless the store has its own clock and agrees with this broker's clock. Then the clock is
        right."""
        ahead_ms = self._register.ahead_ms
        if ahead_ms is not None and abs(ahead_ms) <= self.clock.difference_max_ms:
            return []
        return self._engine.begin_time(max(self._noted_ms, downtime.newest_ms(self.manifest, recovered)))

    async def _copies_of(self, lead: Incarnation) -> list[Copy]:
        """The copies that a lost lead's follower has. The lead may have acked them, and its WAL may lack them. Raises
        RetryError."""
        follower = self.manifest.followers.get(lead.id)
        return [] if follower is None else await self._surrender(lead, follower)

    async def _was_fenced(self, incarnation_id: str) -> bool:
        """True if an incarnation that the manifest does not know was replaced and forgotten. The incarnation may not know of
        this.

        Fences are kept for ever. Raises RetryError.
        """
        try:
            await self._engine.store.get_range(keys.fence(incarnation_id), 0, 1)
        except InvalidError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return False
        return True

    def _maker(self) -> str:
        """A new name for the objects of one recovery."""
        self._attempts += 1
        return keys.maker(self._epoch, self._mine.id, self._attempts)

    def _check_term(self) -> None:
        if self._stopped:
            raise DeposedError(Reason.FENCED, "another broker took the lease")

    async def _renew(self) -> None:
        """Renew the lease. If the store does not answer, wait: no other broker can take the lease meanwhile."""
        pause_s = self.lease.ttl_ms / 2000
        while True:
            await asyncio.sleep(pause_s)
            began_s = self.clock.monotonic()
            await self.write_lease()
            pause_s = max(self.lease.ttl_ms / 2000 - (self.clock.monotonic() - began_s), 0.0)

    async def write_lease(self, *, serving: bool = False) -> None:
        """Write the next version of the lease. If another broker has written it, this term ends.

        Args:
            serving: note that this broker's gRPC port is open. False: leave that note unchanged.
        """
        async with self._writing_lease:
            if self._given_up:
                return
            lease = structs.replace(
                self.lease, renewal=self.lease.renewal + 1, serving=serving or self.lease.serving, at_ms=self._at_ms()
            )
            asked_s = self.clock.monotonic()
            try:
                if await self._register.write(self._version + 1, lease):
                    self._version += 1
                    self.lease = lease
                    if self._register.ahead_ms is not None:
                        self.clock.note("store", self._register.ahead_ms)
                    self._store_well_since_s = min(self._store_well_since_s, self.clock.monotonic())
                    if not self._stopped:
                        self._engine.proof.extend(asked_s, lease.ttl_ms)
                    return
                version, found = await self._register.read()
                if found == lease:
                    # An earlier attempt may have written it, and its answer was lost. The time of that write is unknown, so it
                    # extends no promise.
                    self._version, self.lease = version, lease
                    return
            except RetryError as error:
                log.warning("lease_not_renewed", error=error.message)
                self._store_well_since_s = float("inf")
                return
        self._failed(DeposedError(Reason.FENCED, "another broker took the lease"))

    def _at_ms(self) -> int:
        """The value for `Lease.at_ms`. Until this broker has noted the time in which no broker ran, it is the previous version's
        value."""
        return self.clock.now_ms() if self._engine.started else self.lease.at_ms

    async def serving(self) -> None:
        """Note in the lease that this broker's gRPC port is open. From now on, a broker that finds the port closed knows that
        this broker is gone."""
        await self.write_lease(serving=True)

    def stop(self) -> None:
        """End the term. Streams end, and all waiting callers get an error."""
        if self._stopped:
            return
        self._stopped = True
        self.clock.forget("brokers")
        self._engine.proof.lapse()
        self._catalog.leave(self)
        self._local.retire()
        error = _not_leader()
        for session in list(self.sessions.values()):
            session.end(error)
        self.orders.stop()
        for task in self._tasks:
            task.cancel()

    async def give_up(self) -> None:
        """Give the lease back. Any broker that sees this may take it at once."""
        async with self._writing_lease:
            self._given_up = True
            self._engine.proof.lapse()
            await self._register.write(
                self._version + 1,
                Lease(
                    holder="",
                    broker_id=self._mine.broker_id,
                    address=self.lease.address,
                    ttl_ms=self.lease.ttl_ms,
                    at_ms=self._at_ms(),
                ),
            )

    def _failed(self, error: HeadgateError) -> None:
        if isinstance(error, DeposedError):
            if not self._stopped:
                log.warning("deposed", error=error.message)
                self.stop()
                self._ended(error)
        else:
            self._fail(error)

    def _spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None or self._stopped:
            return
        if isinstance(error, RetryError):
            log.warning("leader_task_failed", task=task.get_name(), error=error.message)
        elif isinstance(error, HeadgateError):
            self._failed(error)
        else:
            self._fail(known(error, "leader"))

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
        if incarnation_id in self._condemned:
            raise FencedError(Reason.FENCED, f"another broker takes over from this one. incarnation=`{incarnation_id}`")
        try:
            await self._local.commit_for(incarnation_id, edits)
        except DeposedError as error:
            raise _not_leader() from error
        return self.version

    def _applied(self, edits: Sequence[Edit]) -> None:
        if self._catalog.manifest is self._local.manifest:
            self._catalog.version = self.version
            self._engine.applied(edits)
        if self.sessions:
            data = encode_edits(list(edits))
            for session in list(self.sessions.values()):
                session.edits(self.version, data)
        self.orders.applied(edits)
        if any(isinstance(edit, PutReservation | ReleaseReservation) for edit in edits):
            self.capacity.follow()

    def _complete(self, manifest: Manifest, edits: list[Edit]) -> list[Edit]:
        """Add the edits that give a lead to every partition that these edits leave without one."""
        sealed = {edit.incarnation_id for edit in edits if isinstance(edit, SealIncarnation)}
        brokers = [load for load in self.loads() if load.incarnation_id not in sealed]
        everywhere = any(isinstance(edit, SetLeader) for edit in edits)
        gaps = find_gaps(manifest, edits, everywhere=everywhere)
        if not gaps:
            return []
        seals = {edit.segment_id for edit in edits if isinstance(edit, SealSegment)}
        alive = {broker.incarnation_id for broker in brokers}
        successors, held = self.orders.successors(seals, alive)
        if not {one.topic_id for one in successors} <= {gap.topic_id for gap in gaps}:
            # An order over several topics is complete now, and earlier commits sealed the segments of some of these topics.
            gaps = find_gaps(manifest, edits, everywhere=True)
        taken = {(one.topic_id, number) for one in successors for number in range(one.first_partition, one.end_partition)}
        taken |= held
        rest = {key: manifest.segments[key] for key in manifest.segments.keys() - seals}
        for is_new in (True, False):
            ranges = [piece for gap in gaps if gap.is_new is is_new for piece in _without(gap, taken)]
            if ranges:
                successors += self.planner.place(ranges, rest, brokers, divide=is_new)
        return open_successors(manifest, edits, gaps, successors)

    def trouble_of(self, incarnation_id: str) -> str:
        """The reason why a live broker cannot store records at the moment. Empty: it can."""
        if incarnation_id == self._mine.id:
            trouble = self._engine.failed or self._engine.stalled
            return "" if trouble is None else trouble.message
        session = self.sessions.get(incarnation_id)
        return "it is not connected" if session is None else session.trouble

    def lateness_of(self, incarnation_id: str) -> tuple[float, float]:
        """(seconds by which a broker is late, seconds of silence after which it is replaced). The second is 0 for this broker."""
        now_s = self.clock.monotonic()
        if incarnation_id == self._mine.id:
            return self.attention.late_s(now_s), 0.0
        return self.detector.late_s(incarnation_id, now_s), self.detector.allowed_s(incarnation_id, now_s)

    def since(self, version: int) -> list[tuple[int, bytes]] | None:
        """The commits after a version; see `LocalCatalog.since`."""
        return self._local.since(version)

    def loads(self) -> list[BrokerLoad]:
        """The last reports of the live members and of this broker. An incarnation that sealed itself is left out, because it can
        lead nothing."""
        incarnations = self.manifest.incarnations
        loads = [
            session.load
            for key, session in self.sessions.items()
            if key not in self._condemned and key in incarnations and not incarnations[key].sealed
        ]
        mine = incarnations.get(self._mine.id)
        if self._own_load is not None and (mine is None or not mine.sealed):
            loads.insert(0, replace(self._own_load, draining=self._draining.is_set()))
        # A drained member may not have received the message yet.
        return [
            load if load.draining or load.incarnation_id not in self._drained else replace(load, draining=True) for load in loads
        ]

    # -- members

    async def admit(self, incarnation: Incarnation, version: int) -> None:
        """Admit a broker that asks to be a member. If its incarnation is new, the manifest gets it.

        Args:
            version: of the broker's copy of the manifest; 0: it has none yet.

        Raises:
            FencedError: the incarnation was replaced. InvalidError: another broker has its broker id.
        """
        for other in [self._mine, *(session.incarnation for session in self.sessions.values())]:
            if other.broker_id == incarnation.broker_id and other.id != incarnation.id:
                raise InvalidError(
                    Reason.INVALID_CONFIG,
                    f"another broker has this id: choose another with --broker-id. broker_id=`{incarnation.broker_id}` "
                    f"address=`{other.host}:{other.kafka_port}`",
                )
        fenced = incarnation.id not in self.manifest.incarnations and await self._was_fenced(incarnation.id)
        known = self.manifest.incarnations.get(incarnation.id)
        # A broker with a copy of the manifest was a member before. If the manifest does not contain it any more, it was replaced.
        over = known.sealed if known is not None else version > 0 or fenced
        if over or incarnation.id in self._condemned:
            raise FencedError(Reason.FENCED, f"another broker took over from this one. incarnation=`{incarnation.id}`")
        for other in self._others():
            if other.id != incarnation.id and (other.broker_id == incarnation.broker_id or _same_place(other, incarnation)):
                self.detector.over(other.id, "another process runs in its place")
        self.detector.admitting(incarnation.id)
        # Either commit proves that this broker still leads. A leader that was replaced while it slept must not keep members.
        try:
            if known is None:
                await self._local.commit_made(lambda now: [OpenIncarnation(_with_epoch(incarnation, now))])
            else:
                await self._local.commit(SetLeader(self._mine.id, self._epoch))
        except DeposedError as error:
            raise _not_leader() from error
        finally:
            self.detector.admitted(incarnation.id, self.clock.monotonic())

    def joined(self, session: Session) -> None:
        """Called when a member's stream begins. The stream starts with the current manifest. Raises RetryError(NOT_LEADER) if
        the term is over."""
        if self._stopped:
            raise _not_leader()
        before = self.sessions.get(session.incarnation.id)
        if before is not None:
            before.end(RetryError(Reason.NOT_LEADER, "the broker joined again"))
        self.sessions[session.incarnation.id] = session
        self.detector.joined(session.incarnation.id, self.clock.monotonic())
        self.capacity.tick(self.clock.monotonic())
        log.info("member_joined", broker=session.incarnation.broker_id, incarnation=session.incarnation.id)

    def left(self, session: Session) -> None:
        """Called when a member's stream has ended."""
        if self.sessions.get(session.incarnation.id) is session:
            del self.sessions[session.incarnation.id]
            if not self._stopped:
                self.detector.left(session.incarnation.id, self.clock.monotonic())
                log.info("member_left", broker=session.incarnation.broker_id, incarnation=session.incarnation.id)
                self._ask_suspects()

    def promise(self, session: Session) -> int:
        """Promise a member, after a message from it, not to fence it unless its process is gone; see `engine/proof.py`.

        Returns:
            The length of the promise in ms from now. 0: no promise, because this broker may have been replaced, or is about to
            replace the member.
        """
        now_s = self.clock.monotonic()
        key = session.incarnation.id
        if (
            self._stopped
            or not self._engine.proof.holds
            or self.sessions.get(key) is not session
            or key in self._condemned
            or self._is_cut_from_store(session, now_s)
        ):
            return 0
        return int(self.detector.promise(key, now_s) * 1000)

    def awaits_members(self) -> bool:
        """True if some brokers have neither connected nor been found lost yet."""
        return any(other.id not in self.sessions and other.id not in self._damaged for other in self._others())

    def _others(self) -> list[Incarnation]:
        return [one for one in self.manifest.incarnations.values() if not one.sealed and one.id != self._mine.id]

    def _ask_suspects(self) -> None:
        """Probe the addresses of brokers that may be lost."""
        others = {one.id: one for one in self._others()}
        for incarnation_id in self.detector.asking(others, self.clock.monotonic()):
            self._spawn(self._ask(others[incarnation_id]), "ask")

    async def _ask(self, incarnation: Incarnation) -> None:
        answer = await ask(incarnation.host, incarnation.grpc_port, PROBE_S, self.clock)
        self.detector.answered(incarnation.id, answer, self.clock.monotonic())
        self._replace_lost()

    async def _run(self) -> None:
        report_s = self.clock.monotonic()
        while True:
            await asyncio.sleep(TICK_S if self.sessions or self._others() else ALONE_S)
            now_s = self.clock.monotonic()
            self.capacity.tick(now_s)
            self._ask_suspects()
            self._replace_lost()
            if now_s - report_s >= LEADER_REPORT_S:
                report_s = now_s
                self._compare_clocks()
                for session in list(self.sessions.values()):
                    session.alive()
                self.detector.forget({one.id for one in self._others()} | self.sessions.keys())
                self._measure(now_s)
                self._plan()

    def _replace_lost(self) -> None:
        """Begin the failover of lost members. If this broker is cut off, give the lease back instead."""
        if self._failing_over is not None:
            return
        now_s = self.clock.monotonic()
        if self._yields and self.detector.is_cut_off(now_s):
            self._yields = False
            self._failing_over = self._spawn(self._yield(), "yield")
            return
        lost = self._find_lost(now_s)
        if lost:
            self._failing_over = self._spawn(self._fail_over(lost), "failover")

    def _compare_clocks(self) -> None:
        """Compare this broker's clock with the machine's clock and with those of the members."""
        self.clock.check()
        ahead_ms = [session.clock_ahead_ms for session in self.sessions.values() if session.clock_ahead_ms is not None]
        differing = [one for one in ahead_ms if abs(one) > self.clock.difference_max_ms]
        # If most members differ, this broker's clock is wrong. A single member that differs reports itself.
        self.clock.note("brokers", differing[0] if 2 * len(differing) > len(ahead_ms) else 0)
        self.clock.forget("leader")

    @property
    def store_ms(self) -> int:
        """The store's own time in wall-clock ms. 0: the store has no clock, or its time is unknown."""
        ahead_ms = self._register.ahead_ms
        return 0 if ahead_ms is None else self.clock.now_ms() - ahead_ms

    async def _yield(self) -> None:
        try:
            await self.give_up()
        except RetryError as error:
            log.warning("lease_not_given_up", error=error.message)
            self._given_up = False
            return
        finally:
            self._failing_over = None
        self.yielded = True
        self._failed(DeposedError(Reason.NOT_LEADER, "all brokers fell silent at once: one of them shall lead"))

    def _find_lost(self, now_s: float) -> list[Lost]:
        others = {one.id: one for one in self._others() if now_s >= self._damaged.get(one.id, 0.0)}
        for incarnation_id in others:
            session = self.sessions.get(incarnation_id)
            if session is None or not self._is_cut_from_store(session, now_s):
                continue
            if not self.detector.is_promised(incarnation_id, now_s):
                self.detector.over(incarnation_id, f"it could not store records for {TROUBLE_S:g} s: {session.trouble}")
        found: Judgement = self.detector.judge(others, now_s)
        for one in found.waited_for:
            incarnation = others[one.incarnation_id]
            log.warning("member_starved", broker=incarnation.broker_id, why=one.why)
            order = Order(kind=OrderKind.WAIT, seal=(), open=(), why=f"broker {incarnation.broker_id} is waited for: {one.why}")
            self.orders.note(order, topic_ids=(), began_s=now_s)
        for one in found.lost:
            self._replaced[one.evidence] += 1
            log.warning("member_lost", broker=others[one.incarnation_id].broker_id, evidence=one.evidence.name.lower(), why=one.why)
            session = self.sessions.get(one.incarnation_id)
            if session is not None:
                session.end(RetryError(Reason.TIMED_OUT, f"the broker was replaced: {one.why}"))
        return list(found.lost)

    def _is_cut_from_store(self, session: Session, now_s: float) -> bool:
        """True if only this member has had trouble with the store for too long. The leader's own renewals must have succeeded
        meanwhile: if no broker could reach the store, it may answer the leader first, and the leader must not replace any member
        for that."""
        since_s = session.trouble_since_s
        return since_s is not None and now_s - max(since_s, self._store_well_since_s) > TROUBLE_S

    async def _fail_over(self, judged: list[Lost]) -> None:
        started_s = self.clock.monotonic()
        why = {one.incarnation_id: one.why for one in judged}
        self._condemned.update(why)
        try:
            while True:
                try:
                    # Commit before the first fence. A leader that was replaced while it slept finds that out here, and fences no
                    # broker.
                    await self._local.commit(SetLeader(self._mine.id, self._epoch))
                    lost = [one for one in self._others() if one.id in self._condemned]
                    recovered = await recover(self._engine.store, self.manifest, lost, self._maker(), self._copies_of)
                    damaged = {one: recovered.unreadable[one.id] for one in lost if one.id in recovered.unreadable}
                    lost = [one for one in lost if one not in damaged]
                    if lost:
                        await self._local.commit(*recovered.edits)
                    break
                except DeposedError:
                    raise
                except (RetryError, InvalidError, FencedError) as error:
                    # The store does not answer, a topic was deleted, or a member sealed itself at the last moment. The next
                    # recovery may be committed.
                    log.warning("failover_waits", error=error.message)
                    await asyncio.sleep(RETRY_S)
        finally:
            self._failing_over = None
        for incarnation, damage in damaged.items():
            self._note_damage(incarnation, damage)
        if not lost:
            return
        log.info(
            "failed_over",
            brokers=[incarnation.broker_id for incarnation in lost],
            records=recovered.records,
            seconds=round(self.clock.monotonic() - started_s, 3),
        )
        for incarnation in lost:
            self._note_failover(incarnation, recovered.edits, started_s, why.get(incarnation.id, "its log was damaged"))
        self._engine.sweep_sealed()

    def _note_damage(self, incarnation: Incarnation, error: CorruptError) -> None:
        """Note that the store lost records that a broker acked. Its partitions wait for an operator; all others continue."""
        why = (
            f"broker {incarnation.broker_id} was lost, and its log is damaged: no broker leads its partitions until it is restored"
        )
        log.error("failover_impossible", broker=incarnation.broker_id, why=why, error=error.message)
        now_s = self.clock.monotonic()
        if incarnation.id not in self._damaged:
            order = Order(kind=OrderKind.FAILOVER, seal=(), open=(), why=f"{why}. {error.message}")
            topics = {one.topic_id for one in self.manifest.segments.values() if one.incarnation_id == incarnation.id}
            self.orders.note(order, topic_ids=topics, began_s=now_s, error=error)
        self._damaged[incarnation.id] = now_s + DAMAGED_RETRY_S

    def _note_failover(self, incarnation: Incarnation, edits: Sequence[Edit], began_s: float, evidence: str) -> None:
        """Note a failover for the operator."""
        chain = self.manifest.sealed_segments
        sealed = [chain[edit.segment_id] for edit in edits if isinstance(edit, SealSegment) and edit.segment_id in chain]
        sealed = [segment for segment in sealed if segment.incarnation_id == incarnation.id]
        leads = {
            lead.incarnation_id
            for segment in sealed
            for lead in self.manifest.leads.get(segment.topic_id, ())[segment.first_partition : segment.end_partition]
            if lead is not None
        }
        names = sorted({self.manifest.incarnations[lead].broker_id for lead in leads})
        takers = ", ".join(f"broker {name}" for name in names)
        took = f"its {count_of_segments(len(sealed))} went to {takers}" if names else "it led nothing"
        order = Order(
            kind=OrderKind.FAILOVER,
            seal=tuple(segment.id for segment in sealed),
            open=(),
            why=f"broker {incarnation.broker_id} was lost: {evidence}; {took}",
        )
        self.orders.note(order, topic_ids=(segment.topic_id for segment in sealed), began_s=began_s)

    # -- load

    def _measure(self, now_s: float) -> None:
        """Give the planner the loads of the last second."""
        from headgate.broker.control.load import LoadMeter, broker_load

        if self._meter is None:
            self._meter = LoadMeter(self._engine)
        self._own_load = broker_load(self._mine, self._meter.report(self.version, self.connections()))
        self.planner.observe(self.loads(), int(now_s * 1000))

    def _plan(self) -> None:
        """Begin the orders that the planner recommends now."""
        if self._failing_over is not None or self._stopped:
            return
        segments = {key: info for key, info in self.manifest.segments.items() if not self.orders.is_busy(key)}
        for order in self.planner.plan(segments, self.loads(), int(self.clock.monotonic() * 1000)).orders:
            try:
                self.orders.begin(order)
            except InvalidError as error:
                log.error("order_refused", kind=order.kind.value, why=order.why, error=error.message)

    def drain(self) -> None:
        """Make this broker lose all its segments, now."""
        self._draining.set()
        if self._mine.id not in self._drained:
            self._drained.add(self._mine.id)
            self._spawn(self._drain_soon(), "drain")

    def reported(self, session: Session, late_s: float, *, serves: bool) -> None:
        """Called when a member has sent a report.

        Args:
            late_s: seconds by which the member's timers are late.
            serves: the member's gRPC port is open.
        """
        self.detector.heard(session.incarnation.id, self.clock.monotonic(), late_s=late_s, serves=serves)
        if session.load.draining and session.incarnation.id not in self._drained:
            self._drained.add(session.incarnation.id)
            self._spawn(self._drain_soon(), "drain")

    async def _drain_soon(self) -> None:
        await asyncio.sleep(DRAIN_TOGETHER_S)
        self._plan()

    async def drain_broker(self, broker_id: int) -> list[SegmentInfo]:
        """Take all segments from a broker, and give it none until it is restarted.

        Returns:
            The segments that replace them.

        Raises:
            InvalidError: there is no such live broker, or no other broker. RetryError: it keeps segments for too long, or this
                term ends.
        """
        loads = self.loads()
        incarnation_id = next((load.incarnation_id for load in loads if load.broker_id == broker_id), None)
        if incarnation_id is None:
            raise InvalidError(Reason.INVALID_REQUEST, f"there is no live broker of this number. broker=`{broker_id}`")
        if all(load.draining or load.incarnation_id == incarnation_id for load in loads):
            raise InvalidError(
                Reason.INVALID_REQUEST, f"there is no other broker that could take its segments. broker=`{broker_id}`"
            )
        self._drained.add(incarnation_id)
        if incarnation_id == self._mine.id:
            self._draining.set()
        else:
            self.sessions[incarnation_id].drain()
        taken: set[tuple[uuid.UUID, int]] = set()
        deadline_s = self.clock.monotonic() + DRAIN_S
        while left := [segment for segment in self.manifest.segments.values() if segment.incarnation_id == incarnation_id]:
            taken.update((segment.topic_id, number) for segment in left for number in segment.partitions)
            if self._stopped:
                raise _not_leader()
            if self.clock.monotonic() > deadline_s:
                raise RetryError(Reason.TIMED_OUT, f"the broker still has segments. broker=`{broker_id}` segments=`{len(left)}`")
            self._plan()
            await asyncio.sleep(TICK_S)
        return [
            segment
            for segment in self.manifest.segments.values()
            if any((segment.topic_id, number) in taken for number in segment.partitions)
        ]

    async def hold(self, incarnation_id: str, topic_id: uuid.UUID, gate_id: str, rows: Mapping[int, int]) -> list[Held]:
        """Make a lead reserve offsets for a gate; see `Engine.hold`. Raises RetryError if the lead is gone."""
        if incarnation_id == self._mine.id:
            return self._engine.hold(topic_id, gate_id, rows, self._epoch)
        session = self.sessions.get(incarnation_id)
        if session is None:
            raise RetryError(Reason.NOT_LEADER, f"the broker is not connected. incarnation=`{incarnation_id}`")
        return await session.hold(topic_id, gate_id, rows, self._epoch)

    def drop_holds(self, topic_id: uuid.UUID, gate_id: str) -> None:
        """Tell all leads that a gate will not be opened."""
        self._engine.drop_holds(topic_id, gate_id)
        for session in self.sessions.values():
            session.drop_holds(topic_id, gate_id)

    async def resign(self, incarnation_id: str, segment_ids: list[int]) -> None:
        """Make their lead seal segments. Raises RetryError if the lead is gone."""
        if incarnation_id == self._mine.id:
            await self._engine.resign(segment_ids)
            return
        session = self.sessions.get(incarnation_id)
        if session is None:
            raise RetryError(Reason.NOT_LEADER, f"the broker is not connected. incarnation=`{incarnation_id}`")
        await session.resign(segment_ids)

    def order_failed(self) -> None:
        """Called when an order failed. Its segments may be sealed without successors, so give a lead to every partition that has
        none."""
        self._spawn(self._local.commit(SetLeader(self._mine.id, self._epoch)), "fill-gaps")

    def spawn_order(self, work: Any) -> asyncio.Task[None]:
        """Carry out an order. This ends with the term."""
        return self._spawn(work, "order")


def _not_leader() -> RetryError:
    """The error for clients and members: only this broker was replaced, not they."""
    return RetryError(Reason.NOT_LEADER, "this broker does not lead the cluster any more")


def _same_place(one: Incarnation, other: Incarnation) -> bool:
    """True if two runs have the same address. A broker without an address is the only one at its store."""
    return (one.host, one.grpc_port) == (other.host, other.grpc_port) and (one.grpc_port != 0 or one.broker_id == other.broker_id)


def _with_epoch(incarnation: Incarnation, manifest: Manifest, behind: int = 1) -> Incarnation:
    return structs.replace(incarnation, leader_epoch=manifest.leader_epoch + behind)


def _without(gap: Gap, taken: set[tuple[Any, int]]) -> list[tuple[Any, int, int]]:
    """The parts of a gap that are not taken."""
    pieces: list[tuple[Any, int, int]] = []
    first: int | None = None
    for number in range(gap.first_partition, gap.end_partition + 1):
        free = number < gap.end_partition and (gap.topic_id, number) not in taken
        if free and first is None:
            first = number
        elif not free and first is not None:
            pieces.append((gap.topic_id, first, number))
            first = None
    return pieces
