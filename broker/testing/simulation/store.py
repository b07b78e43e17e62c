"""The store as the processes of a simulation see it: one medium, and between each process and it a network that fails.

A call takes time on its way and on its way back. A request takes effect even if its sender is dead by then. The contract in
store/interface.py allows four faults: the request is lost, the answer is lost, the request takes effect later, or the store does
not answer at all. The medium sets the rates of faults; a cut affects one process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from headgate.broker.runtime.errors import FatalError, InvalidError, Reason, RetryError
from headgate.broker.store.interface import Appender, AppendFile, Buffer, ObjectInfo, Ranges
from headgate.broker.store.keys import check_key, check_listing, check_range, check_ranges, not_found, views
from headgate.broker.store.memory import READ_UNIT_BYTES, MemoryObjects, MemoryStore
from headgate.broker.testing.simulation.clock import SimulatedClock, WallClock
from headgate.broker.testing.simulation.loop import WORLD, Process, VirtualLoop
from headgate.broker.testing.simulation.trace import Trace

LATE_S_MAX = 6.0
TIMEOUT_S = 5.0
"""Longest wait of a process for a store that does not answer, seconds."""


@dataclass(slots=True)
class Weather:
    """The current condition of the store, for all processes. Rates are probabilities per call, times are seconds."""

    latency_s: float = 0.002
    slow_rate: float = 0.0
    slow_s: float = 1.0
    refused_rate: float = 0.0
    ambiguous_rate: float = 0.0
    late_rate: float = 0.0
    outage: bool = False


class Medium:
    """The store's data, shared by all processes.

    Args:
        random: decides which calls fail.
        wrote: called with every object at the moment when it is created or replaced.
    """

    def __init__(self, loop: VirtualLoop, random: Random, trace: Trace, wrote: Callable[[str, bytes], None]) -> None:
        self.loop = loop
        self.random = random
        self.trace = trace
        self.objects = MemoryObjects(SimulatedClock(loop, 0.0, WallClock()))
        self.weather = Weather()
        self.wrote = wrote

    def view(self, process: Process, *, append: bool) -> StoreView:
        """One process's view of the medium."""
        return StoreView(self, process, append)


class StoreView:
    """One process's store. `cut`: no request and no answer passes."""

    def __init__(self, medium: Medium, process: Process, append: bool) -> None:
        self.cut = False
        self._medium = medium
        self._process = process
        self._appender = _Appender(self, MemoryStore(medium.objects)) if append else None

    @property
    def url(self) -> str:
        return "simulation:"

    @property
    def appender(self) -> Appender | None:
        return self._appender

    @property
    def read_unit_bytes(self) -> int:
        return 0 if self._appender is not None else READ_UNIT_BYTES

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        check_key(key)
        copy = b"".join(views(data))

        def effect() -> bool:
            if self._medium.objects.find(key) is not None:
                return False
            self._write(key, copy)
            return True

        return bool(await self._call("put_if_absent", key, effect, True))

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        check_key(key)
        copy = b"".join(views(data))
        await self._call("put", key, lambda: self._write(key, copy), True)

    async def get(self, key: str) -> bytes:
        check_key(key)
        return bytes(await self._call("get", key, lambda: bytes(self._find(key)), False))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        return bytes(await self._call("get_range", key, lambda: bytes(self._find(key)[start : start + length]), False))

    async def get_ranges(self, key: str, ranges: Ranges) -> bytes:
        check_key(key)
        check_ranges(ranges)
        return bytes(await self._call("get_ranges", key, lambda: self._joined(key, ranges), False))

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        check_listing(prefix, start_after, limit)
        listing: list[ObjectInfo] = await self._call(
            "list", prefix, lambda: self._medium.objects.listing(prefix, start_after, limit), False
        )
        return listing

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._call("delete", key, lambda: self._medium.objects.remove(key), True)

    async def close(self) -> None:
        pass

    def _joined(self, key: str, ranges: Ranges) -> bytes:
        data = self._find(key)
        return b"".join([data[start : start + length] for start, length in ranges])

    def _find(self, key: str) -> bytearray:
        data = self._medium.objects.find(key)
        if data is None:
            raise not_found(key)
        return data

    def _write(self, key: str, data: bytes) -> None:
        self._medium.objects.write(key, bytearray(data))
        self._medium.wrote(key, data)

    @property
    def away(self) -> bool:
        """True while requests cannot pass."""
        return self.cut or self._medium.weather.outage

    async def _call(self, operation: str, key: str, effect: Callable[[], Any], writes: bool) -> Any:
        medium = self._medium
        loop, random, weather = medium.loop, medium.random, medium.weather
        answer = loop.create_future()
        delay_s = random.random() * weather.latency_s
        if weather.slow_rate and random.random() < weather.slow_rate:
            delay_s += random.random() * weather.slow_s
        fault = ""
        draw = random.random()
        if draw < weather.refused_rate:
            fault = "refused"
        elif writes and draw < weather.refused_rate + weather.ambiguous_rate:
            fault = "ambiguous"
        elif writes and draw < weather.refused_rate + weather.ambiguous_rate + weather.late_rate:
            fault = "late"

        def fail(what: str) -> None:
            if not answer.done():
                answer.set_exception(
                    RetryError(Reason.STORE_UNAVAILABLE, f"a fault was made on purpose. fault=`{what}` call=`{operation} {key}`")
                )

        def run() -> None:
            error: InvalidError | None = None
            result: Any = None
            try:
                result = effect()
            except InvalidError as refused:
                error = refused
            shown = result if isinstance(result, bool) else "missing" if error else "done"
            medium.trace(self._process, operation, key, shown, fault)
            if fault == "late" or answer.done():
                return
            if self.away:
                loop.call_later(TIMEOUT_S, fail, "cut off", context=WORLD)
            elif fault == "ambiguous":
                fail(fault)
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)

        def arrive() -> None:
            if self.away:
                loop.call_later(TIMEOUT_S, fail, "cut off", context=WORLD)
            elif fault == "refused":
                fail(fault)
            elif fault == "late":
                fail(fault)
                loop.call_later(random.random() * LATE_S_MAX, run, context=WORLD)
            else:
                run()

        loop.call_later(delay_s, arrive, context=WORLD)
        try:
            return await answer
        finally:
            if answer.done() and not answer.cancelled():
                answer.exception()


