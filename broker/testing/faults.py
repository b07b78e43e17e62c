"""A store wrapper that injects faults, by script or by seed.

The wrapper stands between a caller and a healthy store. It injects only the faults that the contract in store/interface.py
allows, so code that passes with it relies on nothing that S3 or a disk does not guarantee. With a seeded `random` every run is
the same.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from random import Random
from typing import TypeVar

from headgate.broker.runtime.errors import HeadgateError, Reason, RetryError
from headgate.broker.store.interface import Appender, AppendFile, Buffer, ObjectInfo, Ranges, Store
from headgate.broker.store.keys import views

LATE_CALLS_MAX = 8
"""Upper bound of the operations that take effect before a LATE operation does."""


class Fault(StrEnum):
    """One way in which a call fails."""

    REFUSED = "refused"
    """RetryError; the operation did not take effect. Stands for 503 SlowDown or a refused connection."""
    FULL = "full"
    """RetryError(STORE_FULL); the operation did not take effect. Writes only."""
    AMBIGUOUS = "ambiguous"
    """RetryError; the operation took effect. Stands for an object that was stored but answered with 500. Writes only."""
    LATE = "late"
    """RetryError; the operation takes effect later. Stands for a request that timed out and is still under way. Writes only."""
    LOST_RACE = "lost_race"
    """Another writer created the key a moment ago, with other bytes. `put_if_absent` only."""
    TRUNCATED = "truncated"
    """RetryError in the middle of the answer's bytes. Reads only."""
    DELAYED = "delayed"
    """The operation is delayed and then succeeds."""
    TORN = "torn"
    """RetryError; only a part of the bytes was written. Writes of an append file only."""


_READS = frozenset({Fault.REFUSED, Fault.TRUNCATED, Fault.DELAYED})
_WRITES = frozenset({Fault.REFUSED, Fault.FULL, Fault.AMBIGUOUS, Fault.LATE, Fault.DELAYED})
POSSIBLE: Mapping[str, frozenset[Fault]] = {
    "put_if_absent": _WRITES | {Fault.LOST_RACE},
    "put": _WRITES,
    "get": _READS,
    "get_range": _READS,
    "get_ranges": _READS,
    "list": _READS,
    "delete": _WRITES - {Fault.FULL},
    "appender.create": frozenset({Fault.REFUSED, Fault.FULL}),
    "appender.exists": frozenset({Fault.REFUSED}),
    "appender.write": frozenset({Fault.REFUSED, Fault.FULL, Fault.AMBIGUOUS, Fault.TORN}),
    "appender.truncate": frozenset({Fault.REFUSED, Fault.AMBIGUOUS}),
}
"""The faults that each operation can have."""

RIVAL_BYTES = b"created by another writer"

_T = TypeVar("_T")


