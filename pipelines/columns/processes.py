"""Tasks of a flood on columns in processes of this machine, without Spark. `Processes` is the driver's end, `main` the process's.

A small flood has no processes: the caller's thread does its tasks. Each process has one task at a time and a low priority, for live
brokers of the same machine come first. A task that fails for the moment is tried again; one whose process dies, too. A process
ends when its driver has ended, and then removes the rows that its tasks passed on.

The standard library's pools import the caller's main module again in each process, which runs a script without a guard a second
time; these processes import what a task needs, and nothing else.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.broker.runtime import children, errors
from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.pipelines.attempts import begin
from headgate.pipelines.columns.errors import UnlikeError
from headgate.pipelines.columns.writing import DIRECTORIES
from headgate.pipelines.session import TASK_TRIES, TASKS

if TYPE_CHECKING:
    from headgate.pipelines.columns.engine import Writing
    from headgate.pipelines.columns.writing import Part

NICENESS = 5
"""Nice value of a process: a broker beside it gets three times its share of a CPU."""
MEMORY_BYTES = 1 << 30
"""Freed memory that a process keeps for its next task."""
_SIZE = struct.Struct("<Q")
_Work = TypeVar("_Work")
_Result = TypeVar("_Result")


class Processes:
    """An engine (`engine.py`) of at most `slots` processes. A context manager.

    Args:
        slots: tasks at a time; 0: the calling thread does them.
        directory: for rows that do not fit into memory; None: the system's.
        done: called after each task with the number of those that read or exchanged rows and of those that wrote, and of all of
            either kind. Called from several threads, one at a time.
    """

    master = "local"

    def __init__(
        self, slots: int, directory: str | None = None, done: Callable[[int, int, int, int], None] = lambda *_: None
    ) -> None:
        self.slots = max(slots, 1)
        self._processes = [_Process() for _ in range(slots)]
        self._idle = list(self._processes)
        self._lock = threading.Lock()
        self._directory = directory
        self._spill: str | None = None
        self._attempts = count(1)
        self._cancelled = False
        self.done = done

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cancel(self) -> None:
        """End all tasks, from any thread. Their calls fail."""
        self._cancelled = True
        for process in self._processes:
            process.kill()

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.end()

    def each(self, task: Callable[[_Work], Iterable[_Result]], work: Sequence[_Work], *, small: bool = False) -> list[_Result]:
        """The results of a task for each member of `work`, in that order. Raises as `engine.Engine.each`."""
        found = self._all([(task, (request,)) for request in work], lambda _: None, here=small)
        return [result for some in found for result in some]

    def write(self, jobs: Sequence[Writing]) -> list[Part]:
        """The parts that these tasks write. Raises as `engine.Engine.each`."""
        from headgate.pipelines.columns.engine import Exchanged

        exchanged = [job for job in jobs if isinstance(job, Exchanged)]
        reading = [(job.read, (request,)) for job in exchanged for request in job.work]
        writing: list[tuple[Any, tuple[Any, ...]]] = [
            (job.write, (request,)) for job in jobs if not isinstance(job, Exchanged) for request in job.work
        ]
        writers = len(writing) + sum(job.writers[-1] + 1 for job in exchanged)

        def told(read: bool) -> Callable[[int], None]:
            return lambda number: self.done(number if read else len(reading), len(reading), 0 if read else number, writers)

        # All rows of a bucket are there before it is written, and no rows wait longer than they must.
        read = iter(self._all(reading, told(read=True)))
        for job in exchanged:
            blobs: dict[int, list[Any]] = defaultdict(list)
            for _ in job.work:
                for bucket, blob in next(read):
                    blobs[job.writers[bucket]].append((bucket, blob))
            writing += [(job.write, (writer, some)) for writer, some in sorted(blobs.items())]
        return [part for parts in self._all(writing, told(read=False)) for part in parts]

    @contextmanager
    def spill(self) -> Iterator[str]:
        """A directory for rows on their way between tasks."""
        with tempfile.TemporaryDirectory(prefix="headgate-rows-", dir=self._directory, ignore_cleanup_errors=True) as place:
            self._spill = place
            yield place

    def _all(
        self, calls: Sequence[tuple[Any, tuple[Any, ...]]], told: Callable[[int], None], *, here: bool = False
    ) -> list[list[Any]]:
        """The results of these calls. `here`: in the calling thread."""
        here = here or not self._processes
        ended = count(1)

        def call(request: tuple[Any, tuple[Any, ...]]) -> list[Any]:
            found = self._tried(*request, here=here)
            with self._lock:
                told(next(ended))
            return found

        if here:
            return [call(request) for request in calls]
        with ThreadPoolExecutor(len(self._processes), "headgate-task") as threads:
            under_way = [threads.submit(call, request) for request in calls]
            try:
                return [future.result() for future in under_way]
            except BaseException:
                for future in under_way:
                    future.cancel()
                self.cancel()
                raise

    def _tried(self, task: Any, work: tuple[Any, ...], *, here: bool) -> list[Any]:
        for tries_left in reversed(range(TASK_TRIES)):
            if self._cancelled:
                raise RetryError(Reason.INTERNAL, "the flood was cancelled")
            try:
                return self._once(task, work, here=here)
            except RetryError:
                if not tries_left or self._cancelled:
                    raise
        raise AssertionError("a task is tried at least once")

    def _once(self, task: Any, work: tuple[Any, ...], *, here: bool) -> list[Any]:
        attempt = next(self._attempts)
        if here:
            begin(attempt)
            return list(task(*work))
        with self._lock:
            process = self._idle.pop()
        try:
            return process.call(attempt, self._spill, task, work)
        finally:
            with self._lock:
                self._idle.append(process)


class _Process:
    """The driver's end of one process, which starts with its first task."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._killed = False

    def call(self, attempt: int, spill: str | None, task: Any, work: tuple[Any, ...]) -> list[Any]:
        """The results of a task. Raises its error; RetryError when the process dies."""
        if self._socket is None:
            self._start()
        assert self._socket is not None and self._child is not None
        try:
            _send(self._socket, (attempt, spill, task, work))
            well, found = _receive(self._socket)
        except (OSError, EOFError) as error:
            code = self.end()
            said = children.how_ended(code)
            if code == -signal.SIGKILL:
                said += "; the system kills a process when memory is short: spark.headgate.taskMemory gives tasks less"
            raise RetryError(Reason.INTERNAL, f"a process that did a flood's task ended: {said}") from error
        if well:
            return list(found)
        raise _error(*found)

    def _start(self) -> None:
        try:
            self._child, ours = children.start("headgate.pipelines.columns.processes", environment=children.keeping(MEMORY_BYTES))
        except OSError as error:
            raise RetryError(Reason.OVERLOADED, f"no process for a flood's tasks could be begun: {error}") from error
        self._socket = ours
        if self._killed:
            self.kill()

    def kill(self) -> None:
        """End the process in the middle of its task."""
        self._killed = True
        if self._child is not None:
            self._child.kill()

    def end(self) -> int:
        """End the process. Returns its exit code."""
        child, self._child = self._child, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if child is None:
            return 0
        # A process without a task ends when its socket is closed; one that has a task was killed, or is not waited for.
        child.terminate()
        return child.wait()


