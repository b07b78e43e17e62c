"""Wrappers of a store: retries and counters. A wrapper is a Store itself; the appender passes through, measured at most.

A wrapper of stores with files also passes `open_file` on (`interface.Files`): without it, history is read through `get_range`.
RetryingStore is for S3, which has no files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.metrics import LATENCY_BUCKETS_S, Histogram, Labels, Metrics
from headgate.broker.store.interface import Appender, AppendFile, Buffer, Files, Keeps, ObjectInfo, Ranges, Store
from headgate.broker.store.keys import views

RETRY_PAUSE_S_MIN = 0.05
RETRY_PAUSE_S_MAX = 2.0
RETRY_DEADLINE_S = 20.0
"""Shorter than clients' time-outs (30 s), so that they receive the store's own reason."""

_T = TypeVar("_T")


class RetryingStore:
    """Repeats calls that failed with RetryError, with growing random pauses, until a deadline; then raises the last error.

    When `put_if_absent` fails and then finds the key taken, the wrapper reads the object: if its bytes are ours, the failed call
    had created it, and the answer is True. Writers that contend for a key must therefore write different bytes.

    Args:
        sleep: waits for some seconds.
        random: a number in [0, 1).
        deadline_s: from the beginning of a call; no repetition begins later. The call may last one attempt longer.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        pause_s_min: float = RETRY_PAUSE_S_MIN,
        pause_s_max: float = RETRY_PAUSE_S_MAX,
        deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        assert 0 < pause_s_min <= pause_s_max, (pause_s_min, pause_s_max)
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._pause_s_min = pause_s_min
        self._pause_s_max = pause_s_max
        self._deadline_s = deadline_s
        self.retries = 0
        """Repetitions since the start, of all operations."""

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def appender(self) -> Appender | None:
        return self._store.appender

    @property
    def read_unit_bytes(self) -> int:
        return self._store.read_unit_bytes

    async def put_if_absent(self, key: str, data: Buffer | Sequence[Buffer]) -> bool:
        attempts = _Attempts(self)

        async def attempt() -> bool:
            if await self._store.put_if_absent(key, data):
                return True
            if attempts.failed == 0:
                return False
            try:
                stored = await self._store.get(key)
            except InvalidError as error:
                if error.reason is not Reason.NOT_FOUND:
                    raise
                message = f"an object was deleted while it was created. key=`{key}`"
                raise RetryError(Reason.STORE_UNAVAILABLE, message) from error
            return stored == b"".join(views(data))

        return await attempts.run(attempt)

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        await _Attempts(self).run(lambda: self._store.put(key, data))

    async def get(self, key: str) -> bytes:
        return await _Attempts(self).run(lambda: self._store.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await _Attempts(self).run(lambda: self._store.get_range(key, start, length))

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        return await _Attempts(self).run(lambda: self._store.get_ranges(key, ranges))

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        return await _Attempts(self).run(lambda: self._store.list(prefix, start_after, limit))

    async def delete(self, key: str) -> None:
        await _Attempts(self).run(lambda: self._store.delete(key))

    async def keep(self, key: str, source: str, *, copy: bool) -> bool:
        store = self._store
        return isinstance(store, Keeps) and await _Attempts(self).run(lambda: store.keep(key, source, copy=copy))

    async def close(self) -> None:
        await self._store.close()

    async def pause(self, failed: int, until_s: float) -> bool:
        """Wait after the `failed`-th failure (from 1). False: the deadline `until_s` would pass."""
        # Full jitter, from nothing to all of it: callers that failed together do not return together.
        ceiling = min(self._pause_s_max, self._pause_s_min * 2.0 ** min(failed - 1, 30))
        pause_s = self._random() * ceiling
        if self._clock.monotonic() + pause_s >= until_s:
            return False
        self.retries += 1
        await self._sleep(pause_s)
        return True

    def until_s(self) -> float:
        """The deadline of a call that begins now, on the monotonic clock."""
        return self._clock.monotonic() + self._deadline_s


class _Attempts:
    """The attempts of one call, which share its deadline."""

    def __init__(self, owner: RetryingStore) -> None:
        self._owner = owner
        self._until_s = owner.until_s()
        self.failed = 0

    async def run(self, call: Callable[[], Awaitable[_T]]) -> _T:
        while True:
            try:
                return await call()
            except RetryError:
                self.failed += 1
                if not await self._owner.pause(self.failed, self._until_s):
                    raise


@dataclass(slots=True)
class OperationCounts:
    """Counters of one operation since the start. `seconds` is the sum of all calls' times, including failed calls."""

    calls: int = 0
    errors: int = 0
    bytes: int = 0
    seconds: float = 0.0


APPEND = "append"
"""Operation of the appender: one write of the log, of all records that waited for it."""
OPERATIONS = ("put_if_absent", "put", "get", "get_range", "get_ranges", "open_file", "list", "delete")


class MeteredStore:
    """Counts calls, errors, bytes of objects and seconds per operation.

    An InvalidError is an answer (the object does not exist), not an error of the store.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.counts = {operation: OperationCounts() for operation in OPERATIONS}
        self.seconds: dict[Labels, Histogram] = {(operation,): Histogram(LATENCY_BUCKETS_S) for operation in (*OPERATIONS, APPEND)}
        appender = store.appender
        self._appender = None if appender is None else _MeteredAppender(appender, clock, self.seconds[APPEND,])

    def register(self, metrics: Metrics) -> None:
        """Expose the counters as `headgate_store_*`, by operation."""

        def reader(field: str) -> Callable[[], dict[Labels, float]]:
            return lambda: {(operation,): float(getattr(counts, field)) for operation, counts in self.counts.items()}

        labels = ("operation",)
        metrics.counter("headgate_store_requests", "calls to the store", reader("calls"), labels)
        metrics.counter("headgate_store_errors", "calls to the store that failed", reader("errors"), labels)
        metrics.counter("headgate_store_bytes", "bytes of objects read from and written to the store", reader("bytes"), labels)
        metrics.counter("headgate_store_seconds", "time spent in calls to the store, s", reader("seconds"), labels)
        metrics.histogram(
            "headgate_store_request_seconds",
            "time of one call to the store; append: one write of the log to a directory, with its sync",
            self.seconds,
            labels,
        )

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
        created = await self._count("put_if_absent", self._store.put_if_absent(key, data))
        if created:
            self.counts["put_if_absent"].bytes += sum(view.nbytes for view in views(data))
        return created

    async def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        await self._count("put", self._store.put(key, data))
        self.counts["put"].bytes += sum(view.nbytes for view in views(data))

    async def get(self, key: str) -> bytes:
        data = await self._count("get", self._store.get(key))
        self.counts["get"].bytes += len(data)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        data = await self._count("get_range", self._store.get_range(key, start, length))
        self.counts["get_range"].bytes += len(data)
        return data

    async def get_ranges(self, key: str, ranges: Ranges) -> Buffer:
        data = await self._count("get_ranges", self._store.get_ranges(key, ranges))
        self.counts["get_ranges"].bytes += len(data)
        return data

    async def open_file(self, key: str) -> int | None:
        """A descriptor of an object, or None without a file. Reads from it are not counted here."""
        if not isinstance(self._store, Files):
            return None
        return await self._count("open_file", self._store.open_file(key))

    async def list(self, prefix: str, start_after: str = "", limit: int = 1000) -> list[ObjectInfo]:
        return await self._count("list", self._store.list(prefix, start_after, limit))

    async def delete(self, key: str) -> None:
        await self._count("delete", self._store.delete(key))

    async def close(self) -> None:
        await self._store.close()

    async def _count(self, operation: str, call: Awaitable[_T]) -> _T:
        counts = self.counts[operation]
        counts.calls += 1
        began_s = self._clock.monotonic()
        try:
            return await call
        except HeadgateError as error:
            counts.errors += not isinstance(error, InvalidError)
            raise
        finally:
            seconds = self._clock.monotonic() - began_s
            counts.seconds += seconds
            self.seconds[operation,].observe(seconds)


class _MeteredAppender:
    """Measures the writes of an appender's files, on the thread that writes."""

    def __init__(self, appender: Appender, clock: Clock, seconds: Histogram) -> None:
        self._appender = appender
        self._clock = clock
        self._seconds = seconds

    def create(self, key: str, size_bytes: int, *, filled: bool = True) -> AppendFile:
        return _MeteredFile(self._appender.create(key, size_bytes, filled=filled), self._clock, self._seconds)

    def exists(self, key: str) -> bool:
        return self._appender.exists(key)


class _MeteredFile:
    def __init__(self, file: AppendFile, clock: Clock, seconds: Histogram) -> None:
        self._file = file
        self._clock = clock
        self._seconds = seconds

    @property
    def alignment_bytes(self) -> int:
        return self._file.alignment_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        began_s = self._clock.monotonic()
        self._file.write(position, buffers)
        self._seconds.observe(self._clock.monotonic() - began_s)

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def close(self) -> None:
        self._file.close()
