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
import importlib
import os
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from headgate.broker.runtime.clock import Clock, SteadyClock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.out_of_memory import OutOfMemory
from headgate.broker.runtime.tasks import known
from headgate.broker.server import ports
from headgate.broker.server.kafka.listener import KafkaServer

if TYPE_CHECKING:
    from headgate.broker.control.cluster import Cluster
    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.server.grpc.server import GrpcServer
    from headgate.broker.server.http.server import HttpServer
    from headgate.broker.server.observe import Observer
    from headgate.broker.store.interface import Store
    from headgate.broker.store.local_append import Fsync

log = get_logger(__name__)

GREETING_TURNS = 20
"""Turns of the loop for clients that connected while the modules were imported: enough to accept, read and answer ApiVersions."""
HTTP_WAIT_S = 2.0
"""Time from the import of the engine's modules during which the engine starts alone. After it the health port is opened beside
the engine, because a long recovery must be visible. The time of the imports does not count: on a starved machine they alone take
seconds, and importing the health port's modules beside them would make that half as long again."""
WILDCARDS = ("0.0.0.0", "::", "")


class _EngineModules(NamedTuple):
    """Modules that are imported while the Kafka port already answers."""

    coordinator: Any
    engine: Any
    encoding: Any
    wrappers: Any
    opening: Any
    keys: Any
    cluster: Any


