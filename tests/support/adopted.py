"""Files in their owner's own columns, recipes that adopt them, and their records as plain Python computes them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.cluster.gates import ParquetExtent
from headgate.broker.log.adopted import Group, UnitRows
from headgate.broker.log.adopted_columns import TIMES, check_file
from headgate.broker.log.crc import crc32c
from headgate.broker.log.partitioner import partition_for_key
from headgate.broker.log.recipe import RECIPE, VERSION, AdoptedFile, Groups, Recipe, Shape, Share, Unit, encode_recipe, pin_key
from headgate.broker.log.records import Record

arrow: Any = pa
PARTITIONS = 3
EPOCH = 4
T0_US = 1_700_000_000_000_000
PATH = f"topics/t/data/adopted/g-0.000000{RECIPE}"


class Row(NamedTuple):
    """A row: its time in microseconds, its key and its value."""

    time_us: int
    key: bytes
    value: bytes | None


def rows(count: int, first_us: int = T0_US, step_us: int = 700) -> list[Row]:
    """Rows in the order of time, with values of many sizes, some of them null."""
    return [
        Row(first_us + at * step_us, b"key-%d" % (at * 7 % 41), None if at % 13 == 0 else b"%d:" % at + b"v" * (at * 37 % 200))
        for at in range(count)
    ]


def table_of(some: Sequence[Row], key: Any = None, value: Any = None, time: Any = None) -> pa.Table:
    """The rows in columns of these types, beside columns that are not read."""
    kinds = (key or pa.binary(), value or pa.binary())

    def column(values: list[bytes | None], kind: Any) -> Any:
        if pa.types.is_dictionary(kind):
            return column(values, kind.value_type).dictionary_encode()
        return arrow.array(values, pa.binary()).cast(kind)

    kind = time or pa.timestamp("us", "UTC")
    times = arrow.array([row.time_us // (1000 if kind.unit == "ms" else 1) for row in some], pa.int64()).cast(kind)
    return pa.table(
        {
            "before": arrow.array([[number] for number in range(len(some))], pa.list_(pa.int64())),
            "at": times,
            "user": column([row.key for row in some], kinds[0]),
            "between": arrow.array(["x" * 50] * len(some), pa.string()),
            "payload": column([row.value for row in some], kinds[1]),
        }
    )


def file_of(some: Sequence[Row] | pa.Table, group_rows: int = 1 << 20, **options: Any) -> bytes:
    """A Parquet file."""
    out = io.BytesIO()
    pq.write_table(some if isinstance(some, pa.Table) else table_of(some), out, row_group_size=group_rows, **options)
    return out.getvalue()


def unit_rows(groups: Iterable[Group], shape: Shape, partitions: int, wanted: Sequence[int]) -> list[pa.Table]:
    """The rows of each wanted partition in a unit."""
    decoded = UnitRows(groups, shape, partitions, wanted)
    none = pa.table({"timestamp": pa.array([], TIMES), "key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})
    return [pa.concat_tables([none, *decoded.records(one)]) for one in wanted]


def checked(data: bytes, groups: Iterable[int], shape: Shape, **names: str) -> list[int]:
    """The rows of these row groups, as the check of a reference sees them."""
    return check_file(footer_of(data), groups, shape, AdoptedFile("a", len(data), 0, 0, {}, names))


def footer_of(data: bytes) -> bytes:
    return data[-(int.from_bytes(data[-8:-4], "little") + 8) :]


@dataclass
class Adopted:
    """Some files, each with its rows by row group, and the recipe that adopts them."""

    files: list[bytes]
    groups: list[list[list[Row]]]
    units: list[list[tuple[int, int, int]]]
    """Of each unit: (file, first row group, end)."""
    partitions: int = PARTITIONS
    modified_ns: list[int] = field(default_factory=list)
    path: str = PATH

    def unit_rows(self, unit: int) -> list[list[Row]]:
        """The rows of each partition in a unit, in the order of the records."""
        found: list[list[Row]] = [[] for _ in range(self.partitions)]
        all_rows = [row for file, first, end in self.units[unit] for group in self.groups[file][first:end] for row in group]
        for row in sorted(all_rows, key=lambda row: row.time_us):
            found[partition_for_key(row.key, self.partitions)].append(row)
        return found

    def rows_of(self, partition: int) -> list[Row]:
        return [row for unit in range(len(self.units)) for row in self.unit_rows(unit)[partition]]

    def records(self, partition: int, base_offset: int) -> list[Record]:
        return [
            Record(base_offset + at, row.time_us // 1000, row.key, row.value, ()) for at, row in enumerate(self.rows_of(partition))
        ]

    def shares(self, unit: int) -> list[Share]:
        return [
            Share(number, len(some), some[0].time_us // 1000, some[-1].time_us // 1000)
            for number, some in enumerate(self.unit_rows(unit))
            if some
        ]

    @property
    def recipe(self) -> Recipe:
        times = self.modified_ns or [0] * len(self.files)
        return Recipe(
            version=VERSION,
            partitions=self.partitions,
            key="user",
            value="payload",
            time="at",
            files=[
                AdoptedFile(pin_key(self.path, number), len(data), times[number], crc32c(footer_of(data)))
                for number, data in enumerate(self.files)
            ],
            units=[
                Unit([Groups(*one) for one in unit], sum(len(data) for data in self.files), self.shares(number))
                for number, unit in enumerate(self.units)
            ],
        )

    def extents(self, base_offset: int = 1000, recipe: bytes | None = None) -> dict[int, ParquetExtent]:
        """The extent of each partition. `base_offset`: of partition 0; that of each further one is 1000 higher."""
        data = encode_recipe(self.recipe) if recipe is None else recipe
        found = {}
        for partition in range(self.partitions):
            if mine := self.rows_of(partition):
                base = base_offset + 1000 * partition
                times = [row.time_us // 1000 for row in mine]
                found[partition] = ParquetExtent(
                    partition=partition, base_offset=base, end_offset=base + len(mine), leader_epoch=EPOCH, path=self.path,
                    size_bytes=len(data), footer_crc32c=crc32c(data), timestamp_min_ms=min(times), timestamp_max_ms=max(times),
                    adopted_bytes=sum(map(len, self.files)) // self.partitions,
                )  # fmt: skip
        return found


def adopted(count: int = 1500, group_rows: int = 100, unit_groups: int = 3, **options: Any) -> Adopted:
    """Two files that follow each other, the first of them with rows of the same time at its end as the second one's begin."""
    half = count // 2
    groups, files = [], []
    for number in range(2):
        some = rows(half, T0_US + number * (half - 1) * 700)
        files.append(file_of(some, group_rows, **options))
        groups.append([some[at : at + group_rows] for at in range(0, half, group_rows)])
    places = [(file, at) for file in range(2) for at in range(len(groups[file]))]
    units = [
        [(file, at, at + 1) for file, at in places[begin : begin + unit_groups]] for begin in range(0, len(places), unit_groups)
    ]
    return Adopted(files, groups, units)
