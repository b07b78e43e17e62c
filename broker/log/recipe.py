"""Recipes: how the rows of adopted files become records. No I/O.

An adopted file is a user's own Parquet file, in its own columns, with rows of many partitions. A *recipe* is one small object that
names some files and says which of their columns are the key, the value and the time, and how rows are divided and ordered. Its
*units* are what is decoded at once: some neighbouring row groups. Units follow one another in the order of the records, so the
place of an offset needs no index of rows: of the unit by the sums of the rows before it, of the row by its rank among the unit's
rows of that partition.

The batches of an offset are the same bytes for ever, whoever makes them. Everything that decides them stands in the recipe: a
reader that does not know its version refuses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Literal, TypeAlias

import msgspec

from headgate.broker.log.compression import Codec, compress, decompress
from headgate.broker.runtime.errors import InvalidError, Reason

RECIPE = ".recipe"
"""The end of a recipe's key. The keys of the files that it names go on behind it."""
VERSION = 1
"""Keys are hashed by murmur2 as Kafka's Java client does; rows of a unit are ordered by time in microseconds, and rows of the same
time by their place in the unit; times are cut to milliseconds."""
VERSION_OF_ROWS = 2
"""The first version with the row as JSON (`json_rows.py`), the order of the source, spans of time, and numbers as keys."""
VERSION_OF_CONDITIONS = 3
"""The first version with conditions, and with files that have other names of columns."""
VERSIONS = (VERSION, VERSION_OF_ROWS, VERSION_OF_CONDITIONS)
MAGIC = b"HGR1"
BYTES_MAX = 16 << 20
"""Bytes of a recipe, as stored."""
EXPANDED_BYTES_MAX = 128 << 20
UNITS_MAX = 10_000
PARTITIONS_MAX = 100_000
GROUPS_MAX = 1_000_000
"""Row groups of a recipe: a reader counts those of a unit one by one."""
ROWS_MAX = 1 << 48
"""Rows of one partition in a unit: sums of them fit into an offset."""
ROW_COLUMNS_MAX = 10_000
ROW_NAMES_CHARS_MAX = 16 << 10
"""Characters of the names of the columns of a row: JSON repeats them in each record."""
UNIT_FILES_MAX = 16
"""Files of one unit: a reader has their footers in memory, and passes so many descriptors to another process."""
UNIT_BYTES_MAX = 256 << 20
"""Decoded bytes of the columns of a unit, as of a row group of history: a reader holds a unit in memory."""
UNIT_JSON_BYTES_MAX = 1 << 30
"""Bytes of the rows of a unit as JSON, without the escapes of their texts: a reader holds their batches."""
GIVEN_CHARS_MAX = 16 << 10
"""Characters of the values of the columns that a file lacks: JSON repeats them in each record."""
CONDITIONS_MAX = 100
CONDITION_CHARS_MAX = 16 << 10
"""Conditions of a recipe, and characters of their names and constants: each is compared with every row."""
TIME_US_MAX = (1 << 63) - 1
RESERVED = frozenset(("offset", "timestamp", "timestamp_type", "headers"))
"""Columns of history that a key or a value cannot be."""


class AdoptedFile(msgspec.Struct, frozen=True, array_like=True):
    """A file. `path`: its key in the store. `modified_ns`: the time of its last change, if its bytes still belong to somebody else,
    who may write over them; 0 for a copy. `footer_crc32c`: CRC-32C from its metadata to its end. `given`: columns of the row that
    are not in the file, and their values as JSON; None: they have none. `names`: columns with another name in the file, and it."""

    path: str
    size_bytes: int
    modified_ns: int
    footer_crc32c: int
    given: dict[str, str | None] = {}
    names: dict[str, str] = {}


