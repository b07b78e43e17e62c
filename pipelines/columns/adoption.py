"""Adoption: a flood that copies nothing. Its rows stay in the source's own files, and a recipe says how they become records.

A flood can do so if the key, the value and the time are columns of Parquet files, and its row groups follow one another in time, or
overlap in little: then the order of the records needs no rewrite. Only keys and times are read. The cluster keeps each file by a
hard link, or by a copy within the store's own service. `headgate.broker.log.recipe` describes recipes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headgate.broker.client.file_ref import FileRef
from headgate.broker.client.upload import Uploader
from headgate.broker.log.crc import crc32c
from headgate.broker.log.recipe import (
    GIVEN_CHARS_MAX,
    RECIPE,
    RESERVED,
    ROW_COLUMNS_MAX,
    ROW_NAMES_CHARS_MAX,
    UNIT_BYTES_MAX,
    UNIT_FILES_MAX,
    UNIT_JSON_BYTES_MAX,
    VERSION,
    VERSION_OF_CONDITIONS,
    VERSION_OF_ROWS,
    AdoptedFile,
    Comparison,
    Condition,
    Groups,
    Recipe,
    Shape,
    Share,
    Unit,
    encode_recipe,
    pin_key,
)
from headgate.pipelines.certificate import Tally
from headgate.pipelines.columns.decoded import given_of, names_of
from headgate.pipelines.columns.files import S3, state_of
from headgate.pipelines.columns.kinds import INTEGERS
from headgate.pipelines.columns.layout import changed
from headgate.pipelines.extents import Written

if TYPE_CHECKING:
    from headgate.pipelines.columns.expressions import Node, Query
    from headgate.pipelines.columns.layout import Piece, SourceFile
    from headgate.pipelines.columns.source import Source
    from headgate.pipelines.columns.tasks import Counted
    from headgate.pipelines.spark_rows import Job

UNIT_BYTES = 32 << 20
"""Decoded bytes up to which neighbouring row groups are decoded together."""
RECIPE_BYTES = 1 << 30
"""Decoded bytes of a recipe: retention and folds take the rows of a recipe as a whole."""
RECIPE_UNITS = 2000
RECIPE_SHARES = 500_000
"""Shares of partitions in units: brokers hold those of a recipe in memory, 200 bytes each."""


class NotAdoptedError(Exception):
    """The files of a source are not adopted; the text says why."""


@dataclass(slots=True)
class PlannedUnit:
    """Row groups that are decoded together, in the order of their rows, and the rows of each partition."""

    pieces: list[Piece] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)

    @property
    def raw_bytes(self) -> int:
        """Decoded bytes, at most."""
        return sum(counts.decoded_bytes for counts in self.counted)

    @property
    def json_bytes(self) -> int:
        """Bytes of its rows as JSON, at most, without escapes."""
        return sum(counts.json_bytes for counts in self.counted)

    @property
    def files(self) -> set[str]:
        return {piece.file.path for piece in self.pieces}

    def shares(self) -> list[Share]:
        """The rows of each partition."""
        found: dict[int, Share] = {}
        for counts in self.counted:
            for partition, rows in enumerate(counts.rows):
                if rows:
                    low, high = counts.spans[partition]
                    before = found.get(partition)
                    if before is not None:
                        rows, low = rows + before.rows, min(low, before.timestamp_min_ms)
                        high = max(high, before.timestamp_max_ms)
                    found[partition] = Share(partition, rows, low, high)
        return [found[partition] for partition in sorted(found)]


def adoptable(source: Source, *, by_source: bool) -> Shape:
    """The columns of the records of a source whose files may be adopted. Raises NotAdoptedError."""
    if source.lines is not None:
        raise NotAdoptedError("the files are not Parquet")
    shape = shape_of(source.query, source.has_key, by_source=by_source)
    given = {frozenset(name for name, _ in piece.file.values) for piece in source.pieces}
    # All rows of a listed file pass a condition about a column that the file lacks.
    shape = replace(
        shape, conditions=[condition for condition in shape.conditions if not any(condition.column in names for names in given)]
    )
    if any(name & {shape.time, shape.key, shape.value} for name in given):
        raise NotAdoptedError("the event time, the key or the value is in the files' paths")
    if len(given) > 1:
        raise NotAdoptedError("some files lack columns that others have")
    for file in {piece.file.path: piece.file for piece in source.pieces}.values():
        # Each character may have an escape.
        if sum(6 * len(str(value)) + 2 for _, value in file.values) > GIVEN_CHARS_MAX:
            raise NotAdoptedError(f"the columns that a file lacks have too long values. file=`{file.path}`")
    return shape


def shape_of(query: Query, has_key: bool, *, by_source: bool = False) -> Shape:
    """The columns of a flood's records. Raises NotAdoptedError if records are more than columns."""
    if not has_key:
        raise NotAdoptedError("rows without a key are spread by their content")
    if query.is_by_row:
        raise NotAdoptedError("the flood has no event time")
    if query.has_headers:
        raise NotAdoptedError("the records have headers")
    if any(name.startswith("_tie_") for name in query.outputs):
        raise NotAdoptedError("the flood orders rows of the same time")
    time = _column(query, "event time", "timestamp", "time", ("timestamp", "timestamp_ntz"))
    key = _column(query, "key", "key", "bytes, text or whole numbers", ("string", "binary", *INTEGERS))
    json = query.outputs["value"].without_casts(("string", "binary"))
    row: list[str] = []
    value = ""
    if json.function == "json":
        row = [argument.name for argument in json.arguments]
        if list(json.value) != row:
            raise NotAdoptedError("the fields of the JSON have other names than the columns")
        if len(row) > ROW_COLUMNS_MAX or sum(map(len, row)) > ROW_NAMES_CHARS_MAX:
            raise NotAdoptedError("the row has too many columns, or too long names")
    else:
        value = _column(query, "value", "value", "bytes or text", ("string", "binary"))
        if reserved := sorted({key, value} & RESERVED):
            raise NotAdoptedError(f"a column has a name that history uses. column=`{reserved[0]}`")
    if len({time, key, value}) < 3:
        raise NotAdoptedError("a column is used twice")
    return Shape(time, key, value, row, by_source, *_filtered(query, time))


