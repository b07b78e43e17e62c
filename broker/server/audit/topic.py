"""Audit lines as records of a topic. They go to its first partition: its lead appends them, and other brokers publish to the lead.

Lines that wait for the topic are bounded, because the topic may have no lead for a while. A line may come twice after an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from headgate.broker.cluster.manifest import Topic
from headgate.broker.cluster.topics import NewTopic
from headgate.broker.control.stream import Stream
from headgate.broker.log.records import Record, encode_batch
from headgate.broker.runtime.errors import HeadgateError, InvalidError, Reason, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.wire.grpc import payload
from headgate.broker.wire.grpc.headgate.v1 import log_pb2
from headgate.broker.wire.grpc.methods import methods

if TYPE_CHECKING:
    from headgate.broker.cluster.manifest import Incarnation
    from headgate.broker.control.stream import Connect
    from headgate.broker.engine.engine import Engine

logger = get_logger("audit")

PUBLISH = methods(log_pb2.DESCRIPTOR.services_by_name["Log"])["Publish"]
WAITING_MAX = 10_000
"""Lines that wait for the topic. Above it the oldest are dropped and counted; they stand in the file or the log."""
BATCH_LINES_MAX = 200
BATCH_BYTES_MAX = 256 << 10
RETRY_S = 1.0
TIMEOUT_S = 15.0


class AuditTopic:
    """Writes lines into a topic of this cluster.

    Args:
        connect: makes a channel to another broker.
    """

    def __init__(self, engine: Engine, name: str, connect: Connect) -> None:
        self._engine = engine
        self._name = name
        self._connect = connect
        self._waiting: deque[str] = deque()
        self._news = asyncio.Event()
        self._dropped = 0
        """Of the lines since the last one that was written."""
        self._task: asyncio.Task[None] | None = None

    def __call__(self, row: dict[str, object], line: str) -> None:
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(line)
        self._news.set()

    def start(self) -> None:
        """Write lines from now on."""
        self._task = asyncio.create_task(self._run(), name="audit topic")

    async def close(self) -> None:
        """Stop. Lines that wait are not written: they stand in the file or the log."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        told = ""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                while self._waiting:
                    async with asyncio.timeout(TIMEOUT_S):
                        await self._write_some()
                told = ""
            except (HeadgateError, TimeoutError) as error:
                text = error.message if isinstance(error, HeadgateError) else "no answer in time"
                if text != told:
                    told = text
                    logger.warning("audit_topic_not_written", topic=self._name, error=text)
                await asyncio.sleep(RETRY_S)
                self._news.set()

    async def _write_some(self) -> None:
        lines: list[str] = []
        size = 0
        for line in islice(self._waiting, BATCH_LINES_MAX):
            size += len(line)
            if lines and size > BATCH_BYTES_MAX:
                break
            lines.append(line)
        if self._dropped:
            logger.error("audit_topic_lines_dropped", topic=self._name, lines=self._dropped)
            self._dropped = 0
        await self._write(lines)
        for line in lines:
            if self._waiting and self._waiting[0] is line:  # otherwise it was dropped meanwhile
                self._waiting.popleft()

    async def _write(self, lines: list[str]) -> None:
        engine = self._engine
        topic = engine.manifest.topics.get(self._name) or await self._create()
        now_ms = engine.clock.now_ms()
        batch = encode_batch([Record(0, now_ms, None, line.encode()) for line in lines])
        lead = engine.lead(topic.id, 0)
        if lead is None:
            raise RetryError(Reason.NOT_READY, f"the topic has no lead at the moment. topic=`{self._name}`")
        if lead[0].id == engine.incarnation_id:
            engine.append(engine.partition(topic, 0), memoryview(bytearray(batch)))
            await engine.durable()
        else:
            await self._publish(lead[0], batch)

    async def _create(self) -> Topic:
        (made,) = await self._engine.create_topics([NewTopic(self._name, 1)])
        if isinstance(made, Topic):
            return made
        if made.reason is not Reason.TOPIC_EXISTS:
            raise made
        return self._engine.topic(self._name)

    async def _publish(self, lead: Incarnation, batch: bytes) -> None:
        address = f"{lead.host}:{lead.peer_port}"
        channel = self._connect(address)
        try:
            stream = Stream(channel, PUBLISH.path, address)
            request = log_pb2.PublishRequest(sequence=1, topic=self._name, partition=0)
            await stream.write(payload.join(request, [batch]), TIMEOUT_S)
            answer = log_pb2.PublishResponse.FromString(await stream.read(TIMEOUT_S))
            stream.cancel()
        finally:
            await channel.close()
        for failure in answer.failures:
            raise InvalidError(Reason.INVALID_REQUEST, failure.error.message)
