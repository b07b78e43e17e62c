"""A member of a group, and the protocol that its members choose."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable

from headgate.broker.groups.records import MemberMetadata

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in order of preference; each name once."""

CONSUMER_PROTOCOL = "consumer"
"""The protocol type whose metadata names topics. Others (Connect's, a schema registry's) are opaque."""


class Member:
    """One member. A waiting request is a token; there is at most one of each kind."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "id",
        "instance_id",
        "is_new",
        "join_token",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync_token",
    )

    def __init__(
        self,
        id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
        is_new: bool = False,
    ) -> None:
        self.id = id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = is_new
        """True until a join of it is answered: its client may be gone, so even a waiting join does not keep it alive."""
        self.join_token: object | None = None
        self.sync_token: object | None = None

    @classmethod
    def from_metadata(cls, row: MemberMetadata, protocol: str | None) -> Member:
        """A member from its stored form, which has only the chosen protocol."""
        return cls(
            row.member_id,
            instance_id=row.instance_id,
            client_id=row.client_id,
            client_host=row.client_host,
            rebalance_timeout_ms=row.rebalance_timeout_ms,
            session_timeout_ms=row.session_timeout_ms,
            protocols=((protocol or "", row.subscription),),
            assignment=row.assignment,
        )

    def to_metadata(self, protocol: str | None, assignment: bytes) -> MemberMetadata:
        """The stored form, with this protocol and assignment."""
        return MemberMetadata(
            member_id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @property
    def metadata_bytes(self) -> int:
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Its metadata for this protocol; empty if it does not know the protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def vote(self, candidates: Collection[str]) -> str | None:
        """The candidate that it prefers."""
        for name, _ in self.protocols:
            if name in candidates:
                return name
        return None


def without_repeats(protocols: Iterable[tuple[str, bytes]]) -> Protocols:
    """The first entry of each name: a second one would count twice in the search for a common protocol."""
    first: dict[str, bytes] = {}
    for name, metadata in protocols:
        first.setdefault(name, metadata)
    return tuple(first.items())


def elect_protocol(members: Collection[Member], support: Counter[str]) -> str | None:
    """The protocol with the most votes among those that all members support; the earlier vote wins a draw. None if there is
    none."""
    candidates = {name for name, count in support.items() if count == len(members)}
    votes: Counter[str] = Counter()
    for member in members:
        choice = member.vote(candidates)
        if choice is not None:
            votes[choice] += 1
    return votes.most_common(1)[0][0] if votes else None


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics in a consumer's subscription; None for other metadata.

    Every version begins like the first: int16 version, then an array of strings.
    """
    try:
        (count,) = struct.unpack_from(">i", metadata, 2)
        position = 6
        topics = set()
        if not 0 <= count <= len(metadata):
            return None
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, position)
            position += 2
            if not 0 <= size <= len(metadata) - position:
                return None
            topics.add(metadata[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
