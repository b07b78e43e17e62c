"""A proxy in front of a broker that records the requests of real clients, frame by frame."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
PIECE_BYTES = 1 << 16


class Recorder:
    """Forwards connections to a broker. Use it as a context manager.

    Args:
        port: the free port on which it listens. target: the broker's Kafka port.
    """

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self.frames: list[bytes] = []
        """Requests without their length prefix, while `recording`."""
        self.recording = True
        self._listener = socket.create_server((HOST, port))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def of(self, *api_keys: int) -> list[bytes]:
        """The recorded requests of these kinds."""
        return [frame for frame in self.frames if struct.unpack_from(">h", frame)[0] in api_keys]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection((HOST, self._target))
            except OSError:
                client.close()
                continue
            self._sockets += (client, broker)
            for source, sink, records in ((client, broker, True), (broker, client, False)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, records), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, records: bool) -> None:
        kept = bytearray()
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                sink.sendall(piece)
                if records and self.recording:
                    kept += piece
                    self._split(kept)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _split(self, kept: bytearray) -> None:
        while len(kept) >= 4 and len(kept) >= 4 + (size := struct.unpack_from(">i", kept)[0]):
            self.frames.append(bytes(kept[4 : 4 + size]))
            del kept[: 4 + size]
