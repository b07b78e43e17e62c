"""Encodes units of adopted files for the reader of history: each unit once, for all partitions whose readers are near.

A unit has rows of many partitions (`log/recipe.py`), and to decode it is the larger part of the work. So one decoding makes the
batches of every partition that a reader waits for, and of those whose readers have come to the units before it a short time ago.
Whoever begins to read a recipe mostly reads all of its partitions, so for the first seconds all of them count as near.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from headgate.broker.cluster.gates import ParquetExtent, topic_of
from headgate.broker.cluster.manifest import Manifest
from headgate.broker.engine.read.encoding import Encoders, UnitSource, encode_unit
from headgate.broker.engine.read.history_cache import EncodedGroup, group_of
from headgate.broker.engine.read.history_files import FileKey, HistoryFiles, OpenFile, corrupt, ended, file_key
from headgate.broker.engine.read.room import Place, Room
from headgate.broker.log.batch import parse_header
from headgate.broker.log.compression import Codec
from headgate.broker.log.recipe import Recipe, UnitBytes, Wanted
from headgate.broker.log.records import iter_records
from headgate.broker.runtime.errors import InvalidError, Reason
from headgate.broker.runtime.tasks import outlast
from headgate.broker.store.interface import Files, Readable

NEAR_S = 10.0
"""Seconds after which a reader that has not returned counts as gone."""
START_S = 2.0
"""Seconds from the first read of a recipe in which all of its partitions count as near: those of a fetch come one after another."""
BEHIND_UNITS = 3
"""Units that a reader may be behind to count as near. Batches for one that is further behind would leave the cache unread: the
partitions of one consumer drift apart, since a fetch is answered with what is there."""
NEAR_MAX = 10_000
"""Partitions whose readers are remembered."""

Run: TypeAlias = Callable[[Callable[[], Any]], asyncio.Future[Any]]


class UnitKey(NamedTuple):
    """The rows of one partition in a unit. `at`: the number of the unit among those with rows of the partition."""

    file: FileKey
    at: int


class _Asked(NamedTuple):
    extent: ParquetExtent
    file: OpenFile
    at: int


Led: TypeAlias = Callable[[ParquetExtent], Iterable[ParquetExtent]]
Keep: TypeAlias = Callable[[ParquetExtent, OpenFile, int, EncodedGroup], None]


class _Reader(NamedTuple):
    """A partition that was read: up to a unit, at a time in seconds."""

    extent: ParquetExtent
    file: OpenFile
    unit: int
    at_s: float


class _Streak(NamedTuple):
    """A time in seconds in which a recipe is read again and again."""

    began_s: float
    last_s: float


class Units:
    """The units of one reader of history.

    Args:
        run: runs a call in the threads that encode.
        room: bounds the units in memory.
        led: the extents with the same recipe that this broker reads.
        has: True if the batches of a partition in a unit are in the cache.
        shared: awaits a task that other callers also await.
    """

    def __init__(
        self,
        files: HistoryFiles,
        run: Run,
        room: Room,
        shared: Callable[[asyncio.Task[Any]], Awaitable[Any]],
        led: Led,
        has: Callable[[ParquetExtent, OpenFile, int], bool],
        encoders: Encoders | None,
        codec: Codec,
    ) -> None:
        self._files = files
        self._run = run
        self._room = room
        self._shared = shared
        self._encoders = encoders
        self._codec = codec
        self._asked: dict[tuple[str, int, int], dict[UnitKey, _Asked]] = {}
        """What is waited for, of each unit that nobody decodes yet: by path and checksum of the recipe, and number."""
        self._under_way: dict[Hashable, asyncio.Task[dict[UnitKey, EncodedGroup]]] = {}
        self._led = led
        self._has = has
        self._near: OrderedDict[FileKey, _Reader] = OrderedDict()
        self._streaks: OrderedDict[tuple[str, int], _Streak] = OrderedDict()
        """Of recipes, by path and checksum."""

    def tasks(self) -> Sequence[asyncio.Task[Any]]:
        """The tasks under way."""
        return list(self._under_way.values())

    def reads(self, extent: ParquetExtent, file: OpenFile, index: int, now_s: float) -> None:
        """A reader has come to a unit."""
        key, recipe = file_key(extent), (extent.path, extent.footer_crc32c)
        streak = self._streaks.pop(recipe, None)
        began_s = now_s if streak is None or now_s - streak.last_s >= NEAR_S else streak.began_s
        self._streaks[recipe] = _Streak(began_s, now_s)
        if len(self._streaks) > NEAR_MAX:
            self._streaks.popitem(last=False)
        self._near.pop(key, None)
        self._near[key] = _Reader(extent, file, file.footer.groups[index].number, now_s)
        if len(self._near) > NEAR_MAX:
            self._near.popitem(last=False)

    async def encode(self, extent: ParquetExtent, file: OpenFile, index: int, keep: Keep) -> EncodedGroup:
        """The batches of an extent's partition in a unit.

        Args:
            index: of the unit among those with rows of the partition.
            keep: takes the batches of each partition that is encoded.

        Raises: as `HistoryReader.read`.
        """
        assert file.recipe is not None, "the rows are adopted"
        number = file.footer.groups[index].number
        place, mine = (extent.path, extent.footer_crc32c, number), UnitKey(file_key(extent), index)
        try:
            while True:
                task = self._under_way.get(place)
                if task is None or place in self._asked:
                    # It has not begun to decode, and takes further partitions.
                    self._asked.setdefault(place, {})[mine] = _Asked(extent, file, index)
                if task is None:
                    work = self._decode(place, file.recipe, keep)
                    task = self._under_way[place] = asyncio.get_running_loop().create_task(work)
                    task.add_done_callback(partial(ended, self._under_way, place))
                found: dict[UnitKey, EncodedGroup] = await self._shared(task)
                if mine in found:
                    return found[mine]
        except InvalidError as error:
            if error.reason is Reason.NOT_FOUND:
                raise
            raise corrupt(extent, error.message) from error

    async def _decode(self, place: tuple[str, int, int], recipe: Recipe, keep: Keep) -> dict[UnitKey, EncodedGroup]:
        async with self._room.place() as held:
            asked = self._asked.pop(place)
            for other in await held.read(self._others(place, next(iter(asked.values())).extent)):
                asked.setdefault(UnitKey(file_key(other.extent), other.at), other)
            # The rows of a partition are asked for twice if a fold has just left a piece of what another reader reads as a whole.
            wanted: dict[Wanted, list[UnitKey]] = {}
            for key, asking in sorted(asked.items(), key=lambda item: item[1].extent.partition):
                wanted.setdefault(_wanted(asking), []).append(key)
            extent = next(iter(asked.values())).extent
            unit = await held.read(self._unit(extent, recipe, place[2], list(wanted)))
            batches = await self._encoded(extent, recipe, place[2], unit, held)
        found: dict[UnitKey, EncodedGroup] = {}
        at = 0
        for rows, keys in wanted.items():
            begin, left = at, rows.rows
            while left > 0:
                left -= parse_header(batches[at]).record_count
                at += 1
            for key in keys:
                found[key] = group_of(batches[begin:at])
                keep(asked[key].extent, asked[key].file, asked[key].at, found[key])
        return found

    async def _others(self, place: tuple[str, int, int], extent: ParquetExtent) -> list[_Asked]:
        """The partitions of a unit whose readers are near, and whose batches are not there yet."""
        path, crc, number = place
        now_s = asyncio.get_running_loop().time()
        files = {
            key: (near.extent, near.file)
            for key, near in self._near.items()
            if (key.path, key.footer_crc32c) == (path, crc)
            and number - BEHIND_UNITS <= near.unit <= number
            and now_s - near.at_s < NEAR_S
        }
        streak = self._streaks.get((path, crc))
        if streak is not None and now_s - streak.began_s < START_S:
            for led in self._led(extent):
                if file_key(led) not in self._near:
                    files[file_key(led)] = led, await self._files.open(led)
        found = []
        for other, file in files.values():
            numbers = [group.number for group in file.footer.groups]
            at = bisect_left(numbers, number)
            if numbers[at : at + 1] == [number] and not self._has(other, file, at):
                found.append(_Asked(other, file, at))
        return found

    async def _unit(self, extent: ParquetExtent, recipe: Recipe, number: int, wanted: list[Wanted]) -> UnitBytes:
        unit = recipe.units[number]
        footers = [await self._files.adopted_footer(extent, recipe.files[file]) for file in recipe.files_of(unit)]
        made: UnitBytes = await outlast(self._run(partial(_described, recipe, number, footers, int(self._codec), wanted)))
        return made

    async def _encoded(self, extent: ParquetExtent, recipe: Recipe, number: int, unit: UnitBytes, held: Place) -> list[memoryview]:
        paths = [recipe.files[file].path for file in recipe.files_of(recipe.units[number])]
        places = [self._files.place_of(extent, path) for path in paths]
        encode = _encode_here if self._encoders is None else self._encoders.encode_unit
        descriptors = await opened_files(places)
        if descriptors is None:
            source = await held.read(unit_bytes(places, unit))
            found: list[memoryview] = await outlast(self._run(partial(encode, unit, source)))
            return found
        try:
            work = self._run(partial(encode, unit, descriptors))
        except BaseException:
            close_files(descriptors)
            raise
        # Only after the thread has finished with them, also if no reader waits any more.
        work.add_done_callback(lambda _: close_files(descriptors))
        encoded: list[memoryview] = await outlast(work)
        return encoded


async def opened_files(places: Sequence[tuple[Readable, str]]) -> list[int] | None:
    """A descriptor of each file of a unit; None if a store has no files."""
    descriptors: list[int] = []
    try:
        for store, key in places:
            descriptor = await store.open_file(key) if isinstance(store, Files) else None
            if descriptor is None:
                close_files(descriptors)
                return None
            descriptors.append(descriptor)
    except BaseException:
        close_files(descriptors)
        raise
    return descriptors


def with_recipe(
    extent: ParquetExtent, manifest: Manifest, logs: Mapping[uuid.UUID, Sequence[object | None]]
) -> Iterable[ParquetExtent]:
    """The extents with the recipe of this one, of partitions that this broker leads. `logs`: by topic; None: another one leads."""
    topic_id = topic_of(extent.path)
    mine = () if topic_id is None else logs.get(topic_id, ())
    for gate in () if topic_id is None else manifest.gates.of(topic_id).values():
        for adopted in gate.extents:
            if adopted.path == extent.path and adopted.partition < len(mine) and mine[adopted.partition] is not None:
                yield adopted


def _wanted(asked: _Asked) -> Wanted:
    group = asked.file.footer.groups[asked.at]
    return Wanted(asked.extent.partition, asked.extent.base_offset + group.first_row, group.rows, asked.extent.leader_epoch)


async def unit_bytes(places: Sequence[tuple[Readable, str]], unit: UnitBytes) -> bytes:
    """The ranges of all files of a unit, one behind the other."""
    found = []
    for (store, key), file in zip(places, unit.files, strict=True):
        for ranges in file.ranges:
            parts = await asyncio.gather(*(store.get_range(key, position, size) for position, size in ranges))
            if [len(part) for part in parts] != [size for _, size in ranges]:
                raise InvalidError(Reason.CORRUPT_MESSAGE, "an adopted file is cut off")
            found += parts
    return b"".join(found)


def close_files(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


# The following functions run in the threads.


def _described(recipe: Recipe, number: int, footers: Sequence[bytes], codec: int, wanted: list[Wanted]) -> UnitBytes:
    from headgate.broker.log.adopted import described

    return described(recipe, number, footers, codec, wanted)


def _encode_here(unit: UnitBytes, source: UnitSource) -> list[memoryview]:
    return list(encode_unit(unit, source))


def first_in(batches: Sequence[memoryview], timestamp_ms: int, offset: int) -> tuple[int, int] | None:
    """(timestamp in ms, offset) of the first record from an offset on whose time is at or after `timestamp_ms`."""
    for batch in batches:
        header = parse_header(batch)
        if header.max_timestamp >= timestamp_ms and header.next_offset > offset:
            for record in iter_records(batch):
                if record.offset >= offset and record.timestamp_ms >= timestamp_ms:
                    return record.timestamp_ms, record.offset
    return None


def greatest_in(batches: Sequence[memoryview], offset: int) -> int | None:
    """The greatest time in ms of the records from an offset on."""
    times = [record.timestamp_ms for batch in batches for record in iter_records(batch) if record.offset >= offset]
    return max(times, default=None)
