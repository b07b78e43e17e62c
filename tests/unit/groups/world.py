"""A group with a clock, a log and numbered clients: the scenario tests of this folder use it."""

from __future__ import annotations

import itertools
from typing import Any

from headgate.broker.groups.events import (
    Effect,
    Event,
    GroupConfig,
    GroupReply,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    Leaving,
    Persist,
    Reply,
    State,
    Stored,
    Sync,
    SyncReply,
    Tick,
)
from headgate.broker.groups.group import Group
from headgate.broker.groups.records import GroupMetadata
from headgate.broker.runtime.errors import Reason

RANGE = (("range", b"topics"),)
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def classic_join(token: object, fresh_member_id: str = "m", **fields: Any) -> Join:
    """The join of a consumer that skips the handshake."""
    usual = {
        "protocol_type": "consumer",
        "protocols": (("range", b""),),
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "require_member_id": False,
    }
    return Join(token=token, fresh_member_id=fresh_member_id, **{**usual, **fields})


class World:
    """Sends events to one group, executes its effects, and checks the invariants after each step."""

    def __init__(self, *, group: Group | None = None, stores: bool = True, **config: int) -> None:
        self.config = GroupConfig(**config)
        self.group = group or Group("g", self.config)
        self.now_ms = 0
        self.stores = stores
        """True: each Persist is durable at once. False: the test calls `store`."""
        self.persisted: list[GroupMetadata] = []
        self.in_flight: list[int] = []
        self.answers: dict[int, GroupReply] = {}
        self._tokens = itertools.count(1)
        self._ids = itertools.count(1)

    # -- requests: each returns its token

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        handshake: bool = False,
        skip: bool = True,
    ) -> int:
        token = next(self._tokens)
        self.send(
            Join(
                token=token,
                member_id=member_id,
                instance_id=instance_id,
                fresh_member_id="unused" if member_id else f"m{next(self._ids)}",
                protocol_type=protocol_type,
                protocols=protocols,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                client_id="client",
                client_host="/127.0.0.1",
                require_member_id=handshake,
                can_skip_assignment=skip,
            )
        )
        return token

    def sync(
        self,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        token = next(self._tokens)
        self.send(
            Sync(
                token=token,
                member_id=member_id,
                instance_id=instance_id,
                generation=self.group.generation if generation is None else generation,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=tuple((assignments or {}).items()),
            )
        )
        return token

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance_id: str | None = None) -> Reason | None:
        """Send a request that is answered at once: returns the error."""
        token = next(self._tokens)
        its_generation = self.group.generation if generation is None else generation
        self.send(Heartbeat(token=token, member_id=member_id, instance_id=instance_id, generation=its_generation))
        answer = self.answers[token]
        assert isinstance(answer, HeartbeatReply)
        return answer.error

    def leave(self, *members: Leaving | str) -> list[Reason | None]:
        """Send a request that is answered at once: returns each member's error."""
        token = next(self._tokens)
        leaving = tuple(Leaving(member_id=member) if isinstance(member, str) else member for member in members)
        self.send(Leave(token=token, members=leaving))
        answer = self.answers[token]
        assert isinstance(answer, LeaveReply) and answer.error is None
        assert [row for row, _ in answer.members] == list(leaving)
        return [error for _, error in answer.members]

    # -- time and the log

    def advance(self, ms: int) -> None:
        """Let time pass, with a Tick at every deadline and one at the end."""
        end = self.now_ms + ms
        while (deadline := self.group.next_deadline_ms) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.send(Tick())
        self.now_ms = end
        self.send(Tick())

    def store(self, error: Reason | None = None) -> None:
        """Report the oldest Persist."""
        self.send(Stored(ticket=self.in_flight.pop(0), error=error))

    def reload(self) -> None:
        """The broker died: restore the group from its last record."""
        self.group = Group.load("g", self.config, self.persisted[-1], self.now_ms)
        self.in_flight.clear()

    def send(self, event: Event) -> None:
        effects: list[Effect] = self.group.handle(event, self.now_ms)
        self.group.check_invariants()
        for effect in effects:
            match effect:
                case Reply(token, response):
                    assert isinstance(token, int) and token not in self.answers, "answered twice"
                    self.answers[token] = response
                case Persist(ticket, metadata):
                    self.persisted.append(metadata)
                    self.in_flight.append(ticket)
        if self.stores:
            while self.in_flight:
                self.store()

    # -- answers

    def waits(self, token: int) -> bool:
        return token not in self.answers

    def joined(self, token: int) -> JoinReply:
        """The answer to a join. Fails if the join has no answer yet."""
        answer = self.answers[token]
        assert isinstance(answer, JoinReply)
        return answer

    def synced(self, token: int) -> SyncReply:
        answer = self.answers[token]
        assert isinstance(answer, SyncReply)
        return answer

    # -- common beginnings

    def completing(self, size: int = 2, **join: object) -> list[str]:
        """A new group after its first join phase; returns the member ids, the leader first."""
        tokens = [self.join(**join) for _ in range(size)]  # type: ignore[arg-type]
        while any(map(self.waits, tokens)):
            self.advance(self.config.initial_rebalance_delay_ms)
        assert self.group.state is State.COMPLETING
        members = [self.joined(token).member_id for token in tokens]
        assert members[0] == self.joined(tokens[0]).leader
        return members

    def stable(self, size: int = 2, **join: object) -> list[str]:
        """A new group in which every member has its assignment: its own id."""
        members = self.completing(size, **join)
        self.sync_all(members)
        return members

    def sync_all(self, members: list[str]) -> None:
        """Every member syncs, the leader last; each is assigned its own id."""
        leader = self.group.roster.leader
        assert leader is not None
        tokens = [self.sync(member) for member in members if member != leader]
        tokens.append(self.sync(leader, {member: member.encode() for member in members}))
        if self.stores:
            assert self.group.state is State.STABLE
            assert all(self.synced(token).error is None for token in tokens)
