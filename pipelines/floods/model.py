"""A flood, as declared. Plain values; `floods.parse` makes them from YAML, and users may make them in code.

`parse.py` reads each field of the YAML, and the table in `assets/README.md` describes it. Defaults stand here alone. A field that
changes the loaded records also belongs into `job_of` (`job.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from headgate.pipelines.floods.cron import Cron
from headgate.pipelines.framing.declared import Framing
from headgate.pipelines.ways import Files, Order

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS

By = Literal["day", "hour"]
Place = Literal["now", "front"]
PartitionBy = Literal["event_time", "path"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The input of Spark.

    `path`: a file, a directory or a URL; ``%Y``, ``%m``, ``%d`` and ``%H`` stand for the partition's own time. `format`: Spark's
    name of the format. `options`: options of Spark's reader.
    """

    path: str
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_table(self) -> bool:
        """True for an Iceberg table."""
        return self.format.lower() == "iceberg"

    @property
    def is_parquet(self) -> bool:
        """True if the files are Parquet, those of a table too."""
        return self.is_table or self.format.lower() == "parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Partitions:
    """The partitions of the history: each day, or each hour, from `start` until `end` (None: until now)."""

    by: By = "day"
    start: datetime
    end: datetime | None = None
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class Occurrences:
    """The times of the flood: repeated (`cron`, in `timezone`), fixed (`at`), or only by hand."""

    cron: Cron | None = None
    at: tuple[datetime, ...] = ()
    timezone: str = "UTC"


@dataclass(frozen=True, kw_only=True, slots=True)
class Brokers:
    """The number of brokers that a flood may request.

    `bytes_per_s`: bytes per second that one broker serves to readers, for planning. `wait_ms`: longest wait for the fleet.
    `short`: reaction to a fleet that stays too small: ``run`` with fewer brokers, or ``fail``.
    """

    minimum: int = 1
    maximum: int = 3
    bytes_per_s: int = 20 << 20
    wait_ms: int = 5 * MINUTE_MS
    short: Literal["run", "fail"] = "run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asset:
    """The flood's topic as an asset of Dagster.

    `key_prefix`: parts in front of the asset's name, which is the flood's. `group`: default: the flood's name. `deps`: the assets
    that write the source, by key (``lake/clicks``); in code also as assets. They stand in the place of the source's own asset.
    `automation_condition`: ``upstream`` (a partition is flooded when all its `deps` have it), ``eager``, ``on_missing`` or
    ``on_cron(...)``; in code also a condition of Dagster's. None: the topic is flooded by hand or by its schedule.
    """

    key_prefix: tuple[str, ...] = ()
    group: str | None = None
    deps: tuple[Any, ...] = ()
    kinds: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    automation_condition: object | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flood:
    """A planned burst: history that enters a topic by reference.

    `name`: name of the topic's asset, prefix of the names of jobs in Dagster. `key`, `value`, `headers`, `where`: Spark SQL over
    the source's columns; `key` None: records without keys. `key_frame`, `value_frame`: as of `Backfill`. `event_time`: the column
    of the event's time. `partition_by`: a row belongs to the partition of its event time, or to that of the path at which it is
    stored. `late`: condition of the rows that came after their partition was loaded: loading it again adds them, once.
    `topic_partitions`: number of partitions that the topic must have, or is created with. `lead_time_ms`: brokers are requested
    this long before an occurrence. `deadline`: latest end of the flood, as ms after its start or as a time; it decides the number
    of brokers, and a run that cannot make it is refused. `files`, `order`: as of `Backfill`. `catch_up_ms`: time in which readers
    are to read the flood. `reservation_ttl_ms`: time after the last renewal when brokers leave. `gate_ttl_ms`: time after the last
    renewal when the gate is released. `verify`: read everything back as a client does, and compare it with the source. `groups`:
    consumer groups that are to catch up; empty: all groups that have members. `asset`: how the topic appears in Dagster.
    """

    name: str
    topic: str
    source: Source
    event_time: str
    partitions: Partitions
    key: str | None = None
    value: str = "to_json(struct(*))"
    key_frame: Framing | None = None
    value_frame: Framing | None = None
    headers: str | None = None
    where: str | None = None
    late: str | None = None
    partition_by: PartitionBy = "event_time"
    topic_partitions: int | None = None
    occurrences: Occurrences = Occurrences()
    lead_time_ms: int = 10 * MINUTE_MS
    deadline: int | datetime = 2 * HOUR_MS
    catch_up_ms: int = 5 * MINUTE_MS
    brokers: Brokers = Brokers()
    place: Place = "now"
    files: Files = "rewrite"
    order: Order = "event_time"
    reservation_ttl_ms: int = 2 * MINUTE_MS
    gate_ttl_ms: int = 10 * MINUTE_MS
    verify: bool = True
    groups: tuple[str, ...] = ()
    asset: Asset = Asset()
