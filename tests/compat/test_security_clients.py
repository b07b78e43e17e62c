"""Every foreign client, by every mechanism that it supports, over TLS, while the brokers' certificates change under load.

Runs two brokers with SASL_SSL and TLS listeners. librdkafka, kafka-python, aiokafka, kafkajs, franz-go, Sarama and Java produce all
the time, with new connections for every few records, while each broker gets new certificates, one broker after the other, several
times. Compared: no client reports an error, and each one has sent records. A mismatch means that a client cannot log in, or that a
change of certificates is not seamless.

One mechanism for all clients at a time, so that the machine is not the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import jwt
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Producer
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as PyTokens

from headgate.broker.client.access_admin import AccessAdmin, Acl
from headgate.broker.client.admin import Admin
from tests.support import kafka_server, maven, npm
from tests.support.broker_process import PATIENCE_S
from tests.support.pki import Authority
from tests.support.ports import free_port
from tests.support.secure import Secure
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
ADMIN_PASSWORD, PASSWORD, TOPIC = "admin-password", "alice-password", "rolled"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "certificate")
RECORDS_PER_CONNECTION = 10
CHANGES = 3
"""Changes of certificates of each broker."""


class World:
    """Two brokers, a user and a token."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.authority = Authority(place)
        self.mine = self.authority.issue("alice")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        (place / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]}))
        now_s = int(time.time())
        claims = {"sub": "alice", "scope": "kafka", "iat": now_s, "exp": now_s + 3600}
        self.token = jwt.encode(claims, key, "RS256", headers={"kid": "one"})
        (place / "token").write_text(self.token)
        (place / "admin").write_text(ADMIN_PASSWORD)
        self.tls_only = {number: free_port() for number in (1, 2)}
        self.brokers = [self._broker(number) for number in (1, 2)]

    def _broker(self, number: int) -> Secure:
        broker = Secure(
            self.place,
            self.authority,
            f"broker-{number}",
            number,
            "SASL_SSL",
            AUTHORIZATION="acl",
            ADMIN_PASSWORD_FILE=str(self.place / "admin"),
            OAUTH_JWKS=str(self.place / "jwks.json"),
            TLS_PRINCIPAL_RULES="RULE:^.*CN=([^,]+)$/$1/,DEFAULT",
            BROKER_PRINCIPALS="User:broker-1;User:broker-2",
            CONNECTION_REAUTHENTICATE_MS="3s",
        )
        listeners = f"SASL_SSL://127.0.0.1:{broker.tls_port},SSL://127.0.0.1:{self.tls_only[number]}"
        broker.env["HEADGATE_KAFKA_LISTENERS"] = listeners
        return broker

    def bootstrap(self, mechanism: str) -> str:
        ports = self.tls_only.values() if mechanism == "certificate" else [one.tls_port for one in self.brokers]
        return ",".join(f"localhost:{port}" for port in ports)

    def secret(self, mechanism: str) -> str:
        return self.token if mechanism == "OAUTHBEARER" else PASSWORD

    async def prepare(self) -> None:
        address = self.brokers[0].address(user="admin", password_file=str(self.place / "admin"))
        async with AccessAdmin(address) as access, Admin(address) as admin:
            await access.create_user("alice", PASSWORD)
            await access.add_acls([Acl(resource="topic", name=TOPIC, principal="User:alice", operation="write")])
            await admin.create_topic(TOPIC, partitions=4)

    def change_certificates(self, number: int) -> None:
        """Give one broker a new certificate, and wait until it uses it."""
        broker = self.brokers[number]
        before = len(broker.output())
        self.authority.issue(f"broker-{number + 1}")
        broker.wait_line("tls_reloaded", before)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("clients"))
    with made.brokers[0] as one, made.brokers[1] as two:
        for broker in (one, two):
            broker.start()
            broker.wait_ready()
        asyncio.run(made.prepare())
        yield made
        for broker in (one, two):
            broker.check_output()


