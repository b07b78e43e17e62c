"""The address of a cluster: where its brokers are, and how a client proves who it is. One text for the Python client, the command
line and its profiles, Spark and Dagster::

    broker-1.example:9095,broker-2.example:9095
    tls://broker-1.example:9095?ca=/etc/headgate/ca.pem
    tls://broker-1.example:9095?ca=/etc/headgate/ca.pem&certificate=/etc/headgate/me.pem&key=/etc/headgate/me.key
    tls://broker-1.example:9095?user=alice&password_file=/run/secrets/password
    tls://broker-1.example:9095?token_file=/run/secrets/token

An address never holds a secret, because it is shown in logs, in Dagster and in Spark's plans: it names files. Without
`password_file` and `token_file`, the environment variables HEADGATE_PASSWORD and HEADGATE_TOKEN are used. Files are read again
whenever a connection is made, so that certificates and tokens can be renewed.
"""

from __future__ import annotations

import base64
import os
import ssl
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from headgate.broker.runtime import secret_files
from headgate.broker.runtime.errors import InvalidError, Reason

TLS = "tls://"
PASSWORD, TOKEN = "HEADGATE_PASSWORD", "HEADGATE_TOKEN"
SECRET_BYTES_MAX = 64 << 10
"""Largest file with a password or a token."""
OPTIONS = ("ca", "certificate", "key", "user", "password_file", "token_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How a client proves who it is, over TLS. Every field but `user` is the path of a file; "" is not used.

    `ca`: authorities that brokers' certificates must come from; "": those of gRPC. `certificate` and `key`: PEM files of the
    client. `user`: with a password. `token_file`: a JSON Web Token.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""
    token_file: str = ""

    def files(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """The contents of authorities, key and certificate. Raises InvalidError if a file cannot be read."""
        if self.certificate:
            secret_files.check(self.key or self.certificate)
        return (
            _content(self.ca) if self.ca else None,
            _content(self.key or self.certificate) if self.certificate else None,
            _content(self.certificate) if self.certificate else None,
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of a call, with the password or the token. Raises InvalidError if a file cannot be read."""
        if self.user:
            pair = f"{self.user}:{_secret(self.password_file, PASSWORD)}".encode()
            return (("authorization", f"Basic {base64.b64encode(pair).decode()}"),)
        if self.token_file or os.environ.get(TOKEN):
            return (("authorization", f"Bearer {_secret(self.token_file, TOKEN)}"),)
        return ()

    def context(self) -> ssl.SSLContext:
        """The same for a socket with HTTP/2. Raises InvalidError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ValueError) as error:
            raise _wrong(f"certificates cannot be used: {str(error).lower()}") from error
        context.set_alpn_protocols(["h2"])
        return context

    def state(self) -> tuple[tuple[int, int], ...]:
        """Changes when a file of the connection does."""
        found = []
        for path in (self.ca, self.certificate, self.key):
            try:
                seen = os.stat(path) if path else None
            except OSError:
                seen = None
            found.append((0, 0) if seen is None else (seen.st_mtime_ns, seen.st_ino))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """`brokers`: ``host:port`` of gRPC ports. `security`: None without TLS."""

    brokers: tuple[str, ...]
    security: Security | None


def parse(text: str) -> ClusterAddress:
    """Read an address. Raises InvalidError, without any secret in its message."""
    if "@" in text.partition("?")[0]:
        raise _wrong("an address holds no user or password: write ?user=NAME&password_file=FILE")
    secure = text.startswith(TLS)
    places, question, query = text.removeprefix(TLS).partition("?")
    if question and not secure:
        raise _wrong("options need TLS: the address begins with tls://")
    brokers = tuple(part.strip().rstrip("/") for part in places.split(",") if part.strip())
    for part in brokers:
        host, colon, port = part.rpartition(":")
        if not (host and colon and "/" not in host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise _wrong(f"cluster is written as HOST:GRPC_PORT, several with commas between. cluster=`{places}`")
    if not brokers:
        raise _wrong("no address of a broker is given")
    return ClusterAddress(brokers, _security(query) if secure else None)


def absolute(text: str) -> str:
    """The same address with absolute paths, for use in any directory. Raises InvalidError as `parse` does."""
    parse(text)
    places, question, query = text.partition("?")
    options = {
        name: os.path.abspath(os.path.expanduser(value)) if value and name != "user" else value
        for name, value in parse_qsl(query, keep_blank_values=True)
    }
    return f"{places}{question}{urlencode(options, safe='/')}"


def _security(query: str) -> Security:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name in ("password", "token"):
            raise _wrong(f"an address holds no secret: write {name}_file=FILE, or set HEADGATE_{name.upper()}")
        if name not in OPTIONS:
            raise _wrong(f"an address has no such option. option=`{name}` options=`{', '.join(OPTIONS)}`")
    found = Security(**options)
    if found.key and not found.certificate:
        raise _wrong("option needs `certificate`. option=`key`")
    if found.password_file and not found.user:
        raise _wrong("option needs `user`. option=`password_file`")
    if found.user and found.token_file:
        raise _wrong("an address has a user or a token, not both")
    return found


def _secret(path: str, variable: str) -> str:
    if not path:
        secret = os.environ.get(variable, "")
        if not secret:
            raise _wrong(f"no secret is given: name a file in the address, or set {variable}")
        return secret
    secret_files.check(path)
    return _content(path)[:SECRET_BYTES_MAX].decode("utf-8", "replace").strip()


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise _wrong(f"file cannot be read: {(error.strerror or str(error)).lower()}. path=`{path}`") from error


def _wrong(text: str) -> InvalidError:
    return InvalidError(Reason.INVALID_REQUEST, text)
