"""Users, logins and permissions on a real broker, with real clients.

Runs one broker with authorization, a plaintext listener and one with SASL over TLS. Clients log in by every mechanism, with right
and wrong proofs; an administrator gives and takes permissions with Kafka's own admin API and with `headgate acl`. A mismatch means
that a client gets in without a proof, does what it may not, or cannot do what it may; or that a password can be read somewhere.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import shlex
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import jwt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa

from headgate.broker.cli import app
from headgate.broker.client.access_admin import AccessAdmin, Acl
from headgate.broker.client.admin import Admin
from headgate.broker.client.gate_admin import GateAdmin
from headgate.broker.client.group_admin import GroupAdmin
from headgate.broker.client.producer import Producer as NativeProducer
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.server.kafka.apis import APIS
from headgate.broker.wire.grpc.methods import Method
from tests.support import commands, oracle
from tests.support.broker_process import PATIENCE_S, ROOT
from tests.support.errors import raises
from tests.support.history_files import upload
from tests.support.pki import Authority
from tests.support.secure import Secure
from tests.support.waiting import until
from tests.support.wire import ClosedByPeer, RawConnection
from tests.unit.access.test_rules import METHODS

ADMIN_PASSWORD, ALICE_PASSWORD, WRONG_PASSWORD = "planted-admin-3f1c", "planted-alice-9d2e", "planted-wrong-77aa"
AUDIENCE, ISSUER = "headgate", "https://issuer.test"
TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, SASL_AUTHENTICATION_FAILED = 29, 31, 58


class World:
    """A secure broker, its authority and the key that signs tokens."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.jwks = place / "jwks.json"
        self._write_keys("one")
        self.authority = Authority(place)
        (place / "admin").write_text(ADMIN_PASSWORD)
        (place / "alice").write_text(ALICE_PASSWORD)
        self.broker = Secure(
            place,
            self.authority,
            protocol="SASL_SSL",
            AUTHORIZATION="acl",
            ADMIN_PASSWORD_FILE=str(place / "admin"),
            OAUTH_JWKS=str(self.jwks),
            OAUTH_AUDIENCE=AUDIENCE,
            OAUTH_ISSUER=ISSUER,
            OAUTH_CLOCK_SKEW_MS="0",
            AUDIT_FILE=str(place / "audit.log"),
        )

    def _write_keys(self, key_id: str) -> None:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        self.jwks.write_text(json.dumps({"keys": [{**public, "kid": key_id, "use": "sig", "alg": "RS256"}]}))

    def token(self, key: Any = None, algorithm: str = "RS256", key_id: str = "one", **claims: Any) -> str:
        """A token of alice."""
        now_s = int(time.time())
        body = {"sub": "alice", "iss": ISSUER, "aud": AUDIENCE, "exp": now_s + 600, "iat": now_s, **claims}
        return jwt.encode(body, self.key if key is None else key, algorithm, headers={"kid": key_id})

    def config(self, user: str = "admin", password: str = ADMIN_PASSWORD, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """A configuration of librdkafka."""
        return {
            "bootstrap.servers": f"localhost:{self.broker.tls_port}",
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.authority.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def audit(self, **wanted: Any) -> list[dict[str, Any]]:
        """The lines of the audit file with these values."""
        lines = [json.loads(line) for line in (self.place / "audit.log").read_text().splitlines()]
        return [line for line in lines if wanted.items() <= line.items()]

    def address(self, user: str = "admin") -> str:
        return self.broker.address(user=user, password_file=str(self.place / user))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("access"))
    with made.broker as broker:
        broker.start()
        broker.wait_ready()
        asyncio.run(_create_alice(made))
        admin = AdminClient(made.config())
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("open", "closed")]).values():
            future.result(PATIENCE_S)
        yield made
        broker.check_output()


