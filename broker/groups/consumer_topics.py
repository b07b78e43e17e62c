"""The topics that the members of a consumer group read, by name and by pattern. No I/O."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

from headgate.broker.groups.consumer_events import Topology
from headgate.broker.groups.consumer_member import Identity

Resolve = Callable[[str, Iterable[str]], frozenset[str]]
"""`patterns.matching`: raises InvalidError(INVALID_REGULAR_EXPRESSION)."""
NO_TOPOLOGY = Topology(-1, {})


class Subscriptions:
    """The subscriptions of one group, and the topics as of the group's epoch."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._patterns: dict[str, frozenset[str]] = {}
        """The names that each pattern matches, in the version `_patterns_version` of the topics."""
        self._patterns_version = NO_TOPOLOGY.version
        self._topology = NO_TOPOLOGY
        self.read: dict[uuid.UUID, int] = {}
        """The topics that members read, and their partitions."""

    def match(self, pattern: str, topology: Topology) -> frozenset[str]:
        """The names that a pattern matches. Raises InvalidError."""
        if topology.version != self._patterns_version:
            self._patterns.clear()
            self._patterns_version = topology.version
        known = self._patterns.get(pattern)
        if known is None:
            known = self._patterns[pattern] = self._resolve(pattern, topology.topics)
        return known

    def _names(self, identity: Identity, topology: Topology) -> frozenset[str]:
        return identity.topics if identity.pattern is None else identity.topics | self.match(identity.pattern, topology)

    def follow(self, members: Iterable[Identity], topology: Topology, *, changed: bool) -> bool:
        """Take the present topics. True if those that members read have changed. `changed`: subscriptions have."""
        if not changed and topology.version == self._topology.version:
            return False
        names = frozenset[str]().union(*(self._names(one, topology) for one in members))
        self._topology = topology
        before = self.read
        self.read = {topic.id: topic.partitions for name in names if (topic := topology.topics.get(name)) is not None}
        return self.read != before

    def by_member(self, members: Mapping[str, Identity]) -> dict[str, frozenset[uuid.UUID]]:
        """The existing topics of each member."""
        topics = self._topology.topics
        return {
            member_id: frozenset(topics[name].id for name in self._names(identity, self._topology) if name in topics)
            for member_id, identity in members.items()
        }

    def has(self, members: Iterable[Identity], topic: str) -> bool:
        """True if a member reads a topic."""
        return any(topic in self._names(one, self._topology) for one in members)
