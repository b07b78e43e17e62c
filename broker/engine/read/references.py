"""The files with which gates are filled: their places in stores, and checks that they agree with their references.

The broker checks a file by its footer, which it reads whole. Of the rows it reads only the time column, and only if the footer
has no statistics of it: a single time that is missing or out of range would make the whole partition unreadable. Properties that
the footer cannot show, such as the order of rows within one row group, are not checked: the uploader is responsible for them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from headgate.broker.cluster.gates import ParquetExtent, data_prefix, is_url
from headgate.broker.log.crc import crc32c
from headgate.broker.log.recipe import (
    BYTES_MAX,
    RECIPE,
    AdoptedFile,
    Groups,
    Recipe,
    Shape,
    Share,
    decode_recipe,
    owner_of,
    piece_of,
)
from headgate.broker.runtime.errors import FatalError, InvalidError, Reason
from headgate.broker.runtime.threads import Pool, Pools
from headgate.broker.runtime.turns import Turns
from headgate.broker.store.interface import Readable, Store
from headgate.broker.store.keys import check_key
from headgate.broker.store.open import open_readable

if TYPE_CHECKING:
    from headgate.broker.log.parquet import ExtentFile, RowGroup

CHECKS_MAX = 16
"""Files that are checked at the same time."""
GUESS_BYTES = 64 << 10
"""Bytes of the first read from the end of a file. Most footers are smaller."""
FOOTER_BYTES_MAX = 64 << 20
S3_CONNECTIONS_MAX = 16
"""Concurrent requests to foreign buckets, for all of them together."""
TAIL_BYTES = 8
"""Bytes after the metadata: the metadata's length, and the magic."""
MAGIC = b"PAR1"


