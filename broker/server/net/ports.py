"""Binding of ports: early, before any file or object that another broker may be using is changed, and with an error that tells a
person the remedy."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from headgate.broker.runtime.errors import FatalError, Reason

BACKLOG = 1024
"""Connections that the kernel accepts for the broker while its loop is busy or still starting."""


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; clients may connect at once, and wait until the loop accepts them.

    Args:
        port: 0 for any free one.
        setting: the setting that chose the port, for the error.

    Raises:
        FatalError(INVALID_CONFIG) that names address, port and remedy.
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
    """A listening socket that a supervisor has opened and keeps. Processes that this one starts do not inherit it."""
    listening = socket.socket(fileno=descriptor)
    listening.set_inheritable(False)
    listening.setblocking(False)
    return listening


def listen_again(listening: socket.socket) -> None:
    """Make a socket listen again. A broker may have stopped it for all processes that hold it. Does nothing to a listening
    socket."""
    listening.listen(BACKLOG)


def refuse_more(listening: socket.socket) -> None:
    """Refuse connections from now on, even if another process holds the socket: waiting connections would never be accepted."""
    with suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)


def check_free(host: str, port: int, setting: str) -> None:
    """Raises the FatalError of `listen` if `port` cannot be bound now; for a library that insists on binding by itself."""
    _bind(host, port, setting).close()


def free(host: str) -> int:
    """A port without a listener at the moment; for components that must announce their port before they listen."""
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
        # As bytes: for an ordinary name Python then does not load its tables for international names.
        name = host.encode() if host.isascii() else host
        family, kind, protocol, _, where = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
        # A killed broker leaves connections in TIME_WAIT; they must not keep its successor from the port.
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
