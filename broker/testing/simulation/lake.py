"""The files of a history job: its own, of one partition each, or those that it adopts, with rows of all partitions of a gate in
columns of their owner."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.cluster.gates import GateWindow, ParquetExtent, data_prefix
from headgate.broker.log.crc import crc32c
from headgate.broker.log.parquet import write_extent_file
from headgate.broker.log.partitioner import partition_for_key
from headgate.broker.log.recipe import RECIPE, VERSION, AdoptedFile, Groups, Recipe, Share, Unit, encode_recipe, pin_key

T0_US = 1_500_000_000_000_000
UNIT_ROWS = 2
"""Rows of a unit: a gate of a simulation has a few units."""
FILE_UNITS = 2
"""Units of a file."""


def write(
    topic_id: bytes, gate_id: str, number: int, window: GateWindow, values: Sequence[bytes], put: Callable[[str, bytes], None]
) -> ParquetExtent:
    """Upload a file of one partition. `number`: tells it from others of the gate."""
    columns = {
        "timestamp": pa.array([1_500_000_000_000] * len(values), pa.int64()),
        "key": pa.array([None] * len(values), pa.binary()),
        "value": pa.array(values, pa.binary()),
    }
    written = write_extent_file(pa.table(columns))
    path = f"{data_prefix(uuid.UUID(bytes=topic_id))}partition={window.partition}/{gate_id}-{number}.parquet"
    put(path, bytes(written.data))
    return ParquetExtent(
        partition=window.partition,
        base_offset=window.base_offset,
        end_offset=window.base_offset + len(values),
        leader_epoch=-1,
        path=path,
        size_bytes=len(written.data),
        footer_crc32c=written.footer_crc32c,
        timestamp_min_ms=written.timestamp_min_ms,
        timestamp_max_ms=written.timestamp_max_ms,
    )


def adopt(
    topic_id: bytes, gate_id: str, number: int, windows: Sequence[GateWindow], values: Mapping[int, Sequence[bytes]],
    put: Callable[[str, bytes], None],
) -> list[ParquetExtent]:  # fmt: skip
    """Upload files with these values, by partition, and their recipe. Returns what fills the gate.

    Args:
        number: tells the recipe from others of the gate.
    """
    partitions = len(windows)
    keys = {partition: _key_of(partition, partitions) for partition in values}
    # In turn, so that each unit has rows of most partitions.
    rows = sorted((at, partition) for partition, some in values.items() for at in range(len(some)))
    some = [(T0_US + place * 1000, partition, values[partition][at]) for place, (at, partition) in enumerate(rows)]
    path = f"{data_prefix(uuid.UUID(bytes=topic_id))}adopted/{gate_id}-{number}.000000{RECIPE}"
    files: list[AdoptedFile] = []
    units = []
    for begin in range(0, len(some), UNIT_ROWS * FILE_UNITS):
        rows_of_file = some[begin : begin + UNIT_ROWS * FILE_UNITS]
        data = _file(rows_of_file, keys)
        footer = data[-(int.from_bytes(data[-8:-4], "little") + 8) :]
        for group in range(-(-len(rows_of_file) // UNIT_ROWS)):
            unit = rows_of_file[group * UNIT_ROWS : (group + 1) * UNIT_ROWS]
            times = {number: [time // 1000 for time, partition, _ in unit if partition == number] for number in values}
            shares = [Share(number, len(found), found[0], found[-1]) for number, found in sorted(times.items()) if found]
            units.append(Unit([Groups(len(files), group, group + 1)], len(data), shares))
        files.append(AdoptedFile(pin_key(path, len(files)), len(data), 0, crc32c(footer)))
        put(files[-1].path, data)
    recipe = encode_recipe(
        Recipe(version=VERSION, partitions=partitions, key="who", value="what", time="at", files=files, units=units)
    )
    put(path, recipe)
    return [
        ParquetExtent(
            partition=partition,
            base_offset=windows[partition].base_offset,
            end_offset=windows[partition].base_offset + len(mine),
            leader_epoch=-1,
            path=path,
            size_bytes=len(recipe),
            footer_crc32c=crc32c(recipe),
            timestamp_min_ms=min(time for time, number, _ in some if number == partition) // 1000,
            timestamp_max_ms=max(time for time, number, _ in some if number == partition) // 1000,
            adopted_bytes=sum(map(len, mine)),
        )
        for partition, mine in sorted(values.items())
    ]


def _file(rows: Sequence[tuple[int, int, bytes]], keys: Mapping[int, bytes]) -> bytes:
    out = io.BytesIO()
    table = pa.table(
        {
            "who": pa.array([keys[partition] for _, partition, _ in rows], pa.binary()),
            "other": pa.array(list(range(len(rows))), pa.int64()),
            "what": pa.array([value for _, _, value in rows], pa.binary()),
            "at": pa.array([time for time, _, _ in rows], pa.int64()).cast(pa.timestamp("us", "UTC")),
        }
    )
    pq.write_table(table, out, row_group_size=UNIT_ROWS)
    return out.getvalue()


def _key_of(partition: int, partitions: int) -> bytes:
    """A key that belongs to a partition."""
    number = 0
    while partition_for_key(b"%d" % number, partitions) != partition:
        number += 1
    return b"%d" % number
