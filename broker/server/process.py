"""The life of one broker inside its event loop: parts are started in order, watched, and ended in the opposite order.

`Process.phase` goes through::

    starting -> serving -> stopping -> ended          (or from starting to stopping)

`starting`: the Kafka port answers ApiVersions, and every other request waits for the engine. `serving`: all ports are open.
`stopping`: no new connections; the log is flushed and sealed, and requests that waited for that are answered. The first call of
`stop` gives the reason of the end: none for a signal, or the error of a part that cannot continue.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from headgate.broker.runtime.clock import Clock, SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.ending import Ending
from headgate.broker.runtime.errors import HeadgateError, Reason
from headgate.broker.runtime.listeners import knows_clients, listeners, reachable, unprotected
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.out_of_memory import OutOfMemory
from headgate.broker.runtime.tasks import finished, known, load
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.audit.audit import Audit
from headgate.broker.server.audit.file import AuditFile, to_log
from headgate.broker.server.kafka.common import AdvertisedListener
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.net import ports

if TYPE_CHECKING:
    import grpc

    from headgate.broker.cluster.capacity import Desired
    from headgate.broker.node import Address, Node
    from headgate.broker.runtime.metrics import Metrics
    from headgate.broker.server.access.security import Security
    from headgate.broker.server.backend import Backend
    from headgate.broker.server.grpc.server import GrpcServer
    from headgate.broker.server.http.app import HttpBackend, HttpPort
    from headgate.broker.server.lanes import LaneKeeper, LaneUpkeep
    from headgate.broker.server.net.tls import Certificates

logger = get_logger(__name__)

GREETING_TURNS = 20
"""Turns of the loop for clients that connected while the modules were imported: enough to accept, read and answer ApiVersions."""
HTTP_WAIT_S = 2.0
"""Time from the import of the node's modules during which the node starts alone. After it the health port is opened beside the
node, because a long recovery must be visible. The time of the imports does not count: on a starved machine they alone take
seconds, and importing the health port's modules beside them would make that half as long again."""


