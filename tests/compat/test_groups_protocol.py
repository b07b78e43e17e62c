"""Consumer groups over raw sockets, read by kio: every advertised version, and Kafka's own error code for every wrong request.

Runs: groups of sockets that follow the protocol by hand, or break it. Compared: error codes, generations,
leaders, assignments and positions with Apache Kafka 4.1's answers to the same bytes (HEADGATE_COMPAT_BOOTSTRAP points the tests
at one). A mismatch means that some client, of some age, would join, commit or give up at another moment than with Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.compat.topics import create_topic, eventually, fresh
from tests.support import oracle, wire
from tests.support.wire import RawConnection

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47
REQUIRED = {
    OFFSET_COMMIT: (2, 9),
    OFFSET_FETCH: (1, 9),
    FIND_COORDINATOR: (0, 6),
    JOIN: (0, 9),
    HEARTBEAT: (0, 4),
    LEAVE: (0, 5),
    SYNC: (0, 5),
    DESCRIBE: (0, 6),
    LIST: (0, 5),
    DELETE: (0, 2),
    OFFSET_DELETE: (0, 0),
}

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION, OFFSET_METADATA_TOO_LARGE, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL = 3, 12, 22, 23
INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, INVALID_SESSION_TIMEOUT, REBALANCE_IN_PROGRESS = 24, 25, 26, 27
NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, MEMBER_ID_REQUIRED, FENCED_INSTANCE_ID = 68, 69, 79, 82
GROUP_SUBSCRIBED_TO_TOPIC = 86

SESSION_MS, REBALANCE_MS = 10_000, 30_000
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x05topic\xff\xff\xff\xff"

Connect = Callable[[], "Member"]


class Member:
    """A client that sends the test's requests; each has its own connection, because a join that waits blocks one."""

    def __init__(self, bootstrap: str, group: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.connection = RawConnection(host, int(port))
        self.group = group
        self.id = ""
        self.generation = -1
        self.instance: str | None = None
        self._asked: list[tuple[int, int]] = []

    def send(self, api_key: int, version: int, values: dict[str, Any]) -> None:
        body = oracle.encode(api_key, version, values)
        self.connection.send_request(api_key, version, body, flexible=oracle.is_flexible(api_key, version))
        self._asked.append((api_key, version))

    def receive(self) -> Any:
        """The answer to the oldest unanswered request."""
        api_key, version = self._asked.pop(0)
        return oracle.decode(api_key, version, self.connection.receive_frame()[4:])

    def call(self, api_key: int, version: int, values: dict[str, Any]) -> Any:
        self.send(api_key, version, values)
        return self.receive()

    def error(self, api_key: int, version: int, values: dict[str, Any]) -> int:
        return int(self.call(api_key, version, values).error_code)

    # -- the protocol

    def joining(self, **fields: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": REBALANCE_MS,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocols": ({"name": "range", "metadata": SUBSCRIPTION},),
            **fields,
        }

    def send_join(self, version: int = 9, **fields: Any) -> None:
        """Send a join; for a new member the handshake comes first."""
        if version >= 4 and not self.id and self.instance is None:
            answer = self.call(JOIN, version, self.joining(**fields))
            assert answer.error_code == MEMBER_ID_REQUIRED and answer.generation_id == -1
            self.id = answer.member_id
        self.send(JOIN, version, self.joining(**fields))

    def joined(self) -> Any:
        answer = self.receive()
        assert answer.error_code == NONE
        self.id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self, version: int = 9, **fields: Any) -> Any:
        self.send_join(version, **fields)
        return self.joined()

    def syncing(self, assignments: dict[str, bytes] | None = None, **fields: Any) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": tuple({"member_id": member, "assignment": data} for member, data in (assignments or {}).items()),
            **fields,
        }

    def sync(self, assignments: dict[str, bytes] | None = None, version: int = 5) -> bytes:
        answer = self.call(SYNC, version, self.syncing(assignments))
        assert answer.error_code == NONE
        return bytes(answer.assignment)

    def beat(self, version: int = 4, **fields: Any) -> int:
        values = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }
        return self.error(HEARTBEAT, version, {**values, **fields})

    def leave(self) -> None:
        member = {"member_id": self.id, "group_instance_id": self.instance, "reason": "done"}
        answer = self.call(LEAVE, 5, {"group_id": self.group, "members": (member,)})
        assert answer.error_code == NONE and answer.members[0].error_code == NONE

    def commit(self, rows: dict[tuple[str, int], int], version: int = 9, metadata: str | None = "", **fields: Any) -> list[int]:
        """The error codes, in the order of `rows`."""

        def row(partition: int, offset: int) -> dict[str, Any]:
            its = {"partition_index": partition, "committed_offset": offset}
            return {**its, "committed_leader_epoch": -1, "committed_metadata": metadata}

        values = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "retention_time": -1,
            "topics": tuple(
                {"name": topic, "partitions": (row(partition, offset),)} for (topic, partition), offset in rows.items()
            ),
            **fields,
        }
        answer = self.call(OFFSET_COMMIT, version, values)
        # Apache Kafka lists the refused ones first.
        codes = {(topic.name, row.partition_index): row.error_code for topic in answer.topics for row in topic.partitions}
        return [codes[key] for key in rows]

    def fetch(self, topic: str | None, partitions: tuple[int, ...], version: int = 9) -> dict[tuple[str, int], tuple[int, str]]:
        """Positions and their texts; all positions of the group if `topic` is None."""
        asked = None if topic is None else ({"name": topic, "partition_indexes": partitions},)
        if version >= 8:
            group = {"group_id": self.group, "member_id": None, "member_epoch": -1, "topics": asked}
            (answer,) = self.call(OFFSET_FETCH, version, {"groups": (group,), "require_stable": True}).groups
        else:
            answer = self.call(OFFSET_FETCH, version, {"group_id": self.group, "topics": asked})
        if version >= 2:
            assert answer.error_code == NONE
        rows = [(one.name, row) for one in answer.topics for row in one.partitions]
        assert {row.error_code for _, row in rows} <= {NONE}
        return {(name, row.partition_index): (row.committed_offset, row.metadata) for name, row in rows}

    def close(self) -> None:
        self.connection.close()


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    return create_topic(bootstrap, fresh("groups"), 4)


