"""Certificates and security of a broker whose settings ask for them. `process.py` imports this module only then."""

from __future__ import annotations

from headgate.broker.runtime.clock import SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.listeners import knows_clients
from headgate.broker.server.access.security import Security
from headgate.broker.server.audit.audit import Audit
from headgate.broker.server.net.tls import Certificates


def protect(settings: Settings, clock: SteadyClock, audit: Audit) -> tuple[Certificates | None, Security | None]:
    """The certificates of a broker with TLS, and what knows its clients if it asks who they are.

    Raises FatalError(INVALID_CONFIG).
    """
    certificates = Certificates(settings, lambda: clock.now_ms() / 1000) if settings.tls_certificate else None
    if not knows_clients(settings):
        return certificates, None
    return certificates, Security(settings, clock.monotonic, clock.now_ms, certificates, audit)
