"""Ports between processes that a test can cut, as a network failure does.

A *door* is a port that forwards everything to another port. When a party is cut off, its connections stay open but carry no
bytes in either direction, and new connections are accepted and stay silent, as with a broken switch. After healing, all bytes
that were held back arrive in order, as with TCP. A door can also be shut: it refuses connections, as a machine does after the end
of its process. A delayed door passes every byte later, in both directions, and a new connection through it opens one round trip
later, as on a long way.

Doors run in a separate process, so that a busy test does not delay them. The process identifies the connecting party by the
owner of the connection's other end: a process with a party's door in its command line is that party.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
PIECE_BYTES = 1 << 16
PIECES_MAX = 1024
"""Pieces on their way through a delayed door."""
ESTABLISHED = 1
ERROR = 2
SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST = 4, 20, 1
"""Protocol number of sock_diag(7)."""


class Network:
    """All doors of one test. Use it as a context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.support.network"]
        root = Path(__file__).resolve().parents[2]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def door(self, name: str, port: int, user: str = "") -> int:
        """Open a port on this machine that forwards to `port` of the party `name`.

        Args:
            user: the only party that connects to it; "": any party, and the owner of each connection is looked up.
        """
        number: int = self._ask({"door": [name, port, user]})
        return number

    def cut(self, *pairs: tuple[str, str]) -> None:
        """Cut these parties off from each other, in both directions of connecting."""
        self._ask({"cut": [*pairs, *((other, one) for one, other in pairs)]})

    def shut(self, name: str) -> None:
        """Refuse connections at this party's doors."""
        self._ask({"shut": name})

    def open(self, name: str) -> None:
        """Accept connections at this party's doors again."""
        self._ask({"open": name})

    def heal(self) -> None:
        """End every cut."""
        self._ask({"cut": []})

    def delay(self, seconds: Mapping[str, float]) -> None:
        """Set the delay of each way through the doors of these parties, in seconds. The doors of all others have none.

        A key is a party, or a party and the one that connects to it: ``store-2``.
        """
        self._ask({"delay": dict(seconds)})

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Doors:
    """The forwarding process."""

    def __init__(self) -> None:
        self._doors: dict[int, tuple[str, int, str]] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._parties: dict[int, str] = {}
        """By process id: the party that the process is known to be."""
        self._cut: set[tuple[str, str]] = set()
        self.delays_s: dict[str, float] = {}
        """By party, the delay of each way through its doors, in seconds."""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Execute commands until standard input ends."""
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            sys.stdout.write(json.dumps(await self._obey(json.loads(line))) + "\n")
            sys.stdout.flush()

    async def _obey(self, question: dict[str, Any]) -> int:
        if "door" in question:
            return await self.door(*question["door"])
        for number, (name, port, user) in self._doors.items():
            if question.get("open") == name and number not in self._servers:
                await self._open(name, port, user, number)
            elif question.get("shut") == name and number in self._servers:
                self._servers.pop(number).close()
        if "delay" in question:
            self.delays_s = question["delay"]
        if "cut" not in question:
            return 0
        self._cut = {(one, other) for one, other in question["cut"]}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        return 0

    async def door(self, name: str, port: int, user: str = "") -> int:
        """Open a door; as `Network.door`."""
        number = await self._open(name, port, user, 0)
        self._doors[number] = (name, port, user)
        return number

    def close(self) -> None:
        """Refuse connections at all doors."""
        for server in self._servers.values():
            server.close()

    async def _open(self, name: str, port: int, user: str, number: int) -> int:
        server = await asyncio.start_server(lambda reader, writer: self._serve(name, port, user, reader, writer), HOST, number)
        number = server.sockets[0].getsockname()[1]
        self._servers[number] = server
        return number

    def _delay_s(self, link: tuple[str, str]) -> float:
        user, name = link
        return self.delays_s.get(f"{name}-{user}", self.delays_s.get(name, 0.0))

    async def _passes(self, link: tuple[str, str]) -> None:
        while link in self._cut:
            await self._changed.wait()

    async def _serve(self, name: str, port: int, user: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError, asyncio.CancelledError):
            link = (user or self._party(writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]), name)
            await asyncio.sleep(2 * self._delay_s(link))
            await self._passes(link)
            back, onward = await asyncio.open_connection(HOST, port)
            pumps = [asyncio.ensure_future(self._pump(link, *ends)) for ends in ((reader, onward), (back, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        for end in (writer, onward):
            if end is not None:
                end.close()

    async def _pump(self, link: tuple[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward until one side ends. Bytes on the way are those of one delay, and leave in order."""
        loop = asyncio.get_running_loop()
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_MAX)

        async def read() -> None:
            data = b"?"
            while data:
                try:
                    data = await reader.read(PIECE_BYTES)
                except OSError:
                    data = b""
                await way.put((loop.time() + self._delay_s(link), data))

        reading = asyncio.create_task(read())
        try:
            with contextlib.suppress(OSError):
                while True:
                    due_s, data = await way.get()
                    if due_s > loop.time():
                        await asyncio.sleep(due_s - loop.time())
                    await self._passes(link)
                    if not data:
                        return
                    writer.write(data)
                    await writer.drain()
        finally:
            reading.cancel()

    def _party(self, port: int, door: int) -> str:
        """The party that connects from this port to this door; "" for a process without a door in its command line.

        Raises ConnectionResetError if the connection has ended. The lookup skips ended connections: on a busy machine it would
        delay clients that retry because of clients that gave up, until the retries gave up too.
        """
        wanted = f"socket:[{_inode(port, door)}]"
        for pid, name in list(self._parties.items()):
            if self._owns(pid, wanted):
                return name
        # The process is new. The scan of all processes takes a while, and no door forwards meanwhile: it runs once per process.
        doors = {str(number): name for number, (name, _, _) in self._doors.items()}
        for pid in (int(process.name) for process in Path("/proc").iterdir() if process.name.isdigit()):
            if pid in self._parties:
                continue
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if found := {doors[word] for word in words if word in doors}:
                    self._parties[pid] = found.pop()
                    if self._owns(pid, wanted):
                        return self._parties[pid]
        return ""

    def _owns(self, pid: int, wanted: str) -> bool:
        try:
            return any(_link(file) == wanted for file in Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            del self._parties[pid]  # the process has ended
            return False


def _link(file: Path) -> str:
    try:
        return os.readlink(file)
    except OSError:  # the file was closed a moment ago
        return ""


def _inode(port: int, other: int) -> str:
    """The inode of the socket that is connected from this port to that one. Raises ConnectionResetError if there is none.

    The source port alone is ambiguous: a connection to another place that has just ended may have had it too. The function asks
    the kernel for the one socket (sock_diag(7)): reading all of /proc/net/tcp takes longer on a busy machine than a client
    waits.
    """
    here = socket.inet_aton(HOST).ljust(16, b"\0")
    ends = struct.pack("!HH", port, other) + here + here + struct.pack("=IQ", 0, 2**64 - 1)
    question = struct.pack("=BBxxI", socket.AF_INET, socket.IPPROTO_TCP, 1 << ESTABLISHED) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, SOCK_DIAG) as kernel:
        kernel.send(struct.pack("=IHHII", 16 + len(question), SOCK_DIAG_BY_FAMILY, REQUEST, 0, 0) + question)
        answer = kernel.recv(PIECE_BYTES)
    kind, state = struct.unpack_from("=H", answer, 4)[0], answer[17]
    if kind == ERROR or state != ESTABLISHED:
        raise ConnectionResetError(f"no socket is connected. port=`{port}` to=`{other}`")
    (inode,) = struct.unpack_from("=I", answer, 84)
    return str(inode)


if __name__ == "__main__":
    asyncio.run(Doors().run())
