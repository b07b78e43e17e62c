"""A real HTTP proxy in front of an S3 server that injects scripted faults.

It forwards every request except the next ones that `fail` has scripted. Connections stay real, so that tests cover boto3's
handling of broken bytes on a socket.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Self, TypeAlias

from tests.support.s3_server import HOST, S3Server

Break: TypeAlias = Literal[
    "stored_then_500",  # the request takes effect, the answer says 500
    "slow_down",  # 503 SlowDown, no effect
    "internal_error",  # 500, no effect
    "conflict",  # 409 ConditionalRequestConflict, no effect
    "denied",  # 403 AccessDenied, no effect
    "page_not_found",  # 404 with a page that does not come from S3, no effect
    "page",  # 200 with a page that does not come from S3, no effect
    "truncate",  # half of the answer's body, then the connection ends
    "shorten",  # half of the answer's body, declared as the complete one
    "whole",  # the request asked for a range, the answer is the whole object
    "hang",  # the request takes effect; no answer until the proxy stops
    "reset",  # the connection ends without an answer; no effect
    "unconditional",  # the proxy removes If-None-Match: stands for a server that ignores it
]


class S3Proxy:
    """A proxy in front of an S3 server that injects scripted faults. Use it as a context manager."""

    def __init__(self, server: S3Server) -> None:
        self._upstream = server
        self._script: deque[tuple[str, Break]] = deque()
        self._always: Break | None = None
        self.requests: Counter[str] = Counter()
        """Requests seen, by method."""
        self.expired_key = ""
        """Access key with which every request is answered with ExpiredToken; empty: none."""
        self.released = threading.Event()
        self._http = _Listener((HOST, 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, name="s3-proxy")
        self.endpoint = f"http://{HOST}:{self._http.server_address[1]}"

    def fail(self, method: str, *breaks: Break) -> None:
        """Fail the next requests of an HTTP method, one per fault; requests of other methods pass."""
        self._script.extend((method, fault) for fault in breaks)

    def fail_always(self, fault: Break | None) -> None:
        """Fail every request from now on; None: no more."""
        self._always = fault

    def take(self, method: str) -> Break | None:
        """Choose the fault of a request that has just arrived."""
        self.requests[method] += 1
        if self._always is not None:
            return self._always
        for entry in list(self._script):
            if entry[0] == method:
                self._script.remove(entry)
                return entry[1]
        return None

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(HOST, self._upstream.port, timeout=60)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of clients that gave up: the proxy causes them on purpose."""


def _handler(proxy: S3Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body leave as two small segments; without this every answer waits 40 ms for a delayed ack.
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("expect", "connection")}
            fault = proxy.take(self.command)
            if proxy.expired_key and f"Credential={proxy.expired_key}/" in self.headers.get("Authorization", ""):
                self._answer(400, "ExpiredToken")
                return
            if fault == "reset":
                self.close_connection = True
                return
            if fault == "page_not_found":
                self._pass(404, {"Content-Type": "text/plain"}, b"default backend - 404", None)
                return
            if fault == "page":
                self._pass(200, {"Content-Type": "text/html"}, b"<html><body>back soon</body></html>", None)
                return
            if fault in _ANSWERS:
                self._answer(*_ANSWERS[fault])
                return
            if fault == "unconditional":
                headers = {name: value for name, value in headers.items() if name.lower() != "if-none-match"}
            if fault == "whole":
                headers = {name: value for name, value in headers.items() if name.lower() != "range"}
            status, answer_headers, answer = proxy.forward(self.command, self.path, headers, body)
            if fault == "stored_then_500":
                self._answer(500, "InternalError")
            elif fault == "hang":
                proxy.released.wait(60)
                self.close_connection = True
            else:
                self._pass(status, answer_headers, answer, fault)

        def _answer(self, status: int, code: str) -> None:
            text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>made on purpose</Message></Error>".encode()
            self._pass(status, {"Content-Type": "application/xml"}, text, None)

        def _pass(self, status: int, headers: dict[str, str], body: bytes, fault: Break | None) -> None:
            if fault == "shorten":
                body = body[: len(body) // 2]
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            length = next((value for name, value in headers.items() if name.lower() == "content-length"), None)
            # A HEAD answer has the length of a body that does not follow.
            self.send_header("Content-Length", length if self.command == "HEAD" and length is not None else str(len(body)))
            self.end_headers()
            if fault == "truncate":
                body = body[: len(body) // 2]
                self.close_connection = True
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    return Handler


_ANSWERS: dict[Break | None, tuple[int, str]] = {
    "slow_down": (503, "SlowDown"),
    "internal_error": (500, "InternalError"),
    "conflict": (409, "ConditionalRequestConflict"),
    "denied": (403, "AccessDenied"),
}
