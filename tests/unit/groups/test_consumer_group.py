"""Consumer groups (KIP-848): the rules of one group, its assignors and its records.

Runs: the pure machine with members that obey, lose answers, die and come back; its rows are replayed into a second machine.
Compared: what members own with each other, the assignments at rest with the subscriptions, and the second machine with the first.
A mismatch means that two consumers read one partition, that one is read by nobody, or that a failover changes a group.
"""

from __future__ import annotations

import random
import struct
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from headgate.broker.coordination.effects import Answer, Append, Budget, Effect, Now, Row
from headgate.broker.groups.assignors import ASSIGNORS, Partition, by_range, uniform
from headgate.broker.groups.consumer_events import (
    ConsumerConfig,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    ConsumerState,
    Topology,
    Viewer,
)
from headgate.broker.groups.consumer_shard import ConsumerShard
from headgate.broker.groups.events import (
    GroupConfig,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Leaving,
    Sync,
    SyncReply,
)
from headgate.broker.groups.member import assignment_of, encode_assignment
from headgate.broker.groups.patterns import matching
from headgate.broker.groups.positions import Position
from headgate.broker.groups.shard import Commit
from headgate.broker.runtime.errors import InvalidError, Reason
from tests.unit.groups.world import classic_join

GROUP = "g"
CONFIG = ConsumerConfig(session_timeout_ms=45_000, heartbeat_interval_ms=5_000, members_max=300)


@dataclass(frozen=True)
class Topic:
    id: uuid.UUID
    partitions: int


def topology(version: int = 1, **partitions: int) -> Topology:
    return Topology(version, {name: Topic(uuid.uuid5(uuid.NAMESPACE_DNS, name), count) for name, count in partitions.items()})