async def _create_alice(world: World) -> None:
    async with AccessAdmin(world.address()) as admin:
        await admin.create_user("alice", ALICE_PASSWORD)
        rights = [("topic", "open", "read"), ("topic", "open", "write"), ("group", "alice-", "read")]
        await admin.add_acls(
            [
                Acl(resource=kind, name=name, pattern="prefixed" if kind == "group" else "", principal="User:alice", operation=one)
                for kind, name, one in rights
            ]
        )


def _produce(config: dict[str, Any], topic: str = "open") -> int | None:
    """Produce one record. Returns the error code; None: it was acked."""
    failed: list[Any] = []
    outcome: list[int | None] = []
    producer = Producer({**config, "error_cb": failed.append})
    producer.produce(topic, b"x", on_delivery=lambda error, message: outcome.append(None if error is None else error.code()))

    def refused() -> bool:
        producer.poll(0.05)
        return any(one.code() == -169 for one in failed)  # authentication failed

    until(lambda: refused() or outcome, "the record is acked or refused", pause_s=0)
    producer.purge()
    producer.flush(1)
    return outcome[0] if outcome and not refused() else -169


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_logs_in_by_each_mechanism_and_not_with_a_wrong_password(world: World, mechanism: str) -> None:
    assert _produce(world.config("alice", ALICE_PASSWORD, mechanism)) is None
    assert _produce(world.config("alice", WRONG_PASSWORD, mechanism)) == -169
    assert _produce(world.config("nobody", ALICE_PASSWORD, mechanism)) == -169


def _bearer(world: World, token: str) -> dict[str, Any]:
    config = world.config(mechanism="OAUTHBEARER")
    del config["sasl.username"], config["sasl.password"]
    return {**config, "oauth_cb": lambda _: (token, time.time() + 300, "alice", {})}


def test_a_token_logs_in(world: World) -> None:
    assert _produce(_bearer(world, world.token())) is None


@pytest.mark.parametrize(
    "fault", ["expired", "future", "audience", "issuer", "none", "secret", "stranger", "key", "user", "garbage"]
)
def test_a_wrong_token_is_refused(world: World, fault: str) -> None:
    now_s = int(time.time())
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    parts = (b'{"alg":"none","kid":"one"}', b'{"sub":"alice"}')
    unsigned = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
    token: Callable[[], str] = {
        "expired": lambda: world.token(exp=now_s - 10),
        "future": lambda: world.token(nbf=now_s + 300),
        "audience": lambda: world.token(aud="another"),
        "issuer": lambda: world.token(iss="https://another.test"),
        "none": lambda: unsigned + ".",
        "secret": lambda: world.token(key="k" * 64, algorithm="HS256"),
        "stranger": lambda: world.token(key=other),
        "key": lambda: world.token(key=other, key_id="two"),
        "user": lambda: world.token(sub=""),
        "garbage": lambda: "planted-token-51be",
    }[fault]
    url = f"https://localhost:{world.broker.http_port}/api/topics"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token()}"})
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, context=create_ssl_context(cafile=str(world.authority.ca)), timeout=30)
    raised.value.close()
    assert raised.value.code == 401


def test_permissions_decide_and_invisible_topics_are_not_listed(world: World) -> None:
    alice = world.config("alice", ALICE_PASSWORD)
    assert _produce(alice, "open") is None
    assert _produce(alice, "closed") == TOPIC_AUTHORIZATION_FAILED
    assert _produce(alice, "new") == TOPIC_AUTHORIZATION_FAILED
    client = AdminClient(alice)
    assert set(client.list_topics(timeout=PATIENCE_S).topics) == {"open"}
    assert set(AdminClient(world.config()).list_topics(timeout=PATIENCE_S).topics) >= {"open", "closed"}
    (created,) = client.create_topics([NewTopic("new", 1, 1)]).values()
    with pytest.raises(KafkaException) as raised:
        created.result(PATIENCE_S)
    assert raised.value.args[0].code() == TOPIC_AUTHORIZATION_FAILED
    (deleted,) = client.delete_topics(["open"]).values()
    with pytest.raises(KafkaException) as raised:
        deleted.result(PATIENCE_S)
    assert raised.value.args[0].code() == TOPIC_AUTHORIZATION_FAILED
    plain = AdminClient({"bootstrap.servers": world.broker.bootstrap}).list_topics(timeout=PATIENCE_S)
    assert not plain.topics, "a client that does not log in is User:ANONYMOUS, and sees nothing"


