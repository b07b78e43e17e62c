"""The reference to a file with history. Not in `gate_admin`: the Spark tasks that write such files do not load grpc."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """One Parquet file with rows of one partition, sorted by offset without a gap.

    `path`: a key in the store under the prefix of the gate (of the layout, for `GateAdmin.publish`), or a URL under a prefix
    that the brokers allow. `base_offset`: offset of the first row; for `GateAdmin.publish` it counts from 0 in each partition.
    `footer_crc32c`: CRC-32C from the Parquet metadata to the end of the file, including their length and the magic bytes.

    With `adopted_bytes`, `path` names a recipe (`headgate.broker.log.recipe`), and `footer_crc32c` is the CRC-32C of all of it.
    `adopted_bytes` is the partition's share of the files that the recipe names.
    """

    partition: int
    path: str
    base_offset: int
    rows: int
    size_bytes: int
    footer_crc32c: int
    timestamp_min_ms: int
    timestamp_max_ms: int
    adopted_bytes: int = 0

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.rows