class BlockedError(BaseException):
    """The process died in a blocking call: no code after the call runs."""


class _Appender:
    """Files that grow in place. Called from the callback that stands for the WAL's thread; a call may block (`block`)."""

    def __init__(self, view: StoreView, store: MemoryStore) -> None:
        self._view = view
        appender = store.appender
        assert appender is not None
        self._appender = appender

    def pass_(self, operation: str, key: str) -> bool:
        """Run before a call. Returns whether a failing call still takes effect. Raises RetryError if it does not."""
        view = self._view
        medium = view._medium
        random, weather = medium.random, medium.weather
        if view._process.dead:
            raise BlockedError
        draw = random.random()
        if view.away or draw < weather.refused_rate:
            raise RetryError(Reason.STORE_UNAVAILABLE, f"a fault was made on purpose. call=`{operation} {key}`")
        medium.trace(view._process, operation, key)
        return draw < weather.refused_rate + weather.ambiguous_rate

    def after(self, operation: str, key: str, failed: bool) -> None:
        """Run after a call: time may pass before the caller continues."""
        self.block()
        if failed:
            raise RetryError(Reason.STORE_UNAVAILABLE, f"a fault was made on purpose. call=`{operation} {key}`")

    def block(self) -> None:
        medium = self._view._medium
        if medium.random.random() < 0.05:
            block(medium.loop, self._view._process, medium.random.random() * 0.05)
        elif medium.random.random() < medium.weather.slow_rate:
            block(medium.loop, self._view._process, medium.random.random() * medium.weather.slow_s)

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        failed = self.pass_("append.create", key)
        if failed:
            raise RetryError(Reason.STORE_UNAVAILABLE, f"a fault was made on purpose. call=`create {key}`")
        return _AppendFile(self, key, self._appender.create(key, size_bytes, filled=filled))

    def exists(self, key: str) -> bool:
        if self.pass_("append.exists", key):
            raise RetryError(Reason.STORE_UNAVAILABLE, f"a fault was made on purpose. call=`exists {key}`")
        return self._appender.exists(key)


class _AppendFile:
    def __init__(self, owner: _Appender, key: str, file: AppendFile) -> None:
        self._owner = owner
        self._key = key
        self._file = file

    @property
    def alignment_bytes(self) -> int:
        return self._file.alignment_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        failed = self._owner.pass_("append.write", self._key)
        if failed and self._owner._view._medium.random.random() < 0.5:
            data = memoryview(b"".join(buffers))
            self._file.write(position, [data[: len(data) // 2]])
        else:
            self._file.write(position, buffers)
        self._owner.after("append.write", self._key, failed)

    def truncate(self, size_bytes: int) -> None:
        failed = self._owner.pass_("append.truncate", self._key)
        self._file.truncate(size_bytes)
        self._owner.after("append.truncate", self._key, failed)

    def close(self) -> None:
        self._file.close()


def block(loop: VirtualLoop, process: Process, seconds: float) -> None:
    """Stand for a thread of `process` that waits for some seconds: everything else goes on meanwhile, including its own event
    loop.

    Raises BlockedError if the process died meanwhile.
    """
    assert asyncio.current_task(loop) is None, "a task of the loop cannot block"
    loop.run(loop.time() + seconds, lambda: process.dead)
    if process.stopped:
        # A stopped process runs nothing, not even a thread after the return of its call.
        loop.run(loop.time() + 3600.0, lambda: process.dead or not process.stopped)
    if process.dead:
        raise BlockedError


__all__ = ["BlockedError", "FatalError", "Medium", "StoreView", "Weather", "block"]