_COMPARISONS: dict[str, Comparison] = {
    "EqualTo": "=", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">=",
    "is_null": "is null", "is_not_null": "is not null",
}  # fmt: skip


def _filtered(query: Query, time: str) -> tuple[int | None, int | None, list[Condition]]:
    """The times between which rows pass the filters, in microseconds, and the other conditions. None, None, []: rows of any time
    pass, or a filter is no comparison with a constant: then all rows of a row group pass, or none of them."""
    lows: list[int] = []
    highs: list[int] = []
    conditions: dict[tuple[str, str, int | str | None], Condition] = {}
    for condition in query.filters:
        column, comparison = condition.arguments[0], _COMPARISONS.get(condition.function)
        if (
            comparison is None
            or column.function != "column"
            or any(other.function != "constant" for other in condition.arguments[1:])
        ):
            return None, None, []
        constant = condition.arguments[1] if len(condition.arguments) > 1 else None
        if constant is not None and constant.kind != column.kind:
            return None, None, []
        if constant is not None and column.name == time:
            if comparison != "<" and comparison != "<=":
                lows.append(constant.value + (comparison == ">"))
            if comparison != ">" and comparison != ">=":
                highs.append(constant.value + (comparison != "<"))
        elif constant is not None:
            value = _constant(constant)
            if value is None:
                return None, None, []
            conditions[column.name, comparison, value] = Condition(column.name, comparison, value)
        elif column.name != time or comparison == "is null":
            conditions[column.name, comparison, None] = Condition(column.name, comparison)
    # A comparison says already that there is a value.
    compared = {condition.column for condition in conditions.values() if condition.value is not None}
    left = [
        condition for condition in conditions.values() if condition.comparison != "is not null" or condition.column not in compared
    ]
    return max(lows, default=None), min(highs, default=None), left


def _constant(node: Node) -> int | str | None:
    """The constant of a condition; None if a recipe cannot have it."""
    if node.kind in INTEGERS and isinstance(node.value, int):
        return node.value
    if node.kind == "date" and isinstance(node.value, date):
        return (node.value - date(1970, 1, 1)).days
    return node.value if node.kind == "string" and isinstance(node.value, str) else None


def _column(query: Query, what: str, output: str, kinds_in_words: str, kinds: Sequence[str]) -> str:
    """The name of the column of these kinds whose bytes, or whose times, an output has."""
    node = query.outputs[output].without_casts((*kinds, "string", "binary"))
    if node.function != "column" or node.kind not in kinds:
        raise NotAdoptedError(f"the {what} is more than a column of {kinds_in_words}")
    return node.name