class Running(Protocol):
    """A client that produces until `stop`, which returns its number of records and its errors."""

    def sent_some(self) -> bool: ...

    def stop(self) -> tuple[int, list[str]]: ...


class InThread:
    """A Python client in a thread. `work` sends RECORDS_PER_CONNECTION records over connections of its own."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._sent = 0
        self._failed: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._work()
                self._sent += RECORDS_PER_CONNECTION
            except Exception as error:  # noqa: BLE001  # the test judges it
                self._failed.append(repr(error))
                self._over.wait(0.1)

    def sent_some(self) -> bool:
        return self._sent > 0 or bool(self._failed)

    def stop(self) -> tuple[int, list[str]]:
        self._over.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the client hangs"
        return self._sent, self._failed


class InProcess:
    """A client in a process of its own, which ends when its standard input does."""

    def __init__(self, *command: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd, env=env
        )

    def sent_some(self) -> bool:
        return True  # it does at least one round before it ends

    def stop(self) -> tuple[int, list[str]]:
        out, errors = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, errors[-2000:]
        answer = json.loads(out)
        return answer["sent"], answer["failed"]


def _confluent(world: World, mechanism: str) -> Running:
    config: dict[str, Any] = {
        "bootstrap.servers": world.bootstrap(mechanism),
        "ssl.ca.location": str(world.authority.ca),
        "log_level": 0,
    }
    if mechanism == "certificate":
        pair = {"ssl.certificate.location": str(world.mine[0]), "ssl.key.location": str(world.mine[1])}
        config |= {"security.protocol": "ssl", **pair}
    else:
        config |= {"security.protocol": "sasl_ssl", "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            config["oauth_cb"] = lambda _: (world.token, time.time() + 1800, "alice", {})
        else:
            config |= {"sasl.username": "alice", "sasl.password": PASSWORD}

    def work() -> None:
        producer = Producer(config)
        outcomes: list[Any] = []
        for number in range(RECORDS_PER_CONNECTION):
            producer.produce(TOPIC, str(number), on_delivery=lambda error, _: outcomes.append(error))
            producer.flush(PATIENCE_S)
        assert len(outcomes) == RECORDS_PER_CONNECTION and not any(outcomes), outcomes

    return InThread(work)


class _PyTokens(PyTokens):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


class _AioTokens(AioTokens):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def _kafka_python(world: World, mechanism: str) -> Running:
    config: dict[str, Any] = {"bootstrap_servers": world.bootstrap(mechanism).split(","), "ssl_cafile": str(world.authority.ca)}
    if mechanism == "certificate":
        config |= {"security_protocol": "SSL", "ssl_certfile": str(world.mine[0]), "ssl_keyfile": str(world.mine[1])}
    else:
        config |= {"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            config["sasl_oauth_token_provider"] = _PyTokens(world.token)
        else:
            config |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}

    def work() -> None:
        producer = KafkaProducer(**config, acks="all")
        try:
            for number in range(RECORDS_PER_CONNECTION):
                producer.send(TOPIC, str(number).encode()).get(PATIENCE_S)
        finally:
            producer.close()

    return InThread(work)


def _aiokafka(world: World, mechanism: str) -> Running:
    async def send() -> None:
        context = create_ssl_context(cafile=str(world.authority.ca))
        config: dict[str, Any] = {"security_protocol": "SSL" if mechanism == "certificate" else "SASL_SSL", "ssl_context": context}
        if mechanism == "certificate":
            context.load_cert_chain(*world.mine)
        elif mechanism == "OAUTHBEARER":
            config |= {"sasl_mechanism": mechanism, "sasl_oauth_token_provider": _AioTokens(world.token)}
        else:
            config |= {"sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": PASSWORD}
        producer = AIOKafkaProducer(bootstrap_servers=world.bootstrap(mechanism), acks="all", **config)
        await producer.start()
        try:
            for number in range(RECORDS_PER_CONNECTION):
                await producer.send_and_wait(TOPIC, str(number).encode())
        finally:
            await producer.stop()

    return InThread(lambda: asyncio.run(send()))


def _files(world: World, mechanism: str) -> tuple[str, str]:
    return (str(world.mine[0]), str(world.mine[1])) if mechanism == "certificate" else ("", "")


def _sasl(mechanism: str) -> str:
    return "" if mechanism == "certificate" else mechanism


def _go(library: str) -> Callable[[World, str], Running]:
    def start(world: World, mechanism: str) -> Running:
        program = world.place / "secure-go"
        if not program.exists():
            folder = ROOT / "tests/support/secure_go"
            subprocess.run(["go", "build", "-o", str(program), "."], cwd=folder, check=True, timeout=300)
        login = (_sasl(mechanism), "alice", world.secret(mechanism), TOPIC)
        return InProcess(
            str(program), library, world.bootstrap(mechanism), str(world.authority.ca), *_files(world, mechanism), *login
        )

    return start


def _kafkajs(world: World, mechanism: str) -> Running:
    home = npm.install()
    login = (_sasl(mechanism), "alice", world.secret(mechanism), TOPIC)
    command = (
        "node",
        str(npm.SOURCE / "secure.js"),
        world.bootstrap(mechanism),
        str(world.authority.ca),
        *_files(world, mechanism),
    )
    return InProcess(
        *command, *login, env={**os.environ, "NODE_PATH": str(home / "node_modules"), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
    )


def _java(world: World, mechanism: str) -> Running:
    both = world.place / "alice-both.pem"
    both.write_text(world.mine[1].read_text() + world.mine[0].read_text())
    secret = f"file://{world.place / 'token'}" if mechanism == "OAUTHBEARER" else PASSWORD
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{kafka_server.jars()}/*"]
    program = str(ROOT / "tests/support/secure_java/Secure.java")
    certificate = str(both) if mechanism == "certificate" else ""
    return InProcess(
        *command,
        program,
        world.bootstrap(mechanism),
        str(world.authority.ca),
        certificate,
        _sasl(mechanism),
        "alice",
        secret,
        TOPIC,
    )


CLIENTS: dict[str, tuple[Callable[[World, str], Running], str]] = {
    "librdkafka": (_confluent, ""),
    "kafka-python": (_kafka_python, ""),
    "aiokafka": (_aiokafka, ""),
    "kafkajs": (_kafkajs, npm.missing() or ""),
    "franz-go": (_go("franz"), "" if shutil.which("go") else "go is not installed"),
    "sarama": (_go("sarama"), "" if shutil.which("go") else "go is not installed"),
    "java": (_java, maven.missing() or ""),
}
"""By name: how to start it, and why it cannot run here."""
SHORT = ("librdkafka", "aiokafka", "kafka-python")
"""Clients of the short form."""


def _roll(world: World, mechanism: str, names: tuple[str, ...], changes: int) -> None:
    running = {name: CLIENTS[name][0](world, mechanism) for name in names}
    until(lambda: all(one.sent_some() for one in running.values()), "every client sends")
    for _ in range(changes):
        for number in (0, 1):
            world.change_certificates(number)
    results = {name: one.stop() for name, one in running.items()}
    assert {name: failed for name, (_, failed) in results.items() if failed} == {}
    assert all(sent >= RECORDS_PER_CONNECTION for sent, _ in results.values()), results


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_client_logs_in_through_a_change_of_certificates(world: World, mechanism: str) -> None:
    missing = {name: why for name, (_, why) in CLIENTS.items() if why}
    if missing:
        sys.stderr.write(f"clients that cannot run here: {missing}\n")
    _roll(world, mechanism, tuple(name for name in CLIENTS if name not in missing), CHANGES)


def test_clients_log_in_through_a_change_of_certificates(world: World) -> None:
    """The short form: three clients, one mechanism, one change of each broker."""
    _roll(world, "SCRAM-SHA-256", SHORT, 1)
