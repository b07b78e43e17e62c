"""The topics that the members of a consumer group read, by name and by pattern. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping

from headgate.broker.groups.consumer_events import Topology, Viewer
from headgate.broker.groups.consumer_member import Identity

Resolve = Callable[[str, Iterable[str]], frozenset[str]]
"""`patterns.matching`: raises InvalidError(INVALID_REGULAR_EXPRESSION)."""
NO_TOPOLOGY = Topology(-1, {})


class Subscriptions:
    """The subscriptions of one group, and the topics as of the group's epoch.

    A pattern matches only topics that the member's client may see. Who the client is comes with each heartbeat, and is not stored:
    until a member's first heartbeat at this coordinator, its pattern matches what it has been assigned.

    Args:
        assigned: returns the topics in a member's target.
    """

    def __init__(self, resolve: Resolve, assigned: Callable[[str], Collection[uuid.UUID]]) -> None:
        self._resolve = resolve
        self._assigned = assigned
        self._viewers: dict[str, Viewer | None] = {}
        """By member, of all and only the members that have sent a heartbeat."""
        self._is_stale = False
        """True if a member's client changed since `follow`."""
        self._patterns: dict[tuple[str, Viewer | None], frozenset[str]] = {}
        """The names that each pattern matches for each viewer, in the version `_patterns_version` of the topics."""
        self._patterns_version = NO_TOPOLOGY.version
        self._topology = NO_TOPOLOGY
        self.read: dict[uuid.UUID, int] = {}
        """The topics that members read, and their partitions."""
        self._matched: dict[str, frozenset[str]] = {}
        """What each member with a pattern reads."""

    def see(self, member_id: str, viewer: Viewer | None) -> None:
        """Note the client of a member."""
        if member_id not in self._viewers or self._viewers[member_id] != viewer:
            self._viewers[member_id] = viewer
            self._is_stale = True

    def forget(self, member_id: str) -> None:
        """A member has left, or got another id."""
        self._viewers.pop(member_id, None)
        self._matched.pop(member_id, None)

    def match(self, pattern: str, topology: Topology, viewer: Viewer | None = None) -> frozenset[str]:
        """The names that a pattern matches. Raises InvalidError."""
        if topology.version != self._patterns_version:
            self._patterns.clear()
            self._patterns_version = topology.version
        known = self._patterns.get((pattern, viewer))
        if known is None:
            if viewer is None:
                known = self._resolve(pattern, topology.topics)
            else:
                known = frozenset(filter(viewer.may_see, self.match(pattern, topology)))
            self._patterns[pattern, viewer] = known
        return known

    def _names(self, identity: Identity, topology: Topology) -> frozenset[str]:
        if identity.pattern is None:
            return identity.topics
        if identity.member_id in self._viewers:
            return identity.topics | self.match(identity.pattern, topology, self._viewers[identity.member_id])
        assigned = self._assigned(identity.member_id)
        return identity.topics | {name for name in self.match(identity.pattern, topology) if topology.topics[name].id in assigned}

    def follow(self, members: Iterable[Identity], topology: Topology, *, changed: bool) -> bool:
        """Take the present topics. True if those that members read have changed. `changed`: subscriptions have."""
        if not changed and not self._is_stale and topology.version == self._topology.version:
            return False
        self._is_stale = False
        names = {member.member_id: (member.pattern, self._names(member, topology)) for member in members}
        matched = {member_id: found for member_id, (pattern, found) in names.items() if pattern is not None}
        self._topology = topology
        before, self.read = self.read, {}
        for name in frozenset[str]().union(*(found for _, found in names.values())):
            if (topic := topology.topics.get(name)) is not None:
                self.read[topic.id] = topic.partitions
        matched_before, self._matched = self._matched, matched
        return self.read != before or any(matched_before.get(key, found) != found for key, found in matched.items())

    def by_member(self, members: Mapping[str, Identity]) -> dict[str, frozenset[uuid.UUID]]:
        """The existing topics of each member."""
        topics = self._topology.topics
        return {
            member_id: frozenset(topics[name].id for name in self._names(identity, self._topology) if name in topics)
            for member_id, identity in members.items()
        }

    def has(self, members: Iterable[Identity], topic: str) -> bool:
        """True if a member reads a topic."""
        return any(topic in self._names(member, self._topology) for member in members)