class Process:
    """One broker. Made inside the event loop.

    Args:
        kafka: the listening socket of the Kafka port.
        http: the listening socket of the HTTP port.
        out_of_memory: ends the process when a part has no memory left.
    """

    def __init__(self, settings: Settings, *, kafka: socket.socket, http: socket.socket, out_of_memory: OutOfMemory) -> None:
        self.settings = settings
        self._out_of_memory = out_of_memory
        self.clock = SteadyClock(Clock(), settings.clock_difference_max_ms)
        self.phase: Literal["starting", "serving", "stopping", "ended"] = "starting"
        self.stuck = False
        """True after `run` if a part did not end in time: the process must then exit without waiting for the part's threads."""
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[HeadgateError | None] = self._loop.create_future()
        self._kafka_socket, self._http_socket = kafka, http
        self._kafka_address, self._http_address = ports.address(kafka), ports.address(http)
        self._grpc_port = settings.grpc_port or ports.free(settings.host)
        self._kafka = KafkaServer(settings, self.clock, self._advertised())
        self._store: Store | None = None
        self._engine: Engine | None = None
        self._cluster: Cluster | None = None
        self._groups: Coordinator | None = None
        self._observer: Observer | None = None
        self._grpc: GrpcServer | None = None
        self._http: HttpServer | None = None

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
        if not starting.done():
            # `stop` was called while the broker was starting.
            starting.cancel()
            await asyncio.wait((starting,))
        failure = None if starting.cancelled() else starting.exception()
        error = None if failure is None else known(failure, "start")
        if error is None:
            error = await self._end
        self.phase = "stopping"
        self.stop()
        log.info("broker_stopping", reason="asked" if error is None else error.reason.value)
        error = await self._close(error)
        if self._observer is not None:
            self._observer.close()
        self.phase = "ended"
        return error

    def not_ready(self) -> str | None:
        """The reason why the broker does not serve clients at the moment, or None: the answer of /readyz."""
        if self.phase != "serving" or self._engine is None:
            return self.phase
        trouble = self._engine.failed or self._engine.stalled
        return None if trouble is None else trouble.message

    def line(self) -> str:
        """The broker's addresses and its store, on one line."""
        kafka, http = ports.shown(*self._kafka_address), ports.shown(*self._http_address)
        grpc = ports.shown(self._kafka_address[0], self._grpc_port)
        store = self.settings.store if self._store is None else self._store.url
        cluster = "" if self._engine is None else f" cluster={self._engine.cluster_id}"  # last, because it may contain spaces
        return f"headgate broker {self.settings.broker_id} serves kafka={kafka} grpc={grpc} http={http} store={store}{cluster}"

    def _thread_failed(self, failure: threading.ExceptHookArgs) -> None:
        """End the broker because a thread died of an unexpected error: the thread's work is no longer done."""
        if isinstance(failure.exc_value, MemoryError):
            self._out_of_memory.end()
        name = "process" if failure.thread is None else failure.thread.name
        error = known(failure.exc_value or failure.exc_type(), f"thread {name}")
        self._loop.call_soon_threadsafe(self.stop, error)

    # -- start

    async def _start(self, on_ready: Callable[[str], None]) -> None:
        await self._kafka.start(self._kafka_socket)
        for _ in range(GREETING_TURNS):
            await asyncio.sleep(0)
        observe = await self._import("headgate.broker.server.observe")
        self._observer = observe.Observer(self.settings.broker_id, self.not_ready, self._kafka)
        modules = await self._engine_modules()
        opening = self._loop.create_task(self._open_engine(modules), name="engine")
        try:
            await asyncio.wait((opening,), timeout=HTTP_WAIT_S)
            if not opening.done():
                await self._start_http()
            engine, groups = await opening
        finally:
            opening.cancel()
        self._observer.engine_opened(engine, groups)
        self._kafka.serve(engine, groups)
        await self._start_grpc(engine, groups)
        if self._http is None:
            await self._start_http()
        self.phase = "serving"
        log.info("broker_serving", line=self.line())
        on_ready(self.line())

    async def _engine_modules(self) -> _EngineModules:
        """Import the modules of the engine: most of the processor time of a start."""
        return _EngineModules(
            coordinator=await self._import("headgate.broker.groups.coordinator"),
            engine=await self._import("headgate.broker.engine.engine"),
            encoding=await self._import("headgate.broker.engine.encoding"),
            wrappers=await self._import("headgate.broker.store.wrappers"),
            opening=await self._import("headgate.broker.store.open"),
            keys=await self._import("headgate.broker.engine.keys"),
            cluster=await self._import("headgate.broker.control.cluster"),
        )

    async def _open_engine(self, modules: _EngineModules) -> tuple[Engine, Coordinator]:
        settings = self.settings
        create = settings.store_create or settings.store in modules.opening.PRIVATE_URLS
        # Opening may import boto3, and may wait for a disk.
        store = await self._loop.run_in_executor(
            None,
            lambda: cast(
                "Store",
                modules.opening.open_store(
                    settings.store,
                    fsync=cast("Fsync", settings.wal_fsync),
                    fsync_interval_ms=settings.wal_fsync_interval_ms,
                    required_key=modules.keys.CLUSTER_ID if settings.cluster_id or not create else "",
                ),
            ),
        )
        metered = modules.wrappers.MeteredStore(store, self.clock)
        self._store = metered
        assert self._observer is not None
        metered.register(self._observer.metrics)
        engine: Engine = modules.engine.Engine(
            store=metered,
            settings=settings,
            clock=self.clock,
            incarnation_id=os.urandom(16).hex(),
            fail=self.stop,
            encoders=modules.encoding.Encoders(),
            create=create,
        )
        host, kafka_port = self._advertised()
        cluster: Cluster = modules.cluster.Cluster(
            engine,
            mine=modules.cluster.Incarnation(
                id=engine.incarnation_id,
                broker_id=settings.broker_id,
                leader_epoch=-1,
                opened_ms=self.clock.now_ms(),
                host=host,
                kafka_port=kafka_port,
                grpc_port=settings.advertised_grpc_port or self._grpc_port,
                http_port=self._http_address[1],
                rack=settings.rack,
            ),
            lease_ttl_ms=settings.cluster_lease_ttl_ms,
            member_timeout_ms=settings.cluster_member_timeout_ms,
            fail=self.stop,
        )
        cluster.connections = lambda: len(self._kafka.connections)
        self._cluster = cluster
        await cluster.start()
        self._engine = engine
        groups: Coordinator = modules.coordinator.Coordinator(engine, settings, self.clock)
        self._groups = groups
        groups.start()
        return engine, groups

    async def _start_grpc(self, engine: Engine, groups: Coordinator) -> None:
        module = await self._import("headgate.broker.server.grpc.server")
        server: GrpcServer = module.GrpcServer(
            engine,
            dataclasses.replace(self.settings, grpc_port=self._grpc_port),
            groups,
            cluster=self._cluster,
            capacity=None if self._cluster is None else self._cluster.capacity,
            kafka=self._advertised(),
            http_port=self._http_address[1],
        )
        assert self._observer is not None
        server.register(self._observer.metrics)
        self._grpc_port = await server.start()
        self._grpc = server
        assert self._cluster is not None
        self._observer.cluster_joined(self._cluster)
        await self._cluster.serving()

    async def _start_http(self) -> None:
        app = await self._import("headgate.broker.server.http.app")
        server = await self._import("headgate.broker.server.http.server")
        await self._import("prometheus_client")
        assert self._observer is not None
        self._http = server.HttpServer(app.create_app(self._observer.metrics, self.not_ready, self.line), self._http_socket)
        self._http.start()

    async def _import(self, name: str) -> Any:
        """Import in a thread: the loop keeps answering while hundreds of modules are imported."""
        return await self._loop.run_in_executor(None, importlib.import_module, name)

    def _advertised(self) -> tuple[str, int]:
        settings = self.settings
        host = settings.advertised_host or settings.host
        if host in WILDCARDS:
            host = socket.gethostname()
        return host, settings.advertised_kafka_port or self._kafka_address[1]

    # -- end

    async def _close(self, error: HeadgateError | None) -> HeadgateError | None:
        """End every part, even if another part fails to end. Returns the first error."""
        grace_s = self.settings.shutdown_timeout_ms / 1000
        if self._cluster is not None and error is not None:
            self._cluster.abandon(error)
        await self._kafka.stop_accepting()
        closing: list[tuple[str, Callable[[], Any]]] = []
        close_grpc = ("grpc", lambda: cast("GrpcServer", self._grpc).close(grace_s))
        alone = self._engine is None or len(self._engine.brokers()) <= 1
        if self._grpc is not None and alone:
            closing.append(close_grpc)
        if self._cluster is not None and not alone and error is None:
            closing.append(("cluster", lambda: cast("Cluster", self._cluster).drain(grace_s)))
        if self._groups is not None:
            closing.append(("groups", self._stop_groups))
        if self._engine is not None:
            closing.append(("log", self._engine.close))
        if self._groups is not None:
            closing.append(("groups", self._groups.close))
        if self._cluster is not None:
            closing.append(("cluster", self._cluster.close))
        if self._grpc is not None and not alone:
            # gRPC serves the other brokers until the cluster has ended.
            closing.append(close_grpc)
        closing.append(("kafka", self._kafka.close))
        if self._http is not None:
            closing.append(("http", self._http.close))
        if self._store is not None:
            closing.append(("store", self._store.close))
        for part, close in closing:
            try:
                await asyncio.wait_for(close(), grace_s + 1)
            except TimeoutError:
                self.stuck = True
                error = error or RetryError(
                    Reason.TIMED_OUT,
                    f"{part} did not close in time, which loses nothing that was acked. timeout_s=`{grace_s + 1:g}`",
                )
            except Exception as failure:  # noqa: BLE001  # the other parts must still be closed, and the first error is reported
                error = error or known(failure, f"end of {part}")
        return error

    async def _stop_groups(self) -> None:
        assert self._groups is not None
        self._groups.stop()