@pytest.fixture
def connect(bootstrap: str) -> Iterator[Connect]:
    """Makes the members of one fresh group."""
    group = fresh("group")
    made: list[Member] = []

    def make() -> Member:
        made.append(Member(bootstrap, group))
        return made[-1]

    # Apache Kafka creates its offsets topic at the first request for a coordinator.
    member = make()
    eventually(lambda: member.error(FIND_COORDINATOR, 3, {"key": group, "key_type": 0}), lambda code: code == NONE)
    eventually(
        lambda: member.error(HEARTBEAT, 0, {"group_id": group, "generation_id": 1, "member_id": "x"}), lambda code: code == 25
    )
    yield make
    for member in made:
        member.close()


def stable(connect: Connect, size: int = 1) -> list[Member]:
    """Members of a stable group, the leader first; each is assigned its own id."""
    leader = connect()
    leader.join()
    members = [leader]
    for _ in range(size - 1):
        newcomer = connect()
        newcomer.send_join()
        rejoin(members)
        newcomer.joined()
        members.append(newcomer)
    for member in members[1:]:
        member.send(SYNC, 5, member.syncing())
    assert leader.sync({member.id: member.id.encode() for member in members}) == leader.id.encode()
    for member in members[1:]:
        assert member.receive().assignment == member.id.encode()
    return members


def rejoin(members: list[Member], **fields: Any) -> list[Any]:
    """All members rejoin when the group rebalances: a new member waits for them."""
    for member in members:
        assert eventually(member.beat, lambda code: code == REBALANCE_IN_PROGRESS) == REBALANCE_IN_PROGRESS
        member.send_join(**fields)
    return [member.joined() for member in members]


# -- every version


