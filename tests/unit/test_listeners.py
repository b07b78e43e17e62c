"""The Kafka listeners of a broker, and the address of a cluster, as texts.

Compared: what a text means, and the error for a wrong one. A mismatch means that a port is opened without the protocol that its
operator wrote, or that a secret gets into an address.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.broker.client.address import Security, parse
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import InvalidError
from headgate.broker.runtime.listeners import asks_for_login, knows_clients, listeners, shifted, unprotected

TLS = {"tls_certificate": "a.pem", "tls_ca": "ca.pem"}


def test_each_listener_has_a_name_a_protocol_and_an_address() -> None:
    settings = Settings.from_values(
        {
            **TLS,
            "kafka_listeners": "SASL_SSL://0.0.0.0:9093, inside:ssl://[::1]:9094",
            "kafka_advertised_listeners": "SASL_SSL://b.example:1",
        }
    )
    rows = [
        (one.name, one.protocol, one.host, one.port, one.advertised_host, one.advertised_port, one.is_tls, one.is_sasl)
        for one in listeners(settings)
    ]
    assert rows == [
        ("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092, "", 0, False, False),
        ("SASL_SSL", "SASL_SSL", "0.0.0.0", 9093, "b.example", 1, True, True),
        ("INSIDE", "SSL", "::1", 9094, "", 0, True, False),
    ]
    assert shifted(settings.kafka_listeners, 10) == "SASL_SSL://0.0.0.0:9103,inside:ssl://[::1]:9104"


@pytest.mark.parametrize(
    ("values", "asks", "knows"),
    [
        ({}, False, False),
        ({"authorization": "acl"}, False, True),
        ({"kafka_protocol": "sasl_plaintext"}, True, True),
        ({**TLS, "kafka_protocol": "sasl_ssl"}, True, True),
        ({**TLS, "kafka_listeners": "SASL_SSL://:9093", "authorization": "acl"}, True, True),
        ({**TLS, "kafka_protocol": "ssl"}, False, False),
        ({**TLS, "tls_client_auth": "requested"}, False, False),
        ({**TLS, "tls_client_auth": "required"}, True, True),
        ({"tls_client_auth": "required"}, False, False),
    ],
)
def test_a_login_of_one_door_is_asked_for_at_all(values: dict[str, str | int], asks: bool, knows: bool) -> None:
    settings = Settings.from_values(values)
    assert (asks_for_login(settings), knows_clients(settings)) == (asks, knows)


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"kafka_listeners": "SSL://:9093"}, "needs `tls_certificate`"),
        ({"kafka_listeners": "SSL:9093"}, "PROTOCOL://host:port"),
        ({"kafka_listeners": "HTTP://a:9093"}, "its protocol is one of"),
        ({"kafka_listeners": "PLAINTEXT://a:1"}, "two listeners have one name"),
        ({"kafka_listeners": "SSL://a:70000", **TLS}, "PROTOCOL://host:port"),
        ({"kafka_advertised_listeners": "SSL://a:1"}, "no listener of this name"),
        ({"kafka_protocol": "ssl"}, "needs `tls_certificate`"),
        ({"tls_certificate": "a.pem"}, "tls_ca"),
        ({"tls_crl": "a.pem"}, "needs `tls_certificate`"),
        ({**TLS, "grpc_mtls_port": 9095}, "four ports must differ"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(values: dict[str, str | int], part: str) -> None:
    with pytest.raises(InvalidError) as raised:
        Settings.from_values(values)
    assert part in raised.value.message


def test_only_ports_that_others_reach_without_protection_are_warned_of() -> None:
    assert not unprotected(Settings())
    assert not unprotected(Settings(host="localhost"))
    open_ports = unprotected(Settings(host="0.0.0.0"))
    assert len(open_ports) == 2 and "kafka_protocol" in open_ports[0] and "tls_certificate" in open_ports[1]
    outside: dict[str, str | int | bool] = {**TLS, "host": "10.0.0.1", "authorization": "acl"}
    (warning,) = unprotected(Settings.from_values({**outside, "kafka_protocol": "ssl"}))
    assert "tls_client_auth=required" in warning
    assert not unprotected(Settings.from_values({**outside, "kafka_protocol": "ssl", "tls_client_auth": "required"}))
    assert not unprotected(Settings.from_values({**outside, "kafka_protocol": "sasl_ssl"}))
    (warning,) = unprotected(Settings.from_values({**outside, "kafka_protocol": "sasl_ssl", "authorization": "none"}))
    assert "authorization=acl" in warning and "who logs in" in warning
    (warning,) = unprotected(Settings.from_values({"kafka_protocol": "sasl_plaintext"}))
    assert "clients of gRPC" in warning and "tls_certificate" in warning


def test_an_address_names_brokers_and_files() -> None:
    assert parse("a:1, [::1]:2").brokers == ("a:1", "[::1]:2") and parse("a:1").security is None
    found = parse("tls://a:1,b:2?ca=/c&user=alice&password_file=/p")
    assert found.brokers == ("a:1", "b:2")
    assert found.security == Security(ca="/c", user="alice", password_file="/p")


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "a:0", "a:1?ca=x", "http://a:1", "tls://a:1?password=hunter2", "tls://a:1?token=hunter2", "tls://alice:hunter2@a:1",
        "tls://a:1?colour=hunter2", "tls://a:1?key=x", "tls://a:1?password_file=x", "tls://a:1?user=u&token_file=x",
    ],
)  # fmt: skip
def test_a_wrong_address_is_refused_without_repeating_a_secret(text: str) -> None:
    with pytest.raises(InvalidError) as raised:
        parse(text)
    assert "hunter2" not in raised.value.message


def test_a_password_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    file.write_text("hunter2\n")
    expected = (("authorization", "Basic YWxpY2U6aHVudGVyMg=="),)
    assert Security(user="alice", password_file=str(file)).metadata() == expected
    with pytest.raises(InvalidError):
        Security(user="alice").metadata()
    monkeypatch.setenv("HEADGATE_PASSWORD", "hunter2")
    assert Security(user="alice").metadata() == expected
    assert Security().metadata() == ()
    monkeypatch.setenv("HEADGATE_TOKEN", "t")
    assert Security().metadata() == (("authorization", "Bearer t"),)