def units_of(
    pieces: Sequence[Piece], counted: Sequence[Counted], *, by_source: bool = False, divides: bool = False
) -> list[PlannedUnit]:
    """The row groups as units, in the order of the records. Raises NotAdoptedError if too much of it overlaps in time.

    Args:
        counted: the rows of each piece.
        by_source: the order is that of the files and their row groups, whatever their times.
        divides: the recipe says which rows of a row group are records.
    """
    rows = [(counts, piece) for counts, piece in zip(counted, pieces, strict=True) if counts.low_us is not None]
    for counts, piece in rows:
        if sum(counts.rows) < piece.rows and not divides:
            raise NotAdoptedError(f"the flood's condition divides the rows of a row group. file=`{piece.file.path}`")
    found: list[PlannedUnit] = []
    for run in _by_source(rows) if by_source else _by_time(rows):
        for size, most, form in ((run.raw_bytes, UNIT_BYTES_MAX, ""), (run.json_bytes, UNIT_JSON_BYTES_MAX, " as JSON")):
            if size > most:
                what, advice = "a row group has", "write smaller row groups"
                if len(run.pieces) > 1:
                    what, advice = "row groups that overlap in time have", "sort the files by time, or use --order source"
                raise NotAdoptedError(
                    f"{what} {size >> 20} MiB{form}, more than {most >> 20}: {advice}. file=`{run.pieces[0].file.path}`"
                )
        if len(run.files) > UNIT_FILES_MAX:
            raise NotAdoptedError(f"{len(run.files)} files overlap in time, more than {UNIT_FILES_MAX}: use --order source")
        last = found[-1] if found else None
        if (
            last is not None
            and last.raw_bytes + run.raw_bytes <= UNIT_BYTES
            and last.json_bytes + run.json_bytes <= UNIT_JSON_BYTES_MAX
            and len(last.files | run.files) <= UNIT_FILES_MAX
        ):
            last.pieces += run.pieces
            last.counted += run.counted
        else:
            found.append(run)
    return found


def _by_source(rows: Sequence[tuple[Counted, Piece]]) -> Iterator[PlannedUnit]:
    for counts, piece in sorted(rows, key=lambda row: (row[1].file.path, row[1].group)):
        yield PlannedUnit([piece], [counts])


def _by_time(rows: Sequence[tuple[Counted, Piece]]) -> list[PlannedUnit]:
    """The row groups that overlap in time, together. Rows of the same time are in the order of their units, so that neighbours may
    share a time."""
    runs: list[PlannedUnit] = []
    high_us = 0
    for counts, piece in sorted(rows, key=lambda row: (row[0].low_us, row[0].high_us, row[1].file.path, row[1].group)):
        assert counts.low_us is not None and counts.high_us is not None, "it has rows"
        if not runs or counts.low_us >= high_us:
            runs.append(PlannedUnit())
            high_us = counts.high_us
        runs[-1].pieces.append(piece)
        runs[-1].counted.append(counts)
        high_us = max(high_us, counts.high_us)
    return runs


def recipes_of(units: Sequence[PlannedUnit]) -> Iterator[list[PlannedUnit]]:
    """The units of each recipe. A file belongs to one recipe, unless a single file is larger than some."""
    some: list[PlannedUnit] = []
    size = shares = 0
    for unit in units:
        full = max(len(some) / RECIPE_UNITS, shares / RECIPE_SHARES)
        whole = (full >= 1 or size >= RECIPE_BYTES) and not unit.files & some[-1].files if some else False
        if whole or (some and (full >= 2 or size >= 8 * RECIPE_BYTES)):
            yield some
            some, size, shares = [], 0, 0
        some.append(unit)
        size += unit.raw_bytes
        shares += len(unit.shares())
    if some:
        yield some


