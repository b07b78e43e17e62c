"""Folds to files in a process of its own, with a low priority, that reads and writes the store itself.

Both ends are here. A request is a job, the answer its result; each is JSON after its length. There is one job at a time. The
process ends when the other end of its socket is closed, so it never outlives its broker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

import msgspec

from headgate.broker.engine.upkeep.adopted_folds import AdoptedJob, AdoptedResult
from headgate.broker.engine.upkeep.file_fold import Job, Result
from headgate.broker.runtime import children
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.modules import without_pandas
from headgate.broker.store.interface import Store

if TYPE_CHECKING:
    from subprocess import Popen

    from headgate.broker.engine.upkeep.compact_work import Compactor

logger = get_logger("offline")

MEMORY_BYTES = 128 << 20
"""Freed memory that the process keeps for its next file; it ends when there is nothing to fold."""
MESSAGE_BYTES_MAX = 64 << 20
_LENGTH = struct.Struct("<I")


class Worker(Protocol):
    """Does the work of folds."""

    async def fold(self, job: Job) -> Result:
        """Do a job. Raises RetryError if the process that did it has ended."""

    async def fold_adopted(self, job: AdoptedJob) -> AdoptedResult:
        """The same for adopted rows."""

    async def rest(self) -> None:
        """There is no work for some time."""


class LoopWorker:
    """Folds on the loop: for a store that only this process can see."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._compactor: Compactor | None = None

    async def fold(self, job: Job) -> Result:
        result = await self._work(job)
        assert isinstance(result, Result)
        return result

    async def fold_adopted(self, job: AdoptedJob) -> AdoptedResult:
        result = await self._work(job)
        assert isinstance(result, AdoptedResult)
        return result

    async def _work(self, job: Job | AdoptedJob) -> Result | AdoptedResult:
        from headgate.broker.engine.upkeep.file_fold_work import Compactor, work

        self._compactor = self._compactor or Compactor()
        return await work(self._store, job, self._compactor)

    async def rest(self) -> None:
        self._compactor = None


class ProcessWorker:
    """The broker's end of the process. The first job starts it.

    Args:
        store_url: see `open_store`.
        niceness: nice value of the process. No client waits for a fold, but records that are never folded fill the store.
    """

    def __init__(self, store_url: str, niceness: int) -> None:
        self._store_url = store_url
        self._niceness = niceness
        self._process: Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def fold(self, job: Job) -> Result:
        return msgspec.json.decode(await self._ask(job), type=Result)

    async def fold_adopted(self, job: AdoptedJob) -> AdoptedResult:
        return msgspec.json.decode(await self._ask(job), type=AdoptedResult)

    async def _ask(self, job: Job | AdoptedJob) -> bytes:
        """The answer of the process."""
        loop = asyncio.get_running_loop()
        if self._socket is None:
            await loop.run_in_executor(None, self._begin)
        assert self._socket is not None
        try:
            data = msgspec.json.encode(job)
            await loop.sock_sendall(self._socket, _LENGTH.pack(len(data)) + data)
            (length,) = _LENGTH.unpack(await self._receive(_LENGTH.size))
            return await self._receive(length)
        except OSError as error:
            how = await self._end()
            raise RetryError(Reason.STORE_UNAVAILABLE, f"the process that folds records to files ended: {how}") from error
        except asyncio.CancelledError:
            await self._end()  # its answer would be taken for that of the next job
            raise

    async def rest(self) -> None:
        await self._end()

    def _begin(self) -> None:
        try:
            self._process, ours = children.start(
                __spec__.name, self._store_url, str(self._niceness), environment=children.keeping(MEMORY_BYTES)
            )
        except OSError as error:
            raise RetryError(Reason.OVERLOADED, f"no process to fold records could be begun: {error}") from error
        ours.setblocking(False)
        self._socket = ours

    async def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        parts: list[bytes] = []
        while size:
            part = await asyncio.get_running_loop().sock_recv(self._socket, size)
            if not part:
                raise ConnectionResetError("the other end was closed")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    async def _end(self) -> str:
        """End the process. Returns how it ended."""
        process, self._process = self._process, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if process is None:
            return "it did not run"
        ended = process.poll()
        process.kill()
        code = await asyncio.get_running_loop().run_in_executor(None, process.wait)
        if ended is None:
            return "it was stopped"
        return children.how_ended(code)


# The following runs in the process.


async def serve(end: socket.socket, store: Store) -> None:
    """Do jobs until the other end is closed."""
    from headgate.broker.engine.upkeep.file_fold_work import Compactor, work

    compactor = Compactor()
    reader, writer = await asyncio.open_connection(sock=end)
    try:
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            job = msgspec.json.decode(await reader.readexactly(length), type=Job | AdoptedJob)
            try:
                result = await work(store, job, compactor)
            except HeadgateError as error:
                result = AdoptedResult(retry=error.message) if isinstance(job, AdoptedJob) else Result(retry=error.message)
            data = msgspec.json.encode(result)
            writer.write(_LENGTH.pack(len(data)) + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the broker is gone
    finally:
        writer.close()
        await store.close()


def main() -> None:
    """Fold for the broker at the other end of a socket. Arguments: the socket's descriptor, the store's URL, a nice value."""
    # A terminal and a supervisor signal whole process groups; the broker ends this process itself.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    descriptor, url, niceness = sys.argv[1:]
    without_pandas()
    os.nice(int(niceness))
    import_module("headgate.broker.engine.upkeep.file_fold_work")
    from headgate.broker.engine.base import keys
    from headgate.broker.store.open import open_store

    try:
        store = open_store(url, required_key=keys.CLUSTER_ID)
    except HeadgateError as error:
        # A full disk, for example. The broker starts this process again for its next pass.
        sys.exit(f"the process that folds records to files cannot open the store: {error.message}")
    asyncio.run(serve(socket.socket(fileno=int(descriptor)), store))


if __name__ == "__main__":
    main()