class Groups(msgspec.Struct, frozen=True, array_like=True):
    """Row groups [first, end) of the file with this number."""

    file: int
    first: int
    end: int


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The rows of one partition in a unit, at least one. Times in ms."""

    partition: int
    rows: int
    timestamp_min_ms: int
    timestamp_max_ms: int


class Unit(msgspec.Struct, frozen=True, array_like=True):
    """What is decoded at once. `data_bytes`: of its columns without compression. `shares`: by partition."""

    groups: list[Groups]
    data_bytes: int
    shares: list[Share]


Comparison: TypeAlias = Literal["=", "<", "<=", ">", ">=", "is null", "is not null"]


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """What a row must pass to be a record: a comparison of a column with a constant. A missing value passes "is null" alone.
    `value`: a whole number, text by its bytes in UTF-8, or the days of a date since 1970; None: the comparison has none."""

    column: str
    comparison: Comparison
    value: int | str | None = None


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """What of a row becomes its record. `time`, `key`, `value`: names of columns. `row`: the columns whose row is the value, as
    JSON; empty: the column `value` is. `by_source`: records are in the order of the unit's row groups, not of their times.
    `low_us`, `high_us`: only rows of these times are records, the first one included; None: rows of any time. `conditions`: only
    rows that pass all of them are."""

    time: str
    key: str
    value: str
    row: list[str] = []
    by_source: bool = False
    low_us: int | None = None
    high_us: int | None = None
    conditions: list[Condition] = []

    @property
    def version(self) -> int:
        """The first version that has it."""
        if self.conditions:
            return VERSION_OF_CONDITIONS
        return VERSION_OF_ROWS if self.row or self.by_source or self.divides else VERSION

    @property
    def outside_us(self) -> int | None:
        """A time at which a row is no record; None if there is none."""
        return self.low_us - 1 if self.low_us is not None else self.high_us

    @property
    def divides(self) -> bool:
        """True if some rows of a row group may be no records."""
        return self.low_us is not None or self.high_us is not None or bool(self.conditions)

    def columns(self, given: Collection[str] = (), names: Mapping[str, str] | None = None) -> list[str]:
        """The columns that are read of a file that lacks the `given` ones, by their names there. `names`: as of `AdoptedFile`."""
        values = [name for name in self.row if name not in given] if self.row else [self.value]
        found = dict.fromkeys((self.time, self.key, *values, *(condition.column for condition in self.conditions)))
        return [(names or {}).get(name, name) for name in found]


class Recipe(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How rows become records. `key`, `value`, `time`, and from `row` on: as of `Shape`."""

    version: int
    partitions: int
    key: str
    value: str
    time: str
    files: list[AdoptedFile]
    units: list[Unit]
    row: list[str] = []
    by_source: bool = False
    low_us: int | None = None
    high_us: int | None = None
    conditions: list[Condition] = []

    @property
    def shape(self) -> Shape:
        return Shape(self.time, self.key, self.value, self.row, self.by_source, self.low_us, self.high_us, self.conditions)

    def shares(self) -> dict[int, list[tuple[int, Share]]]:
        """By partition: (number of the unit, its rows) of each unit with rows of it, in their order."""
        found: dict[int, list[tuple[int, Share]]] = {}
        for number, unit in enumerate(self.units):
            for share in unit.shares:
                found.setdefault(share.partition, []).append((number, share))
        return found

    def files_of(self, unit: Unit) -> list[int]:
        """The numbers of a unit's files, in the order of its rows."""
        return list(dict.fromkeys(group.file for group in unit.groups))

    def check(self) -> None:
        """Raise InvalidError(INVALID_RECORD) if its parts contradict each other."""
        if not 0 < self.partitions <= PARTITIONS_MAX or not 0 < len(self.units) <= UNITS_MAX or not self.files:
            raise _bad(f"it has no such number of parts. partitions=`{self.partitions}` units=`{len(self.units)}`")
        self._check_shape()
        if not all(file.path and file.size_bytes > 0 and file.modified_ns >= 0 and file.footer_crc32c >= 0 for file in self.files):
            raise _bad("a file has no name, no bytes, or no time")
        if len({file.path for file in self.files}) < len(self.files):
            raise _bad("a file is named twice")
        for number, unit in enumerate(self.units):
            files = self.files_of(unit)
            partitions = [share.partition for share in unit.shares]
            if not (
                0 < len(files) <= UNIT_FILES_MAX
                and all(0 <= file < len(self.files) for file in files)
                and all(0 <= group.first < group.end for group in unit.groups)
                and 0 <= unit.data_bytes <= UNIT_BYTES_MAX
                and partitions == sorted(set(partitions))
                and all(0 <= partition < self.partitions for partition in partitions)
                and all(0 < share.rows <= ROWS_MAX and share.timestamp_min_ms <= share.timestamp_max_ms for share in unit.shares)
            ):
                raise _bad(f"a unit cannot be. unit=`{number}`")
        self._check_groups()

    def _check_shape(self) -> None:
        """Raise InvalidError if the columns of a record cannot be."""
        needed = max(
            self.shape.version,
            VERSION_OF_ROWS if any(file.given for file in self.files) else VERSION,
            VERSION_OF_CONDITIONS if any(file.names for file in self.files) else VERSION,
        )
        if self.version < needed:
            raise _bad(f"it has what version {needed} brought. version=`{self.version}`")
        if not self.row:
            names = [self.time, self.key, self.value]
            if len(set(names)) < len(names) or not RESERVED.isdisjoint((self.key, self.value)):
                raise _bad(f"a column has two meanings, or a name that history uses. columns=`{', '.join(names)}`")
        elif self.value or len(set(self.row)) < len(self.row) or self.time == self.key:
            raise _bad("the row has a column twice, or is not the value")
        if len(self.row) > ROW_COLUMNS_MAX or sum(map(len, self.row)) > ROW_NAMES_CHARS_MAX:
            raise _bad(f"the row has too many columns, or too long names. columns=`{len(self.row)}`")
        low, high = -TIME_US_MAX if self.low_us is None else self.low_us, TIME_US_MAX if self.high_us is None else self.high_us
        if not -TIME_US_MAX <= low < high <= TIME_US_MAX:
            raise _bad(f"no time is in its span. low_us=`{self.low_us}` high_us=`{self.high_us}`")
        given = {frozenset(file.given) for file in self.files}
        if any(sum(len(text or "") for text in file.given.values()) > GIVEN_CHARS_MAX for file in self.files):
            raise _bad(f"the columns that a file lacks have too long values. max=`{GIVEN_CHARS_MAX}`")
        if len(given) > 1 or not all(names <= set(self.row) - {self.time, self.key} for names in given):
            raise _bad("a file lacks other columns than another one, or columns that are not of the row")
        if any(condition.column in lacking for condition in self.conditions for lacking in given):
            raise _bad("a condition is about a column that a file lacks")
        for file in self.files:
            if len(set(self.shape.columns(file.given, file.names))) < len(self.shape.columns(file.given)):
                raise _bad(f"two columns have one name in a file. file=`{file.path[:300]}`")
        self._check_conditions()

    def _check_conditions(self) -> None:
        """Raise InvalidError if a condition cannot be."""
        texts = [text for condition in self.conditions for text in (condition.column, condition.value) if isinstance(text, str)]
        if len(self.conditions) > CONDITIONS_MAX or sum(map(len, texts)) > CONDITION_CHARS_MAX:
            raise _bad(f"it has too many conditions, or too long ones. conditions=`{len(self.conditions)}`")
        for condition in self.conditions:
            if (condition.value is None) is not condition.comparison.startswith("is "):
                raise _bad(f"a condition lacks its constant, or has one too many. column=`{condition.column[:300]}`")
            if isinstance(condition.value, int) and not -TIME_US_MAX - 1 <= condition.value <= TIME_US_MAX:
                raise _bad(f"a condition has a number of more than 64 bits. column=`{condition.column[:300]}`")

    def _check_groups(self) -> None:
        """Raise InvalidError if a row group has two places: its rows would be records twice."""
        groups = sorted((group.file, group.first, group.end) for unit in self.units for group in unit.groups)
        if sum(end - first for _, first, end in groups) > GROUPS_MAX:
            raise _bad(f"it has more than {GROUPS_MAX} row groups")
        for (file, _, end), (next_file, first, _) in pairwise(groups):
            if file == next_file and first < end:
                raise _bad(f"a row group is named twice. file=`{self.files[file].path[:300]}` row_group=`{first}`")


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """The records of one partition in a unit: the offset of the first one, and their number, as the recipe states it."""

    partition: int
    base_offset: int
    rows: int
    leader_epoch: int


class UnitFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of a unit. `groups`: the numbers of its row groups. `ranges`: (position, bytes) of the columns of each of them.
    `modified_ns`: of a file that its owner may write over; 0: nobody does. `given`, `names`: as of `AdoptedFile`."""

    footer: bytes
    size_bytes: int
    modified_ns: int
    groups: list[int]
    ranges: list[list[tuple[int, int]]]
    given: dict[str, str | None]
    names: dict[str, str]


class UnitBytes(msgspec.Struct, frozen=True, array_like=True):
    """A unit of adopted files to encode. `groups`: (file, place in the file's `groups`) of its row groups, in their order.
    `wanted`: by partition. `batches`: into which the rows of each partition are divided, if no batch becomes too large."""

    files: list[UnitFile]
    groups: list[tuple[int, int]]
    shape: Shape
    partitions: int
    codec: int
    wanted: list[Wanted]
    batches: int


def piece_of(shares: Sequence[tuple[int, Share]], first_row: int, rows: int) -> list[tuple[int, Share]]:
    """The units, of those with rows of a partition, that have its rows [first_row, first_row + rows). A piece of a recipe has whole
    units: [] if none begins with its first row, and the caller compares the number of rows."""
    begins = [0, *accumulate(share.rows for _, share in shares)]
    if first_row not in begins:
        return []
    return [share for share, begin in zip(shares, begins, strict=False) if first_row <= begin < first_row + rows]


def pin_key(recipe: str, number: int) -> str:
    """The key under which the cluster keeps the file with this number of a recipe."""
    return f"{recipe}-{number:06d}.parquet"


def owner_of(key: str) -> str:
    """The path that a manifest names while it needs this object: of an adopted file its recipe, else the object itself."""
    before, found, _ = key.rpartition(f"{RECIPE}-")
    return f"{before}{RECIPE}" if found else key


def encode_recipe(recipe: Recipe) -> bytes:
    """The object of a recipe. Raises InvalidError if its parts contradict each other, or it is too large."""
    recipe.check()
    data = MAGIC + compress(Codec.ZSTD, msgspec.msgpack.encode(recipe))
    if len(data) > BYTES_MAX:
        raise _bad(f"it is too large. bytes=`{len(data)}` max=`{BYTES_MAX}`")
    return data


def decode_recipe(data: bytes | memoryview) -> Recipe:
    """The recipe in an object. Raises InvalidError: UNSUPPORTED for a newer version, INVALID_RECORD for anything else."""
    if bytes(data[: len(MAGIC)]) != MAGIC or len(data) > BYTES_MAX:
        raise _bad("the object does not begin as one")
    try:
        expanded = bytes(decompress(Codec.ZSTD, data[len(MAGIC) :], EXPANDED_BYTES_MAX))
    except InvalidError as error:
        raise _bad(error.message) from error
    try:
        version = msgspec.msgpack.decode(expanded, type=_Version).version
        if version not in VERSIONS:
            raise InvalidError(
                Reason.UNSUPPORTED, f"a newer release made the recipe of adopted files: upgrade the brokers. version=`{version}`"
            )
        recipe = msgspec.msgpack.decode(expanded, type=Recipe)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _bad(str(error)) from error
    recipe.check()
    return recipe


class _Version(msgspec.Struct):
    version: int


def _bad(what: str) -> InvalidError:
    return InvalidError(Reason.INVALID_RECORD, f"not a recipe of adopted files: {what}")