def _error(kind: str, reason: str, message: str) -> Exception:
    """The error of a task, as the process told it."""
    if kind == UnlikeError.__name__:
        return UnlikeError(message)
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, HeadgateError):
        return found(Reason(reason), message)
    return RetryError(Reason.INTERNAL, f"a flood's task failed: {kind}: {message}")


def _send(end: socket.socket, what: object) -> None:
    data = pickle.dumps(what, pickle.HIGHEST_PROTOCOL)
    end.sendall(_SIZE.pack(len(data)))
    end.sendall(data)


def _receive(end: socket.socket) -> Any:
    (size,) = _SIZE.unpack(_exactly(end, _SIZE.size))
    return pickle.loads(_exactly(end, size))


def _exactly(end: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        found = end.recv_into(view[at:])
        if not found:
            raise EOFError
        at += found
    return data


# The following runs in the process.


def serve(end: socket.socket) -> None:
    """Do tasks until the driver has ended."""
    threading.Thread(target=_end_with, args=(end,), name="headgate-driver", daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the thread ends this process
        while True:
            attempt, place, task, work = _receive(end)
            if place is not None:
                os.environ[DIRECTORIES] = place  # runs of a large sort lie beside the rows between tasks
            begin(attempt)
            try:
                answer: tuple[bool, Any] = True, list(task(*work))
            except UnlikeError as error:
                answer = False, (UnlikeError.__name__, "", str(error))
            except HeadgateError as error:
                answer = False, (type(error).__name__, error.reason.value, error.message)
            except Exception as error:  # noqa: BLE001  # of any library; the driver raises it
                answer = False, (type(error).__name__, "", str(error)[:500])
            _send(end, answer)


def _end_with(end: socket.socket) -> None:
    """End this process with its driver, also in the middle of a task, and remove what the tasks passed on."""
    waiting = select.poll()
    waiting.register(end, getattr(select, "POLLRDHUP", select.POLLHUP))
    waiting.poll()
    if place := os.environ.get(DIRECTORIES):
        shutil.rmtree(place, ignore_errors=True)
    os._exit(1)


def main() -> None:
    """Do tasks for the driver at the other end of a socket. The argument is the socket's descriptor."""
    # A terminal and a supervisor signal whole process groups; the driver decides what that means for its tasks.
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    os.environ.pop(DIRECTORIES, None)
    import_module(TASKS)
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
