"""The same scripts of logins, ACLs, users and quotas beside a real Apache Kafka: the same answers, with the same error codes.

Runs Headgate and Kafka (KRaft, StandardAuthorizer) with the same settings, and sends both the same requests by hand. Compared:
every error code of every answer, closed connections, and what Describe* lists. A mismatch means that a tool that works with Kafka
fails here, or that its user is told something else. What differs on purpose stands in `DIFFERENT`, with the reason.
"""

# Rows of requests are as long as the requests.
# ruff: noqa: E501

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import oracle
from tests.support.batches import batch
from tests.support.broker_process import HOST, PATIENCE_S, BrokerProcess
from tests.support.kafka_server import KafkaServer
from tests.support.ports import free_port
from tests.support.wire import ClosedByPeer, RawConnection
from tests.unit.access.test_sasl import final

pytestmark = [pytest.mark.slow, pytest.mark.kafka_server]

PASSWORD, WRONG = "alice-password", "another"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
HANDSHAKE, AUTHENTICATE = 17, 36
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
DESCRIBE_QUOTAS, ALTER_QUOTAS, DESCRIBE_USERS, ALTER_USERS = 48, 49, 50, 51
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
LITERAL, PREFIXED, MATCH, ANY_PATTERN = 3, 4, 2, 1
ANY, ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 1, 2, 3, 4, 5, 6, 7, 8
DENY, ALLOW = 2, 3


class Server:
    """One of the two servers: its ports, and what its answers say."""

    def __init__(self, name: str, port: int, sasl_port: int) -> None:
        self.name, self.port, self.sasl_port = name, port, sasl_port

    def connect(self, *, sasl: bool = False) -> RawConnection:
        return RawConnection(HOST, self.sasl_port if sasl else self.port, timeout_s=PATIENCE_S)

    def ask(self, key: int, version: int, values: dict[str, Any]) -> Any:
        """The answer to an administrator's request."""
        with self.connect() as connection:
            return oracle.call(connection, key, version, values)

    def login(
        self, connection: RawConnection, user: str = "alice", password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256"
    ) -> Any:
        """Log in. Returns the last answer."""
        answer = oracle.call(connection, HANDSHAKE, 1, {"mechanism": mechanism})
        if answer.error_code:
            return answer
        if mechanism == "PLAIN":
            return _authenticate(connection, f"\0{user}\0{password}".encode())
        first = f"n={user},r=nonce"
        answer = _authenticate(connection, b"n,," + first.encode())
        if answer.error_code:
            return answer
        return _authenticate(connection, final(first, bytes(answer.auth_bytes).decode(), mechanism, password))


def _authenticate(connection: RawConnection, message: bytes) -> Any:
    return oracle.call(connection, AUTHENTICATE, 2, {"auth_bytes": message})


def codes(answer: Any) -> list[tuple[str, int]]:
    """All error codes of an answer, with the fields that hold them."""
    found: list[tuple[str, int]] = []

    def walk(value: Any, path: str) -> None:
        if isinstance(value, tuple):
            for one in value:
                walk(one, path)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                inner = getattr(value, field.name)
                if field.name == "error_code":
                    found.append((path, int(inner)))
                else:
                    walk(inner, f"{path}.{field.name}")

    walk(answer, "")
    return sorted(found)


Script = Callable[[Server], Any]
SCRIPTS: dict[str, Script] = {}
UNKNOWN_IN_KAFKA = "Kafka answers UNKNOWN_SERVER_ERROR; here INVALID_REQUEST, with the mistake"
NEVER_MATCHES = "Kafka keeps a rule that can never match; here INVALID_REQUEST, with the mistake"
DIFFERENT: dict[str, str] = {
    "ACLs: a rule of pattern match": UNKNOWN_IN_KAFKA,
    "ACLs: a rule of pattern any": UNKNOWN_IN_KAFKA,
    "ACLs: a rule of operation any": UNKNOWN_IN_KAFKA,
    "ACLs: a rule of permission any": UNKNOWN_IN_KAFKA,
    "ACLs: a rule of resource any": UNKNOWN_IN_KAFKA,
    "ACLs: a rule with an operation of clusters for a topic": NEVER_MATCHES,
    "ACLs: a rule with an operation of topics for a group": NEVER_MATCHES,
}
LOADING = frozenset((14, 15, 16))
"""Errors of a coordinator that is starting."""