@dataclass(frozen=True, slots=True)
class Adoption:
    """A flood that is adopted."""

    shape: Shape
    units: tuple[PlannedUnit, ...]
    partitions: int
    way: str
    number_key: bool = False
    """The key is a column of whole numbers."""

    @property
    def files(self) -> int:
        return len({path for unit in self.units for path in unit.files})

    def commit(self, job: Job) -> list[Written] | str:
        """Keep the files, and write the recipes. Returns what the gate is filled with; or why the files cannot be kept, and then
        nothing names what was made.

        Raises RetryError when a file has changed since it was counted.
        """
        written: dict[int, Written] = {}
        with Uploader(job.store_url) as uploader:
            for number, units in enumerate(recipes_of(self.units)):
                key = f"{job.prefix}adopted/{job.name}.{number:06d}{RECIPE}"
                files = {piece.file.path: piece.file for unit in units for piece in unit.pieces}
                kept = self._keep(uploader, key, list(files.values()))
                if kept is None:
                    return (
                        "the store cannot keep the source's files: they lie on another file system, in a place that it cannot see"
                    )
                recipe = self._recipe(units, list(files), kept)
                data = encode_recipe(recipe)
                uploader.create(key, data)
                _refer(written, job, key, data, recipe)
        return [written[partition] for partition in sorted(written)]

    def _keep(self, uploader: Uploader, key: str, files: Sequence[SourceFile]) -> list[AdoptedFile] | None:
        """Keep the files of a recipe. None if the store cannot."""
        wanted = [(pin_key(key, number), file.path) for number, file in enumerate(files)]
        in_bucket = [path.startswith(S3) for _, path in wanted]
        if any(in_bucket) is not uploader.is_bucket or any(in_bucket) is not all(in_bucket):
            return None
        for copy in (False, True):
            if self.way in ("auto", "copy" if copy else "link") and uploader.keep(wanted, copy=copy):
                for file in files:
                    if state_of(file.path, file.access) != file.state:
                        raise changed(file)
                times = [0 if copy else file.state.modified_ns for file in files]
                return [
                    AdoptedFile(
                        name,
                        file.state.size_bytes,
                        time,
                        file.footer_crc32c,
                        given_of(file, self.shape),
                        names_of(file, self.shape),
                    )
                    for (name, _), file, time in zip(wanted, files, times, strict=True)
                ]
        return None

    def _recipe(self, units: Sequence[PlannedUnit], paths: Sequence[str], files: list[AdoptedFile]) -> Recipe:
        numbers = {path: number for number, path in enumerate(paths)}
        return Recipe(
            version=max(
                self.shape.version,
                VERSION_OF_ROWS if self.number_key else VERSION,
                VERSION_OF_CONDITIONS if any(file.names for file in files) else VERSION,
            ),
            partitions=self.partitions,
            key=self.shape.key,
            value=self.shape.value,
            time=self.shape.time,
            row=self.shape.row,
            by_source=self.shape.by_source,
            low_us=self.shape.low_us,
            high_us=self.shape.high_us,
            conditions=self.shape.conditions,
            files=files,
            units=[Unit(_groups(unit.pieces, numbers), min(unit.raw_bytes, UNIT_BYTES_MAX), unit.shares()) for unit in units],
        )


def _groups(pieces: Iterable[Piece], numbers: dict[str, int]) -> list[Groups]:
    found: list[Groups] = []
    for piece in pieces:
        file = numbers[piece.file.path]
        if found and (found[-1].file, found[-1].end) == (file, piece.group):
            found[-1] = Groups(file, found[-1].first, piece.group + 1)
        else:
            found.append(Groups(file, piece.group, piece.group + 1))
    return found


def _refer(written: dict[int, Written], job: Job, key: str, data: bytes, recipe: Recipe) -> None:
    """Add the rows of a recipe to what was written of each partition."""
    stored = sum(file.size_bytes for file in recipe.files)
    total = sum(share.rows for unit in recipe.units for share in unit.shares)
    for partition, shares in recipe.shares().items():
        done = written.setdefault(partition, Written(partition, Tally(data_bytes=None, checksum=None)))
        rows = sum(share.rows for _, share in shares)
        done.files.append(
            FileRef(
                partition=partition,
                path=key,
                base_offset=job.bases.get(partition, 0) + done.tally.rows,
                rows=rows,
                size_bytes=len(data),
                footer_crc32c=crc32c(data),
                timestamp_min_ms=min(share.timestamp_min_ms for _, share in shares),
                timestamp_max_ms=max(share.timestamp_max_ms for _, share in shares),
                adopted_bytes=max(stored * rows // total, 1),
            )
        )
        done.tally += Tally(rows=rows, data_bytes=None, checksum=None)
