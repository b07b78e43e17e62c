"""Opens Parquet files of history: reads a footer once, checks it against the reference, and keeps it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.engine.read.references import as_extent
from headgate.broker.log.crc import crc32c
from headgate.broker.log.recipe import AdoptedFile, Recipe, Share, decode_recipe, piece_of
from headgate.broker.runtime.errors import CorruptError, InvalidError, Reason
from headgate.broker.runtime.tasks import looked_at, outlast
from headgate.broker.store.interface import Readable

if TYPE_CHECKING:
    from headgate.broker.log.parquet import ExtentFile, RowGroup

FOOTERS_BYTES_MAX = 32 << 20
"""Bytes of footers of open files, as stored in the file. In memory a footer is a few times larger."""
RECIPES_KEPT = 4
"""Recipes that stay in memory after a partition was opened: the next partitions follow."""
SHARE_BYTES = 50
"""What a unit of one partition counts among the footers."""

_T = TypeVar("_T")
_K = TypeVar("_K")
_Parsed: TypeAlias = tuple[Recipe, dict[int, list[tuple[int, Share]]]]
"""A recipe, and the rows of each partition in it."""


class FileKey(NamedTuple):
    """The identity of a file in a reference. A file outside of the cluster's store may be replaced and committed again under the
    same path. `partition`: of a recipe, which has the rows of many; -1: the file has one. `first_row`, `rows`: of a
    piece of a recipe."""

    path: str
    footer_crc32c: int
    partition: int = -1
    first_row: int = 0
    rows: int = 0


def file_key(extent: ParquetExtent) -> FileKey:
    if not extent.adopted:
        return FileKey(extent.path, extent.footer_crc32c)
    return FileKey(extent.path, extent.footer_crc32c, extent.partition, extent.first_row, extent.rows)


class OpenFile(NamedTuple):
    """An opened file. `parts`, for row groups that were encoded in parts, by number: the first row of each known part, and its
    end row. Of adopted rows `recipe` says how they are read, and the row groups of `footer` are the units with rows of one
    partition."""

    footer: ExtentFile
    size_bytes: int
    parts: dict[int, dict[int, int]]
    recipe: Recipe | None = None


class HistoryFiles:
    """The open files of one reader of history.

    Args:
        locate: returns the store and the key of an extent's path. Raises InvalidError if the path is not allowed.
        run: runs a call in a thread.
        shared: awaits a task that other callers also await.
    """

    def __init__(
        self,
        locate: Callable[[str], tuple[Readable, str]],
        run: Callable[[Callable[[], Any]], Awaitable[Any]],
        shared: Callable[[asyncio.Task[OpenFile]], Awaitable[OpenFile]],
    ) -> None:
        self._locate = locate
        self._run = run
        self._shared = shared
        self._files: OrderedDict[FileKey, OpenFile] = OrderedDict()
        """The least recently used first."""
        self._footers_bytes = 0
        self._opening: dict[FileKey, asyncio.Task[OpenFile]] = {}
        self._recipes: OrderedDict[FileKey, asyncio.Task[_Parsed]] = OrderedDict()
        self._footers: OrderedDict[FileKey, bytes] = OrderedDict()
        """Footers of adopted files, the least recently used first."""

    def known(self, extent: ParquetExtent) -> OpenFile | None:
        """The file of an extent, if it is open."""
        return self._files.get(file_key(extent))

    async def open(self, extent: ParquetExtent) -> OpenFile:
        """The file of an extent. Raises as `HistoryReader.read`."""
        key = file_key(extent)
        known = self._files.get(key)
        if known is not None:
            self._files.move_to_end(key)
        else:
            known = await self._shared(self.begin_to_open(extent))
        _agree(extent, known.footer)
        return known

    def begin_to_open(self, extent: ParquetExtent) -> asyncio.Task[OpenFile]:
        """The task that opens a file; a new one if none is under way."""
        key = file_key(extent)
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.get_running_loop().create_task(self._open_file(extent))
            opening.add_done_callback(partial(ended, self._opening, key))
        return opening

    def opening(self) -> Iterable[asyncio.Task[Any]]:
        """The tasks under way."""
        return [*self._opening.values(), *self._recipes.values()]

    async def adopted_footer(self, extent: ParquetExtent, adopted: AdoptedFile) -> bytes:
        """The footer of a file that the recipe of an extent names. Raises as `HistoryReader.read`."""
        key = FileKey(adopted.path, adopted.footer_crc32c)
        footer = self._footers.get(key)
        if footer is None:
            footer = self._footers[key] = await self._footer(as_extent(extent, adopted))
            size = sum(map(len, self._footers.values()))
            while size > FOOTERS_BYTES_MAX and len(self._footers) > 1:
                size -= len(self._footers.popitem(last=False)[1])
        else:
            self._footers.move_to_end(key)
        return footer

    async def _open_file(self, extent: ParquetExtent) -> OpenFile:
        if extent.adopted:
            file = await self._open_recipe(extent)
        else:
            footer = await self._footer(extent)
            file = OpenFile(await self._run(lambda: _parse_footer(extent, footer)), len(footer), {})
        size = file.size_bytes
        if file_key(extent) not in self._files:
            self._files[file_key(extent)] = file
            self._footers_bytes += size
        while self._footers_bytes > FOOTERS_BYTES_MAX and len(self._files) > 1:
            self._footers_bytes -= self._files.popitem(last=False)[1].size_bytes
        return file

    async def _open_recipe(self, extent: ParquetExtent) -> OpenFile:
        key = FileKey(extent.path, extent.footer_crc32c)
        task = self._recipes.get(key)
        if task is None:
            task = self._recipes[key] = asyncio.get_running_loop().create_task(self._recipe(extent))
            task.add_done_callback(partial(self._forget_failed, key))
            while len(self._recipes) > RECIPES_KEPT:
                self._recipes.popitem(last=False)
        recipe, shares = await outlast(task)
        mine = piece_of(shares.get(extent.partition, []), extent.first_row, extent.rows)
        return OpenFile(await self._run(lambda: _as_file(recipe, mine)), SHARE_BYTES * len(mine), {}, recipe)

    async def _recipe(self, extent: ParquetExtent) -> _Parsed:
        store, name = self.place(extent)
        data = await store.get_range(name, 0, extent.size_bytes + 1)
        parsed: _Parsed = await self._run(lambda: _parse_recipe(extent, data))
        return parsed

    def _forget_failed(self, key: FileKey, task: asyncio.Task[_Parsed]) -> None:
        """Done callback: the next reader tries again."""
        looked_at(task)
        if (task.cancelled() or task.exception() is not None) and self._recipes.get(key) is task:
            del self._recipes[key]

    async def _footer(self, extent: ParquetExtent) -> bytes:
        """The bytes of a footer."""
        store, key = self.place(extent)
        first: int = await self._run(first_read)
        guess = min(first, extent.size_bytes)
        tail = await store.get_range(key, extent.size_bytes - guess, guess)
        size: int = await self._run(lambda: _footer_size(extent, tail))
        if size > len(tail):
            tail = await store.get_range(key, extent.size_bytes - size, size)
        beyond = await store.get_range(key, extent.size_bytes, 1)
        if beyond:
            raise corrupt(extent, "is longer than its reference says")
        footer = tail[len(tail) - size :]
        if crc32c(footer) != extent.footer_crc32c:
            raise corrupt(extent, "has another footer than its reference says")
        return footer

    def place(self, extent: ParquetExtent) -> tuple[Readable, str]:
        """The store and the key of a file. Raises CorruptError if its path is not allowed."""
        return self.place_of(extent, extent.path)

    def place_of(self, extent: ParquetExtent, path: str) -> tuple[Readable, str]:
        """The same of a file that an extent needs."""
        try:
            return self._locate(path)
        except InvalidError as error:
            raise corrupt(extent, error.message) from error

    async def bytes_of(self, extent: ParquetExtent, group: RowGroup) -> bytes:
        """The bytes of a row group, or of some of its columns. Raises CorruptError, RetryError, InvalidError(NOT_FOUND)."""
        store, key = self.place(extent)
        data = await store.get_range(key, group.start, group.end - group.start)
        if len(data) != group.end - group.start:
            raise corrupt(extent, "is cut off")
        return data


def ended(under_way: dict[_K, asyncio.Task[_T]], key: _K, task: asyncio.Task[_T]) -> None:
    """Done callback of a task that several readers may await: forgets the task."""
    under_way.pop(key, None)
    # Possibly no task waits for the result, for example after read-ahead. A later reader repeats the work and gets the error
    # itself.
    looked_at(task)


# The following functions run in a thread. They import pyarrow.


def first_read() -> int:
    """Bytes of the first read of a footer. Imports pyarrow."""
    from headgate.broker.log.parquet import FOOTER_GUESS_BYTES

    return FOOTER_GUESS_BYTES


def _footer_size(extent: ParquetExtent, tail: bytes) -> int:
    from headgate.broker.log.parquet import footer_size

    try:
        return footer_size(tail, extent.size_bytes)
    except InvalidError as error:
        raise corrupt(extent, error.message) from error


def _parse_recipe(extent: ParquetExtent, data: bytes) -> _Parsed:
    """A recipe, and the rows of each partition in it."""
    if len(data) != extent.size_bytes or crc32c(data) != extent.footer_crc32c:
        raise corrupt(extent, "is another recipe than its reference says")
    try:
        recipe = decode_recipe(data)
    except InvalidError as error:
        raise corrupt(extent, error.message) from error
    return recipe, recipe.shares()


def _as_file(recipe: Recipe, shares: Sequence[tuple[int, Share]]) -> ExtentFile:
    """The rows of a partition in a recipe as those of a file with a row group for each unit."""
    from headgate.broker.log.parquet import ExtentFile, RowGroup

    groups = []
    first_row = 0
    for number, one in shares:
        unit = recipe.units[number]
        data_bytes = unit.data_bytes * one.rows // max(sum(share.rows for share in unit.shares), 1)
        times = one.timestamp_min_ms, one.timestamp_max_ms
        groups.append(RowGroup(number, first_row, one.rows, 0, 0, data_bytes, False, *times))
        first_row += one.rows
    return ExtentFile(None, (), tuple(groups), b"")


def _parse_footer(extent: ParquetExtent, footer: bytes) -> ExtentFile:
    from headgate.broker.log.parquet import read_footer

    try:
        return read_footer(footer, extent.size_bytes)
    except InvalidError as error:
        raise corrupt(extent, error.message) from error


def _agree(extent: ParquetExtent, file: ExtentFile) -> None:
    if file.rows != extent.rows:
        raise corrupt(extent, f"has another number of rows than its reference says: {file.rows}")
    if extent.folded and not file.has_offsets:
        raise corrupt(extent, "does not have the offsets of its rows")


def corrupt(extent: ParquetExtent, what: str) -> CorruptError:
    """The error for a file that cannot be read."""
    return CorruptError(
        Reason.CORRUPT_STORE,
        f"a file with history cannot be read: {what}. path=`{extent.path}` partition=`{extent.partition}` "
        f"base_offset=`{extent.base_offset}`",
    )
