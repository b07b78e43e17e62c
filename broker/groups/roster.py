"""The members of a group: their common protocols, their leader, their waiting requests. Keeps the books; decides and answers
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from headgate.broker.groups.member import Member, Protocols, elect_protocol, subscribed_topics


class Roster:
    """The members of one group, in the order in which they joined."""

    __slots__ = ("_support", "by_id", "leader", "metadata_bytes", "static", "waiting_joins")

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        """All members."""
        self.static: dict[str, str] = {}
        """All and only the static members: instance id to member id."""
        self.leader: str | None = None
        """A member's id; None if and only if there are no members."""
        self.waiting_joins = 0
        """Members with a join token."""
        self.metadata_bytes = 0
        """Bytes of the members' protocols, together."""
        self._support: Counter[str] = Counter()
        """Number of members that know each protocol; no zeros."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_id.values())

    def insert(self, member: Member) -> None:
        """Add a member that does not wait yet."""
        self.by_id[member.id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self._count(member, 1)

    def remove(self, member: Member) -> None:
        """Remove a member that does not wait. If it led, the earliest member leads now."""
        del self.by_id[member.id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self._count(member, -1)
        if self.leader == member.id:
            self.leader = next(iter(self.by_id), None)

    def replace(self, old: Member, new: Member) -> None:
        """Put a static member in the place of its former self: the order of members decides the next leader and the order of
        votes."""
        assert new.instance_id == old.instance_id and new.protocols == old.protocols
        members = [new if member is old else member for member in self.by_id.values()]
        self.by_id.clear()
        self.by_id.update((member.id, member) for member in members)
        self.static[str(new.instance_id)] = new.id
        if self.leader == old.id:
            self.leader = new.id

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def wait_join(self, member: Member, token: object) -> None:
        """Let a member wait that does not wait yet."""
        assert member.join_token is None
        member.join_token = token
        self.waiting_joins += 1

    def take_join_token(self, member: Member) -> object | None:
        """The token of its waiting join, which stops waiting; None without one."""
        token, member.join_token = member.join_token, None
        if token is not None:
            self.waiting_joins -= 1
        return token

    def elect_joined_leader(self) -> None:
        """Make a member the leader that waits in a join. There must be one."""
        if self.leader is None or self.by_id[self.leader].join_token is None:
            self.leader = next(member.id for member in self if member.join_token is not None)

    def elect_protocol(self) -> str | None:
        """The common protocol that most members prefer; None without members."""
        return elect_protocol(self.by_id.values(), self._support)

    def all_know_one_of(self, protocols: Iterable[tuple[str, bytes]]) -> bool:
        size = len(self.by_id)
        return any(self._support[name] == size for name, _ in protocols)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Longest time that a member needs to rejoin, in ms. At least 1: a timer that is due when it is set would fire for ever."""
        return max((1, *(member.rebalance_timeout_ms for member in self)))

    def subscribed_topics(self, protocol: str | None) -> set[str] | None:
        """The topics that the members' metadata name, in a consumer group; None if one member's metadata are unreadable."""
        topics: set[str] = set()
        for member in self:
            its_topics = None if protocol is None else subscribed_topics(member.metadata(protocol))
            if its_topics is None:
                return None
            topics |= its_topics
        return topics

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts the attributes' docs."""
        assert all(member.id == member_id for member_id, member in self.by_id.items())
        assert self.static == {m.instance_id: m.id for m in self if m.instance_id is not None}
        assert (self.leader in self.by_id) if self.by_id else self.leader is None
        assert self.waiting_joins == sum(m.join_token is not None for m in self)
        assert self.metadata_bytes == sum(m.metadata_bytes for m in self)
        assert self._support == Counter(name for m in self for name, _ in m.protocols)
        assert all(self._support.values())
        assert not self.by_id or max(self._support.values()) == len(self), "no protocol that all members know"

    def _count(self, member: Member, sign: int) -> None:
        self.metadata_bytes += sign * member.metadata_bytes
        for name, _ in member.protocols:
            self._support[name] += sign
            if not self._support[name]:
                del self._support[name]
