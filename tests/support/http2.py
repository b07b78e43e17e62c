"""A client of HTTP/2 that does what no gRPC library does: it opens calls and sends, reads or resets what it wants.

It speaks just enough of RFC 9113: its header blocks are literals without indexing (RFC 7541, 6.2.2), and it never decodes the
server's. Its window for answers is 0 unless told otherwise, so it is a client that reads no answers.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Self

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
INITIAL_WINDOW = 4
FRAME_BYTES_MAX = 16 << 10


def basic(user: str, password: str) -> tuple[str, str]:
    """The metadata of a login."""
    return "authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def message(data: bytes, *, compressed: bool = False) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BI", compressed, len(data)) + data


class Http2:
    """One connection. `ended`: streams that the server has ended or reset. `resets`: those that it has reset."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._next = 1
        self.ended: set[int] = set()
        self.resets: set[int] = set()
        self.received: dict[int, int] = {}
        """Bytes of answers, by stream."""
        self.gone = False
        """The server has closed the connection, or announced that it will."""
        self._windows: dict[int, int] = {}
        self._settings_window = 65535
        self._room = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, port: int, *, window: int = 0) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW, window)))
        return cls(reader, writer)

    def open(self, path: str, *metadata: tuple[str, str], encoding: str = "") -> int:
        """Begin a call. Returns the stream."""
        stream, self._next = self._next, self._next + 2
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *((("grpc-encoding", encoding),) if encoding else ()),
            *metadata,
        ]
        block = b"".join(b"\x00" + _literal(name) + _literal(value) for name, value in headers)
        self._windows[stream] = self._settings_window
        self._writer.write(_frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def reset(self, stream: int) -> None:
        self._writer.write(_frame(RST_STREAM, 0, stream, struct.pack(">I", 8)))

    async def send(self, stream: int, data: bytes, *, end: bool = False) -> None:
        """Send bytes of a call within the server's windows. Returns early when the server ends the call or the connection."""
        position = 0
        while position < len(data):
            async with self._room:
                await self._room.wait_for(lambda: self.gone or stream in self.ended or self._space(stream) > 0)
            if self.gone or stream in self.ended:
                return
            size = min(self._space(stream), FRAME_BYTES_MAX, len(data) - position)
            for one in (0, stream):
                self._windows[one] = self._windows.get(one, 65535) - size
            self._writer.write(_frame(DATA, 0, stream, data[position : position + size]))
            position += size
            await self._writer.drain()
        if end:
            self._writer.write(_frame(DATA, END_STREAM, stream, b""))
        await self._writer.drain()

    async def drain(self) -> None:
        await self._writer.drain()

    async def wait_ended(self, *streams: int) -> None:
        """Wait until the server has ended these calls, or the connection."""
        async with self._room:
            await self._room.wait_for(lambda: self.gone or self.ended.issuperset(streams))

    async def close(self) -> None:
        self._writer.transport.abort()
        await asyncio.wait((self._reading,))
        await asyncio.sleep(0)  # the transport closes its socket

    def _space(self, stream: int) -> int:
        return min(self._windows.get(0, 65535), self._windows[stream])

    async def _read(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                size, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
                body = await self._reader.readexactly(size)
                async with self._room:
                    self._take(kind, flags, stream, body)
                    self._room.notify_all()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            async with self._room:
                self.gone = True
                self._room.notify_all()

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(body), 6):
                key, value = struct.unpack_from(">HI", body, at)
                if key == INITIAL_WINDOW:
                    for one in self._windows.keys() - {0}:
                        self._windows[one] += value - self._settings_window
                    self._settings_window = value
            self._writer.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._writer.write(_frame(PING, ACK, 0, body))
        elif kind == WINDOW_UPDATE:
            self._windows[stream] = self._windows.get(stream, 65535) + struct.unpack(">I", body)[0]
        elif kind == DATA:
            self.received[stream] = self.received.get(stream, 0) + len(body)
            for one in (0, stream):
                if body:
                    self._writer.write(_frame(WINDOW_UPDATE, 0, one, struct.pack(">I", len(body))))
        elif kind == RST_STREAM:
            self.resets.add(stream)
        elif kind == GOAWAY:
            self.gone = True
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self.ended.add(stream)


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _literal(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, size = len(data) - 127, bytearray((127,))
    while rest >= 128:
        size.append(rest & 127 | 128)
        rest >>= 7
    size.append(rest)
    return bytes(size) + data