class FaultStore:
    """Wraps a store and injects faults into its calls.

    Args:
        sleep: called with the seconds of a DELAYED fault.
        random: draws a fault, by `rates`, for each call without a scripted one. None: only scripted faults occur.
        rates: probability of each fault per call, among the faults that the operation can have.
        delay_s_max: longest delay of a DELAYED fault, seconds.
    """

    def __init__(
        self,
        store: Store,
        *,
        sleep: Callable[[float], Awaitable[None]],
        random: Random | None = None,
        rates: Mapping[Fault, float] | None = None,
        delay_s_max: float = 0.01,
    ) -> None:
        self._store = store
        self._sleep = sleep
        self._random = random
        self._rates = dict(rates) if rates is not None else {}
        self._delay_s_max = delay_s_max
        self._script: dict[str, deque[Fault | None]] = {operation: deque() for operation in POSSIBLE}
        self._late: list[tuple[int, Callable[[], Awaitable[object]]]] = []
        """(calls that still have to pass, the late operation)"""
        self._appender = _FaultAppender(self, store.appender) if store.appender is not None else None
        self.injected: Counter[Fault] = Counter()
        """How many faults of each kind were injected. A test that relies on a fault checks this count."""

    def script(self, operation: str, *faults: Fault | None) -> None:
        """Script the faults of the next calls of an operation, one per call; None lets a call pass."""
        for fault in faults:
            assert fault is None or fault in POSSIBLE[operation], f"{operation} cannot be {fault}"
        self._script[operation].extend(faults)

    async def land(self) -> None:
        """Let all LATE operations take effect now."""
        late, self._late = self._late, []
        for _, call in late:
            await call()

    def next_fault(self, operation: str) -> Fault | None:
        """Take the next fault of an operation, from the script or by chance."""
        fault = None
        if self._script[operation]:
            fault = self._script[operation].popleft()
        elif self._random is not None:
            # Iterates in the order of the enumeration, not of the mapping, so that the seed alone decides.
            for candidate in Fault:
                rate = self._rates.get(candidate, 0.0)
                if rate and candidate in POSSIBLE[operation] and self._random.random() < rate:
                    fault = candidate
                    break
        if fault is not None:
            self.injected[fault] += 1
        return fault

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def appender(self) -> Appender | None:
        return self._appender

    @property
    def read_unit_bytes(self) -> int:
        return self._store.read_unit_bytes

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        copy = b"".join(views(data))
        return await self._write("put_if_absent", key, lambda: self._store.put_if_absent(key, copy))

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        copy = b"".join(views(data))
        await self._write("put", key, lambda: self._store.put(key, copy))

    async def get(self, key: str) -> bytes:
        return await self._read("get", key, lambda: self._store.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._read("get_range", key, lambda: self._store.get_range(key, start, length))

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        return await self._read("get_ranges", key, lambda: self._store.get_ranges(key, ranges))

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        return await self._read("list", prefix, lambda: self._store.list(prefix, start_after, limit))

    async def delete(self, key: str) -> None:
        await self._write("delete", key, lambda: self._store.delete(key))

    async def close(self) -> None:
        await self._store.close()

    async def _write(self, operation: str, key: str, call: Callable[[], Awaitable[_T]]) -> _T:
        await self._pass_time()
        fault = self.next_fault(operation)
        if fault is Fault.LATE:
            calls = 1 if self._random is None else self._random.randint(1, LATE_CALLS_MAX)
            self._late.append((calls, call))
        elif fault is Fault.AMBIGUOUS:
            await call()
        elif fault is Fault.LOST_RACE:
            await self._store.put_if_absent(key, RIVAL_BYTES)
            return await call()
        elif fault is Fault.DELAYED:
            await self._delay()
            return await call()
        elif fault is None:
            return await call()
        raise error_of(fault, operation, key)

    async def _read(self, operation: str, key: str, call: Callable[[], Awaitable[_T]]) -> _T:
        await self._pass_time()
        fault = self.next_fault(operation)
        if fault is Fault.DELAYED:
            await self._delay()
        elif fault is not None:
            raise error_of(fault, operation, key)
        return await call()

    async def _delay(self) -> None:
        await self._sleep(self._delay_s_max if self._random is None else self._random.random() * self._delay_s_max)

    async def _pass_time(self) -> None:
        self._late = [(calls - 1, call) for calls, call in self._late]
        due = [call for calls, call in self._late if calls < 0]
        self._late = [entry for entry in self._late if entry[0] >= 0]
        for call in due:
            await call()


class _FaultAppender:
    def __init__(self, owner: FaultStore, appender: Appender) -> None:
        self._owner = owner
        self._appender = appender

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        fault = self._owner.next_fault("appender.create")
        if fault is not None:
            raise error_of(fault, "appender.create", key)
        return _FaultAppendFile(self._owner, self._appender.create(key, size_bytes, filled=filled), key)

    def exists(self, key: str) -> bool:
        fault = self._owner.next_fault("appender.exists")
        if fault is not None:
            raise error_of(fault, "appender.exists", key)
        return self._appender.exists(key)


class _FaultAppendFile:
    def __init__(self, owner: FaultStore, file: AppendFile, key: str) -> None:
        self._owner = owner
        self._file = file
        self._key = key

    @property
    def alignment_bytes(self) -> int:
        return self._file.alignment_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        fault = self._owner.next_fault("appender.write")
        if fault is Fault.TORN:
            # Passes a view of a single buffer and copies nothing: O_DIRECT needs the buffer's aligned address.
            data = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
            half = len(data) // 2
            self._file.write(position, [data[: half - half % self.alignment_bytes]])
        elif fault in (None, Fault.AMBIGUOUS):
            self._file.write(position, buffers)
        if fault is not None:
            raise error_of(fault, "appender.write", self._key)

    def truncate(self, size_bytes: int) -> None:
        fault = self._owner.next_fault("appender.truncate")
        if fault is not Fault.REFUSED:
            self._file.truncate(size_bytes)
        if fault is not None:
            raise error_of(fault, "appender.truncate", self._key)

    def close(self) -> None:
        self._file.close()


def error_of(fault: Fault, operation: str, key: str) -> HeadgateError:
    """The error that a store raises for a fault."""
    reason = Reason.STORE_FULL if fault is Fault.FULL else Reason.STORE_UNAVAILABLE
    return RetryError(reason, f"a fault was made on purpose. fault=`{fault}` operation=`{operation}` key=`{key}`")
