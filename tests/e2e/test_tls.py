"""TLS on all ports of a real broker: who gets in, which certificate is shown, and what happens when the files change.

Runs one broker with a plaintext and a TLS listener for Kafka, and TLS on gRPC and HTTP; then two brokers that know each other by
certificate. Real clients connect: librdkafka, kafka-python, the Python client, HTTP. A mismatch means that a client without the
right certificate is served, that one with it is not, or that a wrong file takes a working broker out of service.
"""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.broker.cli.health import run_health
from headgate.broker.client.admin import Admin
from headgate.broker.runtime.errors import HeadgateError
from tests.support.broker_process import HOST, PATIENCE_S
from tests.support.examples import examples
from tests.support.pki import DAY, Authority
from tests.support.secure import Secure
from tests.support.waiting import until

"""Short in CI; the environment makes it long."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[Secure]:
    crl = place / "crl.pem"
    authority = Authority(place)
    authority.revoke(crl)
    with Secure(place, authority, TLS_CRL=str(crl)) as secure:
        secure.start()
        secure.wait_ready()
        yield secure
        secure.check_output()


def _handshake(port: int, ca: Path, certificate: tuple[Path, Path] | None = None) -> int:
    """Do a handshake and one request. Returns the serial number of the broker's certificate. Raises OSError."""
    context = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    with (
        socket.create_connection((HOST, port), 30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        shown = secure.getpeercert()
        secure.sendall(bytes.fromhex("0000000a 0012 0000 00000001 ffff".replace(" ", "")))  # ApiVersions v0
        if not secure.recv(4):  # with TLS 1.3, a server refuses a certificate after the client's handshake has ended
            raise ConnectionResetError
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def test_real_clients_produce_and_consume_over_tls(broker: Secure) -> None:
    config = {
        "bootstrap.servers": f"localhost:{broker.tls_port}",
        "security.protocol": "ssl",
        "ssl.ca.location": str(broker.authority.ca),
    }
    producer = Producer({**config, "linger.ms": 5})
    value = bytes(range(256)) * 256
    for number in range(200):  # 12 MB: frames that need several reads and answers that need several writes
        producer.produce("over-tls", value, key=str(number))
    assert producer.flush(PATIENCE_S) == 0
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["over-tls"])
    seen = 0
    deadline = time.monotonic() + PATIENCE_S
    while seen < 200:
        assert time.monotonic() < deadline
        for message in consumer.consume(500, 1.0):
            assert message.error() is None and message.value() == value
            seen += 1
    consumer.close()
    brokers = AdminClient(config).list_topics(timeout=PATIENCE_S).brokers
    assert {one.port for one in brokers.values()} == {broker.tls_port}, "clients of a listener get its address"
    plain = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=PATIENCE_S).brokers
    assert {one.port for one in plain.values()} == {broker.kafka_port}


async def _topics(address: str, timeout_ms: int = 60_000) -> list[str]:
    async with Admin(address, timeout_ms=timeout_ms) as admin:
        return [topic.name for topic in await admin.list_topics()]


def test_the_python_client_and_http_speak_tls(broker: Secure, monkeypatch: pytest.MonkeyPatch) -> None:
    me = broker.authority.issue("me")
    assert isinstance(asyncio.run(_topics(broker.address())), list)
    mtls = broker.address(certificate=str(me[0]), key=str(me[1])).replace(str(broker.grpc_port), str(broker.mtls_port))
    assert isinstance(asyncio.run(_topics(mtls)), list)
    with pytest.raises(HeadgateError):  # the port requires a certificate
        asyncio.run(_topics(broker.address().replace(str(broker.grpc_port), str(broker.mtls_port)), 5000))
    files = [path.read_bytes() for path in (broker.authority.ca, me[1], me[0])]
    with grpc.secure_channel(f"localhost:{broker.mtls_port}", grpc.ssl_channel_credentials(*files)) as channel:  # as KEDA asks
        ask = channel.unary_unary("/externalscaler.ExternalScaler/GetMetricSpec", response_deserializer=bytes)
        assert b"brokers" in ask(b"", timeout=PATIENCE_S)
    context = ssl.create_default_context(cafile=str(broker.authority.ca))
    with urllib.request.urlopen(f"https://localhost:{broker.http_port}/healthz", context=context, timeout=30) as answer:
        assert answer.read() == b"alive\n"
    for name, value in broker.env.items():
        monkeypatch.setenv(name, value)
    assert run_health([f"--http-port={broker.http_port}"]) == 0


@pytest.mark.parametrize("fault", ["expired", "future", "stranger", "revoked", "old TLS", "no TLS"])
def test_who_has_no_right_certificate_is_refused(broker: Secure, place: Path, fault: str) -> None:
    authority, port = broker.authority, broker.tls_port
    assert _handshake(port, authority.ca) and _handshake(port, authority.ca, authority.issue("good"))
    if fault == "no TLS":
        with socket.create_connection((HOST, port), 30) as plain:
            plain.sendall(bytes(100))
            assert plain.recv(1000)[:1] in (b"", b"\x15"), "closed, or an alert of TLS"
        return
    if fault == "old TLS":
        hello = bytes.fromhex("0302") + bytes(32) + bytes.fromhex("00 0004 c009002f 0100")
        message = b"\x01" + len(hello).to_bytes(3, "big") + hello
        with socket.create_connection((HOST, port), 30) as plain:
            plain.sendall(bytes.fromhex("160302") + len(message).to_bytes(2, "big") + message)
            assert not plain.recv(1000)
        broker.wait_line("unsupported protocol")
        return
    if fault == "expired":
        certificate = authority.issue(fault, until=-datetime.timedelta(minutes=1))
    elif fault == "future":
        certificate = authority.issue(fault, since=DAY, until=2 * DAY)
    elif fault == "stranger":
        certificate = Authority(place, "other").issue(fault)
    else:
        certificate = authority.issue(fault)
        assert fault != "revoked" or _handshake(port, authority.ca, certificate)
    if fault == "revoked":
        before = len(broker.output())
        authority.revoke(place / "crl.pem", "revoked")
        broker.wait_line("tls_reloaded", before)
    with pytest.raises(OSError):  # ssl.SSLError is one
        _handshake(port, authority.ca, certificate)


