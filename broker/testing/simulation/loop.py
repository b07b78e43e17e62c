"""An event loop in virtual time. It runs several processes, which a scenario can kill, stop and resume.

Nothing here waits: when no callback is ready, time jumps to the next timer. Callbacks run in the order in which they became
ready, so the same seed gives the same run. Every callback belongs to the process of the `contextvars` context in which it was
scheduled (`PROCESS`), or to the world (None): the network, the store, the clients and the checkers.

- A *killed* process runs no callback any more, not even `finally` blocks, as after SIGKILL. The messages that it has sent still
  arrive.
- A *stopped* process runs no callback until it is resumed. Then all events of that time arrive at once, as after SIGCONT.

A callback that stands for a thread in a blocking call may run the loop itself (it calls `VirtualLoop.run`): everything else goes
on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

HANDLES_MAX = 3_000_000
"""Bound of the callbacks of one run: more mean an endless loop."""


class Process:
    """The owner of callbacks. Code outside of the process schedules its callbacks in `context`."""

    __slots__ = ("backlog", "context", "dead", "name", "stopped")

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped = False
        self.backlog: list[Handle] = []
        self.context = contextvars.Context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("PROCESS", default=None)
WORLD = contextvars.Context()
"""Owner of callbacks that belong to no process."""


class StuckError(AssertionError):
    """The run does not end."""


class Handle:
    """A scheduled callback. It has the part of `asyncio.TimerHandle` that asyncio uses."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context", "_when")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context, when: float) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self._when


class _Task(asyncio.Task[Any]):
    """A task with a hash that does not depend on its memory address: sets of tasks have the same order in every run."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Task:
        self = super().__new__(cls)
        self.serial = next(kwargs["loop"].serials)
        return self

    serial: int
    process: Process | None = None

    def __hash__(self) -> int:
        return self.serial


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop in virtual time for several processes.

    Args:
        connect: stands for `asyncio.open_connection`: returns if a process listens there, else raises OSError.
    """

    def __init__(self, connect: Callable[[str, int], Awaitable[None]]) -> None:
        self.serials = itertools.count(1)
        self.handles = 0
        """Callbacks run so far."""
        self.failures: list[str] = []
        """Unexpected errors: of callbacks, and of tasks that no caller awaits."""
        self._connect = connect
        self._now = 1000.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._tasks: list[_Task] = []
        self._closed = False

    # -- running

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Run everything up to a moment, or until `stop` returns True between two moments. A callback may call this.

        Raises StuckError if the run does not end.
        """
        outer = events._get_running_loop()
        events._set_running_loop(self)
        ready, timers = self._ready, self._timers
        try:
            while True:
                while ready:
                    self._run_handle(ready.popleft())
                if stop is not None and stop():
                    return
                if not timers or timers[0][0] > until:
                    self._now = max(self._now, until)
                    return
                self._now = max(self._now, timers[0][0])
                while timers and timers[0][0] <= self._now:
                    handle = heapq.heappop(timers)[2]
                    if not handle._cancelled:
                        ready.append(handle)
        finally:
            events._set_running_loop(outer)

    def _run_handle(self, handle: Handle) -> None:
        if handle._cancelled:
            return
        context = handle._context
        process = context.get(PROCESS)
        if process is not None and (process.dead or process.stopped):
            if not process.dead:
                process.backlog.append(handle)
            return
        self.handles += 1
        if self.handles > HANDLES_MAX:
            raise StuckError(f"the simulation runs in circles. callback=`{handle._callback}` time=`{self._now:.3f}`")
        try:
            context.run(handle._callback, *handle._args)
        except (AssertionError, KeyboardInterrupt):
            raise
        except Exception as error:  # noqa: BLE001  # the run goes on, and is judged as failed
            self.failures.append(f"{process or 'world'}: {type(error).__name__}: {error} in {handle._callback}")

    # -- processes

    def stop_process(self, process: Process) -> None:
        """Stop a process, as SIGSTOP does."""
        process.stopped = True

    def resume(self, process: Process) -> None:
        """Resume a process, as SIGCONT does."""
        process.stopped = False
        backlog, process.backlog = process.backlog, []
        self._ready.extend(backlog)

    def kill(self, process: Process) -> None:
        """Kill a process, as SIGKILL does."""
        process.dead = True
        process.backlog = []

    def close(self) -> None:
        """Drop every waiting task, in the order in which the tasks began."""
        for task in self._tasks:
            if task.done():
                if task._log_traceback and not (task.process is not None and task.process.dead):
                    self.failures.append(f"nobody looked at an error: {task.exception()!r} of {task.get_name()}")
                task._log_traceback = False
        self._closed = True
        for task in self._tasks:
            if task.done():
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine: Any = task.get_coro()
            for _ in range(20):
                try:
                    coroutine.close()
                    break
                except BaseException:  # noqa: BLE001  # `finally` blocks of killed tasks: their errors do not matter any more
                    continue
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()

    # -- the interface that asyncio needs

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context(), self._now)
        if not self._closed:
            self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        handle = Handle(callback, args, context if context is not None else contextvars.copy_context(), when)
        if not self._closed:
            heapq.heappush(self._timers, (when, next(self.serials), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=name or "task", context=context)
        task.process = (context or contextvars.copy_context()).get(PROCESS)
        self._tasks.append(task)
        if len(self._tasks) > 4000:
            self._tasks = [task for task in self._tasks if not task.done() or task._log_traceback]
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        future.set_result(func(*args))
        return future

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        await self._connect(str(host), int(port))
        return _Transport(), protocol_factory()

    async def create_server(self, protocol_factory: Any, *, sock: Any, **options: Any) -> Any:  # type: ignore[override]
        """Accept the connections of a `sockets.Listening`."""
        sock.accept(protocol_factory)
        return sock

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._closed:
            self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)


def start(loop: VirtualLoop, process: Process, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    """Start a task in a process, called from outside of it."""
    return loop.create_task(work, name=name, context=process.context.copy())


class _Transport:
    """Transport of a connection that only tests if a process listens."""

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default
