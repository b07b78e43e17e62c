"""Agreements of members: the vote for a protocol, and the topics in a consumer's subscription.

A mismatch means that the coordinator could delete positions of a topic that consumers still read.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headgate.broker.groups.member import Member, elect_protocol, subscribed_topics


def _members(*preferences: str) -> tuple[list[Member], Counter[str]]:
    members = [
        Member(
            str(index),
            instance_id=None,
            client_id="",
            client_host="",
            rebalance_timeout_ms=1,
            session_timeout_ms=1,
            protocols=tuple((name, b"") for name in names),
        )
        for index, names in enumerate(preferences)
    ]
    return members, Counter(name for names in preferences for name in names)


def test_votes() -> None:
    assert elect_protocol(*_members("ab", "ba", "ba")) == "b"
    assert elect_protocol(*_members("ab", "ba")) == "a", "the earlier member decides a draw"
    assert elect_protocol(*_members("xab", "yba", "zb")) == "b", "only what all know"
    assert elect_protocol(*_members("ab", "cd")) is None
    assert elect_protocol(*_members()) is None


def _subscription(version: int, topics: list[str], tail: bytes = b"") -> bytes:
    out = version.to_bytes(2, "big") + len(topics).to_bytes(4, "big")
    for topic in topics:
        out += len(topic.encode()).to_bytes(2, "big") + topic.encode()
    return out + tail


def test_topics_of_every_version_are_read() -> None:
    no_user_data = b"\xff\xff\xff\xff"
    for version in range(4):
        assert subscribed_topics(_subscription(version, ["a", "grüße"], no_user_data + b"owned partitions")) == {"a", "grüße"}
    assert subscribed_topics(_subscription(0, [])) == set()


def test_garbage_names_no_topics() -> None:
    whole = _subscription(0, ["topic"])
    for end in range(len(whole)):
        assert subscribed_topics(whole[:end]) is None
    assert subscribed_topics(b"\x00\x00\x7f\xff\xff\xff") is None
    assert subscribed_topics(b"\x00\x00\xff\xff\xff\xff") is None
    assert subscribed_topics(b"\x00\x00\x00\x00\x00\x01\x00\x01\xff") is None


@given(st.binary(max_size=100))
def test_any_bytes_name_topics_or_none(data: bytes) -> None:
    topics = subscribed_topics(data)
    assert topics is None or all(isinstance(topic, str) for topic in topics)