def script(name: str) -> Callable[[Script], Script]:
    def note(run: Script) -> Script:
        SCRIPTS[name] = run
        return run

    return note


# -- logins


for _mechanism in MECHANISMS:

    @script(f"{_mechanism}: right password")
    def _right(server: Server, mechanism: str = _mechanism) -> Any:
        with server.connect(sasl=True) as connection:
            return codes(server.login(connection, mechanism=mechanism)), codes(oracle.call(connection, 3, 12, {"topics": ()}))

    @script(f"{_mechanism}: wrong password, then the connection")
    def _wrong(server: Server, mechanism: str = _mechanism) -> Any:
        with server.connect(sasl=True) as connection:
            return codes(server.login(connection, password=WRONG, mechanism=mechanism)), _closes(connection)

    @script(f"{_mechanism}: unknown user")
    def _nobody(server: Server, mechanism: str = _mechanism) -> Any:
        with server.connect(sasl=True) as connection:
            return codes(server.login(connection, user="nobody", mechanism=mechanism))

    @script(f"{_mechanism}: empty, cut off and foreign messages")
    def _cut(server: Server, mechanism: str = _mechanism) -> Any:
        found = []
        for message in (b"", b"\0alice", b"n,,n=alice", b"n,,r=nonce,n=alice", b"\xff" * 40, b"p=tls-unique,,n=alice,r=nonce"):
            with server.connect(sasl=True) as connection:
                oracle.call(connection, HANDSHAKE, 1, {"mechanism": mechanism})
                found.append((codes(_authenticate(connection, message)), _closes(connection)))
        return found


def _closes(connection: RawConnection) -> bool:
    """Whether the server ends the connection."""
    return connection.is_closed_by_peer(PATIENCE_S)


