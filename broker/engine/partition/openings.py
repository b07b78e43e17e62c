"""The opening of segments: their partitions get logs once the state of their producers was read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from headgate.broker.cluster.segments import SegmentInfo
from headgate.broker.engine.base.lifecycle import Lifecycle
from headgate.broker.engine.partition.producers import Producers, load_producers
from headgate.broker.runtime.errors import CorruptError, RetryError
from headgate.broker.runtime.logging import get_logger
from headgate.broker.runtime.tasks import watch

logger = get_logger("leads")

INSTALL_PARTITIONS_MAX = 250
"""Partitions that are opened in one turn of the loop. They take some three milliseconds."""
DAMAGED_RETRY_S = 10.0
"""Pause before a damaged or lost checkpoint of producers is read again. An operator may restore it."""
RETRY_S = 0.2
"""Pause, in seconds, before a checkpoint of producers is read again after the store did not answer."""


class Openings:
    """The segments that this incarnation has open, and those among them that wait for the state of their producers.

    Args:
        install: makes the logs of partitions, with the state of their producers.
    """

    def __init__(self, lifecycle: Lifecycle, install: Callable[[list[tuple[SegmentInfo, range]], Producers], None]) -> None:
        self._lifecycle = lifecycle
        self._install = install
        self.mine: dict[int, SegmentInfo] = {}
        """Open segments of this incarnation, including those with producer state that is still being read."""
        self.damaged: dict[int, str] = {}
        """Segments that are not open, because the store lost the state of their producers: by id, the reported error."""
        self._abandoned: set[int] = set()
        """Damaged segments that stay closed here: they are being sealed."""
        self._tasks: set[asyncio.Task[None]] = set()
        """They open segments."""
        self._opening: set[asyncio.Future[None]] = set()
        """One for each task, until its segments are open, or wait for an operator."""

    def stop(self) -> None:
        """Stop the opening of segments."""
        for task in self._tasks:
            task.cancel()

    def abandon(self, segment: SegmentInfo) -> None:
        """Never open a damaged segment here: it is about to be sealed as it was opened."""
        self._abandoned.add(segment.id)

    def forget(self, segment_id: int) -> SegmentInfo | None:
        """Take out a segment that was sealed. None: it was not this incarnation's."""
        self.damaged.pop(segment_id, None)
        self._abandoned.discard(segment_id)
        return self.mine.pop(segment_id, None)

    async def settled(self) -> None:
        """Wait until no segment is being opened. Damaged segments do not count."""
        while self._opening:
            await asyncio.wait(self._opening)

    async def opened(self) -> None:
        """Wait until every segment that this broker got before the call is open, or belongs to another broker again."""
        if self._opening:
            await asyncio.wait(set(self._opening))

    def open(self, segments: list[SegmentInfo]) -> None:
        """Open segments, at once if their producers have no state to be read."""
        if not segments:
            return
        self.mine.update((segment.id, segment) for segment in segments)
        origins = sorted({origin for segment in segments for origin in segment.origins})
        if origins or sum(len(segment.partitions) for segment in segments) > INSTALL_PARTITIONS_MAX:
            opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
            task = asyncio.create_task(self._open_soon(segments, origins, opening), name="open-segments")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: _complete(opening))
            watch(task, "opening of segments", self._lifecycle.fail)
        else:
            self._install([(segment, segment.partitions) for segment in segments], {})

    async def _open_soon(self, segments: list[SegmentInfo], origins: list[str], opening: asyncio.Future[None]) -> None:
        """Open segments.

        Args:
            opening: completed once no caller needs to wait for these segments any more.
        """
        while True:
            try:
                producers = await load_producers(self._lifecycle.store, origins)
            except RetryError as error:
                logger.warning("segments_wait", segments=len(segments), error=error.message)
                await asyncio.sleep(RETRY_S)
                continue
            except CorruptError as error:
                if len(segments) > 1:
                    for segment in segments:
                        self.open(self._wanted([segment]))  # only those that need the damaged object wait for it
                    return
                await self._wait_damaged(segments[0], error, opening)
                self.open(self._wanted(segments))
                return
            break
        segments = self._wanted(segments)
        for segment in segments:
            self.damaged.pop(segment.id, None)
        # Many partitions take long to install, so other work gets turns of the loop between the lots.
        for lot in _lots_of(segments):
            self._install([(segment, numbers) for segment, numbers in lot if segment.id in self.mine], producers)
            await asyncio.sleep(0)

    async def _wait_damaged(self, segment: SegmentInfo, error: CorruptError, opening: asyncio.Future[None]) -> None:
        """Wait for an operator. Without the state of its producers, the retry of an acked batch would be appended again."""
        if self.damaged.get(segment.id) != error.message:
            logger.error("partitions_damaged", **self._named(segment), error=error.message)
        self.damaged[segment.id] = error.message
        _complete(opening)
        await asyncio.sleep(DAMAGED_RETRY_S)
        if segment.id not in self.mine:
            self.damaged.pop(segment.id, None)

    def _wanted(self, segments: list[SegmentInfo]) -> list[SegmentInfo]:
        """The segments that this broker still leads, and may open."""
        return [segment for segment in segments if segment.id in self.mine and segment.id not in self._abandoned]

    def _named(self, segment: SegmentInfo) -> dict[str, object]:
        """A segment in the terms of operators, for the log."""
        topic = self._lifecycle.manifest.topics_by_id.get(segment.topic_id)
        return {
            "topic": "" if topic is None else topic.name,
            "first_partition": segment.first_partition,
            "last_partition": segment.end_partition - 1,
        }


def _complete(opening: asyncio.Future[None]) -> None:
    if not opening.done():
        opening.set_result(None)


def _lots_of(segments: list[SegmentInfo]) -> Iterator[list[tuple[SegmentInfo, range]]]:
    """Split the partitions of segments into lots of INSTALL_PARTITIONS_MAX."""
    lot: list[tuple[SegmentInfo, range]] = []
    room = INSTALL_PARTITIONS_MAX
    for segment in segments:
        left = segment.partitions
        while left:
            lot.append((segment, left[:room]))
            left, room = left[room:], room - len(left[:room])
            if room == 0:
                yield lot
                lot, room = [], INSTALL_PARTITIONS_MAX
    if lot:
        yield lot
