"""Many members of many groups in one event loop: the requests of real clients, without the CPU cost of real clients.

The broker's own messages encode the requests and decode the answers; tests/unit/wire checks their bytes.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import headgate.broker.testing.messages  # noqa: F401  (both directions of all messages)
from headgate.broker.wire.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from headgate.broker.wire.kafka.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headgate.broker.wire.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headgate.broker.wire.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.support.waiting import until_async

MEMBER_ID_REQUIRED = 79
REBALANCE_IN_PROGRESS = 27
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x05bench\xff\xff\xff\xff"


class Connection(asyncio.Protocol):
    """One connection; answers come in the order of the requests."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._received = bytearray()
        self._correlation = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(ConnectionError("the broker hung up"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            answer = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(answer)

    async def send(self, api_key: int, version: int, flexible: bool, body: bytes) -> bytes:
        """Send one request; returns the answer's body."""
        self._correlation += 1
        head = struct.pack(">hhih", api_key, version, self._correlation, 4) + b"load" + (b"\x00" if flexible else b"")
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        assert self._transport is not None
        self._transport.write(struct.pack(">i", len(head) + len(body)) + head + body)
        answer = await waiting
        return answer[5:] if flexible else answer[4:]

    async def call(self, request: Any, version: int, response: Any) -> Any:
        flexible = request.FLEXIBLE_FROM is not None and version >= request.FLEXIBLE_FROM
        answer = await self.send(request.API_KEY, version, flexible, request.encode(version))
        return response.decode(answer, 0, version)[0]

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


async def create_topic(port: int, name: str, partitions: int) -> None:
    connection = await connect(port)
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5, CreateTopicsResponse)
    assert answer.topics[0].error_code in (0, 36), answer
    connection.close()


@dataclass
class Member:
    """A consumer that only keeps its membership: it joins, syncs, sends heartbeats, and rejoins when the group rebalances."""

    port: int
    group: str
    session_ms: int = 10_000
    rebalance_ms: int = 30_000
    id: str = ""
    generation: int = -1
    generations: list[int] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    """Codes of heartbeats other than "ok" and "rebalance"."""
    beats: int = 0
    beat_s_max: float = 0.0
    joined_at_s: float = 0.0
    synced_at_s: float = 0.0
    connection: Connection | None = None

    async def join(self) -> None:
        """Join and sync, until there is an assignment."""
        if self.connection is None:
            self.connection = await connect(self.port)
        while True:
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.session_ms,
                rebalance_timeout_ms=self.rebalance_ms,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            )
            self.joined_at_s = time.monotonic()
            answer = await self.connection.call(request, 5, JoinGroupResponse)
            self.id = answer.member_id
            if answer.error_code == MEMBER_ID_REQUIRED:
                continue
            assert answer.error_code == 0, answer.error_code
            self.generation = answer.generation_id
            sync = SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member.member_id, assignment=member.member_id.encode())
                    for member in answer.members
                ],
            )
            synced = await self.connection.call(sync, 3, SyncGroupResponse)
            if synced.error_code == 0:
                assert synced.assignment == self.id.encode()
                self.synced_at_s = time.monotonic()
                self.generations.append(self.generation)
                return
            assert synced.error_code == REBALANCE_IN_PROGRESS, synced.error_code

    async def beat(self, interval_s: float, stop: asyncio.Event) -> None:
        """Send heartbeats until `stop`; rejoin when the group rebalances."""
        while not stop.is_set():
            assert self.connection is not None
            request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.id)
            began = time.perf_counter()
            answer = await self.connection.call(request, 3, HeartbeatResponse)
            self.beats += 1
            self.beat_s_max = max(self.beat_s_max, time.perf_counter() - began)
            if answer.error_code == REBALANCE_IN_PROGRESS:
                await self.join()
                continue
            if answer.error_code:
                self.errors.append(answer.error_code)
                return
            try:
                async with asyncio.timeout(interval_s):
                    await stop.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


async def settled_groups(port: int, groups: int, size: int, **options: int) -> list[Member]:
    """The members of stable groups: all members of the group are in the same generation."""
    members = [Member(port, f"load-{group}", **options) for group in range(groups) for _ in range(size)]
    stop = asyncio.Event()

    async def live(member: Member) -> None:
        await member.join()
        await member.beat(0.1, stop)

    tasks = [asyncio.create_task(live(member)) for member in members]
    by_group: dict[str, list[Member]] = {}
    for member in members:
        by_group.setdefault(member.group, []).append(member)

    def settled() -> bool:
        for task in tasks:
            if task.done():
                task.result()
        return all(len({m.generation for m in group}) == 1 and all(m.synced_at_s for m in group) for group in by_group.values())

    await until_async(settled, "groups settle", pause_s=0.05)
    stop.set()
    await asyncio.gather(*tasks)
    return members