class Process:
    """One broker, and the `Network` of its node. Made inside the event loop.

    Args:
        kafka: the listening sockets of the Kafka listeners, in the order of `runtime.listeners.listeners`.
        http: the listening socket of the HTTP port.
        ends_idle: a lane ends when it has nothing to do.
        out_of_memory: ends the process when a part has no memory left.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        kafka: Sequence[socket.socket],
        http: socket.socket,
        out_of_memory: OutOfMemory,
        ends_idle: bool = False,
    ) -> None:
        self.settings = settings
        self._out_of_memory = out_of_memory
        self._ends_idle = ends_idle
        self.clock = SteadyClock(Clock(), settings.clock_difference_max_ms)
        self.phase: Literal["starting", "serving", "stopping", "ended"] = "starting"
        self.stuck = False
        """True after `run` if a part did not end in time: the process must then exit without waiting for the part's threads."""
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[HeadgateError | None] = self._loop.create_future()
        self._kafka_sockets, self._http_socket = kafka, http
        self._kafka_address, self._http_address = ports.address(kafka[0]), ports.address(http)
        self._grpc_port = settings.grpc_port or ports.free(settings.host)
        self._audit_file: AuditFile | None = None if not settings.audit_file else AuditFile(settings.audit_file)
        self._audit = Audit(settings.broker_id, self.clock.now_ms, self._audit_file or to_log)
        self._certificates, self._security = _protection(settings, self.clock, self._audit)
        self._mtls_port = 0 if self._certificates is None else settings.grpc_mtls_port or ports.free(settings.host)
        self._kafka = KafkaServer(settings, self.clock, self._advertised(), self._certificates, self._security, self._audit)
        self._further = self._entrances()
        """The Kafka listeners besides the first one, with their sockets."""
        self._backend: Backend | None = None
        self._grpc: GrpcServer | None = None
        self._http: HttpPort | None = None
        self._lanes: LaneKeeper | None = None
        self._upkeep: LaneUpkeep | None = None

    @property
    def metrics(self) -> Metrics:
        """This broker's metrics. Only once it has started."""
        assert self._backend is not None
        return self._backend.observer.metrics

    @property
    def stopping(self) -> bool:
        """Whether the end has begun."""
        return self._end.done()

    def stop(self, error: HeadgateError | None = None) -> None:
        """End this broker. `error` is the reason, or None for a requested end. Only the first call counts."""
        if error is not None and error.reason is Reason.OUT_OF_MEMORY:
            self._out_of_memory.end()
        if not self._end.done():
            self._end.set_result(error)

    async def run(self, on_ready: Callable[[str], None]) -> HeadgateError | None:
        """Start, serve until `stop`, end. Returns the error that ended the broker, or None.

        Args:
            on_ready: called once, with the ready line, which lists the broker's addresses.
        """
        threading.excepthook = self._thread_failed
        starting = self._loop.create_task(self._start(on_ready), name="start")
        await asyncio.wait((starting, self._end), return_when=asyncio.FIRST_COMPLETED)
        grace_s = self.settings.shutdown_timeout_ms / 1000
        ending = None
        if not starting.done():
            # `stop` was called while the broker was starting.
            starting.cancel()
            ending = Ending(None, grace_s)
            await ending.close("start", finished(starting))
        failure = None if not starting.done() or starting.cancelled() else starting.exception()
        error = None if failure is None else known(failure, "start")
        if error is None:
            error = await self._end
        self.phase = "stopping"
        self.stop()
        logger.info("broker_stopping", reason="asked" if error is None else error.reason.value)
        ending = ending or Ending(None, grace_s)
        ending.error = error or ending.error
        error = await self._close(ending)
        if self._backend is not None:
            self._backend.observer.close()
        self.phase = "ended"
        return error

    def not_ready(self) -> str | None:
        """The reason why the broker does not serve clients at the moment, or None: the answer of /readyz."""
        if self.phase != "serving" or self._node is None:
            return self.phase
        trouble = self._node.engine.failed or self._node.engine.stalled
        return None if trouble is None else trouble.message

    def desired(self) -> Desired | None:
        """The desired number of brokers, as far as this broker knows it."""
        return None if self._node is None else self._node.participant.desired()

    def leads(self) -> bool:
        """True if this broker leads the cluster."""
        return self._node is not None and self._node.participant.leader is not None

    def line(self) -> str:
        """The broker's addresses and its store, on one line."""
        kafka, http = ports.shown(*self._kafka_address), ports.shown(*self._http_address)
        grpc = ports.shown(self._kafka_address[0], self._grpc_port)
        store = self.settings.store if self._node is None else self._node.engine.store.url
        cluster_id = "" if self._node is None else self._node.engine.cluster_id
        cluster = f" cluster={cluster_id}" if cluster_id else ""  # last, because it may contain spaces
        who = f"headgate {self.settings.role} {self.settings.broker_id}"
        return f"{who} serves kafka={kafka} grpc={grpc} http={http} store={store}{cluster}"

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """End the broker because a thread died of an unexpected error: the thread's work is no longer done."""
        if isinstance(failure.exc_value, MemoryError):
            self._out_of_memory.end()
        name = "process" if failure.thread is None else failure.thread.name
        error = known(failure.exc_value or failure.exc_type(), f"thread {name}")
        self._loop.call_soon_threadsafe(self.stop, error)

    @property
    def _node(self) -> Node | None:
        return None if self._backend is None else self._backend.node

    # -- the node's network

    @property
    def advertised(self) -> Address:
        from headgate.broker.node import Address

        host, kafka_port = self._advertised()
        return Address(
            host=host,
            kafka_port=kafka_port,
            grpc_port=self.settings.advertised_grpc_port or self._grpc_port,
            http_port=self._http_address[1],
            grpc_mtls_port=self._mtls_port,
            listeners={listener.name: f"{listener.host}:{listener.port}" for listener, _ in self._further},
        )

    def connections(self) -> int:
        return len(self._kafka.connections)

    def connect(self, address: str) -> grpc.aio.Channel:
        if self._certificates is not None:
            return self._certificates.connect(address)
        assert self._backend is not None, "the node connects, and the backend made it"
        return self._backend.connect(address)

    async def open(self, node: Node) -> None:
        """Answer the clients that wait, then listen for other brokers and native clients."""
        assert self._backend is not None
        observer = self._backend.observer
        observer.opened(node)
        if self._security is not None:
            await self._security.use(node.engine, os.environ)
        self._kafka.serve(node.engine, node.groups, node.transaction_calls)
        server = await load(_grpc_server)
        self._grpc = server(
            node,
            dataclasses.replace(self.settings, grpc_port=self._grpc_port, grpc_mtls_port=self._mtls_port),
            certificates=self._certificates,
            security=self._security,
            audit=self._audit,
            kafka=self._advertised(),
            http_port=self._http_address[1],
            connect=self.connect,
        )
        self._grpc.register(observer.metrics)
        self._grpc_port = await self._grpc.start()
        await self._open_lanes(node)

    async def _open_lanes(self, node: Node) -> None:
        """Do a lane's upkeep, or be able to start lanes."""
        engine = node.engine
        keeper, upkeep = await load(_lanes)
        if engine.lane is not None:
            self._upkeep = upkeep(engine, engine.lane, self.connect, self.stop if self._ends_idle else None)
        else:
            self._lanes = keeper(self.settings, engine, self.stop)
            engine.lane_wanted, engine.starts_lanes = self._lanes.want, self._lanes.own > 0

    def _advertised(self) -> tuple[str, int]:
        settings = self.settings
        host = settings.advertised_host or settings.host
        return reachable(host), settings.advertised_kafka_port or self._kafka_address[1]

    def _entrances(self) -> list[tuple[AdvertisedListener, socket.socket]]:
        found = []
        for listener, listening in zip(listeners(self.settings)[1:], self._kafka_sockets[1:], strict=True):
            host = reachable(listener.advertised_host or self.settings.advertised_host or listener.host)
            port = listener.advertised_port or ports.address(listening)[1]
            found.append((AdvertisedListener(name=listener.name, protocol=listener.protocol, host=host, port=port), listening))
        return found

    # -- start

    async def _start(self, on_ready: Callable[[str], None]) -> None:
        for warning in unprotected(self.settings):
            logger.warning("unprotected_listener", hint=warning)
        if self._certificates is not None:
            self._certificates.watch()
        await self._kafka.start(self._kafka_sockets[0])
        for advertised, listening in self._further:
            await self._kafka.listen(advertised, listening)
        for _ in range(GREETING_TURNS):
            await asyncio.sleep(0)
        backend = await load(_backend)  # most of the processor time of a start
        self._backend = backend(self.settings, self.clock, self._kafka, self.not_ready)
        opening = self._loop.create_task(self._backend.open(self, self.stop), name="node")
        try:
            await asyncio.wait((opening,), timeout=HTTP_WAIT_S)
            if not opening.done():
                await self._start_http()
            await opening
        finally:
            opening.cancel()
        if self._http is None:
            await self._start_http()
        self.phase = "serving"
        logger.info("broker_serving", line=self.line())
        on_ready(self.line())

    async def _start_http(self) -> None:
        assert self._backend is not None
        make_backend, port = await load(_http_port)
        self._http = port(
            make_backend(
                settings=self.settings,
                metrics=self._backend.observer.metrics,
                turns=Turns(self.clock.monotonic),
                hosts=self._hosts,
                not_ready=self.not_ready,
                line=self.line,
                views=lambda: None if self._grpc is None or self.phase != "serving" else self._grpc.views,
                engine=lambda: None if self._node is None or self.phase != "serving" else self._node.engine,
                inner=lambda: None if self._grpc is None or self.phase != "serving" else self._grpc.inner,
            ),
            self._http_socket,
            self._certificates,
            self._security,
        )
        self._http.start()

    def _hosts(self) -> list[str]:
        """The host names of the cluster's brokers."""
        return [] if self._node is None else [incarnation.host for incarnation in self._node.engine.manifest.incarnations.values()]

    # -- end

    async def _close(self, ending: Ending) -> HeadgateError | None:
        """End every part, even if another part fails to end. Returns the first error."""
        node = self._node
        alone = node is None or node.alone
        await self._kafka.stop_accepting()
        for lanes in (self._lanes, self._upkeep):
            if lanes is not None:
                await ending.close("lanes", lanes.close())
        if node is not None:
            await node.drain(ending)
        if alone:
            await self._close_grpc(ending)
        if node is not None:
            await node.close(ending)
        if not alone:
            # gRPC serves the other brokers until the cluster has ended.
            await self._close_grpc(ending)
        await ending.close("kafka", self._kafka.close())
        if self._http is not None:
            await ending.close("http", self._http.close())
        if self._certificates is not None:
            await ending.close("certificates", self._certificates.close())
        self._audit.tell_left_out()
        if self._audit_file is not None:
            await ending.close("audit", asyncio.to_thread(self._audit_file.close))
        if self._backend is not None and self._backend.store is not None:
            await ending.close("store", self._backend.store.close())
        self.stuck = ending.stuck
        return ending.error

    async def _close_grpc(self, ending: Ending) -> None:
        if self._grpc is not None:
            await ending.close("grpc", self._grpc.close(ending.grace_s))


def _protection(settings: Settings, clock: SteadyClock, audit: Audit) -> tuple[Certificates | None, Security | None]:
    if not settings.tls_certificate and not knows_clients(settings):
        return None, None
    from headgate.broker.server.protection import protect

    return protect(settings, clock, audit)


# Each of these imports modules; `load` calls them in a thread.


def _backend() -> type[Backend]:
    from headgate.broker.server.backend import Backend

    return Backend


def _grpc_server() -> type[GrpcServer]:
    from headgate.broker.server.grpc.server import GrpcServer

    return GrpcServer


def _lanes() -> tuple[type[LaneKeeper], type[LaneUpkeep]]:
    from headgate.broker.server.lanes import LaneKeeper, LaneUpkeep

    return LaneKeeper, LaneUpkeep


def _http_port() -> tuple[type[HttpBackend], type[HttpPort]]:
    import prometheus_client  # noqa: F401  # the first page of metrics would import it on the loop

    from headgate.broker.server.http.app import HttpBackend, HttpPort

    return HttpBackend, HttpPort
