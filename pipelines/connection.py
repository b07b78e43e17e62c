"""The asyncio client for synchronous code: `Connection` runs it on an event loop in a thread of its own.

Spark jobs, Dagster assets and notebooks call from threads with or without a running loop; both work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from headgate.broker.client import Admin
from headgate.broker.client.gate_admin import GateAdmin
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.runtime.tasks import end_tasks
from headgate.pipelines.calls import run_on

_T = TypeVar("_T")


class Connection:
    """A cluster's `Admin` and `GateAdmin` for calls from any thread. A context manager.

    Args:
        cluster: ``host:grpc_port`` of any broker, or several with commas between them.
        timeout_ms: longest wait for one call, with its retries.
    """

    def __init__(self, cluster: str, *, timeout_ms: int = 30_000) -> None:
        self.cluster = cluster
        self._timeout_ms = timeout_ms
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headgate-client", daemon=True)
        self._repeated: list[Repeated] = []
        self.admin: Admin
        self.gates: GateAdmin

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.call(self._open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self.call(self._close())
        finally:
            self._stop()

    def _run(self) -> None:
        self._loop.run_forever()
        # An interrupt may have cancelled a call that had not begun yet: it ends here.
        self._loop.run_until_complete(_end_left())

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run one coroutine to its end. An interrupt of the caller cancels it. Raises the coroutine's error."""
        return run_on(self._loop, work)

    def every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> Repeated:
        """Run `work` repeatedly, with a pause of `seconds` before each run, until it fails or is stopped."""
        return self.call(self._every(seconds, work))

    async def _every(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> Repeated:
        repeated = Repeated(seconds, work)
        self._repeated.append(repeated)
        return repeated

    async def _open(self) -> None:
        self.admin = Admin(self.cluster, timeout_ms=self._timeout_ms)
        self.gates = GateAdmin(self.cluster, timeout_ms=self._timeout_ms)

    async def _close(self) -> None:
        for repeated in self._repeated:
            await repeated.end()
        await self.gates.close()
        await self.admin.close()
        await _end_left()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_left() -> None:
    """End all other tasks of the loop."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    # Ctrl-C has cancelled a call, which closes its sockets: a second cancellation would break that off.
    await asyncio.gather(*(task for task in left if task.cancelling()), return_exceptions=True)
    await end_tasks(left)


class Repeated:
    """A repeated action of a connection. `error` is the error that ended it, or None. Created on the connection's loop."""

    def __init__(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.error: HeadgateError | None = None
        self._task = asyncio.create_task(self._run(seconds, work))
        self._loop = asyncio.get_running_loop()

    async def _run(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            while True:
                await asyncio.sleep(seconds)
                await work()
        except HeadgateError as error:
            # The caller reads the error when the protected work ends.
            self.error = error

    def stop(self) -> None:
        """Stop the action, from any thread; a run under way is cancelled."""
        self._loop.call_soon_threadsafe(self._task.cancel)

    async def end(self) -> None:
        """Stop the action from the loop, and wait until it has ended."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
