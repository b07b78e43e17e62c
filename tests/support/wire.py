"""Kafka frames by hand: the smallest possible client, to probe a broker and to send bytes that no real client sends.

Nothing here comes from the product. Bodies are bytes; `tests/support/oracle.py` encodes and decodes them with a foreign codec.
"""

from __future__ import annotations

import itertools
import socket
import struct
from types import TracebackType
from typing import Self

API_VERSIONS = 18
METADATA = 3

UNSUPPORTED_VERSION = 35
"""Kafka's error code for an API version that the broker does not serve."""


class ClosedByPeer(Exception):
    """The broker closed (or reset) the connection where an answer was expected."""


def request_header(
    api_key: int, api_version: int, correlation_id: int, *, flexible: bool = False, client_id: str | None = "probe"
) -> bytes:
    """Request header v1, or v2 (with empty tagged fields) for flexible versions."""
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id.encode())) + client_id.encode()
    return struct.pack(">hhi", api_key, api_version, correlation_id) + name + (b"\x00" if flexible else b"")


def framed(payload: bytes) -> bytes:
    """A 4-byte length and the payload."""
    return struct.pack(">i", len(payload)) + payload


class RawConnection:
    """One blocking TCP connection that sends and receives length-prefixed frames.

    Args:
        host, port: where the broker listens.
        timeout_s: the longest any single connect, send or receive may take.
        receive_buffer_bytes: SO_RCVBUF, for readers that are meant to be slow.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float = 60.0, receive_buffer_bytes: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(timeout_s)
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)
        try:
            self.socket.connect((host, port))
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are. Raises ClosedByPeer when the broker has gone."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ClosedByPeer(str(error)) from error

    def receive_exactly(self, count: int) -> bytes:
        """Receive `count` bytes. Raises ClosedByPeer at the end of the stream, TimeoutError after the connection's timeout."""
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self.socket.recv(min(count - len(parts), 1 << 20))
            except ConnectionResetError as error:
                raise ClosedByPeer(str(error)) from error
            if not part:
                raise ClosedByPeer(f"end of stream. wanted=`{count}` got=`{len(parts)}`")
            parts += part
        return bytes(parts)

    def receive_frame(self) -> bytes:
        """The next frame's payload (correlation id first)."""
        return self.receive_exactly(self.receive_frame_start())

    def receive_frame_start(self) -> int:
        """The size of the next frame's payload. The caller reads the payload itself."""
        length: int
        (length,) = struct.unpack(">i", self.receive_exactly(4))
        assert 4 <= length < 1 << 30, f"answer has an impossible length. length=`{length}`"
        return length

    def send_request(
        self, api_key: int, api_version: int, body: bytes, *, flexible: bool = False, client_id: str | None = "probe"
    ) -> int:
        """Send one request and return its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send(framed(request_header(api_key, api_version, correlation_id, flexible=flexible, client_id=client_id) + body))
        return correlation_id

    def call(self, api_key: int, api_version: int, body: bytes, *, flexible: bool = False) -> bytes:
        """Send one request; returns its answer without the correlation id (which is checked)."""
        correlation_id = self.send_request(api_key, api_version, body, flexible=flexible)
        answer = self.receive_frame()
        assert struct.unpack_from(">i", answer)[0] == correlation_id, "answer belongs to another request"
        return answer[4:]

    def is_closed_by_peer(self, within_s: float) -> bool:
        """True if the broker ends the connection within `within_s` seconds; bytes that it sends before that are dropped."""
        before = self.socket.gettimeout()
        self.socket.settimeout(within_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
        finally:
            self.socket.settimeout(before)
        return True


def api_versions(host: str, port: int, *, timeout_s: float = 60.0) -> dict[int, tuple[int, int]]:
    """Ask ApiVersions v0: {api key: (lowest, highest) version}. Raises OSError or ClosedByPeer when the broker does not serve."""
    with RawConnection(host, port, timeout_s=timeout_s) as connection:
        body = connection.call(API_VERSIONS, 0, b"")
    error, count = struct.unpack_from(">hi", body)
    assert error == 0, f"api versions answered with an error. code=`{error}`"
    assert len(body) == 6 + 6 * count, f"api versions v0 has a wrong size. count=`{count}` bytes=`{len(body)}`"
    return {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", body[6:])}


def metadata_answers(host: str, port: int, *, timeout_s: float = 60.0) -> bool:
    """True when Metadata v1 for no topics is answered with at least one broker."""
    with RawConnection(host, port, timeout_s=timeout_s) as connection:
        body = connection.call(METADATA, 1, struct.pack(">i", 0))
    return bool(struct.unpack_from(">i", body)[0] >= 1)
