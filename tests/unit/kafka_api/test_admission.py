"""Many clients send large frames that do not fit into the memory for requests together.

Runs: connections of the Kafka listener, each with a frame that is received in small pieces, in turn. Compared: the bytes in flight
after each piece with the bound, and the frames that arrive whole. A mismatch means that clients can take memory without a bound,
or that half-received frames wait for each other for ever.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.broker.runtime.clock import Clock, ManualClock
from headgate.broker.runtime.config import Settings
from headgate.broker.server.access.rights import Identity
from headgate.broker.server.access.security import Security
from headgate.broker.server.audit.audit import Audit
from headgate.broker.server.kafka import listener
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.server.kafka.transport import Connection
from tests.support.waiting import until_async
from tests.support.wire import request_header

MIB = 1 << 20
INFLIGHT_BYTES_MAX = 9 * MIB
FRAME_BYTES = 8 * MIB
PIECE_BYTES = 64 << 10
PRODUCE, VERSION_UNKNOWN = 0, 99


class Peer:
    """A client with one frame to send, and its connection's transport."""

    def __init__(self, server: KafkaServer, frame: bytes) -> None:
        self.connection = Connection(server.common, server)
        self.ended = False
        self.paused = False
        self._left = memoryview(frame)
        self.connection.connection_made(cast(asyncio.Transport, self))

    def send(self) -> None:
        room = self.connection.get_buffer(-1)
        piece = self._left[: min(PIECE_BYTES, len(room))]
        room[: len(piece)] = piece
        self._left = self._left[len(piece) :]
        self.connection.buffer_updated(len(piece))

    @property
    def reads(self) -> bool:
        return bool(self._left) and not self.paused and not self.ended

    def get_extra_info(self, name: str) -> Any:
        return ("client", 1) if name == "peername" else self

    def fileno(self) -> int:
        return -1

    def set_write_buffer_limits(self, **limits: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        """The broker refuses the frame, once it is whole: it has no such version."""
        if not self.ended:
            self.ended = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)


async def test_frames_that_do_not_fit_together_wait_and_all_of_them_arrive() -> None:
    settings = Settings.from_values(
        {"inflight_bytes_max": INFLIGHT_BYTES_MAX, "frame_bytes_max": FRAME_BYTES, "message_bytes_max": MIB}
    )
    server = KafkaServer(settings, Clock(), ("127.0.0.1", 1))
    header = request_header(PRODUCE, VERSION_UNKNOWN, 1, flexible=True)
    frame = FRAME_BYTES.to_bytes(4, "big") + header + bytes(FRAME_BYTES - len(header))
    peers = [Peer(server, frame) for _ in range(12)]
    inbox, most_bytes = server.common.inbox, 0
    while any(not peer.ended for peer in peers):
        await until_async(lambda: any(peer.reads for peer in peers) or all(peer.ended for peer in peers), "a frame has room")
        for peer in peers:
            if peer.reads:
                peer.send()
            most_bytes = max(most_bytes, inbox.inflight_bytes)
        await asyncio.sleep(0)
    assert most_bytes > INFLIGHT_BYTES_MAX - FRAME_BYTES, "the frames fill the room"
    assert most_bytes <= INFLIGHT_BYTES_MAX + FRAME_BYTES, "only one frame exceeds it"
    await until_async(lambda: (inbox.inflight_bytes, inbox.waiting_bytes) == (0, 0))


async def test_clients_that_do_not_log_in_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SWEEP_S", 0.01)
    logins: list[Callable[[Identity], None]] = []

    def sasl(self: Security, host: str, *, is_tls: bool, on_login: Callable[[Identity], None]) -> Any:
        logins.append(on_login)
        return SimpleNamespace(failed="")

    monkeypatch.setattr(Security, "sasl", sasl)
    clock = ManualClock()
    settings = Settings.from_values({"connections_max": 3, "kafka_protocol": "sasl_plaintext"})
    security = Security(settings, clock.monotonic, clock.now_ms, None, Audit(1, clock.now_ms, lambda *_: None))
    server = KafkaServer(settings, clock, ("127.0.0.1", 1), security=security)
    user = Peer(server, b"")
    logins[0](security.anonymous("10.0.0.1"))
    strangers = [Peer(server, b"") for _ in range(2)]
    late = Peer(server, b"")
    peers = (user, *strangers, late)
    assert [one.ended for one in peers] == [False, True, False, False], "the oldest stranger has left"
    clock.advance(int(listener.LOGIN_S * 1000) + 1)
    await server.start(socket.create_server(("127.0.0.1", 0)))
    await until_async(lambda: late.ended)
    assert [one.ended for one in peers] == [False, True, True, True], "they have not logged in in time"
    await server.close()
