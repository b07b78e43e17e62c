"""Lists complete chunks in the manifest, so that a start need not read them.

One task does this, in order and off the ack path. It writes the index if that is not inline, writes the producers' state, and
commits one edit. Only then do the rows of the chunk leave memory. If the task stops half-way, the chunk stays unlisted, and
recovery reads it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.edits.incarnations import AddChunks
from headgate.broker.cluster.objects import Chunk, Extent
from headgate.broker.engine.base import keys
from headgate.broker.engine.base.catalog import Catalog
from headgate.broker.engine.partition.extents import ChunkRef
from headgate.broker.engine.partition.log import PartitionLog
from headgate.broker.engine.partition.producers import encode_states
from headgate.broker.runtime.errors import FencedError, HeadgateError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import in_parallel, watch
from headgate.broker.store.interface import Buffer, Store

logger = get_logger("checkpoint")

RETRY_S = 1.0
PUTS_TOGETHER = 16
"""Objects that are written or deleted at a time. A store that is far away answers each of them seconds later."""
UPKEEP_TOGETHER = 8
"""Objects that folds and sweeps read or delete at a time: half of the requests that a store on S3 makes at a time, so that a write
that acks wait for finds a free connection."""
YIELD_SECTIONS = 64
"""Index sections that are encoded before the task yields to the loop."""


@dataclass(slots=True)
class Rolled:
    """A complete chunk. `sections`: (position, length) of each partition's rows in its inline index, or None."""

    number: int
    size_bytes: int
    appended_ms: int
    sections: dict[PartitionLog, tuple[int, int]] | None
    logs: dict[PartitionLog, None] = field(default_factory=dict)