@script("a mechanism that is not offered")
def _unknown_mechanism(server: Server) -> Any:
    with server.connect(sasl=True) as connection:
        answer = oracle.call(connection, HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-1"})
        return codes(answer), sorted(map(str, answer.mechanisms)), _closes(connection)


@script("a handshake on a listener without SASL")
def _no_sasl(server: Server) -> Any:
    return codes(server.ask(HANDSHAKE, 1, {"mechanism": "PLAIN"}))


@script("requests before the login")
def _early(server: Server) -> Any:
    found: list[Any] = []
    for key, version, values in ((3, 12, {"topics": ()}), (AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0x"}), (18, 3, {})):
        with server.connect(sasl=True) as connection:
            try:
                found.append(
                    codes(
                        oracle.call(
                            connection, key, version, {**values, "client_software_name": "t", "client_software_version": "1"}
                        )
                    )
                )
            except ClosedByPeer:
                found.append("closed")
    return found


@script("logging in again as another user")
def _another(server: Server) -> Any:
    with server.connect(sasl=True) as connection:
        server.login(connection)
        return codes(server.login(connection, user="bob", password="bob-password"))


@script("a recorded last message on a new connection")
def _replayed(server: Server) -> Any:
    first = "n=alice,r=nonce"
    with server.connect(sasl=True) as one, server.connect(sasl=True) as other:
        for connection in (one, other):
            oracle.call(connection, HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"})
        challenges = [bytes(_authenticate(connection, b"n,," + first.encode()).auth_bytes).decode() for connection in (one, other)]
        recorded = final(first, challenges[0], "SCRAM-SHA-256", PASSWORD)
        return codes(_authenticate(other, recorded)), codes(_authenticate(one, recorded))


# -- users


def _upsertion(name: str, mechanism: int = 1, iterations: int = 4096, password: str = "p") -> dict[str, Any]:
    digest = {1: "sha256", 2: "sha512"}.get(mechanism, "sha256")
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), b"salt", iterations if 0 < iterations <= 16384 else 4096)
    return {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"salt", "salted_password": salted}


@script("users: wrong credentials")
def _wrong_users(server: Server) -> Any:
    rows = (_upsertion("few", iterations=4095), _upsertion("many", iterations=16385), _upsertion("", 1), _upsertion("mechanism", 7),
            _upsertion("unknown", 0))  # fmt: skip
    found = [codes(server.ask(ALTER_USERS, 0, {"deletions": (), "upsertions": (row,)})) for row in rows]
    twice = (_upsertion("twice"), _upsertion("twice"))
    found.append(codes(server.ask(ALTER_USERS, 0, {"deletions": (), "upsertions": twice})))
    gone = ({"name": "nobody", "mechanism": 1},)
    found.append(codes(server.ask(ALTER_USERS, 0, {"deletions": gone, "upsertions": ()})))
    return found


@script("users: describe")
def _described_users(server: Server) -> Any:
    asked = (None, ("alice",), ("nobody",), ("alice", "alice"))
    answers = [
        server.ask(DESCRIBE_USERS, 0, {"users": None if names is None else tuple({"name": one} for one in names)})
        for names in asked
    ]
    rows = [
        sorted((row.user, sorted((one.mechanism, one.iterations) for one in row.credential_infos)) for row in one.results)
        for one in answers
    ]
    return [codes(one) for one in answers], rows[1:]


# -- ACLs


def _acl(
    kind: int, name: str, operation: int, permission: int = ALLOW, pattern: int = LITERAL, who: str = "User:alice", host: str = "*"
) -> dict[str, Any]:
    return {
        "resource_type": kind, "resource_name": name, "resource_pattern_type": pattern, "principal": who, "host": host,
        "operation": operation, "permission_type": permission,
    }  # fmt: skip


def _create(server: Server, *acls: dict[str, Any]) -> Any:
    return codes(server.ask(CREATE_ACLS, 3, {"creations": acls}))


def _filter(
    kind: int = ANY, name: str | None = None, pattern: int = ANY_PATTERN, who: str | None = None, operation: int = ANY
) -> dict[str, Any]:
    return {
        "resource_type_filter": kind, "resource_name_filter": name, "pattern_type_filter": pattern, "principal_filter": who,
        "host_filter": None, "operation": operation, "permission_type": ANY,
    }  # fmt: skip


def _remove(server: Server, **wanted: Any) -> Any:
    answer = server.ask(DELETE_ACLS, 3, {"filters": (_filter(**wanted),)})
    return codes(answer), sorted((one.resource_name, one.operation) for row in answer.filter_results for one in row.matching_acls)


def _listed(server: Server, **wanted: Any) -> Any:
    answer = server.ask(DESCRIBE_ACLS, 3, _filter(**wanted))
    return codes(answer), sorted(
        (row.resource_type, row.resource_name, row.pattern_type, one.principal, one.host, one.operation, one.permission_type)
        for row in answer.resources
        for one in row.acls
    )


for _name, _rule in {
    "without a name": _acl(TOPIC, "", READ),
    "of pattern match": _acl(TOPIC, "a", READ, pattern=MATCH),
    "of pattern any": _acl(TOPIC, "a", READ, pattern=ANY_PATTERN),
    "of operation any": _acl(TOPIC, "a", ANY),
    "of permission any": _acl(TOPIC, "a", READ, permission=1),
    "of resource any": _acl(ANY, "a", READ),
    "of an unknown resource type": _acl(99, "a", READ),
    "of an unknown operation": _acl(TOPIC, "a", 99),
    "of an unknown pattern": _acl(TOPIC, "a", READ, pattern=99),
    "of an unknown permission": _acl(TOPIC, "a", READ, permission=99),
    "for a principal without a type": _acl(TOPIC, "a", READ, who="alice"),
    "for no principal": _acl(TOPIC, "a", READ, who=""),
    "for another cluster": _acl(CLUSTER, "another", CREATE),
    "with an operation of clusters for a topic": _acl(TOPIC, "a", 9),
    "with an operation of topics for a group": _acl(GROUP, "g", WRITE),
}.items():

    @script(f"ACLs: a rule {_name}")
    def _wrong_acl(server: Server, rule: dict[str, Any] = _rule) -> Any:
        try:
            found: Any = _create(server, rule)
        except ClosedByPeer:
            found = "closed"
        _remove(server)
        return found


@script("ACLs: create, list by filter, remove")
def _acls(server: Server) -> Any:
    rules = (
        _acl(TOPIC, "one", READ), _acl(TOPIC, "on", WRITE, pattern=PREFIXED), _acl(TOPIC, "*", DESCRIBE), _acl(GROUP, "one", READ),
        _acl(TOPIC, "one", READ, DENY, who="User:bob", host="10.0.0.1"), _acl(CLUSTER, "kafka-cluster", CREATE), _acl(TOPIC, "one", READ),
    )  # fmt: skip
    found = [_create(server, *rules)]
    for wanted in (
        {}, {"kind": TOPIC}, {"kind": TOPIC, "name": "one", "pattern": LITERAL}, {"kind": TOPIC, "name": "one", "pattern": MATCH},
        {"name": "one"}, {"who": "User:bob"}, {"operation": READ}, {"kind": TRANSACTIONAL_ID}, {"pattern": PREFIXED},
    ):  # fmt: skip
        found.append(_listed(server, **wanted))
    found.append(_remove(server, kind=TOPIC, name="one", pattern=MATCH))
    found.append(_listed(server))
    found.append(_remove(server))
    return found


def _requests() -> list[tuple[str, int, int, dict[str, Any]]]:
    """What a client may try: (name, API key, version, request)."""
    records = batch([b"value"])
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1, "last_fetched_epoch": -1,
                 "log_start_offset": -1}  # fmt: skip
    topic_config = {
        "resource_type": 2,
        "resource_name": "held",
        "configs": ({"name": "retention.ms", "value": "1000000", "config_operation": 0},),
    }
    cluster_config = {"resource_type": 4, "resource_name": "1", "configs": ()}
    commit = {
        "name": "held",
        "partitions": ({"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "commit_timestamp": -1},),
    }
    return [
        ("Produce", 0, 8, {"acks": -1, "timeout": 9000, "topic_data": ({"name": "held", "partition_data": ({"index": 0, "records": records},)},)}),
        ("Fetch", 1, 11, {"replica_id": -1, "max_wait": 1, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1,
                          "topics": ({"topic": "held", "partitions": (partition,)},)}),
        ("ListOffsets", 2, 5, {"replica_id": -1, "topics": ({"name": "held", "partitions": ({"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1},)},)}),
        ("Metadata", 3, 8, {"topics": ({"name": "held"},), "allow_auto_topic_creation": False}),
        ("Metadata of a missing topic", 3, 8, {"topics": ({"name": "missing"},), "allow_auto_topic_creation": False}),
        ("CreateTopics", 19, 5, {"topics": ({"name": "made", "num_partitions": 1, "replication_factor": 1},), "timeout": 9000, "validate_only": True}),
        ("CreatePartitions", 37, 1, {"topics": ({"name": "held", "count": 2, "assignments": None},), "timeout": 9000, "validate_only": True}),
        ("DeleteRecords", 21, 1, {"topics": ({"name": "held", "partitions": ({"partition_index": 0, "offset": 0},)},), "timeout": 9000}),
        ("DescribeConfigs", 32, 2, {"resources": ({"resource_type": 2, "resource_name": "held", "configuration_keys": None},
                                                   {"resource_type": 4, "resource_name": "1", "configuration_keys": ("x",)})}),
        ("IncrementalAlterConfigs", 44, 0, {"resources": (topic_config, cluster_config), "validate_only": True}),
        ("FindCoordinator", 10, 3, {"key": "g", "key_type": 0}),
        ("OffsetCommit", 8, 7, {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "topics": (commit,)}),
        ("OffsetFetch", 9, 5, {"group_id": "g", "topics": ({"name": "held", "partition_indexes": (0,)},)}),
        ("DescribeGroups", 15, 5, {"groups": ("g",)}),
        ("DeleteGroups", 42, 1, {"groups_names": ("none",)}),
        ("ListGroups", 16, 3, {}),
        ("InitProducerId", 22, 2, {"transactional_id": None, "transaction_timeout": 1000}),
        ("InitProducerId of a transaction", 22, 2, {"transactional_id": "t", "transaction_timeout": 1000}),
        ("OffsetForLeaderEpoch", 23, 3, {"replica_id": -1, "topics": ({"topic": "held", "partitions": ({"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1},)},)}),
        ("DescribeAcls", DESCRIBE_ACLS, 3, _filter()),
        ("CreateAcls", CREATE_ACLS, 3, {"creations": (_acl(TOPIC, "a", READ),)}),
        ("DeleteAcls", DELETE_ACLS, 3, {"filters": (_filter(),)}),
        ("DescribeUsers", DESCRIBE_USERS, 0, {"users": ({"name": "alice"},)}),
        ("AlterUsers", ALTER_USERS, 0, {"deletions": ({"name": "alice", "mechanism": 1},), "upsertions": ()}),
        ("DescribeQuotas", DESCRIBE_QUOTAS, 1, {"components": (), "strict": False}),
        ("AlterQuotas", ALTER_QUOTAS, 1, _alteration({"user": "alice"}, producer_byte_rate=1.0)),
        ("DescribeCluster", 60, 0, {"include_cluster_authorized_operations": False}),
        ("DescribeLogDirs", 35, 2, {"topics": None}),
        ("DescribeProducers", 61, 0, {"topics": ({"name": "held", "partition_indexes": (0,)},)}),
    ]  # fmt: skip


def _tries(server: Server, *rules: dict[str, Any]) -> dict[str, Any]:
    """The answers to alice's requests with these rules and no others."""
    if rules:
        assert not any(code for _, code in _create(server, *rules))
    found: dict[str, Any] = {}
    for name, key, version, values in _requests():
        with server.connect(sasl=True) as connection:
            assert not server.login(connection, mechanism="PLAIN").error_code
            answer = oracle.call(connection, key, version, values)
            while {code for _, code in codes(answer)} & LOADING:
                answer = oracle.call(connection, key, version, values)
        found[name] = codes(answer)
        if name.startswith("Metadata"):
            found[name] = found[name], sorted(str(one.name) for one in answer.topics)
    _remove(server)
    return found


@script("permissions: none")
def _none(server: Server) -> Any:
    return _tries(server)


@script("permissions: read a topic and a group")
def _read(server: Server) -> Any:
    return _tries(server, _acl(TOPIC, "held", READ), _acl(GROUP, "g", READ))


@script("permissions: write to a prefix")
def _write(server: Server) -> Any:
    return _tries(server, _acl(TOPIC, "he", WRITE, pattern=PREFIXED))


@script("permissions: all on every topic but one")
def _denied(server: Server) -> Any:
    return _tries(server, _acl(TOPIC, "*", ALL), _acl(TOPIC, "held", READ, DENY))


@script("permissions: describe everything")
def _describe(server: Server) -> Any:
    return _tries(server, _acl(TOPIC, "*", DESCRIBE), _acl(GROUP, "*", DESCRIBE), _acl(CLUSTER, "kafka-cluster", DESCRIBE))


@script("permissions: from another address")
def _elsewhere(server: Server) -> Any:
    return _tries(server, _acl(TOPIC, "held", ALL, host="10.1.2.3"))


@script("permissions: everyone may read")
def _everyone(server: Server) -> Any:
    return _tries(server, _acl(TOPIC, "held", READ, who="User:*"))


# -- quotas


def _alteration(entity: dict[str, str | None], **values: float | None) -> dict[str, Any]:
    parts = tuple({"entity_type": word, "entity_name": name} for word, name in entity.items())
    ops = tuple({"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items())
    return {"entries": ({"entity": parts, "ops": ops},), "validate_only": False}


@script("quotas: wrong ones")
def _wrong_quotas(server: Server) -> Any:
    cases: list[tuple[dict[str, str | None], dict[str, float | None]]] = [
        ({}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"group": "g"}, {"producer_byte_rate": 1.0}),
        ({"user": "a", "ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"user": "a"}, {"unknown": 1.0}),
        ({"user": "a"}, {"producer_byte_rate": 0.0}),
        ({"user": "a"}, {"producer_byte_rate": -1.0}),
        ({"user": "a"}, {"producer_byte_rate": 1.5}),
        ({"user": "a"}, {"connection_creation_rate": 1.0}),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 0.0}),
        ({"user": "a"}, {"producer_byte_rate": None}),
    ]
    return [
        (case, codes(server.ask(ALTER_QUOTAS, 1, _alteration(entity, **values)))) for case in cases for entity, values in (case,)
    ]


@script("quotas: set, describe by filter, remove")
def _quotas(server: Server) -> Any:
    entities: list[dict[str, str | None]] = [{"user": "a"}, {"user": None}, {"user": "a", "client-id": "c"}, {"client-id": None}]
    found: list[Any] = [
        codes(server.ask(ALTER_QUOTAS, 1, _alteration(one, producer_byte_rate=1e6, consumer_byte_rate=5e6))) for one in entities
    ]
    for strict in (False, True):
        for components in (
            (), (("user", 0, "a"),), (("user", 1, None),), (("user", 2, None),), (("client-id", 1, None),),
            (("user", 0, "a"), ("client-id", 2, None)), (("user", 0, "nobody"),), (("user", 9, None),), (("group", 2, None),),
            (("user", 0, None),), (("user", 2, "x"),), (("", 2, None),), (("user", 2, None), ("user", 1, None)),
        ):  # fmt: skip
            rows = tuple({"entity_type": word, "match_type": kind, "match": name} for word, kind, name in components)
            answer = server.ask(DESCRIBE_QUOTAS, 1, {"components": rows, "strict": strict})
            entries = sorted(
                repr(
                    (
                        sorted((one.entity_type, one.entity_name or "") for one in row.entity),
                        sorted((one.key, one.value) for one in row.values),
                    )
                )
                for row in answer.entries or ()
            )
            found.append((strict, components, codes(answer), entries))
    found += [
        codes(server.ask(ALTER_QUOTAS, 1, _alteration(one, producer_byte_rate=None, consumer_byte_rate=None))) for one in entities
    ]
    return found


@script("quotas: a producer that exceeds its quota is told to wait")
def _waits(server: Server) -> Any:
    server.ask(ALTER_QUOTAS, 1, _alteration({"client-id": "probe"}, producer_byte_rate=10_000.0))
    request = {
        "acks": -1,
        "timeout": 9000,
        "topic_data": ({"name": "held", "partition_data": ({"index": 0, "records": batch([b"x" * 200_000])},)},),
    }
    with server.connect() as connection:
        answer = oracle.call(connection, 0, 8, request)
    server.ask(ALTER_QUOTAS, 1, _alteration({"client-id": "probe"}, producer_byte_rate=None))
    return codes(answer), answer.throttle_time.total_seconds() > 5


# -- the two servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    place = tmp_path_factory.mktemp("security")
    sasl = free_port()
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{plain} user_alice="{PASSWORD}" user_bob="bob-password";',
        "auto.create.topics.enable": "false",
        "connections.max.reauth.ms": "3600000",
    }
    env = {
        "AUTHORIZATION": "acl",
        "SUPER_USERS": "User:ANONYMOUS",
        "KAFKA_LISTENERS": f"SASL_PLAINTEXT://{HOST}:{(ours := free_port())}",
        "SASL_PLAIN_WITHOUT_TLS": "true",
        "SASL_MECHANISMS": ",".join(MECHANISMS),
        "AUTO_CREATE_TOPICS": "false",
        "CONNECTION_REAUTHENTICATE_MS": "3600000",
    }
    broker = BrokerProcess(place / "store", place / "broker.log", env={f"HEADGATE_{key}": value for key, value in env.items()})
    with KafkaServer(place / "kafka", config=config, listeners={"SASL_PLAINTEXT": sasl}) as kafka, broker:
        broker.start()
        broker.wait_ready()
        both = Server("headgate", broker.kafka_port, ours), Server("kafka", kafka.ports[1], sasl)
        for server in both:
            _prepare(server)
        yield both
        broker.check_output()


def _prepare(server: Server) -> None:
    """Users alice and bob, a topic, and a group with a position."""
    rows = [
        _upsertion(name, mechanism, 4096, password)
        for name, password in (("alice", PASSWORD), ("bob", "bob-password"))
        for mechanism in (1, 2)
    ]
    assert not any(code for row in rows for _, code in codes(server.ask(ALTER_USERS, 0, {"deletions": (), "upsertions": (row,)})))
    made = server.ask(
        19,
        5,
        {
            "topics": (
                {
                    "name": "held",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "configs": ({"name": "retention.ms", "value": "-1"},),
                },
            ),
            "timeout": 30_000,
        },
    )
    assert not any(code for _, code in codes(made))
    with server.connect() as connection:  # until the topic has a lead, and the group a coordinator
        for key, version, values in ((3, 8, {"topics": ({"name": "held"},)}), (10, 3, {"key": "g", "key_type": 0})):
            while any(code for _, code in codes(oracle.call(connection, key, version, values))):
                pass
        commit = next(values for name, _, _, values in _requests() if name == "OffsetCommit")
        while any(code for _, code in codes(oracle.call(connection, 8, 7, commit))):
            pass


@pytest.mark.parametrize("name", SCRIPTS)
def test_both_give_the_same_answers(servers: tuple[Server, Server], name: str) -> None:
    ours, theirs = (SCRIPTS[name](server) for server in servers)
    if name in DIFFERENT:
        assert ours != theirs, "they agree: remove the row of DIFFERENT"
    else:
        assert ours == theirs


def test_the_salted_password_is_what_both_understand() -> None:
    row = _upsertion("alice", 1, 4096, PASSWORD)
    assert base64.b64encode(row["salted_password"]) == base64.b64encode(
        hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"salt", 4096)
    )
