"""The Kafka listeners of a broker: names, protocols and addresses, from its settings.

As in Kafka, each client is told the addresses of the other brokers' listeners of the same name.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Protocol

from headgate.broker.runtime.errors import InvalidError
from headgate.broker.runtime.setting_kinds import invalid

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LISTENERS_MAX = 16
"""Most Kafka listeners of one broker; each has a socket and a row in the manifest."""
WILDCARDS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Addresses of every interface, and where this machine reaches who listens there."""


class Settings(Protocol):
    """The settings of a broker that listeners follow from."""

    @property
    def host(self) -> str: ...
    @property
    def kafka_port(self) -> int: ...
    @property
    def advertised_host(self) -> str: ...
    @property
    def advertised_kafka_port(self) -> int: ...
    @property
    def kafka_protocol(self) -> str: ...
    @property
    def kafka_listeners(self) -> str: ...
    @property
    def kafka_advertised_listeners(self) -> str: ...
    @property
    def tls_certificate(self) -> str: ...
    @property
    def tls_client_auth(self) -> str: ...
    @property
    def authorization(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One Kafka port. `advertised_host` is "" and `advertised_port` 0 if the settings name none."""

    name: str
    protocol: str
    host: str
    port: int
    advertised_host: str = ""
    advertised_port: int = 0

    @property
    def is_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL")


def listeners(settings: Settings) -> list[Listener]:
    """All listeners, the one of `kafka_port` first. Raises InvalidError(INVALID_CONFIG)."""
    advertised = dict(_address("kafka_advertised_listeners", part)[1:] for part in _split(settings.kafka_advertised_listeners))
    protocol = settings.kafka_protocol.upper()
    found = [
        Listener(
            name=protocol,
            protocol=protocol,
            host=settings.host,
            port=settings.kafka_port,
            advertised_host=settings.advertised_host,
            advertised_port=settings.advertised_kafka_port,
        )
    ]
    for part in _split(settings.kafka_listeners):
        protocol, name, (host, port) = _address("kafka_listeners", part)
        if protocol not in PROTOCOLS:
            raise _wrong("kafka_listeners", part, f"its protocol is one of {', '.join(PROTOCOLS)}")
        shown_host, shown_port = advertised.pop(name, ("", 0))
        found.append(
            Listener(
                name=name,
                protocol=protocol,
                host=host or "0.0.0.0",
                port=port,
                advertised_host=shown_host,
                advertised_port=shown_port,
            )
        )
    if advertised:
        raise invalid(
            f"`kafka_listeners` has no listener of this name. setting=`kafka_advertised_listeners` name=`{min(advertised)}`"
        )
    names = [listener.name for listener in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise invalid(f"two listeners have one name: write NAME:PROTOCOL://host:port. setting=`kafka_listeners` name=`{twice[0]}`")
    if len(found) > LISTENERS_MAX:
        raise invalid(f"too many listeners. setting=`kafka_listeners` count=`{len(found)}` max=`{LISTENERS_MAX}`")
    return found


def on_free_ports(text: str) -> str:
    """`kafka_listeners`, or the addresses that they announce, of another process on the same machine, which takes free ports."""
    return ",".join(f"{part.rpartition(':')[0]}:0" for part in _split(text))


def asks_for_login(settings: Settings) -> bool:
    """Whether gRPC and HTTP serve only clients that prove who they are, whatever `authorization` is.

    The login of one Kafka listener would protect nothing if another port did the same work without it. So one listener with SASL,
    or `tls_client_auth=required`, is enough. A Kafka listener follows its own protocol: an operator may keep one in plaintext for
    this machine.
    """
    by_certificate = bool(settings.tls_certificate) and settings.tls_client_auth == "required"
    return by_certificate or any(listener.is_sasl for listener in listeners(settings))


def knows_clients(settings: Settings) -> bool:
    """Whether a broker asks who its clients are: for a login, or because rules decide what `User:ANONYMOUS` may do."""
    return settings.authorization != "none" or asks_for_login(settings)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _address(setting: str, text: str) -> tuple[str, str, tuple[str, int]]:
    """(protocol, name, (host, port)) of ``NAME:PROTOCOL://host:port`` or ``NAME://host:port``."""
    before, separator, address = text.partition("://")
    name, _, protocol = before.upper().rpartition(":")
    host, _, port = address.rpartition(":")
    if not separator or not protocol or not port.isdecimal() or int(port) > 65535:
        raise _wrong(setting, text, "for example SASL_SSL://0.0.0.0:9093")
    return protocol, name or protocol, (host.removeprefix("[").removesuffix("]"), int(port))


def _wrong(setting: str, text: str, expected: str) -> InvalidError:
    return invalid(f"a listener is written PROTOCOL://host:port, {expected}. setting=`{setting}` value=`{text}`")


def shifted(text: str, by: int) -> str:
    """`kafka_listeners` of another broker on the same machine: every port that is not 0 is higher by that number."""
    moved = []
    for part in _split(text):
        before, _, port = part.rpartition(":")
        moved.append(f"{before}:{int(port) + by}" if port.isdecimal() and int(port) else part)
    return ",".join(moved)


def unprotected(settings: Settings) -> list[str]:
    """For each port that other machines reach without TLS or without authentication, one sentence with the remedy."""
    found = [
        f"the Kafka listener {listener.name} at {listener.host}:{listener.port} serves every client: "
        "set kafka_protocol, or its protocol in kafka_listeners, to sasl_ssl, or to ssl with tls_client_auth=required"
        for listener in listeners(settings)
        if not _is_loopback(listener.host)
        and not (listener.is_tls and (listener.is_sasl or settings.tls_client_auth == "required"))
    ]
    asks, is_open = asks_for_login(settings), not _is_loopback(settings.host)
    if asks and not settings.tls_certificate:
        found.append(
            "clients of gRPC (headgate, Spark, Dagster) log in over TLS only: they are refused until tls_certificate, tls_key and "
            "tls_ca are set"
        )
    elif is_open and not settings.tls_certificate:
        found.append(
            f"gRPC and HTTP at {settings.host} serve every client: set tls_certificate, tls_key, tls_ca and authorization=acl"
        )
    elif is_open and settings.authorization == "none":
        who = "user who logs in to" if asks else "client of"
        found.append(f"every {who} gRPC and HTTP at {settings.host} may do everything: set authorization=acl")
    return found


def reachable(host: str) -> str:
    """The host at which other machines reach a listener: this machine's name, if it listens on every interface."""
    return socket.gethostname() if host in WILDCARDS else host


def is_local(settings: Settings) -> bool:
    """True if the broker listens on loopback only: all its clients are on this machine, and reach every port of it."""
    return _is_loopback(settings.host) and all(_is_loopback(one.host) for one in listeners(settings))


def _is_loopback(host: str) -> bool:
    if host in ("localhost", ""):
        return host == "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
