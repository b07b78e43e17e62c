"""DuckDB with the extensions that read Iceberg tables, from PyPI: no download while a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import files
from pathlib import Path

import duckdb


@contextmanager
def duckdb_with_iceberg() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that can attach REST catalogs."""
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        for name in ("avro", "httpfs", "iceberg"):
            found = [one for one in files(f"duckdb-ext-{name}") or [] if one.name == f"{name}.duckdb_extension"]
            connection.execute(f"LOAD '{Path(str(found[0].locate()))}'")
        yield connection
