"""Random interleavings of all events of groups, against the shard that holds them.

Simulated clients join, sync, send heartbeats, leave, commit, die and come back; some of them are static, some of them lie. The
log is slow and fails, and the broker crashes and replays the durable records. Checked all the time:

- each partition has at most one owner per generation, across crashes too; generations only grow
- every request is answered exactly once; after enough time no request waits
- no member is in two states (`Group.check_invariants`)
- a replay of the log gives the shard's state, and so does a replay of its snapshot
- an acked position is the position that the shard shows, until it is replaced or deleted

A mismatch means that two consumers process one partition, that a client waits for ever, or that a position is lost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headgate.broker.coordination.effects import Answer, Append, Budget, Effect, Now, Row
from headgate.broker.groups.entry import DeleteReply, RowsReply
from headgate.broker.groups.events import (
    GroupConfig,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Leaving,
    State,
    Sync,
    SyncReply,
)
from headgate.broker.groups.positions import NEVER, Position
from headgate.broker.groups.records import encode_group_key
from headgate.broker.groups.shard import Commit, Shard
from headgate.broker.runtime.errors import Reason
from tests.support.examples import examples

GROUP = "g"
PARTITIONS = 4
CLIENTS = 6
PROTOCOLS = (
    (("range", b"a"),),
    (("range", b"a"), ("sticky", b"b")),
    (("sticky", b"b"), ("range", b"c")),
)
CLIENT = st.integers(0, CLIENTS - 1)


@dataclass
class Client:
    """A client's own view of its membership. The last two of the clients are static."""

    number: int
    member_id: str = ""
    generation: int = -1
    leader_of: list[str] = field(default_factory=list)
    """The members, if its join was answered with the lead."""
    owns: set[int] = field(default_factory=set)

    @property
    def instance_id(self) -> str | None:
        return f"i{self.number}" if self.number >= CLIENTS - 2 else None

    def forget(self) -> None:
        self.member_id, self.generation, self.leader_of, self.owns = "", -1, [], set()


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.config = GroupConfig(members_max=5, new_member_join_timeout_ms=30_000)
        self.shard = Shard(self.config, Budget(10))
        self.timer_ms = 0
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.log: list[Row] = []
        self.in_flight: list[Append] = []
        self.token = 0
        self.waiting: dict[int, Client | None] = {}
        """By unanswered token: the client that asked; None: that client is gone."""
        self.members = 0
        self.owners: dict[tuple[int, int], dict[int, str]] = defaultdict(dict)
        """By life of the group and generation: partition to owner."""
        self.life = 0
        self.generation = 0
        self.acked: dict[int, int] = {}
        """Positions that were acked, by partition."""
        self.commits: dict[int, tuple[int, int]] = {}
        """Commits under way: token to partition and offset."""

    # -- the world around the shard

    @property
    def now(self) -> Now:
        return Now(self.timer_ms, 1_000_000 + self.timer_ms)

    def ask(self, client: Client | None) -> int:
        self.token += 1
        self.waiting[self.token] = client
        return self.token

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.in_flight.append(effect)
            else:
                self.answered(effect)

    def answered(self, answer: Answer) -> None:
        token = answer.token
        assert isinstance(token, int) and token in self.waiting, "an answer that nobody waits for"
        client = self.waiting.pop(token)
        match answer.response:
            case JoinReply() as reply if client is not None:
                self.on_join(client, reply)
            case SyncReply() as reply if client is not None:
                self.on_sync(client, reply)
            case HeartbeatReply() as reply if client is not None and reply.error is not None:
                self.on_error(client, reply.error)
            case RowsReply() as reply:
                partition, offset = self.commits.pop(token, (-1, -1))
                if reply.errors == (None,) and partition >= 0:
                    self.acked[partition] = offset
            case DeleteReply(None):
                self.acked.clear()
                self.life += 1
                self.generation = 0
            case LeaveReply() | DeleteReply():
                pass

    def on_join(self, client: Client, reply: JoinReply) -> None:
        if reply.error is Reason.MEMBER_ID_REQUIRED:
            client.forget()
            client.member_id = reply.member_id
        elif reply.error is not None:
            self.on_error(client, reply.error)
        else:
            client.member_id, client.generation = reply.member_id, reply.generation
            client.leader_of = [member.member_id for member in reply.members]
            assert not reply.members or reply.leader == reply.member_id or reply.skip_assignment

    def on_sync(self, client: Client, reply: SyncReply) -> None:
        if reply.error is not None:
            self.on_error(client, reply.error)
            return
        client.owns = set(reply.assignment)
        owner = client.instance_id or client.member_id
        for partition in client.owns:
            assert self.owners[self.life, client.generation].setdefault(partition, owner) == owner, "two owners"

    def on_error(self, client: Client, reason: Reason) -> None:
        if reason in (Reason.UNKNOWN_MEMBER_ID, Reason.ILLEGAL_GENERATION, Reason.FENCED_INSTANCE_ID):
            client.forget()

    # -- actions of clients

    @initialize(skip_delay=st.booleans())
    def start(self, skip_delay: bool) -> None:
        if skip_delay:
            self.config = GroupConfig(members_max=5, new_member_join_timeout_ms=30_000, initial_rebalance_delay_ms=0)
            self.shard = Shard(self.config, Budget(10))

    @rule(
        number=CLIENT,
        protocols=st.sampled_from(PROTOCOLS),
        handshake=st.booleans(),
        fresh=st.booleans(),
        rebalance=st.sampled_from((0, 3_000, 20_000)),
    )
    def join(self, number: int, protocols: tuple[tuple[str, bytes], ...], handshake: bool, fresh: bool, rebalance: int) -> None:
        client = self.clients[number]
        if fresh:
            client.forget()
        self.members += 1
        event = Join(
            token=self.ask(client),
            member_id=client.member_id,
            instance_id=client.instance_id,
            fresh_member_id=f"m{self.members}",
            protocol_type="consumer",
            protocols=protocols,
            session_timeout_ms=6_000,
            rebalance_timeout_ms=rebalance,
            require_member_id=handshake,
            can_skip_assignment=handshake,
        )
        self.do(self.shard.handle(GROUP, event, self.now))

    @rule(number=CLIENT, order=st.permutations(range(PARTITIONS)), lie=st.booleans())
    def sync(self, number: int, order: list[int], lie: bool) -> None:
        client = self.clients[number]
        # A follower that assigns every partition to itself must not get them.
        members = client.leader_of or ([client.member_id] if lie else [])
        shares: dict[str, bytes] = dict.fromkeys(members, b"")
        for index, partition in enumerate(order):
            if members:
                shares[members[index % len(members)]] += bytes([partition])
        event = Sync(
            token=self.ask(client),
            member_id=client.member_id,
            instance_id=client.instance_id,
            generation=client.generation,
            assignments=tuple(shares.items()),
        )
        self.do(self.shard.handle(GROUP, event, self.now))

    @rule(number=CLIENT)
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        event = Heartbeat(
            token=self.ask(client), member_id=client.member_id, instance_id=client.instance_id, generation=client.generation
        )
        self.do(self.shard.handle(GROUP, event, self.now))

    @rule(numbers=st.lists(CLIENT, max_size=3), by_instance=st.booleans())
    def leave(self, numbers: list[int], by_instance: bool) -> None:
        leaving = []
        for client in (self.clients[number] for number in numbers):
            member_id = "" if by_instance and client.instance_id else client.member_id
            leaving.append(Leaving(member_id=member_id, instance_id=client.instance_id))
            client.forget()
        self.do(self.shard.handle(GROUP, Leave(token=self.ask(None), members=tuple(leaving)), self.now))

    @rule(number=CLIENT, partition=st.integers(0, PARTITIONS - 1), simple=st.booleans())
    def commit(self, number: int, partition: int, simple: bool) -> None:
        client = self.clients[number]
        token = self.ask(client)
        offset = self.commits[token] = (partition, token)
        event = Commit(
            token=token,
            member_id="" if simple else client.member_id,
            instance_id=None if simple else client.instance_id,
            generation=-1 if simple else client.generation,
            positions=(Position(topic="t", partition=partition, offset=offset[1]),),
        )
        self.do(self.shard.commit(GROUP, event, self.now))

    @rule(number=CLIENT)
    def die(self, number: int) -> None:
        """The client dies without leaving: its requests still wait, and their answers reach no client."""
        self.clients[number].forget()
        for token, client in self.waiting.items():
            if client is self.clients[number]:
                self.waiting[token] = None

    @rule(text=st.text(max_size=3), generation=st.integers(-2, 3))
    def garbage(self, text: str, generation: int) -> None:
        for event in (
            Heartbeat(token=self.ask(None), member_id=text, generation=generation),
            Sync(token=self.ask(None), member_id=text, instance_id=text, generation=generation),
            Leave(token=self.ask(None), members=(Leaving(member_id=text, instance_id=text),)),
        ):
            self.do(self.shard.handle(GROUP, event, self.now))

    @rule(numbers=st.sets(CLIENT, min_size=1, max_size=4), durable=st.booleans())
    def behave(self, numbers: set[int], durable: bool) -> None:
        """Some clients behave normally: otherwise few groups would ever be stable."""
        for number in sorted(numbers):
            if not any(client is self.clients[number] for client in self.waiting.values()):
                if not self.clients[number].member_id:
                    self.join(number, PROTOCOLS[1], True, False, 3_000)
                self.join(number, PROTOCOLS[1], True, False, 3_000)
        self.advance(3_000)
        for number in sorted(numbers):
            if self.clients[number].generation >= 0:
                self.sync(number, list(range(PARTITIONS)), False)
        if durable:
            self.store_all()

    # -- actions of administrators

    @rule()
    def delete(self) -> None:
        self.do(self.shard.delete_group(GROUP, self.ask(None), self.now))

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def delete_position(self, partition: int) -> None:
        token = self.ask(None)
        self.commits[token] = (-1, -1)
        before = len(self.in_flight)
        self.do(self.shard.delete_positions(GROUP, [("t", partition)], token, self.now))
        if len(self.in_flight) > before:
            self.store_all()
            self.acked.pop(partition, None)

    @rule()
    def clean(self) -> None:
        if not self.in_flight:
            known = any(row.group_id == GROUP for row in self.shard.list_groups())
            self.do(self.shard.clean(self.now, retention_ms=NEVER, empty_group_ms=0, topic_exists=lambda topic, value: True))
            if self.in_flight and known:
                self.store_all()
                self.life += 1
                self.generation = 0

    # -- the log and the time

    @rule(fails=st.booleans())
    def store(self, fails: bool) -> None:
        if self.in_flight:
            append = self.in_flight.pop(0)
            if not fails:
                self.log += append.rows
            self.do(self.shard.stored(append.ticket, Reason.COORDINATOR_NOT_AVAILABLE if fails else None, self.now))

    @rule()
    def store_all(self) -> None:
        while self.in_flight:
            self.store(False)

    @rule(ms=st.sampled_from((1, 400, 3_000, 7_000)))
    def advance(self, ms: int) -> None:
        end = self.timer_ms + ms
        while (deadline := self.shard.next_deadline_ms) is not None and deadline <= end:
            self.timer_ms = max(self.timer_ms, deadline)
            self.do(self.shard.tick(self.now))
        self.timer_ms = end

    @rule(durable=st.integers(0, 3))
    def crash(self, durable: int) -> None:
        """A part of the appends under way had reached the log; their acks are lost. Clients lose their connections, not their
        ids."""
        deletes = 0
        for append in self.in_flight[:durable]:
            self.log += append.rows
            deletes += any(row == (encode_group_key(GROUP), None) for row in append.rows)
        self.in_flight.clear()
        self.waiting.clear()
        self.commits.clear()
        self.shard = self.replayed(self.log)
        self.acked = {partition: value.offset for _, partition, value in self.shard.positions(GROUP)}
        if deletes:
            self.life += 1
        self.generation = 0

    def replayed(self, rows: list[Row]) -> Shard:
        shard = Shard(self.config, Budget(10))
        for key, value in rows:
            shard.replay(key, value)
        shard.loaded(self.now)
        return shard

    # -- invariants

    @invariant()
    def every_waiter_is_known(self) -> None:
        entry = self.shard._entries.get(GROUP)
        waits = set(entry.group.waiting_tokens()) if entry is not None and entry.group is not None else set()
        waits |= {ticket.token for ticket in self.shard._tickets.values() if ticket.response is not None}
        assert waits == set(self.waiting)

    @invariant()
    def the_group_is_sound(self) -> None:
        for entry in self.shard._entries.values():
            if entry.group is not None:
                entry.group.check_invariants()
                assert entry.group.generation >= self.generation or entry.group.state is State.DEAD
                self.generation = entry.group.generation
        assert self.shard.budget.ids == len(self.shard._entries)

    @invariant()
    def acked_positions_are_shown(self) -> None:
        shown = {partition: value.offset for _, partition, value in self.shard.positions(GROUP)}
        assert shown == self.acked

    @invariant()
    def the_log_replays_to_what_is_shown(self) -> None:
        if self.in_flight:
            return
        live, replayed = self.shard, self.replayed(self.log)
        snapshot = self.replayed([row for rows in live.snapshot() for row in rows])
        assert sorted(live.positions(GROUP)) == sorted(replayed.positions(GROUP)) == sorted(snapshot.positions(GROUP))
        group, again = live.find(GROUP, self.now), replayed.find(GROUP, self.now)
        if group is None or group.state is not State.STABLE or self.failed_replacement():
            return
        if len(group.members) > self.config.members_max:
            # Static members that stayed away did not count; with them the loaded group is too large, so it rebalances.
            assert again is not None and again.state is State.PREPARING
        else:
            assert again is not None and again.describe() == group.describe()
            assert (again.generation, again.roster.leader) == (group.generation, group.roster.leader)

    def failed_replacement(self) -> bool:
        """The log could not store a static member's new id: the member did not get the id, but the group counts it."""
        group = self.shard.find(GROUP, self.now)
        record = self.shard._entries[GROUP].record
        assert group is not None and record is not None
        return any(member_id.encode() not in record.data for member_id in group.members)

    def teardown(self) -> None:
        for _ in range(200):
            self.store_all()
            if self.shard.next_deadline_ms is None:
                break
            self.advance(max(1, self.shard.next_deadline_ms - self.timer_ms))
        self.store_all()
        assert not self.waiting, "somebody waits for ever"
        assert all(row.state is State.EMPTY for row in self.shard.list_groups())


GroupMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
test_groups = GroupMachine.TestCase