class Log:
    """A shard with a log that is durable at once, or when `flush` is called."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.now = Now(0, 0)
        self.answers: dict[object, Any] = {}
        self.holds = False
        self.topics = Topology(0, {})
        self._held: list[int] = []
        self.shard = self._make()

    def _make(self) -> ConsumerShard:
        return ConsumerShard(GroupConfig(initial_rebalance_delay_ms=1), CONFIG, Budget(10), matching, lambda: self.topics)

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.token not in self.answers
                self.answers[effect.token] = effect.response
            elif isinstance(effect, Append):
                self.rows += effect.rows
                self._held.append(effect.ticket)
        if not self.holds:
            self.flush()

    def flush(self, error: Reason | None = None) -> None:
        held, self._held = self._held, []
        for ticket in held:
            self.run(self.shard.stored(ticket, error, self.now))

    def heartbeat(self, event: ConsumerHeartbeat, topics: Topology) -> ConsumerHeartbeatReply | None:
        self.topics = topics
        self.run(self.shard.consumer_heartbeat(GROUP, event, self.now))
        reply = self.answers.get(event.token)
        assert reply is None or isinstance(reply, ConsumerHeartbeatReply)
        return reply

    def classic(self, event: Join | Sync | Heartbeat | Leave, topics: Topology) -> object:
        self.topics = topics
        self.run(self.shard.handle(GROUP, event, self.now))
        return self.answers.get(event.token)

    def lead(self, members: list[ClassicConsumer], topics: Topology) -> None:
        """Make a stable classic group; its leader gives each member the same share."""
        tokens = []
        for one in members:
            one.beat(self, topics)
        self.later(1)
        self.later(1)  # the second member came meanwhile
        for token, joined in list(self.answers.items()):
            assert isinstance(joined, JoinReply)
            tokens.append((token, joined))
        for one, (_, joined) in zip(members, tokens, strict=True):
            one.member, one.generation = joined.member_id, joined.generation
        share = topics.topics["a"].partitions // len(members)
        assigned = {
            one.member: encode_assignment(("a", number) for number in range(at * share, (at + 1) * share))
            for at, one in enumerate(members)
        }
        for one in sorted(members, key=lambda one: one.member != tokens[0][1].leader):
            sync = Sync(token=object(), member_id=one.member, generation=one.generation, assignments=tuple(assigned.items()))
            synced = self.classic(sync, topics)
            assert isinstance(synced, SyncReply) and synced.error is None
            one.owns = frozenset((topics.topics["a"].id, number) for _, number in assignment_of(synced.assignment))
            one.joined = True

    def later(self, ms: int) -> None:
        self.now = Now(self.now.timer_ms + ms, self.now.wall_ms + ms)
        self.run(self.shard.tick(self.now))

    def fail_over(self) -> None:
        """The next coordinator replays the log, or a snapshot of it."""
        rows = self.rows
        self.shard = self._make()
        for key, value in rows:
            self.shard.replay(key, value)
        self.run(self.shard.loaded(self.now))

    def compact(self) -> None:
        self.rows = [row for rows in self.shard.snapshot() for row in rows]


@dataclass
class Consumer:
    """A client that obeys."""

    id: str
    topics: frozenset[str] = frozenset({"a"})
    pattern: str | None = None
    instance_id: str | None = None
    viewer: Viewer | None = None
    assignor: str | None = None
    epoch: int = 0
    owns: frozenset[Partition] = frozenset()
    told: int = -1
    says: bool = True
    interval_ms: int = 0
    asked: int = 0
    errors: list[Reason] = field(default_factory=list)

    def request(self, epoch: int | None = None) -> ConsumerHeartbeat:
        self.asked += 1
        joins = self.epoch == 0
        return ConsumerHeartbeat(
            token=(self.id, self.asked),
            member_id=self.id,
            fresh_member_id="",
            epoch=self.epoch if epoch is None else epoch,
            instance_id=self.instance_id,
            client_host="/here",
            rebalance_timeout_ms=60_000 if joins or self.says else -1,
            topics=self.topics if joins or self.says else None,
            pattern=self.pattern if joins or self.says else None,
            owned=frozenset() if joins else self.owns if self.says else None,
            assignor=self.assignor,
            viewer=self.viewer,
        )

    def take(self, reply: ConsumerHeartbeatReply | None) -> None:
        self.says = reply is None or reply.error is not None  # all again, after a lost answer
        if reply is None:
            return
        if reply.error is not None:
            self.errors.append(reply.error)
            self.epoch, self.owns = 0, frozenset()
            return
        self.epoch, self.interval_ms = reply.epoch, reply.heartbeat_interval_ms
        if reply.assignment is not None and reply.assignment != self.owns:
            self.owns = reply.assignment
            self.says = True

    def beat(self, log: Log, topics: Topology) -> None:
        self.take(log.heartbeat(self.request(), topics))


def settle(log: Log, consumers: list[Consumer], topics: Topology) -> int:
    """Let all send heartbeats until nothing changes. Returns the number of rounds."""
    for rounds in range(50):
        before = [(one.epoch, one.owns) for one in consumers]
        for one in consumers:
            one.beat(log, topics)
            check(log, consumers)
        if rounds and before == [(one.epoch, one.owns) for one in consumers]:
            return rounds
    raise AssertionError("the group does not settle")


def check(log: Log, consumers: Sequence[Consumer | ClassicConsumer]) -> None:
    owned = Counter(one for consumer in consumers for one in consumer.owns)
    assert not [one for one, count in owned.items() if count > 1], "two members own a partition"
    group = log.shard.find_consumer(GROUP)
    if group is not None:
        group.check_invariants()


def whole(topics: Topology, *names: str) -> set[Partition]:
    return {(topics.topics[name].id, number) for name in names for number in range(topics.topics[name].partitions)}


def test_partitions_move_only_as_far_as_balance_needs() -> None:
    log, topics = Log(), topology(a=6, b=3)
    first, second = Consumer("first", frozenset({"a", "b"})), Consumer("second", frozenset({"a", "b"}))
    settle(log, [first], topics)
    assert first.owns == whole(topics, "a", "b")
    kept = first.owns
    settle(log, [first, second], topics)
    assert {len(first.owns), len(second.owns)} == {4, 5} and first.owns < kept
    group = log.shard.find_consumer(GROUP)
    assert group is not None and group.state is ConsumerState.STABLE
    third = Consumer("third", frozenset({"a", "b"}))
    before = first.owns, second.owns
    settle(log, [first, second, third], topics)
    assert first.owns < before[0] and second.owns < before[1] and len(third.owns) == 3


def test_a_member_waits_until_the_old_owner_has_given_up() -> None:
    log, topics = Log(), topology(a=2)
    first, second = Consumer("first"), Consumer("second")
    settle(log, [first], topics)
    second.beat(log, topics)
    assert not second.owns
    first.take(log.heartbeat(first.request(), topics))
    second.beat(log, topics)
    assert not second.owns, "the first member was told, and has not said that it did"
    first.beat(log, topics)
    second.beat(log, topics)
    assert len(first.owns) == len(second.owns) == 1


def test_a_member_that_gives_nothing_up_is_removed_in_time() -> None:
    log, topics = Log(), topology(a=2)
    first, second = Consumer("first"), Consumer("second")
    settle(log, [first], topics)
    second.beat(log, topics)
    first.take(log.heartbeat(first.request(), topics))
    for _ in range(13):
        log.later(5_000)
        stubborn = ConsumerHeartbeat(token=object(), member_id="first", fresh_member_id="", epoch=first.epoch)
        log.heartbeat(stubborn, topics)
        second.beat(log, topics)
    assert second.owns == whole(topics, "a")


def test_new_topics_and_partitions_are_found_by_pattern() -> None:
    log, topics = Log(), topology(a1=2)
    consumer = Consumer("one", topics=frozenset(), pattern="a.*")
    settle(log, [consumer], topics)
    topics = topology(2, a1=3, a2=1, b=5)
    settle(log, [consumer], topics)
    assert consumer.owns == whole(topics, "a1", "a2")
    settle(log, [consumer], topology(3, a2=1))
    assert consumer.owns == whole(topics, "a2")


def test_a_pattern_matches_only_what_its_member_may_see() -> None:
    seen = {"a1", "a2"}
    limited = Viewer("User:one", lambda name: name in seen)
    log, topics = Log(), topology(a1=2, a2=2, a3=2)
    one = Consumer("one", topics=frozenset(), pattern="a.*", viewer=limited)
    settle(log, [one], topics)
    assert one.owns == whole(topics, "a1", "a2")
    # A member that may see everything gets the rest, and its share of the others.
    two = Consumer("two", topics=frozenset(), pattern="a.*")
    settle(log, [one, two], topics)
    assert one.owns | two.owns == whole(topics, "a1", "a2", "a3")
    assert whole(topics, "a3") <= two.owns
    # Permissions change: the version of the topics does, too.
    seen.remove("a2")
    settle(log, [one, two], topology(2, a1=2, a2=2, a3=2))
    assert one.owns <= whole(topics, "a1") and two.owns >= whole(topics, "a2", "a3")


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_may_commit_after_a_failover_as_before(assignor: str) -> None:
    """The next coordinator makes no new epoch out of topics that have not changed: members that have not heard of it yet would be
    refused with STALE_MEMBER_EPOCH."""
    log, topics = Log(), topology(a=5, b=3)
    members = [Consumer(name, frozenset({"a", "b"}), assignor=assignor) for name in ("one", "two", "three")]
    settle(log, members, topics)
    before = [(one.epoch, one.owns) for one in members]
    for rejoins in (0, 1, 2):
        log.fail_over()
        members[rejoins].beat(log, topics)
        group = log.shard.find_consumer(GROUP)
        assert group is not None and group.state is ConsumerState.STABLE
        assert [group.check_commit(one.id, one.epoch) for one in members] == [None] * 3
        settle(log, members, topics)
        assert [(one.epoch, one.owns) for one in members] == before
    log.fail_over()
    grown = topology(2, a=6, b=3)
    settle(log, members, grown)
    assert set().union(*(one.owns for one in members)) == whole(grown, "a", "b"), "a partition that came meanwhile is found"
    assert members[0].epoch > before[0][0]


def test_a_failover_moves_nothing_of_members_with_patterns() -> None:
    limited = Viewer("User:one", lambda name: name == "a1")
    log, topics = Log(), topology(a1=4, a2=4)
    one = Consumer("one", topics=frozenset(), pattern="a.*", viewer=limited)
    two = Consumer("two", topics=frozenset(), pattern="a.*")
    settle(log, [one, two], topics)
    before, epoch = (one.owns, two.owns), one.epoch
    log.fail_over()
    two.beat(log, topics)  # the coordinator does not know yet what `one` may see
    settle(log, [one, two], topics)
    assert (one.owns, two.owns) == before and one.owns <= whole(topics, "a1")
    log.fail_over()
    new = topology(2, a1=4, a2=4, a3=1)
    two.beat(log, new)
    settle(log, [two, one], new)
    assert one.owns | two.owns == whole(new, "a1", "a2", "a3") and one.owns <= whole(new, "a1")
    assert one.epoch > epoch and not one.errors and not two.errors


@pytest.mark.parametrize("pattern", ["(", "a)|(b", "(?!a)b", "x" * 2_000])
def test_a_broken_pattern_is_refused(pattern: str) -> None:
    log, topics = Log(), topology(a=1)
    consumer = Consumer("one", pattern=pattern)
    consumer.beat(log, topics)
    assert consumer.errors == [Reason.INVALID_REGULAR_EXPRESSION] and log.shard.find_consumer(GROUP) is None
    with pytest.raises(InvalidError):
        matching(pattern, ["a"])


def test_patterns_match_whole_names() -> None:
    assert matching("a|b", ["a", "b", "ab", "xa"]) == {"a", "b"}
    assert matching("", ["a"]) == set()


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    log, topics = Log(), topology(a=4)
    stays, goes = Consumer("stays"), Consumer("goes", instance_id="i")
    settle(log, [stays, goes], topics)
    epoch, owned = stays.epoch, goes.owns
    log.heartbeat(goes.request(epoch=-2), topics)
    other = Consumer("other", instance_id="i")
    settle(log, [stays, other], topics)
    assert (stays.epoch, other.owns) == (epoch, owned)
    third = Consumer("third", instance_id="i")
    third.beat(log, topics)
    assert third.errors == [Reason.UNRELEASED_INSTANCE_ID]
    goes.epoch = epoch
    goes.beat(log, topics)
    assert goes.errors == [Reason.FENCED_INSTANCE_ID]


def test_epochs_fence() -> None:
    log, topics = Log(), topology(a=2)
    one = Consumer("one")
    settle(log, [one], topics)
    ahead = one.request(epoch=one.epoch + 1)
    assert getattr(log.heartbeat(ahead, topics), "error", None) is Reason.FENCED_MEMBER_EPOCH
    stranger = Consumer("stranger", epoch=3)
    assert getattr(log.heartbeat(stranger.request(), topics), "error", None) is Reason.UNKNOWN_MEMBER_ID
    assert log.shard.check_member(GROUP, "one", one.epoch) is None
    assert log.shard.check_member(GROUP, "one", one.epoch - 1) is Reason.STALE_MEMBER_EPOCH


def test_answers_wait_for_the_rows_before_them() -> None:
    log, topics = Log(), topology(a=2)
    log.holds = True
    one, two = Consumer("one"), Consumer("two")
    assert log.heartbeat(one.request(), topics) is None and log.heartbeat(two.request(), topics) is None
    log.flush()
    assert len(log.answers) == 2


def test_rows_that_were_lost_are_written_again() -> None:
    log, topics = Log(), topology(a=2)
    log.holds = True
    one = Consumer("one")
    log.heartbeat(one.request(), topics)
    log.rows.clear()
    log.flush(Reason.COORDINATOR_NOT_AVAILABLE)
    log.holds = False
    settle(log, [one], topics)
    log.fail_over()
    settle(log, [one], topics)
    assert one.owns == whole(topics, "a") and Reason.UNKNOWN_MEMBER_ID not in one.errors


def commit(log: Log, member: str, epoch: int) -> Any:
    token = object()
    log.run(
        log.shard.commit(GROUP, Commit(token=token, member_id=member, generation=epoch, positions=(Position("a", 0, 5),)), log.now)
    )
    return log.answers[token]


def test_a_group_changes_its_kind_when_it_is_empty() -> None:
    log, topics = Log(), topology(a=2)
    assert commit(log, "", -1).error is None
    one = Consumer("one")
    settle(log, [one], topics)
    assert commit(log, "one", one.epoch).error is None
    assert commit(log, "", -1).error is Reason.UNKNOWN_MEMBER_ID
    join = classic_join(object())
    log.run(log.shard.handle(GROUP, join, log.now))
    refused = log.answers[join.token]
    assert isinstance(refused, JoinReply) and refused.error is Reason.INCONSISTENT_GROUP_PROTOCOL
    leave = Leave(token=object(), members=(Leaving(member_id="one"),))
    log.run(log.shard.handle(GROUP, leave, log.now))
    left = log.answers[leave.token]
    assert isinstance(left, LeaveReply) and left.members[0][1] is None
    log.run(log.shard.handle(GROUP, classic_join(object()), log.now))
    assert [row.kind for row in log.shard.list_groups()] == ["classic"]
    log.fail_over()
    assert log.shard.find_consumer(GROUP) is None
    assert log.shard.position(GROUP, "a", 0) is not None, "positions stay"


@pytest.mark.parametrize("seed", range(40))
def test_groups_under_faults_end_balanced(seed: int) -> None:
    """Lost answers, dead members, new topics and failovers."""
    draw = random.Random(seed)
    log, counts = Log(), {"a": 4, "b": 3}
    topics = topology(1, **counts)
    consumers = [Consumer(f"m{number}", frozenset(draw.choice(("a", "ab", "b")))) for number in range(draw.randint(1, 5))]
    for step in range(60):
        what = draw.choice(("beat", "beat", "beat", "beat", "lose", "die", "join", "topics", "fail", "compact", "later"))
        one = draw.choice(consumers)
        if what == "beat":
            one.beat(log, topics)
        elif what == "lose":
            log.heartbeat(one.request(), topics)
            one.take(None)
        elif what == "die" and len(consumers) > 1:
            consumers.remove(one)
            log.later(CONFIG.session_timeout_ms + 1)
            for other in consumers:
                other.errors.clear()
                other.owns, other.epoch = frozenset(), 0  # they were silent, too
        elif what == "join":
            consumers.append(Consumer(f"m{step}-new", frozenset(draw.choice(("a", "b")))))
        elif what == "topics":
            counts[draw.choice(("a", "b"))] += 1
            topics = topology(topics.version + 1, **counts)
        elif what == "fail":
            log.fail_over()
        elif what == "compact":
            log.compact()
        else:
            log.later(1_000)
        check(log, consumers)
    settle(log, consumers, topics)
    wanted = {one for consumer in consumers for name in consumer.topics for one in whole(topics, name)}
    assert {one for consumer in consumers for one in consumer.owns} == wanted
    for consumer in consumers:
        assert consumer.owns <= whole(topics, *consumer.topics)


class ClassicConsumer:
    """A client of the classic protocol that obeys. `cooperative`: it tells what it has; else it gives all up before it joins."""

    def __init__(self, id: str, *, cooperative: bool, instance_id: str | None = None) -> None:
        self.id, self.cooperative, self.instance_id = id, cooperative, instance_id
        self.member, self.generation, self.owns, self.topic = "", -1, frozenset[Partition](), "a"
        self.joined = False

    def metadata(self, topics: Topology) -> bytes:
        name = self.topic.encode()
        head = struct.pack(f">hih{len(name)}si", 1, 1, len(name), name, -1)
        numbers = sorted(number for _, number in self.owns) if self.cooperative else []
        if not numbers:
            return head + struct.pack(">i", 0)
        return head + struct.pack(f">ih{len(name)}si{len(numbers)}i", 1, len(name), name, len(numbers), *numbers)

    def beat(self, log: Log, topics: Topology) -> None:
        if self.joined:
            beat = Heartbeat(token=object(), member_id=self.member, instance_id=self.instance_id, generation=self.generation)
            reply = log.classic(beat, topics)
            assert isinstance(reply, HeartbeatReply)
            if reply.error is None:
                return
            if reply.error is not Reason.REBALANCE_IN_PROGRESS:
                self.member = self.member if reply.error is Reason.ILLEGAL_GENERATION else ""
                self.owns = frozenset()
        if not self.cooperative:
            self.owns = frozenset()
        self.joined = False
        join = classic_join(
            object(),
            f"{self.id}-{log.now.timer_ms}",
            member_id=self.member,
            instance_id=self.instance_id,
            protocols=(("range", self.metadata(topics)),),
        )
        joined = log.classic(join, topics)
        if isinstance(joined, JoinReply) and joined.error is None:
            self.take(log, topics, joined)

    def take(self, log: Log, topics: Topology, joined: JoinReply) -> None:
        self.member, self.generation = joined.member_id, joined.generation
        synced = log.classic(
            Sync(token=object(), member_id=self.member, instance_id=self.instance_id, generation=self.generation), topics
        )
        assert isinstance(synced, SyncReply)
        if synced.error is None:
            found = assignment_of(synced.assignment)
            self.owns = frozenset((topics.topics[name].id, number) for name, number in found)
            self.joined = True


@pytest.mark.parametrize("cooperative", [True, False])
def test_a_classic_group_becomes_a_consumer_group_with_its_members(cooperative: bool) -> None:
    log, topics = Log(), topology(a=4)
    old = [ClassicConsumer(f"old{number}", cooperative=cooperative) for number in range(2)]
    log.lead(old, topics)
    new = Consumer("new")
    everyone: list[Any] = [*old, new]
    for _ in range(8):
        for one in everyone:
            one.beat(log, topics)
            check(log, everyone)
    assert sorted(len(one.owns) for one in everyone) == [1, 1, 2]
    listing = next(log.shard.list_groups())
    assert (listing.kind, listing.members) == ("consumer", 3)
    log.fail_over()
    for one in everyone * 4:
        one.beat(log, topics)
    assert sorted(len(one.owns) for one in everyone) == [1, 1, 2], "a failover keeps classic members"
    leave = new.request(epoch=-1)
    log.heartbeat(leave, topics)
    assert next(log.shard.list_groups()).kind == "classic"
    heartbeat = Heartbeat(token=object(), member_id=old[0].member, generation=old[0].generation)
    told = log.classic(heartbeat, topics)
    assert isinstance(told, HeartbeatReply) and told.error in (Reason.REBALANCE_IN_PROGRESS, Reason.ILLEGAL_GENERATION)
    log.fail_over()
    assert next(log.shard.list_groups()).kind == "classic" and next(log.shard.list_groups()).members == 2


def test_a_group_that_is_no_consumers_stays_classic() -> None:
    log, topics = Log(), topology(a=1)
    log.classic(classic_join(object(), protocol_type="connect", protocols=(("sessioned", b"opaque"),)), topics)
    log.later(1)
    new = Consumer("new")
    new.beat(log, topics)
    assert new.errors == [Reason.INCONSISTENT_GROUP_PROTOCOL]
    assert next(log.shard.list_groups()).kind == "classic"


def ids(count: int) -> list[uuid.UUID]:
    return [uuid.UUID(int=number) for number in range(count)]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("name", ASSIGNORS)
def test_assignors_give_each_partition_to_one_of_its_readers(name: str, seed: int) -> None:
    draw = random.Random(seed)
    topics = ids(draw.randint(1, 5))
    counts = {topic: draw.randint(0, 9) for topic in topics}
    same = draw.random() < 0.5
    every = frozenset(topics)
    subscriptions = {f"m{n}": every if same else frozenset(draw.sample(topics, draw.randint(1, len(topics)))) for n in range(6)}
    made = ASSIGNORS[name](subscriptions, counts, {})
    given = Counter(one for mine in made.values() for one in mine)
    read = frozenset[uuid.UUID]().union(*subscriptions.values())
    assert given == Counter((topic, number) for topic in read for number in range(counts[topic]))
    assert all(one[0] in subscriptions[member] for member, mine in made.items() for one in mine)
    if name == "uniform":
        sizes = sorted(len(mine) for mine in made.values())
        assert not same or sizes[-1] - sizes[0] <= 1
        assert ASSIGNORS[name](subscriptions, counts, made) == made, "at rest nothing moves"


def test_uniform_moves_little() -> None:
    (topic,) = ids(1)
    before = uniform({f"m{n}": frozenset({topic}) for n in range(10)}, {topic: 100}, {})
    after = uniform({f"m{n}": frozenset({topic}) for n in range(11)}, {topic: 100}, before)
    moved = [one for member, mine in after.items() for one in mine if one not in before.get(member, ())]
    assert len(moved) == 9


def test_range_splits_topics_alike() -> None:
    first, second = ids(2)
    made = by_range({m: frozenset({first, second}) for m in ("x", "y")}, {first: 3, second: 3}, {})
    assert made["x"] == {(first, 0), (first, 1), (second, 0), (second, 1)}
