"""The work of a fold of adopted rows: decodes each unit of a recipe once, and writes the rows of all its partitions as Parquet.

It runs where other folds run (`file_fold_work.py`). Memory is bounded by one decoded unit, as many bytes again in the order of the
records, and `HELD_BYTES` of files in the making.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.cluster.readable import first_readable
from headgate.broker.engine.read.encoding import columns_of
from headgate.broker.engine.read.units import close_files, opened_files, unit_bytes
from headgate.broker.engine.upkeep.adopted_folds import (
    RECIPE_ITSELF,
    AdoptedJob,
    AdoptedPart,
    AdoptedResult,
    FoldedPart,
    StuckUnit,
)
from headgate.broker.engine.upkeep.file_writer import FileWriter, Origin
from headgate.broker.log.adopted import UnitRows, decode_unit, described
from headgate.broker.log.compression import Codec
from headgate.broker.log.crc import crc32c
from headgate.broker.log.folded_file import read_rows
from headgate.broker.log.recipe import BYTES_MAX, UNIT_FILES_MAX, Recipe, Share, UnitBytes, Wanted, decode_recipe, piece_of
from headgate.broker.runtime.errors import CorruptError, FatalError, InvalidError, Reason, RetryError
from headgate.broker.store.footers import footer_bytes
from headgate.broker.store.interface import Store

HELD_BYTES = 192 << 20
"""Encoded bytes of all files in the making together. Beyond it the largest one is completed: with many partitions files are
smaller, and merged later."""


ROWS_ERRORS = (InvalidError, CorruptError, pa.ArrowException, OSError, ValueError)
"""What rows raise that are not as they were counted, or cannot be made."""


class _UnitError(Exception):
    """A row of a unit could not be made when some rows before it were written already."""

    def __init__(self, number: int, rows: int, error: Exception) -> None:
        super().__init__(str(error))
        self.stuck = StuckUnit(number, rows, f"{error}. unit=`{number}`")


class _Rows(NamedTuple):
    """The rows [base_offset, end_offset) of an extent that lie in one unit."""

    part: _Part
    base_offset: int
    end_offset: int
    share: Share

    @property
    def readable(self) -> bool:
        return self.part.first(self.base_offset) < self.end_offset


async def fold_adopted(store: Store, job: AdoptedJob) -> AdoptedResult:
    """Write the files of a job. They are unused until the job's edits are committed.

    A unit whose file is missing or not as it was counted stays where it is, with the rows of all partitions.
    """
    found: list[StuckUnit] = []
    while True:
        try:
            result = await _Fold(store, job).run()
            return replace(result, stuck=[*found, *result.stuck])
        except _UnitError as error:
            # Again, without it. The files are written over.
            found.append(error.stuck)
            job = replace(job, skipped=[*job.skipped, error.stuck.number])
        except RetryError as error:
            return AdoptedResult(retry=error.message)


class _Fold:
    def __init__(self, store: Store, job: AdoptedJob) -> None:
        self._store = store
        self._job = job
        self._parts = [_Part(store, job, place) for place in range(len(job.parts))]
        self._footers: OrderedDict[int, bytes] = OrderedDict()
        """Of files by number, those of the last unit."""
        self._stuck: list[StuckUnit] = []
        self._held_bytes = 0
        """At least what is held by all parts."""

    async def run(self) -> AdoptedResult:
        try:
            recipe, units = await self._recipe()
        except (InvalidError, CorruptError) as error:
            lost = sum(part.extent.rows for part in self._job.parts)
            return AdoptedResult(stuck=[StuckUnit(RECIPE_ITSELF, lost, error.message)])
        skipped = set(self._job.skipped)
        size_bytes = decoded = 0
        more = False
        for number in sorted(units):
            rows = units[number]
            wanted = [row for row in rows if row.readable]
            unit_size = recipe.units[number].data_bytes
            more = more or (decoded > 0 and size_bytes + unit_size > self._job.bytes_max)
            tables = None
            if wanted and not more and number not in skipped:
                tables = await self._decoded(recipe, number, wanted)
                size_bytes, decoded = size_bytes + unit_size, decoded + 1
            if tables is None and wanted:
                for row in rows:
                    await row.part.keep(row)
            else:
                await self._add(number, rows, tables or {})
            # On a broker's own loop, other work gets its turn.
            await asyncio.sleep(0)
        folded = [made for part in self._parts if (made := await part.finish()) is not None]
        return AdoptedResult(parts=folded, stuck=self._stuck, units=decoded, more=more)

    async def _add(self, number: int, rows: Sequence[_Rows], tables: dict[int, Iterator[pa.RecordBatch]]) -> None:
        for row in rows:
            try:
                for table in tables.pop(row.part.extent.partition, ()):
                    before = row.part.held_bytes
                    await row.part.add(row, table)
                    self._held_bytes += row.part.held_bytes - before
                    if self._held_bytes > HELD_BYTES:
                        await self._complete_largest()
            except ROWS_ERRORS as error:
                raise _UnitError(number, sum(some.share.rows for some in rows), error) from error
            row.part.passed(row)

    async def _complete_largest(self) -> None:
        """Write files until little is held."""
        largest = sorted(self._parts, key=lambda part: part.held_bytes)
        self._held_bytes = sum(part.held_bytes for part in largest)
        while self._held_bytes > HELD_BYTES - HELD_BYTES // 8:
            self._held_bytes -= largest[-1].held_bytes
            await largest.pop().complete()

    async def _recipe(self) -> tuple[Recipe, dict[int, list[_Rows]]]:
        """The recipe, and the rows of the job in each unit. Raises InvalidError, CorruptError."""
        first = self._job.parts[0].extent
        data = await self._store.get_range(first.path, 0, min(first.size_bytes, BYTES_MAX) + 1)
        if len(data) != first.size_bytes or crc32c(data) != first.footer_crc32c:
            raise CorruptError(Reason.CORRUPT_STORE, f"this is another recipe than was committed. path=`{first.path}`")
        recipe = decode_recipe(data)
        shares = recipe.shares()
        units: dict[int, list[_Rows]] = {}
        for part in self._parts:
            offset = part.extent.base_offset
            for number, share in piece_of(shares.get(part.extent.partition, []), part.extent.first_row, part.extent.rows):
                units.setdefault(number, []).append(_Rows(part, offset, offset + share.rows, share))
                offset += share.rows
            if offset != part.extent.end_offset:
                raise CorruptError(Reason.CORRUPT_STORE, f"a recipe has other rows than were committed. path=`{first.path}`")
        return recipe, units

    async def _decoded(self, recipe: Recipe, number: int, wanted: Sequence[_Rows]) -> dict[int, Iterator[pa.RecordBatch]] | None:
        """The rows of a unit by partition, as those of a folded file, without deleted ones. None if the unit is stuck."""
        unit = recipe.units[number]
        files = recipe.files_of(unit)
        try:
            footers = [await self._footer(recipe, file) for file in files]
            needed = [Wanted(piece.part.extent.partition, piece.base_offset, piece.share.rows, 0) for piece in wanted]
            source = described(recipe, number, footers, Codec.NONE, needed)
            rows = await self._rows(source, [recipe.files[file].path for file in files])
            made = {piece.part.extent.partition: _folded(rows, piece) for piece in wanted}
            # Rows as JSON are larger than what was decoded: they are made when they are written.
            return made if recipe.row else {partition: iter(list(some)) for partition, some in made.items()}
        except (FatalError, *ROWS_ERRORS) as error:
            if isinstance(error, FatalError) and error.reason not in (Reason.STORE_MISCONFIGURED, Reason.INVALID_REQUEST):
                raise
            paths = ", ".join(recipe.files[file].path for file in files)
            self._stuck.append(
                StuckUnit(number, sum(piece.share.rows for piece in wanted), f"{error}. unit=`{number}` files=`{paths}`")
            )
            return None

    async def _rows(self, unit: UnitBytes, paths: Sequence[str]) -> UnitRows:
        places = [(self._store, path) for path in paths]
        descriptors = await opened_files(places)
        try:
            source = descriptors if descriptors is not None else await unit_bytes(places, unit)
            return decode_unit(unit, list(columns_of(unit, source)))
        finally:
            close_files(descriptors or ())

    async def _footer(self, recipe: Recipe, number: int) -> bytes:
        footer = self._footers.pop(number, None)
        if footer is None:
            file = recipe.files[number]
            footer = await footer_bytes(self._store, file.path, size_bytes=file.size_bytes, footer_crc32c=file.footer_crc32c)
        self._footers[number] = footer
        if len(self._footers) > UNIT_FILES_MAX:
            self._footers.popitem(last=False)
        return footer


def _folded(rows: UnitRows, share: _Rows) -> Iterator[pa.RecordBatch]:
    part = share.part.job_part
    offset = share.base_offset
    # In memory of its own: a partition with few rows waits for many units before its row group is complete.
    for table in rows.records(part.extent.partition):
        yield read_rows(table, part.extent.partition, offset, part.log_start, part.cuts)
        offset += table.num_rows


class _Part:
    """An extent: the files that take its place, and the pieces of it that stay, unit by unit."""

    def __init__(self, store: Store, job: AdoptedJob, place: int) -> None:
        self._store = store
        self._place = place
        self.job_part: AdoptedPart = job.parts[place]
        self.extent: ParquetExtent = self.job_part.extent
        self._filled_ms = job.filled_ms
        self._origin = Origin(
            topic_id=job.topic_id, partition=self.extent.partition, leader_epoch=self.extent.leader_epoch, history=True,
            oldest_ms=job.filled_ms, maker=job.maker,
        )  # fmt: skip
        self._run: _Piece | None = None
        """The units that are being written."""
        self._writer: FileWriter | None = None
        self._files: list[ParquetExtent] = []
        self._kept: list[_Piece] = []

    def first(self, offset: int) -> int:
        """The first offset from there on that is not deleted."""
        return first_readable(offset, self.job_part.log_start, self.job_part.cuts)

    @property
    def held_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.held_bytes

    async def complete(self) -> None:
        """Write what is held."""
        assert self._writer is not None, "something is held"
        await self._writer.complete()

    async def add(self, rows: _Rows, table: pa.RecordBatch) -> None:
        """Write some rows of the next unit, those that are left."""
        writer = self._begin(rows)
        if table.num_rows:
            # First: a file that is completed by these rows has their offsets, and no others.
            writer.reached(int(table.column("offset")[-1].as_py()) + 1, self._filled_ms)
            await writer.add(table)

    def passed(self, rows: _Rows) -> None:
        """All rows of the next unit were written."""
        self._begin(rows).reached(rows.end_offset, self._filled_ms)
        assert self._run is not None
        self._run.add(rows)

    def _begin(self, rows: _Rows) -> FileWriter:
        """The writer for a unit."""
        if self._writer is None or self._run is None:
            self._writer = FileWriter(self._store, self._origin, self.first(rows.base_offset))
            self._run = _Piece(rows.base_offset)
        return self._writer

    async def keep(self, rows: _Rows) -> None:
        """Leave the rows of the next unit where they are."""
        await self._end_run()
        self._leave(_Piece(rows.base_offset)).add(rows)

    async def finish(self) -> FoldedPart | None:
        """None if everything stays."""
        await self._end_run()
        if self._kept and not self._files:
            return None
        return FoldedPart(self._place, self._files, [piece.of(self.extent) for piece in self._kept])

    async def _end_run(self) -> None:
        if self._writer is None or self._run is None:
            return
        files = await self._writer.finish()
        self._files += files
        whole = self._run.base_offset == self.extent.base_offset and self._run.end_offset == self.extent.end_offset
        if not files and not whole:
            # No record of it is left. The piece goes once nothing beside it is readable.
            self._leave(self._run)
        self._writer = self._run = None

    def _leave(self, piece: _Piece) -> _Piece:
        """Add a piece that stays, or make it a part of the piece before."""
        if self._kept and self._kept[-1].end_offset == piece.base_offset:
            self._kept[-1].join(piece)
        else:
            self._kept.append(piece)
        return self._kept[-1]


class _Piece:
    """Neighbouring units of an extent."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = self.end_offset = base_offset
        self._low_ms, self._high_ms = 1 << 62, -(1 << 62)

    def add(self, rows: _Rows) -> None:
        self.end_offset = rows.end_offset
        self._low_ms = min(self._low_ms, rows.share.timestamp_min_ms)
        self._high_ms = max(self._high_ms, rows.share.timestamp_max_ms)

    def join(self, other: _Piece) -> None:
        """Add the units of a piece that follows."""
        self.end_offset = other.end_offset
        self._low_ms, self._high_ms = min(self._low_ms, other._low_ms), max(self._high_ms, other._high_ms)

    def of(self, extent: ParquetExtent) -> ParquetExtent:
        """The piece of the extent whose units these are."""
        rows = self.end_offset - self.base_offset
        return replace(
            extent,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            timestamp_min_ms=self._low_ms,
            timestamp_max_ms=self._high_ms,
            adopted_bytes=max(extent.adopted_bytes * rows // extent.rows, 1),
            first_row=extent.first_row + self.base_offset - extent.base_offset,
        )
