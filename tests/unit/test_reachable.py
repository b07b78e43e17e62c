"""The check that a command makes before it sends a request to a broker.

Runs: `check_reachable` against real sockets: one that accepts connections and stays silent, as a stopped broker does, one that
greets as gRPC does, and none. A mismatch means that a user waits without a message, or gets a wrong one.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import pytest

from headgate.broker.cli import output
from headgate.broker.runtime.errors import InvalidError, RetryError
from tests.support.ports import free_port

HOST = "127.0.0.1"
SETTINGS = bytes(3) + output.HTTP2_SETTINGS + bytes(5)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server((HOST, 0)) as opened:
        yield opened


def address(listening: socket.socket) -> str:
    return f"{HOST}:{listening.getsockname()[1]}"


def greet(listening: socket.socket, greeting: bytes, release: threading.Event | None = None) -> threading.Thread:
    def answer() -> None:
        with listening.accept()[0] as connection:
            if release is not None:
                release.wait()
            connection.sendall(greeting)
            connection.recv(1)
            connection.recv(1000)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_a_broker_that_was_stopped_is_told_of(
    listening: socket.socket, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "ANSWER_S", 0.1)
    monkeypatch.setattr(output, "SILENCE_S", 0.1)
    with pytest.raises(RetryError, match="does not answer"):
        output.check_reachable(address(listening))
    assert f"{address(listening)} takes the connection and says nothing" in capsys.readouterr().err


def test_one_that_only_was_busy_is_waited_for(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "ANSWER_S", 0.1)
    monkeypatch.setattr(output, "SILENCE_S", 600.0)
    said = threading.Event()
    monkeypatch.setattr(output, "fail", lambda text: said.set())
    thread = greet(listening, SETTINGS, said)
    output.check_reachable(address(listening))
    thread.join()


def test_another_one_that_answers_suffices(listening: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((HOST, 0)) as well:
        thread = greet(well, SETTINGS)
        output.check_reachable(f"{HOST}:{free_port()},{address(listening)},{address(well)}")
        thread.join()
    assert not capsys.readouterr().err


def test_something_else_listens(listening: socket.socket) -> None:
    thread = greet(listening, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(InvalidError, match="no gRPC port"):
        output.check_reachable(address(listening))
    thread.join()


def test_a_connection_that_is_closed_without_an_answer_is_no_proof_of_another_kind_of_port(listening: socket.socket) -> None:
    """A broker that ends, or that takes no more connections, does that too."""
    thread = greet(listening, b"")
    with pytest.raises(InvalidError, match="closes the connection without an answer: a broker that starts, ends or"):
        output.check_reachable(address(listening))
    thread.join()


@pytest.mark.parametrize("name", ["no-such-host.invalid", "127.0.0.1.."])
def test_a_host_without_an_address_is_told_apart_from_one_without_a_broker(name: str) -> None:
    with pytest.raises(RetryError, match=rf"^the host `{re.escape(name)}` is not found \([^()]+\)\. cluster="):
        output.check_reachable(f"{name}:9095")


def test_nothing_listens() -> None:
    with pytest.raises(RetryError, match="no broker listens there: connection refused"):
        output.check_reachable(f"{HOST}:{free_port()}")