def test_the_versions_that_clients_are_promised(bootstrap: str) -> None:
    host, port = bootstrap.rsplit(":", 1)
    advertised = wire.api_versions(host, int(port))
    for api_key, (low, high) in REQUIRED.items():
        assert advertised[api_key][0] <= low and high <= advertised[api_key][1], (
            f"api=`{api_key}` advertised=`{advertised[api_key]}`"
        )


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(connect: Connect, bootstrap: str, version: int) -> None:
    member = connect()
    values = {"key": member.group, "key_type": 0, "coordinator_keys": (member.group, "another")}
    answer = member.call(FIND_COORDINATOR, version, values)
    for found in answer.coordinators if version >= 4 else (answer,):
        assert found.error_code == NONE and f"{found.host}:{found.port}" == bootstrap


@pytest.mark.parametrize("version", range(10))
def test_join(connect: Connect, version: int) -> None:
    member = connect()
    answer = member.join(version)
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, member.id, "range")
    assert [(row.member_id, row.metadata) for row in answer.members] == [(member.id, SUBSCRIPTION)]
    assert member.id.startswith("probe-")
    if version >= 7:
        assert answer.protocol_type == "consumer"


@pytest.mark.parametrize("version", range(6))
def test_sync(connect: Connect, version: int) -> None:
    member = connect()
    member.join()
    answer = member.call(SYNC, version, member.syncing({member.id: b"mine"}))
    assert (answer.error_code, answer.assignment) == (NONE, b"mine")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(5))
def test_heartbeat(connect: Connect, version: int) -> None:
    (member,) = stable(connect)
    assert member.beat(version) == NONE
    assert member.beat(version, generation_id=2) == ILLEGAL_GENERATION
    assert member.beat(version, member_id="ghost") == UNKNOWN_MEMBER_ID
    assert member.beat(version, group_id="unknown") == UNKNOWN_MEMBER_ID
    assert member.beat(version, group_id="") == INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(6))
def test_leave(connect: Connect, version: int) -> None:
    (member,) = stable(connect)
    if version < 3:
        assert member.error(LEAVE, version, {"group_id": member.group, "member_id": "ghost"}) == UNKNOWN_MEMBER_ID
        assert member.error(LEAVE, version, {"group_id": member.group, "member_id": member.id}) == NONE
    else:
        gone = ({"member_id": member.id}, {"member_id": "ghost"}, {"member_id": "", "group_instance_id": "i"})
        answer = member.call(LEAVE, version, {"group_id": member.group, "members": gone})
        assert answer.error_code == NONE
        assert [row.error_code for row in answer.members] == [NONE, UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID]
    assert member.beat() == UNKNOWN_MEMBER_ID
    assert (
        member.call(LEAVE, version, {"group_id": "", "member_id": "m", "members": ({"member_id": "m"},)}).error_code
        == INVALID_GROUP_ID
    )


