"""The broker's certificates: read from files, checked, and exchanged while the broker runs.

A *bundle* is one consistent reading of the files, with everything that is made of it. A look at the files every
`tls_reload_interval_ms` notices changes. A new bundle is made completely before it replaces the old one: a certificate without
its key, a file that cannot be read or a certificate outside its validity leaves the old bundle in service, and the log has the
reason. Connections that exist keep the certificate with which they were made.

Each bundle has contexts of its own. Reason: `load_cert_chain` of a certificate and the key of another one leaves a context that
can do no handshake, and a context that is exchanged in `sni_callback` does not ask for client certificates.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc
from cryptography import x509

from headgate.broker.control.stream import connect
from headgate.broker.runtime import secret_files
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason
from headgate.broker.runtime.logging import get_logger

logger = get_logger(__name__)

FILE_BYTES_MAX = 4 << 20
"""Largest file of certificates or revocation lists."""
CLIENTS_REMEMBERED_MAX = 1000
"""Clients' certificates whose serial numbers are remembered. Above it all are forgotten, and read again."""
VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}

Signature = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One reading of the files. `contexts`: by `tls_client_auth`. `revoked`: (issuer, serial number) of revoked certificates."""

    chain: bytes
    key: bytes
    ca: bytes
    contexts: dict[str, ssl.SSLContext]
    certificate: x509.Certificate
    revoked: frozenset[tuple[bytes, int]]


class Certificates:
    """The bundle in service. `watch` exchanges it.

    Args:
        now_s: the wall clock, in seconds.
    """

    def __init__(self, settings: Settings, now_s: Callable[[], float]) -> None:
        self._files = [settings.tls_certificate, settings.tls_key or settings.tls_certificate, settings.tls_ca, settings.tls_crl]
        self._interval_s = settings.tls_reload_interval_ms / 1000
        self._now_s = now_s
        self._seen = self._signature()
        try:
            self.current = self._read()
        except InvalidError as error:
            raise FatalError(Reason.INVALID_CONFIG, error.message) from error
        if (doubt := self._out_of_date(self.current)) is not None:
            logger.warning("tls_certificate_doubtful", reason=doubt)
        self._task: asyncio.Task[None] | None = None
        self._clients: dict[bytes, tuple[bytes, int]] = {}
        """(issuer, serial number) of clients' certificates."""

    # -- use

    def context(self, client_auth: str) -> ssl.SSLContext:
        """The context for new connections of a listener."""
        return self.current.contexts[client_auth]

    def server_credentials(self, *, client_auth: bool) -> grpc.ServerCredentials:
        """Credentials of a gRPC port. Each new connection uses the newest files."""
        used = [self.current]

        def configuration() -> grpc.ServerCertificateConfiguration:
            pair = (used[0].key, used[0].chain)
            return grpc.ssl_server_certificate_configuration([pair], used[0].ca if client_auth else None)

        def newest() -> grpc.ServerCertificateConfiguration | None:
            if used[0] is self.current:
                return None
            used[0] = self.current
            return configuration()

        return grpc.dynamic_ssl_server_credentials(configuration(), newest, client_auth)  # type: ignore[arg-type]  # None: unchanged

    def check_client(self, data: bytes) -> None:
        """Raise InvalidError(NOT_AUTHENTICATED) if a client's certificate, PEM or DER, is revoked. gRPC's own TLS asks no lists."""
        revoked = self.current.revoked
        if not revoked:
            return
        if data not in self._clients:
            if len(self._clients) >= CLIENTS_REMEMBERED_MAX:
                self._clients.clear()
            read = x509.load_pem_x509_certificate if data.startswith(b"-----") else x509.load_der_x509_certificate
            certificate = read(data)
            self._clients[data] = certificate.issuer.public_bytes(), certificate.serial_number
        if self._clients[data] in revoked:
            raise InvalidError(Reason.NOT_AUTHENTICATED, "the certificate is revoked")

    def connect(self, address: str) -> grpc.aio.Channel:
        """A channel to another broker, which proves by certificate that it is one, as this broker does."""
        bundle = self.current
        return connect(address, grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.chain))

    # -- exchange

    def watch(self) -> None:
        """Begin to look for changes."""
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="tls files")

    async def close(self) -> None:
        """End the looks."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Exchange the bundle if the files have changed and fit together. Blocks on files."""
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            bundle = self._read()
            if self._signature() != signature:
                self._seen = ()  # a file changed meanwhile: the next look reads them again
                return
            if (doubt := self._out_of_date(bundle)) is not None:
                raise _wrong(doubt)
        except InvalidError as error:
            logger.warning("tls_reload_failed", reason=error.message)
            return
        self.current = bundle
        logger.info("tls_reloaded", certificate=self._files[0], valid_until=bundle.certificate.not_valid_after_utc.isoformat())

    def _signature(self) -> Signature:
        """Changes when a file does."""
        rows = []
        for path in self._files:
            try:
                found = os.stat(path) if path else None
            except OSError:
                found = None
            rows.append((0, 0, 0) if found is None else (found.st_mtime_ns, found.st_size, found.st_ino))
        return tuple(rows)

    def _read(self) -> Bundle:
        """Raises InvalidError."""
        secret_files.check(self._files[1])
        chain, key, ca, lists = (_content(path) if path else b"" for path in self._files)
        try:
            certificate = x509.load_pem_x509_certificate(chain)
            revoked = frozenset(
                (crl.issuer.public_bytes(), entry.serial_number) for crl in _revocation_lists(lists) for entry in crl
            )
        except ValueError as error:
            raise _wrong(
                f"a file is not PEM: {str(error).splitlines()[0].lower()}. paths=`{', '.join(filter(None, self._files))}`"
            ) from error
        contexts = {name: self._context(mode) for name, mode in VERIFY.items()}
        return Bundle(chain=chain, key=key, ca=ca, contexts=contexts, certificate=certificate, revoked=revoked)

    def _context(self, mode: ssl.VerifyMode) -> ssl.SSLContext:
        certificate, key, ca, crl = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # A key with a passphrase would otherwise be asked for at the terminal.
            context.load_cert_chain(certificate, key, password=_no_passphrase)
            context.load_verify_locations(ca)
            if crl:
                context.load_verify_locations(crl)
                context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        except (OSError, ValueError) as error:
            text = str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error).lower().replace("_", " ")
            raise _wrong(
                f"certificate, key and authorities do not fit together: {text}. certificate=`{certificate}` key=`{key}`"
            ) from error
        context.verify_mode = mode
        return context

    def _out_of_date(self, bundle: Bundle) -> str | None:
        certificate, now_s = bundle.certificate, self._now_s()
        if now_s < certificate.not_valid_before_utc.timestamp():
            return f"the certificate is not valid yet. from=`{certificate.not_valid_before_utc.isoformat()}`"
        if now_s > certificate.not_valid_after_utc.timestamp():
            return f"the certificate has expired. at=`{certificate.not_valid_after_utc.isoformat()}`"
        return None


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase")


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _wrong(f"a file cannot be read: {(error.strerror or str(error)).lower()}. path=`{path}`") from error
    if len(data) > FILE_BYTES_MAX:
        raise _wrong(f"a file is too large. path=`{path}` size_bytes_max=`{FILE_BYTES_MAX}`")
    return data


def _revocation_lists(data: bytes) -> list[x509.CertificateRevocationList]:
    end = b"-----END X509 CRL-----"
    return [x509.load_pem_x509_crl(part + end) for part in data.split(end)[:-1]]


def _wrong(text: str) -> InvalidError:
    return InvalidError(Reason.INVALID_CONFIG, text)
