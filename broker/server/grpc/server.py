"""The gRPC server: its limits, its start and its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
from google.protobuf.descriptor import FileDescriptor

from headgate.broker.control.stream import Connect, connect
from headgate.broker.node import Node
from headgate.broker.runtime import descriptors
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import FatalError, Reason
from headgate.broker.runtime.listeners import reachable
from headgate.broker.runtime.metrics import Metrics
from headgate.broker.runtime.tasks import end_tasks, outlast
from headgate.broker.server.grpc.access_service import AccessService
from headgate.broker.server.grpc.admin_service import Addresses, AdminService
from headgate.broker.server.grpc.callers import Callers
from headgate.broker.server.grpc.capacity_service import CapacityService, ExternalScalerService
from headgate.broker.server.grpc.control_service import ControlService
from headgate.broker.server.grpc.forward import Forwarder
from headgate.broker.server.grpc.gates_service import GatesService
from headgate.broker.server.grpc.groups_service import GroupsService
from headgate.broker.server.grpc.handlers import CallCounts, Unknown, service_handler
from headgate.broker.server.grpc.inner import InnerCalls
from headgate.broker.server.grpc.kafka_service import KafkaService
from headgate.broker.server.grpc.lags import Lags
from headgate.broker.server.grpc.log_service import LogService
from headgate.broker.server.grpc.server_state import ServerState
from headgate.broker.server.view.cluster_view import Views
from headgate.broker.wire.grpc.headgate.v1 import (
    access_pb2,
    admin_pb2,
    capacity_pb2,
    control_pb2,
    externalscaler_pb2,
    gates_pb2,
    groups_pb2,
    kafka_pb2,
    log_pb2,
)

if TYPE_CHECKING:
    from headgate.broker.server.access.security import Security
    from headgate.broker.server.audit.audit import Audit
    from headgate.broker.server.net.tls import Certificates

STREAMS_PER_CONNECTION_MAX = 1000
KEEPALIVE_MS = 30_000
"""Silence after which the server pings a connection: half-open connections must not keep streams for ever."""
KEEPALIVE_TIMEOUT_MS = 20_000
METADATA_BYTES_MAX = 16 << 10


class GrpcServer:
    """Serves `headgate.v1` over a node with an open engine.

    Args:
        kafka: (host, port) announced to Kafka clients; default: from the settings.
        http_port: the HTTP port; default: from the settings.
        certificates: for TLS; None: without TLS.
        security: knows who clients are; None: every client may do everything.
        audit: notes administrative acts; None: nothing is noted.
        connect: makes a channel to another broker.
    """

    def __init__(
        self,
        node: Node,
        settings: Settings,
        *,
        kafka: tuple[str, int] | None = None,
        http_port: int | None = None,
        certificates: Certificates | None = None,
        security: Security | None = None,
        audit: Audit | None = None,
        connect: Connect = connect,
    ) -> None:
        self._settings = settings
        self._certificates = certificates
        self._server_state = ServerState(node.engine, settings, connect)
        host, kafka_port = kafka or (_advertised_host(settings), settings.advertised_kafka_port or settings.kafka_port)
        self._addresses = Addresses(
            host=host,
            kafka_port=kafka_port,
            grpc_port=settings.grpc_port,
            http_port=settings.http_port if http_port is None else http_port,
            grpc_mtls_port=0 if certificates is None else settings.grpc_mtls_port,
        )
        self._admin = AdminService(self._server_state, self._addresses)
        self._groups = GroupsService(self._server_state, node.groups)
        self._lags = Lags(self._server_state, node.groups)
        self.views = Views(node.participant, self._server_state.peers, self._groups, settings)
        """What the HTTP port's page shows."""
        self._forwarder = Forwarder(connect)
        self._counts = CallCounts()
        self._callers = Callers(security, audit, certificates, settings, node.engine.turns)
        capacity = node.participant.capacity, self._forwarder
        self._services: dict[str, tuple[FileDescriptor, object]] = {
            "Admin": (admin_pb2.DESCRIPTOR, self._admin),
            "Log": (log_pb2.DESCRIPTOR, LogService(self._server_state)),
            "Groups": (groups_pb2.DESCRIPTOR, self._groups),
            "Kafka": (kafka_pb2.DESCRIPTOR, KafkaService(self._server_state, node, (host, kafka_port))),
            "Capacity": (capacity_pb2.DESCRIPTOR, CapacityService(*capacity)),
            "ExternalScaler": (externalscaler_pb2.DESCRIPTOR, ExternalScalerService(*capacity)),
            "Control": (control_pb2.DESCRIPTOR, ControlService(node.participant, self.views.leader_views, node.transaction_calls)),
            "Access": (access_pb2.DESCRIPTOR, AccessService(node.engine)),
            "Gates": (gates_pb2.DESCRIPTOR, GatesService(node.participant, self._forwarder)),
        }
        services = {name: service for name, (_, service) in self._services.items()}
        self.inner = InnerCalls(self._callers, services, self._server_state)
        """For the HTTP port: calls in the name of a person at the page."""
        self._watch: asyncio.Task[None] | None = None
        self._server: grpc.aio.Server | None = None

    def register(self, metrics: Metrics) -> None:
        """Register the server's metrics ``headgate_grpc_*``, and the groups' lag, which only this server can find out."""
        counts = self._counts
        metrics.gauge("headgate_grpc_open_calls", "calls and streams in progress", lambda: counts.open)
        metrics.counter("headgate_grpc_calls", "calls and streams that ended", lambda: counts.ended, ("method", "status"))
        metrics.gauge(
            "headgate_grpc_inflight_bytes",
            "bytes of messages that are received and not acked, or being sent",
            lambda: self._server_state.budget.used_bytes,
        )
        self._lags.register(metrics)

    async def start(self) -> int:
        """Listen and serve. Returns the port. Raises FatalError(INVALID_CONFIG) if the port is taken."""
        settings = self._settings
        server = grpc.aio.server(
            handlers=[
                *(
                    service_handler(file.services_by_name[name], service, self._counts, self._callers)
                    for name, (file, service) in self._services.items()
                ),
                Unknown(),
            ],
            options=[
                # Two brokers that share a port by accident would answer each other's calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.frame_bytes_max),
                # `fetch_bytes_max` bounds sent messages, except for one larger batch.
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", METADATA_BYTES_MAX),
                ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
                ("grpc.max_allowed_incoming_connections", descriptors.share(descriptors.GRPC_MAX)),
                ("grpc.server_handshake_timeout_ms", settings.frame_timeout_ms),
                ("grpc.max_connection_idle_ms", settings.connection_idle_ms),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                # Clients may ping the server as often as the server pings them.
                ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
            ],
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            port = self._listen(server, host)
        except RuntimeError as error:
            raise FatalError(
                Reason.INVALID_CONFIG,
                "port is taken, or host is not an address of this machine: choose others with --grpc-port and --host. "
                f"address=`{host}:{settings.grpc_port}`",
            ) from error
        self._server = server
        # gRPC's own task fails if its start is cancelled, and nobody awaits that task.
        await outlast(asyncio.create_task(server.start(), name="gRPC starts"))
        self._watch = asyncio.create_task(self._callers.watch(), name="gRPC calls")
        self._admin.addresses = replace(self._addresses, grpc_port=settings.advertised_grpc_port or port)
        return port

    def _listen(self, server: grpc.aio.Server, host: str) -> int:
        """Bind the ports. Returns the one for all clients."""
        settings, certificates = self._settings, self._certificates
        if certificates is None:
            return server.add_insecure_port(f"{host}:{settings.grpc_port}")
        # gRPC cannot ask for a certificate that may be missing: the second port requires one.
        server.add_secure_port(f"{host}:{settings.grpc_mtls_port}", certificates.server_credentials(client_auth=True))
        required = settings.tls_client_auth == "required"
        return server.add_secure_port(f"{host}:{settings.grpc_port}", certificates.server_credentials(client_auth=required))

    async def close(self, grace_s: float) -> None:
        """Accept no new calls. Streams ack their batches and end; calls left after `grace_s` are cut off. Call it before the
        engine's end."""
        if self._server is not None:
            self._server_state.stop()
            await self.views.close()
            await self._server.stop(grace_s)
            if self._watch is not None:
                await end_tasks((self._watch,))
            await self._forwarder.close()
            await self._server_state.peers.close()


def _advertised_host(settings: Settings) -> str:
    return reachable(settings.advertised_host or settings.host)