class References:
    """Finds and checks files.

    Args:
        allowed: URLs of foreign places that may contain files, separated by commas.
        turns: of the loop on which files are checked.
        pools: makes the threads that read from foreign buckets.
    """

    def __init__(self, store: Store, allowed: str, turns: Turns, pools: Pools = Pool) -> None:
        self._store = store
        self._turns = turns
        self._allowed = [prefix.strip().rstrip("/") + "/" for prefix in allowed.split(",") if prefix.strip()]
        self._stores: dict[str, Readable] = {}
        # One pool for all of them, made before it is needed: the broker must not start threads while it serves.
        has_buckets = any(prefix.startswith("s3://") for prefix in self._allowed)
        self._pool = pools(S3_CONNECTIONS_MAX, "s3-others") if has_buckets else None

    def locate(self, path: str) -> tuple[Readable, str]:
        """The store and key of a path. Raises InvalidError(INVALID_REFERENCE) if the path is not allowed."""
        if not is_url(path):
            return self._store, path
        for prefix in self._allowed:
            if path.startswith(prefix):
                key = unquote(path[len(prefix) :])
                try:
                    check_key(key)
                    if prefix not in self._stores:
                        self._stores[prefix] = open_readable(prefix, self._pool)
                except (InvalidError, FatalError) as error:
                    raise InvalidError(Reason.INVALID_REFERENCE, f"{error.message} path=`{path[:300]}`") from error
                return self._stores[prefix], key
        raise InvalidError(
            Reason.INVALID_REFERENCE,
            f"files may lie only under the topic's own prefix and those in gate_allowed_prefixes. path=`{path[:300]}`",
        )

    async def close(self) -> None:
        """Close the connections to foreign stores."""
        for store in self._stores.values():
            await store.close()
        self._stores.clear()
        if self._pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)

    async def check(self, topic_id: uuid.UUID, extents: Sequence[ParquetExtent], *, absolute: bool) -> None:
        """Check files.

        Args:
            absolute: the files contain the offsets of the topic. Otherwise offsets count from 0, and the files must not contain
                any.

        Raises:
            InvalidError(INVALID_REFERENCE): the message names the file and the problem. RetryError: a store does not answer.
        """
        turn = self._turns.begin()
        async for extent in turn.each(extents):
            self._check_path(topic_id, extent.path)
        recipes: dict[str, list[ParquetExtent]] = {}
        async for extent in turn.each(extents):
            if extent.adopted:
                recipes.setdefault(extent.path, []).append(extent)
        left = iter(extents)

        async def judge() -> None:
            async for extent in self._turns.begin().each(left):
                if not extent.adopted:
                    await self._check(extent, absolute)

        await together([judge() for _ in range(min(len(extents), CHECKS_MAX))])
        for some in recipes.values():
            await self._check_adopted(topic_id, some)

    def _check_path(self, topic_id: uuid.UUID, path: str) -> None:
        if is_url(path):
            self.locate(path)
            return
        try:
            check_key(path)
        except InvalidError as error:
            raise InvalidError(Reason.INVALID_REFERENCE, error.message) from error
        if not path.startswith(data_prefix(topic_id)):
            raise InvalidError(
                Reason.INVALID_REFERENCE,
                f"the file is not under the topic's prefix. path=`{path[:300]}` prefix=`{data_prefix(topic_id)}`",
            )

    async def recipe(self, extent: ParquetExtent) -> Recipe:
        """The recipe of adopted rows. Raises InvalidError(INVALID_REFERENCE): there is none, or another one than stated."""
        if extent.size_bytes > BYTES_MAX or owner_of(extent.path) != extent.path or not extent.path.endswith(RECIPE):
            raise _bad(extent, f"this is no recipe of adopted files. size_bytes=`{extent.size_bytes}`")
        loop = asyncio.get_running_loop()
        data = await self._tail(extent, extent.size_bytes)
        return await loop.run_in_executor(None, _judge_recipe, extent, data)

    async def _check_adopted(self, topic_id: uuid.UUID, extents: Sequence[ParquetExtent]) -> None:
        """Check the rows of some partitions that one recipe has, and the files that it names."""
        recipe = await self.recipe(extents[0])
        shares = recipe.shares()
        needed: set[int] = set()
        for extent in extents:
            if (extent.size_bytes, extent.footer_crc32c) != (extents[0].size_bytes, extents[0].footer_crc32c):
                raise _bad(extent, "the recipe has another size or checksum for another partition")
            mine = piece_of(shares.get(extent.partition, []), extent.first_row, extent.rows)
            needed.update(number for number, _ in mine)
            _judge_shares(extent, [share for _, share in mine])
        for file in recipe.files:
            self._check_path(topic_id, file.path)
            if is_url(file.path) or owner_of(file.path) != extents[0].path:
                raise _bad(extents[0], f"a recipe names a file that is not its own: {file.path[:300]}")
        await self._check_files(extents[0], recipe, sorted(needed))

    async def _check_files(self, extent: ParquetExtent, recipe: Recipe, needed: Sequence[int]) -> None:
        """Compare the files of the units that are needed with their recipe."""
        places: dict[int, list[tuple[int, Groups]]] = {}
        for number in needed:
            for groups in recipe.units[number].groups:
                places.setdefault(groups.file, []).append((number, groups))
        rows = [0] * len(recipe.units)
        left = iter(places.items())

        async def judge() -> None:
            for file, mine in left:
                one = as_extent(extent, recipe.files[file])
                footer = await self.footer(one)
                look = partial(_judge_adopted, one, recipe.shape, recipe.files[file], mine, footer)
                counts = await asyncio.get_running_loop().run_in_executor(None, look)
                for (number, _), count in zip(mine, counts, strict=True):
                    rows[number] += count

        await together([judge() for _ in range(min(len(places), CHECKS_MAX))])
        for number in needed:
            stated = sum(share.rows for share in recipe.units[number].shares)
            # Rows that do not pass are in the files, and are no records.
            if rows[number] < stated or (rows[number] > stated and not recipe.shape.divides):
                raise _bad(extent, f"the files of a unit have another number of rows: {rows[number]}. unit=`{number}`")

    async def _check(self, extent: ParquetExtent, absolute: bool) -> None:
        footer = await self.footer(extent)
        loop = asyncio.get_running_loop()
        file, unproven = await loop.run_in_executor(None, _judge, extent, footer, absolute)
        times: list[tuple[int, int]] = []
        for known in file.groups:
            if known.timestamp_min_ms is not None and known.timestamp_max_ms is not None:
                times.append((known.timestamp_min_ms, known.timestamp_max_ms))
        store, key = self.locate(extent.path)
        for group in unproven:
            data = await store.get_range(key, group.start, group.end - group.start)
            times.append(await loop.run_in_executor(None, _times_of, extent, file, group, data))
        _judge_times(extent, times)

    async def footer(self, extent: ParquetExtent) -> bytes:
        """The file's metadata and the bytes after it. Checks size and checksum."""
        data = await self._tail(extent, GUESS_BYTES)
        if len(data) < TAIL_BYTES + len(MAGIC) or data[-4:] != MAGIC:
            raise _bad(extent, "this is not a Parquet file, or it is cut off")
        length = int.from_bytes(data[-8:-4], "little") + TAIL_BYTES
        if length > min(extent.size_bytes, FOOTER_BYTES_MAX):
            raise _bad(extent, "this is not a Parquet file, or it is cut off")
        if length > len(data):
            data = await self._tail(extent, length)
        footer = data[-length:]
        if crc32c(footer) != extent.footer_crc32c:
            raise _bad(extent, "the file's footer has another checksum than stated")
        return footer

    async def _tail(self, extent: ParquetExtent, size_bytes: int) -> bytes:
        """The last bytes of a file, at most `size_bytes`. Checks its size."""
        store, key = self.locate(extent.path)
        start = max(0, extent.size_bytes - size_bytes)
        try:
            # One byte more than the stated size, to detect a longer file.
            data = await store.get_range(key, start, extent.size_bytes - start + 1)
        except (InvalidError, FatalError) as error:
            if error.reason is Reason.NOT_FOUND:
                raise _bad(extent, "there is no such file") from error
            if error.reason not in (Reason.STORE_MISCONFIGURED, Reason.INVALID_REQUEST):
                raise
            raise _bad(extent, f"the file cannot be read, is it a symbolic link? {error.message}") from error
        if len(data) != extent.size_bytes - start:
            raise _bad(extent, "the file has another size than stated")
        return data


