"""A process of this package that ends with this one, for an event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from headgate.broker.runtime.children import begin


class Supervised:
    """A process that ends when its standard input ends, so never after this one. Its start blocks; all else is for the loop.

    Arguments and errors are those of `children.begin`.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]) -> None:
        with ExitStack() as undo:
            self._end, theirs = (undo.enter_context(end) for end in socket.socketpair())
            self._process = begin(arguments, theirs.fileno(), environment, descriptors)
            theirs.close()
            undo.pop_all()
        self._end.setblocking(False)
        self.pid = self._process.pid

    def stop(self) -> None:
        """Let it end in order."""
        with suppress(OSError):  # it has ended
            self._end.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        """The exit code, once the process has ended; negative for a signal."""
        loop = asyncio.get_running_loop()
        with self._end, suppress(ConnectionError):
            await loop.sock_recv(self._end, 1)  # the system closes the other end
        return await loop.run_in_executor(None, self._process.wait)
