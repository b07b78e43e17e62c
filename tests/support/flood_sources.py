"""Sources of floods, and the expected records of a topic after one. The expectation is computed without Spark and without our
own column code."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.broker.log.partitioner import partition_for_key

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
FIRST_US = -315_619_200_000_000
"""Year 1960."""
LAST_US = 7_258_118_400_000_000
"""Year 2200."""


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a source."""

    user: str | None
    number: int
    at_us: int | None

    @property
    def key(self) -> bytes | None:
        return None if self.user is None else self.user.encode()

    @property
    def value(self) -> bytes:
        """The value of the column `payload`."""
        return f"payload {self.number}".encode()

    @property
    def at_ms(self) -> int:
        assert self.at_us is not None
        return self.at_us // 1000


def events(count: int, *, seed: int = 1, keyless: int = 0, hot: float = 0.0) -> list[Event]:
    """Rows in random order, with equal times among them, and times from 1960 to 2200.

    Args:
        keyless: number of rows without a user.
        hot: share of the rows that one user has.
    """
    dice = random.Random(seed)
    made = []
    for number in range(count):
        user = None if number < keyless else "hot" if dice.random() < hot else f"user-{dice.randrange(97)}"
        at = dice.choice((FIRST_US, LAST_US)) if number % 50 == 0 else 1_700_000_000_000_000 + dice.randrange(1000) * 1500
        made.append(Event(user, number, at))
    dice.shuffle(made)
    return made


def write(path: Path, rows: Sequence[Event], files: int = 3) -> Path:
    """A directory of Parquet files with the columns user, number, at, payload."""
    path.mkdir(parents=True)
    for part in range(files):
        some = rows[part::files]
        table = pa.table(
            {
                "user": pa.array([row.user for row in some], pa.string()),
                "number": pa.array([row.number for row in some], pa.int64()),
                "at": pa.array([row.at_us for row in some], pa.timestamp("us", tz="UTC")),
                "payload": pa.array([row.value for row in some], pa.binary()),
            }
        )
        pq.write_table(table, path / f"part-{part}.parquet")
    return path


def as_json(row: Event) -> dict[str, object]:
    """Parse the default value of a record."""
    found: dict[str, object] = {"number": row.number}
    if row.user is not None:
        found["user"] = row.user
    return found


def read_json(value: bytes) -> dict[str, object]:
    """A default value without the parts that depend on Spark: its format of times and bytes."""
    return {name: content for name, content in json.loads(value).items() if name in ("user", "number")}


def expected(rows: Sequence[Event], partitions: int) -> dict[int, list[tuple[int, bytes | None, bytes]]]:
    """By partition: (time, key, payload) of every record with a key, in the required order: by time, then by content."""
    found: dict[int, list[Event]] = {number: [] for number in range(partitions)}
    for row in rows:
        if row.key is not None:
            found[partition_for_key(row.key, partitions)].append(row)
    return {
        number: [(row.at_ms, row.key, row.value) for row in sorted(some, key=lambda row: (row.at_us, row.key, row.value))]
        for number, some in found.items()
    }