@pytest.mark.parametrize("version", range(2, 10))
def test_commit_and_fetch(connect: Connect, topic: str, version: int) -> None:
    (member,) = stable(connect)
    assert member.commit({(topic, 0): 5, (topic, 1): 6}, version, metadata="nöte") == [NONE, NONE]
    for fetch_version in range(1, 10):
        found = member.fetch(topic, (0, 1, 2), fetch_version)
        assert found == {(topic, 0): (5, "nöte"), (topic, 1): (6, "nöte"), (topic, 2): (-1, "")}
        if fetch_version >= 2:
            assert member.fetch(None, (), fetch_version) == {(topic, 0): (5, "nöte"), (topic, 1): (6, "nöte")}
    assert member.commit({(topic, 0): 7}, version, generation_id_or_member_epoch=9) == [ILLEGAL_GENERATION]
    assert member.commit({(topic, 0): 7}, version, member_id="ghost") == [UNKNOWN_MEMBER_ID]
    assert member.commit({(topic, 0): 7}, version, member_id="", generation_id_or_member_epoch=-1) == [UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", range(2, 10))
def test_commits_without_a_member(connect: Connect, topic: str, version: int) -> None:
    simple = connect()
    rows = {(topic, 0): 5, (topic, 9): 6, ("not-there", 0): 7}
    assert simple.commit(rows, version, metadata=None) == [NONE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION]
    assert simple.commit({(topic, 1): 5}, version, metadata="x" * 4097) == [OFFSET_METADATA_TOO_LARGE]
    assert simple.commit({(topic, 1): 5}, version, metadata="x" * 30_000) == [OFFSET_METADATA_TOO_LARGE]
    assert simple.commit({(topic, 1): 5}, version, metadata="x" * 4096) == [NONE]
    assert simple.fetch(topic, (0, 1)) == {(topic, 0): (5, ""), (topic, 1): (5, "x" * 4096)}
    wanted = GROUP_ID_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION
    assert simple.commit({(topic, 0): 5}, version, group_id="unknown", member_id="m", generation_id_or_member_epoch=1) == [wanted]


@pytest.mark.parametrize("version", range(7))
def test_describe(connect: Connect, version: int) -> None:
    (member,) = stable(connect)
    described = {row.group_id: row for row in member.call(DESCRIBE, version, {"groups": (member.group, "unknown")}).groups}
    known, unknown = described[member.group], described["unknown"]
    assert (known.error_code, known.group_state, known.protocol_type, known.protocol_data) == (NONE, "Stable", "consumer", "range")
    (shown,) = known.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (member.id, "probe", "/127.0.0.1")
    assert (shown.member_metadata, shown.member_assignment) == (SUBSCRIPTION, member.id.encode())
    assert unknown.group_state == "Dead" and unknown.error_code == (GROUP_ID_NOT_FOUND if version >= 6 else NONE)


@pytest.mark.parametrize("version", range(6))
def test_list(connect: Connect, topic: str, version: int) -> None:
    (member,) = stable(connect)
    simple = connect()
    simple.group = fresh("simple")
    assert simple.commit({(topic, 0): 1}) == [NONE]

    def listed(**fields: Any) -> dict[str, Any]:
        answer = member.call(LIST, version, fields)
        assert answer.error_code == NONE
        return {row.group_id: row for row in answer.groups}

    found = listed()
    assert (found[member.group].protocol_type, found[simple.group].protocol_type) == ("consumer", "")
    if version >= 4:
        assert (found[member.group].group_state, found[simple.group].group_state) == ("Stable", "Empty")
        only = listed(states_filter=("stAble",))
        assert member.group in only and simple.group not in only
    if version >= 5:
        assert found[member.group].group_type == "classic"
        assert member.group in listed(types_filter=("classic",)) and member.group not in listed(types_filter=("consumer",))


@pytest.mark.parametrize("version", range(3))
def test_delete(connect: Connect, topic: str, version: int) -> None:
    (member,) = stable(connect)
    assert member.commit({(topic, 0): 5}) == [NONE]

    def delete() -> int:
        (row,) = member.call(DELETE, version, {"groups_names": (member.group,)}).results
        return int(row.error_code)

    assert delete() == NON_EMPTY_GROUP
    member.leave()
    assert delete() == NONE
    assert delete() == GROUP_ID_NOT_FOUND
    assert member.fetch(topic, (0,)) == {(topic, 0): (-1, "")}


def test_delete_positions(connect: Connect, bootstrap: str) -> None:
    for name in ("topic", "other"):
        topics = eventually(lambda name=name: _make(bootstrap, name), bool)  # type: ignore[misc]
        assert topics
    (member,) = stable(connect)
    assert member.commit({("topic", 0): 5, ("other", 0): 6}) == [NONE, NONE]

    def delete(*names: str) -> tuple[int, list[int]]:
        asked = tuple({"name": name, "partitions": ({"partition_index": 0},)} for name in names)
        answer = member.call(OFFSET_DELETE, 0, {"group_id": member.group, "topics": asked})
        codes = {one.name: one.partitions[0].error_code for one in answer.topics}
        return answer.error_code, [codes[name] for name in names]

    assert delete("topic", "other", "not-there") == (NONE, [GROUP_SUBSCRIBED_TO_TOPIC, NONE, UNKNOWN_TOPIC_OR_PARTITION])
    assert member.fetch(None, ()) == {("topic", 0): (5, "")}
    member.leave()
    assert delete("topic") == (NONE, [NONE])
    assert member.fetch(None, ()) == {}


def _make(bootstrap: str, name: str) -> str:
    from confluent_kafka import KafkaException

    try:
        return create_topic(bootstrap, name, 1)
    except KafkaException:
        return name


# -- the life of a group


def test_two_members_share_and_rebalance(connect: Connect, topic: str) -> None:
    leader, follower = stable(connect, 2)
    generation = leader.generation
    assert leader.beat() == follower.beat() == NONE
    newcomer = connect()
    newcomer.send_join()
    assert eventually(leader.beat, lambda code: code == REBALANCE_IN_PROGRESS) == REBALANCE_IN_PROGRESS
    assert follower.commit({(topic, 0): 1}) == [NONE], "members commit before they give up what they had"
    assert follower.call(SYNC, 5, follower.syncing()).error_code == REBALANCE_IN_PROGRESS
    answers = [*rejoin([leader, follower]), newcomer.joined()]
    assert {answer.generation_id for answer in answers} == {generation + 1}
    assert {answer.leader for answer in answers} == {leader.id}
    assert [len(answer.members) for answer in answers] == [3, 0, 0]
    assert follower.commit({(topic, 0): 2}) == [REBALANCE_IN_PROGRESS]
    follower.send(SYNC, 5, follower.syncing({leader.id: b"a follower", follower.id: b"must not assign"}))
    newcomer.send(SYNC, 5, newcomer.syncing())
    assert leader.sync({leader.id: b"L", follower.id: b"F", "ghost": b"G"}) == b"L"
    assert follower.receive().assignment == b"F" and newcomer.receive().assignment == b""
    newcomer.leave()
    assert leader.beat() == REBALANCE_IN_PROGRESS
    leader.leave()
    answer = follower.join()
    assert (answer.leader, answer.generation_id) == (follower.id, generation + 2)


def test_a_member_that_falls_silent_is_dropped(connect: Connect) -> None:
    member = connect()
    member.send_join(session_timeout=6_000)
    member.joined()
    member.sync()
    other = connect()
    other.connection.socket.settimeout(20)
    other.send_join()
    answer = other.joined()
    assert answer.generation_id == 2 and [row.member_id for row in answer.members] == [other.id]
    assert member.beat() == UNKNOWN_MEMBER_ID


def test_joins_that_change_nothing_do_not_rebalance(connect: Connect) -> None:
    leader, follower = stable(connect, 2)
    generation = leader.generation
    again = follower.join()
    assert (again.generation_id, again.members) == (generation, ())
    assert leader.beat() == NONE
    assert follower.sync() == follower.id.encode()
    leader.send_join()
    (answer,) = rejoin([follower])
    assert leader.joined().generation_id == answer.generation_id == generation + 1


def test_the_protocol_that_all_speak_is_chosen(connect: Connect) -> None:
    both = ({"name": "sticky", "metadata": b"s1"}, {"name": "range", "metadata": b"r1"})
    first, second = connect(), connect()
    first.join(protocols=both)
    second.send_join()
    (answer,) = rejoin([first], protocols=both)
    assert answer.protocol_name == second.joined().protocol_name == "range"
    assert {row.member_id: row.metadata for row in answer.members} == {first.id: b"r1", second.id: SUBSCRIPTION}
    for fields in ({"protocols": ({"name": "roundrobin", "metadata": b""},)}, {"protocol_type": "connect"}, {"protocols": ()}):
        assert connect().error(JOIN, 9, first.joining(member_id="", **fields)) == INCONSISTENT_GROUP_PROTOCOL


def test_any_protocol_type_and_any_metadata(connect: Connect) -> None:
    member = connect()
    answer = member.join(protocol_type="connect", protocols=({"name": "compatible", "metadata": b"\xff\x00garbage"},))
    assert (answer.protocol_type, answer.members[0].metadata) == ("connect", b"\xff\x00garbage")
    values = member.syncing({member.id: b"\x00"}, protocol_type="connect", protocol_name="compatible")
    assert member.call(SYNC, 5, values).assignment == b"\x00"


def test_static_members(connect: Connect, topic: str) -> None:
    leader, follower = connect(), connect()
    leader.instance, follower.instance = "i0", "i1"
    leader.join()
    follower.send_join()
    rejoin([leader])
    follower.joined()
    follower.send(SYNC, 5, follower.syncing())
    leader.sync({leader.id: b"L", follower.id: b"F"})
    follower.receive()
    generation = leader.generation
    back = connect()
    back.instance = "i1"
    answer = back.join()
    assert (answer.generation_id, answer.leader, answer.skip_assignment, answer.members) == (generation, leader.id, False, ())
    assert back.id not in ("", follower.id) and back.sync() == b"F"
    assert leader.beat() == NONE
    assert follower.beat() == FENCED_INSTANCE_ID
    assert follower.commit({(topic, 0): 1}) == [FENCED_INSTANCE_ID]
    assert follower.call(SYNC, 5, follower.syncing()).error_code == FENCED_INSTANCE_ID
    assert follower.error(JOIN, 9, follower.joining()) == FENCED_INSTANCE_ID
    assert back.beat(group_instance_id="i9") == UNKNOWN_MEMBER_ID
    new_leader = connect()
    new_leader.instance = "i0"
    answer = new_leader.join()
    assert (answer.generation_id, answer.leader, answer.skip_assignment) == (generation, new_leader.id, True)
    assert len(answer.members) == 2 and new_leader.sync() == b"L"
    old_client = connect()
    old_client.instance = "i0"
    answer = old_client.join(8)
    assert (answer.leader, answer.members) == (new_leader.id, ()), "an old leader that cannot skip must not learn that it leads"
    removed = ({"member_id": "", "group_instance_id": "i1"}, {"member_id": leader.id, "group_instance_id": "i0"})
    answer = old_client.call(LEAVE, 3, {"group_id": leader.group, "members": removed})
    assert [row.error_code for row in answer.members] == [NONE, FENCED_INSTANCE_ID]
    assert old_client.beat() == REBALANCE_IN_PROGRESS


# -- bad input


@pytest.mark.parametrize("version", range(10))
def test_joins_that_kafka_refuses(connect: Connect, version: int) -> None:
    member = connect()
    ghost = member.joining(member_id="ghost")
    assert member.error(JOIN, version, ghost) == UNKNOWN_MEMBER_ID
    assert member.error(JOIN, version, member.joining(group_id="")) == INVALID_GROUP_ID
    for session_ms in (-1, 0, 5_999, 1_800_001, 2**31 - 1):
        assert member.error(JOIN, version, member.joining(session_timeout=session_ms)) == INVALID_SESSION_TIMEOUT
    assert member.error(JOIN, version, member.joining(protocol_type="")) == INCONSISTENT_GROUP_PROTOCOL
    assert member.error(JOIN, version, member.joining(protocols=())) == INCONSISTENT_GROUP_PROTOCOL


def test_syncs_that_kafka_refuses(connect: Connect) -> None:
    member = connect()
    member.join()
    for fields, code in (
        ({"generation_id": 0}, ILLEGAL_GENERATION),
        ({"member_id": "ghost"}, UNKNOWN_MEMBER_ID),
        ({"group_id": "unknown"}, UNKNOWN_MEMBER_ID),
        ({"group_id": ""}, INVALID_GROUP_ID),
        ({"group_instance_id": "i"}, UNKNOWN_MEMBER_ID),
        ({"protocol_type": "connect"}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, INCONSISTENT_GROUP_PROTOCOL),
    ):
        assert member.error(SYNC, 5, member.syncing(**fields)) == code, f"fields=`{fields}`"


def test_long_ids(connect: Connect, topic: str) -> None:
    member = connect()
    member.group = fresh("g" * 300)
    member.join()
    assert member.sync({member.id: b"mine"}) == b"mine"
    assert member.commit({(topic, 0): 3}) == [NONE]
    static = connect()
    static.group, static.instance = fresh("h" * 300), "i" * 300
    assert static.join().error_code == NONE


def test_a_commit_during_the_first_rebalance_of_a_group(connect: Connect, topic: str) -> None:
    member = connect()
    member.join()
    assert member.commit({(topic, 0): 3}) == [REBALANCE_IN_PROGRESS]
    assert member.beat() == NONE, "a member may beat before it has its assignment"


def test_garbage_after_valid_groups_ends_only_its_own_connection(connect: Connect) -> None:
    (member,) = stable(connect)
    stranger = connect()
    stranger.connection.send(struct.pack(">i", 60) + struct.pack(">hhih", JOIN, 5, 1, -1) + b"\xff" * 50)
    assert stranger.connection.is_closed_by_peer(10)
    assert member.beat() == NONE
