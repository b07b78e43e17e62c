"""One term of the cluster's leader: decides which members are lost, which are condemned, and what a commit completes. No I/O.

`Term.handle(event, now_s)` returns effects, which `control/leader.py` executes. Results of effects come back as events.

Theory of operation::

    event          decision                                                           effects
    -------------  -----------------------------------------------------------------  --------------------------------------
    Opened         watch all other open incarnations                                  Probe of those without a stream
    Ticked         judge silence; once a second, report                               Probe, Replace, WaitFor, FailOver,
                                                                                      GiveLeaseBack, Report
    Probed         judge again with the answer                                        Replace, WaitFor, FailOver
    Joined, Left   note the stream                                                    CountBrokers after Joined, Probe
                                                                                      after Left
    Admitted       wait for the stream of a broker that asked to join
    Reported       note load, trouble, clock and lateness; a broker that announces    PlanLater
                   its end is drained
    Measured       plan with the loads of the last second                             MakePlan
    Planned        keep the orders that are still possible                            Carry
    Recovered      the lost brokers are replaced; a broker with a damaged log stays   Damaged
                   condemned and is tried again after `DAMAGED_RETRY_S`
    LeaseWritten   note since when this broker reaches the store

    member     admitted ──▶ joined ──▶ lost, condemned ──▶ recovered: its incarnation is sealed
                  ▲            │                 └───────▶ damaged: condemned, and tried again
                  └─── left ◀──┘

- **Lost.** `liveness.Detector` judges silence, ended streams and addresses. A member that cannot reach the store for `TROUBLE_S`
  is lost too, if this broker reaches the store.
- **Condemned.** A lost member is condemned at once, for the rest of the term. The leader commits none of its edits and gives it
  no partitions and no promise. At most one failover runs at a time; members that are lost meanwhile wait for the next judgement.
- **Cut off.** If all members, two or more, fall silent together, then this broker is probably cut off. It gives the lease back
  instead of fencing all others. It does so once; if no other broker leads then, the others are really lost.
- **A commit** that leaves partitions without a lead also opens their next segments: first those of a running order, then those
  that the planner places. Partitions whose order waits for another seal stay without a lead until that seal.

The term reads the manifest; the journal's writer applies the commits to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import structs

from headgate.broker.cluster.admission import taken_over
from headgate.broker.cluster.commit_times import hand_overs_max
from headgate.broker.cluster.edits.brokers import SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import OpenIncarnation, SealIncarnation
from headgate.broker.cluster.edits.segments import SealSegment
from headgate.broker.cluster.liveness import LEADER_REPORT_S, MEMBER_REPORT_S, Attention, Detector
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Incarnation
from headgate.broker.cluster.order_book import OrderBook
from headgate.broker.cluster.placement import count_of_segments
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.cluster.segments import BrokerLoad, Order, OrderKind, Plan
from headgate.broker.cluster.succession import find_gaps, open_successors
from headgate.broker.cluster.term_brokers import Brokers, Member
from headgate.broker.cluster.term_events import (
    Admitted,
    Began,
    Carry,
    CountBrokers,
    Damaged,
    Effect,
    Event,
    FailOver,
    GiveLeaseBack,
    Joined,
    LeaseKept,
    LeaseWritten,
    Leaving,
    Left,
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
    Reported,
    Spoke,
    Ticked,
    WaitFor,
)
from headgate.broker.runtime.errors import CorruptError, FencedError, InvalidError, Reason

TICK_S = 0.1
"""Pause, in seconds, between two `Ticked` events. It bounds the delay with which the silence of a broker is detected."""
ALONE_S = 0.5
"""The same pause when there are no other brokers. Then only reservations can expire, so an idle broker wakes seldom."""
DAMAGED_RETRY_S = 10.0
"""Pause, in seconds, before a damaged log is read again. An operator may have restored it."""
PATIENCE = 2.0
"""Time that the members get to find a new leader, as a multiple of the time that this broker needed to begin its term."""
TROUBLE_S = 60.0
"""Seconds after which a broker that cannot store records is replaced, if the leader can store. Other brokers can store, too."""


class Term(Brokers):
    """The decisions of one term. Attributes without an underscore are for reading.

    Args:
        mine: this broker's incarnation.
        attention: of this process.
        timeout_s: seconds of silence after which a member is lost, on a quiet machine.
        round_trip_s: seconds of a round trip to other brokers, until they report theirs.
        predecessor: the incarnation that let the lease run out, and the seconds of its silence. "" if the lease was given up.
        is_draining: this broker must lose its segments and get no new ones.
        yields: give the lease back when all members fall silent together.
        clock_difference_max_ms: differences of clocks up to this one are normal.
    """

    def __init__(
        self,
        mine: Incarnation,
        planner: LoadPlanner,
        attention: Attention,
        now_s: float,
        *,
        timeout_s: float,
        round_trip_s: float = 0.0,
        predecessor: tuple[str, float] = ("", 0.0),
        is_draining: bool = False,
        yields: bool = False,
        clock_difference_max_ms: int = 0,
    ) -> None:
        super().__init__(mine, is_draining=is_draining)
        self.epoch = -1
        """The leader epoch of this term."""
        self.orders = OrderBook()
        self.planner = planner
        self.detector = Detector(attention, timeout_s, MEMBER_REPORT_S, now_s, round_trip_s)
        """Observes all other brokers."""
        if predecessor[0]:
            self.detector.silent_since(*predecessor, now_s)
        self.store_well_since_s = now_s
        """The monotonic time, in seconds, since which every renewal of the lease has succeeded."""
        self._attention = attention
        self._yields = yields
        self._clock_difference_max_ms = clock_difference_max_ms
        self._commit_s = 0.0
        """Seconds that a commit takes at the moment."""
        self._is_replacing = False
        """True while a failover runs, or the lease is given back."""
        self._is_planning = False
        """True while a plan is made."""
        self._plans_again = False
        """True if another plan is wanted when that plan is made."""
        self._report_s = now_s
        """The monotonic time, in seconds, of the last `Report`."""

    # -- the beginning

    def load(self, manifest: Manifest, *, was_replaced: bool) -> list[Incarnation]:
        """Take the newest manifest, which this term's writer changes from now on.

        Args:
            was_replaced: this broker was a member before, or it is fenced; it matters if the manifest does not contain it.

        Returns:
            Earlier brokers at this broker's address. Two processes cannot listen at one address, so they are gone, and the first
            commit contains their recovery.

        Raises:
            FencedError: this broker was replaced. It must not fence the next run at its address.
        """
        known = manifest.incarnations.get(self._mine.id)
        if known.sealed if known is not None else was_replaced:
            raise taken_over(manifest, self._mine.id, self._mine.broker_id)
        self.manifest = manifest
        self.epoch = manifest.leader_epoch + 1
        return [other for other in self.others() if _same_place(other, self._mine)]

    def opening(self, edits: Sequence[Edit]) -> Callable[[Manifest], Sequence[Edit]]:
        """The first commit of the term, made from the manifest to which it is applied.

        Args:
            edits: of the recovery of earlier brokers.
        """
        known = self.manifest.incarnations.get(self._mine.id)
        self._own_load = BrokerLoad(incarnation_id=self._mine.id, broker_id=self._mine.broker_id)
        first = [self.confirmation, *edits]
        if known is not None:
            return lambda _: first
        return lambda now: [*first, OpenIncarnation(_with_epoch(self._mine, now, 2))]

    @property
    def confirmation(self) -> SetLeader:
        """An edit that proves, once it is committed, that this broker still leads."""
        return SetLeader(self._mine.id, self.epoch)

    # -- events

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take an event at the monotonic time `now_s`, in seconds. Returns what is to be done, in order."""
        match event:
            case Ticked():
                effects = [*self._probe(now_s), *self._replace_lost(now_s)]
                if now_s - self._report_s >= LEADER_REPORT_S:
                    self._report_s = now_s
                    self.detector.forget({other.id for other in self.others()} | self.members.keys())
                    effects.append(Report(self._clock_error_ms()))
                return effects
            case Reported():
                return self._reported(event, now_s)
            case Spoke(incarnation_id):
                self.detector.heard(incarnation_id, now_s)
            case Probed(incarnation_id, answer):
                self.detector.answered(incarnation_id, answer, now_s)
                return self._replace_lost(now_s)
            case Admitted(incarnation_id):
                self.detector.admitted(incarnation_id, now_s)
            case Joined(incarnation):
                load = BrokerLoad(incarnation_id=incarnation.id, broker_id=incarnation.broker_id)
                self.members[incarnation.id] = Member(incarnation, load)
                self.detector.joined(incarnation.id, now_s)
                return [CountBrokers()]
            case Left(incarnation_id):
                del self.members[incarnation_id]
                self.detector.left(incarnation_id, now_s)
                return self._probe(now_s)
            case Measured(load, commit_s):
                self._own_load, self._commit_s = load, commit_s
                self.planner.observe(self.loads(), int(now_s * 1000))
                return self._plan(now_s)
            case PlanDue():
                self._plans_again = self._is_planning
                return self._plan(now_s)
            case Planned(plan):
                return self._planned(plan, now_s)
            case Leaving():
                self.is_draining = True
                return self._drain_soon(self._mine.id)
            case LeaseWritten(stored):
                self.store_well_since_s = min(self.store_well_since_s, now_s) if stored else float("inf")
            case LeaseKept():
                self._is_replacing = False
            case Recovered():
                return self._recovered(event, now_s)
            case Began(took_s):
                # If the store is slow, the members also need longer to find this leader.
                self.detector.begins(now_s, PATIENCE * took_s)
            case Opened():
                self._report_s = now_s
                return self._probe(now_s)
        return []

    def _probe(self, now_s: float) -> list[Effect]:
        others = {other.id: other for other in self.others()}
        return [Probe(others[incarnation_id]) for incarnation_id in self.detector.asking(others, now_s)]

    def _reported(self, event: Reported, now_s: float) -> list[Effect]:
        member = self.members[event.load.incarnation_id]
        member.load, member.trouble = event.load, event.trouble
        if not event.trouble:
            member.trouble_since_s = None
        elif member.trouble_since_s is None:
            member.trouble_since_s = now_s
        if event.clock_ahead_ms is not None:
            member.clock_ahead_ms = event.clock_ahead_ms
        self.detector.heard(
            event.load.incarnation_id, now_s, late_s=event.late_s, serves=event.serves, round_trip_s=event.round_trip_s
        )
        return self._drain_soon(event.load.incarnation_id) if event.load.draining else []

    def _drain_soon(self, incarnation_id: str) -> list[Effect]:
        if incarnation_id in self._drained:
            return []
        self._drained.add(incarnation_id)
        return [PlanLater()]

    def _plan(self, now_s: float) -> list[Effect]:
        if self._is_replacing or self._is_planning:
            return []
        segments = dict(self.manifest.segments.open)
        for segment_id in self.orders.busy():
            segments.pop(segment_id, None)
        self._is_planning = True
        room = hand_overs_max(self._commit_s) - self.orders.under_way()
        self.planner.room = min(self.planner.targets.orders_max, room)
        return [MakePlan(self.planner.plan(segments, self.loads(), int(now_s * 1000)))]

    def _planned(self, plan: Plan, now_s: float) -> list[Effect]:
        self._is_planning = False
        alive = {load.incarnation_id for load in self.loads()}
        effects: list[Effect] = []
        for order in plan.orders:
            # While the plan was made, segments were sealed, orders were begun, and brokers were lost.
            is_possible = not self._is_replacing and not self.orders.missing(order, self.manifest)
            if is_possible and alive.issuperset(segment.incarnation_id for segment in order.open):
                effects.append(Carry(order))
        if self._plans_again:
            self._plans_again = False
            effects += self._plan(now_s)
        return effects

    def _clock_error_ms(self) -> int:
        """The error of this broker's clock in ms, as the members' clocks show it.

        It is 0 unless most of them differ by more than `clock_difference_max_ms`: a single member that differs has a wrong clock
        itself, and reports that.
        """
        ahead_ms = [member.clock_ahead_ms for member in self.members.values() if member.clock_ahead_ms is not None]
        differing = [broker_id for broker_id in ahead_ms if abs(broker_id) > self._clock_difference_max_ms]
        return differing[0] if 2 * len(differing) > len(ahead_ms) else 0

    # -- lost members

    def _replace_lost(self, now_s: float) -> list[Effect]:
        """Begin the failover of lost members. If this broker is cut off, give the lease back instead."""
        if self._is_replacing:
            return []
        if self._yields and self.detector.is_cut_off(now_s, but=self._lanes()):
            self._yields, self._is_replacing = False, True
            return [GiveLeaseBack()]
        others = {other.id: other for other in self.others() if now_s >= self._damaged.get(other.id, 0.0)}
        for incarnation_id in others:
            member = self.members.get(incarnation_id)
            if member is None or not self.is_cut_from_store(member, now_s):
                continue
            if not self.detector.is_promised(incarnation_id, now_s):
                self.detector.note_gone(incarnation_id, f"it could not store records for {TROUBLE_S:g} s: {member.trouble}")
        found = self.detector.judge(others, now_s)
        effects: list[Effect] = []
        for verdict in found.waited_for:
            incarnation = others[verdict.incarnation_id]
            effects.append(WaitFor(incarnation, verdict.why))
            order = Order(kind=OrderKind.WAIT, seal=(), open=(), why=f"broker {incarnation.broker_id} is waited for: {verdict.why}")
            self.orders.note(order, self.manifest, now_s, began_s=now_s)
        if found.lost:
            effects += [Replace(others[verdict.incarnation_id], verdict.evidence, verdict.why) for verdict in found.lost]
            why = {verdict.incarnation_id: verdict.why for verdict in found.lost}
            self.condemned.update(why)
            self._is_replacing = True
            effects.append(FailOver(why))
        return effects

    def is_cut_from_store(self, member: Member, now_s: float) -> bool:
        """True if only this member has had trouble with the store for too long. The leader's own renewals must have succeeded
        meanwhile: if no broker could reach the store, it may answer the leader first, and the leader must not replace any member
        for that."""
        since_s = member.trouble_since_s
        return since_s is not None and now_s - max(since_s, self.store_well_since_s) > TROUBLE_S

    def _recovered(self, event: Recovered, now_s: float) -> list[Effect]:
        self._is_replacing = False
        self.detector.failed_over(now_s)
        effects: list[Effect] = [self._note_damage(lost, error, now_s) for lost, error in event.damaged.items()]
        for incarnation in event.lost:
            evidence = event.why.get(incarnation.id, "its log was damaged")
            self._note_failover(incarnation, event.edits, evidence, event.began_s, now_s)
        return effects

    def _note_damage(self, incarnation: Incarnation, error: CorruptError, now_s: float) -> Damaged:
        """Note that the store lost records that a broker acked. Its partitions wait for an operator; all others continue."""
        why = (
            f"broker {incarnation.broker_id} was lost, and its log is damaged: no broker leads its partitions until it is restored"
        )
        if incarnation.id not in self._damaged:
            order = Order(kind=OrderKind.FAILOVER, seal=(), open=(), why=f"{why}. {error.message}")
            topics = {
                segment.topic_id for segment in self.manifest.segments.open.values() if segment.incarnation_id == incarnation.id
            }
            self.orders.note(order, self.manifest, now_s, topic_ids=topics, began_s=now_s, error=error)
        self._damaged[incarnation.id] = now_s + DAMAGED_RETRY_S
        return Damaged(incarnation, why, error)

    def _note_failover(self, incarnation: Incarnation, edits: Sequence[Edit], evidence: str, began_s: float, now_s: float) -> None:
        """Note a failover for the operator."""
        chain = self.manifest.segments.sealed
        sealed = [chain[edit.segment_id] for edit in edits if isinstance(edit, SealSegment) and edit.segment_id in chain]
        sealed = [segment for segment in sealed if segment.incarnation_id == incarnation.id]
        leads = {
            lead.incarnation_id
            for segment in sealed
            for lead in self.manifest.segments.leads.get(segment.topic_id, ())[segment.first_partition : segment.end_partition]
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
        self.orders.note(order, self.manifest, now_s, topic_ids=(segment.topic_id for segment in sealed), began_s=began_s)

    # -- what a commit completes

    def complete(self, manifest: Manifest, edits: list[Edit]) -> list[Edit]:
        """The edits that give a lead to every partition that these edits leave without one, for the same commit."""
        sealed = {edit.incarnation_id for edit in edits if isinstance(edit, SealIncarnation)}
        brokers = [load for load in self.loads() if load.incarnation_id not in sealed]
        everywhere = any(isinstance(edit, SetLeader) for edit in edits)
        gaps = find_gaps(manifest, edits, everywhere=everywhere)
        if not gaps:
            return []
        seals = {edit.segment_id for edit in edits if isinstance(edit, SealSegment)}
        alive = {broker.incarnation_id for broker in brokers}
        successors, held = self.orders.successors(seals, alive)
        if not {successor.topic_id for successor in successors} <= {gap.topic_id for gap in gaps}:
            # An order over several topics is complete now, and earlier commits sealed the segments of some of these topics.
            gaps = find_gaps(manifest, edits, everywhere=True)
        taken = {
            (successor.topic_id, number)
            for successor in successors
            for number in range(successor.first_partition, successor.end_partition)
        }
        taken |= held
        rest = dict(manifest.segments.open)
        for segment_id in seals:
            rest.pop(segment_id, None)
        for is_new in (True, False):
            ranges = [piece for gap in gaps if gap.is_new is is_new for piece in gap.without(taken)]
            if ranges:
                successors += self.planner.place(ranges, rest, brokers, divide=is_new)
        return open_successors(manifest, edits, gaps, successors)

    # -- questions

    @property
    def pause_s(self) -> float:
        """Seconds until the next `Ticked`."""
        return TICK_S if self.members or self.others() else ALONE_S

    def promise_s(self, incarnation_id: str, now_s: float) -> float:
        """Promise a member, after a report from it, not to fence it unless its process is gone; see `engine/base/proof.py`. Returns
        the promise's length in seconds. 0: no promise, because the leader is about to replace the member."""
        member = self.members[incarnation_id]
        if incarnation_id in self.condemned or self.is_cut_from_store(member, now_s):
            return 0.0
        return self.detector.promise(incarnation_id, now_s)

    def lateness_of(self, incarnation_id: str, now_s: float) -> tuple[float, float]:
        """(seconds by which a broker is late, seconds of silence after which it is replaced). The second is 0 for this broker."""
        if incarnation_id == self._mine.id:
            return self._attention.late_s(now_s), 0.0
        return self.detector.late_s(incarnation_id, now_s), self.detector.allowed_s(incarnation_id, now_s)

    # -- requests

    def admit(
        self, incarnation: Incarnation, *, was_member: bool, round_trip_s: float = 0.0
    ) -> Callable[[Manifest], Sequence[Edit]]:
        """Decide about a broker that asks to be a member. It waits for this leader until `Admitted`.

        Args:
            was_member: the broker was a member before, or it is fenced. If the manifest does not contain it any more, it was
                replaced.
            round_trip_s: seconds of a round trip to it at most.

        Returns:
            The commit that admits it, made from the manifest to which it is applied. It proves that this broker still leads: a
            leader that was replaced while it slept must not keep members.

        Raises:
            FencedError: the incarnation was replaced.
        """
        known = self.manifest.incarnations.get(incarnation.id)
        is_over = known.sealed if known is not None else was_member
        if is_over or incarnation.id in self.condemned:
            raise FencedError(Reason.FENCED, f"another broker took over from this one. incarnation=`{incarnation.id}`")
        for other in self.others():
            if other.id != incarnation.id and (other.broker_id == incarnation.broker_id or _same_place(other, incarnation)):
                self.detector.note_gone(other.id, "another process runs in its place")
        self.detector.admitting(incarnation.id, is_new=known is None, round_trip_s=round_trip_s)
        if known is not None:
            return lambda _: [self.confirmation]
        return lambda now: [OpenIncarnation(_with_epoch(incarnation, now))]

    def drain(self, broker_id: int) -> str:
        """Give a broker no segments from now on. The plans take those that it has.

        Returns:
            Its incarnation.

        Raises:
            InvalidError: there is no such live broker, or no other broker.
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
            self.is_draining = True
        return incarnation_id


def _same_place(incarnation: Incarnation, other: Incarnation) -> bool:
    """True if two runs have the same address."""
    return (incarnation.host, incarnation.grpc_port) == (other.host, other.grpc_port)


def _with_epoch(incarnation: Incarnation, manifest: Manifest, behind: int = 1) -> Incarnation:
    return structs.replace(incarnation, leader_epoch=manifest.leader_epoch + behind)