def test_a_consumer_needs_its_group_and_its_topic(world: World) -> None:
    def first(group: str) -> int:
        consumer = Consumer({**world.config("alice", ALICE_PASSWORD), "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe(["open"])
        try:
            message = until(lambda: consumer.poll(0.2), "a record or an error")
            assert message is not None
            return 0 if message.error() is None else message.error().code()
        finally:
            consumer.close()

    assert _produce(world.config("alice", ALICE_PASSWORD)) is None
    assert first("alice-1") == 0
    assert first("other") == 30


def test_a_pattern_of_a_group_matches_only_visible_topics(world: World) -> None:
    def assigned(config: dict[str, Any]) -> set[str]:
        found: set[str] = set()
        consumer = Consumer({**config, "group.id": f"alice-{config['sasl.username']}", "group.protocol": "consumer"})
        consumer.subscribe(["^(open|closed)$"], on_assign=lambda _, partitions: found.update(one.topic for one in partitions))
        try:
            until(lambda: consumer.poll(0.2) or found, "topics are assigned")
        finally:
            consumer.close()
        return found

    assert assigned(world.config("alice", ALICE_PASSWORD)) == {"open"}
    assert assigned(world.config()) == {"open", "closed"}


def test_kafkas_admin_api_manages_rules_and_users(world: World) -> None:
    admin = AdminClient(world.config())
    binding = AclBinding(
        ResourceType.TOPIC, "team-", ResourcePatternType.PREFIXED, "User:bob", "*", AclOperation.WRITE, AclPermissionType.ALLOW
    )
    wanted = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, "User:bob", None, AclOperation.ANY, AclPermissionType.ANY
    )
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion("bob", info, b"planted-bob-8842")
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(PATIENCE_S)
    assert admin.describe_user_scram_credentials(["bob"])["bob"].result(PATIENCE_S).scram_credential_infos[0].iterations == 4096
    bob = world.config("bob", "planted-bob-8842", "SCRAM-SHA-256")
    assert _produce(bob, "closed") == TOPIC_AUTHORIZATION_FAILED
    for future in admin.create_acls([binding]).values():
        future.result(PATIENCE_S)
    assert admin.describe_acls(wanted).result(PATIENCE_S) == [binding]
    for name in ("team-1", "other-1"):
        for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
            future.result(PATIENCE_S)
    assert _produce(bob, "team-1") is None and _produce(bob, "other-1") == TOPIC_AUTHORIZATION_FAILED
    low = AdminClient(bob)
    (refused,) = low.create_acls([binding]).values()
    with pytest.raises(KafkaException) as raised:
        refused.result(PATIENCE_S)
    assert raised.value.args[0].code() == CLUSTER_AUTHORIZATION_FAILED
    assert not low.describe_acls(wanted).result(PATIENCE_S)  # librdkafka drops the error of this answer
    for future in admin.delete_acls([wanted]).values():
        assert future.result(PATIENCE_S) == [binding]
    assert _produce(bob, "team-1") == TOPIC_AUTHORIZATION_FAILED


def test_a_permission_that_is_taken_ends_a_running_producer(world: World) -> None:
    asyncio.run(_grant(world, "open-2"))
    codes: list[int] = []
    producer = Producer({**world.config("alice", ALICE_PASSWORD), "linger.ms": 0})

    def sent() -> int:
        producer.produce("open-2", b"x", on_delivery=lambda error, _: codes.append(0 if error is None else error.code()))
        producer.flush(PATIENCE_S)
        return codes[-1]

    assert sent() == sent() == 0, "the second request is the short form of the first"
    asyncio.run(_take(world, "open-2"))
    until(sent, "a request is refused", pause_s=0)
    assert codes[-1] == TOPIC_AUTHORIZATION_FAILED


async def _grant(world: World, topic: str) -> None:
    async with AccessAdmin(world.address()) as access, Admin(world.address()) as admin:
        await admin.create_topic(topic)
        await access.add_acls([Acl(resource="topic", name=topic, principal="User:alice", operation="write")])


async def _take(world: World, topic: str) -> None:
    async with AccessAdmin(world.address()) as access:
        assert len(await access.remove_acls(Acl(resource="topic", name=topic))) == 1


async def _native(world: World) -> None:
    async with NativeProducer(world.address("alice")) as producer:
        await producer.send_and_wait("open", b"native")
        with pytest.raises(HeadgateError) as raised:
            await producer.send_and_wait("closed", b"native")
        assert raised.value.reason in (Reason.NOT_AUTHORIZED, Reason.UNKNOWN_TOPIC)
    async with Admin(world.address("alice")) as admin:
        assert [topic.name for topic in await admin.list_topics()] == ["open"]
        with raises(HeadgateError, Reason.NOT_AUTHORIZED):
            await admin.delete_topic("open")
    async with GateAdmin(world.address("alice")) as gates, AccessAdmin(world.address()) as access:
        with raises(HeadgateError, Reason.NOT_AUTHORIZED):
            await gates.open("open", [1], gate_id="g", ttl_ms=60_000)
        await access.add_acls([Acl(resource="gate", name="open", principal="User:alice", operation="create")])
        await gates.open("open", [1], gate_id="g", ttl_ms=60_000)
        with raises(HeadgateError, Reason.NOT_AUTHORIZED):
            await gates.release("open", "g")
    async with Admin(world.broker.address()) as nobody:
        with raises(HeadgateError, Reason.NOT_AUTHENTICATED):
            await nobody.list_topics()
    async with Admin(world.broker.address(user="alice", password_file=str(world.place / "admin"))) as wrong:
        with raises(HeadgateError, Reason.NOT_AUTHENTICATED):
            await wrong.list_topics()


def test_the_same_users_and_rules_hold_for_grpc(world: World) -> None:
    asyncio.run(_native(world))


def _state(world: World) -> list[str]:
    """What a call could change: topics, users, rules, quotas, groups."""

    async def look() -> list[str]:
        async with AccessAdmin(world.address()) as access, Admin(world.address()) as admin, GroupAdmin(world.address()) as groups:
            found = (
                await admin.list_topics(),
                await access.users(),
                await access.acls(),
                await access.quotas(),
                await groups.list_groups(),
            )
            return [repr(one) for one in found]

    return asyncio.run(look())


@pytest.mark.parametrize("proof", ["expired token", "token for another audience", "wrong password", "none"])
def test_every_grpc_method_without_a_valid_proof_is_refused_and_changes_nothing(world: World, proof: str) -> None:
    before = _state(world)
    now_s = int(time.time())
    header = {
        "expired token": f"Bearer {world.token(sub='admin', exp=now_s - 10)}",
        "token for another audience": f"Bearer {world.token(sub='admin', aud='another')}",
        "wrong password": "Basic " + base64.b64encode(f"admin:{WRONG_PASSWORD}".encode()).decode(),
        "none": "",
    }[proof]
    credentials = grpc.ssl_channel_credentials(world.authority.ca.read_bytes())
    with grpc.secure_channel(f"localhost:{world.broker.grpc_port}", credentials) as channel:
        for method in METHODS:
            metadata = (("authorization", header),) if header else ()
            with pytest.raises(grpc.RpcError) as raised:
                _call_by_hand(channel, method, metadata)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED, method.short
    assert _state(world) == before


def _call_by_hand(channel: grpc.Channel, method: Method, metadata: tuple[tuple[str, str], ...]) -> None:
    """One call with an empty request, to its first answer."""
    if method.client_streaming:
        for _ in channel.stream_stream(method.path)(iter(()), timeout=30, metadata=metadata):
            return
    else:
        channel.unary_unary(method.path)(b"", timeout=30, metadata=metadata)


def test_every_kafka_api_before_a_login_and_after_its_end_is_refused(world: World) -> None:
    context = create_ssl_context(cafile=str(world.authority.ca))

    def secure() -> RawConnection:
        connection = RawConnection("127.0.0.1", world.broker.tls_port, timeout_s=PATIENCE_S)
        connection.socket = context.wrap_socket(connection.socket, server_hostname="localhost")
        return connection

    before = _state(world)
    for key, api in APIS.items():
        if key in (17, 18, 36):  # the login itself
            continue
        with secure() as connection, pytest.raises(ClosedByPeer):
            connection.call(key, api.max_version, bytes(200), flexible=api.flexible(api.max_version))

    def is_closed_at_the_end_of_its_token(lifetime_s: int) -> bool:
        """False if the token ended before the login did."""
        with secure() as connection, suppress(ClosedByPeer):
            token = world.token(exp=int(time.time()) + lifetime_s)
            oracle.call(connection, 17, 1, {"mechanism": "OAUTHBEARER"})
            answer = oracle.call(connection, 36, 2, {"auth_bytes": f"n,,\x01auth=Bearer {token}\x01\x01".encode()})
            if answer.error_code:
                return False
            assert 0 < answer.session_lifetime.total_seconds() <= lifetime_s
            assert oracle.call(connection, 3, 12, {"topics": ()}).brokers
            assert connection.is_closed_by_peer(PATIENCE_S), "at the end of the token"
            return True
        return False

    lifetimes_s = iter((2, 5, 20, 60))
    until(lambda: is_closed_at_the_end_of_its_token(next(lifetimes_s)), "a login before its token ends")
    # A thread writes the audit log.
    until(lambda: world.audit(act="login expired", outcome="refused"), "the audit log tells it")
    assert _state(world) == before


async def _by_certificate(world: World) -> None:
    certificate = world.authority.issue("carol")
    address = world.broker.address(certificate=str(certificate[0]), key=str(certificate[1]))
    address = address.replace(f":{world.broker.grpc_port}", f":{world.broker.mtls_port}")
    async with AccessAdmin(world.address()) as access, Admin(address) as admin:
        assert await admin.list_topics() == []
        await access.add_acls([Acl(resource="topic", name="open", principal="User:O=Tests,CN=carol", operation="describe")])
        assert [topic.name for topic in await admin.list_topics()] == ["open"]


def test_a_certificate_is_a_login(world: World) -> None:
    asyncio.run(_by_certificate(world))


def test_the_page_needs_a_permission_and_probes_do_not(world: World) -> None:
    context = create_ssl_context(cafile=str(world.authority.ca))

    def status(path: str, user: str = "", password: str = "") -> int:
        request = urllib.request.Request(f"https://localhost:{world.broker.http_port}{path}")
        if user:
            request.add_header("authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    assert status("/healthz") == status("/readyz") == 200
    assert status("/api/topics") == status("/metrics") == status("/") == 401
    assert status("/api/topics", "alice", ALICE_PASSWORD) == 403
    assert status("/api/topics", "alice", WRONG_PASSWORD) == 401
    assert status("/api/topics", "admin", ADMIN_PASSWORD) == status("/metrics", "admin", ADMIN_PASSWORD) == 200


def test_the_command_line_manages_users_and_rules(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def headgate(*arguments: str, stdin: str = "", address: str = world.address()) -> str:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        app.run(["--cluster", address, *arguments])
        shown = capsys.readouterr()
        return shown.out + shown.err

    assert "user dave created" in headgate("user", "create", "dave", "--password-file", "-", stdin="planted-dave-5151\n")
    assert "exists already" in headgate("user", "create", "dave", "--password-file", "-", stdin="x\n")
    assert "dave" in headgate("user", "list")
    assert "User:dave" in headgate("acl", "allow", "User:dave", "read,write", "topic", "dave-*")
    assert headgate("acl", "list", "--principal", "User:dave").count("dave-*") == 2
    assert "unknown word" in headgate("acl", "allow", "User:dave", "fly", "topic", "a")
    assert "password of dave changed" in headgate("user", "password", "dave", "--password-file", "-", stdin="planted-dave-6262\n")
    assert headgate("acl", "remove", "--principal", "User:dave").count("dave-*") == 2
    assert "user dave deleted" in headgate("user", "delete", "dave")
    assert "last administrator" in headgate("user", "delete", "admin")
    assert "no permission" in headgate("user", "list", address=world.address("alice"))


def test_acts_refusals_and_filled_gates_stand_in_the_audit_log(world: World) -> None:
    admin, alice = AdminClient(world.config()), AdminClient(world.config("alice", ALICE_PASSWORD))
    admin.create_topics([NewTopic("audited", 1, 1)])["audited"].result(PATIENCE_S)
    with pytest.raises(KafkaException):
        alice.delete_topics(["closed"])["closed"].result(PATIENCE_S)
    assert _produce(world.config("alice", ALICE_PASSWORD), "closed") == TOPIC_AUTHORIZATION_FAILED
    assert _produce(world.config("alice", WRONG_PASSWORD)) == -169
    asyncio.run(_fill(world))
    assert _produce(world.config("alice", ALICE_PASSWORD), "audited") == TOPIC_AUTHORIZATION_FAILED
    kafka = {"door": "kafka", "from": "127.0.0.1"}
    until(lambda: world.audit(act="Gates/FillGate", targets=["audited", "flood-1"]), "the audit log tells of the fill")
    (created,) = world.audit(act="CreateTopics", targets=["audited"])
    assert created.items() >= {**kafka, "outcome": "done", "who": "User:admin", "broker": 1, "client_id": "rdkafka"}.items()
    assert world.audit(act="DeleteTopics", targets=["closed"], outcome="refused", who="User:alice", **kafka)
    assert world.audit(act="Metadata", targets=["closed"], outcome="refused", who="User:alice", **kafka)
    assert world.audit(act="Produce", targets=["audited"], outcome="refused", who="User:alice", **kafka)
    assert world.audit(act="login", outcome="refused", who="", **kafka)
    (filled,) = world.audit(act="Gates/FillGate", targets=["audited", "flood-1"])
    assert filled.items() >= {"who": "User:admin", "door": "grpc", "origin": "nightly", "source": "a lake"}.items()
    assert filled["certificate"]["rows"] == 1 and filled["certificate"]["digest"] and len(filled["paths"]) == 1
    (first,) = world.audit(act="first administrator")
    assert first.items() >= {"targets": ["admin"], "superuser": True, "door": "start"}.items()


async def _fill(world: World) -> None:
    """Fill a gate with one row."""
    async with GateAdmin(world.address()) as gates, AccessAdmin(world.address()) as access:
        await access.add_acls([Acl(resource="topic", name="audited", principal="User:alice", operation="describe")])
        gate = await gates.open("audited", [1], gate_id="flood-1", ttl_ms=60_000, definition="a lake", owner="nightly")
        await gates.fill("audited", "flood-1", await asyncio.to_thread(upload, gate))


def test_no_secret_is_written_anywhere(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Last: everything that the tests planted is searched in logs, the store, metrics, pages and status."""
    context = create_ssl_context(cafile=str(world.authority.ca))
    texts = [world.broker.log_path.read_bytes(), (world.place / "audit.log").read_bytes()]
    for command in ("status", "user list", "acl list", "topic list", "quota list", "capacity show"):
        app.run(["--cluster", world.address(), *command.split(), "--json"])
        shown = capsys.readouterr()
        texts.append((shown.out + shown.err).encode())
    texts += [path.read_bytes() for path in (world.place / "store").rglob("*") if path.is_file()]
    for path in ("/metrics", "/", "/api/cluster", "/api/topics", "/api/groups", "/api/floods", "/api/decisions"):
        request = urllib.request.Request(f"https://localhost:{world.broker.http_port}{path}")
        request.add_header("authorization", "Basic " + base64.b64encode(f"admin:{ADMIN_PASSWORD}".encode()).decode())
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            texts.append(answer.read())
    configs = AdminClient(world.config())
    from confluent_kafka.admin import ConfigResource

    (found,) = configs.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]).values()
    texts.append(repr(found.result(PATIENCE_S)).encode())
    planted = (b"planted-", base64.b64encode(ALICE_PASSWORD.encode()), base64.b64encode(f"alice:{ALICE_PASSWORD}".encode()))
    assert len(texts) > 5
    for text in texts:
        assert not any(secret in text for secret in planted)


async def _both(world: str) -> tuple[set[int], list[str]]:
    async with Admin(world) as admin:
        status = await admin.status()
        return {broker.id for broker in status.brokers if not broker.trouble}, [topic.name for topic in await admin.list_topics()]


def test_brokers_know_each_other_and_share_users_and_rules(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "admin").write_text(ADMIN_PASSWORD)
    settings = {
        "AUTHORIZATION": "acl",
        "ADMIN_PASSWORD_FILE": str(tmp_path / "admin"),
        "TLS_PRINCIPAL_RULES": "RULE:^.*CN=([^,]+)$/$1/,DEFAULT",
        "BROKER_PRINCIPALS": "User:one;User:two",
        "CONNECTION_REAUTHENTICATE_MS": "1000",
    }
    with (
        Secure(tmp_path, authority, "one", 1, "SASL_SSL", **settings) as one,
        Secure(tmp_path, authority, "two", 2, "SASL_SSL", **settings) as two,
    ):
        for broker in (one, two):
            broker.start()
            broker.wait_ready()
        secret = str(tmp_path / "admin")
        config = {
            "bootstrap.servers": f"localhost:{two.tls_port}",
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(authority.ca),
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "admin",
            "sasl.password": ADMIN_PASSWORD,
        }
        producer = Producer({**config, "linger.ms": 0})
        sent: list[Any] = []

        def logs_in_again() -> bool:
            """Whether each connection logs in again in time, twice. A client that gets no processor time comes too late."""
            before, began = [len(broker.output()) for broker in (one, two)], time.monotonic()
            while time.monotonic() - began < 2.5:
                producer.produce("spread", b"x", on_delivery=lambda error, _: sent.append(error))
                producer.flush(PATIENCE_S)
            return not any("login_expired" in broker.output()[at:] for broker, at in zip((one, two), before, strict=True))

        until(logs_in_again, "connections log in again in time")
        assert sent and not any(sent)
        address = two.address(user="admin", password_file=secret)
        until(lambda: asyncio.run(_both(address)) == ({1, 2}, ["spread"]), "the brokers know each other")
        asyncio.run(_open_gate(address))
        for broker in (one, two):
            broker.check_output()


def _tls_from(host: str, port: int, authority: Authority) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE_S, (host, 0))
    return ssl.create_default_context(cafile=str(authority.ca)).wrap_socket(plain, server_hostname="localhost")


def test_an_address_whose_handshakes_fail_cannot_connect_and_others_can(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Secure(tmp_path, authority, protocol="SSL", FAILED_LOGINS_PER_S="1") as broker:
        broker.start()
        broker.wait_ready()
        with _tls_from("127.0.0.2", broker.tls_port, authority) as kept:

            def refused() -> bool:
                for _ in range(25):  # twenty at once are allowed, and one more each second
                    address = ("127.0.0.1", broker.tls_port)
                    with suppress(ConnectionError), socket.create_connection(address, PATIENCE_S, ("127.0.0.2", 0)) as bad:
                        bad.sendall(b"\x16\x03\x01\x00\x20" + bytes(32))
                        assert bad.recv(100) is not None
                with suppress(OSError):  # the end of the connection, in one of several forms
                    _tls_from("127.0.0.2", broker.tls_port, authority).close()
                    return False
                return True

            until(refused, "an honest handshake from that address is refused")
            others = AdminClient({
                "bootstrap.servers": f"localhost:{broker.tls_port}", "security.protocol": "ssl",
                "ssl.ca.location": str(authority.ca),
            })  # fmt: skip
            assert others.list_topics(timeout=PATIENCE_S).brokers
            request = b"\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff"  # ApiVersions 0, correlation 7
            kept.sendall(len(request).to_bytes(4, "big") + request)
            assert kept.recv(100)[4:8] == b"\x00\x00\x00\x07", "open connections stay"
        assert "too many logins or TLS handshakes of the address have failed" in broker.output()
        broker.check_output()


async def _open_gate(address: str) -> None:
    """At the broker that does not lead: it passes the call on as a broker."""
    async with GateAdmin(address) as gates:
        await gates.open("spread", [1], gate_id="g", ttl_ms=60_000)


def test_the_rules_that_a_flood_of_a_file_needs(world: World, tmp_path: Path) -> None:
    """Those of `pipelines/orchestrators.md`. Each is needed; without one a retry does not help, and nothing is left."""
    place = tmp_path / "floods.yaml"
    at = pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": at, "user": ["u"]}), tmp_path / "a.parquet")
    place.write_text(
        f"floods: [{{name: clicks, topic: clicks, topic_partitions: 1, source: {tmp_path}/a.parquet, key: user, event_time: at, "
        "partitions: {by: day, start: 2026-01-01}}]"
    )
    (world.place / "loader").write_text(ALICE_PASSWORD)
    page = (ROOT / "pipelines" / "orchestrators.md").read_text()
    rules = [shlex.split(rule) for rule in re.findall(r"^\$ headgate (acl allow User:loader .*)$", page, re.M)]
    assert len(rules) == 4

    def headgate(user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return commands.run(arguments, {**os.environ, "HEADGATE_CLUSTER": world.address(user)}, timeout_s=PATIENCE_S)

    async def create() -> None:
        async with AccessAdmin(world.address()) as admin:
            await admin.create_user("loader", ALICE_PASSWORD)

    asyncio.run(create())
    for rule in rules:
        refused = headgate("loader", "flood", "run", str(place), "--partition", "2026-01-01", "--json")
        found = json.loads(refused.stdout)
        assert (refused.returncode, found["retry"], found["reason"]) == (2, False, "not_authorized"), refused.stderr
        assert "nothing was added: correct it and run the same days again." in found["message"], found
        assert "could not be released" not in refused.stderr, refused.stderr
        assert headgate("admin", *rule).returncode == 0
    done = headgate("loader", "flood", "run", str(place), "--partition", "2026-01-01")
    assert done.returncode == 0 and "1 record added to topic clicks" in done.stdout, done.stderr
    place.write_text(place.read_text().replace("start: 2026-01-01", "start: 2025-12-31"))
    assert headgate("admin", "acl", "deny", "User:loader", "read", "topic", "clicks").returncode == 0
    refused = headgate("loader", "flood", "run", str(place), "--partition", "2025-12-31", "--json")
    assert refused.returncode == 2 and "a load is read back, which this user may not" in json.loads(refused.stdout)["message"]
    assert headgate("admin", "capacity", "list", "--json").stdout.count("flood run clicks") == 0
