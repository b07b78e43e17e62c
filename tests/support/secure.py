"""A real broker process with TLS, for tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker_process import HOST, BrokerProcess
from tests.support.pki import Authority
from tests.support.ports import free_port
from tests.support.waiting import until


class Secure(BrokerProcess):
    """A broker with TLS. `tls_port`: its Kafka port with TLS (or SASL_SSL); client certificates are asked for.

    Args:
        name: of its certificate and its log.
        protocol: of the Kafka port with TLS.
        env: further settings, without HEADGATE_.
    """

    def __init__(
        self, place: Path, authority: Authority, name: str = "broker", broker_id: int = 1, protocol: str = "SSL", **env: str
    ) -> None:
        self.pem, self.key = authority.issue(name)
        self.tls_port, self.mtls_port = free_port(), free_port()
        self.authority = authority
        settings = {
            "BROKER_ID": str(broker_id),
            "TLS_CERTIFICATE": str(self.pem),
            "TLS_KEY": str(self.key),
            "TLS_CA": str(authority.ca),
            "TLS_CLIENT_AUTH": "requested",
            "TLS_RELOAD_INTERVAL_MS": "100",
            "GRPC_MTLS_PORT": str(self.mtls_port),
            "KAFKA_LISTENERS": f"{protocol}://{HOST}:{self.tls_port}",
            "LOG_FORMAT": "json",
        }
        env_all = {f"HEADGATE_{key}": value for key, value in {**settings, **env}.items()}
        super().__init__(place / "store", place / f"{name}.log", env=env_all)

    def address(self, **options: str) -> str:
        """The cluster's address for our own clients."""
        query = "&".join(f"{key}={value}" for key, value in {"ca": str(self.authority.ca), **options}.items())
        return f"tls://localhost:{self.grpc_port}?{query}"

    def wait_line(self, event: str, after: int = 0) -> int:
        """Wait for an event in the log. Returns the length of the log."""
        until(lambda: f'"{event}"' in self.output()[after:], lambda: f"{event} in the log\n{self.log_tail()}")
        return len(self.output())