def test_a_broker_with_a_certificate_for_another_host_is_refused(broker: Secure, place: Path) -> None:
    """Clients check the host name: a certificate of the right authority for another host lets nobody pose as a broker."""
    pair = broker.authority.issue("elsewhere", hosts=("elsewhere.test",))
    own = broker.pem.read_bytes(), broker.key.read_bytes()
    before = len(broker.output())
    broker.key.write_bytes(pair[1].read_bytes())
    broker.pem.write_bytes(pair[0].read_bytes())
    before = broker.wait_line("tls_reloaded", before)
    try:
        with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
            _handshake(broker.tls_port, broker.authority.ca)
        with pytest.raises(HeadgateError):
            asyncio.run(_topics(broker.address(), 5000))
        errors: list[str] = []
        config = {"security.protocol": "ssl", "ssl.ca.location": str(broker.authority.ca), "log_level": 0}
        producer = Producer(
            {"bootstrap.servers": f"localhost:{broker.tls_port}", "error_cb": lambda one: errors.append(str(one)), **config}
        )

        def refused() -> bool:
            producer.poll(0.05)
            return any("verify" in one.lower() or "ssl" in one.lower() for one in errors)

        until(refused, "the client refuses the certificate", pause_s=0)
    finally:
        broker.key.write_bytes(own[1])
        broker.pem.write_bytes(own[0])
        broker.wait_line("tls_reloaded", before)
    assert _handshake(broker.tls_port, broker.authority.ca)


@settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    cut=st.integers(0, 700),
    flips=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 7)), max_size=4),
    twice=st.booleans(),
    rest=st.binary(max_size=64),
)
def test_no_bytes_break_the_handshake_of_others(
    broker: Secure, cut: int, flips: list[tuple[int, int]], twice: bool, rest: bytes
) -> None:
    """Real first messages of a client, cut off, changed, sent twice and followed by anything; then an honest client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context(cafile=str(broker.authority.ca)).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    data = bytearray(outgoing.read())
    for at, bit in flips:
        data[at % len(data)] ^= 1 << bit
    message = bytes(data[:cut]) + (bytes(data) if twice else b"") + rest
    with socket.create_connection((HOST, broker.tls_port), 30) as plain:
        plain.sendall(message)
        plain.shutdown(socket.SHUT_WR)
        plain.settimeout(30)
        try:
            while plain.recv(4096):
                pass
        except ConnectionResetError:
            pass
    assert _handshake(broker.tls_port, broker.authority.ca)


def test_new_files_are_used_and_wrong_ones_leave_the_old_pair_in_service(broker: Secure) -> None:
    authority, port = broker.authority, broker.tls_port
    first = _handshake(port, authority.ca)
    before = len(broker.output())
    other = authority.issue("other")
    key = broker.key.read_bytes()
    broker.key.write_bytes(other[1].read_bytes())
    before = broker.wait_line("tls_reload_failed", before)
    assert _handshake(port, authority.ca) == first, "a key of another certificate leaves the old pair in service"
    broker.key.write_bytes(key)
    broker.wait_line("tls_reloaded", before)
    before = len(broker.output())
    authority.issue("broker", until=-datetime.timedelta(minutes=1))
    before = broker.wait_line("tls_reload_failed", before)
    assert _handshake(port, authority.ca) == first, "an expired certificate leaves the old pair in service"
    authority.issue("broker")
    broker.wait_line("tls_reloaded", before)
    assert _handshake(port, authority.ca) == authority.serials["broker"] != first
    assert isinstance(asyncio.run(_topics(broker.address())), list), "gRPC uses the new files, too"


def test_two_brokers_know_each_other_by_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with Secure(tmp_path, authority, "one", 1) as one, Secure(tmp_path, authority, "two", 2) as two:
        one.start()
        two.start()
        for broker in (one, two):
            broker.wait_ready()
        config = {
            "bootstrap.servers": f"localhost:{two.tls_port}",
            "security.protocol": "ssl",
            "ssl.ca.location": str(authority.ca),
        }
        brokers = AdminClient(config).list_topics(timeout=PATIENCE_S).brokers
        assert {one.port for one in brokers.values()} == {one.tls_port, two.tls_port}
        producer = Producer(config)
        producer.produce("made-through-the-leader", b"x")
        assert producer.flush(PATIENCE_S) == 0
        assert asyncio.run(_topics(two.address())) == ["made-through-the-leader"]
        until(lambda: asyncio.run(_both(two.address())) == {1, 2}, "the second broker asked the first one over mutual TLS")
        one.check_output()
        two.check_output()


async def _both(address: str) -> set[int]:
    async with Admin(address) as admin:
        return {broker.id for broker in (await admin.status()).brokers if not broker.trouble}


def test_a_broker_with_a_wrong_pair_does_not_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    broker = Secure(tmp_path, authority)
    broker.key.write_bytes(authority.issue("other")[1].read_bytes())
    broker.spawn()
    assert broker.wait_exit() == 1
    assert "key values mismatch" in broker.output() and "Traceback" not in broker.output()
