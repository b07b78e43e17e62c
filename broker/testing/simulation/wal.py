"""The WAL of a store with append, with its thread split into callbacks: `headgate.broker.engine.write.wal.AppendWal` without a real
thread.

The thread's work runs as a callback of the process, a random time after the moment when the real thread would be woken. When the
real thread blocks in a call, the callback runs the rest of the world (`store.block`). So everything can happen between a write
and the check of the fence: the fence, a recovery, SIGSTOP, SIGKILL.
"""

from __future__ import annotations

import contextvars
from random import Random
from typing import Any

from headgate.broker.engine.write.wal import AppendWal, Loop, WalObserver
from headgate.broker.engine.write.wal_group import GroupWriter
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.testing.simulation.loop import PROCESS, VirtualLoop
from headgate.broker.testing.simulation.store import BlockedError, block

WAKE_S_MAX = 0.002


class _Idle(BaseException):
    """The thread has no work and would wait."""


class SteppedWal(AppendWal):
    """An AppendWal that replaces its thread by a series of callbacks."""

    random = Random(0)
    """The run's random generator; the scenario sets it."""

    def __init__(self, writer: GroupWriter, loop: Loop, observer: WalObserver) -> None:
        super().__init__(writer, loop, observer)
        assert isinstance(loop, VirtualLoop)
        self._virtual = loop
        process = PROCESS.get()
        assert process is not None
        self._process = process
        self._opened = self._working = self._woken = False
        self._thread: Any = self
        self._wake: Any = self
        writer.give_up = _GiveUp(self)  # type: ignore[assignment]

    # -- the interface of the thread

    def start(self) -> None:
        self.release()

    def is_alive(self) -> bool:
        return not self._over

    def join(self) -> None:
        pass

    # -- the interface of the lock on which the thread sleeps

    def acquire(self) -> None:
        raise _Idle

    def release(self) -> None:
        if not self._woken:
            self._woken = True
            # Copies the context: while this callback blocks, other callbacks of the process run.
            self._virtual.call_later(self.random.random() * WAKE_S_MAX, self._step, context=contextvars.copy_context())

    # -- the thread's work

    def _step(self) -> None:
        assert not self._working, "the thread was woken while it worked"
        self._woken, self._working = False, True
        try:
            if not self._opened:
                self._opened = True
                self._writer.open()
            if self._serve():
                self._working = False
                self.release()
                return
            self._writer.seal()
            self.complete = True
        except (_Idle, BlockedError):
            return
        except HeadgateError as error:
            self._report(self._failed, error)
        finally:
            self._working = False
        self._writer.release()
        self._over = True
        self._end_rolls(len(self._rolls))
        self._report(self._ended.set)


class _GiveUp:
    """Stands for a `threading.Event`: while a caller waits for it, the world goes on."""

    def __init__(self, wal: SteppedWal) -> None:
        self._wal = wal
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float) -> bool:
        if not self._set:
            block(self._wal._virtual, self._wal._process, timeout)
        return self._set
