"""The most expensive requests that the bounds allow, generated from Kafka's schema; and a broker that measures its loop's turns.

For each array of a request there is a request in which that array is as long as the limits of size and elements allow. The names
in it are all different, or all are the name of one topic that exists. A new API is covered without a change here, unless its
fields need values that are missing from `VALUES`.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from headgate.broker.runtime.clock import Clock
from headgate.broker.runtime.config import Settings
from headgate.broker.runtime.errors import HeadgateError
from headgate.broker.server.kafka.apis import APIS, PRODUCE, Served, request_bytes_max
from headgate.broker.server.kafka.listener import KafkaServer
from headgate.broker.store.memory import MemoryStore
from headgate.broker.wire.kafka.primitives import REQUEST_ELEMENTS_MAX
from headgate.broker.wire.kafka.schema import Field, Struct
from tests.support import nodes
from tests.support.batches import batch
from tests.support.messages import LOADED, message_module
from tests.support.wire import ClosedByPeer, RawConnection, framed, request_header

KNOWN = "known"
"""A topic that exists, with KNOWN_PARTITIONS partitions."""
KNOWN_PARTITIONS = 200
GROUP = "group"
PRODUCE_BYTES = 4 << 20
"""Size of the largest Produce request in the test. A frame may have 100 MiB; the rows cause the cost, and 4 MiB have enough
rows."""

VALUES: dict[str, Any] = {
    "resource_type": 2,
    "acks": 1,
    "timeout_ms": 1_000,
    "max_wait_ms": 0,
    "min_bytes": 0,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 1,
    "group_id": GROUP,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "protocol_type": "consumer",
    "current_leader_epoch": -1,
    "response_partition_limit": 2_000,
    "timestamp": 0,
    "client_software_name": "a",
    "client_software_version": "1",
    "session_id": 0,
    "session_epoch": -1,
    "replica_id": -1,
    "transactional_id": None,
    "producer_id": -1,
    "producer_epoch": -1,
    "cursor": None,
    "validate_only": False,
}
"""Field values with which the broker processes a request instead of refusing it at once."""


@dataclass(frozen=True)
class Costly:
    """One request. `what` names the long array."""

    api: Served
    version: int
    what: str
    frame: bytes


class _Maker:
    """Makes messages of one API's version. The schema is read once; each of its structs and fields becomes a function."""

    def __init__(self, api: Served, version: int, long: tuple[str, ...], inner: int, known: bool) -> None:
        self.version = version
        self.long = long
        self.inner = inner
        self.known = known
        self.count = 0
        self.numbers = itertools.count()
        self.module = message_module(f"{api.name}Request")
        self._made = self._struct(LOADED[f"{api.name}Request"][0].root, ())

    def make(self, count: int) -> Any:
        self.count = count
        self.numbers = itertools.count()
        return self._made()

    def _struct(self, struct_: Struct, path: tuple[str, ...]) -> Callable[[], Any]:
        kind, constants, varying = getattr(self.module, struct_.name), {}, {}
        for field in struct_.fields:
            if self.version in field.versions and field.tag is None:
                if not field.array and field.name in VALUES:
                    value = VALUES[field.name]
                    constants[field.name] = "" if value is None and self.version not in field.nullable else value
                else:
                    varying[field.name] = self._field(field, (*path, field.name))
        return lambda: kind(**constants, **{name: made() for name, made in varying.items()})

    def _field(self, field: Field, path: tuple[str, ...]) -> Callable[[], Any]:
        one = self._one(field, path)
        if not field.array:
            return one
        if path == self.long:
            return lambda: [one() for _ in range(self.count)]
        inner = self.inner if self.long == path[: len(self.long)] else 0
        length = 1 if path == self.long[: len(path)] else inner
        return lambda: [one() for _ in range(length)]

    def _one(self, field: Field, path: tuple[str, ...]) -> Callable[[], Any]:
        if field.struct is not None:
            return self._struct(field.struct, path)
        if field.kind == "string" and not self.known:
            return lambda: f"{next(self.numbers):x}"
        if field.kind == "uuid":
            return lambda: uuid.UUID(int=next(self.numbers) + 1)
        if field.kind not in ("string", "records", "bytes", "bool") and ("partition" in field.name or field.name == "index"):
            return lambda: next(self.numbers) % KNOWN_PARTITIONS
        known = KNOWN if field.name in ("name", "topic", "topics", "topic_names", "resource_name") else GROUP
        constant = {"string": known, "records": RECORDS, "bytes": b"", "bool": True}.get(field.kind, 0)
        return lambda: constant


RECORDS = batch([b""])


