"""The door to Iceberg tables, whose library is an extra: it is imported when the first table is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.pipelines.iceberg_table import Snapshot

ICEBERG = "iceberg"
"""The format of a source that is a snapshot of an Iceberg table."""


def read_table(source: str, options: Mapping[str, str], judge: Callable[[pa.Schema], object] | None = None) -> Snapshot:
    """The snapshot of a table. Arguments and errors as of `iceberg_table.read_snapshot`; FatalError without the library."""
    from headgate.pipelines.iceberg_table import read_snapshot

    return read_snapshot(source, options, judge)
