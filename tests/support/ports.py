"""Ports for servers that tests start: free now, and not taken while a killed broker is down.

Ports come from below the kernel's ephemeral range. From inside it, a client that keeps connecting to a dead broker can be given
the broker's own port as its source port: on loopback it then connects to itself, and the restarted broker finds its port taken.
"""

from __future__ import annotations

import itertools
import os
import socket

_RANGE = (10_000, 30_000)
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = (_RANGE[1] - _RANGE[0]) // _WORKERS
# Each worker of pytest-xdist has ports of its own. A test that ends a broker and starts it again would otherwise find its port
# taken by the test of another worker.
_FIRST = _RANGE[0] + _WORKER * _PORTS
_LAST = _FIRST + _PORTS
_candidates = itertools.cycle(range(_FIRST, _LAST))
# Processes that a test starts take ports from elsewhere in the range of their worker.
for _ in range((os.getpid() * 97) % _PORTS):
    next(_candidates)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of `host` that nothing listens on, different at every call of this process until the range wraps."""
    for port in itertools.islice(_candidates, _LAST - _FIRST):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port. first=`{_FIRST}` last=`{_LAST}`")