class Checkpointer:
    """Lists complete chunks when `chunks_max` of them or `bytes_max` bytes wait, or `interval_s` seconds after the first one.

    Args:
        logs: every partition of this broker, for the producers' state.
        listed: called after chunks were listed.
        fail: called with an error that ends this broker.
    """

    def __init__(
        self,
        *,
        store: Store,
        catalog: Catalog,
        incarnation_id: str,
        logs: Callable[[], Iterable[PartitionLog]],
        listed: Callable[[], None],
        fail: Callable[[HeadgateError], None],
        chunks_max: int,
        bytes_max: int,
        interval_s: float,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._incarnation_id = incarnation_id
        self._logs = logs
        self._listed = listed
        self._fail = fail
        self._chunks_max = chunks_max
        self._bytes_max = bytes_max
        self._interval_s = interval_s
        self._rolled: list[Rolled] = []
        self._bytes = 0
        self._lock = asyncio.Lock()
        self._in_doubt = False
        """True if the last listing ended without an answer: its chunks may be in the manifest. Then the next one waits for all
        commits under way. Otherwise it does not queue twice behind those of other brokers, which takes seconds if the store is
        far away."""
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="checkpointer")
        watch(self._task, "checkpointer", self._fail)

    def add(self, rolled: Rolled) -> None:
        self._rolled.append(rolled)
        self._bytes += rolled.size_bytes
        if len(self._rolled) == 1 or self._due():
            self._wake.set()

    def _due(self) -> bool:
        return len(self._rolled) >= self._chunks_max or self._bytes >= self._bytes_max

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not (self._due() or self._closing):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._wake.wait()
                # Otherwise the event would begin the next pause before there is a chunk. The first chunk would then end that pause,
                # and be listed alone.
                self._wake.clear()
            if self._closing:
                return
            try:
                await self.list_all()
            except FencedError:
                raise
            except HeadgateError as error:
                logger.warning("checkpoint_failed", error=error.message, chunks=len(self._rolled))
                if self._closing:
                    return
                await asyncio.sleep(RETRY_S)
            if self._rolled:
                self._wake.set()

    def lists(self, logs: Iterable[PartitionLog]) -> bool:
        """True if `list_all` would list all unlisted records of these partitions: all their open chunks are complete."""
        numbers = {rolled.number for rolled in self._rolled}
        return all(number in numbers for log in logs for _, number in log.open.chunks)

    async def list_all(self, *more: Edit) -> None:
        """List every chunk that is complete now.

        Args:
            more: edits for the same commit. They are committed even if there is no chunk to list.
        """
        async with self._lock:
            if self._in_doubt:
                await self._catalog.settle()
            rolled = list(self._rolled)
            replaced = None
            self._in_doubt = True
            if rolled:
                replaced = await self._list(rolled, more)
            elif more:
                await self._catalog.commit(*more)
            self._in_doubt = False
        if rolled:
            self._listed()
        if replaced is not None:
            await self._store.delete(replaced)

    async def _list(self, rolled: list[Rolled], more: tuple[Edit, ...]) -> str | None:
        """Returns the key of the producers' state that is not needed any more."""
        previous = self._catalog.manifest.producers_keys.get(self._incarnation_id)
        producers_key = keys.producers(self._incarnation_id, rolled[-1].number + 1)
        described = [await self._describe(chunk) for chunk in rolled]
        chunks = [chunk for chunk, _ in described]
        # Side by side: a store that is far away answers each object seconds later.
        objects: list[tuple[str, Buffer | Sequence[Buffer]]] = [
            (keys.chunk_index(self._incarnation_id, chunk.number), sections)
            for chunk, sections in described
            if not chunk.index_inline
        ]
        objects.append((producers_key, await encode_states(self._logs())))
        await in_parallel(self._put, objects, PUTS_TOGETHER)
        await self._catalog.commit(
            AddChunks(incarnation_id=self._incarnation_id, chunks=chunks, producers_key=producers_key), *more
        )
        return previous

    async def _put(self, named: tuple[str, Buffer | Sequence[Buffer]]) -> None:
        await self._store.put(*named)

    def follow(self, chunks: Iterable[Chunk]) -> None:
        """Called when the manifest lists these chunks. Their rows leave memory."""
        for chunk in chunks:
            if not self._rolled or self._rolled[0].number != chunk.number:
                continue
            one = self._rolled.pop(0)
            self._bytes -= one.size_bytes
            ref = ChunkRef(self._incarnation_id, chunk)
            extents = iter(groupby(chunk.extents, key=lambda extent: (extent.topic_id, extent.partition)))
            for partition, (_, own) in zip(one.logs, extents, strict=True):
                partition.listed(list(own), ref)

    async def _describe(self, rolled: Rolled) -> tuple[Chunk, list[bytes]]:
        """A chunk for the manifest, and the sections of its index object; none if its index is inline."""
        extents: list[Extent] = []
        sections: list[bytes] = []
        position = 0
        for count, partition in enumerate(rolled.logs):
            rows = partition.open.of_chunk(rolled.number)
            assert rows is not None, "a chunk's rows stay in memory until it is listed"
            first, end = rows
            if rolled.sections is None:
                section = partition.open.rows.encode(first, end)
                sections.append(section)
                place = (position, len(section))
                position += len(section)
                if count % YIELD_SECTIONS == YIELD_SECTIONS - 1:
                    await asyncio.sleep(0)
            else:
                place = rolled.sections[partition]
            rows = partition.open.of_chunk(rolled.number)
            assert rows is not None
            extents += _extents(partition, *rows, place)
        chunk = Chunk(
            number=rolled.number,
            last_number=rolled.number,
            size_bytes=rolled.size_bytes,
            appended_ms=rolled.appended_ms,
            index_inline=rolled.sections is not None,
            extents=extents,
        )
        return chunk, sections

    async def close(self) -> None:
        """Stop the task, but not in the middle of a commit. `list_all` or the next start lists the waiting chunks."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait((self._task,))


def _extents(partition: PartitionLog, first: int, end: int, place: tuple[int, int]) -> list[Extent]:
    """Extents for the rows [first, end) of the open index, which are one section of the chunk's index: one on each side of a
    window."""
    index = partition.open.rows
    end_offset = index.offsets[end] if end < len(index) else partition.high_watermark
    extents: list[Extent] = []
    for low, high in partition.windows.without(index.offsets[first], end_offset):
        last = bisect_left(index.offsets, high, first, end)
        if first < last:
            extents.append(
                Extent(
                    topic_id=partition.topic.id,
                    partition=partition.number,
                    base_offset=low,
                    end_offset=high,
                    leader_epoch=partition.leader_epoch,
                    timestamp_max_ms=max(index.timestamps[first:last]),
                    data_bytes=sum(index.sizes[first:last]),
                    position=place[0],
                    length_bytes=place[1],
                )
            )
        first = last
    return extents
