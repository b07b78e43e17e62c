"""Taking ports: early, before anything is touched that another broker may be using, and with an answer a person can act on."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from headgate.broker.runtime.errors import FatalError, Reason

BACKLOG = 1024
"""Connections that the kernel accepts for us while the loop is busy or still starting."""


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; clients may connect at once, and wait until somebody accepts.

    Args:
        port: 0 for any free one.
        setting: the setting that chose the port, for the error.

    Raises:
        FatalError(INVALID_CONFIG) that names address and port and what to do.
    """
    bound = _bind(host, port, setting)
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise _explained(error, host, port, setting) from error
    bound.setblocking(False)
    return bound


def adopt(descriptor: int) -> socket.socket:
    """A listening socket that a supervisor has opened and keeps; no process that this one begins inherits it."""
    listening = socket.socket(fileno=descriptor)
    listening.set_inheritable(False)
    listening.setblocking(False)
    return listening


def listen_again(listening: socket.socket) -> None:
    """Have a socket listen that a broker may have closed for all processes that hold it; does nothing to one that listens."""
    listening.listen(BACKLOG)


def refuse_more(listening: socket.socket) -> None:
    """Refuse connections from now on, also where another process holds the socket: those that wait there would wait in vain."""
    with suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)


def check_free(host: str, port: int, setting: str) -> None:
    """Raises FatalError as `listen` does if `port` cannot be taken now; for a library that insists on binding by itself."""
    _bind(host, port, setting).close()


def free(host: str) -> int:
    """A port that nobody listens on now; for those who must say where they will listen before they do."""
    bound = _bind(host, 0, "grpc_port")
    try:
        return address(bound)[1]
    finally:
        bound.close()


def address(bound: socket.socket) -> tuple[str, int]:
    """(host, port) that a socket listens on."""
    host, port = bound.getsockname()[:2]
    return host, port


def shown(host: str, port: int) -> str:
    """``127.0.0.1:9092``, ``[::1]:9092``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind(host: str, port: int, setting: str) -> socket.socket:
    bound: socket.socket | None = None
    try:
        # As bytes, an ordinary name does not make Python load its tables for international ones.
        name = host.encode() if host.isascii() else host
        family, kind, protocol, _, where = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
        # A broker that was killed leaves connections in TIME_WAIT; they must not keep its successor from the port.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except (OSError, UnicodeError) as error:
        if bound is not None:
            bound.close()
        raise _explained(error, host, port, setting) from error
    return bound


def _explained(error: Exception, host: str, port: int, setting: str) -> FatalError:
    number = error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror) else None
    flag = "--" + setting.replace("_", "-")
    where = f"address=`{shown(host, port)}`"
    match number:
        case errno.EADDRINUSE:
            text = f"port is taken: stop the process that listens there, or choose another port with {flag}. {where}"
        case errno.EACCES | errno.EPERM:
            text = f"port may not be used: ports below 1024 need privileges, choose another one with {flag}. {where}"
        case None | errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            text = f"host is not an address of this machine: choose another one with --host. {where}"
        case _:
            text = f"cannot listen: {str(error).lower()}. {where}"
    return FatalError(Reason.INVALID_CONFIG, text)
