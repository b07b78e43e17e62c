"""A topic as DuckDB sees it: an Arrow data set. DuckDB asks it for a scanner with the columns and the filter of a query.

DuckDB calls only `schema` and `scanner` of a data set, and only `projected_schema` and `to_reader` of a scanner (Arrow's protocol:
https://arrow.apache.org/docs/python/integration/dataset.html). It leaves the filter to the scanner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headgate.pipelines.sql.scan import Scan
from headgate.pipelines.sql.topic_columns import TABLE

Begin = Callable[[Sequence[str], Any], Scan]
"""Begins a scan of these columns with this filter."""


class TopicTable(ds.Dataset):
    """The records of a topic in a cut. Each scan of a query is a scan of its own."""

    def __init__(self, begin: Begin) -> None:
        # Arrow's own constructor refuses to be called: its data sets are made in C++.
        self._begin = begin

    @property
    def schema(self) -> pa.Schema:
        return TABLE

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: object) -> TopicScanner:  # type: ignore[override]
        """A scan that has begun. Other arguments are hints about speed."""
        return TopicScanner(self._begin(TABLE.names if columns is None else columns, filter))


class TopicScanner:
    """One scan."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    @property
    def projected_schema(self) -> pa.Schema:
        return self._scan.schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._scan.schema, self._scan.batches())