def _arrays(struct_: Struct, version: int, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for field in struct_.fields:
        if version in field.versions and field.tag is None:
            here = (*path, field.name)
            if field.array:
                yield here
            if field.struct is not None and version not in field.nullable:
                yield from _arrays(field.struct, version, here)


def _elements(message: Any, body: bytes, version: int) -> int:
    return sum(type(message).decoding(body, 0, version))


def costly(api: Served, version: int, elements: int = REQUEST_ELEMENTS_MAX) -> Iterator[Costly]:
    """Requests of one version of an API, each as large as allowed, with at most this many elements."""
    bytes_max = PRODUCE_BYTES if api.key == PRODUCE else request_bytes_max(api.key)
    root = LOADED[f"{api.name}Request"][0].root
    header = request_header(api.key, version, 1, flexible=api.flexible(version))
    arrays = list(_arrays(root, version))
    for long in arrays or [()]:
        is_parent = any(other != long and other[: len(long)] == long for other in arrays)
        for inner, known in itertools.product((0, 1) if is_parent else (0,), (False, True)):
            if is_parent and (inner, known) == (0, True) and elements < REQUEST_ELEMENTS_MAX:
                continue  # empty elements of one name: the others of the short form show the same loops
            maker = _Maker(api, version, long, inner, known)
            size = 100
            body = maker.make(size).encode(version)
            if arrays:
                each = max(_elements(maker.make(size), body, version) // size, 1)
                size = min(elements // each - 1, bytes_max * size // len(body))
                while len(body := maker.make(size).encode(version)) + len(header) > bytes_max:
                    size = size * 9 // 10
            names = "one topic" if known else "different names"
            what = f"{size} x {'.'.join(long)}, each with {inner}, {names}" if arrays else "no arrays"
            yield Costly(api, version, what, framed(header + body))
            if not arrays:
                return


def small(api: Served, version: int) -> Costly:
    """A request with one element in its first array."""
    root = LOADED[f"{api.name}Request"][0].root
    arrays = list(_arrays(root, version))
    message = _Maker(api, version, arrays[0] if arrays else (), 1, True).make(1)
    header = request_header(api.key, version, 1, flexible=api.flexible(version))
    return Costly(api, version, "one element", framed(header + message.encode(version)))


class MeasuredSelector(selectors.DefaultSelector):
    """Measures the CPU time that the loop's thread uses between two waits: a turn of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._began_s: float | None = None

    def select(self, timeout: float | None = None) -> Any:
        if self._began_s is not None:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)
        found = super().select(timeout)
        self._began_s = time.thread_time()
        return found


class MeasuredBroker:
    """A broker in a thread of this process, with real sockets, a store in memory and a loop that measures its turns."""

    def __init__(self, partitions_max: int = 10_000) -> None:
        self.settings = Settings.from_values({"broker_id": 7, "partitions_max": partitions_max})
        self.failures: list[HeadgateError] = []
        self.port = 0
        self._selector = MeasuredSelector()
        self._loop = asyncio.SelectorEventLoop(self._selector)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping = asyncio.Event()
        self._ready: Future[None] = Future()

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result(60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(60)
        assert not self.failures, self.failures

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        node = nodes.make(self.settings, MemoryStore(), Clock(), self.failures.append)
        self.node, self.engine, groups = node, node.engine, node.groups
        self.groups = groups
        await node.start()
        await groups.loaded()
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.kafka = server = KafkaServer(self.settings, self.engine.clock, ("127.0.0.1", self.port))
        await server.start(listener)
        server.serve(self.engine, groups, node.transaction_calls)
        await self.engine.create_topic(KNOWN, KNOWN_PARTITIONS, {})
        self._ready.set_result(None)
        await self._stopping.wait()
        await nodes.end(node)
        await server.close()

    def call(self, act: Callable[[], Any]) -> Any:
        """Run a coroutine function on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(act(), self._loop).result(120)

    def longest_turn_of_s(self, act: Callable[[], Any]) -> float:
        """The longest turn of the loop, in seconds of CPU time, while a coroutine function runs on it. Raises what that raises."""
        self._selector.longest_s = 0.0
        self.call(act)
        self.call(lambda: asyncio.sleep(0))  # the turn in which it ended is over
        return self._selector.longest_s

    def connect(self) -> RawConnection:
        return RawConnection("127.0.0.1", self.port, timeout_s=120)

    def longest_turn_s(self, request: Costly) -> float:
        """The longest turn of the loop, in seconds of CPU time, from sending the request until the broker answers or closes the
        connection."""
        with self.connect() as connection:
            connection.send(framed(request_header(18, 0, 0)))
            connection.receive_frame()
            self._selector.longest_s = 0.0
            try:
                connection.send(request.frame)
                length = struct.unpack(">i", connection.receive_exactly(4))[0]
                connection.receive_exactly(length)
            except ClosedByPeer:
                pass
            return self._selector.longest_s


def served() -> Iterator[tuple[Served, int]]:
    """Every version of every API."""
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            yield api, version