async def together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Do all of it at the same time. The first error ends the rest."""
    tasks = [asyncio.create_task(judging, name="judge-files") for judging in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def as_extent(extent: ParquetExtent, file: AdoptedFile) -> ParquetExtent:
    """The reference to a file that a recipe names, as that to a file of one partition."""
    return msgspec.structs.replace(
        extent, path=file.path, size_bytes=file.size_bytes, footer_crc32c=file.footer_crc32c, adopted_bytes=0
    )


def _judge_recipe(extent: ParquetExtent, data: bytes) -> Recipe:
    if crc32c(data) != extent.footer_crc32c:
        raise _bad(extent, "the recipe has another checksum than stated")
    try:
        return decode_recipe(data)
    except InvalidError as error:
        raise _bad(extent, error.message) from error


def _judge_shares(extent: ParquetExtent, shares: list[Share]) -> None:
    """Compare the rows of a partition in a recipe with their reference."""
    if sum(share.rows for share in shares) != extent.rows:
        raise _bad(extent, "the recipe has another number of rows than stated")
    _judge_times(extent, [(share.timestamp_min_ms, share.timestamp_max_ms) for share in shares])


def _judge_adopted(
    extent: ParquetExtent, shape: Shape, file: AdoptedFile, places: Sequence[tuple[int, Groups]], footer: bytes
) -> list[int]:
    """The rows of some row groups of an adopted file, if it has them, and these columns. Slow: run it in a thread."""
    from headgate.broker.log.adopted_columns import check_file

    try:
        numbers = [range(groups.first, groups.end) for _, groups in places]
        counts = iter(check_file(footer, chain.from_iterable(numbers), shape, file))
    except (InvalidError, OSError, ValueError) as error:
        raise _bad(extent, f"a file is not as its recipe says: {error}") from error
    return [sum(islice(counts, len(some))) for some in numbers]


def _bad(extent: ParquetExtent, what: str) -> InvalidError:
    return InvalidError(Reason.INVALID_REFERENCE, f"{what}. path=`{extent.path[:300]}` partition=`{extent.partition}`")


def _judge(extent: ParquetExtent, footer: bytes, absolute: bool) -> tuple[ExtentFile, list[RowGroup]]:
    """Compare a footer with the file's reference. Returns the footer, and the row groups with times that must be read. Slow: run it
    in a thread."""
    from headgate.broker.log.parquet import read_footer, unproven_times

    try:
        # With the same check as the readers: it refuses also row groups that are too large to be served.
        file = read_footer(footer, extent.size_bytes)
    except InvalidError as error:
        raise _bad(extent, error.message) from error
    if file.rows != extent.rows:
        raise _bad(extent, f"the file has another number of rows than stated: {file.rows} instead of {extent.rows}")
    _judge_offsets(extent, file, absolute)
    return file, unproven_times(file)


def _times_of(extent: ParquetExtent, file: ExtentFile, group: RowGroup, data: bytes) -> tuple[int, int]:
    """The least and the greatest time of a row group in ms. Refuses rows without a time. Slow: run it in a thread."""
    from headgate.broker.log.column_schema import timestamps_ms
    from headgate.broker.log.parquet import read_group

    try:
        times = timestamps_ms(read_group(file, group, data, ("timestamp",)).column("timestamp"))
    except InvalidError as error:
        raise _bad(extent, f"{error.message} row_group=`{group.number}`") from error
    return int(times.min()), int(times.max())


def _judge_offsets(extent: ParquetExtent, file: ExtentFile, absolute: bool) -> None:
    if "offset" not in file.columns:
        if extent.folded:
            raise _bad(extent, "a folded file has a column `offset`")
        return
    if not absolute:
        raise _bad(extent, "a file that is published has no column `offset`: the broker gives its rows their offsets")
    if extent.folded:
        _judge_folded(extent, file)
        return
    column = file.index_of("offset")
    next_offset = extent.base_offset
    for group in file.groups:
        statistics = file.metadata.row_group(group.number).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            raise _bad(extent, "column `offset` has no statistics: leave the column out, or write them")
        end_offset = next_offset + group.rows
        if statistics.null_count or (statistics.min, statistics.max) != (next_offset, end_offset - 1):
            raise _bad(
                extent,
                "rows are not sorted by offset, or their offsets have gaps: "
                f"row group {group.number} has {statistics.min}..{statistics.max} instead of {next_offset}..{end_offset - 1}",
            )
        next_offset = end_offset


def _judge_folded(extent: ParquetExtent, file: ExtentFile) -> None:
    """Compare the offsets of a folded file, which may have gaps, with its reference."""
    column = file.index_of("offset")
    position = extent.base_offset
    for group in file.groups:
        statistics = file.metadata.row_group(group.number).column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.min < position or statistics.max >= extent.end_offset:
            raise _bad(extent, f"the offsets of row group {group.number} are missing, or lie outside of the extent")
        position = statistics.max + 1


def _judge_times(extent: ParquetExtent, times: list[tuple[int, int]]) -> None:
    """Compare the (least, greatest) times of the row groups with the reference, because look-ups by time use the reference."""
    first, last = min(low for low, _ in times), max(high for _, high in times)
    if (first, last) != (extent.timestamp_min_ms, extent.timestamp_max_ms):
        raise _bad(
            extent,
            f"the file's times are {first}..{last} instead of {extent.timestamp_min_ms}..{extent.timestamp_max_ms} as stated",
        )
