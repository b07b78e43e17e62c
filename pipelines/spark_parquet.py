"""What the metadata of a Parquet file says about its times, for Spark and for Arrow. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Unit: TypeAlias = Literal["us", "ms"]

MAJOR_MIN = 3
"""First major version of Spark that writes all times in the calendar of ISO 8601."""

_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_VERSION = b"org.apache.spark.version"
_LEGACY = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_UNITS: dict[str, Unit] = {"microseconds": "us", "milliseconds": "ms"}


def has_julian_times(notes: Mapping[bytes, bytes] | None) -> bool:
    """True if Spark wrote times of the Julian calendar, which Spark's reader converts and Arrow's does not.

    Args:
        notes: the key-value metadata of a file.
    """
    notes = notes or {}
    version = notes.get(_VERSION, b"%d" % MAJOR_MIN).partition(b".")[0]
    return any(note in notes for note in _LEGACY) or not version.isdigit() or int(version) < MAJOR_MIN


def has_wide_times(notes: Mapping[bytes, bytes] | None) -> bool:
    """True if Spark reads times of 96 bits in the calendar of ISO 8601 in UTC: those that Spark from 3.1 on wrote by default, and
    those of other writers, which leave no note."""
    version = (notes or {}).get(_VERSION, b"%d.1" % MAJOR_MIN).split(b".")
    return len(version) > 1 and all(part.isdigit() for part in version[:2]) and tuple(map(int, version[:2])) >= (MAJOR_MIN, 1)


def spark_schema(notes: Mapping[bytes, bytes] | None) -> list[tuple[str, Any]] | None:
    """(name, type as Spark's JSON has it) of the columns that Spark wrote into a file, which its readers take. None without them,
    or if they cannot be read."""
    try:
        return [(str(field["name"]), field["type"]) for field in json.loads((notes or {})[_SCHEMA])["fields"]]
    except (KeyError, TypeError, ValueError):
        return None


def logical_type(column: Any) -> dict[str, Any]:
    """The logical type of a column of a file, with its parameters."""
    found: dict[str, Any] = json.loads(column.logical_type.to_json())
    return found


def time_unit(logical: Any) -> Unit | None:
    """The unit of a column's logical type. None for nanoseconds, which Spark does not read, and if the column has no times."""
    return _UNITS.get(json.loads(logical.to_json()).get("timeUnit", ""))
