"""The ports that tests cut (`tests/support/network.py`) identify the owner of a connection.

Runs: two connections from one port of this process to two places, as they occur when a port is used again. Compared: the socket
that is found for each. A mismatch means that chaos tests cut nothing, or another party.
"""

from __future__ import annotations

import os
import socket

import pytest

from tests.support.network import HOST, _inode


def _connect(port: int, other: int) -> socket.socket:
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    end.bind((HOST, port))
    end.connect((HOST, other))
    return end


def test_a_port_that_is_used_twice_does_not_hide_who_connects() -> None:
    with socket.create_server((HOST, 0)) as one, socket.create_server((HOST, 0)) as other:
        ports = [server.getsockname()[1] for server in (one, other)]
        with _connect(0, ports[0]) as first, _connect(first.getsockname()[1], ports[1]) as second:
            found = [_inode(first.getsockname()[1], port) for port in ports]
            assert found == [str(os.fstat(end.fileno()).st_ino) for end in (first, second)]


def test_who_gave_up_is_not_looked_for() -> None:
    with socket.create_server((HOST, 0)) as server:
        with _connect(0, server.getsockname()[1]) as gone:
            port = gone.getsockname()[1]
        with pytest.raises(ConnectionResetError):
            _inode(port, server.getsockname()[1])
