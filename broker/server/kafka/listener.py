"""The Kafka listener: accepts connections, looks after them once a second, and ends them."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import TYPE_CHECKING

from headgate.broker.runtime import descriptors, memory
from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import Reason
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.turns import Turns
from headgate.broker.server.access.failures import Failures
from headgate.broker.server.audit.audit import Caller
from headgate.broker.server.kafka.common import AdvertisedListener, Common
from headgate.broker.server.kafka.transport import Connection, SecureConnection
from headgate.broker.server.net import ports
from headgate.broker.server.net.tls_handshake import Handshakes

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.broker.engine.engine import Engine
    from headgate.broker.groups.coordinator import Coordinator
    from headgate.broker.server.access.rights import Identity
    from headgate.broker.server.access.security import Security
    from headgate.broker.server.audit.audit import Audit
    from headgate.broker.server.kafka.session import Session
    from headgate.broker.server.net.tls import Certificates
    from headgate.broker.transactions.broker_calls import TransactionCalls

logger = get_logger("kafka")

SWEEP_S = 1.0
OWN_BYTES_MAX = 16 << 20
"""Bytes of waiting answers that one sweep copies; copying them takes the loop some milliseconds."""
TRIM_S = 5.0
"""Pause between two searches for pooled buffers that no burst has needed since the last one."""
FULL_PATIENCE_S = 1.0
"""Time that producers wait for a full store. Then their connection ends; their next attempt is answered with the reason."""
STALL_PATIENCE_S = 25.0
"""Time that producers wait for a store that does not answer; clients themselves give up after 30 s."""
ENDS_TOLD_MAX = 50
"""Log lines about ended connections between two sweeps; further ones are only counted. One client that repeatedly connects and
sends invalid requests would otherwise write gigabytes of log a day."""
UNSERVED_TOLD_MAX = 1000
"""Pairs of a client and a cause whose unserved requests were logged and are not logged again. Then the oldest are forgotten."""
REFUSED_LOGINS = {"login_failed": "login", "tls_handshake_failed": "TLS handshake", "login_expired": "login expired"}
"""Ends of connections that are refusals, with their name in the audit log."""
LOGIN_S = 30.0
"""Time that a connection has for its first login, without the time that the broker takes. As long as Kafka's clients wait for one
request."""
CLOSE_S = 1.0
"""Time that clients have to take their last answers when the broker closes."""


class KafkaServer:
    """Serves Kafka clients. Requests other than ApiVersions wait until `serve` has been called.

    Args:
        advertised: (host, port) that the first listener announces to clients.
        certificates: for listeners with TLS.
        security: knows who clients are; None: no listener asks.
        audit: notes administrative acts and refusals; None: nothing is noted.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        advertised: tuple[str, int],
        certificates: Certificates | None = None,
        security: Security | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._settings = settings
        self._certificates = certificates
        self._security = security
        self._permissions: tuple[object, int] = (None, 0)
        """The users and rules, and their version, at the last sweep."""
        protocol = settings.kafka_protocol.upper()
        self._loop = asyncio.get_running_loop()
        self.common = Common(
            settings,
            AdvertisedListener(name=protocol, protocol=protocol, host=advertised[0], port=advertised[1]),
            now=clock.monotonic,
            now_ms=clock.now_ms,
            turns=Turns(clock.monotonic),
            opened=self._opened,
            ended=self.tell_end,
            unserved=self.tell_unserved,
        )
        self.common.audit = audit
        self._unserved: dict[tuple[str, str], None] = {}
        """Addresses of clients, and what they asked for in vain."""
        self._failures = Failures(settings.failed_logins_per_s, clock.monotonic) if security is None else security.failures
        self.connections: dict[Connection, None] = {}
        self._strangers: dict[Session, Connection] = {}
        """Connections before their first login, the oldest first."""
        self.connections_refused = 0
        self._ends = 0
        """Connections that were ended since the last sweep."""
        self._out_of_descriptors = False
        """Whether a connection has been refused since the last sweep because file descriptors are scarce."""
        self._trimmed_at = clock.monotonic()
        self._ready = asyncio.Event()
        self._all_gone = asyncio.Event()
        self._accepting: list[tuple[asyncio.Server, socket.socket]] = []
        """Servers and sockets that accept connections."""
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections on the bound socket of `kafka_port`."""
        await self.listen(self.common.advertised, listener)
        self._sweep = self._loop.call_later(SWEEP_S, self._on_sweep)

    async def listen(self, advertised: AdvertisedListener, listener: socket.socket) -> None:
        """Accept connections on the bound socket of a listener."""
        server = await self._loop.create_server(self._factory(advertised), sock=listener, backlog=1024)
        self._accepting.append((server, listener))

    def _factory(self, advertised: AdvertisedListener) -> Callable[[], asyncio.BaseProtocol]:
        if not advertised.protocol.endswith("SSL"):
            return lambda: Connection(self.common, self, advertised)
        certificates, client_auth = self._certificates, self._settings.tls_client_auth
        assert certificates is not None, "the settings were checked"

        def failed(peer: str, reason: str) -> None:
            self._failures.failed(peer.rpartition(":")[0])
            self.tell_end("tls_handshake_failed", peer, reason)

        handshakes = Handshakes(lambda: certificates.context(client_auth), failed, self._may_connect)
        return lambda: handshakes.before(lambda: SecureConnection(self.common, self, advertised))

    def serve(self, engine: Engine, groups: Coordinator, transaction_calls: TransactionCalls) -> None:
        """Take the open engine, and answer all requests, including those that waited for it."""
        common = self.common
        common.engine, common.groups, common.transaction_calls = engine, groups, transaction_calls
        common.turns, common.inbox.memory = engine.turns, engine.pool
        engine.live_first.acks = lambda: (sum(common.produce_s.counts), common.produce_s.sum)
        engine.meters.on_change = self._quotas_changed
        self._quotas_changed()
        self._ready.set()

    async def _opened(self) -> Engine:
        """Wait until the engine is open, and return it."""
        await self._ready.wait()
        assert self.common.engine is not None
        return self.common.engine

    async def stop_accepting(self) -> None:
        accepting, self._accepting = self._accepting, []
        for server, listener in accepting:
            ports.refuse_more(listener)
            server.close()

    async def close(self) -> None:
        """End every connection. Call it after the engine was closed, so that records which became durable are answered."""
        await self.stop_accepting()
        if self._sweep is not None:
            self._sweep.cancel()
        self._all_gone.clear()
        for connection in list(self.connections):
            connection.session.drop("closing", "the broker is closing")
        if self.connections:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._all_gone.wait()
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort("closing", "answers were not taken before the broker closed")
                await self._all_gone.wait()
        self._tell_rest()

    # -- connections

    def admit(self, connection: Connection, descriptor: int) -> bool:
        scarce = descriptors.scarce(descriptor)
        if scarce and not self._out_of_descriptors:
            logger.warning("out_of_file_descriptors", connections=len(self.connections), hint="raise ulimit -n")
        self._out_of_descriptors |= scarce
        is_full = len(self.connections) >= self._settings.connections_max
        if scarce or (is_full and not self._close_stranger()):
            self.connections_refused += 1
            return False
        # Behind TLS the connection was counted before the handshake, which is the costly part.
        if not connection.session.advertised.protocol.endswith("SSL") and not self._may_connect(connection.session.peer):
            return False
        self.connections[connection] = None
        return True

    def _close_stranger(self) -> bool:
        """Close the connection that has been without a login for longest. False: all clients have logged in.

        So connections of clients without a login keep nobody out who logs in at once.
        """
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        connection = self._strangers.pop(oldest)
        self.connections.pop(connection, None)
        connection.abort("login_timeout", "the broker has its most connections, and the client has not logged in")
        return True

    def _quotas_changed(self) -> None:
        engine = self.common.engine
        assert engine is not None
        self.common.has_quotas = engine.meters.is_on
        for connection in list(self.connections):
            connection.session.quotas_changed()

    def _may_connect(self, peer: str) -> bool:
        """Returns whether the failed logins of its address allow a connection."""
        if self._failures.admits(peer.rpartition(":")[0]):
            return True
        self.connections_refused += 1
        self.tell_end("connection_throttled", peer, "too many logins or TLS handshakes of the address have failed")
        return False

    def greet(self, connection: Connection, certificate: bytes | None) -> None:
        """Find out who a new client is, or let it log in. Raises InvalidError(NOT_AUTHENTICATED)."""
        security, session = self._security, connection.session
        if security is None:
            return
        host, protocol = session.peer.rpartition(":")[0], session.advertised.protocol

        def known(identity: Identity) -> None:
            session.let_in(identity, security.rights(identity))
            self._strangers.pop(session, None)
            if identity.expires_s < math.inf:
                self._loop.call_later(max(identity.expires_s - self.common.now(), 0.0), self._expire, session, identity)

        if protocol.startswith("SASL"):
            session.await_login(security.sasl(host, is_tls=protocol.endswith("SSL"), on_login=known))
            self._strangers[session] = connection
        else:
            known(security.anonymous(host) if certificate is None else security.by_certificate(certificate, host))

    @staticmethod
    def _expire(session: Session, identity: Identity) -> None:
        """End the connection of a client that has not logged in again."""
        if session.identity is identity and not session.is_over:
            session.drop("login_expired", f"the login has expired. user=`{identity.principal}`")

    def tell_end(self, event: str, peer: str, reason: str) -> None:
        """Log the reason why a connection ends, at most ENDS_TOLD_MAX times between two sweeps."""
        audit, host = self.common.audit, peer.rpartition(":")[0]
        if audit is not None and event in REFUSED_LOGINS:
            audit.refused(REFUSED_LOGINS[event], Caller(who="", host=host, door="kafka"), [], reason)
        self._ends += 1
        if self._ends <= ENDS_TOLD_MAX:
            logger.info(event, peer=peer, reason=reason)

    def tell_unserved(self, host: str, reason: str) -> None:
        """Log a request that this broker does not serve, once for each client and cause: the client may wait for ever, or end with
        a text that names neither."""
        if (host, reason) in self._unserved:
            return
        if len(self._unserved) == UNSERVED_TOLD_MAX:
            del self._unserved[next(iter(self._unserved))]
        self._unserved[host, reason] = None
        logger.warning("not_served", host=host, reason=reason)

    def _tell_rest(self) -> None:
        if self._ends > ENDS_TOLD_MAX:
            logger.info("more_connections_ended", connections=self._ends - ENDS_TOLD_MAX)
        self._ends = 0

    def forget(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._strangers.pop(connection.session, None)
        if not self.connections:
            self._all_gone.set()

    def _have_permissions_changed(self) -> bool:
        """Whether users or rules have changed since the last sweep: each connection then judges its repeated requests anew."""
        access = None if self._security is None else self._security.access()
        seen = (access, 0 if access is None else access.version)
        changed = seen != self._permissions
        self._permissions = seen
        return changed

    def _on_sweep(self) -> None:
        self._sweep = self._loop.call_later(SWEEP_S, self._on_sweep)
        self._out_of_descriptors = False
        self._tell_rest()
        if self.common.audit is not None:
            self.common.audit.tell_left_out()
        engine, now = self.common.engine, self.common.now()
        if engine is not None:
            self.common.note_batches(engine.wal_batches[0])
        if engine is not None and now - self._trimmed_at >= TRIM_S:
            self._trimmed_at = now
            if engine.pool.trim():
                memory.give_back()
        idle_s = self._settings.connection_idle_ms / 1000
        frame_s = self._settings.frame_timeout_ms / 1000
        stalled = None if engine is None else engine.stalled
        patience_s = FULL_PATIENCE_S if stalled is not None and stalled.reason is Reason.STORE_FULL else STALL_PATIENCE_S
        own_bytes = OWN_BYTES_MAX
        changed = self._have_permissions_changed()
        for connection in list(self.connections):
            session = connection.session
            session.count_outgoing()
            if changed:
                session.permissions_changed()
            if own_bytes > 0:
                own_bytes -= session.own_answers(own_bytes)
            if stalled is not None and session.not_durable_s(now) > patience_s:
                session.drop("not_durable", stalled.message)
                continue
            if session.look_for_stall(now) > frame_s:
                connection.abort(
                    "answer_timeout", f"an answer was not taken in time. timeout_ms=`{self._settings.frame_timeout_ms}`"
                )
                continue
            if not session.logged_in and not session.slots and now - session.began_at > LOGIN_S:
                session.drop("login_timeout", f"the client has not logged in in time. timeout_s=`{LOGIN_S:g}`")
                continue
            since = session.frames.since
            if since is not None and now - since > frame_s and not session.frames.paused:
                session.drop("frame_timeout", f"a request did not arrive in time. timeout_ms=`{self._settings.frame_timeout_ms}`")
            elif session.idle and now - session.active_at > idle_s:
                session.drop("idle", f"no request in time. timeout_ms=`{self._settings.connection_idle_ms}`")
