"""A member of a group, and the protocol that its members choose."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from headgate.broker.groups.records import MemberMetadata

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) in order of preference; each name once."""

_I16, _I32, _HEAD = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">hi")

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


class Subscription(NamedTuple):
    """A consumer's metadata. `owned`: (topic, partition) that it has; none in version 0, or if the client gives all up first."""

    topics: frozenset[str]
    owned: frozenset[tuple[str, int]] = frozenset()


def subscription_of(metadata: bytes) -> Subscription | None:
    """The content of a consumer's metadata; None for other metadata.

    Every version begins like the first: int16 version, an array of strings, user data. Version 1 adds what the member has.
    """
    try:
        version, count = _HEAD.unpack_from(metadata)
        position, topics = 6, set()
        if not 0 <= count <= len(metadata):
            return None
        for _ in range(count):
            topic, position = _text(metadata, position)
            topics.add(topic)
    except (struct.error, UnicodeDecodeError, ValueError):
        return None
    return Subscription(frozenset(topics), _owned(metadata, position) if version >= 1 else frozenset())


def _owned(metadata: bytes, position: int) -> frozenset[tuple[str, int]]:
    """The partitions behind the user data; none if they are unreadable."""
    try:
        (size,) = _I32.unpack_from(metadata, position)
        return frozenset(_partitions(metadata, position + 4 + max(size, 0)))
    except (struct.error, UnicodeDecodeError, ValueError):
        return frozenset()


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's subscription; None for other metadata."""
    subscription = subscription_of(metadata)
    return None if subscription is None else subscription.topics


def assignment_of(data: bytes) -> frozenset[tuple[str, int]]:
    """The (topic, partition) of a consumer's assignment; none for other data."""
    try:
        return frozenset(_partitions(data, 2))
    except (struct.error, UnicodeDecodeError, ValueError):
        return frozenset()


def encode_assignment(partitions: Iterable[tuple[str, int]]) -> bytes:
    """A consumer's assignment, version 0."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    out = bytearray(_HEAD.pack(0, len(topics)))
    for topic, numbers in topics.items():
        name = topic.encode()
        out += len(name).to_bytes(2, "big") + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(out) + _I32.pack(-1)


def _text(data: bytes, position: int) -> tuple[str, int]:
    (size,) = _I16.unpack_from(data, position)
    position += 2
    if not 0 <= size <= len(data) - position:
        raise ValueError(size)
    return data[position : position + size].decode(), position + size


def _partitions(data: bytes, position: int) -> Iterator[tuple[str, int]]:
    """An array of topics with their partitions."""
    (count,) = _I32.unpack_from(data, position)
    position += 4
    if not 0 <= count <= len(data):
        raise ValueError(count)
    for _ in range(count):
        topic, position = _text(data, position)
        (size,) = _I32.unpack_from(data, position)
        position += 4
        if not 0 <= size <= (len(data) - position) // 4:
            raise ValueError(size)
        for number in struct.unpack_from(f">{size}i", data, position):
            yield topic, number
        position += 4 * size
