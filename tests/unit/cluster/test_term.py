"""The decisions of the leader's term, without an event loop.

Runs: `Term` by hand, on a time and a manifest that the test moves. Compared: the effects of events, the edits that complete a
commit, and the answers to members, with the tables at the top of `cluster/term.py`. A mismatch means that the leader fences a
healthy broker, keeps a lost one, accepts edits of a condemned one, or leaves partitions without a lead.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.cluster.edits.brokers import SetLeader
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import OpenIncarnation, SealIncarnation
from headgate.broker.cluster.edits.segments import OpenSegment, SealSegment
from headgate.broker.cluster.edits.topics import CreateTopic
from headgate.broker.cluster.liveness import KNOWN_S, LEADER_REPORT_S, MEMBER_REPORT_S, TICK_S, Answer, Attention, Evidence
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.cluster.objects import Incarnation, Topic
from headgate.broker.cluster.reshard import LoadPlanner
from headgate.broker.cluster.segments import BrokerLoad, Order, OrderKind, SegmentInfo, Successor
from headgate.broker.cluster.term import ALONE_S, DAMAGED_RETRY_S, PATIENCE, TROUBLE_S, Term
from headgate.broker.cluster.term import TICK_S as LEADER_TICK_S
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
from headgate.broker.runtime.steps import finish

TIMEOUT_S = 2.0
TOPIC = Topic(id=uuid.UUID(int=1), name="t", partitions=6)


def incarnation(name: str, broker_id: int, port: int) -> Incarnation:
    return Incarnation(id=name, broker_id=broker_id, leader_epoch=broker_id, opened_ms=0, host="h", grpc_port=port)


MINE, A, B, C = (incarnation(name, number, 9000 + number) for number, name in enumerate(("mine", "a", "b", "c")))


def segment(number: int, first: int, end: int, lead: Incarnation) -> SegmentInfo:
    return SegmentInfo(
        id=number,
        topic_id=TOPIC.id,
        first_partition=first,
        end_partition=end,
        incarnation_id=lead.id,
        leader_epoch=10 + number,
        base_offsets=[0] * (end - first),
    )


class Leader:
    """A leader of the members a and b. Segments 0, 1 and 2 of the topic are led by this broker, a and b, two partitions each."""

    def __init__(self, *, yields: bool = False, members: tuple[Incarnation, ...] = (A, B)) -> None:
        self.now_s = 100.0
        self.attention = Attention(self.now_s - KNOWN_S)
        for tick in range(round(KNOWN_S / TICK_S)):
            self.attention.woke(self.now_s - KNOWN_S + (tick + 1) * TICK_S)
        self.manifest = Manifest()
        self.manifest.apply([OpenIncarnation(one) for one in (MINE, *members)])
        self.manifest.apply([CreateTopic(TOPIC)])
        for number, lead in enumerate((MINE, A, B)):
            if lead in (MINE, *members):
                self.manifest.apply([OpenSegment(segment(number, 2 * number, 2 * number + 2, lead))])
        self.term = Term(
            MINE, LoadPlanner(), self.attention, self.now_s, timeout_s=TIMEOUT_S, yields=yields, clock_difference_max_ms=1000
        )
        self.term.load(self.manifest, was_replaced=False)
        self.commit(*self.term.opening([])(self.manifest))
        self.effects: list[Effect] = []
        """All effects so far, but for probes and reports."""
        self.answers = {one.id: Answer.ACCEPTED for one in (A, B, C)}
        self.trouble: dict[str, str] = {}
        self.speaking = {one.id: one for one in members}
        self.plans_slowly = False
        """True: a test makes the plans."""
        self._reported_s = self.now_s
        self.take(Began(0.0), Opened(), *(Joined(one) for one in members))
        self.effects.clear()

    def take(self, *events: Event) -> list[Effect]:
        """Pass events to the term, answer its probes and reports, and make its plans. Returns the other effects."""
        found: list[Effect] = []
        for event in events:
            for effect in self.term.handle(event, self.now_s):
                match effect:
                    case Probe(one):
                        found += self.take(Probed(one.id, self.answers[one.id]))
                    case Report():
                        found += self.take(Measured(BrokerLoad(incarnation_id=MINE.id, broker_id=MINE.broker_id)))
                    case MakePlan(steps) if not self.plans_slowly:
                        found += self.take(Planned(finish(steps)))
                    case _:
                        found.append(effect)
                        self.effects.append(effect)
        return found

    def report(self, one: Incarnation, *, draining: bool = False, late_s: float = 0.0) -> Reported:
        load = BrokerLoad(incarnation_id=one.id, broker_id=one.broker_id, draining=draining)
        return Reported(load=load, trouble=self.trouble.get(one.id, ""), late_s=late_s, serves=True, clock_ahead_ms=None)

    def run(self, seconds: float) -> list[Effect]:
        """Let time pass: members report, and the leader ticks."""
        before = len(self.effects)
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += TICK_S
            self.attention.woke(self.now_s)
            if self.now_s - self._reported_s >= MEMBER_REPORT_S:
                self._reported_s = self.now_s
                self.take(*(self.report(one) for key, one in self.speaking.items() if key in self.term.members))
            self.take(Ticked())
        return self.effects[before:]

    def silence(self, *members: Incarnation, answer: Answer = Answer.ACCEPTED) -> None:
        for one in members:
            del self.speaking[one.id]
            self.answers[one.id] = answer

    def end_stream(self, one: Incarnation, answer: Answer) -> None:
        self.silence(one, answer=answer)
        self.take(Left(one.id))

    def commit(self, *edits: Edit) -> list[Edit]:
        """Commit edits, together with those that complete them. Returns the latter."""
        more = self.term.complete(self.manifest, list(edits))
        self.manifest.apply([*edits, *more])
        self.term.orders.applied([*edits, *more], self.now_s)
        return more

    def recover(self, *lost: Incarnation) -> list[Edit]:
        """Carry out a failover. Returns the edits that open the successors."""
        edits: list[Edit] = []
        for one in lost:
            self.speaking.pop(one.id, None)
            if one.id in self.term.members:
                self.take(Left(one.id))
            edits += self.seals(one)
        opened = self.commit(*edits)
        self.take(Recovered(lost, {}, edits, {one.id: "it fell over" for one in lost}, self.now_s))
        return opened

    def seals(self, one: Incarnation) -> list[Edit]:
        """The edits that seal a broker and all its segments."""
        return [*(SealSegment(two.id, [7] * len(two.partitions)) for two in self.led_by(one)), SealIncarnation(one.id)]

    def led_by(self, one: Incarnation) -> list[SegmentInfo]:
        return [two for two in self.manifest.segments.open.values() if two.incarnation_id == one.id]

    def leads(self) -> list[str | None]:
        return [None if lead is None else lead.incarnation_id for lead in self.manifest.segments.leads[TOPIC.id]]


def kinds(effects: list[Effect]) -> list[str]:
    """The effects by name; a replacement with its broker and its evidence."""
    return [
        f"Replace {one.incarnation.id} {one.evidence.name}" if isinstance(one, Replace) else type(one).__name__ for one in effects
    ]


# -- who is lost


def ends(one: Incarnation, answer: Answer) -> Callable[[Leader], object]:
    return lambda leader: leader.end_stream(one, answer)


def falls_silent(*members: Incarnation, answer: Answer = Answer.ACCEPTED) -> Callable[[Leader], object]:
    return lambda leader: leader.silence(*members, answer=answer)


def troubles(*members: Incarnation) -> Callable[[Leader], object]:
    return lambda leader: leader.trouble.update({one.id: "no store" for one in members})


def at_once(leader: Leader) -> list[Effect]:
    return leader.run(TICK_S)


def later(seconds: float) -> Callable[[Leader], list[Effect]]:
    return lambda leader: leader.run(seconds)


def both(*steps: Callable[[Leader], object]) -> Callable[[Leader], object]:
    return lambda leader: [step(leader) for step in steps]


LOST: list[tuple[str, Callable[[Leader], object], Callable[[Leader], object], list[str]]] = [
    # name, what happens, how long the leader looks on, the effects
    ("everyone is well", lambda leader: None, later(60), []),
    ("the process is gone", ends(A, Answer.REFUSED), at_once, ["Replace a DEAD", "FailOver"]),
    ("a silent process is gone", falls_silent(A, answer=Answer.REFUSED), later(1.5), ["Replace a DEAD", "FailOver"]),
    ("the machine is gone", ends(A, Answer.UNREACHED), later(TIMEOUT_S), ["Replace a UNREACHED", "FailOver"]),
    ("the machine is gone, but a promise holds", ends(A, Answer.UNREACHED), at_once, []),
    ("a stream ends and the process lives", ends(A, Answer.ACCEPTED), later(1), []),
    ("a process hangs", falls_silent(A), later(3), ["Replace a SILENT", "FailOver"]),
    ("a process is silent for a moment", falls_silent(A), later(1), []),
    ("two processes are gone", both(ends(A, Answer.REFUSED), ends(B, Answer.REFUSED)), later(5), ["Replace a DEAD", "FailOver"]),
    ("two processes hang", falls_silent(A, B), later(3), ["GiveLeaseBack"]),
    ("one cannot store", troubles(A), later(TROUBLE_S + 2), ["Replace a DEAD", "FailOver"]),
    ("one cannot store for a while", troubles(A), later(TROUBLE_S - 2), []),
    ("neither can the leader", both(troubles(A), lambda leader: leader.take(LeaseWritten(False))), later(2 * TROUBLE_S), []),
]  # fmt: skip


@pytest.mark.parametrize(("happens", "passes", "expected"), [row[1:] for row in LOST], ids=[row[0] for row in LOST])
def test_lost(happens: Callable[[Leader], object], passes: Callable[[Leader], object], expected: list[str]) -> None:
    leader = Leader(yields=True)
    leader.run(1)
    for one in (A, B):
        # A member that was replaced for its trouble gets no promise; the others have a fresh one.
        leader.take(leader.report(one))
        leader.term.promise_s(one.id, leader.now_s)
    happens(leader)
    passes(leader)
    assert [one for one in kinds(leader.effects) if one != "WaitFor"] == expected


@pytest.mark.parametrize(("commit_s", "under_way", "room"), [(0.01, 0, 8), (1.0, 0, 2), (1.0, 1, 1), (4.0, 1, 0), (6.0, 0, 0)])
def test_slow_commits_leave_little_room_for_hand_overs(commit_s: float, under_way: int, room: int) -> None:
    leader = Leader()
    for number in range(under_way):
        leader.term.orders.begin(Order(kind=OrderKind.MOVE, seal=(number,), open=(), why="-"), leader.manifest, leader.now_s)
    leader.take(Measured(BrokerLoad(incarnation_id=MINE.id, broker_id=MINE.broker_id), commit_s))
    assert leader.term.planner.room == room


def test_a_store_that_was_away_blames_nobody() -> None:
    """The leader reaches the store again: the members have the whole time from then on."""
    leader = Leader()
    leader.take(LeaseWritten(False))
    leader.trouble["a"] = "no store"
    leader.run(2 * TROUBLE_S)
    leader.take(LeaseWritten(True))
    assert leader.run(TROUBLE_S - 1) == []
    assert kinds(leader.run(3)) == ["Replace a DEAD", "FailOver"]


def test_one_failover_at_a_time() -> None:
    leader = Leader()
    leader.end_stream(A, Answer.REFUSED)
    assert kinds(leader.effects) == ["Replace a DEAD", "FailOver"]
    leader.end_stream(B, Answer.REFUSED)
    assert leader.run(5) == [], "the first one still runs"
    leader.recover(A)
    assert kinds(leader.run(TICK_S)) == ["Replace b DEAD", "FailOver"]
    assert leader.leads() == ["mine"] * 2 + leader.leads()[2:4] + ["b"] * 2


def test_the_pause_between_two_silent_brokers_begins_with_the_end_of_the_failover() -> None:
    leader = Leader(members=(A, B, C))
    leader.silence(A, B)
    first = next(one.incarnation for one in leader.run(3) if isinstance(one, Replace))
    assert leader.run(3 * TIMEOUT_S) == [], "the failover is slow"
    leader.recover(first)
    assert not [one for one in leader.run(TIMEOUT_S - 2 * TICK_S) if isinstance(one, Replace)]
    assert [one.evidence for one in leader.run(4 * TICK_S) if isinstance(one, Replace)] == [Evidence.SILENT]


def test_a_leader_that_is_cut_off_gives_the_lease_back_once() -> None:
    leader = Leader(yields=True)
    leader.silence(A, B)
    assert kinds(leader.run(3)) == ["GiveLeaseBack"] and not leader.term.condemned
    assert leader.run(5) == [], "the lease is being given back"
    leader.take(LeaseKept())
    assert [one.split()[0] for one in kinds(leader.run(3)) if one != "WaitFor"] == ["Replace", "FailOver"]


def test_a_starved_broker_is_waited_for_and_the_operator_is_told() -> None:
    leader = Leader()
    leader.take(leader.report(A, late_s=1.5))
    leader.silence(A)
    effects = leader.run(3)
    assert kinds(effects) == ["WaitFor"]
    (decision,) = leader.term.orders.decisions
    assert decision.order.kind is OrderKind.WAIT and decision.order.why.startswith("broker 1 is waited for: it was silent for ")
    late_s, allowed_s = leader.term.lateness_of(A.id, leader.now_s)
    assert late_s == 1.5 and allowed_s > TIMEOUT_S
    assert leader.term.lateness_of(MINE.id, leader.now_s)[1] == 0


# -- who is condemned


def condemned() -> Leader:
    leader = Leader()
    leader.end_stream(A, Answer.REFUSED)
    leader.run(TICK_S)
    assert leader.term.condemned == {"a"}
    return leader


def test_a_condemned_broker_gets_nothing() -> None:
    leader = condemned()
    with pytest.raises(FencedError):
        leader.term.check_condemned(A.id)
    leader.term.check_condemned(B.id)
    with pytest.raises(FencedError):
        leader.term.admit(A, was_member=True)
    assert {load.incarnation_id for load in leader.term.loads()} == {"mine", "b"}
    leader.take(Joined(A))  # it asked to join a moment before
    assert leader.term.promise_s(A.id, leader.now_s) == 0
    assert leader.term.promise_s(B.id, leader.now_s) == TIMEOUT_S
    assert A.id not in {load.incarnation_id for load in leader.term.loads()}


def test_a_failover_gives_the_segments_to_others_and_is_noted() -> None:
    leader = condemned()
    opened = leader.recover(A)
    assert [edit.segment.base_offsets for edit in opened if isinstance(edit, OpenSegment)] == [[7, 7]]
    assert A.id not in leader.leads() and None not in leader.leads()
    (decision,) = leader.term.orders.decisions
    assert decision.order.kind is OrderKind.FAILOVER and decision.order.seal == (1,) and decision.topics == ("t",)
    taker = {"mine": 0, "b": 2}[leader.leads()[2] or ""]
    assert decision.order.why == f"broker 1 was lost: it fell over; its 1 segment went to broker {taker}"
    assert leader.run(2) == [] and A not in leader.term.others()


def test_a_damaged_log_is_tried_again() -> None:
    leader = condemned()
    error = CorruptError(Reason.CORRUPT_STORE, "chunk 3 is damaged")
    assert leader.term.awaits_members()
    effects = leader.take(Recovered((), {A: error}, (), {"a": "gone"}, leader.now_s))
    assert isinstance(effects[0], Damaged) and effects[0].error is error and len(effects) == 1
    assert leader.leads()[2:4] == ["a", "a"], "nobody leads its partitions"
    assert leader.run(DAMAGED_RETRY_S - 1) == [] and not leader.term.awaits_members()
    assert kinds(leader.run(2)) == ["Replace a DEAD", "FailOver"]
    leader.take(Recovered((), {A: error}, (), {"a": "gone"}, leader.now_s))
    (decision,) = leader.term.orders.decisions
    assert decision.error is error and decision.topics == ("t",), "noted once"


def test_a_failover_that_ends_with_the_term_notes_nothing() -> None:
    leader = condemned()
    assert leader.take(Recovered()) == [] and not leader.term.orders.decisions


# -- what a commit completes


def opened(edits: list[Edit]) -> list[tuple[int, int, str]]:
    """(first partition, end partition, lead) of the segments that these edits open."""
    return sorted(
        (edit.segment.first_partition, edit.segment.end_partition, edit.segment.incarnation_id)
        for edit in edits
        if isinstance(edit, OpenSegment)
    )


def test_a_new_topic_is_spread() -> None:
    leader = Leader()
    topic = Topic(id=uuid.UUID(int=2), name="u", partitions=6)
    segments = [edit.segment for edit in leader.commit(CreateTopic(topic)) if isinstance(edit, OpenSegment)]
    assert {one.incarnation_id for one in segments} == {"mine", "a", "b"}
    assert sorted(number for one in segments for number in one.partitions) == list(range(6))
    assert len({one.leader_epoch for one in segments}) == len({one.id for one in segments}) == len(segments)


@pytest.mark.parametrize(
    ("prepare", "allowed"),
    [
        (lambda leader: None, {"mine", "b"}),
        (lambda leader: leader.term.drain(B.broker_id), {"mine"}),
        (lambda leader: leader.take(Leaving()), {"b"}),
        (lambda leader: leader.take(Leaving(), leader.report(B, draining=True)), {"mine", "b"}),
        (lambda leader: (leader.end_stream(B, Answer.REFUSED), leader.run(TICK_S)), {"mine"}),
        (lambda leader: (leader.take(Leaving()), leader.commit(*leader.seals(B))), {"mine"}),
    ],
    ids=["the others", "not a drained one", "not the leader that leaves", "all leave", "not a condemned one", "not a sealed one"],
)
def test_the_successors_of_a_broker_that_ends(prepare: Callable[[Leader], Any], allowed: set[str]) -> None:
    leader = Leader()
    prepare(leader)
    found = opened(leader.commit(*leader.seals(A)))
    assert found and {lead for _, _, lead in found} <= allowed
    assert "a" not in leader.leads() and leader.leads()[2:4] != [None, None]


def test_the_next_leader_fills_what_the_last_one_left() -> None:
    leader = Leader()
    leader.manifest.apply([SealSegment(2, [7, 7])])  # the leader died before it opened the successor
    assert leader.leads()[4:] == [None, None]
    assert opened(leader.commit(leader.term.confirmation))
    assert None not in leader.leads()


def merge(leader: Leader, target: Incarnation) -> Order:
    successor = Successor(topic_id=TOPIC.id, first_partition=2, end_partition=6, incarnation_id=target.id)
    order = Order(kind=OrderKind.MERGE, seal=(1, 2), open=(successor,), why="quiet")
    leader.term.orders.begin(order, leader.manifest, leader.now_s)
    return order


def test_an_order_opens_its_successors_with_the_last_seal() -> None:
    leader = Leader()
    merge(leader, B)
    assert leader.commit(SealSegment(2, [7, 7])) == []
    assert leader.commit(leader.term.confirmation) == [], "the order still holds these partitions"
    assert opened(leader.commit(SealSegment(1, [5, 5]))) == [(2, 6, "b")]
    assert leader.led_by(B)[0].base_offsets == [5, 5, 7, 7]
    assert 1 not in leader.term.orders.busy()


def test_an_order_whose_target_is_gone_is_placed() -> None:
    leader = Leader()
    merge(leader, B)
    leader.commit(SealSegment(2, [7, 7]), SealIncarnation("b"))
    found = opened(leader.commit(SealSegment(1, [5, 5])))
    assert [(first, end) for first, end, _ in found] == [(2, 6)] and found[0][2] != "b"


def test_nobody_to_lead() -> None:
    """The last broker seals itself: its partitions wait for the next one."""
    leader = Leader(members=())
    assert leader.commit(SealSegment(0, [3, 3]), SealIncarnation("mine")) == []
    assert leader.leads()[:2] == [None, None]


# -- the beginning, members, plans


def test_an_earlier_broker_at_the_same_address_is_gone() -> None:
    manifest = Manifest()
    before = incarnation("before", MINE.broker_id, MINE.grpc_port)
    manifest.apply([OpenIncarnation(before), OpenIncarnation(A), SetLeader("before", 41)])
    leader = Leader()
    assert leader.term.load(manifest, was_replaced=False) == [before] and leader.term.epoch == 42
    edits = leader.term.opening([SealIncarnation("before")])(manifest)
    assert edits[:2] == [SetLeader("mine", 42), SealIncarnation("before")]
    (mine,) = (edit.incarnation for edit in edits if isinstance(edit, OpenIncarnation))
    assert mine.id == "mine" and mine.leader_epoch == 43


@pytest.mark.parametrize("sealed", [True, False])
def test_a_replaced_broker_does_not_lead(sealed: bool) -> None:
    leader = Leader()
    manifest = Manifest()
    manifest.apply([OpenIncarnation(MINE), SealIncarnation("mine")] if sealed else [])
    with pytest.raises(FencedError):
        leader.term.load(manifest, was_replaced=True)


def test_admission() -> None:
    leader = Leader()
    with pytest.raises(InvalidError, match="another broker has this id"):
        leader.term.check_id(incarnation("x", A.broker_id, 1))
    leader.term.check_id(A)
    assert leader.term.admit(A, was_member=True)(leader.manifest) == [leader.term.confirmation]
    with pytest.raises(FencedError):
        leader.term.admit(C, was_member=True)
    (edit,) = leader.term.admit(C, was_member=False)(leader.manifest)
    assert isinstance(edit, OpenIncarnation) and edit.incarnation.leader_epoch == leader.manifest.leader_epoch + 1
    leader.commit(edit)
    leader.take(Admitted(C.id))
    assert leader.term.awaits_members() and "c" in {one.id for one in leader.term.others()}
    leader.commit(SealIncarnation("c"))
    with pytest.raises(FencedError):
        leader.term.admit(C, was_member=False)


def test_a_slow_admission_is_no_death() -> None:
    """The broker opens its port after it has joined. Until then its address refuses connections."""
    leader = Leader()
    leader.answers["c"] = Answer.REFUSED
    (edit,) = leader.term.admit(C, was_member=False)(leader.manifest)
    leader.run(LEADER_REPORT_S + TICK_S)
    leader.commit(edit)
    assert leader.run(2 * TIMEOUT_S) == []
    leader.take(Admitted(C.id), Joined(C))
    assert leader.run(TIMEOUT_S - 2 * TICK_S) == []


def test_a_new_process_at_a_brokers_address_replaces_it() -> None:
    leader = Leader()
    leader.run(1)
    leader.term.admit(incarnation("x", 7, A.grpc_port), was_member=False)
    (found, _) = leader.run(TICK_S)
    assert isinstance(found, Replace) and found.incarnation == A and found.evidence is Evidence.DEAD
    assert found.why == "another process runs in its place"


def test_what_cannot_be_drained() -> None:
    leader = Leader()
    with pytest.raises(InvalidError):
        leader.term.drain(7)
    assert leader.term.drain(A.broker_id) == "a" and leader.term.drain(B.broker_id) == "b"
    with pytest.raises(InvalidError):
        leader.term.drain(MINE.broker_id)
    assert [load.draining for load in leader.term.loads()] == [False, True, True]


def test_a_broker_that_leaves_is_planned_for_soon_and_once() -> None:
    leader = Leader()
    assert kinds(leader.take(leader.report(A, draining=True))) == ["PlanLater"]
    assert leader.take(leader.report(A, draining=True)) == []
    assert kinds(leader.take(Leaving())) == ["PlanLater"] and leader.take(Leaving()) == []
    carried = leader.take(PlanDue())
    orders = [one.order for one in carried if isinstance(one, Carry)]
    assert {one.kind for one in orders} == {OrderKind.DRAIN} and {key for one in orders for key in one.seal} == {0, 1}
    assert {one.incarnation_id for order in orders for one in order.open} == {"b"}
    for order in orders:
        leader.term.orders.begin(order, leader.manifest, leader.now_s)
    assert leader.take(PlanDue()) == [], "the orders are under way"


def test_facts_that_changed_while_a_plan_was_made() -> None:
    leader = Leader()
    leader.plans_slowly = True
    leader.take(leader.report(A, draining=True))
    (making,) = leader.take(PlanDue())
    assert isinstance(making, MakePlan) and leader.take(PlanDue()) == [], "one plan at a time"
    plan = finish(making.steps)
    assert [order.seal for order in plan.orders] == [(1,)]

    carried, again = leader.take(Planned(plan))
    assert carried == Carry(plan.orders[0]) and isinstance(again, MakePlan), "another plan was wanted meanwhile"
    leader.term.orders.begin(plan.orders[0], leader.manifest, leader.now_s)
    assert leader.take(Planned(plan)) == [], "the order is under way"


@pytest.mark.parametrize("lost", [A, B])
def test_a_broker_that_is_lost_while_a_plan_is_made(lost: Incarnation) -> None:
    leader = Leader()
    leader.plans_slowly = True
    leader.take(leader.report(A, draining=True))
    (making,) = leader.take(PlanDue())
    assert isinstance(making, MakePlan)
    plan = finish(making.steps)
    (order,) = plan.orders
    leader.term.condemned.add(lost.id)
    is_target = lost.id in {one.incarnation_id for one in order.open}
    assert leader.take(Planned(plan)) == ([] if is_target else [Carry(order)])


def test_no_plan_during_a_failover() -> None:
    leader = condemned()
    leader.take(leader.report(B, draining=True))
    assert leader.take(PlanDue()) == []
    leader.recover(A)
    assert kinds(leader.take(PlanDue())) == ["Carry"]


def test_reports_once_a_second() -> None:
    leader = Leader()
    reports = 0
    for _ in range(100):
        leader.now_s += LEADER_TICK_S
        reports += Report(0) in leader.term.handle(Ticked(), leader.now_s)
    assert reports in (round(100 * LEADER_TICK_S / LEADER_REPORT_S), round(100 * LEADER_TICK_S / LEADER_REPORT_S) - 1)
    assert leader.term.pause_s == LEADER_TICK_S and Leader(members=()).term.pause_s == ALONE_S


@pytest.mark.parametrize(
    ("ahead_ms", "expected"),
    [
        ([], 0),
        ([None], 0),
        ([5000], 5000),
        ([5000, None], 5000),
        ([5000, 10], 0),
        ([5000, 6000, 10], 5000),
        ([10, -20], 0),
        ([-5000], -5000),
    ],
)
def test_most_members_show_the_error_of_the_leaders_clock(ahead_ms: list[int | None], expected: int) -> None:
    """One member that differs has a wrong clock itself."""
    leader = Leader(members=(A, B, C)[: len(ahead_ms)])
    for one, ahead in zip((A, B, C), ahead_ms, strict=False):
        leader.take(replace(leader.report(one), clock_ahead_ms=ahead))
    leader.now_s += LEADER_REPORT_S
    (report,) = (one for one in leader.term.handle(Ticked(), leader.now_s) if isinstance(one, Report))
    assert report.clock_error_ms == expected


def test_a_report_without_a_clock_keeps_the_last_one() -> None:
    leader = Leader(members=(A,))
    leader.take(replace(leader.report(A), clock_ahead_ms=5000), leader.report(A))
    leader.now_s += LEADER_REPORT_S
    assert Report(5000) in leader.term.handle(Ticked(), leader.now_s)


def test_a_member_that_joins_is_counted_at_once() -> None:
    assert kinds(Leader().take(Joined(C))) == ["CountBrokers"]


def test_a_slow_beginning_gives_the_members_more_time() -> None:
    """Members that have not joined yet find the leader later, too, if the store is slow."""

    def first_lost_after_s(took_s: float) -> float:
        leader = Leader(members=())
        leader.commit(OpenIncarnation(A))
        leader.take(Began(took_s))
        begin_s = leader.now_s
        while not leader.term.condemned:
            leader.run(TICK_S)
        return leader.now_s - begin_s

    assert first_lost_after_s(3.0) - first_lost_after_s(0.0) == pytest.approx(PATIENCE * 3.0, abs=2 * TICK_S)


def test_condemned_brokers_are_recovered_until_they_are_sealed() -> None:
    leader = condemned()
    assert leader.term.to_recover() == [A]
    leader.recover(A)
    assert leader.term.to_recover() == [] and leader.term.condemned == {"a"}


def test_the_trouble_of_members() -> None:
    leader = Leader()
    assert leader.term.trouble_of(A.id) == "" and leader.term.trouble_of(C.id) == "it is not connected"
    leader.trouble["a"] = "no store"
    leader.take(leader.report(A))
    assert leader.term.trouble_of(A.id) == "no store"
    leader.end_stream(A, Answer.ACCEPTED)
    assert leader.term.trouble_of(A.id) == "it is not connected"


# -- anything


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=60), st.booleans())
def test_any_events(steps: list[tuple[str, int]], yields: bool) -> None:
    """Whatever happens, one failover runs at a time, this broker and sealed brokers are never lost, condemned brokers lead nothing
    new, and every partition of a complete commit has a lead."""
    leader = Leader(yields=yields)
    by_name = {"a": A, "b": B, "c": C}
    running: set[str] = set()
    for name, what in steps:
        one = by_name[name]
        known = leader.manifest.incarnations.get(name)
        is_open = known is not None and not known.sealed
        before = len(leader.effects)
        if what <= 1:
            leader.run(1.0)
        elif what == 2:
            leader.answers[name] = Answer.REFUSED
        elif what == 3:
            leader.answers[name] = Answer.UNREACHED
        elif what == 4 and name in leader.term.members:
            leader.speaking.pop(name, None)
            leader.take(Left(name))
        elif what == 5:
            leader.speaking.pop(name, None)
        elif what == 6 and running:
            opens = opened(leader.recover(*leader.term.to_recover()))
            assert not {lead for _, _, lead in opens} & leader.term.condemned
            running.clear()
        elif what == 7 and (is_open or known is None) and name not in leader.term.condemned:
            leader.commit(*leader.term.admit(one, was_member=known is not None)(leader.manifest))
            leader.take(Admitted(name), Joined(one))
            leader.speaking[name], leader.answers[name] = one, Answer.ACCEPTED
        elif what == 8 and name in leader.term.members:
            leader.take(Spoke(name), leader.report(one, draining=True))
        elif what == 9:
            leader.take(LeaseWritten(name == "a"), LeaseKept() if not running else PlanDue())
        for effect in leader.effects[before:]:
            match effect:
                case FailOver(why):
                    assert not running and why
                    running = set(why)
                case Replace(lost_one, _, why_text):
                    assert lost_one != MINE and why_text and lost_one.id in leader.term.condemned
                case GiveLeaseBack():
                    assert yields and not running
                    yields = False
                case Carry(order):
                    assert not {two.incarnation_id for two in order.open} & leader.term.condemned
                case WaitFor() | PlanLater() | CountBrokers():
                    pass
        leads = leader.leads()
        assert None not in leads or not leader.term.loads()
