"""Doors between processes that can be cut, as a network is.

A door is a port that passes everything on to another one. A process that is cut off keeps its connections, but nothing comes through
them any more, in either direction, and new ones are taken and stay silent: what a broken switch does. Healed, everything that was
held back comes through, in order: what TCP does. Who connects is told by the owner of the connection's other end, so that one
process can be cut off from a door that others go on using.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.broker_process import HOST

PIECE_BYTES = 1 << 16
WATCH_S = 0.02
"""So soon after its process a door is closed: who knocks is refused, as on a machine whose process is gone."""


class Network:
    """All doors of one test, on a thread of its own. Use it as a context manager."""

    def __init__(self) -> None:
        self.pids: Callable[[], dict[str, int]] = dict
        """The processes that run at the moment and may be cut off, by name."""
        self._cut: set[tuple[str, str]] = set()
        self._changed = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network")
        self._tasks: set[asyncio.Task[Any]] = set()
        self._servers: dict[int, asyncio.Server] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def door(self, name: str, port: int, *, watched: bool = False) -> int:
        """A port on this machine that leads to `port`, which belongs to `name`. `watched`: open as long as that process runs."""
        number: int = self._run(self._open(name, port, 0))
        if watched:
            self._run(self._watch(name, port, number))
        return number

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Nothing passes any more between these, whoever connected to whom."""
        self._run(self._set({*self._cut, *pairs, *((other, one) for one, other in pairs)}))

    def heal(self) -> None:
        """Everything passes again."""
        self._run(self._set(set()))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self, name: str, port: int, number: int) -> int:
        server = await asyncio.start_server(lambda reader, writer: self._serve(name, port, reader, writer), HOST, number)
        number = server.sockets[0].getsockname()[1]
        self._servers[number] = server
        return number

    async def _watch(self, name: str, port: int, number: int) -> None:
        async def watch() -> None:
            while True:
                runs = name in self.pids()
                if runs and number not in self._servers:
                    await self._open(name, port, number)
                elif not runs and number in self._servers:
                    self._servers.pop(number).close()
                await asyncio.sleep(WATCH_S)

        self._tasks.add(asyncio.ensure_future(watch()))

    async def _set(self, cut: set[tuple[str, str]]) -> None:
        self._cut = cut
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _passes(self, link: tuple[str, str]) -> None:
        while link in self._cut:
            await self._changed.wait()

    async def _serve(self, name: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        link = (self._owner(writer.get_extra_info("peername")[1]), name)
        onward: asyncio.StreamWriter | None = None
        try:
            await self._passes(link)
            back, onward = await asyncio.open_connection(HOST, port)
            pumps = [asyncio.ensure_future(self._pump(link, *ends)) for ends in ((reader, onward), (back, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass  # nobody listens behind the door, or the test is over: whoever knocked sees the connection end
        finally:
            for end in (writer, onward):
                if end is not None:
                    end.close()

    async def _pump(self, link: tuple[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                data = await reader.read(PIECE_BYTES)
                await self._passes(link)
                if not data:
                    return
                writer.write(data)
                await writer.drain()

    def _owner(self, port: int) -> str:
        """Which of the processes has a connection from this port; "" for any other."""
        inode = _inode(port)
        for name, pid in self.pids().items():
            try:
                for file in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if os.readlink(file) == f"socket:[{inode}]":
                            return name
            except OSError:
                continue  # it has just ended
        return ""


def _inode(port: int) -> str:
    """Of the connected socket on this machine whose own port this is."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            row = line.split()
            if int(row[1].rsplit(":", 1)[1], 16) == port and int(row[2].rsplit(":", 1)[1], 16) != 0:
                return row[9]
    return ""
